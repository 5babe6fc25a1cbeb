"""A partition of a commit-ordered topic: appends, deletions, retention and the start of the view."""

import errno
import random

import pytest
from crc32c import crc32c

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.commit_order import index_rows, view
from stablelog.errors import DamageError, DiskError, OffsetOutOfRangeError, RefusedError, UnavailableError
from stablelog.log.files.log_start import encode_log_start
from stablelog.log.model import Isolation
from stablelog.log.search.times import run_lookup
from stablelog.log.time_lookup import look_up_newest
from tests.commit_order.committed_log import DIRECTORY, NOW_MS, Log, commit_of, lying


def test_an_uncommitted_reader_sees_the_order_of_the_writes():
    log = Log()
    log.append(1)
    log.append(2)
    log.end(2)
    log.end(1)
    log.sync()
    data = b"".join(log.partition.read(0, 1 << 30, Isolation.READ_UNCOMMITTED).buffers)
    assert [header.base_offset for _, header in headers_in(data)] == [0, 1, 2, 4]
    assert [header.next_offset for _, header in headers_in(data)] == [1, 2, 4, 6]


def test_deleting_records_keeps_what_a_later_commit_needs():
    log = Log(segment_bytes=200)
    log.append(1, count=2)
    log.append(2)
    log.end(2)
    for _ in range(10):
        log.plain()
    log.sync()
    before = log.partition.last_stable_offset
    log.partition.deletion.delete_records(before)
    log.end(1)
    log.sync()
    assert [payload for _, payload in log.read_all(before, 1 << 30)] == [b"0", b"1"]
    log.reopen(clean=False)
    assert log.partition.visible_start(Isolation.READ_COMMITTED) == before
    assert [payload for _, payload in log.read_all(before, 1 << 30)] == [b"0", b"1"]


@pytest.mark.parametrize("at_once", [1, 2, 1024])
def test_deleting_records_within_a_segment_keeps_what_its_later_commits_need(monkeypatch, at_once):
    monkeypatch.setattr(index_rows, "COLUMNS_AT_ONCE", at_once)
    log = Log(file_delete_delay_ms=0)
    for producer in (1, 2, 3):
        log.append(producer)
        log.partition.roll(log.now_ms)
    log.plain()
    for producer in (3, 2, 1):
        log.end(producer)
    for _ in range(3):
        log.append(4)
        log.end(4)
    log.sync()
    ends = [row[0] + 1 for row in log.written if row[4] > 0]
    for start, first in zip(ends[:3], [0, 0, log.partition.segments()[-1].base_offset], strict=True):
        assert log.partition.deletion.delete_records(start) == start
        assert log.partition.segments()[0].base_offset == first
        check_from_every_position(log)


def test_of_the_log_stays_what_a_transaction_in_any_later_segment_needs():
    log = Log(file_delete_delay_ms=0)
    log.append(1)
    first = log.partition.segments()[-1].base_offset
    starts = []
    for _ in range(3):
        log.partition.roll(log.now_ms)
        starts.append(log.partition.end_offset)
        log.append(2)
        log.end(2)
    log.end(1)
    log.plain()
    log.sync()
    for start in starts[:2]:
        assert log.partition.deletion.delete_records(start) == start
        assert log.partition.segments()[0].base_offset == first, "the last transaction begins there"
        assert log.read_all(start, 1 << 20) == log.expected()
    last = log.partition.end_offset - 1
    assert log.partition.deletion.delete_records(last) == last
    assert [segment.base_offset for segment in log.partition.segments()] == starts[2:], (
        "nothing needs the others"
    )
    assert log.read_all(last, 1 << 20) == log.expected()


def test_a_start_that_cannot_be_written_does_not_move(monkeypatch):
    log = Log()
    for _ in range(5):
        log.append(1)
        log.end(1)
    log.sync()

    def full(path, content):
        raise UnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(log.disk, "write_atomic", full)
        with pytest.raises(UnavailableError):
            log.partition.deletion.delete_records(7)
    assert log.partition.visible_start(Isolation.READ_COMMITTED) == 0
    assert len(log.read_all(0, 1 << 20)) == 5
    assert log.partition.deletion.delete_records(7) == 7


