"""A joint commit of many children is decided by several decisions, and is one commit all the same."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.joint.records import decode_joint
from stablelog.coordinators.transactions.marker_orders import MarkerOrder
from stablelog.coordinators.transactions.records import JointKey, read_key
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.wire.extension.children import JointName, child_id
from tests.coordinators.transactions.test_coordinator import T0, T1, add, coordinator, end, init, marked

NAME = JointName("", "k")
LONG_AGO_MS, LATE_MS = 0, 10**9


class Log:
    """A coordinator that ends two children at once, and its commit log."""

    def __init__(self) -> None:
        self.coordinator = coordinator()
        self.coordinator.joint.at_once = 2
        self.records: list[tuple[bytes, bytes | None]] = []

    def said(self, decision: Decision[Any]) -> Decision[Any]:
        self.records += decision.records
        return decision

    def child(self, part: int, *, run: str = "r", is_open: bool = True) -> ChildShown:
        c, name = self.coordinator, child_id("k", 0, run, part, 0)
        self.said(decision := c.producers.init_producer_id(name, 60_000, api_version=6, now_ms=LONG_AGO_MS))
        who = decision.answer
        if is_open:
            targets, given = (T0, T1), {"api_version": 12, "transaction_version": 2, "now_ms": LONG_AGO_MS}
            self.said(c.add_partitions(name, who.producer_id, who.producer_epoch, targets, **given))
        return ChildShown(name, who.producer_id, who.producer_epoch)

    def commit(self, children: list[ChildShown], **given: Any) -> Decision[Any]:
        return self.said(self.coordinator.joint.commit(NAME, 0, children, now_ms=1, **given))

    def rest(self) -> list[MarkerOrder]:
        """Carry out the decisions that follow; their markers."""
        orders = []
        while self.coordinator.joint.accepted_children.is_pending:
            orders += self.said(self.coordinator.joint.end_accepted(now_ms=1)).markers
        return orders

    def accepted(self) -> list[int]:
        """The number of accepted children in each record of the key."""
        return [
            len(decode_joint(value).accepted)
            for key, value in self.records
            if isinstance(read_key(key), JointKey) and value is not None
        ]


def restarted(records: list[tuple[bytes, bytes | None]]) -> tuple[TransactionCoordinator, Decision[bool]]:
    c = coordinator()
    for key, value in records:
        c.table.replay(key, value)
    return c, c.finish_replay(now_ms=2)


def test_the_record_of_the_key_commits_and_the_ends_of_the_children_follow() -> None:
    log = Log()
    children = [log.child(part) for part in range(5)]
    log.child(9, is_open=False)
    decision = log.commit(children)
    assert (decision.answer.error, decision.answer.commit_sequence) == (ErrorCode.none, 1)
    assert (len(decision.records), decision.markers) == (1, [])
    counts = []
    orders: list[MarkerOrder] = []
    while log.coordinator.joint.accepted_children.is_pending:
        step = log.said(log.coordinator.joint.end_accepted(now_ms=1))
        counts.append(len(step.markers))
        orders += step.markers
    assert counts == [2, 2, 1]
    assert [order.transactional_id for order in orders] == [shown.transactional_id for shown in children]
    assert {(order.type, order.commit_sequence) for order in orders} == {(MarkerType.COMMIT, 1)}
    assert log.accepted() == [5, 0], "the last decision is to say that none is left"


def test_no_more_children_than_one_decision_ends_are_decided_at_once() -> None:
    log = Log()
    decision = log.commit([log.child(1), log.child(2), log.child(3, is_open=False)])
    assert (len(decision.markers), log.coordinator.joint.accepted_children.is_pending) == (2, False)
    assert log.accepted() == [0]


@pytest.mark.parametrize("ended", range(4))
def test_a_start_ends_the_children_that_are_left(ended: int) -> None:
    """After a crash behind any of the decisions, with a checkpoint and without."""
    log = Log()
    children = [log.child(part) for part in range(6)]
    log.commit(children)
    for _ in range(ended):
        log.said(log.coordinator.joint.end_accepted(now_ms=1))
    for records in (log.records, log.coordinator.table.checkpoint()):
        c, decision = restarted(records)
        assert [order.transactional_id for order in decision.markers] == [
            shown.transactional_id for shown in children
        ]
        assert {(order.type, order.commit_sequence) for order in decision.markers} == {(MarkerType.COMMIT, 1)}
        assert all(order.repeated for order in decision.markers)
        assert decision.answer is False, "nobody has to wait for what a start can write again"
        assert c.table.resolved_sequence == 0, "no partition was compared yet"
        assert not c.joint.accepted_children.is_pending
        again, repeated = restarted([*records, *decision.records])
        assert (repeated.records, len(repeated.markers)) == ([], 6)
        assert again.joint.commit(NAME, 0, [], now_ms=3).answer.commit_sequence == 1


def test_a_start_leaves_alone_whoever_got_the_producer_id_of_an_ended_child() -> None:
    log = Log()
    log.coordinator.joint.at_once = 0
    children = [log.child(1), log.child(2)]
    log.commit(children)
    log.coordinator.joint.at_once = 1
    log.said(log.coordinator.joint.end_accepted(now_ms=1))
    successor = child_id("k", 1, "r", 1, 0)
    who = children[0].producer_id
    c, _ = restarted(log.records)
    state = c.table.require_state(children[0].transactional_id)
    records: list[tuple[bytes, bytes | None]] = []
    c.table.put(
        successor,
        state._replace(
            state=TransactionState.ONGOING, producer_epoch=7, commit_sequence=-1, transaction_epoch=-1
        ),
        records,
    )
    gone = [(key, None) for key, _ in log.records[-1:]]
    c, decision = restarted([*log.records, *gone, *records])
    assert (c.table.require_state(successor).producer_id, c.table.require_state(successor).state) == (
        who,
        TransactionState.ONGOING,
    )
    assert [order.transactional_id for order in decision.markers] == [children[1].transactional_id]


def test_until_all_children_are_ended_the_commit_is_not_resolved_and_no_other_is_decided() -> None:
    log = Log()
    c = log.coordinator
    children = [log.child(part) for part in range(4)]
    other = init(c, "a")
    add(c, other, T0)
    log.commit(children)
    marked(c, log.said(c.joint.end_accepted(now_ms=1)))
    assert (c.table.sequences.last, c.table.resolved_sequence) == (1, 0)
    assert end(c, other, commit=True).answer.error is ErrorCode.coordinator_load_in_progress
    assert c.joint.commit(JointName("", "l"), 0, [], now_ms=1).answer.error is (
        ErrorCode.coordinator_load_in_progress
    )
    marked(c, log.said(c.joint.end_accepted(now_ms=1)))
    assert c.table.resolved_sequence == 1
    (order,) = end(c, other, commit=True).markers
    assert order.commit_sequence == 2


def test_an_accepted_child_is_ended_by_nothing_else() -> None:
    log = Log()
    c = log.coordinator
    children = [log.child(part) for part in range(4)]
    left = log.child(4)
    log.commit(children)
    one = children[-1]
    assert not c.abort_overdue(LATE_MS).markers
    assert c.force_abort(one.transactional_id, now_ms=1).answer.error is ErrorCode.concurrent_transactions
    assert not c.joint.may_be_dismissed(one.transactional_id)
    dismissed = c.joint.dismiss_children([shown.transactional_id for shown in (*children, left)], now_ms=1)
    assert [order.transactional_id for order in dismissed.markers] == [left.transactional_id]
    who = init(c, one.transactional_id)
    assert who.error is ErrorCode.producer_fenced
    late = c.end(one.transactional_id, *one[1:], False, api_version=5, now_ms=1)
    assert late.answer.error in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
    assert len(log.rest()) == 4
    assert c.table.resolved_sequence == 0, "the markers are not written"


def test_an_abort_between_two_requests_does_not_touch_what_is_committed() -> None:
    """An administrator's marker would tear the commit."""
    log = Log()
    c = log.coordinator
    children = [log.child(part) for part in range(3)]
    assert not any(c.joint.is_committing(shown.producer_id) for shown in children)
    log.commit(children)
    assert all(c.joint.is_committing(shown.producer_id) for shown in children)
    orders = log.rest()
    assert all(c.joint.is_committing(shown.producer_id) for shown in children)
    for order in orders:
        c.markers_done(order.transactional_id, order.producer_id, order.producer_epoch, now_ms=1)
    assert not any(c.joint.is_committing(shown.producer_id) for shown in children)


def test_a_start_forgets_late_children_without_a_transaction() -> None:
    log = Log()
    log.coordinator.joint.at_once = 1
    children = [log.child(1), log.child(2)]
    for part in range(10, 14):
        log.child(part, is_open=False)
    log.commit(children)
    c, _ = restarted(log.records)
    left = {i for i, _ in c.joint.children(NAME)}
    assert left == {shown.transactional_id for shown in children}
