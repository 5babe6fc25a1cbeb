"""Replay: reads the log from the offset that the recovery plan names, rebuilds the producer state, indexes and
summaries, and truncates the log at a damaged tail.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stablelog.batch.header import HEADER, BatchHeader, crc_holds
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError, DiskError, adding_path
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.files.names import LOG, SUMMARY, TXNINDEX, SegmentName
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.recovery.formats import check_formats
from stablelog.log.recovery.plan import NEVER, Known, RecoveryPlan, RecoveryPlanner
from stablelog.log.recovery.replayed_snapshots import ReplayedSnapshots
from stablelog.log.recovery.tail import RemovedTail, check_cut, keep_tail
from stablelog.log.recovery.trust import ReplayStart
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import bad_crc
from stablelog.log.segments.replacement import finish_interrupted
from stablelog.log.segments.scan import check_crc, check_offset, scan_batches
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX

PROGRESS_SIZE = 64 << 20
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Recovered:
    """A partition after recovery. All its files are durable.

    Attributes:
        sealed: the sealed segments, oldest first.
        growing: the last segment, which is open for appends.
        producers: the producer state at the end of the log.
        epochs: the leader epochs.
        start_offset: the log start offset.
        snapshots: the snapshots that were found.
        removed_tails: the damaged bytes that were cut off at the end of log files, in the order of the log.
    """

    sealed: list[SealedSegment]
    growing: GrowingSegment
    producers: Producers
    epochs: LeaderEpochs
    start_offset: int
    snapshots: Snapshots
    removed_tails: list[RemovedTail] = field(default_factory=list)


def recover(
    listing: Listing,
    open_files: OpenFiles,
    known: Known,
    *,
    index_interval: int,
    progress: Progress | None = None,
) -> Recovered:
    """Recover the partition in a directory: open its files, and repair what a crash has left.

    Args:
        listing: the names of the files in the directory, with a cache of their contents.
        open_files: the cache that limits how many sealed segments have open files.
        known: what the broker knows about the partition before it opens the directory, such as the recovery point.
        index_interval: the number of bytes between two entries of the offset index.
        progress: called with (bytes done, bytes in all) while the log is read.

    Returns:
        The recovered partition, whose last segment is ready for appends.

    Raises:
        UnknownFormatError: a later release has written to the directory; nothing was changed.
        DamageError: durable bytes are damaged or missing. No log file was changed.
        DiskError: the disk failed.
    """
    check_formats(listing)
    with adding_path(listing.directory):
        finish_interrupted(listing)
        planner = RecoveryPlanner(listing, open_files, known)
        plan = planner.make_plan()
        if plan is None:
            return _create_log(
                listing.disk, listing.directory, SegmentName.of(listing.directory, planner.log_start)
            )
        return _Replay(listing, planner, plan, known, index_interval, progress).run()


def _create_log(disk: Disk, directory: Path, name: SegmentName) -> Recovered:
    """Create a new log. The log-start-offset file is written only after the log file is durable in the directory."""
    segment = GrowingSegment.create(disk, name)
    try:
        disk.sync_dir(directory)
        disk.write_atomic(directory / LOG_START_FILE, encode_log_start(segment.base_offset))
    except DiskError:
        segment.close()
        raise
    snapshots = Snapshots(disk, directory)
    return Recovered([], segment, Producers(), LeaderEpochs(), segment.base_offset, snapshots)


class _Replay:
    def __init__(
        self,
        listing: Listing,
        planner: RecoveryPlanner,
        plan: RecoveryPlan,
        known: Known,
        index_interval: int,
        progress: Progress | None,
    ) -> None:
        self._listing = listing
        self._planner = planner
        self._plan = plan
        self._known = known
        self._gapless_epoch = NEVER  # the leader epoch from which on a gap in the segment is damage
        self._latest_epoch = 0  # the greatest leader epoch of the batches read so far in a segment
        self._index_interval = index_interval
        self._progress = progress
        self._done_size = 0
        self._all_size = 0
        self._epochs = LeaderEpochs()
        self._written_epochs = b""  # the content of their file
        self._epochs_lost = False
        self._removed_tails: list[RemovedTail] = []
        self._snapshots = ReplayedSnapshots(plan)

    def run(self) -> Recovered:
        plan = self._plan
        self._read_epochs(plan.trusted)
        sealed, growing = self._replay(plan.trusted, plan.rest, plan.start)
        end_offset = growing.end_offset
        self._snapshots.remove_past(end_offset)
        self._epochs.truncate_to(end_offset)
        self._write_epochs()
        if self._planner.log_start > end_offset:
            raise DamageError(
                f"{self._listing.directory / LOG_START_FILE} says that the log begins at offset {self._planner.log_start}, but the log "
                f"ends at {end_offset}. Restore the one that is wrong: this file, or the log files"
            )
        self._planner.remove_segments(plan.deleted)
        if not plan.is_log_start_written:
            self._listing.disk.write_atomic(
                self._listing.directory / LOG_START_FILE, encode_log_start(self._planner.log_start)
            )
        producers = plan.start.producers
        # Producers of replayed batches count, too: if there are producers, a close writes a snapshot, which records the
        # times of their last use.
        snapshots = self._snapshots.found(end_offset, self._done_size, holds_producers=len(producers) > 0)
        return Recovered(
            sealed,
            growing,
            producers,
            self._epochs,
            self._planner.log_start,
            snapshots,
            self._removed_tails,
        )

    # -- leader epochs -----------------------------------------------------------------------------------------

    def _read_epochs(self, trusted: list[SealedSegment]) -> None:
        """Read the leader epochs from their file, or rebuild them from the batch headers if the file is missing or
        damaged, or has a greater epoch than the broker.

        Raises:
            DamageError: a batch of a trusted segment (one that recovery does not read) has a greater epoch than the
                broker.
        """
        found = self._plan.directory.epochs()
        self._written_epochs = (found or self._epochs).encode()
        if found is not None and found.latest <= self._known.leader_epoch:
            self._epochs = found
            return
        self._epochs_lost = True
        for segment in trusted:
            for _, header in segment.walk_unproven(0):
                self._epochs.assign_epoch(header.leader_epoch, header.base_offset)
            if self._known.is_established and self._epochs.latest > self._known.leader_epoch:
                raise DamageError(
                    f"{segment.path(LOG)} has a batch of leader epoch {self._epochs.latest}, but the epoch of this start of the broker "
                    f"is only {self._known.leader_epoch}. Restore the one that is wrong: this file, or the one that records the "
                    f"last epoch, {self._listing.directory.parent / 'cluster.json'}"
                )

    def _write_epochs(self) -> None:
        content = self._epochs.encode()
        if content != self._written_epochs:
            self._listing.disk.write_atomic(self._listing.directory / EPOCH_FILE, content)
            self._written_epochs = content

    # -- reading -----------------------------------------------------------------------------------------------

    def _replay(
        self, trusted: list[SealedSegment], rest: list[SegmentName], start: ReplayStart
    ) -> tuple[list[SealedSegment], GrowingSegment]:
        """Read the log from `start` to its end, or to the damage at which it is truncated.

        Args:
            trusted: the first segments, which their summaries describe, so that they are not read.
            rest: all later segments, oldest first.
            start: the offset where replay begins, and the state of the log there.

        Returns:
            Two values: the sealed segments that remain, oldest first; and the last segment, which is ready for appends.
        """
        names = [*(self._plan.directory.segment_name(one.base_offset) for one in trusted), *rest]
        first = max(place for place, name in enumerate(names) if name.base_offset <= start.offset)
        if self._progress is not None:
            self._all_size = sum(self._listing.disk.size(name.path(LOG)) for name in names[first:])
        for segment in trusted[first:]:
            self._replay_trusted(segment, start)
        sealed = list(trusted)
        for place, name in enumerate(rest):
            later = rest[place + 1 :]
            # A gap in a sealed segment is no damage, because compaction may have left it.
            self._gapless_epoch = NEVER if later else self._known.gapless_epoch
            is_within = start.progress is not None and start.progress.base_offset == name.base_offset
            known = (start.progress, start.indexes) if is_within else ()
            growing = GrowingSegment.open_for_replay(self._listing.disk, name, *known)
            damage = self._read_segment(growing, start)
            if damage is None and later:
                damage = self._gap_behind(growing, later[0])
            if damage is not None or not later:
                self._finish(growing, later, damage or "")
                return sealed, growing
            sealed.append(self._seal(growing, later[0].base_offset, start.producers))
        raise AssertionError("unreachable: the last segment is always read, so the loop returns")

    def _gap_behind(self, segment: GrowingSegment, following: SegmentName) -> str | None:
        """Describe the offsets that are missing between a whole segment and the next one; None if no offset is missing.

        Raises:
            DamageError: the two segments overlap.
        """
        if following.base_offset < segment.end_offset:
            raise DamageError(
                f"{following.path(LOG)} begins before the end of the segment before it, so one of the two "
                "files is wrong. Restore both files"
            )
        is_from_compaction = following.base_offset in self._plan.directory.snapshots
        if following.base_offset == segment.end_offset or self._plan.synced.is_clean or is_from_compaction:
            return None
        return f"offsets {segment.end_offset} to {following.base_offset - 1} are missing"

    def _replay_trusted(self, segment: SealedSegment, start: ReplayStart) -> None:
        """Update the producer state from a trusted segment, one whose files match its summary. Check its batch headers
        and markers. Its index files are kept.

        Raises:
            DamageError: headers or markers have changed since they were written.
        """
        segment.prove_now()
        for position, header in segment.walk(0):
            self._count_read(header.size)
            if header.base_offset >= start.offset:
                batch = segment.log.read(position, header.size) if header.is_control else b""
                if batch and not crc_holds(batch, 0, header):
                    raise DamageError(bad_crc(segment.path(LOG), header, position))
                txn = start.producers.apply_read_batch(header, batch, self._known.now_ms)
                if txn is not None:
                    start.producers.end_transaction(txn)

    def _read_segment(self, segment: GrowingSegment, start: ReplayStart) -> str | None:
        """Update the indexes and the producer state from the batches of a segment, which replay reads.

        Returns:
            The damage at which the segment was truncated; None if the segment is whole.

        Raises:
            DamageError: durable bytes of the segment are damaged.
        """
        if self._epochs_lost:
            for _, header in segment.walk_unproven(0):
                self._epochs.assign_epoch(header.leader_epoch, header.base_offset)
        file = segment.opened_log()
        marks = self._plan.directory.header_crcs(segment.base_offset)
        self._latest_epoch, changed_size, damage = 0, 0, None
        try:
            for position, header, batch in scan_batches(file.read, segment.size, file.size):
                self._check_place(header, segment, position)
                check_crc(header, batch, position)
                self._apply_batch(segment, header, position, batch, start)
                self._count_read(header.size)
                if marks.get(segment.size, segment.log_crc) != segment.log_crc:
                    changed_size = segment.size
        except DamageError as error:
            damage = str(error)
        if changed_size:
            raise DamageError(
                f"{segment.path(LOG)}: the first {changed_size} bytes are not those that were written: the offset or the leader epoch "
                "of a batch has changed since they were durable. Restore the file. To go on without the records from there "
                "on, run `stablelog repair`, which first shows what is lost"
            )
        if damage is not None:
            self._truncate(segment, damage)
        return damage

    def _check_place(self, header: BatchHeader, segment: GrowingSegment, position: int) -> None:
        """Raise DamageError if the base offset or the leader epoch of a batch is impossible at this position. The CRC
        of the batch does not cover these two fields.
        """
        check_offset(header, position, segment.end_offset, self._gapless_epoch)
        if header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX:
            raise DamageError(
                f"the batch at byte {position} begins at offset {header.base_offset}, which is beyond the offsets that "
                f"a segment with base offset {segment.base_offset} can hold"
            )
        if (
            self._known.is_established
            and not self._latest_epoch <= header.leader_epoch <= self._known.leader_epoch
        ):
            raise DamageError(
                f"the batch at offset {header.base_offset}, byte {position}, has leader epoch {header.leader_epoch}, but only "
                f"{self._latest_epoch} to {self._known.leader_epoch} are possible"
            )

    def _apply_batch(
        self, segment: GrowingSegment, header: BatchHeader, position: int, batch: Buffer, start: ReplayStart
    ) -> None:
        segment.index_batch(header, position, batch[: HEADER.size], self._index_interval)
        self._epochs.assign_epoch(header.leader_epoch, header.base_offset)
        self._latest_epoch = header.leader_epoch
        assert header.base_offset >= start.offset, "batches before the snapshot are not read again"
        txn = start.producers.apply_read_batch(header, batch, self._known.now_ms)
        if txn is not None:
            if txn.aborted is not None:
                segment.index_aborted(txn.aborted)
            else:
                segment.committed_count += txn.record_count
            start.producers.end_transaction(txn)

    # -- truncating and sealing --------------------------------------------------------------------------------

    def _truncate(self, segment: GrowingSegment, damage: str) -> None:
        """Truncate a segment after its last whole batch, and keep the removed bytes in a `.cut` file.

        Raises:
            DamageError: the bytes to be removed were durable, or may have been durable.
        """
        where = self._listing.disk, segment.path(LOG), segment.size, segment.end_offset, damage
        check_cut(*where, self._plan.synced)
        self._removed_tails += keep_tail(*where)
        segment.truncate_after_last()

    def _is_as_synced(self, segment: GrowingSegment) -> bool:
        """Whether everything is as the last sync of the broker has left it: the whole log is known to be durable, and
        its index files and snapshots need no repair.

        The directory entry of the last log file is then durable, too: the log-start-offset file is written only after
        that of the first log file is durable, and the summary of a segment only after that of the next log file is
        durable.
        """
        return (
            (self._plan.synced.is_clean or self._known.is_established)
            and self._plan.synced.covers(segment.end_offset - 1)
            and f"{segment.base_offset:020d}{SUMMARY}" not in self._listing
            and segment.adopt_index_files(self._listing, are_synced=self._plan.synced.is_clean)
            and all(
                self._plan.directory.indexes_up_to(progress) is not None
                for _, progress in self._snapshots.unused_within(segment)
            )
        )

    def _finish(self, segment: GrowingSegment, later: list[SegmentName], damage: str) -> None:
        """Make the last segment durable and ready for appends, and remove all later segments.

        Raises:
            DamageError: the log ends before an offset that was durable, or durable bytes would be removed.
        """
        if segment.end_offset < self._plan.synced.offset:
            raise DamageError(
                f"{segment.path(LOG)} ends at offset {segment.end_offset - 1}; records up to offset "
                f"{self._plan.synced.offset - 1} were durable, so the disk has lost records. Restore the file. To go on "
                "without these records, run `stablelog repair`, which first shows what is lost"
            )
        if not later and not damage and self._is_as_synced(segment):
            return
        self._remove_segments(segment, later, damage)
        if self._listing.disk.exists(segment.path(SUMMARY)):
            # The summary is removed first: a segment with a summary must have a next segment, also if a crash
            # interrupts this method.
            self._listing.disk.remove(segment.path(SUMMARY))
            self._listing.disk.sync_dir(self._listing.directory)
        self._write_indexes(segment)
        segment.growing.close_files()
        segment.opened_log().sync()
        self._listing.disk.sync_dir(self._listing.directory)
        segment.growing.names_changed = False

    def _remove_segments(self, last: GrowingSegment, later: list[SegmentName], damage: str) -> None:
        """Remove the segments after the log's new end, and keep the bytes of their log files in `.cut` files.

        Raises:
            DamageError: these segments were durable, or may have been durable.
        """
        damage = f"the segment follows {last.path(LOG)}, where the log was truncated: {damage}"
        for segment in later:
            if self._listing.disk.size(segment.path(LOG)):
                check_cut(
                    self._listing.disk, segment.path(LOG), -1, segment.base_offset, damage, self._plan.synced
                )
        for segment in later:
            self._removed_tails += keep_tail(
                self._listing.disk, segment.path(LOG), 0, segment.base_offset, damage
            )
        self._planner.remove_segments(later)

    def _seal(self, growing: GrowingSegment, next_base_offset: int, producers: Producers) -> SealedSegment:
        """Seal a segment, make it durable, and write its summary (offsets, sizes and checksums)."""
        growing.complete_time_index()
        self._write_indexes(growing)
        stable_offset = producers.first_open_offset(next_base_offset)
        segment = growing.seal(stable_offset, self._planner.open_files, end_offset=next_base_offset)
        for file in segment.files_to_sync(indexes=True):
            file.sync()
        self._listing.disk.sync_dir(self._listing.directory)
        # The next start of the broker reads no batch before the snapshot. It takes the leader epochs of these batches
        # from the file `leader-epoch-checkpoint`.
        self._write_epochs()
        # A sealed segment needs a snapshot at its end: when the segment is deleted, only the snapshot has the
        # transactions that began in it.
        progress = Summary(next_base_offset, next_base_offset, stable_offset=stable_offset)
        self._snapshots.write(producers, progress)
        self._listing.disk.write_atomic(segment.path(SUMMARY), segment.summary.encode())
        segment.mark_durable()
        return segment

    def _write_indexes(self, segment: GrowingSegment) -> None:
        """Write the indexes from memory to their files, in place of earlier contents, which may have entries of lost
        batches. Remove snapshots that do not match the written indexes.
        """
        self._snapshots.remove_outdated(segment)
        if segment.least_aborted_offset is None:
            self._listing.disk.remove(segment.path(TXNINDEX))
        segment.growing.write_files()

    def _count_read(self, size: int) -> None:
        before = self._done_size // PROGRESS_SIZE
        self._done_size += size
        if self._progress is not None and self._done_size // PROGRESS_SIZE != before:
            self._progress(self._done_size, self._all_size)
