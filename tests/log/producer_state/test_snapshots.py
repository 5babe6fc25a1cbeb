"""Snapshots of the producer state: when one is due, which stay, and what their files hold."""

import gc
import random
import tracemalloc

import pytest

from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state import snapshots
from stablelog.log.producer_state.producer import KeptBatch, ProducerEntry
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import (
    JSON_BEGINS,
    PRODUCERS_VERSION,
    Snapshots,
    decode_producers,
    decode_snapshot,
    encode_producers,
    encode_snapshot,
    read_producers,
)
from stablelog.testing.sim_disk import SimDisk
from tests.log.producer_state.test_producer_table import (
    IDLE_SIZE_MAX,
    PROGRESS,
    encoded,
    many,
    of_batches,
    producers_of,
)
from tests.log.timeline import DIRECTORY, NOW_MS, Log


def test_a_snapshot_is_due_from_its_bound_on():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    snapshots = Snapshots(disk, DIRECTORY)
    assert snapshots.is_due(0)
    snapshots.count_appended(99)
    assert not snapshots.is_due(100)
    snapshots.count_appended(1)
    assert snapshots.is_due(100)
    assert not snapshots.is_due(101)
    snapshots.postpone_next()
    assert not snapshots.is_due(1)
    size = len(snapshots.make_snapshot(Producers(), Summary(0, 5))[DIRECTORY / f"{5:020d}.producers"])
    snapshots.count_appended(8 * size - 1)
    assert not snapshots.is_due(1)
    snapshots.count_appended(1)
    assert snapshots.is_due(1)


@pytest.mark.parametrize("has_producers", [False, True])
@pytest.mark.parametrize("held_producers", [False, True])
def test_a_stop_needs_a_snapshot_where_a_start_would_replay_much_or_forget_producers(
    has_producers, held_producers
):
    log = Log().write("-")
    log.reopen()  # the time index is complete then
    (segment,) = log.partition.segments()
    producers = Producers.from_table(producers_of(int(has_producers)), NOW_MS)
    for replayed_size, whole, is_there in (
        (4096, (), False),
        (4097, (), False),
        (10**6, (1,), True),
        (0, (0, 2), False),
    ):
        snapshots = Snapshots(log.disk, DIRECTORY, {0, 1, 2}, set(whole), replayed_size - 96, held_producers)
        snapshots.count_appended(96)
        is_needed = has_producers or held_producers or replayed_size > 4096
        assert snapshots.needs_snapshot(producers, segment) is (is_needed and not is_there)


def test_within_a_segment_the_two_newest_durable_snapshots_stay():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    snapshots = Snapshots(disk, DIRECTORY)

    removed = []
    disk.fault = lambda what, path: removed.append(int(path.stem)) if what == "removing" else None

    def left():
        return sorted({int(path.stem) for path in disk.files()})

    for offset in (5, 7, 9, 9, 12, 15):
        for path, content in snapshots.make_snapshot(Producers(), Summary(5, offset)).items():
            disk.write_atomic(path, content)
    for durable, stay in (
        (8, [5, 7, 9, 12, 15]),
        (11, [5, 7, 9, 12, 15]),
        (12, [5, 9, 12, 15]),
        (15, [5, 12, 15]),
    ):
        snapshots.remove_older_snapshots(durable)
        assert left() == stay
    snapshots.remove_snapshots_past(13)
    assert left() == [5, 12]
    snapshots = Snapshots(disk, DIRECTORY, {5, 12}, {5, 12})  # as recovery finds them after the truncation
    for path, content in snapshots.make_snapshot(Producers(), Summary(5, 13)).items():
        disk.write_atomic(path, content)
    snapshots.remove_older_snapshots(99)
    assert left() == [5, 12, 13]
    snapshots.remove_other_snapshots(14, [5])
    assert left() == [5, 12, 13]
    removed.clear()
    snapshots.remove_other_snapshots(13, [5])
    assert left() == [5, 13]
    assert set(removed) == {12}, "those that have gone before are not removed again"


