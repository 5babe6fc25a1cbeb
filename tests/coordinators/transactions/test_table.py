"""The state of a transaction group: what is found in it, and that a replay of its records gives the same."""

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.record_fields import Record
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import (
    TransactionGroupState,
    decode_group,
    encode_group,
    encode_transaction,
    group_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.table import TransactionTable
from stablelog.coordinators.transactions.transaction import ProducerIdAndEpoch, TransactionMetadata
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import JointName
from tests.coordinators.transactions.test_coordinator import T0, add, coordinator, init


def test_a_group_that_nobody_has_asked_for_anything_has_reserved_and_decided_nothing() -> None:
    ((key, value),) = coordinator().table.checkpoint()
    assert key == group_key("")
    assert value is not None
    assert decode_group(value) == TransactionGroupState(producer_ids_end=0, commit_sequence_next=1)


def test_changes_of_ids_and_of_keys_of_joint_commits_are_counted_together() -> None:
    """The broker takes a decision for half done while the count is ahead of what its journal has."""
    c = coordinator()
    counts = [c.table.change_count]
    who = init(c)
    counts.append(c.table.change_count)
    c.joint.begin_version(JointName("", "key"), 1, "run", now_ms=0)
    counts.append(c.table.change_count)
    add(c, who, T0)
    counts.append(c.table.change_count)
    assert counts == sorted(set(counts)), "each change counts upwards"


def test_a_list_is_made_in_slices_of_the_ids_that_are_there_when_it_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stablelog.coordinators.transactions.table.LISTED_AT_ONCE", 2)
    c = coordinator()
    openers = {name: init(c, name) for name in ("open", "ends", "idle", "late")}
    for name in ("open", "ends"):
        add(c, openers[name], T0, name=name)
    slices, _ = c.table.list_transactions(now_ms=0)
    assert [(one.transactional_id, one.state) for one in next(slices)] == [
        ("open", "Ongoing"),
        ("ends", "Ongoing"),
    ]
    add(c, openers["late"], T0, name="late")
    init(c, "new")
    assert [(one.transactional_id, one.state) for one in next(slices)] == [
        ("idle", "Empty"),
        ("late", "Ongoing"),
    ]
    assert next(slices, None) is None


def test_a_list_with_a_pattern_is_made_one_id_at_a_time() -> None:
    c = coordinator()
    for name in ("a1", "a2", "b1"):
        init(c, name)
    slices, _ = c.table.list_transactions(id_pattern="a.", now_ms=0)
    assert [[one.transactional_id for one in some] for some in slices] == [["a1"], ["a2"], []]


# -- the table alone ---------------------------------------------------------------------------------------------------

EXPIRATION_MS = 1000
IDLE = TransactionMetadata(5, 2, 60_000, TransactionState.EMPTY, update_ms=20)
OPEN = IDLE._replace(state=TransactionState.ONGOING, partitions=PartitionSet({T0}), start_ms=20)
COMMITTED = OPEN._replace(
    state=TransactionState.PREPARE_COMMIT, producer_epoch=3, transaction_epoch=2, commit_sequence=1
)


def a_table(**ids: TransactionMetadata) -> TransactionTable:
    table = TransactionTable("", EXPIRATION_MS, ProducerIds(10), lambda: lambda: True)
    for transactional_id, txn in ids.items():
        table.put(transactional_id, txn, [])
    return table


def replayed(records: list[Record], *, now_ms: int = 100) -> TransactionTable:
    table = a_table()
    for key, value in records:
        table.replay(key, value)
    table.finish_replay(0, now_ms)
    return table


def test_an_id_is_found_by_its_name_and_by_its_producer_whatever_its_state() -> None:
    for txn in (IDLE, OPEN, COMMITTED):
        table = a_table(a=txn)
        assert "a" in table
        assert "b" not in table
        assert (table.get("a"), table.require_state("a"), table.get("b")) == (txn, txn, None)
        assert (table.owner_of(5), table.owner_of(6)) == ("a", None)
        assert table.owner_of_open(5) == ("a" if txn.state.is_open else None)
        assert table.idle_ids() == ([] if txn.state.is_open else ["a"])
        assert (len(table), table.item_count) == (1, 1)


def test_the_producer_ids_before_and_after_a_take_over_lead_to_the_id() -> None:
    table = a_table(a=OPEN._replace(next_producer_id=9, next_producer_epoch=0))
    assert (table.owner_of(5), table.owner_of(9)) == ("a", "a")
    assert (table.owner_of_open(5), table.owner_of_open(9)) == ("a", None), "the records have the former id"
    table.put("a", IDLE._replace(producer_id=9), [])
    assert (table.owner_of(5), table.owner_of(9)) == (None, "a")


def test_each_change_has_one_record_and_the_records_give_the_same_state() -> None:
    table, records = a_table(), []
    for transactional_id, txn in (
        ("a", IDLE),
        ("a", OPEN),
        ("b", OPEN._replace(producer_id=6)),
        ("a", COMMITTED),
    ):
        table.put(transactional_id, txn, records)
    table.put("c", IDLE._replace(producer_id=7), records)
    table.forget("c", records)
    assert [key for key, _ in records] == [transaction_key(name) for name in ("a", "a", "b", "a", "c", "c")]
    assert records[-1][1] is None
    for log in (records, table.checkpoint()):
        other = replayed(log)
        assert {name: other.get(name) for name in ("a", "b", "c")} == {
            name: table.get(name) for name in ("a", "b", "c")
        }
        assert other.sequences.last == 1
        assert other.decided_ids() == ["a"]
        assert (other.is_repeated("a"), table.is_repeated("a")) == (True, False)


def test_an_id_with_an_open_transaction_is_not_forgotten() -> None:
    table, records = a_table(a=OPEN), []
    with pytest.raises(RefusedError):
        table.forget("a", records)
    assert (records, table.get("a")) == ([], OPEN)


def test_a_change_is_seen_by_its_snapshot() -> None:
    table = a_table(a=IDLE, b=OPEN._replace(producer_id=6), c=OPEN._replace(producer_id=7))
    snapshots = {name: table.state_snapshot(name) for name in "abc"}
    assert table.changed_ids(snapshots) == []
    table.put("a", OPEN, [])
    table.abort_only["c"] = ProducerIdAndEpoch(7, 2)
    table.abort_only["unwatched"] = ProducerIdAndEpoch(8, 2)
    assert table.changed_ids(snapshots) == ["a", "c"]
    assert table.state_snapshot("missing") is None


def test_a_producer_is_turned_away_only_with_the_identity_that_it_had() -> None:
    table = a_table(a=OPEN)
    assert not table.is_abort_only("a", OPEN)
    table.abort_only["a"] = OPEN.client
    assert table.is_abort_only("a", OPEN)
    assert not table.is_abort_only("a", OPEN._replace(producer_epoch=3))
    table.put("a", IDLE, [])
    table.forget("a", [])
    assert table.abort_only == {}


def test_the_resolved_sequence_stays_behind_commits_without_markers() -> None:
    table = a_table()
    for number, name in enumerate("ab"):
        table.sequences.assign_next()
        table.put(name, COMMITTED._replace(producer_id=number, commit_sequence=number + 1), [])
    assert table.resolved_sequence == 0
    table.put("b", IDLE._replace(producer_id=1), [])
    assert table.resolved_sequence == 0
    table.put("a", IDLE._replace(producer_id=0), [])
    assert table.resolved_sequence == 2


def test_ids_expire_by_their_last_use_and_open_ones_time_out_by_their_beginning() -> None:
    table = a_table(
        a=IDLE, b=OPEN._replace(producer_id=6, timeout_ms=500), c=IDLE._replace(producer_id=7, update_ms=30)
    )
    assert list(table.expired(20 + EXPIRATION_MS - 1, 9)) == []
    assert list(table.expired(20 + EXPIRATION_MS, 9)) == ["a"]
    assert table.may_be_expired(20 + EXPIRATION_MS)
    assert list(table.expired(30 + EXPIRATION_MS, 9)) == ["a", "c"]
    assert list(table.expired(30 + EXPIRATION_MS, 1)) == ["a"]
    assert not table.may_be_overdue(519)
    assert [name for name, _ in table.overdue(519, 9)] == []
    assert [name for name, _ in table.overdue(520, 9)] == ["b"]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["open", "done", "idle"]),
        ({"states": ["Ongoing"]}, ["open"]),
        ({"states": ["Empty", "PrepareCommit"]}, ["done", "idle"]),
        ({"states": ["Nonsense"]}, []),
        ({"producer_ids": [6, 7]}, ["done", "idle"]),
        ({"duration_ms": 80}, []),
        ({"duration_ms": 79}, ["open", "done"]),
        ({"id_pattern": ".*e"}, ["done", "idle"]),
    ],
    ids=str,
)
def test_a_list_has_the_ids_that_pass_every_filter(filters: dict, found: list[str]) -> None:
    table = a_table(open=OPEN, done=COMMITTED._replace(producer_id=6), idle=IDLE._replace(producer_id=7))
    slices, unknown = table.list_transactions(now_ms=100, **filters)
    assert [one.transactional_id for some in slices for one in some] == found
    assert unknown == (["Nonsense"] if filters.get("states") == ["Nonsense"] else [])


