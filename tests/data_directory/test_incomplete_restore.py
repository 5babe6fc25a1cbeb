"""The mark of a restore that was interrupted: no broker uses the directory, and the next restore knows the earlier ones."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.data_directory.incomplete_restore import (
    RESTORING_FILE,
    check_is_restored,
    encode_restoring,
    read_restoring,
)
from stablelog.errors import UnknownFormatError, UsageError
from stablelog.testing.sim_disk import SimDisk
from tests.scale import examples

DATA = Path("/data")
PATH = DATA / RESTORING_FILE


def disk_with(content=None):
    disk = SimDisk()
    disk.make_dir(DATA)
    if content is not None:
        disk.write_atomic(PATH, content)
    return disk


def test_a_directory_without_the_mark_is_restored():
    check_is_restored(disk_with(), DATA)


@pytest.mark.parametrize("content", [b"", encode_restoring([b"n"]), b"damaged"])
def test_a_directory_with_the_mark_is_refused_with_what_to_do_whatever_the_mark_says(content):
    with pytest.raises(UsageError, match=r"^/data is an incomplete restore.*run the same command again"):
        check_is_restored(disk_with(content), DATA)


@settings(max_examples=examples(25))
@given(st.frozensets(st.binary(min_size=1, max_size=16), max_size=4))
def test_the_nonces_that_were_written_are_read(nonces):
    assert read_restoring(disk_with(encode_restoring(nonces)), DATA) == nonces


def test_the_file_has_the_version_and_the_nonces_in_hexadecimal_digits():
    assert encode_restoring([b"\xff", b"\x0a"]) == b'{"version": 1, "nonces": ["0a", "ff"]}'


def test_the_order_of_the_nonces_does_not_change_the_file():
    assert encode_restoring([b"b", b"a"]) == encode_restoring([b"a", b"b"])


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{}",
        b"x",
        b"7",
        b'{"nonces":7}',
        b'{"nonces":["xy"]}',
        b'{"nonces":[7]}',
        b'{"version":"x"}',
        b"\xff",
    ],
)
def test_a_file_that_is_missing_empty_or_damaged_has_no_nonces(content):
    assert read_restoring(disk_with(content), DATA) == frozenset()


def test_a_file_of_a_later_release_is_refused_by_path_and_version():
    with pytest.raises(
        UnknownFormatError,
        match=r"^/data/restoring: the mark of an incomplete restore of version 2; this release",
    ):
        read_restoring(disk_with(b'{"version":2,"nonces":["aa"]}'), DATA)