def a_late_commit(**config):
    """A transaction whose first records are long past the limits of retention when it commits, after forty others."""
    log = Log(segment_bytes=2048, file_delete_delay_ms=0, **config)
    log.append(1, 6)
    for _ in range(40):
        log.append(2, 2, size=150)
        log.end(2)
        log.now_ms += 1
    log.end(1)
    log.sync()
    return log


def check_from_every_position(log):
    """A reader gets every later commit from each position of the view, and comes to its end."""
    view = log.partition.view
    for start in range(view.start_offset, view.end_offset + 1):
        assert log.read_all(start, 1 << 20) == [row for row in log.expected() if row[0] >= start]
    assert view.torn_sequence() == -1 or view.torn_sequence() < view.transactions(0, 1)[0].commit_sequence


@pytest.mark.extended
@pytest.mark.parametrize("limit", [{"retention_bytes": 8192}, {"retention_ms": 20}], ids=["size", "time"])
def test_retention_leaves_a_late_commit_and_takes_the_commits_before_it(limit):
    log = a_late_commit(**limit)
    size = log.partition.size
    assert log.partition.deletion.apply_retention(log.now_ms) == 0, (
        "the last commit has its records in the first segment"
    )
    view = log.partition.view
    assert view.start_offset > 0
    assert log.partition.size == size
    payloads = [payload for _, payload in log.read_all(view.start_offset, 1 << 20)]
    assert payloads[-6:] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert 6 + 20 < len(payloads) < 6 + 60
    for again in (lambda: None, log.reopen, log.lose_indexes):
        again()
        check_from_every_position(log)
    start = log.partition.view.start_offset
    for _ in range(40):
        log.append(2, 2, size=150)
        log.end(2)
        log.now_ms += 1
    log.sync()
    assert log.partition.deletion.apply_retention(log.now_ms) > 10, (
        "nothing needs the first segments any more"
    )
    assert start < log.partition.start_offset == log.partition.view.start_offset
    assert log.partition.size < 8192 + 2 * 2048
    check_from_every_position(log)


def test_retention_leaves_what_a_transaction_needs_that_is_open():
    log = Log(segment_bytes=600, retention_bytes=1000, file_delete_delay_ms=0)
    log.append(1, 3)
    for _ in range(60):
        log.plain()
    log.sync()
    assert log.partition.deletion.apply_retention(log.now_ms) == 0
    start = log.partition.view.start_offset
    assert start > 3
    log.end(1)
    log.sync()
    log.partition.deletion.apply_retention(log.now_ms)
    start = log.partition.view.start_offset
    assert [payload for _, payload in log.read_all(start, 1 << 20)][-3:] == [b"0", b"1", b"2"]
    check_from_every_position(log)


def test_segments_that_an_aborted_transaction_has_kept_are_deleted_by_the_next_pass():
    log = Log(segment_bytes=600, retention_bytes=1000, file_delete_delay_ms=0)
    log.append(1, 3)
    for _ in range(60):
        log.plain()
    log.sync()
    assert log.partition.deletion.apply_retention(log.now_ms) == 0
    log.end(1, commit=False)
    log.sync()
    assert log.partition.deletion.apply_retention(log.now_ms) > 1
    assert log.partition.size < 600 + 1000 + 600


def test_a_start_of_the_view_that_retention_cannot_write_deletes_nothing(monkeypatch):
    log = Log(segment_bytes=600, retention_bytes=1000, file_delete_delay_ms=0)
    for _ in range(60):
        log.plain()
    log.sync()
    before = log.partition.size

    def full(path, content):
        raise UnavailableError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(log.disk, "write_atomic", full)
        with pytest.raises(UnavailableError):
            log.partition.deletion.apply_retention(log.now_ms)
    assert log.partition.visible_start(Isolation.READ_COMMITTED) == 0
    assert log.partition.size == before
    assert log.partition.deletion.apply_retention(log.now_ms) > 0


def test_the_newest_commit_is_one_of_the_view():
    """The clock went back after an earlier commit, which retention has taken."""
    log = Log(file_delete_delay_ms=0)
    log.append(1)
    log.partition.roll(log.now_ms)
    log.now_ms += 1000
    log.append(2)
    log.end(2)
    log.partition.roll(log.now_ms)
    log.now_ms -= 500
    log.end(1)
    log.sync()
    log.partition.deletion.delete_records(log.partition.segments()[-1].base_offset)
    assert len(log.partition.segments()) == 3
    newest = run_lookup(look_up_newest(log.partition, Isolation.READ_COMMITTED))
    assert newest[:2] == (log.partition.high_watermark - 1, log.now_ms)


