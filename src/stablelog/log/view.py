"""The interface between a log and its view. A view presents the log in another order to read-committed readers.

The log depends neither on the order nor on the files of a view. There is one view: commit order
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
    """The attributes of a log that a view reads. `Partition` has them."""

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
        """The segments, oldest first."""


class View(Protocol):
    """The view of an open log: its records in another order. Readers of the view see each record at a position, which
    is one of the offsets of the log.
    """

    @property
    def failure(self) -> DiskError | None:
        """The error because of which a file of the view could not be written; None if all files are written."""

    @property
    def start_offset(self) -> int:
        """The first position of the view that can be read."""

    @property
    def end_offset(self) -> int:
        """The position after the last one that can be read: the end of the view. It never moves back."""

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches in the order of the view, as `Partition.read` does in the order of the log."""

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position whose commit has the time `timestamp_ms` or a later one. For a record outside a
        transaction, its own timestamp counts. The lookup runs in steps.
        """

    def look_up_newest(self) -> Lookup:
        """Find the first position of the latest commit. The lookup runs in steps."""

    def advance(self) -> None:
        """Extend the view by the batches that have become durable in the log."""

    def whole_from(self, position: int) -> int:
        """Return the first position, from `position` on, that is not in the middle of a transaction."""

    def begin_at(self, start_offset: int) -> None:
        """Let the view begin at a position that `Order.write_start` has recorded."""

    def first_offset_of(self, end_offset: int) -> int:
        """Return the least offset of all records whose transaction is open or has its marker at or past `end_offset`.
        The result is at most `end_offset`.
        """

    def first_needed_offset(self) -> int:
        """Return the first offset of the log that the view contains, or will contain when an open transaction commits."""

    def first_whole_position(self, log_start: int) -> int:
        """Return the first position such that no transaction at it or at a later position has records before the offset
        `log_start` of the local log, and that is not less than this offset.
        """

    def open_record_counts(self) -> Mapping[int, int]:
        """Return how many records each open transaction has in the log, by producer id."""

    def forget_deleted(self) -> None:
        """Drop from memory the data about segments that the log has deleted."""

    def close(self) -> None:
        """Close every file."""


class Order(Protocol):
    """The order of a partition: makes the view of its log, and records where the view begins. The order cannot change
    after the partition is created.
    """

    def check_formats(self, listing: Listing) -> None:
        """Check the format versions of the view's files before the log is recovered. Raises UnknownFormatError."""

    def load(self, log: ViewedLog, known: Known, progress: Progress | None) -> View:
        """Make the view of a log after its recovery.

        Raises:
            DamageError: the file that records the start of the view is missing or damaged, or names an offset past the
                log's end.
            DiskError: the disk failed.
        """

    def write_start(self, log: ViewedLog, start_offset: int) -> None:
        """Record the position where the view begins. The record is durable on return."""

    def note_deletion(self, log: ViewedLog, view: View, base_offset: int) -> None:
        """Record what the view must know of the segments before a base offset, which will be deleted. The record is
        durable on return.
        """