def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        a_table().list_transactions(id_pattern="(", now_ms=0)
    assert refused.value.code is ErrorCode.invalid_regular_expression


def test_a_new_block_of_producer_ids_is_recorded_before_the_id_is_used() -> None:
    table, records = a_table(), []
    ids = [table.take_producer_id(records) for _ in range(11)]
    assert ids == list(range(11))
    assert [decode_group(value).producer_ids_end for _, value in records] == [10, 20]  # type: ignore[arg-type]
    assert table.change_count == 2


def test_an_id_that_a_partition_contains_is_not_given_again() -> None:
    table = a_table()
    table.skip_producer_id(41)
    assert table.take_producer_id([]) == 42


def test_records_of_other_groups_and_of_kinds_that_are_not_known_are_passed_over() -> None:
    table = a_table()
    table.replay(group_key("other"), encode_group(TransactionGroupState(500, 600)))
    table.replay(b"\0\3\0\1x", b"whatever")
    assert (table.sequences.next, table.take_producer_id([]), len(table)) == (1, 0, 0)
    table.replay(group_key(""), encode_group(TransactionGroupState(500, 600)))
    assert (table.sequences.next, table.take_producer_id([])) == (600, 500)


def test_times_after_the_start_are_those_of_the_start() -> None:
    table = replayed(a_table(a=OPEN, b=IDLE._replace(producer_id=6)).checkpoint(), now_ms=15)
    assert (
        table.require_state("a").start_ms,
        table.require_state("a").update_ms,
        table.require_state("b").update_ms,
    ) == (15, 15, 15)


def test_a_pending_decision_of_kafkas_gets_the_ends_that_it_lacks() -> None:
    kafkas = COMMITTED._replace(producer_epoch=2)
    table = a_table()
    table.replay(transaction_key("a"), encode_transaction(kafkas))
    ((key, value),) = table.finish_replay(7, 100)
    assert (key, value) == (transaction_key("a"), encode_transaction(table.require_state("a")))
    assert table.require_state("a").ends == {T0: (7, 0)}
    assert table.decided_ids() == ["a"]


def test_a_state_of_too_many_decisions_is_not_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stablelog.coordinators.transactions.table.UNDIVIDED_MAX", 1)
    table = a_table(a=COMMITTED)
    assert table.live_state() is not None
    table.put("b", COMMITTED._replace(producer_id=6), [])
    assert table.live_state() is None
    assert len(table.checkpoint()) == 3
