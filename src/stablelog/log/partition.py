"""The log of one partition: its offsets, appends, reads and syncs; and recovery when the log is opened.

Invariants, at every return:
- start_offset <= last_stable_offset <= high_watermark <= end_offset
- segments are consecutive; all but the last are sealed
- only a truncation moves one of these offsets back

`log.append` checks batches and assigns their offsets. A partition has parts: `log.writer` has the segments and the
producer state, and writes batches; `log.record_deletion` deletes records from the start of the log; `log.log_compaction`
replaces segments; `log.log_replication` truncates the log. If the partition is commit-ordered, its view serves read-committed
readers.

Format: docs/formats.md.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stablelog.batch.header import BatchHeader, read_header
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DiskError, OffsetOutOfRangeError, RefusedError, UnavailableError
from stablelog.log.append import TransactionCheck, fitting, plan_append, plan_markers
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import RESTORED_FILE
from stablelog.log.files.restored import Restored, read_restored
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.log_compaction import LogCompaction
from stablelog.log.log_replication import LogReplication
from stablelog.log.model import Appended, Isolation, LogConfig, MarkerWrite, OpenTxn, Origin, Slice
from stablelog.log.producer_state.producer import Producer
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.read import read
from stablelog.log.record_deletion import RecordDeletion
from stablelog.log.recovery import Cut, Known, recover
from stablelog.log.remote_read import read_remote
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.search.times import Lookup
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX, Segment
from stablelog.log.time_lookup import look_up_newest, look_up_time
from stablelog.log.unsynced import SyncWork
from stablelog.log.usability import Usability
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
        config: the partition's settings.
        leader_epoch: the leader epoch of the batches that this start of the broker appends.
        start_offset: the local log start offset: the offset of the first record on the local disk. Without a remote
            tier it is the log start offset, the offset of the first record that can be read.
        high_watermark: the first offset that is not known to be durable.
        cuts: the parts that recovery has removed from the end of the log.
        open_files: the cache that limits how many sealed segments have open files. After the open, the broker joins it
            with the cache for all partitions.
        usability: whether the partition can be used. After a failure or a close, every call that uses a file raises
            UnavailableError.
        view: the log in commit order, which read-committed readers read; None if they read the log itself.
        remote: the segments of the log in an object store; None if the topic has no remote tier.
        restored: the offsets that a restore did not find in the store; None if the partition was not restored.
        log: the partition's segments and producer state. Other packages only read it.
        deletion: deletes records from the start of the log.
        compaction: replaces segments by rewritten ones.
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
        self.usability = Usability(f"{topic}-{partition}")
        self.view: View | None = None
        self.remote: RemoteTier | None = None
        self.restored: Restored | None = None
        self._order = order
        self._disk = disk
        self._snapshots = Snapshots(disk, directory)
        self.leader_epoch = known.leader_epoch
        self.start_offset: int
        self.high_watermark: int
        self.cuts: tuple[Cut, ...]
        self.log: LogWriter
        self._now_ms: int  # the time of the broker's clock at the last append, or at the open
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
        interval = self.config.index_interval_bytes
        found = recover(listing, self.open_files, known, index_interval=interval, progress=progress)
        self._now_ms = known.now_ms
        self.cuts = tuple(found.cuts)
        self.log = log = LogWriter(
            self._disk, self.directory, found, self.open_files, self.usability, self._snapshots, known.now_ms
        )
        self.leader_epoch = max(self.leader_epoch, found.epochs.latest)
        self.start_offset = found.start_offset
        self.high_watermark = self.end_offset
        log.producers.high_watermark_moved(self.high_watermark)
        if self._order is None:
            return
        try:
            self.view = self._order.load(self, known, progress)
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
        """The first offset of the oldest transaction that is open or whose marker is not durable; the high watermark if
        there is none. In a partition with a view in commit order, the end of the view.
        """
        if self.view is not None:
            return self.view.end_offset
        unstable = self.log.producers.first_unstable_offset()
        stable = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
        return max(stable, self.start_offset)

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end of the records that a reader of this isolation level sees, exclusive."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark if isolation is Isolation.READ_UNCOMMITTED else self.end_offset

    def visible_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read.

        Raises:
            UnavailableError: the segments in the remote tier are not known yet.
        """
        view = self._view_of(isolation)
        if view is not None:
            return view.start_offset
        return self.start_offset if self.remote is None else min(self.remote.start_offset, self.start_offset)

    def known_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read. While the list of remote segments is
        not known, return the local log start offset.
        """
        try:
            return self.visible_start(isolation)
        except UnavailableError:
            return self.start_offset

    def _view_of(self, isolation: Isolation) -> View | None:
        return self.view if isolation is Isolation.READ_COMMITTED else None

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""
        return self.log.segments.size

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self.log.segments)

    def holds(self, segment: Segment) -> bool:
        """Whether the partition is open and has the segment: it was neither deleted nor replaced by compaction."""
        return not self.usability.is_closed and any(one.is_same(segment) for one in self.log.segments)

    def producers(self) -> Iterator[Producer]:
        """Yield the current state of each producer that has written here and has not expired, in the order of the
        producer ids.
        """
        return iter(self.log.producers)

    @property
    def producer_state(self) -> Producers:
        """The producer state. The caller must not change it. It may hold a million producers."""
        return self.log.producers

    def reconfigure(self, config: LogConfig) -> None:
        """Replace the partition's settings. The next append uses the new settings."""
        self.config = config

    @property
    def failure(self) -> UnavailableError | None:
        """The reason why the partition refuses reads and writes until it is opened again; None if the partition accepts
        reads and writes.
        """
        return self.usability.failure

    @property
    def side_failure(self) -> DiskError | None:
        """The error because of which a file of the commit-ordered view could not be written; None if all files are
        written. The log is not affected.
        """
        return None if self.view is None else self.view.failure

    def advance_view(self) -> None:
        """Let the view read what has become durable, and write the files that could not be written before."""
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
        """Append one batch of a client or coordinator, or several batches that were copied from another log with their
        offsets.

        Args:
            batches: the bytes. They are written unchanged except for the base offset, the leader epoch and, with
                LogAppendTime, the timestamps.
            now_ms: the time of the broker's clock, for durations.
            wall_ms: the time of the wall clock, for timestamps; None for `now_ms`.
            origin: the origin of the batches, which decides how they are checked.
            transaction_check: as in `log.append.plan_append`.
            require_first_sequence_zero: whether the first batch of a producer without state in this partition must have
                sequence 0. It must in any case if the log has never had a record.
            are_records_checked: as in `log.append.plan_append`.
            checked_header: as in `log.append.plan_append`.

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
            return self.replication.append(batches, now_ms)
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

    def _is_of_lost_broker(self, batch: Buffer) -> bool:
        """Whether a batch has a producer id that a broker may have handed out before its disk was lost. If the producer
        has no state here, its acknowledged batches may be gone.
        """
        return self.restored is not None and read_header(batch).producer_id < self.restored.producer_ids_end

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

    # -- read --------------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from `start`: at most `size_max` bytes, but at least one batch if `at_least_one`.

        No record at or past `visible_end(isolation)` is returned. A read-committed read therefore returns no batch of
        an open transaction.

        Raises:
            OffsetOutOfRangeError: `start` is before the log's start or past its end.
            DamageError: an index that the read uses is damaged.
        """
        self.usability.check()
        lost = None if self.restored is None else self.restored.lost_range(start)
        if lost is not None:
            raise OffsetOutOfRangeError(
                f"offset {start} of {self.topic}-{self.index} is gone with the disk of a lost broker: the restored log "
                f"ends at offset {lost[0]}, and new records begin at {lost[1]}"
            )
        view = self._view_of(isolation)
        if view is not None:
            return view.read(start, size_max, at_least_one=at_least_one)
        if start < self.start_offset and self.remote is not None and start >= self.remote.start_offset:
            return read_remote(
                self.remote,
                self.log.segments,
                start,
                self.visible_end(isolation),
                size_max,
                local_start=self.start_offset,
                committed=isolation is Isolation.READ_COMMITTED,
                at_least_one=at_least_one,
            )
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {start} is not in the log of {self.topic}-{self.index}, which has the offsets {self.visible_start(isolation)} to {self.end_offset} (exclusive)"
            )
        return read(
            self.log.segments,
            start,
            self.visible_end(isolation),
            size_max,
            committed=isolation is Isolation.READ_COMMITTED,
            at_least_one=at_least_one,
        )

    def aborted_in(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with offsets in [start, end). `end` must not be past the last stable offset."""
        self.usability.check_open()
        assert end <= self.last_stable_offset
        return tuple(self.log.segments.aborted(start, end)) if start < end else ()

    def look_up_time(self, timestamp_ms: int, isolation: Isolation) -> Lookup:
        """Find the first record with this timestamp or a later one, as `log.time_lookup` does."""
        return look_up_time(self, timestamp_ms, isolation)

    def look_up_newest(self, isolation: Isolation) -> Lookup:
        """Find the first record with the greatest timestamp, as `log.time_lookup` does."""
        return look_up_newest(self, isolation)

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
        return self.log.sync_work(self.config)

    def synced(self, work: SyncWork) -> bool:
        """Note that this `SyncWork` was run, and move the high watermark. Return whether the high watermark or the LSO
        has moved.
        """
        self.usability.check_open()
        self.log.synced(work)
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

    # -- start and reload --------------------------------------------------------------------------------------

    def move_start(self, start_offset: int) -> None:
        """Move the log start offset. The new offset is durable on return, or DiskError is raised."""
        self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(start_offset))
        self.start_offset = start_offset

    def reload(self, end_offset: int, cut: Callable[[], None]) -> None:
        """Let `cut` truncate the log files to `end_offset`, and recover the log from the files that remain."""
        self._close_files()
        self.log.will_end_at(end_offset)
        cut()
        epoch, now_ms = self.leader_epoch, self._now_ms
        known = Known(
            is_clean=False, is_established=True, recovery_point=0, leader_epoch=epoch, now_ms=now_ms
        )
        self._load(known, Listing(self._disk, self.directory), None)
        self.log.prove()
        self.compaction.cut(self.end_offset)

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
            is_durable = self.end_offset == self.high_watermark == self.log.synced_offset
            if not is_durable or not self.log.is_settled():
                self._settle()
            self.deletion.remove_all_deleted()
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
