"""Where a log begins that has no file which says so."""

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.log_start import (
    LOG_START_FILE,
    decode_log_start,
    encode_log_start,
    read_log_start,
    write_missing_log_start,
)
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

PATH = DIRECTORY / LOG_START_FILE


def directory(*names):
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for name in names:
        disk.write_atomic(DIRECTORY / name, b"")
    return disk


@pytest.mark.parametrize(
    ("logs", "summaries", "known", "start"),
    [
        ([], [], 0, 0),
        ([], [], 7, 7),
        ([5, 9], [], 0, 5),
        ([5, 9], [], 6, 6),
        ([5, 9], [], 4, 5),
        ([5, 9], [5, 7], 0, 5),
        ([5, 9], [3], 0, 3),  # its log file is lost, and the start finds that
        ([], [3, 8], 0, 3),
    ],
)
def test_it_is_the_first_segment_that_was_there_or_a_later_known_start(logs, summaries, known, start):
    names = [f"{base:020d}.log" for base in logs] + [f"{base:020d}.summary" for base in summaries]
    disk = directory(*names)
    assert read_log_start(disk, PATH) is None
    write_missing_log_start(disk, DIRECTORY, known)
    assert read_log_start(disk, PATH) == start
    steps = disk.steps
    write_missing_log_start(disk, DIRECTORY, known + 50)
    assert read_log_start(disk, PATH) == start, "what is there stays"
    assert disk.steps == steps, "and is not written again"


def test_what_is_no_log_start_is_refused():
    for content in (
        b"",
        b"1\n",
        b"1\n31\n",
        b"1\nx\n0\n",
        encode_log_start(31) + b"\n",
        b"x\n31\n",
    ):
        with pytest.raises(DamageError, match="is damaged"):
            decode_log_start(content, PATH)
    for version in (b"0", b"2"):
        with pytest.raises(UnknownFormatError, match=f"in a file of version {version.decode()};"):
            decode_log_start(encode_log_start(31).replace(b"1", version, 1), PATH)
