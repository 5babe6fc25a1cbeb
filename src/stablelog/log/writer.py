"""Writes planned batches to the end of a log, and notes them in memory.

An append goes in this order: bytes to the file, then producer state, then for an abort the index entry, then the
transaction counts as ended. A crash between any two is a row of the table in `recovery`. An index entry that cannot be
written keeps the high watermark where it is. The other index files may be behind memory.
"""

from collections.abc import Sequence
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import DiskError, Unavailable
from stablelog.log.append import PlannedBatch
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.names import SUMMARY
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producers import EndedTxn, Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.recovery import Recovered
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import Segment
from stablelog.log.segments.segments import Segments
from stablelog.log.unsynced import SyncWork, Unsynced
from stablelog.log.usability import Usability


class LogWriter:
    """The log of one partition in memory, and the writes at its end.

    Args:
        disk: where the partition lies.
        directory: the partition's own.
        found: what recovery has found.
        open_files: counts the open segments.
        usability: of the partition. It fails where a write was left half-way.
        snapshots: of the partition.
        now_ms: the broker's clock.

    Attributes:
        segments: oldest first. The partition replaces them after compaction.
        producers: the producer state.
        epochs: the leader epochs.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        found: Recovered,
        *,
        open_files: OpenFiles,
        usability: Usability,
        snapshots: Snapshots,
        now_ms: int,
    ) -> None:
        self.segments = Segments(found.segments)
        self.producers: Producers = found.producers
        self.epochs: LeaderEpochs = found.epochs
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._usability = usability
        self._snapshots = snapshots
        self._unsynced = Unsynced(disk, directory, self.segments.active.base_offset)
        snapshots.opened(found.snapshots)
        self.segments.active.created_ms = now_ms

    def write(self, batches: Sequence[PlannedBatch], config: LogConfig, now_ms: int) -> None:
        """Write batches that one segment can hold, with one write, and note them.

        Raises:
            DiskError: no read will see the batches. If a part of them could not be removed from the file, the partition
                has failed: a whole batch of that part could follow the next append.
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
                # A sync writes them. If a crash comes before it, recovery reads them in the batches.
                self.epochs.assign(header.leader_epoch, header.base_offset)
                self._unsynced.write({self._directory / EPOCH_FILE: self.epochs.encode()})
            if header.has_producer and (txn := self.producers.note(header, marker, now_ms)) is not None:
                self._end(segment, txn)
        self._snapshots.appended(size)
        usability.is_writing = False

    def _end(self, segment: Segment, txn: EndedTxn) -> None:
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
        """Seal the last segment, if it holds anything, and begin a new one.

        Raises:
            DiskError: the old segment's indexes cannot be written, or the new segment cannot be made. Nothing changed.
        """
        active = self.segments.active
        if active.size == 0:
            return
        active.complete_time_index()
        active.growing.write()
        fresh = Segment(self._disk, self._directory, active.end_offset, self._open_files)
        fresh.create()
        fresh.created_ms = now_ms
        active.seal(self._decided_end())
        assert active.summary is not None
        self.segments.add(fresh)
        self._unsynced.names_changed = True
        # The snapshot comes first: without the segment, only the snapshot has the transactions that began in it.
        self._snapshot()
        self._unsynced.write({active.path(SUMMARY): active.summary.encode()})

    def _decided_end(self) -> int:
        """The first offset that is undecided when all so far is written; the log's end if none is."""
        first_open = self.producers.first_open_offset()
        return self.segments.active.end_offset if first_open is None else first_open

    # -- snapshots ---------------------------------------------------------------------------------------------

    def take_snapshot(self) -> None:
        """Have a snapshot of the producer state written with the next sync.

        Raises:
            Unavailable: the indexes that it relies on cannot be written. Nothing else changed.
        """
        self.segments.active.growing.write()
        self._snapshot()

    def _snapshot(self) -> None:
        progress = self.segments.active.progress(self._decided_end())
        self._unsynced.write(self._snapshots.take(self.producers, progress))

    def lacks_snapshot(self) -> bool:
        """Whether the next start needs a snapshot at the log's end that is not there; see `Snapshots.lacks_newest`."""
        return self._snapshots.lacks_newest(self.producers, self.segments.active)

    # -- durability --------------------------------------------------------------------------------------------

    def has_pending_writes(self, config: LogConfig) -> bool:
        """Whether a segment was sealed or a snapshot is due, so that a sync writes files."""
        return self._unsynced.is_more_than_bytes or self._snapshots.is_due(config.snapshot_bytes)

    def sync_work(self, config: LogConfig, synced_offset: int) -> SyncWork:
        """The work that makes everything durable that was appended so far.

        Raises:
            DiskError: the transaction index lacks an aborted transaction, and its file cannot be written. Nothing may
                become durable before that: programs that read the files rely on it.
        """
        self.segments.active.growing.write_aborted()
        if self._snapshots.is_due(config.snapshot_bytes):
            try:
                self.take_snapshot()
            except Unavailable:
                self._snapshots.put_off()  # Without it recovery only reads more.
        return self._unsynced.work(self.segments, synced_offset)

    def synced(self, work: SyncWork) -> None:
        """Note that a work was run."""
        self._unsynced.done(work, self.segments)
        if not work.unwritten:
            self._snapshots.remove_older(work.end_offset)

    def assume_synced(self) -> None:
        """Count what the operating system has as durable. Raises as `sync_work`."""
        active = self.segments.active
        active.growing.write_aborted()
        if self._unsynced.is_idle:  # no thread syncs these files
            active.growing.close_files()

    def sync_log(self) -> None:
        """Sync the log at once.

        Raises:
            DiskError: which bytes are durable is not known, and the partition has failed.
        """
        try:
            self._unsynced.sync_log(self.segments)
        except DiskError as error:
            self._usability.fail(error)
            raise

    # -- close -------------------------------------------------------------------------------------------------

    def is_settled(self) -> bool:
        """Whether a clean close of a log that is synced up to its end has nothing to write."""
        active = self.segments.active
        if active.end_offset == 0 or not self._unsynced.is_idle:
            return self._unsynced.is_idle
        is_told = not self.lacks_snapshot()
        return is_told and active.is_time_index_complete and active.growing.are_files_complete

    def settle(self) -> None:
        """Have all that a clean close leaves written by the next sync: complete indexes, and a snapshot if needed."""
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
