"""The interface between a log and its view: the same records in another order, for read-committed readers.

The log knows neither the order nor the files of the view. There is one kind of view, commit order
(`commit_order.opening`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from stablelog.errors import DiskError
from stablelog.log.files.listing import Listing
from stablelog.log.files.restored import Restored
from stablelog.log.model import Slice
from stablelog.log.recovery import Known
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.search.times import Lookup
from stablelog.log.segments.segment import Segment

Progress = Callable[[int, int], None]


class ViewedLog(Protocol):
    """The attributes of a log that its view reads. `Partition` has them."""

    topic: str
    index: int
    directory: Path
    start_offset: int
    high_watermark: int
    remote: RemoteTier | None
    restored: Restored | None

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""

    def segments(self) -> list[Segment]:
        """The segments on the local disk, oldest first."""


class View(Protocol):
    """The view of an open log: its records in another order. Each record has a *position* in the view, which is one of
    the offsets of the log.
    """

    @property
    def failure(self) -> DiskError | None:
        """The error of a failed write to a file of the view; None if all its files are written."""

    @property
    def start_offset(self) -> int:
        """The first position that can be read."""

    @property
    def end_offset(self) -> int:
        """The end of the positions that can be read, exclusive. It never moves back."""

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from a position on, in the order of the view: at most `size_max` bytes, but one batch of
        any size if `at_least_one`.
        """

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position with a commit at this time or later. A record outside transactions counts with its
        own timestamp. The returned lookup runs in steps; its result is None if there is no such position.
        """

    def look_up_newest(self) -> Lookup:
        """Find the first position of the latest commit. The returned lookup runs in steps; its result is None if the
        view is empty.
        """

    def advance(self) -> None:
        """Extend the view over the batches of the log that have become durable."""

    def whole_from(self, position: int) -> int:
        """Return the first position, from `position` on, that is not in the middle of a transaction."""

    def move_start(self, start_offset: int) -> None:
        """Let the view begin at a position, after `Order.write_start` has recorded it."""

    def first_offset_of(self, end_offset: int) -> int:
        """Return the least log offset at which a transaction begins that is open, or whose marker is at or after
        `end_offset`. Return `end_offset` if no such transaction begins before it.
        """

    def first_needed_offset(self) -> int:
        """Return the least log offset at which a transaction begins that the view contains, or that is open and may
        commit.
        """

    def first_whole_position(self, log_start: int) -> int:
        """Return the first position, at or after the log offset `log_start`, from which on every transaction has all
        its records at or after `log_start`.
        """

    def open_record_counts(self) -> Mapping[int, int]:
        """Return the number of records of each open transaction, by producer id."""

    def forget_deleted(self) -> None:
        """Remove from memory what the view knows of segments that the log has deleted."""

    def close(self) -> None:
        """Close every file."""


class Order(Protocol):
    """The order in which read-committed readers get the records of a partition. It makes the view of a log, and records
    where the view begins. The order of a partition never changes.
    """

    def check_formats(self, listing: Listing) -> None:
        """Check the format versions of the view's files before the recovery of the log. Raises UnknownFormatError."""

    def load_view(self, log: ViewedLog, known: Known, progress: Progress | None) -> View:
        """Make the view of a log after the log's recovery.

        Raises:
            DamageError: the file that records the start of the view is missing or damaged, or names an offset after the
                log's end.
            DiskError: the disk failed.
        """

    def write_start(self, log: ViewedLog, start_offset: int) -> None:
        """Record the position where the view begins. The record is durable on return."""

    def record_deletion(self, log: ViewedLog, view: View, base_offset: int) -> None:
        """Record what the view must know of the segments before a base offset, before they are deleted. The record is
        durable on return.
        """
