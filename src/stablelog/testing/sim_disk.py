"""A simulated disk in memory. A simulated crash loses any data that a real disk may lose.

The disk guarantees what `stablelog.env.disk` promises of a disk (its contract), and nothing more. A crash keeps any
subset of the pages that were appended to a file since its last sync, and may cut a page off at any byte. It keeps or
undoes each creation, rename and removal of a name since the directory's last sync; a renamed file keeps at least one of
its two names. Synced data always survives. The disk rejects what a real disk rejects, with the same error numbers:
missing paths and wrong kinds of paths, long names, closed files, and data that does not fit into `capacity`, if that is
set.
"""

import errno
import random
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from weakref import WeakSet

from stablelog.env.disk import Buffer, Content, directory_of, pieces_of
from stablelog.errors import DiskError
from stablelog.testing.sim_faults import SimFaults
from stablelog.testing.sim_tree import Directory, Inode, Node, Survivors

NAME_SIZE_MAX = 255


class SimFile:
    """An open file of a SimDisk.

    Attributes:
        inode: the file's bytes, the present ones and the durable ones.
        path: the path with which the file was opened.
        is_closed: whether it was closed.
    """

    def __init__(self, disk: "SimDisk", inode: Inode, path: Path) -> None:
        self._disk = disk
        self.inode = inode
        self.path = path
        self._size = len(inode.content)
        self._failed: DiskError | None = None
        self.is_closed = False

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size

    def _call(self, what: str) -> None:
        if self.is_closed:
            raise DiskError(f"{what} {self.path} failed", errno.EBADF)
        self._disk.call(what, self.path)

    def append(self, *buffers: Buffer) -> int:
        """Write the buffers at the end of the file. Return the position of their first byte in the file."""
        if self._failed is not None:
            raise DiskError(
                f"{self.path} takes no writes, because an earlier write failed",
                self._failed.number,
                undone=False,
            )
        joined = b"".join(buffers)
        content = self.inode.content
        try:
            self._call("writing")
            self._disk.check_space(len(joined), "writing", self.path)
            self._disk.step(f"append {self.path.name}", torn=(self.inode, joined), path=self.path)
        except DiskError as error:
            error.size = len(joined)
            if not self._disk.fails_late or self.is_closed:
                raise
            # Half of the bytes stay, because the truncation after the failed write fails, too.
            content[self._size :] = joined[: len(joined) // 2]
            self._failed = DiskError(
                f"writing {self.path} failed", error.number, undone=False, size=len(joined)
            )
            raise self._failed from error
        position = self._size
        content[position:] = joined
        self._size = position + len(joined)
        return position

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of at most `size` bytes, from `position` on; fewer at the end of the file."""
        self._call("reading")
        if position < 0 or size < 0:
            raise DiskError(f"reading {self.path} failed", errno.EINVAL)
        return bytes(self.inode.content[position : position + size])

    def view(self, position: int, size: int) -> memoryview:
        """Return a copy of `size` bytes from `position` on, as a memoryview."""
        assert position + size <= self.size
        if size == 0:
            return memoryview(b"")
        self._call("mapping")
        return memoryview(bytes(self.inode.content[position : position + size]))

    def will_need(self, position: int, size: int) -> None:
        """Do nothing. On a real disk this reads bytes ahead; here all bytes are in memory."""

    def populate(self, view: memoryview) -> bool:
        """Return True: the bytes of `view` are in memory, as always here. Or raise DiskError if the function `fault`
        that a test has set on the disk lets this call fail.
        """
        self._call("reading")
        return True

    def truncate(self, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it by zeros."""
        self._call("truncating")
        if size < 0:
            raise DiskError(f"truncating {self.path} to {size} bytes failed", errno.EINVAL)
        self._disk.check_space(max(0, size - len(self.inode.content)), "truncating", self.path)
        self._disk.step(f"truncate {self.path.name}", path=self.path)
        content = self.inode.content
        del content[size:]
        content.extend(bytes(size - len(content)))
        self._size = size

    def sync(self) -> None:
        """Make all bytes of the file durable."""
        self._call("syncing")
        with self._disk.effect(f"sync {self.path.name}", self.path):
            self.inode.durable = bytes(self.inode.content)

    def close(self) -> None:
        """Close the file. The memoryviews that `view` has returned stay readable."""
        self.is_closed = True
        self._disk.release_file(self)


class SimDisk(SimFaults):
    """A simulated file system in memory, which tests can crash, damage and let fail.

    Attributes:
        capacity: bytes that all files together may hold; None for no limit.
    """

    # A flush in a thread counts the files while the event loop opens others. All disks share the lock, which `deepcopy`
    # could not copy.
    _open_lock = threading.RLock()

    def __init__(self) -> None:
        super().__init__()
        self._root = Directory()
        # The renames since the directories were last synced.
        self._renamed: list[tuple[Directory, str, Node]] = []
        self._open: WeakSet[SimFile] = WeakSet()
        self.capacity: int | None = None

    def release_file(self, file: SimFile) -> None:
        """Record that a file was closed. If its name was removed while it was open, its space becomes free only now."""
        with self._open_lock:
            self._open.discard(file)

    def check_space(self, size: int, what: str, path: Path) -> None:
        """Raise DiskError with ENOSPC if the disk has no space for `size` more bytes."""
        if size and self.capacity is not None and size > self.free_size(Path("/")):
            raise DiskError(f"{what} {path} failed", errno.ENOSPC)

    # -- crash -------------------------------------------------------------------------------------------------

    def crash(self, chance: random.Random) -> "SimDisk":
        """Return the disk after a power failure: a random one of the states that `stablelog.env.disk` allows, in which
        data that was not synced may be missing. The random generator `chance` chooses it.
        """
        after = SimDisk()
        after.capacity = self.capacity
        after._root = Survivors(chance).tree_after_crash(self._root, self._renamed)
        return after

    # -- lookup ------------------------------------------------------------------------------------------------

    def _find(self, path: Path) -> Node | None:
        """Return the file or directory at a path; None if nothing exists there."""
        assert path.is_absolute(), path
        at: Node | None = self._root
        for name in path.parts[1:]:
            if not isinstance(at, Directory):
                return None
            at = at.names.get(name)
        return at

    def _home(self, path: Path, what: str) -> Directory:
        """Return the home of a path: its parent directory, which must exist. Nothing has to exist at the path itself.
        `what` names the operation in error messages.
        """
        above = path.parent
        while (home := self._find(above)) is None:
            above = above.parent
        if not isinstance(home, Directory):
            raise DiskError(f"{what} {path} failed", errno.ENOTDIR)
        if above != path.parent:
            raise FileNotFoundError(errno.ENOENT, "the directory is missing", str(path))
        if len(path.name.encode()) > NAME_SIZE_MAX:
            raise DiskError(f"{what} {path} failed", errno.ENAMETOOLONG)
        return home

    def _inode(self, path: Path, what: str) -> Inode:
        node = self._home(path, what).names.get(path.name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if isinstance(node, Directory):
            raise DiskError(f"{what} {path} failed", errno.EISDIR)
        return node

    def _directory(self, path: Path, what: str) -> Directory:
        node = self._find(path)
        if node is None:
            self._home(path, what)
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
        if not isinstance(node, Directory):
            raise DiskError(f"{what} {path} failed", errno.ENOTDIR)
        return node

    def files(self, path: Path = Path("/")) -> Iterator[Path]:
        """Yield the paths of all files under a directory, sorted."""
        return (found for found, _ in self._inodes(path))

    def _inodes(self, path: Path) -> Iterator[tuple[Path, Inode]]:
        yield from self._inodes_of(path, self._directory(path, "listing"))

    def _inodes_of(self, path: Path, directory: Directory) -> Iterator[tuple[Path, Inode]]:
        # Another thread may rename a directory meanwhile, so its entries are reached by the directory and not by its
        # path.
        for name, node in sorted(directory.names.items()):
            if isinstance(node, Directory):
                yield from self._inodes_of(path / name, node)
            else:
                yield path / name, node

    @property
    def open_files(self) -> list[SimFile]:
        """The files that are open, except those that Python has freed, because no object refers to them any more."""
        with self._open_lock:
            return list(self._open)

    # -- damage ------------------------------------------------------------------------------------------------

    def content(self, path: Path) -> bytearray:
        """Return the present bytes of a file. The caller may change them in place; a crash may lose the change until
        the file is synced.
        """
        return self._inode(path, "reading").content

    def durable(self, path: Path) -> bytes:
        """Return the durable bytes of a file: those of its last sync, which a crash cannot change."""
        return self._inode(path, "reading").durable

    def damage(self, path: Path, content: bytes) -> None:
        """Replace the durable bytes of a file, as if the disk had corrupted them."""
        inode = self._inode(path, "reading")
        inode.content[:] = content
        inode.durable = bytes(content)

    def lose(self, path: Path) -> None:
        """Remove a file so that it is missing after a crash, too, as if the disk had lost it."""
        home = self._home(path, "removing")
        home.names.pop(path.name, None)
        home.durable.pop(path.name, None)

    # -- the interface of env.disk -----------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        """Open a file for reading and appending, and return it. With `create`, a missing file is made first."""
        self.call("opening", path)
        home = self._home(path, "opening")
        if create and path.name not in home.names:
            self.step(f"create {path.name}", path=path)
            home.names[path.name] = Inode()
        file = SimFile(self, self._inode(path, "opening"), path)
        with self._open_lock:
            self._open.add(file)
        return file

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name exists."""
        self.call("looking for", path)
        return self._find(path) is not None

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name exists."""
        self.call("looking for", path)
        return isinstance(self._find(path), Directory)

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        self.call("looking at the size of", path)
        return len(self._inode(path, "looking at the size of").content)

    def read_bytes(self, path: Path) -> bytes:
        """Return the content of a file."""
        self.call("reading", path)
        return bytes(self._inode(path, "reading").content)

    def write_atomic(self, path: Path, content: Content, *, is_private: bool = False) -> None:
        """Replace the whole file. Durable on return. A simulated disk has no other users: `is_private` has no effect."""
        del is_private
        content = b"".join(pieces_of(content))
        home = self._replaceable(path, content)
        with self.effect(f"write {path.name}", path):
            home.names[path.name] = home.durable[path.name] = Inode(bytearray(content), bytes(content))

    def write_together(self, files: Mapping[Path, Content]) -> None:
        """Replace files of one directory. The contents become durable before the first rename, and the names after the
        last one.
        """
        directory = directory_of(files)
        contents = {path: b"".join(pieces_of(content)) for path, content in files.items()}
        size = sum(map(len, contents.values()))
        is_replaced = False
        try:
            homes = {path: self._replaceable(path, content) for path, content in contents.items()}
            self.check_space(size, "writing files of", directory)
            for path, home in homes.items():
                with self.effect(f"write {path.name}", path):
                    home.names[path.name] = Inode(bytearray(contents[path]), contents[path])
                is_replaced = True
            with self.effect(f"sync directory {directory.name}", directory):
                for path, home in homes.items():
                    home.durable[path.name] = home.names[path.name]
        except DiskError as error:
            error.size = size
            error.undone = error.undone and not is_replaced
            raise

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the whole file without a sync."""
        home = self._replaceable(path, content)
        with self.effect(f"write unsynced {path.name}", path):
            home.names[path.name] = Inode(bytearray(content))

    def _replaceable(self, path: Path, content: bytes) -> Directory:
        try:
            self.call("writing", path)
            home = self._home(path.with_name(path.name + ".tmp"), "writing")
            if isinstance(home.names.get(path.name), Directory):
                raise DiskError(f"writing {path} failed", errno.EISDIR)
            self.check_space(len(content), "writing", path)
        except DiskError as error:
            error.size = len(content)
            raise
        return home

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        self.call("listing", path)
        return sorted(self._directory(path, "listing").names)

    def make_dir(self, path: Path) -> None:
        """Make a directory and its parents."""
        self.call("making", path)
        node = self._find(path)
        if node is None:
            if path.parent != path:
                self.make_dir(path.parent)
            home = self._home(path, "making")
            with self.effect(f"make directory {path.name}", path):
                made = home.names.setdefault(path.name, Directory())
                home.durable[path.name] = made
        elif not isinstance(node, Directory):
            raise DiskError(f"making {path} failed", errno.ENOTDIR)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory."""
        self.call("renaming", source)
        home, node = self._home(source, "renaming"), self._find(source)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        aim, there = self._home(target, "renaming"), self._find(target)
        if there is node:
            return
        is_onto_directory = isinstance(there, Directory)
        for is_wrong, number in (
            (target in source.parents, errno.ENOTEMPTY),
            (is_onto_directory and not isinstance(node, Directory), errno.EISDIR),
            (isinstance(there, Inode) and isinstance(node, Directory), errno.ENOTDIR),
            (isinstance(there, Directory) and bool(there.names), errno.ENOTEMPTY),
            (source in target.parents, errno.EINVAL),
        ):
            if is_wrong:
                raise DiskError(f"renaming {source} failed", number)
        with self.effect(f"rename {source.name}", source):
            aim.names[target.name] = home.names.pop(source.name)
            self._renamed.append((aim, target.name, node))

    def remove(self, path: Path) -> None:
        """Remove a file; no error if it is missing."""
        self.call("removing", path)
        try:
            home = self._home(path, "removing")
        except FileNotFoundError:
            return
        node = home.names.get(path.name)
        if isinstance(node, Directory):
            raise DiskError(f"removing {path} failed", errno.EISDIR)
        if node is not None:
            with self.effect(f"remove {path.name}", path):
                home.names.pop(path.name, None)

    def remove_dir(self, path: Path) -> None:
        """Remove a directory with the files in it."""
        self.call("removing", path)
        node = self._find(path)
        if node is None:
            return
        names = self._directory(path, "removing").names
        if any(isinstance(child, Directory) for child in list(names.values())):
            raise DiskError(f"removing {path} failed", errno.ENOTEMPTY)
        for name in list(names):
            self.remove(path / name)
        with self.effect(f"remove directory {path.name}", path):
            self._home(path, "removing").names.pop(path.name, None)

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self.call("syncing the directory", path)
        directory = self._directory(path, "syncing the directory")
        with self.effect(f"sync directory {path.name}", path):
            # A rename between two directories is durable only when both directories are synced.
            self._renamed = [one for one in self._renamed if one[0] is not directory]
            directory.durable = dict(directory.names)

    def allocate(self, path: Path, size: int) -> None:
        """Make a file of this size, which takes space on the disk."""
        self.call("allocating", path)
        home = self._home(path, "allocating")
        if isinstance(home.names.get(path.name), Directory):
            raise DiskError(f"allocating {path} failed", errno.EISDIR)
        home.names.pop(path.name, None)
        self.check_space(size, "allocating", path)
        self.step(f"allocate {path.name}", path=path)
        home.names[path.name] = Inode(bytearray(size))

    def free_size(self, path: Path) -> int:
        """Return how many bytes may still be written to the disk."""
        self.call("looking at the free space of", path)
        self._directory(path, "looking at the free space of")
        if self.capacity is None:
            return 1 << 40
        inodes = {file.inode for file in self.open_files} | {inode for _, inode in self._inodes(Path("/"))}
        return max(0, self.capacity - sum(len(inode.content) for inode in inodes))
