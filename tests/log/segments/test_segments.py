"""The segments of a partition on the local disk: they roll, and the segment of an abort is found."""

import pytest

from stablelog.log.files.names import SegmentName
from stablelog.log.segments import sealed_segment as sealed_segment_module
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segments import LogSegments
from stablelog.testing.sim_disk import SimDisk
from tests.log.segments.test_growing_segment import grown
from tests.log.timeline import DIRECTORY, aborted_in, write


def test_a_roll_puts_the_sealed_segment_in_place_of_the_growing_one():
    disk = SimDisk()
    growing = grown(disk)
    segments = LogSegments([], growing)
    sealed = growing.seal(growing.end_offset, OpenFiles())
    following = GrowingSegment.create(disk, SegmentName.of(DIRECTORY, growing.end_offset))
    segments.roll(sealed, following)
    assert list(segments) == [sealed, following]
    assert (segments.active, segments.sealed) == (following, [sealed])
    assert segments.size == sealed.size
    with pytest.raises(AssertionError):
        segments.roll(sealed, GrowingSegment.create(disk, SegmentName.of(DIRECTORY, 10**6)))


def test_an_abort_may_be_found_several_segments_later():
    """Scenario 23: its index entry lies in the segment of the marker."""
    log = write("P1 P2 P2c P2 P2c P1a", segment_bytes=160)
    assert len(log.partition.segments()) == 3
    assert log.aborted(0, 1) == ["P1@0..5"]


@pytest.fixture
def loaded(monkeypatch):
    """The base offsets of the segments whose transaction index is loaded."""
    bases, load = [], sealed_segment_module.load_txn_index

    def noted(disk, path_of, summary):
        bases.append(summary.base_offset)
        return load(disk, path_of, summary)

    monkeypatch.setattr(sealed_segment_module, "load_txn_index", noted)
    return bases


def test_where_nothing_was_aborted_no_index_is_read(loaded):
    log = write("P1 P1c " * 200, segment_bytes=1000)
    assert len(log.partition.segments()) > 20
    log.reopen()
    for segment in log.partition.segments()[:-1]:
        log.disk.remove(segment.path(".txnindex"))
    assert log.aborted(0) == []
    assert not loaded


def test_segments_that_an_open_transaction_holds_back_cost_nothing_where_there_is_nothing_to_be_found(loaded):
    log = write("P9 " + "P1 P1a " * 60, segment_bytes=300)
    log.reopen()
    segments = log.partition.segments()[:-1]
    assert len(segments) > 20
    assert {segment.stable_offset for segment in segments} == {0}
    log.write("P9c")
    assert [txn.first_offset for txn in aborted_in(log.partition, 0, 4)] == [1, 3]
    assert loaded == [segment.base_offset for segment in segments if segment.base_offset <= 4]
