"""The plan of a recovery: which segments are opened without reading them, and where replay of the log begins.

Planning also checks that no file is missing. It reads the names and the small files of the directory, but no log file.
It removes only leftover files of deleted segments, and an empty last segment that is not needed.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stablelog.errors import DamageError
from stablelog.log.directory import PartitionDirectory
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.files.names import (
    LOG,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    SUMMARY,
    SegmentName,
    first_segment_path,
    has_offset,
    offset_of,
)
from stablelog.log.indexes.summary import Summary
from stablelog.log.recovery.tail import SyncedEnd
from stablelog.log.recovery.trust import ReplayStart, choose_replay_start, trusted_summaries
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.sealed_segment import SealedSegment

NEVER = 2**31  # greater than any leader epoch; as `gapless_epoch`, it allows gaps everywhere


@dataclass(frozen=True, slots=True)
class Known:
    """What the broker knows about a partition before it opens the directory.

    Attributes:
        is_clean: whether the last broker closed the log, so that all of it was durable.
        is_established: whether an earlier start of stablelog has completed the directory, so that a missing file is a
            lost file. If not, the directory is new, or Apache Kafka has written it.
        recovery_point: the recorded offset up to which the log was synced, exclusive; None if none is recorded.
        leader_epoch: the leader epoch of this start of the broker. No batch has a later one.
        now_ms: broker time, a clock that never goes back, even if the machine's clock is set back.
        log_start_offset: the log start offset in the data directory's checkpoint. The log begins there, or later if the
            partition's own file says so.
        gapless_epoch: a leader epoch. Batches of this epoch and of later ones follow each other without a gap in the
            growing segment, so a gap between two of them means lost records.
    """

    is_clean: bool
    is_established: bool
    recovery_point: int | None
    leader_epoch: int
    now_ms: int
    log_start_offset: int = 0
    gapless_epoch: int = NEVER


@dataclass(slots=True)
class RecoveryPlan:
    """The plan of a recovery. Replay carries it out: it reads the log after the trusted part.

    Attributes:
        directory: the directory of the partition.
        trusted: the first segments, which are trusted: their summaries describe them, and recovery does not read their
            log files.
        rest: all later segments, oldest first. There is at least one.
        synced: the offset up to which the log was synced.
        start: the offset where replay (the reading of the log) begins, and the producer state there.
        is_log_start_written: whether the partition's log-start-offset file has this offset.
        deleted: segments before the log start offset. They are removed after replay has shown that the log reaches this
            offset.
    """

    directory: PartitionDirectory
    trusted: list[SealedSegment]
    rest: list[SegmentName]
    synced: SyncedEnd
    start: ReplayStart
    is_log_start_written: bool
    deleted: list[SegmentName]


class RecoveryPlanner:
    """Makes the plan for the recovery of one partition.

    Args:
        listing: the names of the files in the partition's directory, with a cache of their contents.
        open_files: the cache that limits how many sealed segments have open files.
        known: what the broker knows about the partition before it opens the directory, such as whether it was closed.

    Attributes:
        log_start: the log start offset, after `make_plan`.
    """

    def __init__(self, listing: Listing, open_files: OpenFiles, known: Known) -> None:
        self._directory = PartitionDirectory(listing)
        self._listing = listing
        self.open_files = open_files
        self._known = known
        self.log_start: int

    def make_plan(self) -> RecoveryPlan | None:
        """Make the plan of the recovery; return None if the partition is new.

        Raises:
            DamageError: durable bytes are missing. No log file was changed.
        """
        directory, bases = self._directory, self._directory.bases
        written = self._read_log_start(bases)
        if bases and bases[0] > self.log_start:
            raise DamageError(
                f"{first_segment_path(self._listing.directory, self._listing.names, self.log_start)} is missing: the log begins at offset {self.log_start}, but the first segment "
                f"that exists begins at offset {bases[0]}. Restore the missing files"
            )
        deleted_count = self._count_removable(bases)
        deleted = [self._directory.segment_name(base) for base in bases[:deleted_count]]
        self._check_orphans(bases, first_place=deleted_count)
        bases = bases[deleted_count:]
        if not bases:
            # The log-start-offset file is written only after the first log file is durable.
            if directory.snapshots or self._known.is_established or written:
                raise DamageError(
                    f"{first_segment_path(self._listing.directory, self._listing.names, self.log_start)} is missing: the directory "
                    "holds no log file, but the partition had one. Restore its files"
                )
            return None
        segments = [self._directory.segment_name(base) for base in bases]
        self._remove_unused(segments)
        summaries = [directory.summary(segment.base_offset) for segment in segments]
        synced = self._find_synced_end(summaries)
        self._check_sizes(segments, summaries)
        trusted = [
            SealedSegment(self._listing.disk, segment, summary, self.open_files)
            for segment, summary in zip(segments, trusted_summaries(directory, segments), strict=False)
        ]
        rest = segments[len(trusted) :]
        self._check_gaps(trusted, rest[0])
        start = choose_replay_start(
            directory, segments[0].base_offset, rest[0].base_offset, self._known.now_ms
        )
        return RecoveryPlan(
            directory,
            trusted,
            rest,
            synced,
            start,
            written,
            deleted,
        )

    def remove_segments(self, segments: Sequence[SegmentName]) -> None:
        """Remove all files of segments that are not open."""
        for segment in segments:
            for suffix in SEGMENT_SUFFIXES:
                self._listing.disk.remove(segment.path(suffix))
        if segments:
            self._listing.disk.sync_dir(self._listing.directory)

    # -- the log's start ---------------------------------------------------------------------------------------

    def _read_log_start(self, bases: list[int]) -> bool:
        """Find the log start offset. Return True if the partition's log-start-offset file has this offset; False if the
        file is missing or has a smaller one.
        """
        path = self._listing.path(LOG_START_FILE)
        said = (
            decode_log_start(self._listing.read(LOG_START_FILE), path)
            if LOG_START_FILE in self._listing
            else None
        )
        if said is None and self._known.is_established:
            raise DamageError(
                f"{path} is missing, which records where the log begins: without this file, records that "
                "were deleted could be read again. Restore the file"
            )
        first = said if said is not None else bases[0] if bases else 0
        self.log_start = max(self._known.log_start_offset, first)
        return said == self.log_start

    def _count_removable(self, bases: list[int]) -> int:
        """Count the segments before the log start offset that can be removed, because a crash has interrupted their
        deletion.

        They can be removed only if a later snapshot has the transactions that began in them. Otherwise replay reads
        them once more, for the producer state.
        """
        count = max(bisect_right(bases, self.log_start) - 1, 0)
        if not count or any(
            self._directory.has_readable_snapshot(offset)
            for offset in self._directory.snapshots
            if offset >= bases[count]
        ):
            return count
        # No snapshot of the segment with the log start offset, or of a later one, can be read. A segment that was not
        # durable yet when the log start offset moved was not deleted, and has no snapshot at its beginning. So find the
        # last segment that has a snapshot at its beginning, and remove only the segments before it.
        for at in range(count - 1, 0, -1):
            if self._directory.has_readable_snapshot(bases[at]):
                return at
        for at in range(count, 0, -1):
            summary = self._directory.summary(bases[at - 1])
            if summary is not None and summary.end_offset != bases[at]:
                return at  # The next segment is deleted already, so keeping this segment would leave a gap.
        return 0

    def _check_orphans(self, bases: list[int], *, first_place: int) -> None:
        """Remove orphans: the index files and summaries of segments whose log file was deleted.

        A deletion renames the log files of several segments. A crash may undo some of these renames, in any order. So
        the log file of a deleted segment may be missing although that of an earlier deleted segment exists.

        Args:
            bases: the base offsets of the log files.
            first_place: the index in `bases` of the first segment that stays.

        Raises:
            DamageError: there is a summary of a segment whose log file is missing, but was not deleted.
        """
        for name in self._listing.names:
            suffix = name[OFFSET_DIGITS:]
            if not has_offset(name) or suffix not in SEGMENT_SUFFIXES or offset_of(name) in bases:
                continue
            path, base = self._listing.path(name), offset_of(name)
            deleted = base < (bases[first_place] if bases else self.log_start)
            if suffix == SUMMARY and not deleted and self._directory.summary(base) is not None:
                raise DamageError(
                    f"{path.with_suffix(LOG)} is missing, and was durable. Restore the file. To go on without "
                    "its records, run `stablelog repair`, which first shows what is lost. Only if another "
                    f"program has compacted the log, remove the segment's summary, {path}"
                )
            self._listing.disk.remove(path)

    # -- segments and summaries --------------------------------------------------------------------------------

    def _remove_unused(self, segments: list[SegmentName]) -> None:
        """Remove an empty last segment that is not used: the segment before it has no summary, so it was not sealed
        yet, and continues to grow.

        If there is a snapshot at the beginning of the last segment, do nothing: then the segment before it was sealed,
        and its summary was lost. Compaction may have left gaps in this segment, so it must not grow again.
        """
        while (
            len(segments) > 1
            and self._directory.summary(segments[-2].base_offset) is None
            and segments[-1].base_offset not in self._directory.snapshots
            and not self._listing.disk.size(segments[-1].path(LOG))
        ):
            self.remove_segments([segments.pop()])

    def _find_synced_end(self, summaries: list[Summary | None]) -> SyncedEnd:
        # The summary of a segment is written only after the log file of the next segment is durable in the directory.
        # So if the last segment has a summary, the log file of a next segment is missing.
        if summaries[-1] is not None:
            raise DamageError(
                f"{self._directory.segment_name(summaries[-1].end_offset).path(LOG)} is missing, and was "
                "durable. Restore the file"
            )
        point = self._known.recovery_point
        ends = [summary.end_offset for summary in summaries if summary is not None]
        offset = max(point or 0, *ends, 0)
        later = (one for one in reversed(self._directory.snapshots) if one > offset)
        offset = next((one for one in later if self._directory.producers(one) is not None), offset)
        return SyncedEnd(offset, self._known.is_clean, is_recorded=point is not None)

    def _check_sizes(self, segments: list[SegmentName], summaries: list[Summary | None]) -> None:
        """Raise DamageError if a log file is shorter than the segment's summary says, which records the size of the
        sealed file.

        Without this check, a file that has lost whole batches at its end would look as if compaction had removed them.
        """
        for segment, summary in zip(segments, summaries, strict=True):
            path = segment.path(LOG)
            if summary is not None and (size := self._listing.disk.size(path)) < summary.log_size:
                raise DamageError(
                    f"{path} has only {size} bytes, but {summary.log_size} were durable. Restore the file from a backup. To go on "
                    "without these records, run `stablelog repair`, which first shows what is lost. Only if another program has "
                    f"compacted the log, remove the segment's summary, {segment.path(SUMMARY)}"
                )

    def _check_gaps(self, trusted: list[SealedSegment], behind: SegmentName) -> None:
        """Raise DamageError if a segment is missing between the trusted segments (those that are opened by their
        summaries, and not read), or between the last of them and the segment `behind`.
        """
        bases = [*(segment.base_offset for segment in trusted), behind.base_offset]
        for segment, base_offset in zip(trusted, bases[1:], strict=True):
            if segment.end_offset != base_offset:
                raise DamageError(
                    f"{self._directory.segment_name(segment.end_offset).path(LOG)} is missing: the segments of the offsets "
                    f"{segment.end_offset} to {base_offset - 1} were durable. Restore their files"
                )
