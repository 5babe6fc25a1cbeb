"""One contract for the real and the simulated disk: the same calls, limits and errors.

The real disk meets its errors through a stand-in for the `os` module, which lets one system call fail or fall short.
"""

import contextlib
import errno
import mmap
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from stablelog.env import local_disk as local
from stablelog.env.local_disk import COPIED_SIZE_MAX, LocalDisk
from stablelog.errors import DiskError
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash

NUMBERS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EINVAL]
CONTENT = b"0123456789"


class FailingCalls:
    """Stands in for a module of system calls: those that are named in `failing` fail with their number."""

    def __init__(self, module):
        self._module = module
        self.failing = {}
        self.instead = {}

    def __getattr__(self, name):
        if name in self.instead:
            return self.instead[name]
        found = getattr(self._module, name)
        if name not in self.failing:
            return found

        def fail(*_arguments, **_named):
            raise OSError(self.failing[name], os.strerror(self.failing[name]))

        return fail


class Local:
    """The real disk."""

    def __init__(self, root, monkeypatch):
        self.disk, self.root = LocalDisk(), root
        self.calls, self.maps = FailingCalls(os), FailingCalls(mmap)
        monkeypatch.setattr(local, "os", self.calls)
        monkeypatch.setattr(local, "mmap", self.maps)

    def fail(self, system_calls, number):
        for name in system_calls:
            (self.maps if name == "mmap" else self.calls).failing[name] = number

    def heal(self):
        self.calls.failing.clear()
        self.maps.failing.clear()


class Simulated:
    """The simulated one."""

    def __init__(self, *_unused):
        self.disk, self.root = SimDisk(), Path("/root")
        self.disk.make_dir(self.root)

    def fail(self, system_calls, number):
        self.disk.fails_late = "ftruncate" in system_calls and "pwritev" in system_calls
        self.disk.fault = lambda _what, _path: number

    def heal(self):
        self.disk.fault = None


class InPieces:
    """The content of a file in pieces."""

    def __init__(self, *pieces):
        self._pieces = pieces

    def __len__(self):
        return sum(map(len, self._pieces))

    def __iter__(self):
        return iter(self._pieces)


@pytest.fixture(params=[Local, Simulated])
def place(request, tmp_path, monkeypatch):
    return request.param(tmp_path, monkeypatch)


@pytest.fixture
def there(place):
    """A directory with a file, and the file open."""
    directory = place.root / "d"
    place.disk.make_dir(directory)
    file = place.disk.open(directory / "f", create=True)
    file.append(CONTENT)
    return SimpleNamespace(place=place, disk=place.disk, directory=directory, path=directory / "f", file=file)


