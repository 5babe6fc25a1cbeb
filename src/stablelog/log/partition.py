"""One open partition: its log with append, read, sync and truncation, its offsets, and its recovery at the open.

Invariants, at every return:
- start_offset <= last_stable_offset <= high_watermark <= end_offset
- segments are consecutive, and only the last one grows
- only a truncation moves one of these offsets back

`log.append` checks batches and assigns offsets. The attributes of `Partition` name its other parts.

Format: docs/reference/formats.md.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from stablelog.batch.header import BatchHeader, read_header
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DiskError, RefusedError, UnavailableError
from stablelog.log.append import TransactionCheck, count_fitting, plan_append, plan_markers
from stablelog.log.availability import Availability
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import RESTORED_FILE
from stablelog.log.files.restored import Restored, read_restored
from stablelog.log.log_compaction import LogCompaction
from stablelog.log.log_replication import LogReplication
from stablelog.log.model import Appended, Isolation, LogConfig, MarkerWrite, OpenTxn, Origin, Slice
from stablelog.log.offset_read import read_from_offset
from stablelog.log.record_deletion import RecordDeletion
from stablelog.log.recovery import Known, RemovedTail, recover
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from stablelog.log.sync_work import SyncWork
from stablelog.log.view import Order, Progress, View
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


class Partition:
    """One open partition. Only one thread uses this object, except that `SyncWork.run` may run in another thread.

    Attributes:
        topic: the name of the topic.
        index: the number of the partition in its topic.
        directory: the partition's directory.
        config: the partition's settings. New ones apply from the next append on.
        leader_epoch: the leader epoch of the batches that this broker appends.
        start_offset: the local log start offset: the offset of the first record on the local disk. Without a remote
            tier, this is the log start offset, that of the first record that can be read.
        high_watermark: the first offset that is not known to be durable.
        removed_tails: the damaged bytes that recovery has cut off at the end of log files.
        open_files: limits how many sealed segments have open files; after the open, together with all partitions.
        availability: whether the partition can be used. If not, calls that use a file raise UnavailableError.
        view: the committed batches of the log in the order of their commits, for read-committed readers; None if these
            readers read in offset order.
        remote: the segments of the log in an object store; None if the topic has no remote tier.
        restored: the offsets that a restore could not bring back; None if the partition was not restored.
        log: the partition's segments and producer state. Other packages only read it.
        deletion: deletes records from the start of the log.
        compaction: replaces segments by compacted ones.
        replication: appends copied batches, and truncates the log.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        config: LogConfig,
        *,
        topic: str,
        partition: int,
        open_files: OpenFiles,
        order: Order | None,
        known: Known,
        listing: Listing,
        progress: Progress | None,
        first_dirty_offset: int,
    ) -> None:
        self.topic = topic
        self.index = partition
        self.directory = directory
        self.config = config
        self.open_files = open_files
        self.availability = Availability(f"{topic}-{partition}")
        self.view: View | None = None
        self.remote: RemoteTier | None = None
        self.restored: Restored | None = None
        self._order = order
        self._disk = disk
        self.leader_epoch = known.leader_epoch
        self._load(known, listing, progress)
        self.deletion = RecordDeletion(disk, self, order)
        self.compaction = LogCompaction(
            disk, self, open_files, first_dirty_offset=min(first_dirty_offset, self.end_offset)
        )
        self.replication = LogReplication(disk, self, order)

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
        self._now_ms = known.now_ms  # the time of the broker's clock at the last append, or at the open
        self.removed_tails: tuple[RemovedTail, ...] = tuple(found.removed_tails)
        self.log = log = LogWriter(
            self._disk,
            self.directory,
            found,
            self.open_files,
            self.availability,
            known.now_ms,
        )
        self.leader_epoch = max(self.leader_epoch, found.epochs.latest)
        self.start_offset = found.start_offset
        self.high_watermark = self.end_offset
        log.producers.move_high_watermark(self.high_watermark)
        if self._order is None:
            return
        try:
            self.view = self._order.load_view(self, known, progress)
            # Kafka's snapshot file does not contain the number of records of an open transaction, so the view
            # supplies it.
            log.producers.set_open_record_counts(self.view.open_record_counts())
        except BaseException:  # close the files: file descriptors may have run out
            log.close()
            raise

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.segments.active.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what read-committed readers get, exclusive: the first offset of the oldest transaction that is
        open or whose marker is not durable; otherwise the high watermark. In a commit-ordered partition, the end of the
        view, which has the committed batches in the order of their commits.
        """
        if self.view is not None:
            return self.view.end_offset
        return max(self.log.producers.first_unstable_offset(self.high_watermark), self.start_offset)

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end of the offsets that a reader of this isolation level may read, exclusive."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark if isolation is Isolation.READ_UNCOMMITTED else self.end_offset

    def visible_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read.

        Raises:
            UnavailableError: the list of remote segments is not loaded yet.
        """
        if self.view is not None and isolation is Isolation.READ_COMMITTED:
            return self.view.start_offset
        return self.start_offset if self.remote is None else min(self.remote.start_offset, self.start_offset)

    def known_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read. While the list of remote segments is
        not loaded, this offset is not known, and the local log start offset is returned.
        """
        try:
            return self.visible_start(isolation)
        except UnavailableError:
            return self.start_offset

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""
        return self.log.segments.size

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self.log.segments)

    def has_segment(self, segment: Segment) -> bool:
        """Whether the partition is open, and neither retention nor compaction has removed this segment."""
        return not self.availability.is_closed and any(one.is_same(segment) for one in self.log.segments)

    @property
    def failure(self) -> UnavailableError | None:
        """The error with which the partition refuses reads and writes, because it has failed or is closed; None if it
        accepts them.
        """
        return self.availability.failure

    @property
    def side_failure(self) -> DiskError | None:
        """The failure of a write to a side file, a file that describes only the commit-ordered view of the log (the
        committed batches in the order of their commits); None if all these files are written. The log itself is not
        affected.
        """
        return None if self.view is None else self.view.failure

    def advance_view(self) -> None:
        """Extend the commit-ordered view, the committed batches in the order of their commits, over the batches that
        have become durable. Write its files that could not be written before.
        """
        if self.view is not None:
            self.view.advance()

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
        """Append one batch of a client or coordinator; or, with Origin.REPLICATION, several batches of the leader's log
        with their offsets.

        Args:
            batches: the bytes. They are written unchanged except for the base offset, the leader epoch and, with
                LogAppendTime, the timestamps.
            now_ms: broker time, a clock that never goes back, even if the machine's clock is set back. It measures
                durations.
            wall_ms: the time of the wall clock, for timestamps; None for `now_ms`.
            origin: who appends. It decides how the batches are checked.
            transaction_check: asks the coordinator whether the transaction of a client's batch may write here, and
                raises RefusedError if not.
            require_first_sequence_zero: whether the first batch of a producer without state in this log must begin at
                sequence number 0. In a log that has never had a record, it must in any case.
            are_records_checked: whether the caller has checked the records already (`check_records`).
            checked_header: the header of the batch, if `check_batch` has accepted the batch.

        Returns:
            The offsets that the log has assigned; those of the original batch if a client's batch is a duplicate.

        Raises:
            RefusedError: the batch is not valid, or its sequence, its producer epoch or its transaction is wrong.
                Nothing changed.
            DamageError: the bytes are no batch, or the CRC does not match. Nothing changed.
            UnavailableError: the disk failed. No reader gets any of the batches.
        """
        self.availability.check_usable()
        self._now_ms = now_ms
        wall_ms = now_ms if wall_ms is None else wall_ms
        if origin is Origin.REPLICATION:
            return self.replication.append(batches, now_ms)
        # A broker may have assigned the producer id of the batch before its disk was lost. Earlier batches of this
        # producer may be lost, although they were acknowledged.
        is_of_lost_broker = (
            self.restored is not None and read_header(batches).producer_id < self.restored.producer_ids_end
        )
        plan = plan_append(
            batches,
            origin,
            self,
            wall_ms,
            transaction_check=transaction_check,
            require_first_sequence_zero=require_first_sequence_zero or is_of_lost_broker,
            are_records_checked=are_records_checked,
            checked_header=checked_header,
        )
        if isinstance(plan, Appended):
            return plan
        self.log.write_batches((plan,), self.config, now_ms)
        return Appended(
            plan.header.base_offset,
            plan.header.last_offset,
            wall_ms if self.config.is_log_append_time else -1,
        )

    def append_markers(
        self, markers: Sequence[MarkerWrite], *, now_ms: int, wall_ms: int | None = None
    ) -> list[Appended | RefusedError]:
        """Write transaction markers in the order of `markers`, with one write to the log file.

        Args:
            markers: the markers.
            now_ms: broker time, a clock that never goes back, even if the machine's clock is set back. It measures
                durations.
            wall_ms: the timestamp of the markers, by the wall clock; None for `now_ms`.

        Returns:
            For each marker, its offsets or the error that refuses it. A marker that repeats the last one of its
            producer is not written again, and counts as a success.

        Raises:
            UnavailableError: the disk failed. Some markers, from the first one on, may have been written. The next
                recovery of the log finds out which.
        """
        self.availability.check_usable()
        self._now_ms = now_ms
        outcomes, planned = plan_markers(markers, self, now_ms if wall_ms is None else wall_ms)
        while planned:
            count = count_fitting(planned, RELATIVE_OFFSET_MAX)
            self.log.write_batches(planned[:count], self.config, now_ms)
            planned = planned[count:]
        return outcomes

    def roll(self, now_ms: int) -> None:
        """Roll the log: seal the growing segment and begin a new one. Do nothing if the segment is empty. Raises
        DiskError if a file cannot be written.
        """
        self.availability.check_usable()
        self.log.roll(now_ms)

    # -- read --------------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from an offset on: at most `size_max` bytes, but one batch of any size if `at_least_one`.

        No record at or after `visible_end(isolation)` is returned. So a read-committed reader gets no batch of an open
        transaction.

        Raises:
            OffsetOutOfRangeError: `start` is before the log's start or after its end, or was lost with the disk of a
                broker.
            DamageError: an index that the read uses is damaged.
        """
        self.availability.check_usable()
        return read_from_offset(self, start, size_max, isolation, at_least_one=at_least_one)

    # -- durability --------------------------------------------------------------------------------------------

    @property
    def has_pending_writes(self) -> bool:
        """Whether the next sync also writes files, because a segment was sealed or a snapshot of the producer state is
        due.
        """
        return self.log.has_pending_writes(self.config)

    def sync_work(self) -> SyncWork | None:
        """Return the work that makes all appended batches durable, for any thread to run. Return None if nothing is to
        be synced or written. Raises DiskError if an entry of the transaction index cannot be written.
        """
        if self.high_watermark == self.end_offset and not self.has_pending_writes:
            return None
        self.availability.check_usable()
        return self.log.sync_work(self.config)

    def finish_sync(self, work: SyncWork) -> bool:
        """Move the high watermark after `work`, a `SyncWork`, has made appended batches durable. Return whether the
        high watermark or the last stable offset has moved.
        """
        self.availability.check_open()
        self.log.finish_sync(work)
        return self._move_high_watermark(work.end_offset)

    def assume_synced(self) -> bool:
        """Assume that all appended batches are synced, without a sync (`stablelog.flush=os`): count them as durable.
        Return whether the high watermark or the last stable offset has moved. Raises DiskError if an entry of the
        transaction index cannot be written.
        """
        self.availability.check_open()
        self.log.assume_synced()
        return self._move_high_watermark(self.end_offset)

    def _move_high_watermark(self, offset: int) -> bool:
        before = self.high_watermark, self.last_stable_offset
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))
        self.log.producers.move_high_watermark(self.high_watermark)
        self.advance_view()
        after = self.high_watermark, self.last_stable_offset
        assert before[1] <= after[1] <= after[0]
        return before != after

    # -- start and close ---------------------------------------------------------------------------------------

    def move_start(self, start_offset: int) -> None:
        """Move the log start offset. The new offset is durable on return, or DiskError is raised."""
        self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(start_offset))
        self.start_offset = start_offset

    def reload(self, end_offset: int, cut: Callable[[], None]) -> None:
        """Close the files of the log, call `cut`, which truncates the log files to `end_offset`, and recover the log
        from the files that remain.
        """
        self._close_files()
        self.log.snapshots.remove_snapshots_past(end_offset)
        cut()
        self._load(
            Known(
                is_clean=False,
                is_established=True,
                recovery_point=0,
                leader_epoch=self.leader_epoch,
                now_ms=self._now_ms,
            ),
            Listing(self._disk, self.directory),
            None,
        )
        self.log.prove_segments()
        self.compaction.truncate_to(self.end_offset)

    def close(self, *, clean: bool = True) -> None:
        """Close all files. After a `clean` close, everything is durable, and the next open needs little recovery.

        A clean close adds an entry for the greatest timestamp to the time index, because Kafka expects one. Later calls
        raise UnavailableError: the directory may be deleted and created again for a new topic of the same name.

        Raises:
            UnavailableError: not everything could be made durable. The partition stays open.
        """
        if clean and self.failure is None:
            is_durable = self.end_offset == self.high_watermark == self.log.synced_offset
            if not is_durable or not self.log.is_ready_to_close():
                self.log.prepare_close()
                work = self.sync_work()
                assert work is not None
                work.run()
                self.finish_sync(work)
                # If a file could not be written, the next open may need an older snapshot, so no snapshot is removed.
                if not work.unwritten:
                    self.log.snapshots.remove_other_snapshots(self.end_offset, self.log.segments.bases)
            self.deletion.pending.purge_all()
        self.availability.mark_closed()
        self._close_files()

    def _close_files(self) -> None:
        self.log.close()
        if self.view is not None:
            self.view.close()
