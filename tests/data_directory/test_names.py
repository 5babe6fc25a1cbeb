"""Which entries of a data directory are partitions' directories."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.data_directory.names import RESERVE_FILE, partition_directories, partition_named
from stablelog.testing.sim_disk import SimDisk
from tests.scale import examples

DATA = Path("/data")


@settings(max_examples=examples(25))
@given(st.text("aZ9._-", min_size=1, max_size=9), st.integers(0, 2**31 - 1))
def test_the_directory_of_a_partition_names_it(topic, index):
    assert partition_named(f"{topic}-{index}") == (topic, index)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "flights",
        "flights-",
        "-0",
        "flights-01",
        "flights--",
        "flights-0x",
        "flights-12345678901",
        "flights-\u0663",
        "fl ights-0",
        "flights-0.0123456789abcdef0123456789abcdef-delete",
        "flights-0\n",
        RESERVE_FILE,
    ],
)
def test_another_name_is_that_of_no_partition(name):
    assert partition_named(name) is None


def test_the_index_is_what_stands_behind_the_last_hyphen():
    assert partition_named("a-1-2") == ("a-1", 2)


def test_the_directories_are_sorted_without_files_and_deleted_topics():
    disk = SimDisk()
    for name in ("t-1", "a-0", "t-0.0123456789abcdef0123456789abcdef-delete", "lost+found", "t-0"):
        disk.make_dir(DATA / name)
    disk.write_atomic(DATA / "u-0", b"a file")
    assert partition_directories(disk, DATA) == [DATA / "a-0", DATA / "t-0", DATA / "t-1"]
