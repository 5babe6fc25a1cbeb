"""Joint commits: what the client asks of the coordinator of the transaction group, and what it makes of the answers."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.client.core import joint
from stablelog.client.core.joint import FOR_EVER, NO_ORDER, JointCommit, JointVersion
from stablelog.errors import RefusedError, UnavailableError
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import child_id
from tests.client.core.scripted import NONE, Brokers, reply

CHILDREN = [("joint:k:3:1:0:0", 7, 2), ("joint:k:3:1:1:0", 8, 0)]


def answer(code=NONE, **fields):
    return lambda request: reply(request, error_code=code, **fields)


def call(steps, name, given, **fields):
    """Run steps over brokers with this answer. Return the result and the request."""
    brokers = Brokers({name: given})
    found = brokers.run(steps(brokers.cluster(), "k", 3, **fields))
    return found, brokers.requests(name)[-1][1]


def test_a_version_that_is_open_belongs_to_the_run_that_begins_it():
    found, request = call(
        joint.begin, "BeginJoint", answer(committed=False, last_version=2), run="r", order=9, group="g"
    )
    assert found == JointVersion(False, -1, 2, "", "")
    assert (request.group, request.key, request.version, request.run, request.order) == ("g", "k", 3, "r", 9)


def test_a_version_that_is_committed_is_told_with_its_run_and_its_digest():
    given = answer(committed=True, commit_sequence=5, last_version=3, committed_run="r", digest="d")
    found, request = call(joint.begin, "BeginJoint", given)
    assert found == JointVersion(True, 5, 3, "r", "d")
    assert (request.run, request.order) == (None, NO_ORDER), "it only asks"


def test_a_commit_names_its_children_and_the_offsets_of_groups():
    offsets = {("g2", "t", 1): 7, ("g1", "t", 0): (5, "meta")}
    found, request = call(
        joint.commit,
        "CommitJoint",
        answer(commit_sequence=5, already=False),
        children=CHILDREN,
        group_offsets=offsets,
        run="r",
        digest="d",
        retention_ms=100,
    )
    assert found == JointCommit(5, False)
    shown = [(one.transactional_id, one.producer_id, one.producer_epoch) for one in request.children]
    assert shown == CHILDREN
    told = [
        (one.group_id, one.topic, one.partition_index, one.committed_offset, one.committed_metadata)
        for one in request.group_offsets
    ]
    assert told == [("g1", "t", 0, 5, "meta"), ("g2", "t", 1, 7, None)]
    assert (request.run, request.digest, request.retention_ms) == ("r", "d", 100)


def test_a_commit_without_a_limit_is_remembered_for_ever_and_has_no_digest():
    _, request = call(joint.commit, "CommitJoint", answer(commit_sequence=5, already=False), children=[])
    assert (request.retention_ms, request.digest, request.children, request.group_offsets) == (
        FOR_EVER,
        None,
        (),
        (),
    )


def test_a_commit_that_was_carried_out_before_is_told():
    given = answer(commit_sequence=5, already=True, committed_run="other", digest="d")
    assert call(joint.commit, "CommitJoint", given, children=CHILDREN)[0] == JointCommit(
        5, True, "other", "d"
    )


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_abort_says_whether_the_version_is_committed(is_committed):
    found, request = call(
        joint.abort, "AbortJoint", answer(committed=is_committed), children=CHILDREN, run="r"
    )
    assert found is is_committed
    assert (request.run, len(request.children)) == ("r", 2)


@pytest.mark.parametrize(
    ("steps", "name", "what"),
    [
        (joint.begin, "BeginJoint", "beginning"),
        (joint.commit, "CommitJoint", "committing"),
        (joint.abort, "AbortJoint", "aborting"),
    ],
)
def test_a_refusal_names_the_key_and_the_version_and_has_the_brokers_words(steps, name, what):
    fields = {"committed": False} if name != "CommitJoint" else {}
    given = answer(ErrorCode.invalid_txn_state, error_message="the child x is aborted", **fields)
    arguments = {"children": CHILDREN} if name == "CommitJoint" else {}
    with pytest.raises(RefusedError, match=f"^{what} version 3 of 'k': the child x is aborted"):
        call(steps, name, given, **arguments)


def test_a_coordinator_that_is_loading_is_asked_again():
    given = [answer(ErrorCode.coordinator_load_in_progress), answer(commit_sequence=5, already=False)]
    assert call(joint.commit, "CommitJoint", given, children=CHILDREN)[0].commit_sequence == 5


def test_requests_whose_answer_was_lost_are_counted():
    lost = []
    given = [UnavailableError("lost"), answer(commit_sequence=5, already=True)]
    call(joint.commit, "CommitJoint", given, children=CHILDREN, on_unanswered=lambda: lost.append(1))
    assert lost == [1]


def test_the_coordinator_is_that_of_the_childrens_transactional_ids():
    brokers = Brokers({"AbortJoint": answer(committed=False)})
    brokers.run(joint.abort(brokers.cluster(), "k", 3, CHILDREN, group="g"))
    (key,) = brokers.request("FindCoordinator").coordinator_keys
    assert key == child_id("k", 3, "", "-", "-", group="g")


def test_the_order_of_a_run_is_a_producer_id_that_no_other_gets():
    def initialized(code=NONE):
        return lambda request: reply(request, error_code=code, producer_id=41, producer_epoch=0)

    brokers = Brokers({"InitProducerId": [initialized(ErrorCode.coordinator_not_available), initialized()]})
    assert brokers.run(joint.next_order(brokers.cluster())) == 41
    assert {request.transactional_id for _, request in brokers.requests("InitProducerId")} == {None}


@pytest.mark.parametrize(("last_versions", "is_supported"), [({}, True), ({ApiKey.COMMIT_JOINT: -1}, False)])
def test_a_broker_supports_joint_commits_if_it_has_the_api(last_versions, is_supported):
    brokers = Brokers(last_versions=last_versions)
    assert brokers.run(joint.supported(brokers.cluster())) is is_supported
