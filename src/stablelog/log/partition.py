"""The log of one partition: append, read, delete, compact and truncate, and the recovery when it is opened.

Invariants, at every return:
- start_offset <= last_stable_offset <= high_watermark <= end_offset
- segments are consecutive; all but the last are sealed
- none of these offsets moves back, but for `truncate_to`

`log.append` decides what is written, and `log.writer` writes it. A view, if there is one, serves read-committed readers.

Format: docs/formats.md.
"""

from collections.abc import Sequence
from pathlib import Path

from stablelog.env.disk import Buffer, Disk
from stablelog.errors import OffsetOutOfRange, Refused
from stablelog.log.append import TransactionCheck, fitting, plan_append, plan_markers, plan_replicated
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.model import (
    Appended,
    Isolation,
    LogConfig,
    MarkerWrite,
    OpenTxn,
    Origin,
    Slice,
)
from stablelog.log.prunable_log import PrunableLog
from stablelog.log.recovery import NEVER, Known, recover
from stablelog.log.recovery.epoch_check import epoch_at
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX
from stablelog.log.segments.segments import cut_files
from stablelog.log.unsynced import SyncWork
from stablelog.log.view import Order, Progress
from stablelog.log.writer import LogWriter

__all__ = [
    "Appended",
    "Isolation",
    "LogConfig",
    "MarkerWrite",
    "OpenFiles",
    "OpenTxn",
    "Origin",
    "Partition",
    "Slice",
    "SyncWork",
]


