"""The replay of a log: what it rebuilds, what it reads, and which damage it cuts or refuses."""

import pytest

from stablelog.batch.header import read_header
from stablelog.errors import (
    DamageError,
)
from stablelog.log.segments import scan
from stablelog.log.verify import verify_directory
from tests.log.test_damage import changed, headers, path_of
from tests.log.timeline import DIRECTORY, Log, write


@pytest.mark.parametrize("which", ["all", "last"])
def test_rebuilt_indexes_equal_the_original_ones(which):
    """Scenario 27: every index deleted after an unclean stop, over many segments or in the last one only."""
    log = write("P1 P2 P1 P1a P3 P2a - P3c P1 " * 20 + "P1c", segment_bytes=600, index_interval_bytes=100)
    before = log.all_aborted()
    segments = [(s.base_offset, s.record_count, s.committed_count) for s in log.partition.segments()]
    log.partition.close(clean=False)
    last = log.partition.segments()[-1].base_offset
    for name in log.disk.list_dir(DIRECTORY):
        if name.endswith((".index", ".timeindex", ".txnindex", ".summary")) and (
            which == "all" or name.startswith(f"{last:020d}")
        ):
            log.disk.remove(DIRECTORY / name)
    log.partition = log.open()
    assert log.all_aborted() == before
    assert [(s.base_offset, s.record_count, s.committed_count) for s in log.partition.segments()] == segments
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_bad_batch_behind_what_was_durable_is_cut_with_all_that_follows():
    """Scenario 28: aborts and segments behind it are gone, too."""
    log = write("P1 P1a P2 P2a - -", segment_bytes=1 << 20)
    log.partition.close(clean=False)
    path = DIRECTORY / f"{0:020d}.log"
    content = bytearray(log.disk.read_bytes(path))
    found = read_header(content, 0).size * 1 + 78
    content[found + 70] ^= 1
    log.disk.write_atomic(path, bytes(content))
    log.partition = log.open()
    assert log.partition.end_offset == 2
    assert [txn.producer_id for txn in log.all_aborted()] == [1]


def test_a_bad_batch_in_what_was_durable_keeps_the_partition_closed():
    """What was acknowledged is not thrown away in silence: the file and the place are named."""
    log = write("- " * 100, segment_bytes=400)
    log.partition.close(clean=False)
    path = DIRECTORY / f"{0:020d}.log"
    content = bytearray(log.disk.read_bytes(path))
    content[70] ^= 1
    log.disk.write_atomic(path, bytes(content))
    log.disk.remove(DIRECTORY / f"{0:020d}.summary")
    with pytest.raises(DamageError, match=r"00000000000000000000\.log.*durable"):
        log.open()
    assert log.disk.read_bytes(path) == bytes(content)


def test_recovery_reads_only_what_came_after_the_last_snapshot():
    log = Log(snapshot_bytes=4096)
    for _ in range(400):
        log.append(1)
        log.sync()
    log.partition.close(clean=False)
    read = []

    class Counting(type(log.disk)):
        pass

    original = log.disk.open

    def opened(path, *, create=False):
        file = original(path, create=create)
        if path.suffix == ".log":
            plain_read = file.read
            file.read = lambda position, size: read.append(position) or plain_read(position, size)
        return file

    log.disk.open = opened
    size = log.partition.size
    log.partition = log.open(prove=False)
    # And the batch with which the open transaction begins, for its leader epoch.
    assert [position for position in read if position < size - 2 * 4096] == [0]
    assert log.partition.end_offset == 400
    assert log.stable_offset == 0


@pytest.mark.parametrize("size", [70, 100, 500])
def test_recovery_and_the_proof_of_a_log_read_batches_that_are_larger_than_what_they_read_at_once(
    monkeypatch, size
):
    monkeypatch.setattr(scan, "BATCHES_READ_SIZE", size)
    log = Log()
    for length in (10, 400, 10, 900, 20):
        log.append(1, size=length)
    log.write("P1a")
    log.append(2, size=700)  # which ends with the file
    log.sync()
    log.partition.close(clean=False)
    log.partition = log.open()
    assert log.partition.end_offset == 7
    assert log.stable_offset == 6
    assert len(log.all_aborted()) == 1
    assert list(verify_directory(log.disk, DIRECTORY)) == []


def test_a_damaged_marker_in_a_trusted_segment_is_named_by_the_start_that_reads_it():
    log = Log(segment_bytes=300).write("P1 P1c P1 P1c " * 3)
    log.partition.close()
    position = next(at for at, one in headers(log, path_of(0)) if one.is_control)
    changed(log, path_of(0), position + 76)
    for path in [path for path in log.disk.files() if path.suffix in (".producers", ".snapshot")]:
        log.disk.lose(path)
    with pytest.raises(
        DamageError, match=rf"{path_of(0)}: the CRC of the batch at offset 1, byte {position}, does not"
    ):
        log.open(clean=True)
