"""Which children a joint commit can commit, and whether a check still holds."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.joint.child_checks import CheckedChildren
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import child_id, child_of
from tests.coordinators.transactions.joint.test_accepted_children import NAME, Log
from tests.coordinators.transactions.test_coordinator import T0, init, marked


def checked_of(log: Log, children: list[ChildShown]) -> CheckedChildren:
    checks = log.coordinator.joint.checks
    checked = checks.begin_checks(NAME)
    checks.check_children(NAME, 0, children, checked)
    assert checks.are_current(NAME, checked)
    return checked


def test_children_that_were_checked_before_are_committed() -> None:
    log = Log()
    children = [log.child(part, is_open=part > 0) for part in range(4)]
    checked = checked_of(log, children)
    assert log.commit(children, checked=checked).answer.error is ErrorCode.none
    assert len(log.rest()) == 3


@pytest.mark.parametrize(
    "what", ["aborted", "written", "aborted and forgotten", "turned away", "fenced", "the key"]
)
def test_a_check_does_not_hold_when_the_child_or_the_key_has_changed(what: str) -> None:
    log = Log()
    c = log.coordinator
    children = [log.child(part, is_open=part > 0) for part in range(4)]
    checked = checked_of(log, children)
    one, empty = children[2], children[0]
    match what:
        case "aborted":
            c.force_abort(one.transactional_id, now_ms=1)
        case "written":  # It was empty when it was checked.
            c.add_partitions(*empty, [T0], api_version=12, transaction_version=2, now_ms=1)
        case "aborted and forgotten":
            c.add_partitions(*empty, [T0], api_version=12, transaction_version=2, now_ms=1)
            marked(c, c.end(*empty, False, api_version=5, now_ms=1))
        case "turned away":
            c.mark_abort_only(*one)
        case "fenced":
            init(c, empty.transactional_id)
        case "the key":
            c.joint.begin_version(NAME, 0, "another run", now_ms=1)
    assert not c.joint.checks.are_current(NAME, checked)


def test_a_child_that_is_named_twice_is_refused() -> None:
    log = Log()
    one = log.child(1)
    answer = log.commit([one, one]).answer
    assert (answer.error, answer.message) == (
        ErrorCode.invalid_request,
        "the request names a child more than once",
    )
    checks = log.coordinator.joint.checks
    with pytest.raises(RefusedError, match="more than once"):
        checks.check_children(NAME, 0, [one, one], checks.begin_checks(NAME))


def test_a_child_of_a_committed_version_comes_too_late_to_be_opened() -> None:
    log = Log()
    checks = log.coordinator.joint.checks
    own, next_one = child_id("k", 0, "r", 7, 0), child_id("k", 1, "r", 7, 0)
    checks.check_open(own)
    log.commit([])
    with pytest.raises(
        RefusedError,
        match=f"{own} can no longer be committed: version 0 of its joint commit 'k' was committed already, as commit 1",
    ):
        checks.check_open(own)
    checks.check_open(next_one)
    checks.check_open("plain")


def test_a_child_of_a_run_that_has_lost_its_version_is_not_opened() -> None:
    log = Log()
    joint = log.coordinator.joint
    joint.begin_version(NAME, 0, "s", now_ms=0)
    joint.checks.check_open(child_id("k", 0, "s", 1, 0))
    joint.checks.check_open(child_id("k", 0, "", 1, 0))
    with pytest.raises(RefusedError, match=r"run 'r' no longer has version 0 .*: run 's' has begun it since"):
        joint.checks.check_open(child_id("k", 0, "r", 1, 0))
    joint.abort(NAME, 0, [], run="s", now_ms=0)
    with pytest.raises(RefusedError, match=r"run 's' no longer has version 0 .*: it was given up"):
        joint.checks.check_open(child_id("k", 0, "s", 1, 0))


@pytest.mark.parametrize(
    ("version", "run", "late"), [(0, "s", False), (0, "r", True), (0, "", False), (1, "r", False)]
)
def test_a_child_is_late_if_it_can_never_be_committed(version: int, run: str, late: bool) -> None:
    log = Log()
    joint = log.coordinator.joint
    joint.begin_version(NAME, 0, "s", now_ms=0)
    child = child_of(child_id("k", version, run, 1, 0))
    assert child is not None
    assert joint.checks.is_late(child) is late
    log.coordinator.joint.commit(NAME, 0, [], now_ms=0)
    assert joint.checks.is_late(child) is (version == 0)


def test_a_child_that_cannot_be_committed_is_refused_with_the_reason() -> None:
    log = Log()
    c = log.coordinator
    aborted, fenced, done, away = (log.child(part) for part in range(4))
    c.force_abort(aborted.transactional_id, now_ms=1)
    marked(c, c.producers.init_producer_id(fenced.transactional_id, 60_000, api_version=6, now_ms=1))
    init(c, fenced.transactional_id)
    ended = c.end(*done, False, api_version=5, now_ms=1)
    current = ChildShown(done.transactional_id, ended.answer.producer_id, ended.answer.producer_epoch)
    c.mark_abort_only(*away)
    for shown, code, why in (
        (
            ChildShown(child_id("k", 0, "r", 9, 0), 7, 0),
            "invalid_producer_id_mapping",
            "is unknown: no transaction was begun",
        ),
        (aborted, "producer_fenced", "was aborted: producer"),
        (fenced, "producer_fenced", "was fenced: producer"),
        (
            current,
            "invalid_txn_state",
            "has no open transaction: its last transaction is in state PrepareAbort",
        ),
        (away, "invalid_txn_state", "was refused a partition"),
    ):
        with pytest.raises(RefusedError, match=why) as refused:
            c.joint.checks.check_child(NAME, 0, shown)
        assert refused.value.code is ErrorCode[code]


def test_a_child_that_can_be_committed_is_returned_and_only_open_ones_are_to_be_ended() -> None:
    log = Log()
    empty, opened = log.child(1, is_open=False), log.child(2)
    checked = checked_of(log, [empty, opened])
    assert checked.opened == [opened.transactional_id]
    assert checked.identities == [opened[1:]]
    assert set(checked.snapshots) == {empty.transactional_id, opened.transactional_id}
