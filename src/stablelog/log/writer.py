"""Writes at the end of a log: appends planned batches, and updates the indexes and the producer state in memory.

An append has four steps: it writes the bytes to the log file; it updates the producer state; for an abort marker, it
writes the entry of the transaction index; then the transaction counts as ended. The table in `recovery` covers a crash
between any two of these steps. While an entry of the transaction index cannot be written, the high watermark does not
move. The other index files may lack entries that are in memory.
"""

from collections.abc import Sequence
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import DiskError, UnavailableError
from stablelog.log.availability import Availability
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.names import SUMMARY, SegmentName
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig, OpenTxn, PlannedBatch
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.recovery import Recovered
from stablelog.log.recovery.epoch_check import epoch_at
from stablelog.log.search.aborts import find_aborted
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segments import LogSegments
from stablelog.log.sync_work import PendingSync, SyncWork


class LogWriter:
    """The segments, producer state and leader epochs of one open log, and the writes at its end.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        found: the segments, producer state and leader epochs that recovery has found.
        open_files: the cache that limits how many sealed segments have open files.
        availability: whether the partition can be used. The writer marks it as failed when a write stops half-way.
        now_ms: broker time, a clock that never goes back, even if the machine's clock is set back.

    Attributes:
        segments: the segments, oldest first. Compaction replaces this object.
        producers: the producer state.
        epochs: the leader epochs.
        snapshots: the snapshots of the partition.
        synced_offset: the first offset that is not known to be synced. With `stablelog.flush=os` it may be less than
            the high watermark.
    """

    # A broker has one of these objects for each partition, and reads thousands of them in one callback.
    __slots__ = (
        "_availability",
        "_directory",
        "_disk",
        "_found_epochs",
        "_open_files",
        "_pending_sync",
        "epochs",
        "producers",
        "segments",
        "snapshots",
        "synced_offset",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        found: Recovered,
        open_files: OpenFiles,
        availability: Availability,
        now_ms: int,
    ) -> None:
        self.segments = LogSegments(found.sealed, found.growing)
        self.producers: Producers = found.producers
        self.epochs: LeaderEpochs = found.epochs
        self.snapshots: Snapshots = found.snapshots
        self.synced_offset = self.segments.active.end_offset
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._availability = availability
        self._pending_sync = PendingSync(disk, directory, self.segments.active.base_offset)
        self.segments.active.created_ms = now_ms
        try:
            # The leader epochs of the transactions that recovery has found open, by the first offset of the transaction.
            self._found_epochs = {
                producer.txn_first_offset: epoch_at(producer.txn_first_offset, self.epochs, self.segments)
                for producer in self.producers.open_producers()
            }
        except BaseException:  # file descriptors may have run out
            self.close()
            raise

    def write_batches(self, batches: Sequence[PlannedBatch], config: LogConfig, now_ms: int) -> None:
        """Append batches to one segment, with one write to the log file. They must fit together into one segment.

        Raises:
            DiskError: no reader gets the batches. The partition fails if a part of them could not be removed from the
                file again: the next append would follow batches that were reported as failed.
        """
        size, buffers = batches[0].header.size, batches[0].buffers
        if len(batches) > 1:
            size = sum(batch.header.size for batch in batches)
            buffers = tuple(buffer for batch in batches for buffer in batch.buffers)
        active = self.segments.active
        if active.size == 0:
            active.created_ms = now_ms
        elif (
            not active.has_room(
                size, batches[-1].header.last_offset, config.segment_bytes, config.segment_index_bytes
            )
            or now_ms - active.created_ms > config.segment_ms
        ):
            self.roll(now_ms)
        segment, availability = self.segments.active, self._availability
        try:
            position = segment.append(buffers)
        except DiskError as error:
            if not error.undone:
                availability.mark_failed(error)
            raise
        availability.is_writing = True
        for header, head, _, marker in batches:
            segment.index_batch(header, position, head, config.index_interval_bytes)
            position += header.size
            if header.leader_epoch > self.epochs.latest:
                # The next sync writes the leader epochs. If a crash comes before it, recovery reads them from the
                # batches.
                self.epochs.assign_epoch(header.leader_epoch, header.base_offset)
                self._pending_sync.add_files({self._directory / EPOCH_FILE: self.epochs.encode()})
            if (
                header.has_producer
                and (txn := self.producers.apply_batch(header, marker, now_ms)) is not None
            ):
                if txn.aborted is None:
                    segment.committed_count += txn.record_count
                else:
                    segment.index_aborted(txn.aborted)
                    segment.growing.write_new_aborted()
                self.producers.end_transaction(txn)
        self.snapshots.count_appended(size)
        availability.is_writing = False

    # -- roll --------------------------------------------------------------------------------------------------

    def roll(self, now_ms: int) -> None:
        """Roll the log: seal the growing segment and begin a new one. Do nothing if the segment is empty.

        Raises:
            DiskError: the old segment's indexes cannot be written, or the new segment cannot be created. Nothing
                changed.
        """
        active = self.segments.active
        if active.size == 0:
            return
        active.write_complete_indexes()
        fresh = GrowingSegment.create(self._disk, SegmentName.of(self._directory, active.end_offset))
        fresh.created_ms = now_ms
        sealed = active.seal(self.producers.first_open_offset(active.end_offset), self._open_files)
        self.segments.roll(sealed, fresh)
        self._pending_sync.names_changed = True
        # The snapshot is written before the summary: once retention has deleted the segment, only the snapshot has the
        # transactions that began in it.
        self._snapshot()
        self._pending_sync.add_files({sealed.path(SUMMARY): sealed.summary.encode()})

    # -- snapshots ---------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Let the next sync write a snapshot of the producer state.

        Raises:
            UnavailableError: the index files that the snapshot describes cannot be written. No snapshot will be
                written.
        """
        self.segments.active.growing.write_files()
        self._snapshot()

    def _snapshot(self) -> None:
        active = self.segments.active
        progress = active.make_summary(self.producers.first_open_offset(active.end_offset))
        self._pending_sync.add_files(self.snapshots.make_snapshot(self.producers, progress))

    # -- durability --------------------------------------------------------------------------------------------

    def has_pending_writes(self, config: LogConfig) -> bool:
        """Whether the next sync also writes files, because a segment was sealed or a snapshot of the producer state is
        due.
        """
        return self._pending_sync.is_more_than_bytes or self.snapshots.is_due(config.snapshot_bytes)

    def sync_work(self, config: LogConfig) -> SyncWork:
        """Return the work that makes all appended batches durable.

        Raises:
            DiskError: the entry of an aborted transaction cannot be written to the transaction index. The abort marker
                must not become durable before it: programs that read the files would take the aborted records for
                committed ones.
        """
        self.segments.active.growing.write_aborted()
        if self.snapshots.is_due(config.snapshot_bytes):
            try:
                self.take_snapshot()
            except UnavailableError:
                self.snapshots.postpone_next()  # without the snapshot, the next recovery reads more of the log
        return self._pending_sync.make_work(self.segments, self.synced_offset)

    def finish_sync(self, work: SyncWork) -> None:
        """Finish a sync, after a `SyncWork` was run: move the synced offset, close the files of sealed segments, and
        remove old snapshots of the producer state.
        """
        self._pending_sync.finish_work(work, self.segments)
        self.synced_offset = max(self.synced_offset, work.end_offset)
        if not work.unwritten:
            self.snapshots.remove_older_snapshots(work.end_offset)

    def assume_synced(self) -> None:
        """Assume that all appended batches are synced, without a sync (`stablelog.flush=os`): count them as durable.
        Raises DiskError if an entry of the transaction index cannot be written.
        """
        active = self.segments.active
        active.growing.write_aborted()
        if self._pending_sync.is_idle:  # No `SyncWork` can be running, so no thread is syncing these files.
            active.growing.close_files()

    def sync_up_to(self, offset: int) -> None:
        """Sync the log, if it is not synced up to this offset yet.

        The caller is about to record this offset as the start of the log. Without the sync, a crash could leave a log
        that ends before its recorded start, and the next start of the broker would refuse this log. A sync is needed
        only with `stablelog.flush=os`, because only then may the high watermark be ahead of the synced end.

        Raises:
            DiskError: it is unknown which bytes are durable, and the partition has failed.
        """
        if offset <= self.synced_offset:
            return
        try:
            self._pending_sync.sync_log(self.segments)
        except DiskError as error:
            self._availability.mark_failed(error)
            raise
        self.synced_offset = self.segments.active.end_offset

    def prove_segments(self) -> None:
        """Prove at once every log file that recovery has not read: compare its batch headers with the CRC in the
        segment's summary or in a snapshot.

        Raises:
            DamageError: a log file has changed since it was written.
        """
        self._availability.check_open()
        for segment in self.segments:
            segment.prove_now()

    # -- transactions and compaction ---------------------------------------------------------------------------

    def open_transactions(self) -> list[OpenTxn]:
        """Return the open transactions of this partition, oldest first."""
        return [
            OpenTxn(
                one.producer_id,
                one.producer_epoch,
                one.txn_first_offset,
                one.txn_started_ms,
                self._found_epochs.get(one.txn_first_offset, self.epochs.epoch_of(one.txn_first_offset)),
            )
            for one in self.producers.open_producers()
        ]

    def replace_segments(self, segments: LogSegments, begin: int, end: int) -> None:
        """Replace the list of segments by `segments`, after compaction has rewritten those with the offsets [begin,
        end). The snapshots of the producer state there are forgotten, because compaction has removed them.
        """
        self.segments = segments
        self.snapshots.forget_snapshots_within(begin, end)

    def aborted_behind(self, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that reach beyond an offset: they began before it, and their markers are at
        or after it. Only transactions whose markers are synced are returned.

        The reason: with `stablelog.flush=os`, a power failure may remove a marker that is not synced, and the
        transaction would be open again.
        """
        found, _ = find_aborted(self.segments, end_offset, end_offset)
        return [txn for txn in found if txn.last_offset < self.synced_offset]

    # -- close -------------------------------------------------------------------------------------------------

    def is_ready_to_close(self) -> bool:
        """Whether the log is ready for a clean close: the close has nothing to write, if the log is synced up to its
        end.
        """
        active = self.segments.active
        is_told = active.end_offset == 0 or (
            active.is_time_index_complete
            and active.growing.are_files_complete
            and not self.snapshots.needs_snapshot(self.producers, active)
        )
        return is_told and self._pending_sync.is_idle

    def prepare_close(self) -> None:
        """Let the next sync write what a clean close (after which a start reads little of the log) needs: complete
        index files, and a snapshot if the next start needs one.
        """
        active = self.segments.active
        needs_snapshot = self.snapshots.needs_snapshot(self.producers, active)
        active.write_complete_indexes()
        self._pending_sync.are_indexes_written = True
        if needs_snapshot:
            self._snapshot()

    def close(self) -> None:
        """Close every file."""
        for segment in self.segments:
            segment.close()
