"""The commit index of a remote segment: rows from the object store, and the numbers that the manifest has of it."""

import struct

import pytest

from stablelog.commit_order.extents import EXTENT, BatchExtent
from stablelog.commit_order.index_format import ENTRY, Entry
from stablelog.commit_order.remote_index import LoadedRows, load_index
from stablelog.errors import NotLoadedError
from stablelog.log.remote_tier import RemoteCommits
from stablelog.types import ObjectRange

COMMITS = RemoteCommits(
    base_offset=40, end_offset=90, least_first_offset=12, latest_sequence=5, latest_ms=1000
)
ENTRIES = [Entry(50, 2, 900, 12, 1, 4, 0, 1, 0), Entry(60, 1, 1000, 45, 2, 5, 1, 1, 0)]
EXTENTS = [BatchExtent(50, 38, 0, 0, 0, 50), BatchExtent(60, 38, 0, 40, 50, 100)]


class Remote:
    """Commit indexes by the base offset of their segment, as the remote tier has them."""

    def __init__(self, rows):
        self.rows = rows

    def commit_rows(self, base_offset):
        if base_offset not in self.rows:
            raise NotLoadedError([ObjectRange("key", 0, 1)], 1)
        return self.rows[base_offset]


def packed():
    return b"".join(ENTRY.pack(*one) for one in ENTRIES), b"".join(EXTENT.pack(*one) for one in EXTENTS)


def test_rows_in_memory_are_counted_and_read_one_by_one_and_as_bytes():
    row = struct.Struct(">ih")
    content = b"".join(row.pack(number, -number) for number in range(4))
    rows = LoadedRows(content, row)
    assert len(rows) == 4
    assert [rows[place] for place in range(4)] == [(number, -number) for number in range(4)]
    assert bytes(rows.between(1, 3)) == content[6:18]
    assert bytes(rows.between(2, 2)) == b""


def test_the_index_has_the_rows_of_its_segment_and_the_numbers_of_the_manifest():
    found = load_index(Remote({40: packed()}), COMMITS)
    assert [found[place] for place in range(len(found))] == ENTRIES
    assert [found.extent(place) for place in range(2)] == EXTENTS
    assert (found.base_offset, found.view_end, found.least_first_offset) == (40, 90, 12)
    assert (found.latest_sequence, found.latest_ms) == (5, 1000)


def test_its_size_is_that_of_the_rows_that_were_loaded():
    assert load_index(Remote({40: packed()}), COMMITS).loaded_size == 2 * ENTRY.size + 2 * EXTENT.size


def test_rows_that_are_not_loaded_are_asked_for():
    with pytest.raises(NotLoadedError):
        load_index(Remote({0: packed()}), COMMITS)
