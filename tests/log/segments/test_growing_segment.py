"""A segment grows, and sealing makes another type of it, which has the same log file and other indexes."""

import random

import pytest

from stablelog.batch.header import read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, UnprovenError
from stablelog.log.files.names import INDEX, TIMEINDEX, SegmentName
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.segments.sealed_segment import INTERVAL_SIZE, SealedSegment
from stablelog.log.segments.segments import Segments
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

NAME = SegmentName.of(DIRECTORY, 10)


def grown(disk, *, count=40, seed=0, name=NAME):
    """A growing segment with batches of one record, whose timestamps go up and down."""
    chance = random.Random(seed)
    disk.make_dir(DIRECTORY)
    segment = GrowingSegment.created(disk, name)
    for at in range(count):
        record = Record(0, 1000 + chance.randrange(500), None, bytes(chance.randrange(2000)))
        batch = encode_batch([record], base_offset=segment.end_offset + (at % 7 == 0))
        segment.append((batch,))
        segment.note(read_header(batch), segment.size, batch[:61], INTERVAL_SIZE)
    return segment


def entries(index):
    return [index[place] for place in range(len(index))]


def durable(segment, disk):
    """What a sync of a sealed segment does."""
    for file in segment.files_to_sync(indexes=True):
        file.sync()
    segment.settled()


def test_a_sealed_segment_is_what_has_grown():
    disk = SimDisk()
    growing = grown(disk)
    found = [growing.find(offset) for offset in range(10, growing.end_offset)]
    batches = list(growing.walk(0))
    sealed = growing.seal(growing.end_offset, OpenFiles())
    for one in ("base_offset", "end_offset", "size", "first_timestamp", "max_timestamp", "record_count"):
        assert getattr(sealed, one) == getattr(growing, one), one
    assert sealed.summary == growing.progress(growing.end_offset)
    assert (growing.sealed, growing.summary, growing.stable_offset) == (False, None, None)
    assert (sealed.sealed, sealed.durable, sealed.stable_offset) == (True, False, growing.end_offset)
    for _ in ("from memory", "from files"):
        assert [sealed.find(offset) for offset in range(10, sealed.end_offset)] == found
        assert list(sealed.walk(0)) == batches
        if not sealed.durable:
            durable(sealed, disk)


@pytest.mark.parametrize("seed", range(5))
def test_indexes_that_are_rebuilt_are_those_that_were_written(seed):
    """But for the last entry of the time index, which a sealing adds."""
    disk = SimDisk()
    growing = grown(disk, seed=seed)
    offsets, times = entries(growing.offset_index), entries(growing.time_index)
    assert len(offsets) > 5
    durable(growing.seal(growing.end_offset, OpenFiles()), disk)
    summary = growing.progress(growing.end_offset)
    for suffix in (INDEX, TIMEINDEX):
        disk.remove(NAME.path(suffix))
    opened = SealedSegment(disk, NAME, summary, OpenFiles())
    assert (entries(opened.offset_index), entries(opened.time_index)) == (offsets, times)


def test_what_is_found_out_about_the_file_of_a_growing_segment_is_known_when_it_is_sealed():
    disk = SimDisk()
    growing = grown(disk)
    damaged = DamagedBatch(0, growing.find(10).size, 10)
    sealed = growing.seal(growing.end_offset, OpenFiles())
    assert growing.note_damaged(damaged)
    assert sealed.damaged_batches == [damaged]
    assert sealed.is_same(growing)
    assert not sealed.is_same(SealedSegment(disk, NAME, sealed.summary, OpenFiles()))
    with pytest.raises(DamageError):
        sealed.check_undamaged(0, 1)


def test_a_proof_that_begins_before_the_sealing_holds_after_it():
    disk = SimDisk()
    grown(disk).growing.write()
    first = grown(SimDisk())
    indexes = [bytes(one) for one in first.growing.contents()]
    growing = GrowingSegment.opened(disk, NAME, first.progress(first.end_offset), indexes)
    with pytest.raises(UnprovenError) as raised:
        growing.find(10)
    sealed = growing.seal(growing.end_offset, OpenFiles())
    assert not sealed.is_proven
    for _ in raised.value.prove():
        pass
    assert sealed.is_proven
    assert sealed.find(10) == first.find(10)


def test_a_roll_puts_the_sealed_segment_in_place_of_the_growing_one():
    disk = SimDisk()
    growing = grown(disk)
    segments = Segments([], growing)
    sealed = growing.seal(growing.end_offset, OpenFiles())
    following = GrowingSegment.created(disk, SegmentName.of(DIRECTORY, growing.end_offset))
    segments.roll(sealed, following)
    assert list(segments) == [sealed, following]
    assert (segments.active, segments.sealed) == (following, [sealed])
    assert segments.size == sealed.size
    with pytest.raises(AssertionError):
        segments.roll(sealed, GrowingSegment.created(disk, SegmentName.of(DIRECTORY, 10**6)))
