"""The topic setting `stablelog.order=commit`: makes the view of a partition, its committed records in the order of
their commits, and records where it begins.

Read-uncommitted readers get the records in offset order. For read-committed readers, the end of the view is the last
stable offset: an open transaction does not delay the records of other transactions.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stablelog.commit_order.first_sequence import (
    UNKNOWN,
    FirstSequence,
    decode_first_sequences,
    encode_first_sequences,
)
from stablelog.commit_order.formats import check_formats
from stablelog.commit_order.view import CommitOrder
from stablelog.env.disk import Disk
from stablelog.errors import DamageError
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import encode_log_start, read_log_start
from stablelog.log.files.names import FIRST_SEQUENCE_FILE, VIEW_START_FILE
from stablelog.log.recovery import Known
from stablelog.log.view import View, ViewedLog


@dataclass(frozen=True)
class CommitOrdered:
    """The order of commit-ordered topics. Makes the view of a partition: its committed records in the order of their
    commits. It also records in files where the view begins, and which commit was the last one before the first segment
    of the log.

    Attributes:
        disk: the disk with the directories of the partitions.
    """

    disk: Disk

    def check_formats(self, listing: Listing) -> None:
        """Check the format versions of a partition's files of commit order. Raises the errors of
        `formats.check_formats`.
        """
        check_formats(listing)

    def load_view(
        self, log: ViewedLog, known: Known, progress: Callable[[int, int], None] | None
    ) -> CommitOrder:
        """Make the view of a log, its committed records in commit order, after the log's recovery.

        Raises:
            DamageError: the file that records the start of the view is missing or damaged, or names an offset after the
                log's end.
        """
        start = self._read_start(log, known)
        view = CommitOrder(log, self.disk, progress, self._read_first_sequences(log))
        view.move_start(start)
        return view

    def _read_start(self, log: ViewedLog, known: Known) -> int:
        path = log.directory / VIEW_START_FILE
        start = read_log_start(self.disk, path)
        if start is None:
            if known.is_established:
                raise DamageError(
                    f"{path} is missing: it records where the partition begins for readers of committed records. "
                    "Without it, they could read records again that were deleted. Restore the file"
                )
            start = 0
            self.write_start(log, start)
        if start > log.end_offset:
            raise DamageError(
                f"{path} says that, for readers of committed records, the partition begins at offset {start}, but the log "
                f"ends at {log.end_offset}. Restore the one that is wrong: this file, or the log files"
            )
        return start

    def write_start(self, log: ViewedLog, start_offset: int) -> None:
        """Record the position where the view (the partition's records in commit order) begins, in a file of the
        partition. The file is durable when this method returns.
        """
        self.disk.write_atomic(log.directory / VIEW_START_FILE, encode_log_start(start_offset))

    def _read_first_sequences(self, log: ViewedLog) -> tuple[FirstSequence, ...]:
        try:
            return decode_first_sequences(self.disk.read_bytes(log.directory / FIRST_SEQUENCE_FILE))
        except (FileNotFoundError, DamageError):
            # No commit was deleted. A damaged file is not needed to read records.
            return ()

    def record_deletion(self, log: ViewedLog, view: View, base_offset: int) -> None:
        """Record the greatest commit sequence (the number of a commit, counted over all topics of its transaction
        group) before the segment with the base offset `base_offset`. The caller deletes the earlier segments after this
        call: without the record, nobody would then know the commit sequences in them. The record is durable when this
        method returns.
        """
        assert isinstance(view, CommitOrder)
        first = view.indexes[0].base_offset
        # Of the rows that an interrupted deletion has left, a later start of the broker may need each.
        bases = {
            first,
            base_offset,
            *(row.base_offset for row in view.first_sequences if row.base_offset > first),
        }
        found = [FirstSequence(base, view.builder.sequence_before(base)) for base in sorted(bases)]
        rows = tuple(row for row in found if row.commit_sequence != UNKNOWN)
        if not set(rows) <= set(view.first_sequences):
            self.disk.write_atomic(log.directory / FIRST_SEQUENCE_FILE, encode_first_sequences(rows))
            view.first_sequences = rows