class Partition(PrunableLog):
    """One partition. `open` makes it. One thread uses it; only `SyncWork.run` may run in another one."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        config: LogConfig,
        *,
        topic: str,
        partition: int,
        clean: bool,
        now_ms: int,
        log_start_offset: int = 0,
        recovery_point: int | None = None,
        first_dirty_offset: int = 0,
        leader_epoch: int = 0,
        is_established: bool = False,
        gapless_epoch: int = NEVER,
        progress: Progress | None = None,
        open_files: OpenFiles | None = None,
        listing: Listing | None = None,
        order: Order | None = None,
    ) -> "Partition":
        """Open a partition's directory, or make it, and recover what a crash left. All that is kept is durable then.

        Args:
            disk: where the directory lies.
            directory: the partition's own.
            config: its settings.
            topic: its name.
            partition: its index.
            clean: whether the last owner closed it, so that all of it was durable. Then damage at the end and gaps
                between segments are no trace of a crash.
            now_ms: the broker's clock.
            log_start_offset: records before it stay deleted, whatever the partition's own file says.
            recovery_point: up to where the partition was known to be synced, exclusive; None if that is not recorded.
            first_dirty_offset: records before it were compacted.
            leader_epoch: under which it writes from now on.
            is_established: whether the partition was made complete by this release, so that what is missing is lost.
            gapless_epoch: the first leader epoch whose batches follow each other without a gap in the growing
                segment.
            progress: called with (bytes done, bytes in all) while recovery reads.
            open_files: counts its open segments.
            listing: of the directory, which exists then and is as the listing says.
            order: makes the view of a partition that has one.

        Raises:
            Corrupt: bytes that were durable are damaged or gone. No log file was changed.
            DiskError: the disk failed.
        """
        self = cls(
            disk,
            directory,
            config,
            topic=topic,
            partition=partition,
            leader_epoch=leader_epoch,
            open_files=OpenFiles() if open_files is None else open_files,
            order=order,
        )
        if listing is None:
            disk.make_dir(directory)
            listing = Listing(disk, directory)
        known = Known(
            is_clean=clean,
            is_established=is_established,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            leader_epoch=leader_epoch,
            gapless_epoch=gapless_epoch,
            now_ms=now_ms,
        )
        self._load(known, listing, progress)
        self._cleaning.first_dirty_offset = min(first_dirty_offset, self.end_offset)
        return self

    def _load(self, known: Known, listing: Listing, progress: Progress | None) -> None:
        if self._order is not None:
            self._order.check_formats(listing)
        found = recover(
            listing,
            self.open_files,
            known,
            index_interval=self.config.index_interval_bytes,
            progress=progress,
        )
        self._now_ms = known.now_ms
        self.cuts = tuple(found.cuts)
        self.log = log = LogWriter(
            self._disk,
            self.directory,
            found,
            open_files=self.open_files,
            usability=self.usability,
            snapshots=self._snapshots,
            now_ms=known.now_ms,
        )
        self._are_epochs_checked = False
        self.leader_epoch = max(self.leader_epoch, found.epochs.latest)
        self.start_offset = found.start_offset
        self.high_watermark = self.synced_offset = self.end_offset
        log.producers.high_watermark_moved(self.high_watermark)
        try:
            self._found_epochs = {
                producer.txn_first_offset: epoch_at(producer.txn_first_offset, log.epochs, log.segments)
                for producer in log.producers.open_producers()
            }
            if self._order is not None:
                self.view = self._order.load(self, known, progress)
                # A snapshot in Kafka's form does not say how many records the open transactions hold.
                log.producers.set_open_record_counts(self.view.open_record_counts())
        except BaseException:  # if descriptors have run out, other partitions need those of this one
            log.close()
            raise

    # -- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Buffer,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_check: TransactionCheck | None = None,
        require_first_sequence_zero: bool = False,
        are_keys_checked: bool = False,
    ) -> Appended:
        """Append a batch (of a client or coordinator), or several with their offsets (of another log).

        Args:
            batches: the bytes. They are written as they are, but for base offset and leader epoch.
            now_ms: the broker's clock.
            origin: who appends, which decides what is checked.
            transaction_check: asked before each batch of a transaction that is not a duplicate; raises Refused.
            require_first_sequence_zero: whether a producer that is not known here has to begin with sequence 0.
            are_keys_checked: whether `log.append.check_keys` has accepted the batch.

        Raises:
            Refused: the batch is not valid, out of order, fenced, or not in its transaction. Nothing changed.
            Corrupt: the bytes are no batch, or not those of its CRC. Nothing changed.
            Unavailable: the disk failed. No read will see any of it.
        """
        self.usability.check()
        self._now_ms = now_ms
        if origin is Origin.REPLICATION:
            return self._append_replicated(batches, now_ms)
        plan = plan_append(
            batches,
            origin,
            self,
            now_ms,
            transaction_check=transaction_check,
            require_first_sequence_zero=require_first_sequence_zero,
            are_keys_checked=are_keys_checked,
        )
        if isinstance(plan, Appended):
            return plan
        self.log.write((plan,), self.config, now_ms)
        time_ms = now_ms if self.config.is_log_append_time else -1
        return Appended(plan.header.base_offset, plan.header.last_offset, time_ms, self.start_offset)

    def _append_replicated(self, batches: Buffer, now_ms: int) -> Appended:
        """Append batches of another log, with their offsets and epochs. The same markers give the same index."""
        planned = plan_replicated(batches, self.end_offset)
        for batch in planned:
            self.log.write((batch,), self.config, now_ms)
        return Appended(planned[0].header.base_offset, planned[-1].header.last_offset, -1, self.start_offset)

    def append_markers(self, markers: Sequence[MarkerWrite], *, now_ms: int) -> list[Appended | Refused]:
        """Write markers, in their order, with one write to the file.

        Returns:
            For each where it went, or why it was refused. A marker that repeats the last one of its producer is
            not written again and counts as done.

        Raises:
            Unavailable: the disk failed. Recovery will find the markers that were written, and no others.
        """
        self.usability.check()
        self._now_ms = now_ms
        outcomes, planned = plan_markers(markers, self, now_ms)
        while planned:
            count = fitting(planned, RELATIVE_OFFSET_MAX)
            self.log.write(planned[:count], self.config, now_ms)
            planned = planned[count:]
        return outcomes

    def roll(self, now_ms: int) -> None:
        """Seal the last segment, if it holds anything, and begin a new one. Raises as `LogWriter.roll`."""
        self.usability.check()
        self.log.roll(now_ms)

    # -- durability --------------------------------------------------------------------------------------------

    @property
    def has_pending_writes(self) -> bool:
        """Whether a sync has more to do than to move the high watermark: a segment was sealed, a snapshot is due."""
        return self.log.has_pending_writes(self.config)

    def unsynced(self) -> SyncWork | None:
        """The work that makes everything durable that was appended so far; None if it is. Raises as `sync_work`."""
        if self.high_watermark == self.end_offset and not self.has_pending_writes:
            return None
        self.usability.check()
        return self.log.sync_work(self.config, self.synced_offset)

    def synced(self, work: SyncWork) -> bool:
        """Note that a work was run: the high watermark moves. Returns whether it or the LSO moved."""
        self.usability.check_open()
        self.log.synced(work)
        self.synced_offset = max(self.synced_offset, work.end_offset)
        return self._move_high_watermark(work.end_offset)

    def assume_synced(self) -> bool:
        """Count what the operating system has as durable. Returns whether a watermark moved; raises as `unsynced`."""
        self.usability.check_open()
        self.log.assume_synced()
        return self._move_high_watermark(self.end_offset)

    def _move_high_watermark(self, offset: int) -> bool:
        before = self.high_watermark, self.last_stable_offset
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))
        self.log.producers.high_watermark_moved(self.high_watermark)
        if self.view is not None:
            self.view.advance()
        after = self.high_watermark, self.last_stable_offset
        assert before[1] <= after[1] <= after[0]
        return before != after

    # -- truncate ----------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut the log so that it ends at `offset`, or at the beginning of the batch in which that lies.

        Transactions whose marker is gone are open again. All that is left is durable on return: the high watermark is
        the new end.

        Raises:
            OffsetOutOfRange: it lies before the log's start.
        """
        self.usability.check()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index} begins at {self.start_offset}; it cannot end at {offset}"
            )
        end_offset, position, segment, later = self.log.segments.cut_at(offset)
        self._lower_starts(end_offset)
        self.synced_offset = min(self.synced_offset, end_offset)
        self._close_files()
        self._snapshots.forget_past(end_offset)
        cut_files(self._disk, self.directory, segment, position, later)
        epoch, now_ms = self.leader_epoch, self._now_ms
        known = Known(
            is_clean=False, is_established=True, recovery_point=0, leader_epoch=epoch, now_ms=now_ms
        )
        self._load(known, Listing(self._disk, self.directory), None)
        self.prove()
        self._cleaning.cut(self.end_offset)

    def _lower_starts(self, end_offset: int) -> None:
        """Before a cut: a log or a view that begins within a batch that is cut begins at the new end."""
        if end_offset < self.start_offset:
            self.start_offset = end_offset
            self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(end_offset))
        if self.view is not None and self._order is not None and end_offset < self.view.start_offset:
            self._order.write_start(self, end_offset)

    # -- close -------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Close every file. If `clean`, make everything durable and leave recovery little to read; see `Snapshots`.

        The time index then ends with an entry of the greatest timestamp, which Kafka needs to look up later ones.
        Later calls raise Unavailable: the directory may be deleted, and made again for another topic of the name.

        Raises:
            Unavailable: not everything could be made durable; the partition is open as before.
        """
        if clean and self.failure is None:
            is_durable = self.end_offset == self.high_watermark == self.synced_offset
            if not is_durable or not self.log.is_settled():
                self._settle()
            self._pending_deletes.purge_all()
        self.usability.close()
        self._close_files()

    def _settle(self) -> None:
        self.log.settle()
        work = self.unsynced()
        assert work is not None
        work.run()
        self.synced(work)
        if not work.unwritten:  # otherwise the next start needs the older snapshots
            self._snapshots.keep_newest(self.end_offset, self.log.segments.bases)

    def _close_files(self) -> None:
        self.log.close()
        if self.view is not None:
            self.view.close()
