"""Names and small files of a partition's directory, each read once while the partition is opened."""

import pytest

from stablelog.log.files import listing as module
from stablelog.log.files.listing import Listing
from stablelog.testing.sim_disk import SimDisk
from tests.log.timeline import DIRECTORY


@pytest.fixture
def disk():
    disk = SimDisk()
    disk.make_dir(DIRECTORY)
    for name in ("b", "a"):
        disk.write_atomic(DIRECTORY / name, name.encode() * 10)
    return disk


@pytest.fixture
def listing(disk):
    return Listing(disk, DIRECTORY)


def test_names_are_sorted_and_paths_are_in_the_directory(listing):
    assert listing.names == ["a", "b"]
    assert "a" in listing
    assert "c" not in listing
    assert listing.path("c") == DIRECTORY / "c"


def test_a_directory_that_is_missing_is_told(disk):
    with pytest.raises(FileNotFoundError):
        Listing(disk, DIRECTORY.with_name("t-1"))


def test_a_small_file_is_read_once(disk, listing):
    assert listing.read("a") == b"a" * 10
    disk.fault = lambda called, path: pytest.fail(f"{called} {path}")
    assert listing.read("a") == listing.head("a") == b"a" * 10


def test_of_a_large_file_the_beginning_is_kept_and_the_rest_is_read_again(disk, listing, monkeypatch):
    monkeypatch.setattr(module, "SMALL_SIZE", 4)
    assert listing.head("a") == b"a" * 4
    assert listing.read("a") == b"a" * 10
    disk.damage(DIRECTORY / "a", b"changed by the caller")
    assert listing.head("a") == b"a" * 4
    assert listing.read("a") == b"changed by the caller"


def test_a_file_of_exactly_the_small_size_is_whole(listing, monkeypatch):
    monkeypatch.setattr(module, "SMALL_SIZE", 10)
    assert listing.read("a") == b"a" * 10


def test_a_beginning_is_not_kept(disk, listing):
    assert listing.beginning("a", 3) == b"aaa"
    disk.damage(DIRECTORY / "a", b"other")
    assert listing.beginning("a", 3) == b"oth"


def test_a_file_that_is_not_in_the_listing_is_missing_though_it_was_made_since(disk, listing):
    disk.write_atomic(DIRECTORY / "c", b"new")
    with pytest.raises(FileNotFoundError):
        listing.read("c")
    listing.reload()
    assert listing.read("c") == b"new"


def test_after_a_reload_files_are_read_again(disk, listing):
    listing.read("a")
    disk.damage(DIRECTORY / "a", b"changed")
    listing.reload()
    assert listing.read("a") == b"changed"


def test_no_file_stays_open(disk, listing):
    listing.read("a")
    listing.beginning("b", 1)
    assert not disk.open_files
