"""Forks: each object of a client belongs to the process that made it.

After a fork, the child process has a copy of the memory of its parent, with the same sockets. `after_fork` of each object
that `watch` was called for makes the copy usable in the child: it gives up what the parent still uses. What cannot be
shared, such as an open transaction, compares `this_process()` with the one that it has begun in.
"""

import os
from typing import Final, Protocol
from weakref import WeakSet

from stablelog.errors import UsageError


class Forked(Protocol):
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


_watched: Final[WeakSet[Forked]] = WeakSet()
_current = [Process()]


def watch(forked: Forked) -> None:
    """Call `after_fork` of this object in each process that is forked from this one, as long as the object exists."""
    _watched.add(forked)


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
    for forked in list(_watched):
        forked.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
