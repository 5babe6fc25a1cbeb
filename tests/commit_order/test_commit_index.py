"""The commit index of one segment: rows in its files and in memory."""

import pytest

from stablelog.batch.header import PREFIX
from stablelog.commit_order import row_file
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.extents import COPY_SIZE, EXTENT, LONG_COUNT, Extents
from stablelog.commit_order.row_file import TAIL_SIZE
from stablelog.env.local_disk import LocalDisk
from tests.commit_order.committed_log import NOW_MS


@pytest.mark.extended
def test_a_transaction_of_gigabytes_takes_little_memory(tmp_path):
    disk, count = LocalDisk(), 150_000  # batches of 16 KiB, none beside the next: 2.4 GB in all
    spill = disk.open(tmp_path / "spill", create=True)
    extents = Extents(0, lambda: spill)
    index = CommitIndex(disk, tmp_path, 0)
    index.create(None)
    for n in range(count):
        extents.add_batch(n // 16_000 << 20, n % 16_000 * 65_536, 16_384, 10)
        assert n * EXTENT.size - spill.size <= LONG_COUNT * EXTENT.size
    pieces = list(extents.rows(1, 0))
    assert max(map(len, pieces)) <= COPY_SIZE < count * EXTENT.size
    assert all(len(piece) % EXTENT.size == 0 for piece in pieces)
    index.add_entry(
        1,
        10 * count,
        time_ms=NOW_MS,
        first_offset=0,
        producer_id=1,
        commit_sequence=1,
        leader_epoch=0,
        extents=pieces,  # the long ones are not in memory but in the file
    )
    assert index.extents.size - disk.size(index.path(".commitextents")) < TAIL_SIZE
    del pieces
    extents.close()
    assert index[0].extent_count == count
    place = index.extent_with(index[0], 1 + 10 * 123_456 + 3)
    (columns,) = index.extents_between(place, place + 1, index[0])
    assert PREFIX.unpack(columns.prefixes[0])[0] == 1 + 10 * 123_456
    index.close()


def test_rows_are_found_in_the_file_and_in_memory_and_over_both(tmp_path, monkeypatch):
    monkeypatch.setattr(row_file, "TAIL_SIZE", 10 * EXTENT.size)
    index = CommitIndex(LocalDisk(), tmp_path, 0)
    index.create(None)
    rows = [
        (
            1 << 40 | number,
            2**31 - 1 - number,
            number,
            5 << 33 | number // 5,
            2**31 + number,
            2**32 - 1 - number,
        )
        for number in range(17)
    ]
    for row in rows:
        index.extents.append(EXTENT.pack(*row))
    assert [index.extent(place) for place in range(len(rows))] == rows
    for first in range(len(rows)):
        for end in range(first + 1, len(rows) + 1):
            parts = list(index.extents_between(first, end))
            assert len(parts) == (end - 1) // 5 - first // 5 + 1, "one for each segment"
            assert [
                (*PREFIX.unpack(prefix), length, part.segment, begin, end)
                for part in parts
                for prefix, length, begin, end in zip(*part[1:], strict=True)
            ] == [(*row[:3], row[1], *row[3:]) for row in rows[first:end]]
    index.close()
