"""The log file of a segment: messages that name it, and reads without a map."""

import pytest

from stablelog.errors import DamageError
from stablelog.log.files.names import SegmentName
from stablelog.log.segments.log_file import LogFile, ReadLogFile
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY

NAME = SegmentName.of(DIRECTORY, 0)
PATH = NAME.path(".log")


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    disk.write_atomic(PATH, bytes(range(100)))
    return disk


def log_of(disk, size=100):
    return ReadLogFile(NAME.path, lambda: disk.open(PATH), size)


def test_a_piece_ends_with_the_part_of_the_file_that_counts(disk):
    assert log_of(disk).piece(10, 5) == bytes(range(10, 15))
    assert log_of(disk).piece(95, 50) == bytes(range(95, 100))
    assert log_of(disk, size=40).piece(30, 50) == bytes(range(30, 40))


def test_the_file_is_opened_for_each_read_because_it_may_be_closed_between_two(disk):
    opened = []
    log = ReadLogFile(NAME.path, lambda: opened.append(1) or disk.open(PATH), 100)
    log.piece(0, 1)
    log.piece(1, 1)
    assert len(opened) == 2


def test_bytes_that_are_no_batch_are_named_with_their_file_and_position(disk):
    assert (
        str(log_of(disk).no_batch_at(7, None))
        == f"{PATH}: the bytes at byte 7 are no batch. Restore the file"
    )
    known = DamageError("why")
    assert log_of(disk).no_batch_at(7, known) is known


def test_a_torn_batch_is_named_with_the_bytes_that_are_left(disk):
    assert str(log_of(disk).torn_at(93)) == f"{PATH}: the 7 bytes at byte 93 are no batch. Restore the file"
    assert isinstance(log_of(disk), LogFile)
