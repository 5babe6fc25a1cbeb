"""The writer of a log: when a segment rolls, what an index gets, and what a failed write leaves."""

import errno

import pytest

from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.errors import (
    DiskError,
    UnavailableError,
)
from stablelog.log import partition as partition_module
from stablelog.log.model import MarkerWrite
from stablelog.log.partition import Isolation, Origin
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.segments import growing_segment as growing_segment_module
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.verify import verify_directory
from tests.log.test_partition import failing_index
from tests.log.timeline import DIRECTORY, NOW_MS, Log, write


def test_nothing_becomes_durable_while_the_index_of_an_abort_cannot_be_written():
    """Scenario 26: programs that read the files must not see the marker of an abort before its entry."""
    log = write("P1 P1 P2")
    failing_index(log)
    log.end(1, commit=False)
    log.append(2)
    for look in (log.partition.sync_work, log.partition.assume_synced):
        with pytest.raises(DiskError):
            look()
    assert (log.partition.high_watermark, log.stable_offset) == (3, 0)
    assert log.partition.failure is None
    log.disk.fault = None
    log.sync()
    entries = log.disk.content(DIRECTORY / "00000000000000000000.txnindex")
    assert len(entries) == 34
    assert (log.partition.high_watermark, log.stable_offset) == (5, 2)
    assert log.all_aborted()[0].first_offset == 0


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".log"])
def test_a_segment_that_cannot_be_rolled_for_lack_of_room_goes_on_growing(suffix, late):
    """It is rolled when there is room; a write that could not be undone is begun again in the same file."""
    log = write("P1 P2 P2a - - -", segment_bytes=10_000, index_interval_bytes=0)
    log.disk.fails_late = late
    full = [f"{log.partition.end_offset:020d}.log"] if suffix == ".log" else []
    log.disk.fault = lambda what, path: (
        errno.ENOSPC
        if (path.name in full and what == "opening")
        or (suffix != ".log" and path.suffix == suffix and what in ("opening", "writing"))
        else None
    )
    kept = None
    if suffix != ".txnindex":  # it is written with the abort
        with pytest.raises(DiskError) as kept:  # as a log or an answer keeps it, with its traceback
            log.partition.roll(log.now_ms)
    assert log.partition.failure is None
    full.clear()
    log.disk.fault = lambda what, path: errno.ENOSPC if what == "writing" and path.suffix != ".log" else None
    log.write("P1 -", sync=False)
    del kept
    log.disk.fault, log.disk.fails_late = None, False
    log.partition.roll(log.now_ms)
    log.write("- P1a")
    assert len(log.partition.segments()) == 2
    aborted, end = log.all_aborted(), log.partition.end_offset
    log.reopen(clean=False)
    assert (log.all_aborted(), log.partition.end_offset) == (aborted, end)
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_segments_roll_by_size_and_by_the_brokers_time():
    log = Log(segment_bytes=250, segment_ms=1000).write("- - - -")
    assert len(log.partition.segments()) == 2
    log.now_ms += 1000
    log.write("-")
    assert len(log.partition.segments()) == 2, "it is as old as it may be"
    log.now_ms += 1
    log.write("-")
    assert len(log.partition.segments()) == 3
    log.now_ms += 999
    log.write("-")
    log.now_ms += 2
    log.write("-")
    assert len(log.partition.segments()) == 4, "the time begins with the segment"


@pytest.mark.parametrize("origin", [*Origin, None], ids=["client", "coordinator", "copy", "marker"])
@pytest.mark.parametrize(
    "where", [(GrowingSegment, "index_batch"), (Snapshots, "count_appended")], ids=["first", "later"]
)
def test_an_append_that_an_unexpected_error_interrupts_fails_the_partition(origin, where, monkeypatch):
    """The log file has bytes then of which memory does not know: nothing may be appended behind them."""
    log, reasons = Log().write("- P1"), []
    log.partition.availability.on_failure = reasons.append

    def append():
        if origin is None:
            return log.end(1, commit=False)
        base_offset = log.partition.end_offset if origin is Origin.REPLICATION else 0
        batch = encode_batch([Record(0, NOW_MS, None, b"x")], base_offset=base_offset)
        return log.partition.append(batch, now_ms=NOW_MS, origin=origin)

    with monkeypatch.context() as patch:
        patch.setattr(*where, lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            append()
    for call in (append, lambda: log.partition.read(0, 1, Isolation.LOG_END)):
        with pytest.raises(
            UnavailableError,
            match="t-0 has failed and needs a restart: an append was written and not",
        ):
            call()
    assert reasons == [log.partition.failure], "it is told once"
    log.partition.close()
    log.partition = log.open()
    log.write("- -")
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_the_offset_index_has_one_entry_for_each_interval():
    log = Log(index_interval_bytes=1000)
    for _ in range(100):
        log.append(1, size=100)
    size = log.partition.size
    log.sync()
    log.partition.roll(log.now_ms)
    entries = len(log.disk.content(DIRECTORY / "00000000000000000000.index")) // 8
    assert size // 1300 <= entries <= size // 1000


def test_a_closed_log_has_an_entry_of_its_greatest_time_in_the_time_index():
    """Kafka looks nothing up behind the last entry."""
    log = Log(index_interval_bytes=1 << 20)
    for at in range(4):
        log.append(1, time_ms=NOW_MS + at)
    log.sync()
    log.partition.close()
    content = log.disk.read_bytes(DIRECTORY / "00000000000000000000.timeindex")
    assert content[-12:] == (NOW_MS + 3).to_bytes(8, "big") + (3).to_bytes(4, "big")


def test_markers_that_go_past_what_a_segment_can_hold_begin_another_one(monkeypatch):
    log = Log().write("P1 P2 P3 -")
    for module in (growing_segment_module, partition_module):
        monkeypatch.setattr(module, "RELATIVE_OFFSET_MAX", 5)
    markers = [MarkerWrite(one, 0, Marker(MarkerType.COMMIT, 0)) for one in (1, 2, 3)]
    log.partition.append_markers(markers, now_ms=log.now_ms)
    assert [segment.base_offset for segment in log.partition.segments()] == [0, 4]
    assert log.partition.end_offset == 7
