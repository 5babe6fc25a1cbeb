"""The interface of a partition for its own parts, such as `log_compaction` and `record_deletion`."""

from collections.abc import Callable
from typing import Protocol

from stablelog.log.availability import Availability
from stablelog.log.model import Isolation, LogConfig
from stablelog.log.view import View, ViewedLog
from stablelog.log.writer import LogWriter


class OpenLog(ViewedLog, Protocol):
    """The attributes of an open partition that its parts use. `Partition` implements this interface, and only
    `Partition` sets the attributes.

    A part holds a weak reference (`weakref.proxy`) to the partition. So the two are in no reference cycle, and are
    freed without the garbage collector (`broker.loop.garbage`).
    """

    config: LogConfig
    leader_epoch: int
    availability: Availability
    view: View | None
    log: LogWriter

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that a read-committed reader sees, exclusive. In a commit-ordered partition, it is a
        position in commit order, which such a reader sees as the offset.
        """

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end of the offsets that a reader of this isolation level may read, exclusive."""

    def visible_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read."""

    def move_start(self, start_offset: int) -> None:
        """Move the log start offset forward. The new offset is durable when this method returns."""

    def reload(self, end_offset: int, cut: Callable[[], None]) -> None:
        """Close the files of the log, call `cut`, which truncates the log files to `end_offset`, and load the log again
        by a recovery of the files that remain.
        """
