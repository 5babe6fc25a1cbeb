"""Forks: each object of a client, and each broker of `serve`, belongs to the process that made it.

After a fork, the child process has a copy of the memory of its parent, with the same sockets. `after_fork` of each object
that `watch` was called for makes the copy usable in the child: it gives up what the parent still uses. What cannot be
shared, such as an open transaction, compares `this_process()` with the one that it has begun in.
"""

import os
import threading
from collections.abc import Iterator
from typing import Final, Protocol
from weakref import ref

from stablelog.errors import UsageError


class ForkAware(Protocol):
    """An object that gives up in a forked process what belongs to the parent process."""

    def after_fork(self) -> None:
        """Give up connections, locks and threads of the parent process. Never waits, and changes nothing for it."""


class Process:
    """A process that uses the client; the identity of the object counts.

    Attributes:
        id: the process id.
    """

    def __init__(self) -> None:
        self.id = os.getpid()


PRUNE_MIN: Final = 64


class ForkWatch:
    """Weak references to the objects that are to be told of a fork.

    Their deaths call no function: Python drops an exception that a signal handler raises in one, such as
    KeyboardInterrupt. The references to dead objects are removed when there are twice as many as after the last time.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, because a signal handler may begin a transaction
        self._references: list[ref[ForkAware]] = []
        self._count_max = PRUNE_MIN

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[ForkAware]:
        for one in self._references:
            forked = one()
            if forked is not None:
                yield forked

    def add(self, forked: ForkAware) -> None:
        """Tell this object of forks, as long as it exists."""
        with self._lock:
            self._references.append(ref(forked))
            count = len(self._references)
            if count > self._count_max:
                # References that a signal handler adds meanwhile are behind these, and stay.
                self._references[:count] = [one for one in self._references[:count] if one() is not None]
                self._count_max = 2 * len(self._references) + PRUNE_MIN

    def after_fork(self) -> None:
        """Tell the objects, in the forked process."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        for forked in self:
            forked.after_fork()


watched: Final = ForkWatch()
_current = [Process()]


def watch(forked: ForkAware) -> None:
    """Call `after_fork` of this object in each process that is forked from this one, as long as the object exists."""
    watched.add(forked)


def this_process() -> Process:
    """Return the object that stands for this process."""
    return _current[0]


def check_process(owner: Process, what: str) -> None:
    """Check that this process is the one that has begun a transaction or a reader (`what`).

    Raises:
        UsageError: this process was forked from that one.
    """
    if owner is not _current[0]:
        raise UsageError(
            f"{what} was begun in process {owner.id}, and this is process {os.getpid()}, which was forked from it: begin "
            "another one here"
        )


def _after_fork() -> None:
    _current[0] = Process()
    watched.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
