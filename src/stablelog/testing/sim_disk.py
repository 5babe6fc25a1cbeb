"""A disk in memory that loses, after a crash, whatever a real one may lose.

It keeps the promises of `stablelog.env.disk` and breaks everything else: bytes appended since a file's last sync
survive in any subset of its pages, torn at any byte; names made, renamed or removed since the directory's last sync
are there or not, each by itself, but a file that was renamed has one of its two names. What was synced is always there.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stablelog.env.disk import Buffer
from stablelog.errors import Unavailable

PAGE_SIZE = 512


class SimulatedCrash(BaseException):
    """The machine stops here. Not an Exception: nothing may handle it."""


@dataclass(slots=True, eq=False)
class _Inode:
    """A file's bytes: as they are, and as they are known to survive."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


class SimFile:
    """An open file of a SimDisk."""

    def __init__(self, disk: "SimDisk", inode: _Inode, path: Path) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return len(self._inode.content)

    def append(self, *buffers: Buffer) -> int:
        """Write at the end."""
        position = self.size
        joined = b"".join(buffers)
        self._disk.step(f"append {self._path.name}", torn=(self._inode, joined))
        self._inode.content += joined
        return position

    def read(self, position: int, size: int) -> bytes:
        """A copy of up to `size` bytes."""
        return bytes(self._inode.content[position : position + size])

    def view(self, position: int, size: int) -> memoryview:
        """The bytes; a copy here, which stays as it is."""
        assert position + size <= self.size
        return memoryview(self.read(position, size))

    def will_need(self, position: int, size: int) -> None:
        """Nothing to do: all of it is in memory."""

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        self._disk.step(f"truncate {self._path.name}")
        content = self._inode.content
        del content[size:]
        content.extend(bytes(size - len(content)))

    def sync(self) -> None:
        """Everything in the file survives from now on."""
        self._disk.step(f"sync {self._path.name}")
        self._inode.durable = bytes(self._inode.content)

    def close(self) -> None:
        """Nothing to do: what is in the file stays as it is."""


