"""A partition of a commit-ordered topic: written like any other, read in commit order by committed readers.

A read-uncommitted reader gets append order, as ever. For a read-committed one nothing is held back by a transaction
that is open: its last stable offset is the end of the view.
"""

from collections.abc import Callable

from stablelog.errors import Corrupt, DiskError, OffsetOutOfRange
from stablelog.log.listing import Listing
from stablelog.log.log_start import encode_log_start, read_log_start
from stablelog.log.model import Isolation, Slice
from stablelog.log.names import VIEW_START_FILE
from stablelog.log.partition import Partition
from stablelog.log.read import Lookup
from stablelog.log.recovery import Known
from stablelog.views.commit_order import CommitOrder
from stablelog.views.formats import check_formats


class CommitOrderedPartition(Partition):
    """One partition of a commit-ordered topic. Opened with `open`, like a partition.

    Attributes:
        view: what its committed readers get.
    """

    view: CommitOrder

    def _load(self, known: Known, listing: Listing, progress: Callable[[int, int], None] | None) -> None:
        check_formats(listing)
        super()._load(known, listing, progress)
        try:
            view_start = self._view_start(known)
            self.view = CommitOrder(self, self._disk, progress)
        except BaseException:  # where descriptors have run out, others need those of the log
            super()._close_files()
            raise
        self.view.begin_at(view_start)
        # Where state was made from a snapshot of Kafka's form, that does not say how long the open ones are.
        self._producers.set_open_record_counts(self.view.open_record_counts())

    def _view_start(self, known: Known) -> int:
        """Where the view begins.

        Raises:
            Corrupt: the file that says so is gone or damaged, or says an offset past the log's end.
        """
        path = self.directory / VIEW_START_FILE
        start = read_log_start(self._disk, path)
        if start is None:
            if known.is_established:
                raise Corrupt(
                    f"{path} is gone: where the view begins is not known, and records that were deleted could be read "
                    "again. Restore the file"
                )
            start = 0
            self._disk.write_atomic(path, encode_log_start(start))
        if start > self.end_offset:
            raise Corrupt(
                f"{path} says that the view begins at offset {start}, and the log ends at {self.end_offset}. Restore "
                "the file, or the log files"
            )
        return start

    @property
    def last_stable_offset(self) -> int:
        """The end of the view: all in it is decided."""
        return self.view.end_offset

    def visible_start(self, isolation: Isolation) -> int:
        """The first position that a reader of this isolation can ask for."""
        return self.view.start_offset if isolation is Isolation.READ_COMMITTED else self.start_offset

    def _move_high_watermark(self, offset: int) -> bool:
        shown = self.view.end_offset
        moved = super()._move_high_watermark(offset)
        self.view.advance()
        return moved or self.view.end_offset != shown

    @property
    def side_failure(self) -> DiskError | None:
        """Why a file that can be made from the log is not written yet; None if all are."""
        return self.view.failure

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches: in commit order for a committed reader, else as they were appended."""
        if isolation is not Isolation.READ_COMMITTED:
            return super().read(start, size_max, isolation, at_least_one=at_least_one)
        self.usability.check()
        return self.view.read(start, size_max, at_least_one=at_least_one)

    def look_up_time(self, timestamp_ms: int, isolation: Isolation) -> Lookup:
        """Find the first position that was committed at a time or later, in steps."""
        if isolation is not Isolation.READ_COMMITTED:
            return (yield from super().look_up_time(timestamp_ms, isolation))
        return (yield from self.view.look_up_time(timestamp_ms))

    def look_up_newest(self, isolation: Isolation) -> Lookup:
        """Find the first position of the latest commit, in steps."""
        if isolation is not Isolation.READ_COMMITTED:
            return (yield from super().look_up_newest(isolation))
        return (yield from self.view.look_up_newest())

    def delete_records(self, before_offset: int) -> int:
        """Let the view begin at a position, or behind the transaction in which it lies. Returns where.

        Of the log goes what no transaction needs that the view shows or may show yet.
        """
        self.usability.check()
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"records before {before_offset} of {self.topic}-{self.index} cannot be deleted: the high watermark is {self.high_watermark}"
            )
        start_offset = max(self.view.whole_from(before_offset), self.view.start_offset)
        self._sync_up_to(start_offset)
        # Durable first: where the view begins never moves back.
        self._disk.write_atomic(self.directory / VIEW_START_FILE, encode_log_start(start_offset))
        self.view.begin_at(start_offset)
        super().delete_records(self.view.first_needed_offset())
        return self.view.start_offset

    def _lower_starts(self, end_offset: int) -> None:
        super()._lower_starts(end_offset)
        if end_offset < self.view.start_offset:
            self._disk.write_atomic(self.directory / VIEW_START_FILE, encode_log_start(end_offset))

    def _delete_segments(self, count: int, due_ms: int) -> int:
        """Leave what open transactions have written: they would be gone as a whole when they commit.

        Open is also one whose marker a crash could still take: the marker that follows would count what is left.
        """
        first_open = self._producers.first_unstable_offset()
        if first_open is not None:
            count = min(count, self._segments.place_of(first_open))
        self.view.advance()  # so that it stands in a segment that stays
        deleted = super()._delete_segments(count, due_ms)
        self.view.forget_deleted()
        return deleted

    def _close_files(self) -> None:
        super()._close_files()
        self.view.close()