def test_kafkas_snapshot_gives_the_last_batch_and_the_open_transaction_of_each_producer():
    batches = [KeptBatch(5, 30, 2, NOW_MS), KeptBatch(9, 40, 3, NOW_MS + 1)]
    table = ProducerTable.from_producers(
        [
            ProducerEntry(1, 2, 3, batches, 70, NOW_MS + 4, 38, 60, 4),
            ProducerEntry(2, 3, -1, [], 71, NOW_MS + 5),
            ProducerEntry(3, 0, 0, batches[:1], 72, NOW_MS, -1),
        ]
    )
    assert list(decode_snapshot(b"".join(encode_snapshot(table)), 99)) == [
        ProducerEntry(1, 2, 3, [KeptBatch(9, 40, 3, NOW_MS + 4)], 99, NOW_MS + 4, 38, 99, 0),
        ProducerEntry(2, 3, -1, [], 99, NOW_MS + 5),
        ProducerEntry(3, 0, 0, [KeptBatch(5, 30, 2, NOW_MS)], 99, NOW_MS),
    ]


@pytest.mark.extended
def test_a_snapshot_is_written_in_pieces():
    table = many(50_000)
    for content in (encode_producers(table, PROGRESS), encode_snapshot(table)):
        assert max(map(len, content)) <= 2_000_000
        assert sum(map(len, content)) == len(content)
        assert b"".join(content) == b"".join(content), "each iteration begins again"


def test_kafkas_file_has_an_entry_for_each_producer():
    table = ProducerTable.from_producers([of_batches(9, 2), of_batches(4, 0), of_batches(2**50, 5)])
    read = decode_snapshot(b"".join(encode_snapshot(table)), NOW_MS)
    assert [(one.producer_id, one.last_sequence) for one in read] == [
        (one.producer_id, one.last_sequence) for one in table
    ]
    assert [len(one.batches) for one in read] == [0, 1, 1]


@pytest.mark.parametrize("size", [len(JSON_BEGINS), 1 << 21])
def test_a_file_of_json_is_refused_by_its_version(size, tmp_path):
    content = JSON_BEGINS.ljust(size, b" ")
    path = tmp_path / "producers"
    path.write_bytes(content)
    for read in (lambda: decode_producers(content), lambda: read_producers(LocalDisk(), path)):
        with pytest.raises(
            UnknownFormatError, match=r"^a file of producers of version 1; no release has written"
        ):
            read()


def test_a_file_of_a_million_bytes_and_more_is_read(tmp_path):
    table = many(20_000)
    content = encoded(table)
    assert len(content) > 1 << 20
    path = tmp_path / "producers"
    path.write_bytes(content)
    read, _ = read_producers(LocalDisk(), path)
    assert read.blocks() == table.blocks()


@pytest.mark.extended
def test_a_file_is_read_in_pieces(tmp_path, monkeypatch):
    """In memory is the table, and no copy of the file."""
    table, disk, path = many(40_000), LocalDisk(), tmp_path / "some.producers"
    disk.write_atomic(path, encode_producers(table, PROGRESS))
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        read, progress = read_producers(disk, path)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak <= 40_000 * IDLE_SIZE_MAX + 3_000_000
    assert progress == PROGRESS
    assert encoded(read) == path.read_bytes()
    small = path.with_name("small.producers")
    disk.write_atomic(small, encode_producers(many(70), PROGRESS))
    monkeypatch.setattr(snapshots, "PIECE_SIZE", 150)
    read, _ = read_producers(disk, small)
    assert encoded(read) == small.read_bytes()
    disk.write_atomic(small, b"")
    with pytest.raises(DamageError):
        read_producers(disk, small)


def test_a_changed_byte_is_found():
    content = encoded(many(100))
    chance = random.Random(5)
    for _ in range(200):
        changed = bytearray(content)
        changed[chance.randrange(2, len(content))] ^= 1 << chance.randrange(8)
        with pytest.raises(DamageError):
            decode_producers(bytes(changed))
    for size in range(0, len(content), 97):
        with pytest.raises(DamageError):
            decode_producers(content[:size])


def test_a_later_version_is_refused():
    content = encoded(many(3))
    later = (PRODUCERS_VERSION + 1).to_bytes(2, "big") + content[2:]
    with pytest.raises(UnknownFormatError):
        decode_producers(later)
