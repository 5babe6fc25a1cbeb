"""Files that are written past the page cache have the bytes that were given, on file systems with and without it."""

import errno
import fcntl
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.env.objects import direct_file
from stablelog.env.objects.direct_file import BLOCK_SIZE, DIRECT, DIRECT_SIZE, write_new
from tests.scale import examples

SIZES = st.sampled_from(
    [0, 1, BLOCK_SIZE, DIRECT_SIZE - 1, DIRECT_SIZE, DIRECT_SIZE + 1, 2 * DIRECT_SIZE + 777]
)


def pieces_of(sizes):
    return [bytes([number % 251]) * size for number, size in enumerate(sizes, 1)]


@settings(deadline=None, max_examples=examples(20))
@given(sizes=st.lists(SIZES, max_size=4))
def test_the_file_has_the_bytes_of_all_pieces(sizes):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "new"
        write_new(path, iter(pieces_of(sizes)))
        assert path.read_bytes() == b"".join(pieces_of(sizes))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no tmpfs")
def test_a_file_system_in_memory_takes_the_file_too():
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory) / "new"
        write_new(path, pieces_of([3 * DIRECT_SIZE + 5]))
        assert path.read_bytes() == b"".join(pieces_of([3 * DIRECT_SIZE + 5]))


class Writes:
    """`os.write`, and which writes were direct. Refuses or shortens direct writes, as some file systems do."""

    def __init__(self, monkeypatch, *, error=None, at_most=None):
        self.is_direct = []
        self.real, self._error, self._at_most = os.write, error, at_most
        monkeypatch.setattr(direct_file.os, "write", self)

    def __call__(self, descriptor, content):
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT)
        self.is_direct.append(is_direct)
        if is_direct:
            if self._error:
                raise OSError(self._error, os.strerror(self._error))
            content = content[: self._at_most]
        return self.real(descriptor, content)


@pytest.fixture
def has_direct_writes(tmp_path):
    with (tmp_path / "tried").open("wb") as file:
        if not DIRECT or not direct_file.set_direct(file.fileno(), is_direct=True):
            pytest.skip("this file system has no direct writes")


@pytest.mark.usefixtures("has_direct_writes")
def test_only_the_last_piece_of_a_file_goes_through_the_page_cache(tmp_path, monkeypatch):
    writes = Writes(monkeypatch)
    write_new(tmp_path / "large", [bytes(3 * DIRECT_SIZE + 5)])
    assert writes.is_direct == [True, True, True, False]
    writes.is_direct.clear()
    write_new(tmp_path / "small", [bytes(1000)])
    assert writes.is_direct == [False]


@pytest.mark.usefixtures("has_direct_writes")
@pytest.mark.parametrize(
    "fault", [{"error": errno.EINVAL}, {"at_most": BLOCK_SIZE}, {"at_most": 8 * BLOCK_SIZE}]
)
def test_a_direct_write_that_is_refused_or_short_is_continued(tmp_path, monkeypatch, fault):
    Writes(monkeypatch, **fault)
    content = os.urandom(2 * DIRECT_SIZE + 5)
    write_new(tmp_path / "new", [content])
    assert (tmp_path / "new").read_bytes() == content


@pytest.mark.usefixtures("has_direct_writes")
def test_a_direct_write_that_ends_inside_a_block_is_continued_through_the_page_cache(tmp_path, monkeypatch):
    writes = Writes(monkeypatch)
    content = os.urandom(2 * DIRECT_SIZE + 5)
    real = writes.real
    writes.real = lambda descriptor, part: (
        real(descriptor, part) if len(part) < 1000 else short(descriptor, part)
    )

    def short(descriptor, part):
        # A file system that ends a direct write inside a block: the bytes are written as it would leave them.
        if not writes.is_direct[-1]:
            return real(descriptor, part)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~DIRECT)
        written = real(descriptor, part[:1000])
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return written

    write_new(tmp_path / "new", [content])
    assert (tmp_path / "new").read_bytes() == content


@pytest.mark.parametrize("size", [100, DIRECT_SIZE, 2 * DIRECT_SIZE + 5])
@pytest.mark.parametrize("is_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_the_error_of_the_first_or_the_last_write_is_raised(tmp_path, monkeypatch, error, is_last, size):
    real, sizes = os.write, []

    def write(descriptor, content):
        sizes.append(len(content))
        if sum(sizes) == size or not is_last:
            raise OSError(error, os.strerror(error))
        return real(descriptor, content)

    monkeypatch.setattr(direct_file.os, "write", write)
    with pytest.raises(OSError, match=os.strerror(error)):
        write_new(tmp_path / "new", [bytes(size)])
    assert len(sizes) == (1 + size // (DIRECT_SIZE + 1) if is_last else 1)


def test_a_file_that_exists_is_not_overwritten(tmp_path):
    (tmp_path / "old").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "old", [b"new"])
    assert (tmp_path / "old").read_bytes() == b"old"
