"""Which markers a partition needs after a crash. Whole stories are in scripts/crash_*.txt and in the model test."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.log_ends import LogEnd
from stablelog.coordinators.transactions.marker_orders import REPAIR, MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.records import encode_transaction
from stablelog.coordinators.transactions.recovery import DecisionHistory, RankedMarkerOrder, markers_for
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from tests.scale import seeds

T0 = ("t", 0)
T1 = ("t", 1)


def order(
    producer_id: int,
    *,
    epoch: int,
    g: int = -1,
    end: LogEnd | None = None,
    transactional_id: str = REPAIR,
    repeated: bool = False,
    settled_epoch: int = -1,
) -> MarkerOrder:
    """A commit if it has a number. With an end it is of the first dialect: the marker has the epoch of the records."""
    return MarkerOrder(
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=epoch if end else epoch + 1,
        type=MarkerType.ABORT if g < 0 else MarkerType.COMMIT,
        group="",
        commit_sequence=g,
        coordinator_epoch=0,
        partitions=PartitionSet({T0}),
        transaction_version=1 if end else 2,
        transaction_epoch=epoch,
        ends={T0: end} if end else {},
        settled_epoch=settled_epoch,
        repeated=repeated,
    )


def past(orders: Mapping[int, Sequence[tuple[int, MarkerOrder]]]) -> dict[int, list[RankedMarkerOrder]]:
    return {
        producer_id: [RankedMarkerOrder(*ranked) for ranked in found] for producer_id, found in orders.items()
    }


def test_a_partition_with_nothing_open_needs_nothing_again() -> None:
    decided = order(1, epoch=0, g=1)
    held = order(2, epoch=0, g=2, transactional_id="b", repeated=True)
    assert markers_for(T0, [], past({1: [(0, decided)], 2: [(1, held)]}), [held], 2) == ([], [])


def test_lost_markers_are_written_in_the_order_of_the_decisions() -> None:
    first, second, third = order(5, epoch=0, g=1), order(3, epoch=0, g=2), order(4, epoch=0)
    found = [
        TransactionInPartition(3, 0, 11, 0),
        TransactionInPartition(4, 0, 12, 0),
        TransactionInPartition(5, 0, 10, 0),
    ]
    markers, unexplained = markers_for(
        T0, found, past({5: [(0, first)], 3: [(1, second)], 4: [(2, third)]}), [], 3
    )
    assert markers == [first, second, third]
    assert unexplained == []


def test_the_order_that_completes_a_transaction_takes_the_place_of_its_repetition() -> None:
    decided = order(1, epoch=4, g=7)
    held = order(1, epoch=4, g=7, transactional_id="a", repeated=True)
    markers, _ = markers_for(T0, [TransactionInPartition(1, 4, 0, 0)], past({1: [(6, decided)]}), [held], 7)
    assert markers == [held]


def test_orders_from_after_the_start_are_written_even_for_nothing() -> None:
    """They raise the epoch that the partition knows, so that late writes are refused there, too."""
    held = order(1, epoch=4, g=7, transactional_id="a")
    assert markers_for(T0, [], past({}), [held], 0) == ([held], [])


def test_what_is_held_behind_a_lost_marker_follows_it() -> None:
    lost, held = order(1, epoch=4, g=7), order(1, epoch=5, g=8, transactional_id="a")
    markers, _ = markers_for(T0, [TransactionInPartition(1, 4, 0, 0)], past({1: [(0, lost)]}), [held], 1)
    assert markers == [lost, held]


@pytest.mark.parametrize("seed", seeds(100))
def test_markers_of_several_producers_follow_the_order_of_all_decisions(seed: int) -> None:
    """Against one list of decisions: before the start, pending at the start (held and repeated), and since (fresh)."""
    chance = random.Random(seed)
    epochs = Counter[int]()

    def decide(**given: bool) -> MarkerOrder:
        producer_id = chance.randint(1, 4)
        epochs[producer_id] += 1
        name = f"id-{producer_id}"
        return order(producer_id, epoch=epochs[producer_id] - 1, transactional_id=name if given else REPAIR)

    before = [decide() for _ in range(chance.randrange(9))]
    decided: dict[int, list[tuple[int, MarkerOrder]]] = {}
    for rank, one in enumerate(before):
        decided.setdefault(one.producer_id, []).append((rank, one))
    held = []
    for rank, last in sorted(rows[-1] for rows in decided.values() if chance.random() < 0.6):
        held.append(last._replace(transactional_id=f"id-{last.producer_id}", repeated=True))
        if chance.random() < 0.3:  # what was decided was taken out when the partition was opened before
            decided[last.producer_id] = []
        else:
            decided[last.producer_id][-1] = (rank, held[-1])
    repeated_count = len(held)
    held += [decide(is_fresh=True) for _ in range(chance.randrange(7))]
    known = {
        producer_id: [(rank, one._replace(transactional_id=REPAIR, repeated=False)) for rank, one in rows]
        for producer_id, rows in decided.items()
    }
    found = [
        TransactionInPartition(producer_id, chance.randrange(epochs[producer_id] + 2))
        for producer_id in range(1, 6)
        if chance.random() < 0.6
    ]
    wanted, unexplained = [], []
    for producer_id in range(1, 6):
        mine = list(decided.get(producer_id, ()))
        mine += [
            (len(before) + at, one)
            for at, one in enumerate(held)
            if one.producer_id == producer_id and one not in [row[1] for row in mine]
        ]
        fresh = [row for row in mine if row[0] >= len(before) + repeated_count]
        for txn in found:
            if txn.producer_id == producer_id:
                ended = [row for row in mine if row[1].transaction_epoch == txn.producer_epoch]
                later = [row for row in fresh if row[1].transaction_epoch > txn.producer_epoch]
                wanted += ended + later
                unexplained += [txn] if not ended else []
                break
        else:
            wanted += fresh
    expected = [one for _, one in sorted(wanted, key=lambda row: row[0])]
    assert markers_for(T0, found, past(known), held, len(before)) == (expected, unexplained)


def test_a_transaction_of_the_first_dialect_is_found_by_where_the_partition_ended() -> None:
    one = order(1, epoch=0, g=1, end=LogEnd(2, 10))
    two = order(1, epoch=0, end=LogEnd(2, 20))
    decided = past({1: [(0, one), (1, two)]})

    def needs(first_offset: int, leader_epoch: int) -> list[MarkerOrder]:
        markers, unexplained = markers_for(
            T0, [TransactionInPartition(1, 0, first_offset, leader_epoch)], decided, [], 2
        )
        assert bool(markers) != bool(unexplained)
        return markers

    assert needs(9, 2) == [one]
    assert needs(10, 2) == [two]
    assert needs(19, 2) == [two]
    assert needs(20, 2) == []
    assert needs(99, 1) == [one], "an older leader epoch is before every end of a newer one"
    assert needs(5, 3) == [], "what a later start wrote again under the same offsets is another transaction"
    assert needs(-1, -1) == [one], "where nothing is known, the first decision it can be"


def test_what_began_before_a_settled_leader_epoch_is_no_part_of_later_decisions() -> None:
    held = order(1, epoch=0, g=2, end=LogEnd(5, 0), transactional_id="a", settled_epoch=4)
    assert markers_for(T0, [TransactionInPartition(1, 0, 3, 4)], past({}), [held], 0) == ([held], [])

    leftover = TransactionInPartition(1, 0, 3, 3)
    assert markers_for(T0, [leftover], past({}), [held], 0) == ([], [leftover])


def test_an_open_transaction_older_than_what_is_held_makes_way_for_it() -> None:
    held = order(1, epoch=5, g=2, transactional_id="a")
    older = TransactionInPartition(1, 3, 7, 0)
    assert markers_for(T0, [older], past({}), [held], 0) == ([held], [older])


def test_history_is_taken_out_partition_by_partition() -> None:
    history = DecisionHistory()
    txn = TransactionMetadata(
        1,
        1,
        10,
        TransactionState.PREPARE_COMMIT,
        PartitionSet({T0, T1}),
        commit_sequence=1,
        transaction_epoch=0,
    )
    history.add_decision("a", encode_transaction(txn), txn)
    assert len(history) == 2
    assert [value for _, value in history.records()] == [encode_transaction(txn)]
    assert history.transactional_ids() == {"a"}
    assert [history.has_decision_of(producer_id) for producer_id in (0, 1, 2)] == [False, True, False]
    assert [history.has_decision_in(*one) for one in ((T0, 1), (T1, 1), (T0, 2), (("u", 0), 1))] == [
        True,
        True,
        False,
        False,
    ]

    taken = history.take_decisions(
        T0, {1, 2}, lambda t: order(t.producer_id, epoch=t.transaction_epoch, g=t.commit_sequence)
    )
    assert taken == {1: [RankedMarkerOrder(0, order(1, epoch=0, g=1))]}
    assert len(history) == 1
    assert len(list(history.records())) == 1
    assert history.has_decision_of(1)
    assert [history.has_decision_in(one, 1) for one in (T0, T1)] == [False, True]

    assert history.take_decisions(T1, set(), lambda t: order(t.producer_id, epoch=0)) == {}
    assert len(history) == 0
    assert list(history.records()) == []
    assert history.end_rank == 1
    assert not history.has_decision_of(1)


def test_a_repeated_decision_of_the_first_dialect_without_ends_decides_nothing() -> None:
    """As Apache Kafka writes them: what is found open may be the producer's next transaction."""
    decided = order(1, epoch=0, g=1, end=LogEnd(0, 10))._replace(ends={})
    assert not decided.decides(T0, TransactionInPartition(1, 0, 3, 0))
    new = decided._replace(transactional_id="a")
    assert new.decides(T0, TransactionInPartition(1, 0, 3, 0)), (
        "before its markers are written nothing else is begun"
    )
    assert not new._replace(repeated=True).decides(T0, TransactionInPartition(1, 0, 3, 0))


