"""The file that says which offsets restores did not find."""

from pathlib import Path

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files import restored
from stablelog.log.files.names import RESTORED_FILE
from stablelog.log.files.restored import Restored, decode_restored, read_restored
from stablelog.testing.sim_disk import SimDisk

DIRECTORY = Path("/t-0")
FOUND = Restored(((10, 20), (22, 30)), 3_000, -1, 7, 1_000)


def test_a_file_is_read_as_it_was_written():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    assert read_restored(disk, DIRECTORY) is None
    disk.write_atomic(DIRECTORY / RESTORED_FILE, FOUND.encode())
    assert read_restored(disk, DIRECTORY) == FOUND


def test_a_reader_between_a_restored_end_and_the_first_new_record_has_lost_records():
    lost = [offset for offset in range(40) if FOUND.lost_range(offset) is not None]
    assert lost == [*range(11, 20), *range(23, 30)]


def test_ranges_that_follow_each_other_are_one_gap_and_a_reader_at_the_end_of_one_has_lost_nothing():
    """A broker that was restored at 20 has given out offsets from 20 on, and was restored again without a new copy."""
    found = Restored(((10, 20), (20, 30), (32, 40)), 3_000, -1, 7, 1_000)
    assert found.gaps == [(10, 30), (32, 40)]
    assert {found.lost_range(offset) for offset in (*range(11, 20), *range(21, 30))} == {(10, 30)}
    assert {found.lost_range(offset) for offset in (10, 20, 30, 31, 32, 40)} == {None}


def test_damage_at_any_byte_is_refused():
    content = FOUND.encode()
    for at in range(len(content) - 1):
        with pytest.raises(DamageError, match="damaged"):
            decode_restored(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :], DIRECTORY)
        with pytest.raises(DamageError, match="damaged"):
            decode_restored(content[:at], DIRECTORY)


def test_a_file_of_a_later_release_is_refused(monkeypatch):
    monkeypatch.setattr(restored, "VERSION", 2)
    content = FOUND.encode()
    monkeypatch.undo()
    with pytest.raises(UnknownFormatError):
        decode_restored(content, DIRECTORY)
