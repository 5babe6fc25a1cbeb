"""What holds for the coordinator whatever the conversation: refusals, bounds, numbers. Conversations are in scripts/."""

import random
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.answers import Decision, EndAnswer, InitAnswer
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TICK_PARTITION_COUNT, TransactionCoordinator
from stablelog.coordinators.transactions.producer_ids import ProducerIds, ProducerIdSpace
from stablelog.coordinators.transactions.records import (
    decode_transaction,
    group_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.errors import UnknownFormatError
from stablelog.wire.extension.children import JointName
from tests.coordinators.transactions.test_memory import growth

T0 = ("t", 0)
T1 = ("t", 1)


def coordinator(**settings: Any) -> TransactionCoordinator:
    return TransactionCoordinator(TransactionConfig(two_phase_commit_enable=True, **settings))


def init(c: TransactionCoordinator, transactional_id: str = "a", **given: Any) -> InitAnswer:
    given = {"api_version": 6, "now_ms": 0, **given}
    return c.producers.init_producer_id(transactional_id, given.pop("timeout_ms", 60_000), **given).answer


def add(
    c: TransactionCoordinator, who: InitAnswer, *partitions: tuple[str, int], now_ms: int = 0, name: str = "a"
) -> Any:
    return c.add_partitions(
        name,
        who.producer_id,
        who.producer_epoch,
        partitions,
        api_version=12,
        transaction_version=2,
        now_ms=now_ms,
    )


def end(
    c: TransactionCoordinator, who: InitAnswer | EndAnswer, *, commit: bool, name: str = "a"
) -> Decision[EndAnswer]:
    return c.end(name, who.producer_id, who.producer_epoch, commit, api_version=5, now_ms=0)


def marked(c: TransactionCoordinator, decision: Decision[Any], *, now_ms: int = 0) -> None:
    for order in decision.markers:
        c.markers_done(order.transactional_id, order.producer_id, order.producer_epoch, now_ms=now_ms)


def in_state(state: TransactionState) -> tuple[TransactionCoordinator, InitAnswer]:
    """A coordinator whose id "a" is in this state, and what its first producer had."""
    c = coordinator()
    who = init(c)
    if state is TransactionState.EMPTY:
        return c, who
    add(c, who, T0)
    if state is TransactionState.ONGOING:
        return c, who
    decision = end(
        c, who, commit=state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
    )
    if state.is_complete:
        marked(c, decision)
    return c, who


@pytest.mark.parametrize("state", TransactionState, ids=lambda state: state.label)
def test_what_is_refused_changes_nothing(state: TransactionState) -> None:
    """Every request in every state and with every identity: refused means no records, no markers, the same state."""
    requests: list[tuple[str, Any]] = []
    for epoch in range(-1, 4):
        for pid in (0, 7):
            requests += [("end", (pid, epoch, commit, v)) for commit in (True, False) for v in (1, 5)]
            requests += [("add", (pid, epoch, version)) for version in (1, 2)]
            requests += [("init", (pid, epoch, keep)) for keep in (True, False)]
    refused = 0
    for kind, (pid, epoch, *rest) in requests:
        c, _ = in_state(state)
        before = c.table.checkpoint()
        if kind == "end":
            commit, version = rest
            decision: Decision[Any] = c.end("a", pid, epoch, commit, api_version=version, now_ms=9)
            error = decision.answer.error
        elif kind == "add":
            decision = c.add_partitions(
                "a", pid, epoch, [T1], api_version=3, transaction_version=rest[0], now_ms=9
            )
            error = decision.answer[T1]
        else:
            decision = c.producers.init_producer_id(
                "a", 60_000, pid, epoch, keep_prepared=rest[0], api_version=6, now_ms=9
            )
            error = decision.answer.error
        if error is ErrorCode.none or (
            error is ErrorCode.concurrent_transactions and state is TransactionState.ONGOING
        ):
            continue
        refused += 1
        assert decision.records == []
        assert decision.markers == []
        assert c.table.checkpoint() == before
    assert refused > 40


def test_verifying_changes_nothing() -> None:
    for state in TransactionState:
        c, who = in_state(state)
        before = c.table.checkpoint()
        codes = c.verify_partitions("a", who.producer_id, who.producer_epoch, [T0, T1])
        assert c.table.checkpoint() == before
        assert (codes[T0] is ErrorCode.none) == (state is TransactionState.ONGOING)
        assert codes[T1] is not ErrorCode.none


@pytest.mark.parametrize(
    ("code", "version", "said"),
    [
        (ErrorCode.transaction_abortable, None, ErrorCode.transaction_abortable),
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
    ],
)
def test_a_partition_that_was_not_added_is_refused_in_the_words_of_the_version(
    code: ErrorCode, version: int | None, said: ErrorCode
) -> None:
    c, who = in_state(TransactionState.ONGOING)
    assert c.verify_partitions("a", who.producer_id, 0, [T1], produce_version=version) == {T1: said}
    pending, _ = in_state(TransactionState.PREPARE_COMMIT)
    waits = ErrorCode.concurrent_transactions if version is None else ErrorCode.not_enough_replicas
    assert pending.verify_partitions("a", 0, 1, [T1], produce_version=version) == {T1: waits}
    assert code is ErrorCode.transaction_abortable


def test_partitions_that_are_in_already_cost_no_record() -> None:
    c = coordinator()
    who = init(c)
    assert len(add(c, who, T0, T1).records) == 1
    again = add(c, who, T1, T0)
    assert again.answer == {T0: ErrorCode.none, T1: ErrorCode.none}
    assert again.records == []
    assert add(c, who).answer == {}
    assert add(c, who).records == []


def test_no_partitions_begin_no_transaction() -> None:
    c = coordinator()
    who = init(c)
    assert add(c, who).records == []
    assert c.table.get("a").state.label == "Empty"  # type: ignore[union-attr]


def test_the_offsets_log_is_a_partition_like_any_other() -> None:
    c = coordinator()
    who = init(c)
    add(c, who, ("__consumer_offsets", 0), T0)
    assert end(c, who, commit=True).markers[0].partitions == {("__consumer_offsets", 0), T0}


def test_ids_that_make_no_sense_are_refused() -> None:
    c = coordinator()
    assert init(c, "").error is ErrorCode.invalid_request
    assert init(c, "x" * 1025).error is ErrorCode.invalid_request
    assert init(c, "x" * 1024).error is ErrorCode.none
    assert init(c, producer_id=3).error is ErrorCode.invalid_request
    assert init(c, producer_epoch=3).error is ErrorCode.invalid_request
    assert init(c, producer_id=-7, producer_epoch=3).error is ErrorCode.invalid_request
    assert init(c, producer_id=-2, producer_epoch=-2).error is ErrorCode.invalid_request
    for key in ("", "k" * 256):
        assert (
            c.joint.begin_version(JointName("", key), 0, now_ms=0).answer.error is ErrorCode.invalid_request
        )
        assert c.joint.commit(JointName("", key), 0, [], now_ms=0).answer.error is ErrorCode.invalid_request
        assert c.joint.abort(JointName("", key), 0, [], now_ms=0).answer.error is ErrorCode.invalid_request
    assert c.end("", 0, 0, True, api_version=5, now_ms=0).answer.error is ErrorCode.invalid_request
    assert c.verify_partitions("", 0, 0, [T0]) == {T0: ErrorCode.invalid_request}


def test_commit_numbers_are_dense_and_aborts_get_none() -> None:
    c = coordinator()
    chance = random.Random(1)
    numbers = []
    who: Any = init(c)
    for _ in range(50):
        commit = chance.random() < 0.5
        assert add(c, who, T0).answer == {T0: ErrorCode.none}
        decision = end(c, who, commit=commit)
        (order,) = decision.markers
        assert order.type is (MarkerType.COMMIT if commit else MarkerType.ABORT)
        numbers += [order.commit_sequence] if commit else []
        assert commit or order.commit_sequence == -1
        marked(c, decision)
        who = decision.answer
    assert numbers == list(range(1, len(numbers) + 1))


def test_numbers_go_on_after_a_restart_even_if_the_id_was_forgotten() -> None:
    c = coordinator()
    log: list[Any] = []
    for i in range(3):
        name = f"id-{i}"
        decision = c.producers.init_producer_id(name, 60_000, api_version=6, now_ms=0)
        log += decision.records
        decision2 = add(c, decision.answer, T0, name=name)
        decision3 = end(c, decision.answer, commit=True, name=name)
        log += decision2.records + decision3.records
        for order in decision3.markers:
            log += c.markers_done(name, order.producer_id, order.producer_epoch, now_ms=0).records
    log += c.forget_expired(10**12).records
    assert len(c.table) == 0
    for records in (log, c.table.checkpoint()):
        restarted = coordinator()
        for record in records:
            restarted.table.replay(*record)
        restarted.finish_replay(0)
        assert restarted.table.sequences.last == 3
        who = init(restarted)
        assert who.producer_id >= 3
        add(restarted, who, T0)
        assert end(restarted, who, commit=True).markers[0].commit_sequence == 4


def test_no_commit_gets_a_number_that_a_partition_may_have() -> None:
    c = coordinator()
    who, other = init(c), init(c, "b")
    add(c, who, T0)
    add(c, other, T0, name="b")
    name = JointName("", "k")
    c.table.sequences.are_known = False
    before = c.table.checkpoint()
    for _ in range(2):
        refused = end(c, who, commit=True)
        assert refused == Decision(EndAnswer(ErrorCode.coordinator_load_in_progress))
        joint = c.joint.commit(name, 0, [], now_ms=0)
        assert joint.answer.error is ErrorCode.coordinator_load_in_progress
    assert c.table.checkpoint() == before
    assert end(c, other, commit=False, name="b").answer.error is ErrorCode.none, "an abort needs none"
    assert [c.table.sequences.observe_marker(sequence) for sequence in (4, 7, 7, 3)] == [
        True,
        True,
        False,
        False,
    ]
    c.table.sequences.are_known = True
    assert end(c, who, commit=True).markers[0].commit_sequence == 8
    assert c.joint.commit(name, 0, [], now_ms=0).answer.commit_sequence == 9


def test_the_last_cut_waits_for_the_slowest_commit() -> None:
    c = coordinator()
    decisions = []
    for name in ("a", "b", "c"):
        who = init(c, name)
        add(c, who, T0, name=name)
        decisions.append(end(c, who, commit=True, name=name))
    assert (c.table.sequences.last, c.table.resolved_sequence) == (3, 0)
    marked(c, decisions[1])
    assert c.table.resolved_sequence == 0
    marked(c, decisions[0])
    assert c.table.resolved_sequence == 2
    marked(c, decisions[2])
    assert c.table.resolved_sequence == 3


def test_reporting_markers_twice_or_late_changes_nothing() -> None:
    c, who = in_state(TransactionState.ONGOING)
    decision = end(c, who, commit=True)
    marked(c, decision)
    before = c.table.checkpoint()
    marked(c, decision)
    add(c, InitAnswer(ErrorCode.none, 0, 1), T0)
    end(c, InitAnswer(ErrorCode.none, 0, 1), commit=True)
    marked(c, decision)
    assert c.table.get("a").state.label == "PrepareCommit"  # type: ignore[union-attr]
    assert c.markers_done("nobody", 0, 0, now_ms=0) == Decision(None)
    for other in ((0, 7), (7, 2)):
        assert c.markers_done("a", *other, now_ms=0) == Decision(None)
    assert before != c.table.checkpoint()


def test_only_so_many_are_timed_out_or_forgotten_at_once() -> None:
    c = coordinator(transactional_id_expiration_ms=1000)
    for i in range(50):
        who = init(c, f"open-{i}", timeout_ms=100)
        add(c, who, T0, name=f"open-{i}")
        init(c, f"idle-{i}")
    assert c.abort_overdue(99, count_max=20) == Decision(False)
    sizes = []
    for _ in range(4):
        decision = c.abort_overdue(100, count_max=20)
        sizes.append(len(decision.markers))
        marked(c, decision, now_ms=100)
    assert sizes == [20, 20, 10, 0]
    forgotten = [len(c.forget_expired(1000, count_max=20).records) for _ in range(6)]
    assert (max(forgotten), sum(forgotten)) == (20, 50)
    assert len(c.table) == 50, "what was used at 100 is kept until 1100"


def test_few_transactions_with_many_partitions_are_timed_out_at_once() -> None:
    c = coordinator()
    targets = [("wide", index) for index in range(TICK_PARTITION_COUNT // 2)]
    for i in range(5):
        add(c, init(c, f"open-{i}", timeout_ms=100), *targets, name=f"open-{i}")
    decisions = [c.abort_overdue(100) for _ in range(4)]
    assert [len(decision.markers) for decision in decisions] == [2, 2, 1, 0]
    assert [decision.answer for decision in decisions] == [True, True, False, False]


def test_after_a_start_with_an_earlier_clock_all_times_run_from_the_start() -> None:
    """A clock that was set back: neither timeout nor expiry waits until it has caught up."""
    before_ms, start_ms = 36_000_000, 5_000
    settings = {"transactional_id_expiration_ms": 1000}
    c = coordinator(**settings)
    add(c, init(c, "open", now_ms=before_ms), T0, now_ms=before_ms, name="open")
    init(c, "idle", now_ms=before_ms)
    c.joint.commit(JointName("", "k"), 0, [], retention_ms=1000, now_ms=before_ms)
    restarted = coordinator(**settings)
    for record in c.table.checkpoint():
        restarted.table.replay(*record)
    restarted.finish_replay(start_ms)

    described = restarted.table.get("open")
    assert described is not None
    assert (described.start_ms, described.update_ms) == (start_ms, start_ms)
    assert restarted.forget_expired(start_ms + 999) == Decision(False)
    assert [value for _, value in restarted.forget_expired(start_ms + 1000).records] == [None, None], (
        "both are forgotten"
    )
    assert restarted.abort_overdue(start_ms + 59_999).markers == []
    [order] = restarted.abort_overdue(start_ms + 60_000).markers
    assert (order.transactional_id, order.type) == ("open", MarkerType.ABORT)


def test_transactions_whose_time_is_not_up_are_not_looked_at() -> None:
    c = coordinator()
    for i in range(2000):
        who = init(c, f"id-{i}", timeout_ms=60_000)
        add(c, who, T0, name=f"id-{i}")
    looked = []
    original = c.table.get
    c.table.get = lambda name: looked.append(name) or original(name)  # type: ignore[method-assign,func-returns-value]
    for now_ms in range(0, 60_000, 1000):
        c.abort_overdue(now_ms)
    assert looked == []


def test_two_phase_transactions_are_never_timed_out() -> None:
    c = coordinator()
    who = init(c, enable_two_phase=True, timeout_ms=1)
    add(c, who, T0)
    assert c.abort_overdue(2**60) == Decision(False)
    assert c.table.get("a").is_two_phase  # type: ignore[union-attr]


def test_a_timeout_of_the_longest_possible_time_is_still_a_timeout() -> None:
    c = coordinator(transaction_timeout_ms_max=2**31 - 1)
    who = init(c, timeout_ms=2**31 - 1)
    add(c, who, T0)
    assert not c.table.get("a").is_two_phase  # type: ignore[union-attr]
    assert len(c.abort_overdue(2**31).markers) == 1


@pytest.mark.extended
def test_memory_for_an_id_does_not_grow_with_its_transactions() -> None:
    c = coordinator()
    who: Any = init(c)

    def transactions() -> None:
        nonlocal who
        for i in range(500):
            add(c, who, T0, T1, now_ms=i)
            decision = end(c, who, commit=i % 2 == 0)
            marked(c, decision)
            who = decision.answer

    assert growth(transactions, transactions) < 10_000
    assert len(c.table.checkpoint()) == 2


def test_by_hand_only_open_transactions_are_aborted() -> None:
    for state in TransactionState:
        c, _ = in_state(state)
        answer = c.force_abort("a", now_ms=0).answer
        assert answer.error is (
            ErrorCode.none if state is TransactionState.ONGOING else ErrorCode.invalid_txn_state
        )
    assert coordinator().force_abort("a", now_ms=0).answer.error is ErrorCode.transactional_id_not_found


def test_a_decision_is_one_batch_with_the_record_of_the_outcome_last() -> None:
    """What a decision needs besides (a block of producer ids) comes before it, so that a torn log has both or none."""
    c = TransactionCoordinator(TransactionConfig(), producer_ids=ProducerIds(1))
    decision = c.producers.init_producer_id("a", 60_000, api_version=6, now_ms=0)
    assert [key for key, _ in decision.records] == [group_key(""), transaction_key("a")]


def test_groups_share_producer_ids_and_keep_their_own_numbers() -> None:
    space = ProducerIdSpace()
    groups = [
        TransactionCoordinator(TransactionConfig(), group=name, producer_ids=ProducerIds(10, space))
        for name in ("", "payments")
    ]
    named = dict(zip(groups, ("", "payments"), strict=True))
    told = [init(c, f"{named[c]}/{i}").producer_id for i in range(12) for c in groups]
    assert len(set(told)) == 24
    assert max(told) < 40, "each has its own blocks"
    for c in groups:
        add(c, InitAnswer(ErrorCode.none, told[groups.index(c)], 0), T0, name=f"{named[c]}/0")
        decision = end(
            c, InitAnswer(ErrorCode.none, told[groups.index(c)], 0), commit=True, name=f"{named[c]}/0"
        )
        assert (decision.markers[0].group, decision.markers[0].commit_sequence) == (named[c], 1)


def test_a_group_does_not_take_another_groups_numbers() -> None:
    c = coordinator()
    other = TransactionCoordinator(TransactionConfig(), group="payments")
    for i in range(3):
        who = init(other, f"{i}")
        add(other, who, T0, name=f"{i}")
        marked(other, end(other, who, commit=True, name=f"{i}"))
    c.table.replay(*other.table.checkpoint()[0])
    c.finish_replay(0)
    assert c.table.sequences.last == 0


def test_kinds_of_kafkas_that_are_not_known_are_skipped_and_those_of_a_later_release_refused() -> None:
    c = coordinator()
    with pytest.raises(UnknownFormatError, match="of version 10002"):
        c.table.replay(bytes.fromhex("2712000161"), b"from a later version")
    c.table.replay(bytes.fromhex("0007000161"), None)
    assert len(c.table) == 0


def test_markers_that_a_start_has_to_repeat_come_in_the_order_of_the_decisions() -> None:
    c = coordinator()
    log: list[Any] = []
    names = ["c", "a", "d", "b"]
    for name in names:
        decision = c.producers.init_producer_id(name, 60_000, api_version=6, now_ms=0)
        log += decision.records + add(c, decision.answer, T0, name=name).records
    for name in reversed(names):
        identity = c.table.get(name)
        assert identity is not None
        ended = c.end(
            name, identity.producer_id, identity.producer_epoch, name != "a", api_version=5, now_ms=0
        )
        log += ended.records
    for records in (log, c.table.checkpoint()):
        restarted = coordinator()
        for record in records:
            restarted.table.replay(*record)
        markers = restarted.finish_replay(0).markers
        assert [order.transactional_id for order in markers] == ["b", "d", "a", "c"]
        assert [order.commit_sequence for order in markers] == [1, 2, -1, 3]
        assert restarted.table.resolved_sequence == 0


def test_a_producer_that_shows_a_later_epoch_is_fenced_too() -> None:
    c, who = in_state(TransactionState.ONGOING)
    for epoch in (who.producer_epoch - 1, who.producer_epoch + 1):
        shown = InitAnswer(ErrorCode.none, who.producer_id, epoch)
        assert add(c, shown, T1).answer[T1] is not ErrorCode.none
        assert c.verify_partitions("a", who.producer_id, epoch, [T0])[T0] is not ErrorCode.none
        assert end(c, shown, commit=True).answer.error is not ErrorCode.none
    assert c.table.get("a").partitions == {T0}  # type: ignore[union-attr]


def test_the_partitions_of_a_kept_transaction_are_not_its_successors() -> None:
    """What the successor wrote would have another epoch than the transaction that it is to decide (KIP-939)."""
    c = coordinator()
    add(c, init(c, enable_two_phase=True), T0)
    successor = init(c, enable_two_phase=True, keep_prepared=True)
    assert successor.ongoing_producer_id == successor.producer_id
    codes = c.verify_partitions("a", successor.producer_id, successor.producer_epoch, [T0])
    assert codes[T0] is not ErrorCode.none


def test_the_time_of_a_transaction_is_not_that_of_the_one_before() -> None:
    c = coordinator()
    who = init(c)
    add(c, who, T0, now_ms=0)
    first = end(c, who, commit=True)
    marked(c, first)
    add(
        c,
        InitAnswer(ErrorCode.none, first.answer.producer_id, first.answer.producer_epoch),
        T0,
        now_ms=50_000,
    )
    assert c.abort_overdue(60_000).markers == []
    assert c.abort_overdue(109_999).markers == []
    assert len(c.abort_overdue(110_000).markers) == 1


@pytest.mark.parametrize("api_version", [1, 5])
@pytest.mark.parametrize("state", TransactionState, ids=lambda state: state.label)
def test_a_producer_that_was_refused_a_partition_can_only_abort(
    state: TransactionState, api_version: int
) -> None:
    """Also where nothing has begun: the abort is heeded, and the next transaction can begin."""
    c = TransactionCoordinator(TransactionConfig(), coordinator_epoch=7)
    first = init(c)
    shown = (first.producer_id, first.producer_epoch)

    def add_one() -> ErrorCode:
        added = c.add_partitions(
            "a", *shown, [T0], api_version=3, transaction_version=2 if api_version == 5 else 1, now_ms=0
        )
        return added.answer[T0]

    def ask(commit: bool, **given: bool) -> Decision[EndAnswer]:
        return c.end("a", *shown, commit, api_version=api_version, now_ms=9, **given)

    if state is not TransactionState.EMPTY:
        add_one()
    if state.is_decided or state.is_complete:
        ended = ask(state in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT))
        if state.is_complete:
            marked(c, ended)
        shown = ended.answer[1:] if api_version == 5 else shown
    c.mark_abort_only("a", *shown)
    before = c.table.checkpoint()
    assert ask(True) == Decision(EndAnswer(ErrorCode.invalid_txn_state))
    if state.is_decided:
        assert ask(False) == Decision(EndAnswer(ErrorCode.concurrent_transactions))
    elif state is not TransactionState.ONGOING:
        assert ask(False, open_only=True) == Decision(EndAnswer(ErrorCode.coordinator_load_in_progress))
    assert c.table.checkpoint() == before
    if state.is_decided:
        return
    aborted = ask(False)
    later = (shown[0], shown[1] + 1)
    assert aborted.answer == (ErrorCode.none, *(later if api_version == 5 else (-1, -1)))
    ((_, value),) = aborted.records
    assert value is not None
    txn = decode_transaction(value)
    assert (txn.update_ms, txn.commit_sequence, txn.client) == (9, -1, later if api_version == 5 else shown)
    if state is TransactionState.ONGOING:
        assert (txn.state, len(aborted.markers)) == (TransactionState.PREPARE_ABORT, 1)
    else:
        assert (txn.state, aborted.markers, txn.start_ms) == (TransactionState.COMPLETE_ABORT, [], 9)
        assert txn.settled_epoch == (7 if api_version == 1 else -1)
    marked(c, aborted)
    shown = txn.client
    assert add_one() is ErrorCode.none
    assert ask(True).answer.error is ErrorCode.none