def test_retention_leaves_a_transaction_whole_whose_marker_a_crash_can_take():
    log = Log(segment_bytes=600, retention_bytes=500, file_delete_delay_ms=0)
    log.append(1)
    for _ in range(20):
        log.plain()
    log.append(1)
    log.sync()
    log.end(1)  # not synced
    log.partition.deletion.apply_retention(log.now_ms)
    log.disk = log.disk.crash(random.Random(2))
    log.partition = log.open(clean=False)
    (left,) = log.partition.log.open_transactions()
    assert left.first_offset == 0
    done = log.partition.append_markers([commit_of(1, 1)], now_ms=log.now_ms)[0]
    assert done.last_offset == done.first_offset + 2


@pytest.mark.extended
def test_where_the_operating_system_counts_the_view_begins_at_what_is_durable():
    """DeleteRecords ahead of the synced end, in a log whose last segments are not synced, and a power loss behind it."""
    for seed in range(40):
        log = Log(file_delete_delay_ms=0)
        log.append(1)
        log.end(1)
        log.append(2)  # which keeps the log's own start back
        log.sync()
        for _ in range(2):
            log.append(1)
            log.partition.roll(log.now_ms)
            log.end(1)
        log.partition.assume_synced()
        start = log.partition.deletion.delete_records(log.partition.high_watermark)
        assert start == log.partition.end_offset
        assert log.partition.start_offset < start
        log.disk = log.disk.crash(random.Random(seed))
        log.partition = log.open(clean=False)
        assert log.partition.visible_start(Isolation.READ_COMMITTED) == start


def test_segments_that_are_deleted_after_the_start_has_moved_take_their_indexes_along():
    log = Log(segment_bytes=600, file_delete_delay_ms=0)
    for _ in range(3):
        log.append(1)
        log.end(1)
    log.sync()
    log.partition.roll(log.now_ms)  # not known to be durable yet, and not deleted
    start = log.partition.deletion.delete_records(log.partition.last_stable_offset)
    assert len(log.partition.segments()) > 1
    log.sync()
    log.partition.deletion.apply_retention(log.now_ms)
    log.partition.deletion.remove_deleted(log.now_ms)
    assert log.partition.visible_start(Isolation.READ_COMMITTED) == start
    assert [index.base_offset for index in log.partition.view.indexes] == [start]
    assert log.partition.view.offset_after(0) == start


@pytest.mark.parametrize(("asked", "start"), [(4, 4), (5, 7), (6, 7), (7, 7), (3, 3)])
def test_a_deletion_takes_a_transaction_whole_or_not_at_all(asked, start):
    log = Log()
    log.append(1, count=3)
    log.end(1)  # at 3, so that its records stand at 4 to 6
    log.plain()
    log.sync()
    assert log.partition.deletion.delete_records(asked) == start
    assert log.read_all(start, 1 << 30) == log.expected()
    assert len(log.expected()) == (4 if start < 5 else 1)
    assert log.partition.view.offset_after(0) == max(start, 4), "a cut lies in what can be read"


def test_no_records_are_deleted_up_to_what_is_no_offset():
    log = Log()
    log.plain()
    log.sync()
    for offset in (-1, 2):
        with pytest.raises(OffsetOutOfRangeError):
            log.partition.deletion.delete_records(offset)


def test_a_view_that_begins_behind_the_end_of_a_truncated_log_begins_at_its_end():
    log = Log(segment_bytes=400)
    log.append(2)
    for _ in range(12):
        log.append(1, count=3)
        log.end(1)
    log.sync()
    log.partition.deletion.delete_records(log.partition.high_watermark - 10)
    begin = log.partition.view.start_offset
    to = log.partition.start_offset + 1
    assert to < begin, "the log holds more than the view"
    log.partition.replication.truncate_to(to)
    end = log.partition.end_offset
    for clean in (False, True):
        assert log.partition.visible_start(Isolation.READ_COMMITTED) == end
        log.reopen(clean=clean)


