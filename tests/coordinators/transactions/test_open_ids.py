"""How ids with an open transaction are found: by producer id, timeout and decision; and after a replay as before it."""

from stablelog.coordinators.transactions.open_ids import OpenIds
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TWO_PHASE_TIMEOUT_MS, TransactionMetadata

State = TransactionState
EMPTY = TransactionMetadata(5, 2, 60_000, State.EMPTY)
OPEN = EMPTY._replace(state=State.ONGOING, partitions=PartitionSet({("t", 0)}), start_ms=1000, update_ms=2000)
# Decided with the next producer id, which its client has.
DECIDED = OPEN._replace(state=State.PREPARE_COMMIT, commit_sequence=7, next_producer_id=6)


def due(ids, now_ms):
    return list(ids.timeouts.pop_due(now_ms, 10))


def test_an_id_is_found_by_the_producer_ids_of_its_transaction_and_of_its_client():
    ids = OpenIds()
    ids.put("a", DECIDED)
    assert [ids.owner_of(producer_id) for producer_id in (5, DECIDED.client.producer_id, 7)] == [
        "a",
        "a",
        None,
    ]
    assert ids.remove("a")
    assert (ids.owner_of(5), ids.txns, ids.remove("a")) == (None, {}, False)


def test_an_open_transaction_times_out_after_its_start_unless_it_is_two_phase():
    ids = OpenIds()
    ids.put("a", OPEN)
    ids.put("b", OPEN._replace(producer_id=8, timeout_ms=TWO_PHASE_TIMEOUT_MS))
    ids.put("c", DECIDED._replace(producer_id=9, next_producer_id=10))
    assert due(ids, 60_999) == []
    assert due(ids, 61_000) == ["a"]


def test_an_id_that_was_removed_does_not_time_out():
    ids = OpenIds()
    ids.put("a", OPEN)
    ids.remove("a")
    assert due(ids, 100_000) == []


def test_the_first_commit_without_markers_is_known():
    ids = OpenIds()
    assert ids.first_unmarked(3) == 3
    for name, producer_id, sequence in (("a", 5, 7), ("b", 15, 7), ("c", 25, 8)):
        ids.put(
            name,
            DECIDED._replace(
                producer_id=producer_id, next_producer_id=producer_id + 1, commit_sequence=sequence
            ),
        )
    found = []
    for name in "abc":
        found.append(ids.first_unmarked(9))
        ids.remove(name)
    assert [*found, ids.first_unmarked(9)] == [7, 7, 8, 9]
    assert ids.decided == {}


def test_a_replay_keeps_the_last_state_of_each_id_in_the_order_of_the_decisions():
    ids = OpenIds()
    other = DECIDED._replace(producer_id=15, next_producer_id=16, commit_sequence=8)
    for name, txn in (("a", DECIDED), ("b", other), ("c", OPEN), ("a", DECIDED), ("c", None), ("d", EMPTY)):
        ids.replay(name, txn)
    assert (list(ids.decided), set(ids.txns)) == (["b", "a"], {"a", "b"})
    ids.finish_replay(1500)
    assert (ids.owner_of(5), ids.owner_of(15)) == ("a", "b")
    assert ids.txns["a"].update_ms == 1500, "no time is later than the start"
    assert not ids.is_repeated("a")
    ids.mark_repeated()
    assert ids.is_repeated("a")
    ids.remove("a")
    assert not ids.is_repeated("a")
