"""Construction of commit indexes from the log: after a start, on a full disk, and where an index is of no use."""

import dataclasses
import errno

import pytest
from crc32c import crc32c

from stablelog.batch.header import headers_in
from stablelog.commit_order import index_builder, row_file
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.index_format import VERSION, CommitSummary
from stablelog.commit_order.verify import verify_view
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.testing.sim_disk import SimDisk
from tests.commit_order.committed_log import DIRECTORY, VIEW_FILES, Files, Log, set_long_count


def test_extents_of_a_long_transaction_do_not_stay_in_memory(monkeypatch):
    set_long_count(monkeypatch, 8)
    log, spilled = Log(segment_bytes=400_000), []
    log.disk.fault = lambda called, path: (
        spilled.append(path) if called == "writing" and path.suffix == ".openextents" else None
    )
    for _ in range(100):
        log.append(1)
        log.append(2, size=8000)
    log.sync()
    log.disk.fault = None
    assert len(spilled) == 2 * (100 // 8), "of each transaction, after each eight extents"
    log.end(1)
    log.sync()
    assert log.read_all(0, 1 << 30) == log.expected()
    assert len(log.expected()) == 100
    assert [name for name in log.disk.list_dir(DIRECTORY) if "openextents" in name] == []


@pytest.mark.parametrize("what", ["opening", "writing", "truncating", "removing", "all"])
@pytest.mark.parametrize("late", [False, True])
def test_a_view_is_served_though_its_files_cannot_be_written_and_they_are_written_later(
    monkeypatch, what, late
):
    """They can be made from the log: a full disk keeps nothing from its readers."""
    set_long_count(monkeypatch, 3)
    monkeypatch.setattr(row_file, "TAIL_SIZE", 200)
    monkeypatch.setattr(index_builder, "INDEXES_OPEN", 1)
    log = Log(segment_bytes=3000)
    log.plain()
    log.sync()

    def fault(called, path):
        is_made = called == "opening" and not log.disk.exists(path)
        is_changed = called in ("writing", "truncating", "removing")
        if path.suffix in VIEW_FILES and (is_made or is_changed) and what in (called, "all"):
            return errno.ENOSPC
        return None

    log.disk.fault = fault
    log.disk.fails_late = late
    for _ in range(3):
        for producer_id in (1, 2):
            for _ in range(8):
                log.append(producer_id, size=600)
        log.plain(2)
        log.end(1)
        log.end(2)
        log.sync()
        assert log.read_all(0, 1 << 30) == log.expected()
    assert len(log.partition.segments()) > 3
    assert log.partition.failure is None
    if what == "all":
        assert log.partition.side_failure is not None
    log.disk.fault, log.disk.fails_late = None, False
    log.plain()
    log.sync()
    assert log.read_all(0, 1 << 30) == log.expected()
    assert log.partition.side_failure is None
    log.reopen(clean=False)
    assert log.read_all(0, 1 << 30) == log.expected()
    assert list(verify_view(log.disk, DIRECTORY)) == []


def test_after_a_restart_an_open_transaction_has_its_own_batches_and_not_those_of_the_one_before():
    log = Log()
    log.append(1)
    log.append(2)
    log.end(2)
    log.append(2, count=2)
    log.partition.roll(log.now_ms)
    log.sync()
    log.reopen()
    log.end(2)
    log.end(1)
    log.sync()
    assert log.read_all(0, 1 << 30) == log.expected()
    assert [payload for _, payload in log.expected()] == [b"1", b"2", b"3", b"0"]


def test_a_view_that_cannot_be_made_closes_its_files_and_the_partition_does_not_open(monkeypatch):
    log = Log()
    log.append(1)
    log.end(1)
    log.sync()
    log.partition.close()
    closed = []

    def close(index):
        closed.append(index)

    monkeypatch.setattr(CommitIndex, "close", close)
    monkeypatch.setattr(index_builder, "read_marker", lambda batch: 1 / 0)
    files = Files(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        log.open(clean=True)
    assert len(closed) == 1
    assert ".log" in {path.suffix for path in files.paths.values()}
    assert files.open_with(".log") == []


@pytest.mark.parametrize("segment_count", [1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_a_marker_with_other_positions_than_its_transaction_has_records_is_corrupt(count, segment_count):
    log = Log()
    log.append(1, count=2)
    if segment_count == 2:
        log.partition.roll(log.now_ms)
    log.end(1)
    log.sync()
    paths = [segment.path(".log") for segment in log.partition.segments()]
    assert len(paths) == segment_count
    contents = [log.disk.read_bytes(path) for path in paths]
    content = bytearray(contents.pop())
    log.partition.close()
    at = [position for position, _ in headers_in(bytes(content))][-1]
    content[at + 23 : at + 27] = count.to_bytes(4, "big")
    content[at + 17 : at + 21] = crc32c(memoryview(content)[at + 21 :]).to_bytes(4, "big")
    log.disk = SimDisk()  # with the log files alone, so that nothing says what their batches were
    log.disk.make_dir(DIRECTORY)
    for path, written in zip(paths, [*contents, bytes(content)], strict=True):
        log.disk.write_atomic(path, written)
    with pytest.raises(DamageError, match=f"has {count} records, but the log has 2 records"):
        log.open(clean=False)


@pytest.mark.parametrize("version", range(1, VERSION))
def test_an_index_of_a_version_before_the_first_release_is_refused(version):
    log = Log(segment_bytes=500)
    for _ in range(20):
        log.append(1, count=2)
        log.end(1)
    log.sync()
    path = max(path for path in log.disk.files() if path.suffix == ".commitsummary")
    content = version.to_bytes(2, "big") + log.disk.read_bytes(path)[2:-4]
    log.partition.close()
    log.disk.write_atomic(path, content + crc32c(content).to_bytes(4, "big"))
    before = contents(log.disk)
    told = f"a commit summary of version {version}; no release has written this form"
    with pytest.raises(UnknownFormatError, match=rf"^{path}: {told}"):
        log.open(clean=True)
    assert contents(log.disk) == before
    assert [str(one.path) for one in verify_view(log.disk, DIRECTORY) if told in one.message] == [str(path)]


def contents(disk):
    return {path: disk.read_bytes(path) for path in disk.files()}


@pytest.mark.parametrize("field", ["base_offset", "end_offset", "log_crc"])
def test_an_index_of_another_log_is_made_anew(field):
    """It is sound, but it was made from a segment with another end or other bytes."""
    log = Log(segment_bytes=500)
    for _ in range(20):
        log.append(1)
        log.end(1)
    log.sync()
    path = log.partition.view.indexes[0].path(".commitsummary")
    content = log.disk.read_bytes(path)
    summary = CommitSummary.decode(content)
    other = dataclasses.replace(summary, **{field: getattr(summary, field) + 1, "latest_sequence": 70})
    log.disk.write_atomic(path, other.encode())
    log.reopen()
    assert log.disk.read_bytes(path) == content
    assert log.partition.view.latest_sequence == 20


@pytest.mark.parametrize("suffix", [".commitindex", ".commitextents"])
def test_an_index_with_other_bytes_than_its_summary_says_is_made_anew(suffix):
    log = Log(segment_bytes=500)
    for _ in range(20):
        log.append(1)
        log.end(1)
    log.sync()
    path = log.partition.view.indexes[0].path(suffix)
    content = log.disk.read_bytes(path)
    for other in (content[:-1] + bytes([content[-1] ^ 1]), content + b"\0", content[:-1]):
        log.partition.close()
        log.disk.write_atomic(path, other)
        log.partition = log.open(clean=True)
        assert log.disk.read_bytes(path) == content
        assert log.read_all(0, 1 << 20) == log.expected()


@pytest.mark.parametrize("place", [0, -1])
def test_a_summary_of_a_later_release_is_refused_the_last_one_before_anything_is_written(place):
    log = Log(segment_bytes=500)
    for _ in range(20):
        log.append(1)
        log.end(1)
    log.sync()
    log.partition.close()
    names = sorted(name for name in log.disk.list_dir(DIRECTORY) if name.endswith(".commitsummary"))
    assert len(names) > 2
    path_of_summary = DIRECTORY / names[place]
    content = (VERSION + 1).to_bytes(2, "big") + log.disk.read_bytes(path_of_summary)[2:-4]
    log.disk.write_atomic(path_of_summary, content + crc32c(content).to_bytes(4, "big"))
    path = log.partition.segments()[-1].path(".log")
    log.disk.damage(path, log.disk.read_bytes(path) + b"torn")
    before = {one: log.disk.read_bytes(one) for one in log.disk.files()}
    with pytest.raises(UnknownFormatError, match=f"a commit summary of version {VERSION + 1}") as caught:
        log.open(clean=False)
    if place == -1:
        assert str(path_of_summary) in str(caught.value)
        assert {one: log.disk.read_bytes(one) for one in log.disk.files()} == before
