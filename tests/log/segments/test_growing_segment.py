"""A segment grows, and sealing makes another type of it, which has the same log file and other indexes."""

import random

import pytest

from stablelog.batch.header import read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, UnprovenError
from stablelog.log.files.names import SegmentName
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.segments.sealed_segment import INTERVAL_SIZE, SealedSegment
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY, NOW_MS

NAME = SegmentName.of(DIRECTORY, 10)


def grown(disk, *, count=40, seed=0, name=NAME):
    """A growing segment with batches of one record, whose timestamps go up and down."""
    chance = random.Random(seed)
    disk.make_dir(DIRECTORY)
    segment = GrowingSegment.create(disk, name)
    for at in range(count):
        record = Record(0, 1000 + chance.randrange(500), None, bytes(chance.randrange(2000)))
        batch = encode_batch([record], base_offset=segment.end_offset + (at % 7 == 0))
        segment.append((batch,))
        segment.index_batch(read_header(batch), segment.size, batch[:61], INTERVAL_SIZE)
    return segment


def durable(segment, disk):
    """What a sync of a sealed segment does."""
    for file in segment.files_to_sync(indexes=True):
        file.sync()
    segment.mark_durable()


def test_a_sealed_segment_is_what_has_grown():
    disk = SimDisk()
    growing = grown(disk)
    found = [growing.find(offset) for offset in range(10, growing.end_offset)]
    batches = list(growing.walk(0))
    sealed = growing.seal(growing.end_offset, OpenFiles())
    for one in ("base_offset", "end_offset", "size", "first_timestamp", "max_timestamp", "record_count"):
        assert getattr(sealed, one) == getattr(growing, one), one
    assert sealed.summary == growing.make_summary(growing.end_offset)
    assert (growing.sealed, growing.summary, growing.stable_offset) == (False, None, None)
    assert (sealed.sealed, sealed.durable, sealed.stable_offset) == (True, False, growing.end_offset)
    for _ in ("from memory", "from files"):
        assert [sealed.find(offset) for offset in range(10, sealed.end_offset)] == found
        assert list(sealed.walk(0)) == batches
        if not sealed.durable:
            durable(sealed, disk)


def test_what_is_found_out_about_the_file_of_a_growing_segment_is_known_when_it_is_sealed():
    disk = SimDisk()
    growing = grown(disk)
    damaged = DamagedBatch(0, growing.find(10).size, 10)
    sealed = growing.seal(growing.end_offset, OpenFiles())
    assert growing.add_damaged_batch(damaged)
    assert sealed.proof.damaged_batches == [damaged]
    assert sealed.is_same(growing)
    assert not sealed.is_same(SealedSegment(disk, NAME, sealed.summary, OpenFiles()))
    with pytest.raises(DamageError):
        sealed.check_undamaged(0, 1)


def test_a_proof_that_begins_before_the_sealing_holds_after_it():
    disk = SimDisk()
    grown(disk).growing.write_files()
    first = grown(SimDisk())
    indexes = [bytes(one) for one in first.growing.contents()]
    growing = GrowingSegment.open_for_replay(disk, NAME, first.make_summary(first.end_offset), indexes)
    with pytest.raises(UnprovenError) as raised:
        growing.find(10)
    sealed = growing.seal(growing.end_offset, OpenFiles())
    assert not sealed.is_proven
    for _ in raised.value.prove():
        pass
    assert sealed.is_proven
    assert sealed.find(10) == first.find(10)


def grown_to(size=200):
    """A growing segment that begins at offset 10, with a batch of that size and one entry in each index."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    segment = GrowingSegment.create(disk, SegmentName.of(DIRECTORY, 10))
    for at, base in enumerate((10, 11)):
        batch = encode_batch([Record(0, NOW_MS + at, None, bytes(size // 2 - 70))], base_offset=base)
        header = read_header(batch)
        segment.append((batch,))
        segment.index_batch(header, segment.size, batch[:61], 10)
    return segment


def test_a_segment_has_room_up_to_each_bound():
    segment = grown_to()
    assert (len(segment.offset_index), len(segment.time_index)) == (1, 1)
    for size, last_offset, index_bytes, fits in (
        (50, 20, 36, True),
        (51, 20, 36, False),  # bytes of the log file
        (50, 10 + 2**31 - 1, 36, True),
        (50, 10 + 2**31, 36, False),  # what an entry can say
        (50, 20, 35, False),  # two entries of the time index, and one place for the last entry
    ):
        assert segment.has_room(size, last_offset, segment.size + 50, index_bytes) is fits


def test_the_offset_index_bounds_a_segment_where_all_times_are_equal():
    segment = grown_to()
    for at in range(2, 20):
        batch = encode_batch([Record(0, NOW_MS, None, b"")], base_offset=10 + at)
        segment.append((batch,))
        segment.index_batch(read_header(batch), segment.size, batch[:61], 10)
    count = len(segment.offset_index)
    assert (count, len(segment.time_index)) == (19, 1)
    assert segment.has_room(1, 99, 10**6, (count + 1) * 8)
    assert not segment.has_room(1, 99, 10**6, (count + 1) * 8 - 1)