def test_a_closed_partition_moves_no_start():
    log = Log()
    log.append(1)
    log.end(1)
    log.sync()
    path = DIRECTORY / "view-start-offset"
    content = log.disk.read_bytes(path)
    log.partition.close()
    with pytest.raises(UnavailableError):
        log.partition.deletion.delete_records(2)
    with pytest.raises(UnavailableError):
        log.partition.read(0, 100, Isolation.READ_COMMITTED)
    assert log.disk.read_bytes(path) == content


def test_where_the_view_begins_is_not_guessed():
    """Records that were deleted would be read again. Of a partition that is being made, it begins at 0."""
    log = Log()
    path = DIRECTORY / "view-start-offset"
    assert log.disk.exists(path)
    for _ in range(3):
        log.append(1)
        log.end(1)
    log.sync()
    log.partition.deletion.delete_records(4)
    log.partition.close()
    log.disk.lose(path)
    with pytest.raises(DamageError, match="view-start-offset is missing"):
        log.open(clean=True, is_established=True)
    assert not log.disk.exists(path)
    log.disk.write_atomic(path, encode_log_start(9))
    log.open(clean=True, is_established=True).close()
    log.disk.write_atomic(path, encode_log_start(10))
    with pytest.raises(DamageError, match="begins at offset 10, but the log ends at 9"):
        log.open(clean=True, is_established=True)


def test_a_transaction_takes_no_more_records_than_its_marker_can_say():
    log = Log(proves_records=False)
    log.partition.append(lying(2**30, 1, 0), now_ms=NOW_MS)
    log.partition.append(lying(2**30 - 1, 1, 2**30), now_ms=NOW_MS)
    with pytest.raises(RefusedError, match="commit-ordered"):
        log.partition.append(lying(1, 1, 2**31 - 1), now_ms=NOW_MS)
    done = log.partition.append_markers([commit_of(1, 1)], now_ms=NOW_MS)[0]
    assert done.last_offset == done.first_offset + 2**31 - 1
    log.sync()
    log.reopen(clean=False)
    assert log.partition.view.end_offset == done.last_offset + 1


def test_markers_written_together_may_take_more_offsets_than_a_segment_holds():
    log = Log(proves_records=False)
    for producer_id in (1, 2, 3):
        log.partition.append(lying(2**30 + 1, producer_id, 0), now_ms=NOW_MS)
    first, second, third = log.partition.append_markers([commit_of(n, n) for n in (1, 2, 3)], now_ms=NOW_MS)
    assert (second.first_offset, third.first_offset) == (first.last_offset + 1, second.last_offset + 1)
    log.sync()
    for segment in log.partition.segments():
        assert segment.end_offset - 1 - segment.base_offset < 2**31
    log.reopen(clean=False)
    assert log.partition.view.end_offset == third.last_offset + 1
    assert [one.commit_sequence for one in log.partition.view.transactions(0, 10)] == [1, 2, 3]


def test_a_batch_without_room_for_the_records_that_it_claims_is_refused():
    batch = bytearray(encode_batch([Record(0, NOW_MS, None, None)]))
    batch[23:27], batch[57:61] = (1).to_bytes(4, "big"), (2).to_bytes(4, "big")
    batch[17:21] = crc32c(memoryview(batch)[21:]).to_bytes(4, "big")
    with pytest.raises(RefusedError, match="2 records in 7 bytes"):
        Log().partition.append(bytes(batch), now_ms=NOW_MS)


def test_a_view_forgets_segments_whose_files_cannot_be_renamed(monkeypatch):
    log = Log(segment_bytes=600, file_delete_delay_ms=0)
    for _ in range(20):
        log.plain()
    log.sync()
    assert len(log.partition.segments()) > 2
    forgotten, forget = [], view.CommitOrder.forget_deleted

    def note(view):
        forget(view)
        forgotten.append(view)

    def fail(_directory):
        raise DiskError("listing the directory", errno.EIO, undone=True)

    monkeypatch.setattr(view.CommitOrder, "forget_deleted", note)
    monkeypatch.setattr(log.disk, "list_dir", fail)
    with pytest.raises(DiskError):
        log.partition.deletion.delete_records(log.partition.high_watermark)
    assert forgotten == [log.partition.view]
    monkeypatch.undo()
    assert len(log.partition.segments()) == 1
    log.plain()
    log.sync()
    start = log.partition.visible_start(Isolation.READ_COMMITTED)
    assert log.partition.view.removed_sequence() is None
    assert log.fetched(start)[0]
