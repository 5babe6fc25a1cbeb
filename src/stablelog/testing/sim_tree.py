"""The directories and files of a simulated disk: their present names and bytes, the durable ones, and the ones that a
crash leaves.
"""

import random
from dataclasses import dataclass, field

PAGE_SIZE = 512


@dataclass(slots=True, eq=False)
class Inode:
    """A file of a simulated disk: its present bytes, and its durable bytes, those of its last sync, which a crash
    cannot change.
    """

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""

    def after_crash(self, chance: random.Random) -> bytes:
        """Return the bytes of the file after a crash: the durable bytes, and a random subset of the pages that were
        written since the last sync. Each of these pages may be cut off at any byte. The random generator `chance`
        chooses.
        """
        durable, content = self.durable, bytes(self.content)
        if content[: len(durable)] != durable:
            # The file was truncated without a sync, so the crash may undo the truncation.
            return content if chance.random() < 0.5 else durable
        size = chance.choice((len(durable), len(content), chance.randint(len(durable), len(content))))
        left = bytearray(content[:size])
        for page in range(len(durable), size, PAGE_SIZE):
            if chance.random() < 0.3:
                lost = slice(page, min(page + PAGE_SIZE, size))
                left[lost] = bytes(lost.stop - lost.start)
        return bytes(left)


@dataclass(slots=True, eq=False)
class Directory:
    """A directory of a simulated disk: the names in it now, and its durable names, those of its last sync. A crash may
    keep or undo each difference between the two.
    """

    names: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)


Node = Inode | Directory


class Survivors:
    """Makes the directory tree after a power failure: a random one of the states that the contract of
    `stablelog.env.disk` allows.

    Args:
        chance: the random generator that decides which data survives.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._made: dict[
            int, Node
        ] = {}  # the copies of surviving files and directories, by the id() of the original

    def tree_after_crash(self, root: Directory, renamed: list[tuple[Directory, str, Node]]) -> Directory:
        """Return the directory tree after a power failure.

        Args:
            root: the root of the tree.
            renamed: each rename since the last sync of its target directory, as (target directory, new name, the
                renamed file or directory). Each of these keeps at least one of its two names.
        """
        after = self._directory(root)
        for directory, name, node in renamed:
            home = self._made.get(id(directory))
            if (
                id(node) not in self._made
                and isinstance(home, Directory)
                and directory.names.get(name) is node
            ):
                home.names[name] = home.durable[name] = self._node(node)
        return after

    def _directory(self, directory: Directory) -> Directory:
        after = Directory()
        self._made[id(directory)] = after
        for name in sorted(directory.names.keys() | directory.durable.keys()):
            now, durable = directory.names.get(name), directory.durable.get(name)
            kept = now if now is durable or self._chance.random() < 0.5 else durable
            if kept is None or (isinstance(kept, Directory) and id(kept) in self._made):
                continue  # the name is lost, or a renamed directory survives under its other name
            after.names[name] = after.durable[name] = self._node(kept)
        return after

    def _node(self, node: Node) -> Node:
        if isinstance(node, Directory):
            return self._directory(node)
        content = node.after_crash(self._chance)
        self._made[id(node)] = inode = Inode(bytearray(content), content)
        return inode
