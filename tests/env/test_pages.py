"""Pages of a mapped file that are there before they are read, and files that cannot be read."""

import ctypes
import errno
import subprocess
import sys

import pytest

from bench.commit_fetch import drop_pages
from stablelog.env import pages
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError
from stablelog.testing.sim_disk import SimDisk

PIECE = 64 << 10
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux brings pages into the map")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(bytes(range(256)) * (16 * PIECE // 256))
    found = LocalDisk().open(path)
    yield found
    found.close()


@linux
def test_pages_are_in_memory_afterwards(file, tmp_path):
    view = file.view(3 * PIECE, PIECE)
    file.sync()
    drop_pages(tmp_path / "0.log")
    if subprocess.check_output(["stat", "--file-system", "--format=%T", tmp_path], text=True) == "tmpfs\n":
        pytest.skip("tmpfs keeps its files in memory")
    assert not pages.is_in_memory(view)
    assert file.populate(view)
    assert pages.is_in_memory(view)
    assert pages.is_in_memory(file.view(3 * PIECE + 100, 5))
    assert pages.is_in_memory(memoryview(b""))
    assert file.populate(file.view(100, 5))  # anywhere in a page
    assert bytes(file.view(100, 5)) == bytes(range(100, 105))


@linux
def test_a_file_that_became_shorter_is_told_before_it_ends_the_process(file, tmp_path):
    view = file.view(0, 16 * PIECE)
    (tmp_path / "0.log").open("r+b").truncate(PIECE)
    assert file.populate(view[:PIECE])
    with pytest.raises(DiskError, match=r"0\.log") as raised:
        file.populate(view)
    assert raised.value.number == errno.EIO


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM, errno.EAGAIN])
def test_where_the_system_cannot_it_says_so(file, monkeypatch, number):
    def madvise(*_arguments):
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(pages, "madvise", madvise)
    assert file.populate(file.view(0, PIECE)) is False
    monkeypatch.setattr(pages, "madvise", None)
    assert file.populate(file.view(0, PIECE)) is False


def test_the_simulated_disk_tells_what_cannot_be_read(tmp_path):
    disk, path = SimDisk(), tmp_path / "0.log"
    disk.make_dir(tmp_path)
    disk.write_atomic(path, b"0123")
    file = disk.open(path)
    view = file.view(0, 4)
    assert file.populate(view)
    disk.fault = lambda what, _path: errno.EIO if what == "reading" else None
    with pytest.raises(DiskError):
        file.populate(view)
