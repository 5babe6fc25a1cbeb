"""A read-committed read of many small aborted transactions lists a bounded number of them."""

import pytest

from stablelog.batch.header import headers_in
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.log import read as log_read
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY, NOW_MS, Log, write

COUNT_MAX = 4


@pytest.fixture(autouse=True)
def short_lists(monkeypatch):
    monkeypatch.setattr(log_read, "ABORTED_COUNT_MAX", COUNT_MAX)


def reads(log, start=0):
    """All reads of a read-committed reader from `start` on."""
    found = []
    while start < log.stable_offset:
        found.append(log.partition.read(start, 1 << 20, Isolation.READ_COMMITTED))
        start = found[-1].end_offset
    return found


@pytest.mark.parametrize("config", [{}, {"segment_bytes": 1000}], ids=["one segment", "several segments"])
def test_a_read_ends_behind_a_bounded_number_of_abort_markers(config):
    log = write("P1 P1a " * 10 + "P2 P2c P1 P1a", **config)
    found = reads(log)
    assert max(len(one.aborted) for one in found) == COUNT_MAX
    offsets = [header.base_offset for one in found for _, header in headers_in(b"".join(one.buffers))]
    assert offsets == list(range(log.partition.end_offset))
    for one in found:
        assert one.aborted == log.partition.aborted_in(one.start_offset, one.end_offset)


def test_a_read_with_fewer_abort_markers_goes_on_to_the_end():
    (found,) = reads(write("P1 P1a " * (COUNT_MAX - 1) + "- -"))
    assert found.end_offset == 2 * COUNT_MAX
    assert len(found.aborted) == COUNT_MAX - 1


def test_a_read_lists_the_transactions_that_are_open_at_its_end():
    """The markers of producers 8 and 9 lie behind the markers at which the read ends."""
    found = reads(write("P8 P9 " + "P1 P1a " * 2 * COUNT_MAX + "P8a P9a"))
    assert [len(one.aborted) for one in found] == [COUNT_MAX + 2, COUNT_MAX + 2, 2]


def test_a_read_within_a_batch_before_an_abort_marker_returns_this_batch():
    log = Log()
    log.append(1, count=3)
    for producer in range(2, 2 + COUNT_MAX):
        log.append(producer)
        log.end(producer, commit=False)
    log.end(1, commit=False)
    log.sync()
    for start in range(log.partition.end_offset):
        found = log.partition.read(start, 1, Isolation.READ_COMMITTED)
        assert found.start_offset <= start < found.end_offset
        assert found.aborted == log.partition.aborted_in(
            start - start % 3 if start < 3 else start, found.end_offset
        )


def test_a_read_ends_behind_the_last_batch_of_a_segment_that_ends_with_a_gap(monkeypatch):
    """Compaction has removed the batches behind the abort marker."""
    monkeypatch.setattr(log_read, "ABORTED_COUNT_MAX", 1)
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    record = [Record(0, NOW_MS, None, b"")]
    data = encode_batch(record, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    abort = encode_marker(
        Marker(MarkerType.ABORT, 0),
        base_offset=1,
        leader_epoch=0,
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=NOW_MS,
    )
    disk.write_atomic(DIRECTORY / f"{0:020d}.log", data + abort)
    disk.write_atomic(DIRECTORY / f"{10:020d}.log", encode_batch(record, base_offset=10))
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms, log.config = disk, DIRECTORY, NOW_MS, Log().config
    log.partition = log.open(clean=True, recovery_point=None)
    found = reads(log)
    assert [(one.end_offset, len(one.aborted), one.size > 0) for one in found] == [
        (2, 1, True),
        (11, 0, True),
    ]
    log.partition.close(clean=False)


def test_an_uncommitted_read_goes_on():
    log = write("P1 P1a " * 10)
    assert log.partition.read(0, 1 << 20, Isolation.READ_UNCOMMITTED).end_offset == 20
