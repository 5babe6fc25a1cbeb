"""Verification of a segment: every batch and every entry of its indexes is held against the log."""

import pytest

from stablelog.log.segments import scan as scan_module
from stablelog.log.verify import verify_directory
from tests.log.test_damage import changed, headers
from tests.log.timeline import DIRECTORY, Log
from tests.log.verify.test_directory import forged, path_of, several_epochs


@pytest.mark.parametrize("read_size", [70, 1 << 20], ids=["read one by one", "read at once"])
def test_a_batch_whose_offset_was_written_already_is_a_finding(read_size, monkeypatch):
    """However many batches are read at once: those that are larger than that are read by themselves."""
    monkeypatch.setattr(scan_module, "BATCHES_READ_SIZE", read_size)
    log = Log().write("- - -")
    log.partition.close()
    assert list(verify_directory(log.disk, DIRECTORY)) == []
    changed(log, path_of(0, ".log"), headers(log, path_of(0, ".log"))[2][0] + 7)  # 3 in place of 2
    changed(log, path_of(0, ".log"), headers(log, path_of(0, ".log"))[1][0] + 7)  # 0 in place of 1
    found = [one for one in verify_directory(log.disk, DIRECTORY) if one.path == path_of(0, ".log")]
    assert any(
        "must be greater than 0" in one.message or "does not follow offset 0" in one.message for one in found
    )


@pytest.mark.parametrize("size", [1, 60, 61, 70])
def test_a_torn_batch_is_what_a_crash_leaves_at_the_end_and_nowhere_else(size):
    log = several_epochs(2)
    (first, _), (second, _) = headers(log, path_of(log.bases[-1], ".log"))[:2]
    torn = log.disk.read_bytes(path_of(log.bases[-1], ".log"))[first : first + min(size, second - first - 1)]
    for base in (log.bases[0], log.bases[-1]):
        path = path_of(base, ".log")
        found = {finding.path for finding in forged(log, {path: log.disk.read_bytes(path) + torn})}
        assert found == ({path} if base == log.bases[0] else set()), size


@pytest.mark.extended
def test_every_byte_of_the_log_is_proven():
    log = several_epochs(3)
    for base in (log.bases[0], log.bases[-2]):
        path = path_of(base, ".log")
        content = log.disk.read_bytes(path)
        for at in range(base % 41, len(content), 41):
            changed = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
            assert path in {finding.path for finding in forged(log, {path: changed})}
