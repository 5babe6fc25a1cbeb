"""The plan of a recovery: a file that is missing is named, and one that was being deleted is not missed."""

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import SEGMENT_SUFFIXES
from stablelog.log.verify import verify_directory
from tests.log.test_damage import changed, path_of, several_segments
from tests.log.timeline import DIRECTORY, Log


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("which", [0, 1, 3, -1], ids=["first", "second", "middle", "last"])
@pytest.mark.parametrize("what", ["log", "all files"])
def test_a_segment_that_is_gone_is_named_whichever_it_is(clean, which, what):
    log = several_segments(clean=clean)
    base = log.bases[which]
    for suffix in SEGMENT_SUFFIXES if what == "all files" else (".log",):
        log.disk.lose(path_of(base, suffix))
    before = {path: log.disk.read_bytes(path) for path in log.disk.files() if path.suffix == ".log"}
    with pytest.raises(DamageError, match=r"missing|ends at offset"):
        log.open(clean=clean, is_established=True, leader_epoch=1, recovery_point=log.end_offset)
    assert {path: log.disk.read_bytes(path) for path in log.disk.files() if path.suffix == ".log"} == before
    if which == 0:
        assert list(verify_directory(log.disk, DIRECTORY)) != []


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_segments_that_were_being_deleted_are_not_missed(clean):
    log = several_segments()
    log.disk.write_atomic(DIRECTORY / LOG_START_FILE, encode_log_start(log.bases[2] + 1))
    for base in log.bases[:2]:
        log.disk.lose(path_of(base))
    log.partition = log.open(clean=clean, is_established=True, leader_epoch=1)
    assert log.partition.start_offset == log.bases[2] + 1
    assert log.partition.segments()[0].base_offset == log.bases[2]


@pytest.mark.parametrize("known", [1, 2, 3])
@pytest.mark.parametrize("kept", [".snapshot", ".producers"])
def test_segments_before_the_logs_start_are_read_from_the_last_snapshot_there(known, kept):
    """Of a transaction that began in them only a snapshot behind them knows."""
    log = several_segments()
    log.disk.write_atomic(DIRECTORY / LOG_START_FILE, encode_log_start(log.bases[4] + 1))
    for path in list(log.disk.files()):
        if path.suffix in (".snapshot", ".producers") and (
            int(path.stem) > log.bases[known] or path.suffix != kept
        ):
            log.disk.lose(path)
    log.partition = log.open(is_established=True, leader_epoch=1)
    assert [segment.base_offset for segment in log.partition.segments()] == log.bases[known:]
    assert log.partition.start_offset == log.bases[4] + 1


def test_a_partition_that_has_lost_its_only_segment_is_not_taken_for_a_new_one():
    log = Log().write("- -")
    log.partition.close(clean=False)
    for path in [path for path in log.disk.files() if path.name != LOG_START_FILE]:
        log.disk.lose(path)
    with pytest.raises(DamageError, match="holds no log file"):
        log.open()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("place", range(len(encode_log_start(31)) - 1))
@pytest.mark.parametrize("bits", [0x01, 0x08])
def test_a_changed_log_start_is_refused_and_removes_nothing(clean, place, bits):
    log = several_segments()
    log.disk.damage(DIRECTORY / LOG_START_FILE, encode_log_start(31))
    changed(log, DIRECTORY / LOG_START_FILE, place, bits=bits)
    before = sorted(log.disk.files())
    with pytest.raises((DamageError, UnknownFormatError), match=LOG_START_FILE):
        log.open(clean=clean, is_established=True, leader_epoch=1)
    assert sorted(log.disk.files()) == before
    assert [finding.path.name for finding in verify_directory(log.disk, DIRECTORY)] == [LOG_START_FILE]


@pytest.mark.parametrize("start", [61, 10**9])
def test_a_log_start_past_the_end_refuses_the_partition(start):
    log = several_segments(clean=True)
    log.disk.damage(DIRECTORY / LOG_START_FILE, encode_log_start(start))
    before = [path for path in log.disk.files() if path.suffix == ".log"]
    with pytest.raises(DamageError, match=rf"begins at offset {start}, but the log ends at {log.end_offset}"):
        log.open(clean=True)
    assert [path for path in log.disk.files() if path.suffix == ".log"] == before
    assert any("the log ends at" in found.message for found in verify_directory(log.disk, DIRECTORY))


def test_a_lost_log_start_is_named():
    log = several_segments(clean=True)
    log.disk.lose(DIRECTORY / LOG_START_FILE)
    with pytest.raises(DamageError, match=rf"{LOG_START_FILE} is missing"):
        log.open(clean=True, is_established=True, leader_epoch=1)