def mapped(file):
    """A view as of many bytes, of which the file has few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "COPIED_SIZE_MAX", 0)
        return file.view(2, 3)


def both(on):
    """A file that exists and one that does not."""
    return {on.path: b"x" * 100, on.path.with_name("new"): InPieces(b"y" * 100, b"z" * 200)}


# Each call, the system calls that it stands on, and whether an error may leave its change.
CALLS = {
    "open": (lambda on: on.disk.open(on.path), ["open"], True),
    "create": (lambda on: on.disk.open(on.directory / "new", create=True), ["open"], True),
    "exists": (lambda on: on.disk.exists(on.path), ["stat"], True),
    "is_dir": (lambda on: on.disk.is_dir(on.path), ["stat"], True),
    "size": (lambda on: on.disk.size(on.path), ["stat"], True),
    "read_bytes": (lambda on: on.disk.read_bytes(on.path), ["read"], True),
    "read_bytes, opening": (lambda on: on.disk.read_bytes(on.path), ["open"], True),
    "write_atomic, opening": (lambda on: on.disk.write_atomic(on.path, b"x"), ["open"], True),
    "write_atomic": (lambda on: on.disk.write_atomic(on.path, b"x"), ["write"], True),
    "write_atomic, syncing": (lambda on: on.disk.write_atomic(on.path, b"x"), ["fsync"], True),
    "write_atomic, replacing": (lambda on: on.disk.write_atomic(on.path, b"x"), ["replace"], True),
    "write_together, opening": (lambda on: on.disk.write_together(both(on)), ["open"], True),
    "write_together": (lambda on: on.disk.write_together(both(on)), ["write"], True),
    "write_together, syncing": (lambda on: on.disk.write_together(both(on)), ["fsync"], True),
    "write_together, replacing": (lambda on: on.disk.write_together(both(on)), ["replace"], True),
    "write_unsynced": (lambda on: on.disk.write_unsynced(on.path, b"x"), ["write"], True),
    "write_unsynced, replacing": (lambda on: on.disk.write_unsynced(on.path, b"x"), ["replace"], True),
    "list_dir": (lambda on: on.disk.list_dir(on.directory), ["listdir"], True),
    "make_dir": (lambda on: on.disk.make_dir(on.directory / "x" / "y"), ["mkdir"], False),
    "rename": (lambda on: on.disk.rename(on.path, on.directory / "g"), ["rename"], True),
    "remove": (lambda on: on.disk.remove(on.path), ["unlink"], True),
    "remove_dir": (lambda on: on.disk.remove_dir(on.directory), ["unlink", "rmdir"], False),
    "sync_dir": (lambda on: on.disk.sync_dir(on.directory), ["fsync"], False),
    "sync_dir, opening": (lambda on: on.disk.sync_dir(on.directory), ["open"], False),
    "allocate": (lambda on: on.disk.allocate(on.directory / "r", 1000), ["posix_fallocate"], True),
    "free_size": (lambda on: on.disk.free_size(on.directory), ["statvfs"], True),
    "append": (lambda on: on.file.append(b"abc", b"def"), ["pwritev"], True),
    "append, unable to undo": (lambda on: on.file.append(b"abc", b"def"), ["pwritev", "ftruncate"], False),
    "read": (lambda on: on.file.read(2, 3), ["pread"], True),
    "view": (lambda on: on.file.view(2, 3), ["pread"], True),
    "view, mapping": (lambda on: mapped(on.file), ["mmap"], True),
    "truncate": (lambda on: on.file.truncate(3), ["ftruncate"], True),
    "sync": (lambda on: on.file.sync(), ["fdatasync"], False),
}


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("name", CALLS)
def test_each_call_raises_one_error_that_names_the_path_and_changes_nothing(there, name, number):
    call, system_calls, undone = CALLS[name]
    there.place.fail(system_calls, number)
    with pytest.raises(DiskError) as raised:
        call(there)
    assert (raised.value.number, raised.value.is_full) == (number, number in (errno.ENOSPC, errno.EDQUOT))
    assert str(there.directory) in str(raised.value)
    assert errno.errorcode[number] in str(raised.value)
    there.place.heal()
    if undone:
        assert raised.value.undone
        assert there.disk.list_dir(there.directory) == ["f"]
        assert there.disk.read_bytes(there.path) == CONTENT
        assert there.file.size == len(CONTENT)
        assert there.file.append(b"more") == len(CONTENT)
        assert there.file.read(0, 99) == CONTENT + b"more"


@pytest.mark.parametrize(
    "write",
    [
        lambda on: on.file.append(b"ab" * 100, b"c" * 200),
        lambda on: on.disk.write_atomic(on.path, b"x" * 400),
        lambda on: on.disk.write_atomic(on.path, InPieces(b"x" * 100, b"y" * 300)),
        lambda on: on.disk.write_together(both(on)),
        lambda on: on.disk.write_unsynced(on.path, b"x" * 400),
    ],
    ids=["append", "write_atomic", "write_atomic, pieces", "write_together", "write_unsynced"],
)
def test_a_failed_write_says_how_many_bytes_it_was_to_write(there, write):
    there.place.fail(["pwritev", "write"], errno.ENOSPC)
    with pytest.raises(DiskError) as raised:
        write(there)
    assert raised.value.size == 400


def test_only_a_call_that_writes_content_says_how_many_bytes_lack_room_on_the_simulated_disk():
    """The real disk says no size of a file that it extends or allocates."""
    disk, path = SimDisk(), Path("/d/f")
    disk.make_dir(path.parent)
    file = disk.open(path, create=True)
    disk.capacity = 100
    for call, size in (
        (lambda: file.append(bytes(200)), 200),
        (lambda: disk.write_atomic(path, bytes(200)), 200),
        (lambda: disk.write_together({path: bytes(60), path.with_name("g"): bytes(60)}), 120),
        (lambda: disk.write_unsynced(path, bytes(200)), 200),
        (lambda: file.truncate(200), 0),
        (lambda: disk.allocate(path.with_name("g"), 200), 0),
    ):
        with pytest.raises(DiskError) as raised:
            call()
        assert (raised.value.number, raised.value.size) == (errno.ENOSPC, size)


def test_files_that_are_written_together_are_all_replaced(there):
    there.disk.write_together(both(there))
    assert there.disk.list_dir(there.directory) == ["f", "new"]
    assert there.disk.read_bytes(there.path) == b"x" * 100
    assert there.disk.read_bytes(there.path.with_name("new")) == b"y" * 100 + b"z" * 200


def test_no_file_is_replaced_where_another_one_cannot_be_written(there):
    if isinstance(there.place, Local):
        written = []

        def write(fd, data):
            if written:
                raise OSError(errno.ENOSPC, "no room for the second file")
            written.append(data)
            return os.write(fd, data)

        there.place.calls.instead = {"write": write}
    else:
        there.disk.fault = lambda _what, path: errno.ENOSPC if path.name == "new" else None
    with pytest.raises(DiskError) as raised:
        there.disk.write_together(both(there))
    assert raised.value.undone
    assert there.disk.list_dir(there.directory) == ["f"]
    assert there.disk.read_bytes(there.path) == CONTENT


def test_an_error_behind_the_first_replaced_file_says_that_something_changed(there):
    """On the real disk the second rename fails, on the simulated one the step that is the second name."""
    if isinstance(there.place, Local):
        renamed = []

        def replace(source, target):
            if renamed:
                raise OSError(errno.EIO, "no more renames")
            renamed.append(target)
            os.replace(source, target)

        there.place.calls.instead = {"replace": replace}
    else:
        there.disk.fail_at = there.disk.steps + 2
    with pytest.raises(DiskError) as raised:
        there.disk.write_together(both(there))
    assert not raised.value.undone
    assert there.disk.list_dir(there.directory) == ["f"]
    assert there.disk.read_bytes(there.path) == b"x" * 100


def test_files_of_two_directories_are_not_written_together(there):
    there.disk.make_dir(there.directory / "e")
    with pytest.raises(AssertionError, match="2 directories"):
        there.disk.write_together({there.path: b"", there.directory / "e" / "f": b""})
    assert there.disk.read_bytes(there.path) == CONTENT


def test_after_a_crash_each_file_of_those_written_together_is_old_or_new():
    """The simulated disk alone can crash."""
    found = set()
    for seed in range(200):
        disk, directory = SimDisk(), Path("/d")
        disk.make_dir(directory)
        old = {directory / "a": b"old", directory / "b": b"old"}
        disk.write_together(old)
        disk.crash_at = disk.steps + 1 + seed % 4
        with contextlib.suppress(SimulatedCrash):
            disk.write_together(dict.fromkeys(old, b"new"))
        after = disk.crash(random.Random(seed))
        found.add((seed % 4, *(after.read_bytes(path) for path in old)))
    every = {(b"old", b"old"), (b"old", b"new"), (b"new", b"old"), (b"new", b"new")}
    assert {tuple(pair) for at, *pair in found if at == 0} == {(b"old", b"old")}
    assert {tuple(pair) for at, *pair in found if at == 2} == every
    assert {tuple(pair) for at, *pair in found if at == 3} == {(b"new", b"new")}


def test_a_write_that_cannot_be_undone_closes_the_file_for_more(there):
    there.place.fail(["pwritev", "ftruncate"], errno.ENOSPC)
    with pytest.raises(DiskError) as raised:
        there.file.append(b"lost" * 100)
    assert (raised.value.undone, raised.value.size) == (False, 400)
    there.place.heal()
    with pytest.raises(DiskError, match=r"(accepts|takes) no writes") as raised:
        there.file.append(b"more")
    assert not raised.value.undone
    assert (there.file.size, there.file.read(0, 10)) == (10, CONTENT)
    assert there.disk.open(there.path).size >= 10  # opened again, what is really there can be looked at


@pytest.mark.parametrize("count", [1023, 1024, 1025, 5000])
def test_an_append_takes_any_number_of_buffers(there, count):
    buffers = [str(number).encode() for number in range(count)]
    buffers[7] = b""
    assert there.file.append(*buffers) == len(CONTENT)
    assert there.file.read(len(CONTENT), 1 << 20) == b"".join(buffers)
    assert there.file.size == there.disk.size(there.path)


@pytest.mark.parametrize("seed", range(20))
def test_writes_and_reads_that_fall_short_are_continued(tmp_path, monkeypatch, seed):
    place, chance = Local(tmp_path, monkeypatch), random.Random(seed)

    def some(fd, buffers, position):
        joined = b"".join(buffers)
        return os.pwrite(fd, joined[: chance.randint(1, max(1, len(joined)))], position)

    place.calls.instead = {
        "pwritev": some,
        "pread": lambda fd, size, position: os.pread(fd, chance.randint(1, size), position),
        "read": lambda fd, size: os.read(fd, chance.randint(1, size)),
        "write": lambda fd, content: os.write(fd, content[: chance.randint(1, len(content))]),
    }
    file = place.disk.open(tmp_path / "f", create=True)
    written = b""
    for _ in range(5):
        buffers = [chance.randbytes(chance.choice((0, 1, 9, 700))) for _ in range(chance.randint(1, 30))]
        assert file.append(*buffers) == len(written)
        written += b"".join(buffers)
    assert file.read(0, len(written) + 9) == place.disk.read_bytes(tmp_path / "f") == written
    place.disk.write_atomic(tmp_path / "g", written)
    assert place.disk.read_bytes(tmp_path / "g") == written


def test_a_disk_that_takes_no_more_bytes_and_gives_no_reason_is_an_error(tmp_path, monkeypatch):
    place = Local(tmp_path, monkeypatch)
    file = place.disk.open(tmp_path / "f", create=True)
    place.calls.instead = {"pwritev": lambda *_: 0}
    with pytest.raises(DiskError, match="EIO"):
        file.append(b"abc")
    assert place.disk.size(tmp_path / "f") == 0


MISSING = {
    "open": lambda disk, path: disk.open(path),
    "create": lambda disk, path: disk.open(path / "x", create=True),
    "size": lambda disk, path: disk.size(path),
    "read_bytes": lambda disk, path: disk.read_bytes(path),
    "write_atomic": lambda disk, path: disk.write_atomic(path / "x", b""),
    "write_together": lambda disk, path: disk.write_together({path / "x": b"", path / "y": b""}),
    "write_unsynced": lambda disk, path: disk.write_unsynced(path / "x", b""),
    "list_dir": lambda disk, path: disk.list_dir(path),
    "rename": lambda disk, path: disk.rename(path, path.with_name("other")),
    "rename to": lambda disk, path: disk.rename(path.with_name("f"), path / "x"),
    "sync_dir": lambda disk, path: disk.sync_dir(path),
    "allocate": lambda disk, path: disk.allocate(path / "x", 1),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_not_found(there, name):
    with pytest.raises(FileNotFoundError):
        MISSING[name](there.disk, there.directory / "missing")
    assert there.disk.list_dir(there.directory) == ["f"]


def test_a_directory_that_holds_another_one_keeps_its_files(there):
    there.disk.make_dir(there.directory / "e")
    with pytest.raises(DiskError):
        there.disk.remove_dir(there.directory)
    assert there.disk.list_dir(there.directory) == ["e", "f"]


def test_a_symbolic_link_is_not_followed_when_a_directory_is_removed(tmp_path):
    """A simulated disk has none."""
    disk, elsewhere = LocalDisk(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").write_bytes(CONTENT)
    (tmp_path / "link").symlink_to(elsewhere)
    with pytest.raises(DiskError) as raised:
        disk.remove_dir(tmp_path / "link")
    assert raised.value.number == errno.ENOTDIR
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to(elsewhere)
    disk.remove_dir(tmp_path / "d")
    assert not (tmp_path / "d").exists()
    assert (elsewhere / "f").read_bytes() == CONTENT


WRITING = {
    "create": lambda disk, path: disk.open(path.with_name("new"), create=True),
    "write_atomic": lambda disk, path: disk.write_atomic(path, b""),
    "write_together": lambda disk, path: disk.write_together({path: b""}),
    "write_unsynced": lambda disk, path: disk.write_unsynced(path, b""),
    "make_dir": lambda disk, path: disk.make_dir(path.with_name("d")),
    "rename": lambda disk, path: disk.rename(path, path.with_name("g")),
    "remove": lambda disk, path: disk.remove(path),
    "remove_dir": lambda disk, path: disk.remove_dir(path.parent),
    "sync_dir": lambda disk, path: disk.sync_dir(path.parent),
    "allocate": lambda disk, path: disk.allocate(path, 1),
    "append": lambda disk, path: disk.open(path).append(b"x"),
    "truncate": lambda disk, path: disk.open(path).truncate(0),
}


@pytest.mark.parametrize("name", WRITING)
def test_a_disk_that_is_opened_to_be_read_changes_nothing(tmp_path, name):
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    with pytest.raises(DiskError):
        WRITING[name](LocalDisk(read_only=True), path)
    assert [file.name for file in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == CONTENT


def test_a_file_that_is_opened_to_be_read_asks_for_no_right_to_write(tmp_path, monkeypatch):
    place, flags = Local(tmp_path, monkeypatch), []
    (tmp_path / "f").write_bytes(CONTENT)

    def opened(path, asked, *mode):
        flags.append(asked)
        return os.open(path, asked, *mode)

    place.calls.instead = {"open": opened}
    file = LocalDisk(read_only=True).open(tmp_path / "f")
    assert (file.size, file.read(2, 3), bytes(file.view(0, 4))) == (10, CONTENT[2:5], CONTENT[:4])
    assert [asked & os.O_ACCMODE for asked in flags] == [os.O_RDONLY]


@pytest.mark.parametrize("below", ["", "x", "x/y"])
def test_no_directory_is_made_in_the_place_of_a_link_to_nothing(tmp_path, below):
    """A simulated disk has no links."""
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DiskError, match="link is a symbolic link to nothing") as raised:
        LocalDisk().make_dir(tmp_path / "link" / below)
    assert raised.value.number == errno.ENOTDIR
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_removing_what_is_missing_is_no_error(there):
    there.disk.remove(there.directory / "missing")
    there.disk.remove(there.directory / "missing" / "deeper")
    there.disk.remove_dir(there.directory / "missing")
    assert not there.disk.exists(there.directory / "missing")
    assert not there.disk.is_dir(there.path)


WRONG_KIND = {
    "open a directory": (lambda on: on.disk.open(on.directory), errno.EISDIR),
    "read a directory": (lambda on: on.disk.read_bytes(on.directory), errno.EISDIR),
    "replace a directory": (lambda on: on.disk.write_atomic(on.directory, b""), errno.EISDIR),
    "replace a directory with a file beside it": (
        lambda on: on.disk.write_together({on.directory / "e": b"", on.directory / "h": b""}),
        errno.EISDIR,
    ),
    "allocate a directory": (lambda on: on.disk.allocate(on.directory, 9), errno.EISDIR),
    "remove a directory": (lambda on: on.disk.remove(on.directory), errno.EISDIR),
    "list a file": (lambda on: on.disk.list_dir(on.path), errno.ENOTDIR),
    "sync a file's names": (lambda on: on.disk.sync_dir(on.path), errno.ENOTDIR),
    "remove a directory that holds one": (lambda on: on.disk.remove_dir(on.directory / "g"), errno.ENOTEMPTY),
    "remove a file as a directory": (lambda on: on.disk.remove_dir(on.path), errno.ENOTDIR),
    "make a directory of a file": (lambda on: on.disk.make_dir(on.path), errno.ENOTDIR),
    "make a directory in a file": (lambda on: on.disk.make_dir(on.path / "x"), errno.ENOTDIR),
    "create in a file": (lambda on: on.disk.open(on.path / "x", create=True), errno.ENOTDIR),
    "write in a file": (lambda on: on.disk.write_atomic(on.path / "x", b""), errno.ENOTDIR),
    "remove in a file": (lambda on: on.disk.remove(on.path / "x"), errno.ENOTDIR),
    "create too long a name": (
        lambda on: on.disk.open(on.directory / ("n" * 256), create=True),
        errno.ENAMETOOLONG,
    ),
    "write with no room for .tmp": (
        lambda on: on.disk.write_atomic(on.directory / ("n" * 252), b""),
        errno.ENAMETOOLONG,
    ),
    "rename a file over a directory": (
        lambda on: on.disk.rename(on.path, on.directory / "e"),
        errno.EISDIR,
    ),
    "rename a file over its own directory": (
        lambda on: on.disk.rename(on.path, on.directory),
        errno.ENOTEMPTY,
    ),
    "rename a directory over a file": (
        lambda on: on.disk.rename(on.directory / "e", on.path),
        errno.ENOTDIR,
    ),
    "rename a directory over a full one": (
        lambda on: on.disk.rename(on.directory / "e", on.directory / "g"),
        errno.ENOTEMPTY,
    ),
    "rename a directory into itself": (
        lambda on: on.disk.rename(on.directory / "e", on.directory / "e" / "x"),
        errno.EINVAL,
    ),
    "read before the beginning": (lambda on: on.file.read(-1, 5), errno.EINVAL),
    "truncate before the beginning": (lambda on: on.file.truncate(-1), errno.EINVAL),
}


@pytest.mark.parametrize("name", WRONG_KIND)
def test_what_a_real_disk_rejects_both_reject_alike(there, name):
    there.disk.make_dir(there.directory / "e")
    there.disk.make_dir(there.directory / "g" / "full")
    call, number = WRONG_KIND[name]
    with pytest.raises(DiskError) as raised:
        call(there)
    assert raised.value.number == number, raised.value
    assert there.disk.list_dir(there.directory) == ["e", "f", "g"]
    assert there.disk.read_bytes(there.path) == CONTENT


CLOSED = {
    "append": lambda file: file.append(b"x"),
    "read": lambda file: file.read(0, 1),
    "view": lambda file: file.view(0, 1),
    "truncate": lambda file: file.truncate(0),
    "sync": lambda file: file.sync(),
}


@pytest.mark.parametrize("name", CLOSED)
def test_a_closed_file_takes_no_calls(there, name):
    view = there.file.view(0, 4)
    there.file.close()
    there.file.close()
    with pytest.raises(DiskError) as raised:
        CLOSED[name](there.file)
    assert raised.value.number == errno.EBADF
    assert bytes(view) == CONTENT[:4]
    assert there.disk.read_bytes(there.path) == CONTENT


def test_few_bytes_are_copied_and_many_are_mapped(tmp_path):
    """A map takes a descriptor of the process."""
    (tmp_path / "f").write_bytes(random.Random(1).randbytes(3 * COPIED_SIZE_MAX))
    content = (tmp_path / "f").read_bytes()
    file = LocalDisk().open(tmp_path / "f")
    for position, size in [(0, 1), (5, COPIED_SIZE_MAX), (2 * COPIED_SIZE_MAX, COPIED_SIZE_MAX)]:
        view = file.view(position, size)
        assert (view, isinstance(view.obj, mmap.mmap)) == (content[position : position + size], False)
    large = file.view(5, COPIED_SIZE_MAX + 1)
    assert (large, isinstance(large.obj, mmap.mmap)) == (content[5 : 6 + COPIED_SIZE_MAX], True)
    assert isinstance(file.view(7, 1).obj, mmap.mmap)  # there is a map already


def test_a_view_of_a_few_bytes_is_refused_where_the_file_has_become_shorter(tmp_path):
    (tmp_path / "f").write_bytes(CONTENT)
    file = LocalDisk().open(tmp_path / "f")
    os.truncate(tmp_path / "f", 4)
    with pytest.raises(DiskError, match="the file has become shorter") as raised:
        file.view(2, 3)
    assert raised.value.number == errno.EIO


def test_a_file_that_was_renamed_or_removed_is_still_the_same_open_file(there):
    there.disk.rename(there.path, there.directory / "g")
    there.file.append(b"ab")
    assert there.disk.read_bytes(there.directory / "g") == CONTENT + b"ab"
    there.disk.remove(there.directory / "g")
    there.file.append(b"cd")
    assert there.file.read(8, 9) == b"89abcd"
    there.file.sync()


def test_an_allocated_file_takes_room_and_is_zeros(there):
    def taken():
        """How much less room the disk has when the file is allocated. Other programs free and take room, too."""
        there.disk.allocate(there.directory / "r", 0)
        free = there.disk.free_size(there.directory)
        there.disk.allocate(there.directory / "r", 3 << 20)
        return free - there.disk.free_size(there.directory)

    assert any(taken() >= 0 for _ in range(100))
    assert there.disk.size(there.directory / "r") == 3 << 20
    assert not any(there.disk.read_bytes(there.directory / "r"))
    there.disk.allocate(there.directory / "r", 0)
    assert there.disk.size(there.directory / "r") == 0


def test_a_file_is_replaced_by_pieces(there):
    there.disk.write_atomic(there.path, InPieces(b"some ", b"", b"new"))
    assert there.disk.read_bytes(there.path) == b"some new"
    assert there.disk.list_dir(there.directory) == ["f"]
    there.disk.write_atomic(there.path, InPieces())
    assert there.disk.read_bytes(there.path) == b""


def test_a_file_written_unsynced_is_replaced_as_a_whole(there):
    there.disk.write_unsynced(there.path, b"new")
    assert there.disk.read_bytes(there.path) == b"new"
    assert there.disk.list_dir(there.directory) == ["f"]
    assert there.file.read(0, 99) == CONTENT  # of the file that was replaced


@pytest.mark.parametrize("name", ["f", "big"])
def test_a_failed_replacement_leaves_no_file_beside(there, name):
    there.place.fail(["write"], errno.ENOSPC)
    with pytest.raises(DiskError):
        there.disk.write_atomic(there.directory / name, b"x" * 9000)
    there.place.heal()
    assert there.disk.list_dir(there.directory) == ["f"]


def test_a_thread_asks_for_the_free_space_while_another_opens_files(there):
    """As a flush in a thread does, beside the event loop."""
    there.disk.capacity = 1 << 20  # of the simulated disk
    paths = [there.directory / f"{number}" for number in range(200)]
    opened = [there.disk.open(path, create=True) for path in paths]

    def open_again():
        opened.extend(there.disk.open(path) for path in paths * 4)

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as threads:
            opening = threads.submit(open_again)
            while not opening.done():
                assert there.disk.free_size(there.directory) > 0
        opening.result()
    finally:
        sys.setswitchinterval(interval_s)
        for file in opened:
            file.close()
