"""The log of one partition: append, read, delete, compact and truncate; and recovery when the log is opened.

Invariants, at every return:
- start_offset <= last_stable_offset <= high_watermark <= end_offset
- segments are consecutive; all but the last are sealed
- only `truncate_to` moves one of these offsets back

`log.append` checks batches and assigns their offsets, and `log.writer` writes them. If the partition is commit-ordered,
its view serves read-committed readers.

Format: docs/formats.md.
"""

from collections.abc import Sequence
from pathlib import Path

from stablelog.batch.header import BatchHeader, read_header
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import OffsetOutOfRangeError, RefusedError
from stablelog.log.append import TransactionCheck, fitting, plan_append, plan_markers, plan_replicated
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import RESTORED_FILE
from stablelog.log.files.restored import read_restored
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
    """One open partition, made by `open`. Only one thread uses this object, except that `SyncWork.run` may run in
    another thread.
    """

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
        """Open a partition's directory, or make it, and recover the log after a crash. On return, the whole log is
        durable.

        Args:
            disk: the disk of the directory.
            directory: the partition's directory.
            config: the partition's settings.
            topic: the name of the topic.
            partition: the number of the partition in its topic.
            clean: whether the last broker closed the partition, so that the whole log was durable. If so, damage at the
                end of the log, or a gap between segments, is not the effect of a crash.
            now_ms: the time of the broker's clock.
            log_start_offset: the log start offset that the data directory records. The log begins there, or later if
                the partition's own file says so.
            recovery_point: the recorded recovery point: the log was synced up to this offset, exclusive; None if none
                is recorded.
            first_dirty_offset: the first offset that has not been compacted.
            leader_epoch: the leader epoch of the batches that will be appended.
            is_established: whether an earlier start of this release has made all its files in the directory. If so, a
                missing file has been lost.
            gapless_epoch: a leader epoch. If the growing segment has a gap in the offsets before a batch of this leader
                epoch or of a later one, batches were lost.
            progress: called with (bytes done, bytes in all) while recovery reads.
            open_files: the cache that limits how many sealed segments have open files.
            listing: the current listing of the directory, if the caller has one. The directory must exist then.
            order: makes the view of a commit-ordered partition; None for another partition.

        Raises:
            DamageError: durable bytes are damaged or missing. No log file was changed.
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
        if RESTORED_FILE in listing:
            self.restored = read_restored(self._disk, self.directory)
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
                # Kafka's snapshot file does not contain the number of records of an open transaction, so the view
                # supplies it.
                log.producers.set_open_record_counts(self.view.open_record_counts())
        except BaseException:  # close the files: file descriptors may have run out
            log.close()
            raise

    # -- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Buffer,
        *,
        now_ms: int,
        wall_ms: int | None = None,
        origin: Origin = Origin.CLIENT,
        transaction_check: TransactionCheck | None = None,
        require_first_sequence_zero: bool = False,
        are_records_checked: bool = False,
        checked_header: BatchHeader | None = None,
    ) -> Appended:
        """Append one batch of a client or coordinator, or several batches that were copied from another log with their
        offsets.

        Args:
            batches: the bytes. They are written unchanged except for the base offset, the leader epoch and, with
                LogAppendTime, the timestamps.
            now_ms: the time of the broker's clock, for durations.
            wall_ms: the time of the wall clock, for timestamps; None for `now_ms`.
            origin: the origin of the batches, which decides how they are checked.
            transaction_check: verifies with the coordinator that the transaction of a batch may write here, and raises
                RefusedError if not. It is called for each transactional batch that is not a duplicate.
            require_first_sequence_zero: whether the first batch of a producer without state in this partition must have
                sequence 0. It must in any case if the log has never had a record.
            are_records_checked: whether `log.record_checks.check_records` has accepted the records of the batch.
            checked_header: the header of the batch, if `log.append.check_batch` has accepted it with the present settings.

        Raises:
            RefusedError: the batch is not valid, or its sequence, its producer epoch or its transaction is wrong.
                Nothing changed.
            DamageError: the bytes are no batch, or do not match its CRC. Nothing changed.
            UnavailableError: the disk failed. No reader will see any of the batches.
        """
        self.usability.check()
        self._now_ms = now_ms
        wall_ms = now_ms if wall_ms is None else wall_ms
        if origin is Origin.REPLICATION:
            return self._append_replicated(batches, now_ms)
        plan = plan_append(
            batches,
            origin,
            self,
            wall_ms,
            transaction_check=transaction_check,
            require_first_sequence_zero=require_first_sequence_zero or self._is_of_lost_broker(batches),
            are_records_checked=are_records_checked,
            checked_header=checked_header,
        )
        if isinstance(plan, Appended):
            return plan
        self.log.write((plan,), self.config, now_ms)
        time_ms = wall_ms if self.config.is_log_append_time else -1
        return Appended(plan.header.base_offset, plan.header.last_offset, time_ms)

    def is_next(self, header: BatchHeader, *, require_first_sequence_zero: bool = False) -> bool:
        """Whether a client's batch with this header would be appended, as far as the producer state decides. False if
        `append` would refuse its sequence or its producer epoch, or would find that it is a duplicate.
        """
        if not header.has_producer:
            return True
        try:
            kept = self.producer_state.check_batch(
                header, require_first_sequence_zero=require_first_sequence_zero or self.end_offset == 0
            )
        except RefusedError:
            return False
        return kept is None

    def _is_of_lost_broker(self, batch: Buffer) -> bool:
        """Whether a batch has a producer id that a broker may have handed out before its disk was lost. If the producer
        has no state here, its acknowledged batches may be gone.
        """
        return self.restored is not None and read_header(batch).producer_id < self.restored.producer_ids_end

    def _append_replicated(self, batches: Buffer, now_ms: int) -> Appended:
        """Append batches of another log with their offsets and leader epochs. The transaction index gets the same
        entries as in the other log.
        """
        planned = plan_replicated(batches, self.end_offset)
        for batch in planned:
            self.log.write((batch,), self.config, now_ms)
        return Appended(planned[0].header.base_offset, planned[-1].header.last_offset, -1)

    def append_markers(
        self, markers: Sequence[MarkerWrite], *, now_ms: int, wall_ms: int | None = None
    ) -> list[Appended | RefusedError]:
        """Write markers, in their order, with one write to the file.

        Args:
            markers: the markers.
            now_ms: the time of the broker's clock, for durations.
            wall_ms: the timestamp of the markers, by the wall clock; None for `now_ms`.

        Returns:
            For each marker, its offsets or the reason why it was refused. A marker that repeats the last one of its
            producer is not written again and counts as a success.

        Raises:
            UnavailableError: the disk failed. Some of the first markers may have been written. The next recovery finds
                exactly these.
        """
        self.usability.check()
        self._now_ms = now_ms
        outcomes, planned = plan_markers(markers, self, now_ms if wall_ms is None else wall_ms)
        while planned:
            count = fitting(planned, RELATIVE_OFFSET_MAX)
            self.log.write(planned[:count], self.config, now_ms)
            planned = planned[count:]
        return outcomes

    def roll(self, now_ms: int) -> None:
        """Seal the growing segment, unless it is empty, and begin a new one. Raises DiskError if a file cannot be
        written.
        """
        self.usability.check()
        self.log.roll(now_ms)

    # -- durability --------------------------------------------------------------------------------------------

    @property
    def has_pending_writes(self) -> bool:
        """Whether the next sync has to write files, because a segment was sealed or a snapshot is due."""
        return self.log.has_pending_writes(self.config)

    def unsynced(self) -> SyncWork | None:
        """Return the steps that make all appended batches durable, as a `SyncWork`. Return None if there is nothing to
        sync or to write. Raises the same errors as `LogWriter.sync_work`.
        """
        if self.high_watermark == self.end_offset and not self.has_pending_writes:
            return None
        self.usability.check()
        return self.log.sync_work(self.config, self.synced_offset)

    def synced(self, work: SyncWork) -> bool:
        """Note that this `SyncWork` was run, and move the high watermark. Return whether the high watermark or the LSO
        has moved.
        """
        self.usability.check_open()
        self.log.synced(work)
        self.synced_offset = max(self.synced_offset, work.end_offset)
        return self._move_high_watermark(work.end_offset)

    def assume_synced(self) -> bool:
        """Count all appended batches as durable without a sync (`stablelog.flush=os`). Return whether the high
        watermark or the LSO has moved. Raises the same errors as `unsynced`.
        """
        self.usability.check_open()
        self.log.assume_synced()
        return self._move_high_watermark(self.end_offset)

    def _move_high_watermark(self, offset: int) -> bool:
        before = self.high_watermark, self.last_stable_offset
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))
        self.log.producers.high_watermark_moved(self.high_watermark)
        self.advance_view()
        after = self.high_watermark, self.last_stable_offset
        assert before[1] <= after[1] <= after[0]
        return before != after

    # -- truncate ----------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to `offset`, or to the beginning of the batch that contains this offset.

        A transaction whose marker is removed is open again. On return, the remaining log is durable: the high watermark
        is the new end.

        Raises:
            OffsetOutOfRangeError: the offset is before the log start offset.
        """
        self.usability.check()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRangeError(
                f"the log of {self.topic}-{self.index} cannot be truncated to offset {offset}: it begins at offset {self.start_offset}"
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
        """Before a truncation to `end_offset`, move the start of the log back to this offset if the start is greater.
        Do the same with the start of the view in commit order.
        """
        if end_offset < self.start_offset:
            self.start_offset = end_offset
            self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(end_offset))
        if self.view is not None and self._order is not None and end_offset < self.view.start_offset:
            self._order.write_start(self, end_offset)

    # -- close -------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Close every file. If `clean`, first make everything durable, and write a snapshot if it shortens the next
        recovery.

        A clean close completes the time index with an entry of the greatest timestamp, because Kafka relies on that
        entry. After the close, calls raise UnavailableError, because the directory may be deleted and made again for a
        new topic of the same name.

        Raises:
            UnavailableError: not everything could be made durable. The partition stays open.
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
        # If a file could not be written, the next open may need an older snapshot, so no snapshot is removed.
        if not work.unwritten:
            self._snapshots.keep_newest(self.end_offset, self.log.segments.bases)

    def _close_files(self) -> None:
        self.log.close()
        if self.view is not None:
            self.view.close()
