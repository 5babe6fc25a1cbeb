"""Writes planned batches to the end of a log, and updates the indexes and the producer state in memory.

An append does these steps in this order: it writes the bytes to the log file; it updates the producer state; for an
abort marker, it writes the entry of the transaction index; then the transaction counts as ended. The table in
`recovery` covers a crash between any two of these steps. While an entry of the transaction index cannot be written, the
high watermark does not move. The other index files may lack entries that are in memory.
"""

from collections.abc import Sequence
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import DiskError, UnavailableError
from stablelog.log.append import PlannedBatch
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.names import SUMMARY, SegmentName
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig, OpenTxn
from stablelog.log.producer_state.producers import EndedTxn, Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.recovery import Recovered
from stablelog.log.recovery.epoch_check import epoch_at
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segments import Segments
from stablelog.log.unsynced import SyncWork, Unsynced
from stablelog.log.usability import Usability


class LogWriter:
    """The segments, producer state and leader epochs of one open log, and the writes at its end.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        found: the result of recovery.
        open_files: the cache that limits how many sealed segments have open files.
        usability: the usability of the partition. It is set to failed when a write stops half-way.
        snapshots: the snapshots of the partition.
        now_ms: the broker's clock.

    Attributes:
        segments: the segments, oldest first. Compaction replaces this object.
        producers: the producer state.
        epochs: the leader epochs.
        synced_offset: the first offset that is not known to be synced. With `stablelog.flush=os` it may be less than
            the high watermark.
    """

    # A broker has one of these objects for each partition, and reads thousands of them in one callback.
    __slots__ = (
        "_directory",
        "_disk",
        "_found_epochs",
        "_open_files",
        "_snapshots",
        "_unsynced",
        "_usability",
        "epochs",
        "producers",
        "segments",
        "synced_offset",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        found: Recovered,
        open_files: OpenFiles,
        usability: Usability,
        snapshots: Snapshots,
        now_ms: int,
    ) -> None:
        self.segments = Segments(found.sealed, found.growing)
        self.producers: Producers = found.producers
        self.epochs: LeaderEpochs = found.epochs
        self.synced_offset = self.segments.active.end_offset
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._usability = usability
        self._snapshots = snapshots
        self._unsynced = Unsynced(disk, directory, self.segments.active.base_offset)
        snapshots.opened(found.snapshots)
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

    def write(self, batches: Sequence[PlannedBatch], config: LogConfig, now_ms: int) -> None:
        """Append batches that fit into one segment, with one write to the file.

        Raises:
            DiskError: no reader will see the batches. If a part of the batches could not be removed from the file, the
                partition has failed, because the next append would follow batches that were reported as failed.
        """
        size, buffers = batches[0].header.size, batches[0].buffers
        if len(batches) > 1:
            size = sum(batch.header.size for batch in batches)
            buffers = tuple(buffer for batch in batches for buffer in batch.buffers)
        self._roll_if_needed(size, batches[-1].header.last_offset, config, now_ms)
        segment, usability = self.segments.active, self._usability
        try:
            position = segment.append(buffers)
        except DiskError as error:
            if not error.undone:
                usability.fail(error)
            raise
        usability.is_writing = True
        for header, head, _, marker in batches:
            segment.note(header, position, head, config.index_interval_bytes)
            position += header.size
            if header.leader_epoch > self.epochs.latest:
                # The next sync writes the leader epochs. If a crash comes before it, recovery reads them from the
                # batches.
                self.epochs.assign(header.leader_epoch, header.base_offset)
                self._unsynced.write({self._directory / EPOCH_FILE: self.epochs.encode()})
            if header.has_producer and (txn := self.producers.note(header, marker, now_ms)) is not None:
                self._end(segment, txn)
        self._snapshots.appended(size)
        usability.is_writing = False

    def _end(self, segment: GrowingSegment, txn: EndedTxn) -> None:
        if txn.aborted is None:
            segment.committed_count += txn.record_count
        else:
            segment.note_aborted(txn.aborted)
            segment.growing.aborted_added()
        self.producers.ended(txn)

    # -- roll --------------------------------------------------------------------------------------------------

    def _roll_if_needed(self, size: int, last_offset: int, config: LogConfig, now_ms: int) -> None:
        active = self.segments.active
        if active.size == 0:
            active.created_ms = now_ms
        elif (
            not active.has_room(size, last_offset, config.segment_bytes, config.segment_index_bytes)
            or now_ms - active.created_ms > config.segment_ms
        ):
            self.roll(now_ms)

    def roll(self, now_ms: int) -> None:
        """Seal the growing segment, unless it is empty, and begin a new one.

        Raises:
            DiskError: the old segment's indexes cannot be written, or the new segment cannot be made. Nothing changed.
        """
        active = self.segments.active
        if active.size == 0:
            return
        active.complete_time_index()
        active.growing.write()
        fresh = GrowingSegment.created(self._disk, SegmentName.of(self._directory, active.end_offset))
        fresh.created_ms = now_ms
        sealed = active.seal(self._decided_end(), self._open_files)
        self.segments.roll(sealed, fresh)
        self._unsynced.names_changed = True
        # The snapshot is written before the summary: once retention has deleted the segment, only the snapshot has the
        # transactions that began in it.
        self._snapshot()
        self._unsynced.write({sealed.path(SUMMARY): sealed.summary.encode()})

    def _decided_end(self) -> int:
        """Return the first offset of the oldest open transaction; the log's end if no transaction is open."""
        first_open = self.producers.first_open_offset()
        return self.segments.active.end_offset if first_open is None else first_open

    # -- snapshots ---------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Let the next sync write a snapshot of the producer state.

        Raises:
            UnavailableError: the indexes that the snapshot describes cannot be written. Nothing else changed.
        """
        self.segments.active.growing.write()
        self._snapshot()

    def _snapshot(self) -> None:
        progress = self.segments.active.progress(self._decided_end())
        self._unsynced.write(self._snapshots.take(self.producers, progress))

    def lacks_snapshot(self) -> bool:
        """Whether the next start of the broker needs a snapshot at the log's end and there is none, as
        `Snapshots.lacks_newest` decides.
        """
        return self._snapshots.lacks_newest(self.producers, self.segments.active)

    # -- durability --------------------------------------------------------------------------------------------

    def has_pending_writes(self, config: LogConfig) -> bool:
        """Whether a segment was sealed or a snapshot is due, so that the next sync writes files."""
        return self._unsynced.is_more_than_bytes or self._snapshots.is_due(config.snapshot_bytes)

    def sync_work(self, config: LogConfig) -> SyncWork:
        """Return the `SyncWork` that makes all appended batches durable.

        Raises:
            DiskError: the file of the transaction index lacks an aborted transaction, and it cannot be written. The
                abort marker must not become durable before its entry, because programs that read the files would take
                the aborted records for committed ones.
        """
        self.segments.active.growing.write_aborted()
        if self._snapshots.is_due(config.snapshot_bytes):
            try:
                self.take_snapshot()
            except UnavailableError:
                self._snapshots.put_off()  # without the snapshot, the next recovery reads more of the log
        return self._unsynced.work(self.segments, self.synced_offset)

    def synced(self, work: SyncWork) -> None:
        """Note that this `SyncWork` was run."""
        self._unsynced.done(work, self.segments)
        self.synced_offset = max(self.synced_offset, work.end_offset)
        if not work.unwritten:
            self._snapshots.remove_older(work.end_offset)

    def assume_synced(self) -> None:
        """Count all appended batches as durable without a sync (`stablelog.flush=os`). Raises the same errors as
        `sync_work`.
        """
        active = self.segments.active
        active.growing.write_aborted()
        if self._unsynced.is_idle:  # No `SyncWork` can be running, so no thread is syncing these files.
            active.growing.close_files()

    def sync_up_to(self, offset: int) -> None:
        """Sync the log, unless it is synced up to this offset. Without the sync, a crash could leave a log that ends
        before its recorded start, and the next start of the broker would refuse it.

        A sync can be needed only with `stablelog.flush=os`, because only then can the high watermark be ahead of the
        synced end.

        Raises:
            DiskError: it is unknown which bytes are durable, and the partition has failed.
        """
        if offset <= self.synced_offset:
            return
        try:
            self._unsynced.sync_log(self.segments)
        except DiskError as error:
            self._usability.fail(error)
            raise
        self.synced_offset = self.segments.active.end_offset

    def will_end_at(self, end_offset: int) -> None:
        """Note, before a truncation, that what is synced ends at `end_offset`."""
        self.synced_offset = min(self.synced_offset, end_offset)
        self._snapshots.forget_past(end_offset)

    def prove(self) -> None:
        """Check at once the batch headers of every log file that recovery has not read.

        Raises:
            DamageError: a log file has changed since it was written.
        """
        self._usability.check_open()
        for segment in self.segments:
            segment.prove_now()

    # -- transactions and compaction ---------------------------------------------------------------------------

    def open_transactions(self) -> list[OpenTxn]:
        """Return the transactions that are open in this partition, oldest first."""
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

    def replace_segments(self, segments: Segments, begin: int, end: int) -> None:
        """Use other segments from now on: compaction has rewritten those with the offsets [begin, end)."""
        self.segments = segments
        self._snapshots.forget_within(begin, end)

    def aborted_behind(self, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that began before `end_offset` and whose markers are synced and at or past
        `end_offset`.

        A marker that is not synced does not count: with `stablelog.flush=os` a power failure may remove it, and the
        transaction would be open again.
        """
        found = self.segments.aborted(end_offset, end_offset)
        return [txn for txn in found if txn.last_offset < self.synced_offset]

    # -- close -------------------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether a clean close would write nothing, if the log is synced up to its end."""
        active = self.segments.active
        if active.end_offset == 0 or not self._unsynced.is_idle:
            return self._unsynced.is_idle
        is_told = not self.lacks_snapshot()
        return is_told and active.is_time_index_complete and active.growing.are_files_complete

    def settle(self) -> None:
        """Let the next sync write what a clean close needs: complete indexes, and a snapshot if the next start of the
        broker needs one.
        """
        lacks_snapshot = self.lacks_snapshot()
        active = self.segments.active
        active.complete_time_index()
        active.growing.write()
        self._unsynced.are_indexes_written = True
        if lacks_snapshot:
            self._snapshot()

    def close(self) -> None:
        """Close every file."""
        for segment in self.segments:
            segment.close()
