"""The search for the aborted transactions of a range: which transaction indexes it asks for, and where it ends."""

import random
from types import SimpleNamespace

import pytest

from stablelog.errors import NotLoadedError
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.search.aborts import find_aborted
from stablelog.log.search.rows import SegmentRows
from stablelog.types import ObjectRange
from tests.log.known import Batch as KnownBatch
from tests.log.known import Known
from tests.log.timeline import Log, aborted_in


def txn(first, last, stable=None):
    return AbortedTxn(1, first, last, last + 1 if stable is None else stable)


class Source:
    """Segments of 10 offsets, each with its aborted transactions. Their indexes are loaded on demand.

    Attributes:
        groups: the base offsets of the segments whose indexes were asked for together.
    """

    def __init__(self, *aborted, stable=None, missing=()):
        self.groups, self.missing = [], missing
        known = [10 * number + 10 for number in range(len(aborted))] if stable is None else stable
        rows = []
        for number, (transactions, stable_offset) in enumerate(zip(aborted, known, strict=True)):
            index = TransactionIndex()
            for one in transactions:
                index.append(one)
            least = min((one.first_offset for one in transactions), default=None)
            base = 10 * number
            rows.append(
                SimpleNamespace(
                    base_offset=base,
                    end_offset=base + 10,
                    stable_offset=stable_offset,
                    least_aborted_offset=least,
                    index=index,
                )
            )
        self.rows = SegmentRows(rows)

    def require_txn_indexes(self, rows):
        bases = [row.base_offset for row in rows]
        if set(bases) & set(self.missing):
            raise NotLoadedError([ObjectRange("key", 0, 1)], 1)
        self.groups.append(bases)

    def txn_index_of(self, row):
        return row.index


FIRST, SECOND, LATE = txn(1, 3), txn(12, 15), txn(5, 25)


def test_transactions_of_a_range_come_in_the_order_of_their_markers():
    source = Source([FIRST], [SECOND], [LATE])
    assert find_aborted(source, 0, 30) == ([FIRST, SECOND, LATE], True)


def test_the_search_ends_where_all_transactions_of_the_range_have_ended():
    source = Source([FIRST], [SECOND], [txn(22, 25)])
    assert find_aborted(source, 0, 10) == ([FIRST], True)
    assert source.groups == [[0]]


def test_a_transaction_with_a_record_in_the_range_may_be_aborted_in_a_later_segment():
    source = Source([], [], [LATE], stable=[5, 5, 30])
    assert find_aborted(source, 4, 8) == ([LATE], True)


def test_segments_without_aborts_are_not_asked_for():
    source = Source([], [], [], [txn(31, 33)])
    assert find_aborted(source, 0, 30) == ([], True)
    assert source.groups == []


def test_the_search_is_not_complete_if_a_transaction_may_end_behind_the_last_segment():
    assert find_aborted(Source([FIRST], [], stable=[7, 7]), 0, 9) == ([FIRST], False)


def test_indexes_of_segments_whose_stable_offsets_are_known_are_asked_for_together():
    source = Source([txn(1, 3, 1)], [txn(2, 12, 1)], [txn(3, 22, 1)], stable=[1, 1, 30])
    assert find_aborted(source, 0, 9) == ([txn(1, 3, 1), txn(2, 12, 1), txn(3, 22, 1)], True)
    assert source.groups == [[0, 10, 20]]


def test_of_segments_whose_stable_offsets_are_unknown_1_then_2_then_4_are_asked_for():
    """The search may end in each of their indexes."""
    many = [[txn(0, 10 * number + 3, 0)] for number in range(9)]
    source = Source(*many, stable=[None] * 9)
    find_aborted(source, 0, 5)
    assert [len(group) for group in source.groups] == [1, 2, 4, 2]


def test_an_index_in_which_the_search_ends_spares_those_behind_it():
    source = Source([txn(0, 3, 9)], [txn(11, 13)], stable=[None, None])
    assert find_aborted(source, 0, 9) == ([txn(0, 3, 9)], True)
    assert source.groups == [[0]]


def test_an_index_that_is_not_loaded_is_asked_for():
    with pytest.raises(NotLoadedError):
        find_aborted(Source([FIRST], missing=[0]), 0, 9)


@pytest.mark.parametrize("seed", range(2))
def test_aborted_transactions_are_those_of_a_list_while_segments_are_deleted(seed):
    chance, log, known = random.Random(seed), Log(segment_bytes=250), Known()
    for _ in range(70):
        producer = chance.randint(1, 5)
        is_open = any(one == producer for one, _ in known.open_transactions())
        kind = chance.choice(["data", "data", "abort", "commit"]) if is_open else "data"
        if kind == "data":
            offset = log.append(producer).first_offset
        else:
            offset = log.end(producer, commit=kind == "commit").first_offset
        known.batches.append(KnownBatch(offset, offset, producer, kind, 0, ()))
    for producer, _ in known.open_transactions():
        offset = log.end(producer, commit=False).first_offset
        known.batches.append(KnownBatch(offset, offset, producer, "abort", 0, ()))
    log.sync()
    partition, end = log.partition, log.partition.end_offset
    assert len(partition.segments()) > 15
    aborted = [(txn.first, txn.marker) for txn in known.transactions() if not txn.committed]
    begins = [0, 0, end // 3, end // 3 + 4, 2 * end // 3, end - 3]
    for begin in begins if seed else begins[1:]:
        partition.deletion.delete_records(begin)
        for start in range(begin, end, 3):
            for stop in range(start + 1, end + 1, 2):
                told = [(txn.first_offset, txn.last_offset) for txn in aborted_in(partition, start, stop)]
                assert told == [one for one in aborted if one[0] < stop and one[1] >= start]