class SimDisk:
    """A file system in memory.

    Attributes:
        steps: operations that changed something, so far.
        crash_at: the operation at which the machine stops; None for never.
        fail_at: the operation that fails, as a full or broken disk would.
    """

    def __init__(self) -> None:
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._directories: set[Path] = {Path("/")}
        self._renamed: list[tuple[Path, _Inode]] = []  # to which names, since the directory's last sync
        self.steps = 0
        self.crash_at: int | None = None
        self.fail_at: int | None = None

    def step(self, what: str, torn: tuple[_Inode, bytes] | None = None) -> None:
        """Count an operation, and stop or fail if it is the one to do so."""
        self.steps += 1
        if self.steps == self.crash_at:
            if torn is not None:
                torn[0].content += torn[1]  # some of it may have reached the disk
            raise SimulatedCrash(what)
        if self.steps == self.fail_at:
            raise Unavailable(f"{what}: the simulated disk fails")

    def crash(self, chance: random.Random) -> "SimDisk":
        """The disk after the machine has lost power: a legal one of the many that it may be."""
        after = SimDisk()
        after._directories = set(self._directories)
        survivors: set[int] = set()
        for path in sorted(set(self._names) | set(self._durable_names)):
            now, durable = self._names.get(path), self._durable_names.get(path)
            kept = now if now is durable or chance.random() < 0.5 else durable
            if kept is not None:
                content = _after_crash(kept, chance)
                inode = _Inode(bytearray(content), content)
                after._names[path] = inode
                after._durable_names[path] = inode
                survivors.add(id(kept))
        for target, renamed in self._renamed:
            if id(renamed) not in survivors and self._names.get(target) is renamed:
                content = _after_crash(renamed, chance)
                after._names[target] = after._durable_names[target] = _Inode(bytearray(content), content)
        return after

    # -- the protocol ------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimFile:
        """Open for reading and appending."""
        if path not in self._names:
            if not create:
                raise FileNotFoundError(path)
            self.step(f"create {path.name}")
            self._names[path] = _Inode()
        return SimFile(self, self._names[path], path)

    def exists(self, path: Path) -> bool:
        """Whether a file or directory of this name is there."""
        return path in self._names or path in self._directories

    def is_dir(self, path: Path) -> bool:
        """Whether a directory of this name is there."""
        return path in self._directories

    def size(self, path: Path) -> int:
        """Bytes in a file."""
        return len(self._inode(path).content)

    def read_bytes(self, path: Path) -> bytes:
        """The whole file."""
        return bytes(self._inode(path).content)

    def _inode(self, path: Path) -> _Inode:
        if path not in self._names:
            raise FileNotFoundError(path)
        return self._names[path]

    def write_atomic(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole."""
        self.step(f"write {path.name}")
        inode = _Inode(bytearray(content), content)
        self._names[path] = inode
        self._durable_names[path] = inode

    def list_dir(self, path: Path) -> list[str]:
        """The names in a directory, sorted."""
        if path not in self._directories:
            raise FileNotFoundError(path)
        return sorted({child.name for child in _children((*self._names, *self._directories), path)})

    def make_dir(self, path: Path) -> None:
        """Make a directory and its parents."""
        while path not in self._directories:
            self._directories.add(path)
            path = path.parent

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file or directory."""
        self.step(f"rename {source.name}")
        if source in self._directories:
            self._rename_directory(source, target)
        else:
            inode = self._names[target] = self._names.pop(source)
            self._renamed.append((target, inode))

    def _rename_directory(self, source: Path, target: Path) -> None:
        self._directories.discard(source)
        self._directories.add(target)
        for names in (self._names, self._durable_names):
            for path in _children(list(names), source):  # threads may make files elsewhere meanwhile
                names[target / path.name] = names.pop(path)

    def remove(self, path: Path) -> None:
        """Remove a file; fine if it is gone."""
        if path in self._names:
            self.step(f"remove {path.name}")
            del self._names[path]

    def remove_dir(self, path: Path) -> None:
        """Remove a directory with all that is in it."""
        for names in (self._names, self._durable_names):
            for child in [child for child in list(names) if path in child.parents]:
                del names[child]
        self._directories -= {
            known for known in tuple(self._directories) if known == path or path in known.parents
        }

    def sync_dir(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self.step(f"sync directory {path.name}")
        # Copies first: threads may make files elsewhere meanwhile.
        self._renamed = [(target, inode) for target, inode in self._renamed if target.parent != path]
        for child in _children(list(self._durable_names), path):
            if child not in self._names:
                del self._durable_names[child]
        names = dict(self._names)
        self._durable_names |= {child: names[child] for child in _children(names, path)}


def _children(paths: Iterable[Path], directory: Path) -> list[Path]:
    """Those that lie in a directory itself. By their text, which each of them keeps: a disk is asked this all the time."""
    prefix = str(directory).rstrip("/") + "/"
    size = len(prefix)
    return [
        path
        for path in paths
        if (text := str(path)).startswith(prefix) and text.find("/", size) < 0 and text != prefix
    ]


def _after_crash(inode: _Inode, chance: random.Random) -> bytes:
    """What is left of a file: what was synced, and of the rest any pages, torn at any byte."""
    durable, content = inode.durable, bytes(inode.content)
    if content[: len(durable)] != durable:
        return content if chance.random() < 0.5 else durable  # it was truncated and not synced
    size = chance.choice((len(durable), len(content), chance.randint(len(durable), len(content))))
    left = bytearray(content[:size])
    for page in range(len(durable), size, PAGE_SIZE):
        if chance.random() < 0.3:
            lost = slice(page, min(page + PAGE_SIZE, size))
            left[lost] = bytes(lost.stop - lost.start)
    return bytes(left)
