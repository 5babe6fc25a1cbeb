"""Entries of one size, in memory or mapped from a file: counted, searched, and copied when the first one is added."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as some

from stablelog.log.indexes.index_entries import IndexEntries
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import AbortedTxn, TransactionIndex

PAIR = struct.Struct(">ii")


@given(some.lists(some.tuples(some.integers(0, 3), some.integers(0, 3)), max_size=12), some.integers(0, 4))
def test_entries_are_counted_up_to_the_zeros_that_kafka_has_preallocated(rows, spare):
    while rows and rows[-1] == (0, 0):
        rows.pop()
    # A row of zeros in the middle does not occur: an index has rising entries.
    rows = [(one or 1, other) for one, other in rows]
    content = b"".join(PAIR.pack(*row) for row in rows) + bytes(PAIR.size * spare)
    assert len(OffsetIndex(0, content)) == len(rows)


def test_a_part_of_an_entry_at_the_end_of_a_file_is_no_entry():
    assert len(OffsetIndex(0, PAIR.pack(1, 2) + b"\0\0\0\1")) == 1


def indexes():
    """An index of each kind, with three entries."""
    offsets, times, txns = OffsetIndex(7), TimeIndex(7), TransactionIndex()
    for at in range(1, 4):
        offsets.append(7 + at, 100 * at)
        times.append_if_later(1000 + at, 7 + at)
        txns.append(AbortedTxn(1, 7, 7 + at, 7))
    return offsets, times, txns


@pytest.mark.parametrize("which", range(3), ids=["offsets", "times", "transactions"])
def test_an_index_has_entries_from_0_to_its_length(which):
    index = indexes()[which]
    assert len({index[place] for place in range(len(index))}) == 3
    for place in (-1, 3, -4):
        with pytest.raises(IndexError):
            index[place]


def test_the_content_is_that_of_the_file_without_spare_bytes():
    content = PAIR.pack(1, 2) + PAIR.pack(3, 4)
    assert bytes(OffsetIndex(0, content + bytes(24)).content()) == content


def test_an_index_that_is_mapped_from_its_file_is_copied_when_an_entry_is_added():
    content = bytes(PAIR.pack(1, 2) + bytes(8))
    index = OffsetIndex(0, memoryview(content))
    index.append(5, 6)
    assert [index[place] for place in range(2)] == [(1, 2), (5, 6)]
    assert content == PAIR.pack(1, 2) + bytes(8), "the file is not changed"


def test_no_entry_is_added_while_a_view_of_the_entries_is_held():
    index = OffsetIndex(0)
    index.append(1, 2)
    with index.content(), pytest.raises(BufferError):
        index.append(3, 4)


def test_an_index_of_its_own_kind_names_the_struct_of_its_entries():
    assert {one.ENTRY.size for one in (OffsetIndex, TimeIndex, TransactionIndex)} == {8, 12, 34}
    assert not hasattr(IndexEntries, "ENTRY")
