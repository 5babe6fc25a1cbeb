"""The searches of Spark in the segment files of a partition look at few segments besides those of the answer."""

import math
from dataclasses import replace

import pytest

from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex
from stablelog.log.search.source import ReaderRows
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.segments.segment_file import SegmentFile

pytestmark = pytest.mark.extended

COUNT, SIZE = 50_000, 10  # segments, and offsets of a segment
LOOKED = set()  # the base offsets of the segments that were looked at


class CountedFile(SegmentFile):
    """A segment file in memory. It notes each look at one of its values."""

    __slots__ = ()

    def __getattribute__(self, name):
        LOOKED.add(object.__getattribute__(self, "base_offset"))
        return object.__getattribute__(self, name)

    @property
    def txn_index(self):
        index = TransactionIndex()
        if self.least_aborted_offset is not None:
            last = self.base_offset + SIZE - 1
            index.append(AbortedTxn(1, self.least_aborted_offset, last, self.summary.stable_offset))
        return index


def file_of(number, least):
    base = number * SIZE
    summary = Summary(
        base,
        base + SIZE,
        txnindex_size=0 if least is None else 34,
        stable_offset=base + SIZE,
        least_aborted_offset=-1 if least is None else least,
    )
    found = CountedFile(base, f"{base}.log", 100, number, True, summary)
    found.end_offset = base + SIZE
    return found


def files_with(tmp_path, least):
    """The files of a long log. In segment number n a transaction was aborted that began at offset `least(n)`."""
    files = PartitionFiles(tmp_path, "t", 0)
    files.segments = ReaderRows([file_of(number, least(number)) for number in range(COUNT)])
    files.segments.index_aborts()
    return files


@pytest.mark.parametrize("every", [7, COUNT])
def test_a_search_for_aborted_transactions_looks_at_the_segments_of_the_answer(tmp_path, every):
    files = files_with(tmp_path, lambda number: None if number % every else number * SIZE)
    for first, count in ((0, 1), (COUNT // 2, 40), (COUNT - 1, 1), (COUNT // 3, 0)):
        LOOKED.clear()
        start = first * SIZE
        found = files.aborted(start, start + count * SIZE) if count else files.aborted(start + 3, start + 4)
        wanted = [at * SIZE for at in range(first, first + max(count, 1)) if at % every == 0]
        assert [txn.first_offset for txn in found] == [at for at in wanted if count or at < start + 4]
        assert len(LOOKED) <= len(wanted) + 1


def test_a_search_with_an_old_open_transaction_looks_at_few_segments(tmp_path):
    """A transaction that began in the first segment was aborted in the last one. All stable offsets before are 0."""
    files = files_with(tmp_path, lambda number: 0 if number == COUNT - 1 else number * SIZE)
    for row in list(files.segments)[:-1]:
        row.summary = replace(row.summary, stable_offset=0)
    files.segments = ReaderRows(files.segments)
    files.segments.index_aborts()
    LOOKED.clear()
    found = files.aborted(5 * SIZE, 6 * SIZE)
    assert [txn.first_offset for txn in found] == [0, 5 * SIZE]
    assert len(LOOKED) <= math.log2(COUNT)