def test_a_partition_that_was_empty_at_a_decision_of_the_first_dialect_had_nothing_of_it() -> None:
    decided = order(1, epoch=0, g=1, end=LogEnd(2, 0))
    assert not decided.decides(T0, TransactionInPartition(1, 0, 0, 2))
    assert decided.decides(T0, TransactionInPartition(1, 0, 0, 1))


END = LogEnd(leader_epoch=5, end_offset=100)


@pytest.mark.parametrize("settled_epoch", [-1, 0, 3, 5])
@pytest.mark.parametrize("repeated", [True, False])
@pytest.mark.parametrize("transactional_id", [REPAIR, "a"])
@pytest.mark.parametrize("end", [END, None])
def test_an_order_decides_what_was_open_at_the_decision(
    settled_epoch: int, repeated: bool, transactional_id: str, end: LogEnd | None
) -> None:
    """Every place at which a transaction may be found, against the rules one by one."""
    decision = order(
        7,
        epoch=2,
        end=end or END,
        transactional_id=transactional_id,
        repeated=repeated,
        settled_epoch=settled_epoch,
    )._replace(ends={T0: end} if end else {})
    raised = decision._replace(producer_epoch=3)
    for leader_epoch in range(-1, 8):
        was_settled = leader_epoch != -1 and leader_epoch < settled_epoch
        for first_offset in (-1, 0, 99, 100, 101):
            found = TransactionInPartition(7, 2, first_offset, leader_epoch)
            is_before_end = end is not None and (
                first_offset == -1 or (leader_epoch, first_offset) < (end.leader_epoch, end.end_offset)
            )
            is_of_now = transactional_id != REPAIR and not repeated
            assert decision.decides(T0, found) == (not was_settled and (is_of_now or is_before_end))
            assert raised.decides(T0, found) == (not was_settled)
            assert not decision.decides(T0, found._replace(producer_id=8))
            assert not raised.decides(T0, found._replace(producer_epoch=3))
    assert decision.decides(T1, TransactionInPartition(7, 2)) == (transactional_id != REPAIR and not repeated)
