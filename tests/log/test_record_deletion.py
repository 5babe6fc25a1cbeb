"""Records are deleted from the start of a log: by a request, and by retention."""

import errno

import pytest

from stablelog.batch.header import headers_in
from stablelog.errors import (
    DiskError,
)
from stablelog.log.partition import Isolation
from tests.log.timeline import DIRECTORY, Log, write


def test_deleting_past_the_start_of_a_transaction_leaves_the_stable_offset_at_the_log_start():
    """Scenario 25: never below it, and never back."""
    log = write("P1 " + "- " * 60, segment_bytes=400)
    assert log.stable_offset == 0
    log.partition.deletion.delete_records(40)
    assert log.stable_offset == log.partition.start_offset == 40
    log.write("- P2 P2a P1c")
    assert log.stable_offset == log.partition.end_offset


@pytest.mark.parametrize("limit", [{"retention_bytes": 400}, {"retention_ms": 0}], ids=["size", "time"])
def test_retention_leaves_the_records_of_an_open_transaction_until_it_ends(limit):
    """A prepared transaction may be open for longer than records are kept. Its commit shows all of them."""
    log = write("- " * 12 + "P1 " + "- " * 60, segment_bytes=400, file_delete_delay_ms=0, **limit)
    assert log.partition.deletion.apply_retention(log.now_ms + 1) == 2
    assert 0 < log.partition.start_offset <= 12, "what is before the transaction is deleted"
    log.write("P1 P1c")
    found = log.partition.read(log.partition.start_offset, 1 << 20, Isolation.READ_COMMITTED)
    assert 12 in [header.base_offset for _, header in headers_in(b"".join(found.buffers))]
    assert log.partition.deletion.apply_retention(log.now_ms + 1) > 2
    assert log.partition.start_offset > 12


def test_retention_leaves_a_transaction_whose_marker_a_crash_can_take():
    log = write("P1 " + "- " * 60, segment_bytes=400, retention_bytes=400, file_delete_delay_ms=0)
    log.write("P1c", sync=False)
    assert log.partition.deletion.apply_retention(log.now_ms) == 0


def test_a_log_start_within_what_is_synced_costs_no_sync():
    log = write("- - -", segment_bytes=100)
    log.disk.fault = lambda what, path: pytest.fail(f"{what} {path}") if what.startswith("syncing") else None
    assert log.partition.deletion.delete_records(2) == 2


def test_a_sync_that_fails_before_the_log_start_moves_fails_the_partition():
    """No later sync can tell which bytes are durable."""
    log = write("- - -").write("- -", sync=False)
    log.partition.assume_synced()
    log.disk.fault = lambda what, _path: errno.EIO if what == "syncing" else None
    with pytest.raises(DiskError):
        log.partition.deletion.delete_records(5)
    assert log.partition.start_offset == 0
    assert log.partition.log.synced_offset == 3
    assert log.partition.failure is not None


def test_retention_by_time_takes_whole_segments_and_keeps_what_is_new():
    log = Log(segment_bytes=300, retention_ms=1000).write("- - - - - -")
    log.now_ms += 2000
    log.write("-")
    assert log.partition.deletion.apply_retention(log.now_ms) > 0
    assert log.partition.start_offset == log.partition.segments()[0].base_offset > 0
    assert log.partition.end_offset == 7
    names = log.disk.list_dir(DIRECTORY)
    assert any(name.endswith(".deleted") for name in names)
    log.partition.deletion.remove_deleted(log.now_ms + 60_000)
    assert not any(name.endswith(".deleted") for name in log.disk.list_dir(DIRECTORY))
