"""The interface between a log and a view: the log in another order, for its read-committed readers.

The log knows neither the order nor the files of a view. Commit order (`views.commit_ordered`) is the one view.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from stablelog.errors import DiskError
from stablelog.log.files.listing import Listing
from stablelog.log.model import Slice
from stablelog.log.read import Lookup
from stablelog.log.recovery import Known
from stablelog.log.segments.segment import Segment

Progress = Callable[[int, int], None]


class ViewedLog(Protocol):
    """The log, as a view sees it. `Partition` is one."""

    topic: str
    index: int
    directory: Path
    start_offset: int
    high_watermark: int

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""

    @property
    def size(self) -> int:
        """Bytes of all log files."""

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""


class View(Protocol):
    """The view of an open log. Its positions are offsets of the log."""

    @property
    def failure(self) -> DiskError | None:
        """Why a file of the view is not written yet; None if all are."""

    @property
    def start_offset(self) -> int:
        """The first position that can be read."""

    @property
    def end_offset(self) -> int:
        """The position after the last one that can be read. It never moves back."""

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches in the order of the view, as `Partition.read` does in the order of the log."""

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position at a time or later, in steps."""

    def look_up_newest(self) -> Lookup:
        """Find the first position with the greatest time, in steps."""

    def advance(self) -> None:
        """Take in what is durable in the log."""

    def whole_from(self, position: int) -> int:
        """The first position from `position` on at which no transaction is cut."""

    def begin_at(self, start_offset: int) -> None:
        """Begin at a position, which `Order.write_start` has recorded."""

    def first_needed_offset(self) -> int:
        """The first offset of the log that the view shows, or may show yet."""

    def open_record_counts(self) -> Mapping[int, int]:
        """How many records the open transactions hold, by producer id."""

    def forget_deleted(self) -> None:
        """Drop what the view knows of segments that the log has deleted."""

    def close(self) -> None:
        """Close every file."""


class Order(Protocol):
    """Makes the view of a log, and records where it begins. A partition gets its order when it is made."""

    def check_formats(self, listing: Listing) -> None:
        """Check the versions of the view's files, before the log is recovered. Raises NewerFormat."""

    def load(self, log: ViewedLog, known: Known, progress: Progress | None) -> View:
        """Make the view of a log that was recovered.

        Raises:
            Corrupt: the record of where the view begins is missing or damaged, or lies past the log's end.
            DiskError: the disk failed.
        """

    def write_start(self, log: ViewedLog, start_offset: int) -> None:
        """Record where the view begins. It is durable on return."""
