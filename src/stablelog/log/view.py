"""The interface between a log and its view: its committed records in another order, for read-committed readers.

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
    """The attributes of a log that its view reads (the view is its committed records in the order of their commits).
    `Partition` has them.
    """

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
    """The view of an open log: its committed records in another order. Each record has a *position* in the view, which
    is one of the offsets of the log, and which readers see as the record's offset.
    """

    @property
    def failure(self) -> DiskError | None:
        """The failure of a write to a file that belongs only to the view (the committed records in another order); None
        if all these files are written. The log itself is not affected.
        """

    @property
    def start_offset(self) -> int:
        """The first position in the view (the committed records in another order) that can be read."""

    @property
    def end_offset(self) -> int:
        """The end of the positions in the view (the committed records in another order) that can be read, exclusive. It
        never moves back.
        """

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches in the order of the view, which has committed records only, from the position `start` on:
        at most `size_max` bytes, but one batch of any size if `at_least_one`. Readers see positions as offsets.
        """

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position in commit order, the order of the view, with a commit at this time or later. A record
        outside transactions has no commit; its own timestamp is compared. The caller runs the returned lookup in steps;
        its result is None if there is no such position.
        """

    def look_up_newest(self) -> Lookup:
        """Find the first position in commit order, the order of the view, whose commit has the latest time of all
        commits. The caller runs the returned lookup in steps; its result is None if the view is empty.
        """

    def advance(self) -> None:
        """Extend the view, the committed records in the order of their commits, over the batches of the log that have
        become durable.
        """

    def whole_from(self, position: int) -> int:
        """Return the first position in the view (the committed records in the order of their commits), from `position`
        on, that is not in the middle of a transaction: readers that begin there get whole transactions.
        """

    def move_start(self, start_offset: int) -> None:
        """Move the start of the view (the committed records in the order of their commits) forward to a position.
        `Order.write_start` must have recorded it on the disk before.
        """

    def first_offset_of(self, end_offset: int) -> int:
        """Return the first log offset of the transactions that are not over at `end_offset`: those that are open, and
        those whose marker is at or after it. Return `end_offset` if no such transaction begins before it.
        """

    def first_needed_offset(self) -> int:
        """Return the first log offset that is needed: the least one at which a transaction begins that the view (the
        committed records in the order of their commits) contains, or that is open and may commit. The log must keep the
        batches from there on.
        """

    def first_whole_position(self, log_start: int) -> int:
        """Return the first position in commit order, not less than the log offset `log_start`, from which on all
        transactions are whole after a deletion: all their records are at or after `log_start` in the log.
        """

    def open_record_counts(self) -> Mapping[int, int]:
        """Return the number of records of each open transaction, by producer id. The producer state of the log needs
        these numbers after a start.
        """

    def forget_deleted(self) -> None:
        """Remove from memory what the view (the committed records in the order of their commits) knows of segments that
        the log has deleted.
        """

    def close(self) -> None:
        """Close every file."""


class Order(Protocol):
    """The order in which read-committed readers get the records of a partition. It makes the view of a log, which has
    the committed records in this order, and records where the view begins. The order of a partition never changes.
    """

    def check_formats(self, listing: Listing) -> None:
        """Check, before the recovery of the log, that this release reads the versions of the files of its view (the
        committed records in this order). Raises UnknownFormatError if it does not.
        """

    def load_view(self, log: ViewedLog, known: Known, progress: Progress | None) -> View:
        """Make the view of a log (its committed records in this order) after the log's recovery. `known` is what the
        broker knew of the partition before. `progress` is called with (bytes done, bytes in all).

        Raises:
            DamageError: the file that records the start of the view is missing or damaged, or names an offset after the
                log's end.
            DiskError: the disk failed.
        """

    def write_start(self, log: ViewedLog, start_offset: int) -> None:
        """Record the position `start_offset`, from which on readers may read the view (the committed records in this
        order). The record is durable on return.
        """

    def record_deletion(self, log: ViewedLog, view: View, base_offset: int) -> None:
        """Record what the view (the committed records in this order) must know of the segments before `base_offset`
        after their deletion, such as the number of the last commit in them. The caller deletes them after this call.
        The record is durable on return.
        """
