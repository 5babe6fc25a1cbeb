"""Reads of batches by offset: where a read ends, which aborted transactions it lists, and what is refused."""

import pytest

from stablelog.batch.header import headers_in, read_header
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import DamageError, OffsetOutOfRangeError
from stablelog.log import read as log_read
from stablelog.log.partition import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.segments.proof import DamagedBatch
from stablelog.log.time_lookup import look_up_time
from stablelog.testing.sim_disk import SimDisk
from tests.log.test_damage import path_of
from tests.log.test_partition import EVERY
from tests.log.timeline import DIRECTORY, NOW_MS, Log, aborted_in, write

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
        assert one.aborted == aborted_in(log.partition, one.start_offset, one.end_offset)


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
        assert found.aborted == aborted_in(
            log.partition, start - start % 3 if start < 3 else start, found.end_offset
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


@pytest.mark.parametrize("isolation", Isolation)
def test_a_read_ends_before_a_damaged_batch_and_is_refused_in_it(isolation):
    log = Log().write("- - - - -")
    (segment,) = log.partition.segments()
    size = segment.size // 5
    segment.add_damaged_batch(DamagedBatch(2 * size, size, 2))
    segment.add_damaged_batch(DamagedBatch(4 * size, size, 4))
    assert log.partition.log.segments.damaged_count == 2
    for start, end in ((0, 2), (1, 2), (2, None), (3, 4), (4, None)):
        if end is None:
            with pytest.raises(DamageError, match=f"the CRC of the batch of offset {start}"):
                log.partition.read(start, 10**6, isolation)
        else:
            assert log.partition.read(start, 10**6, isolation).end_offset == end


def test_a_read_passes_over_segments_from_which_everything_was_compacted():
    """As another program leaves them: a segment that ends early, and two without any batch."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for base, offsets in ((0, (0, 1)), (10, ()), (20, ()), (30, (30, 32)), (40, (40,))):
        content = b"".join(
            encode_batch([Record(0, NOW_MS + at, None, b"")], base_offset=at, leader_epoch=0)
            for at in offsets
        )
        disk.write_atomic(path_of(base), content)
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms = disk, DIRECTORY, NOW_MS
    log.config = Log().config
    partition = log.open(clean=True, recovery_point=None)
    assert [segment.end_offset for segment in partition.segments()] == [10, 20, 30, 40, 41]
    there = [0, 1, 30, 32, 40]
    for isolation in Isolation:
        for start in range(41):
            found = partition.read(start, 1, isolation)
            first = next(offset for offset in there if offset >= start)
            assert [one.base_offset for _, one in headers_in(found.buffers[0])] == [first]
            assert found.start_offset == start
    for time in range(-1, 43):
        for isolation in Isolation:
            found = run_lookup(look_up_time(partition, NOW_MS + time, isolation))
            first = next((offset for offset in there if offset >= time), None)
            assert (found and found[0]) == first
    partition.close(clean=False)


def test_a_read_that_ends_in_a_gap_has_no_batch():
    """Compaction has left the gap, and what lies behind it is undecided."""
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for base, batches in (
        (0, [encode_batch([Record(0, NOW_MS, None, b"")], base_offset=0)]),
        (10, [data_of(1, 30), data_of(1, 40)]),
    ):
        disk.write_atomic(path_of(base), b"".join(batches))
    log = Log.__new__(Log)
    log.disk, log.directory, log.now_ms, log.config = disk, DIRECTORY, NOW_MS, Log().config
    partition = log.open(clean=True, recovery_point=None)
    assert partition.last_stable_offset == 30
    for start, end in ((0, 10), (1, None), (5, None), (29, None), (30, None), (31, None)):
        found = partition.read(start, 1 << 20, Isolation.READ_COMMITTED)
        assert (found.start_offset, found.end_offset) == (start, start if end is None else end)
        assert len(found.buffers) == (end is not None)
        assert found.aborted == ()
    assert partition.read(5, 1 << 20, Isolation.READ_UNCOMMITTED).end_offset == 41
    assert partition.read(5, 1, Isolation.READ_UNCOMMITTED, at_least_one=False).buffers == []
    partition.close(clean=False)


def data_of(producer_id, base_offset):
    """A batch of a transaction."""
    return encode_batch(
        [Record(0, NOW_MS, None, b"")],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if base_offset == 30 else 1,
        transactional=True,
    )


def test_reads_outside_the_log_and_of_a_lost_file_are_refused():
    log = Log(segment_bytes=300).write("- " * 20)
    log.partition.deletion.delete_records(5)
    assert (log.partition.topic, log.partition.index, log.partition.directory) == ("t", 0, DIRECTORY)
    for isolation in Isolation:
        for start, is_there in ((-1, False), (4, False), (5, True), (20, True), (21, False)):
            if is_there:
                log.partition.read(start, 1, isolation)
            else:
                with pytest.raises(OffsetOutOfRangeError, match=f"offset {start} is not in the log of t-0"):
                    log.partition.read(start, 1, isolation)
    log.partition.close()
    log.partition = log.open(clean=True)
    log.partition.segments()[0].evict()
    log.disk.lose(log.partition.segments()[0].path(".log"))
    with pytest.raises(DamageError, match="is missing, and was durable"):
        log.partition.read(5, 1, Isolation.LOG_END)


@pytest.mark.parametrize("isolation", [Isolation.READ_UNCOMMITTED, Isolation.LOG_END])
def test_a_read_of_everything_carries_no_list_of_aborts(isolation):
    """Scenario 33: null, not empty."""
    log = write("P1 P1a")
    assert log.partition.read(0, 1 << 20, isolation).aborted is None
    assert log.partition.read(2, 1 << 20, isolation).aborted is None


def test_every_alignment_hands_out_whole_batches_and_bounds_them():
    """Scenario 34: the upper bound is never below what was handed out."""
    log = Log(index_interval_bytes=200)
    for n in range(60):
        log.append(1, count=1 + n % 5, transactional=n % 3 == 0) if n % 3 else log.write("P2 P2a")
    log.sync()
    for start in range(log.partition.end_offset):
        for size_max in (1, 79, 200, 1000, 1 << 20):
            found = log.partition.read(start, size_max, Isolation.LOG_END)
            data, at, offset = found.buffers[0], 0, None
            while at < len(data):
                header = read_header(data, at)
                if at == 0:
                    assert header.base_offset <= start <= header.last_offset
                at, offset = at + header.size, header.next_offset
            assert at == len(data)
            assert offset == found.end_offset
            assert len(data) <= size_max or read_header(data).size == len(data)


@pytest.mark.parametrize("isolation", EVERY)
def test_a_read_outside_the_log_says_where_the_log_is(isolation):
    log = write("- - -")
    log.partition.deletion.delete_records(1)
    for offset in (0, 4, -1):
        with pytest.raises(OffsetOutOfRangeError, match=r"which has the offsets 1 to 3 \(exclusive\)"):
            log.partition.read(offset, 100, isolation)
    assert log.partition.read(3, 100, isolation).size == 0
