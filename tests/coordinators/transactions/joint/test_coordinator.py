"""Joint commits: who has a version, and what becomes of its children. Histories are in test_model."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.records import joint_key
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import JointName, child_id, child_of
from tests.coordinators.transactions.test_coordinator import T0, add, coordinator, init

NAME = JointName("", "k")


def test_a_child_that_was_turned_away_leaves_nothing_when_it_is_forgotten() -> None:
    c = coordinator()
    for attempt in range(20):
        name = child_id("k", 0, "run", "task", f"{attempt}", group="")
        who = init(c, name)
        c.mark_abort_only(name, who.producer_id, who.producer_epoch)
        child = ChildShown(name, who.producer_id, who.producer_epoch)
        c.joint.abort(JointName("", "k"), 0, [child], now_ms=0)
        assert c.table.get(name) is None
    assert len(c.table.abort_only) == 0


def test_children_are_open_until_they_have_ended() -> None:
    c = coordinator()
    name, joint = child_id("k", 3, "run", "task", "0", group=""), JointName("", "k")
    who = init(c, name)
    child = ChildShown(name, who.producer_id, who.producer_epoch)
    late = child._replace(producer_epoch=7)

    def found() -> list[bool]:
        return [
            c.joint.is_open(child),
            c.joint.is_open(late),
            c.joint.is_ongoing(name),
            c.joint.is_ongoing("a"),
        ]

    assert found() == [False] * 4
    add(c, who, T0, name=name)
    assert found() == [True, False, True, False]
    c.joint.abort(joint, 3, [child], now_ms=0)
    assert found() == [False] * 4


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_child_that_was_turned_away_is_not_committed(has_begun: bool) -> None:
    c = coordinator()
    name = child_id("k", 0, "run", "task", "0", group="")
    who = init(c, name)
    if has_begun:
        add(c, who, T0, name=name)
    c.mark_abort_only(name, who.producer_id, who.producer_epoch)
    child = ChildShown(name, who.producer_id, who.producer_epoch)
    decision = c.joint.commit(JointName("", "k"), 0, [child], now_ms=0)
    assert decision.answer.error is ErrorCode.invalid_txn_state
    assert "refused a partition" in (decision.answer.message or "")
    assert (decision.records, decision.markers, c.table.sequences.last) == ([], [], 0)


def test_of_the_runs_that_have_lost_a_version_the_last_hundred_are_known() -> None:
    """One before them could begin again. It would be superseded again."""
    c, name = coordinator(), JointName("", "k")

    def begin(number: int) -> ErrorCode:
        return c.joint.begin_version(name, 3, f"r{number}", now_ms=0).answer.error

    for number in range(101):
        assert begin(number) is ErrorCode.none
    assert begin(0) is ErrorCode.producer_fenced
    assert begin(101) is ErrorCode.none
    assert begin(1) is ErrorCode.producer_fenced
    assert begin(100) is ErrorCode.producer_fenced
    assert begin(0) is ErrorCode.none


def test_a_child_for_offsets_is_open_at_once_and_aborted_after_a_minute() -> None:
    c = TransactionCoordinator(TransactionConfig(), coordinator_epoch=7)
    shown = [c.joint.open_offsets(JointName("g", "k"), 2, T0, now_ms=5).answer for _ in range(2)]
    children = [child_of(child.transactional_id) for child in shown]
    assert [(one.name, one.version, one.run) for one in children if one] == [(("g", "k"), 2, "")] * 2
    assert (
        len({child.transactional_id for child in shown}) == len({child.producer_id for child in shown}) == 2
    )
    other_start = TransactionCoordinator(TransactionConfig(), coordinator_epoch=8)
    later = other_start.joint.open_offsets(JointName("g", "k"), 2, T0, now_ms=5).answer
    assert later.transactional_id not in {child.transactional_id for child in shown}
    for child in shown:
        described = c.table.get(child.transactional_id)
        assert described is not None
        assert (described.state, described.partitions) == (TransactionState.ONGOING, {T0})
        assert (described.start_ms, described.update_ms, described.transaction_version) == (5, 5, 2)
    assert c.abort_overdue(60_004).markers == []
    assert [order.transactional_id for order in c.abort_overdue(60_005).markers] == [
        child.transactional_id for child in shown
    ]


def child(c: TransactionCoordinator, part: int, *, version: int = 0, run: str = "r") -> ChildShown:
    """A child with an open transaction."""
    name = child_id("k", version, run, part, 0)
    who = init(c, name)
    add(c, who, T0, name=name)
    return ChildShown(name, who.producer_id, who.producer_epoch)


def test_a_version_is_open_until_it_is_committed_and_the_answer_is_the_same_ever_after() -> None:
    c = coordinator()
    assert c.joint.begin_version(NAME, 0, "r", now_ms=0).answer == JointAnswer()
    first = c.joint.commit(NAME, 0, [child(c, 1)], run="r", digest="d", now_ms=0)
    assert first.answer == JointAnswer(commit_sequence=1, run="r", digest="d")
    again = c.joint.commit(NAME, 0, [], run="other", digest="e", now_ms=0)
    assert again == Decision(JointAnswer(committed=True, commit_sequence=1, run="r", digest="d"))
    begun = c.joint.begin_version(NAME, 0, "other", now_ms=0)
    assert begun == Decision(
        JointAnswer(committed=True, commit_sequence=1, last_version=0, run="r", digest="d")
    )


def test_the_children_of_a_commit_have_its_sequence_and_the_key_is_recorded_first() -> None:
    c = coordinator()
    decision = c.joint.commit(NAME, 0, [child(c, part) for part in range(2)], now_ms=0)
    assert [order.commit_sequence for order in decision.markers] == [1, 1]
    assert decision.records[0][0] == joint_key(*NAME)
    assert len(decision.records) == 3


def test_a_commit_aborts_the_children_that_it_does_not_name_and_forgets_those_without_a_transaction() -> None:
    c = coordinator()
    named, left, later = child(c, 1), child(c, 2), child(c, 3, version=1)
    empty = child_id("k", 0, "r", 4, 0)
    init(c, empty)
    decision = c.joint.commit(NAME, 0, [named], now_ms=0)
    assert {order.transactional_id: order.type.name for order in decision.markers} == {
        named.transactional_id: "COMMIT",
        left.transactional_id: "ABORT",
    }
    assert c.table.get(empty) is None
    assert c.joint.is_open(later), "a child of the next version"


def test_if_one_child_cannot_be_committed_nothing_is_decided() -> None:
    c = coordinator()
    good = child(c, 1)
    for bad, error in (
        (good._replace(transactional_id="plain"), ErrorCode.invalid_request),
        (ChildShown(child_id("k", 0, "r", 9, 0), 7, 0), ErrorCode.invalid_producer_id_mapping),
        (child(c, 2)._replace(producer_epoch=5), ErrorCode.producer_fenced),
    ):
        decision = c.joint.commit(NAME, 0, [good, bad], now_ms=0)
        assert decision.answer.error is error
        assert decision.answer.message
        assert (decision.records, decision.markers) == ([], [])
    assert c.table.sequences.last == 0


def test_a_start_of_the_writer_takes_the_version_and_the_children_of_the_former_one_are_aborted() -> None:
    c = coordinator()
    c.joint.begin_version(NAME, 0, "r", now_ms=0)
    old = child(c, 1)
    decision = c.joint.begin_version(NAME, 0, "s", now_ms=0)
    assert [order.transactional_id for order in decision.markers] == [old.transactional_id]
    refused = c.joint.begin_version(NAME, 0, "r", now_ms=0)
    assert refused.answer.error is ErrorCode.producer_fenced
    assert "run 's' has begun it since" in (refused.answer.message or "")
    assert refused.records == []
    assert c.joint.commit(NAME, 0, [], run="r", now_ms=0).answer.error is ErrorCode.producer_fenced


def test_an_earlier_start_by_its_order_does_not_take_the_version_from_a_later_one() -> None:
    c = coordinator()
    assert c.joint.begin_version(NAME, 0, "late", order=2, now_ms=0).answer.error is ErrorCode.none
    assert (
        c.joint.begin_version(NAME, 0, "early", order=1, now_ms=0).answer.error is ErrorCode.producer_fenced
    )
    assert c.joint.begin_version(NAME, 0, "equal", order=2, now_ms=0).answer.error is ErrorCode.none
    assert c.joint.begin_version(NAME, 1, "early", order=1, now_ms=0).answer.error is ErrorCode.none, (
        "another version"
    )


def test_a_question_without_a_run_changes_nothing() -> None:
    c = coordinator()
    assert c.joint.begin_version(NAME, 3, now_ms=0) == Decision(JointAnswer())


def test_a_run_that_gives_a_version_up_can_begin_no_more_children() -> None:
    c = coordinator()
    c.joint.begin_version(NAME, 0, "r", now_ms=0)
    named, other = child(c, 1), child(c, 2)
    decision = c.joint.abort(NAME, 0, [named], run="r", now_ms=0)
    assert [order.transactional_id for order in decision.markers] == [
        named.transactional_id,
        other.transactional_id,
    ]
    late = init(c, child_id("k", 0, "r", 3, 0))
    assert late.error is ErrorCode.producer_fenced
    assert c.joint.begin_version(NAME, 0, "s", now_ms=0).answer.error is ErrorCode.none


def test_an_abort_after_the_commit_says_so_and_changes_nothing() -> None:
    c = coordinator()
    one = child(c, 1)
    c.joint.commit(NAME, 0, [one], now_ms=0)
    assert c.joint.abort(NAME, 0, [one], now_ms=0) == Decision(JointAnswer(committed=True, commit_sequence=1))


def test_an_abort_of_a_transaction_that_is_no_child_is_refused() -> None:
    c = coordinator()
    refused = c.joint.abort(NAME, 0, [ChildShown("plain", 7, 0)], now_ms=0).answer
    assert refused.error is ErrorCode.invalid_request
    assert "plain does not belong to version 0" in (refused.message or "")


def test_a_child_is_not_committed_alone() -> None:
    c = coordinator()
    one = child(c, 1)
    assert c.end(*one, True, api_version=5, now_ms=0).answer.error is ErrorCode.invalid_txn_state
    with pytest.raises(RefusedError, match=r"cannot be committed alone: .* Send CommitJoint"):
        c.joint.check_end(one.transactional_id, commit=True)
    assert c.joint.check_end(one.transactional_id, commit=False)
    assert not c.joint.check_end("plain", commit=True)
    assert c.end(*one, False, api_version=5, now_ms=0).answer.error is ErrorCode.none


def test_a_digest_has_at_most_a_thousand_bytes() -> None:
    c = coordinator()
    refused = c.joint.commit(NAME, 0, [], digest="x" * 1001, now_ms=0)
    assert (refused.answer.error, refused.answer.message) == (
        ErrorCode.invalid_request,
        "the digest has over 1000 bytes",
    )
    assert c.joint.commit(NAME, 0, [], digest="x" * 1000, now_ms=0).answer.digest == "x" * 1000


def test_of_a_key_with_many_children_the_caller_dismisses_the_late_ones() -> None:
    c = coordinator()
    c.joint.at_once = 1
    late = [child(c, part) for part in range(3)]
    decision = c.joint.commit(NAME, 0, [], now_ms=0)
    assert decision.markers == []
    assert all(c.joint.may_be_dismissed(one.transactional_id) for one in late)
    dismissed = c.joint.dismiss_children([*(one.transactional_id for one in late[:2]), "unknown"], now_ms=0)
    assert [order.transactional_id for order in dismissed.markers] == [
        one.transactional_id for one in late[:2]
    ]
    assert not c.joint.may_be_dismissed(late[0].transactional_id)
