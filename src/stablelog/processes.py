"""Forks: each object of a client, and each broker of `serve`, belongs to the process that made it.

After a fork, the child process has a copy of the memory of its parent, with the same sockets. `watch_forks` registers
an object. In the child, its method `after_fork` makes the copy usable: it drops the connections and locks of the
parent. An object that cannot be used in a child, such as an open transaction, compares `this_process()` with the
process in which it began.
"""

import os
import threading
from collections.abc import Iterator
from typing import Final, Protocol
from weakref import ref

from stablelog.errors import UsageError


class ForkAware(Protocol):
    """An object whose copy in a forked process must be told of the fork, so that it can drop the connections, locks and
    threads of the parent process.
    """

    def after_fork(self) -> None:
        """In a forked process, drop the connections, locks and threads that this copy of the object has of the parent
        process. The method never waits, and changes nothing in the parent process.
        """


class Process:
    """Stands for one process, by its identity: after a fork, `this_process()` returns another object in the child
    process.

    Attributes:
        id: the process id of the operating system.
    """

    def __init__(self) -> None:
        self.id = os.getpid()


PRUNE_MIN: Final = 64


class ForkWatch:
    """The objects whose `after_fork` is called in a forked process. The references to them are weak: they do not keep
    an object alive.

    The references have no callbacks for the death of an object, because Python drops an exception that a signal handler
    raises in such a callback, such as KeyboardInterrupt. Instead, references to dead objects are removed when the list
    has doubled since the last removal.
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

    def add_object(self, forked: ForkAware) -> None:
        """Add an object whose `after_fork` is called in a forked process as long as the object exists."""
        with self._lock:
            self._references.append(ref(forked))
            count = len(self._references)
            if count > self._count_max:
                # References that a signal handler adds meanwhile are behind these, and stay.
                self._references[:count] = [one for one in self._references[:count] if one() is not None]
                self._count_max = 2 * len(self._references) + PRUNE_MIN

    def after_fork(self) -> None:
        """Call `after_fork` of all objects, in the forked process."""
        self._lock = threading.RLock()  # another thread of the parent may have held it
        for forked in self:
            forked.after_fork()


watched: Final = ForkWatch()
_current = [Process()]


def watch_forks(forked: ForkAware) -> None:
    """Register an object: its `after_fork` is called in each process that is forked from this one, as long as the
    object exists.
    """
    watched.add_object(forked)


def this_process() -> Process:
    """Return the object that stands for this process."""
    return _current[0]


def check_process(owner: Process, what: str) -> None:
    """Check that an object, such as a transaction or a reader, was begun in this process, and not in the process from
    which this one was forked.

    Args:
        owner: what `this_process()` returned when the object was begun.
        what: names the object in the message of the error.

    Raises:
        UsageError: it was begun in another process.
    """
    if owner is not _current[0]:
        raise UsageError(
            f"{what} cannot be used in process {os.getpid()}: it was begun in process {owner.id}, "
            "from which this process was forked. Begin another one here"
        )


def _after_fork() -> None:
    _current[0] = Process()
    watched.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
