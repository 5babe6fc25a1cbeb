"""The interface through which the parts of a partition use the partition."""

from collections.abc import Callable
from typing import Protocol

from stablelog.log.model import Isolation, LogConfig
from stablelog.log.usability import Usability
from stablelog.log.view import View, ViewedLog
from stablelog.log.writer import LogWriter


class OpenLog(ViewedLog, Protocol):
    """The attributes of an open log that its parts read. `Partition` has them, and only `Partition` sets them.

    A part holds a weak reference to the partition (`weakref.proxy`), so that the garbage collector is not needed to free
    the two (`broker.loop.garbage`).
    """

    config: LogConfig
    leader_epoch: int
    usability: Usability
    view: View | None
    log: LogWriter

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that a read-committed reader sees, exclusive."""

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end of the records that a reader of this isolation level sees, exclusive."""

    def visible_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read."""

    def move_start(self, start_offset: int) -> None:
        """Move the log start offset. The new offset is durable on return."""

    def reload(self, end_offset: int, cut: Callable[[], None]) -> None:
        """Let `cut` truncate the log files to `end_offset`, and recover the log from the files that remain."""
