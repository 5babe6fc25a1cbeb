"""The answers about joint commits."""

from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer, committed_before
from stablelog.coordinators.transactions.joint.records import JointState

STATE = JointState(last_version=5, commit_sequence=9, committed_run="r", digest="d")


def test_of_the_last_committed_version_all_is_known():
    answer = committed_before(STATE, 5)
    assert answer == JointAnswer(committed=True, commit_sequence=9, run="r", digest="d")
    assert (answer.error, answer.message) == (ErrorCode.none, None)


def test_of_an_earlier_version_only_that_it_is_committed():
    assert committed_before(STATE, 4) == JointAnswer(committed=True, commit_sequence=-1, run="", digest="")


def test_an_answer_without_more_says_that_nothing_is_committed():
    answer = JointAnswer()
    assert (answer.committed, answer.commit_sequence, answer.last_version) == (False, -1, -1)


def test_a_child_of_a_request_has_an_id_and_the_identity_of_its_producer():
    transactional_id, *identity = ChildShown("c", 7, 2)
    assert (transactional_id, tuple(identity)) == ("c", (7, 2))
