"""The plan of a recovery: checks that no file is missing, and decides where replay begins.

It reads names and small files, and no log file. It removes only files of segments whose log file is deleted.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from stablelog.errors import Corrupt
from stablelog.log.directory import PartitionDirectory
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.files.names import (
    LOG,
    OFFSET_DIGITS,
    SEGMENT_SUFFIXES,
    SUMMARY,
    first_segment_path,
    has_offset,
    offset_of,
)
from stablelog.log.indexes.summary import Summary
from stablelog.log.recovery.tail import SyncedEnd
from stablelog.log.recovery.trust import Start, choose_start, trusted_summaries
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import Segment

NEVER = 2**31  # greater than any leader epoch


@dataclass(frozen=True, slots=True)
class Known:
    """What the broker knows of a partition when it opens its directory.

    Attributes:
        is_clean: whether the last owner closed the log, so that all of it was durable.
        is_established: whether the directory once had all files of this release, so that a missing file is lost.
        recovery_point: the synced end that the broker recorded; None if none is known.
        leader_epoch: of this start. No batch has a later one.
        now_ms: the broker's clock.
        log_start_offset: records before it are deleted, even if the partition's own file says less.
        gapless_epoch: the first leader epoch whose batches follow each other without a gap in the growing segment.
    """

    is_clean: bool
    is_established: bool
    recovery_point: int | None
    leader_epoch: int
    now_ms: int
    log_start_offset: int = 0
    gapless_epoch: int = NEVER


@dataclass(slots=True)
class Plan:
    """What replay works on.

    Attributes:
        directory: of the partition.
        segments: all segments, oldest first. The first `trusted_count` are opened by their summaries.
        synced: up to where the log was synced.
        start: where replay begins.
        log_start: the first offset that can be read.
        is_log_start_written: whether the partition's own file says so.
        deleted: segments before the log's start, to be removed once the log is known to reach that.
    """

    directory: PartitionDirectory
    segments: list[Segment]
    trusted_count: int
    synced: SyncedEnd
    start: Start
    log_start: int
    is_log_start_written: bool
    deleted: list[Segment]


class Planner:
    """Make the plan of one partition.

    Args:
        listing: of its directory.
        open_files: counts the open segments.
        known: what the broker knows of the partition.
    """

    def __init__(self, listing: Listing, open_files: OpenFiles, known: Known) -> None:
        self._directory = PartitionDirectory(listing)
        self._listing = listing
        self._disk = listing.disk
        self._open_files = open_files
        self._known = known
        self._log_start: int  # where the log begins, once its file is read

    def plan(self) -> Plan | None:
        """Make the plan; None if a log begins here.

        Raises:
            Corrupt: bytes that were durable are gone. No log file was changed.
        """
        directory, bases = self._directory, self._directory.bases
        written = self._read_log_start(bases)
        if bases and bases[0] > self._log_start:
            raise Corrupt(
                f"{self._first_segment_path()} is gone: the log begins at offset {self._log_start}, and the first segment "
                f"that is there at {bases[0]}. Restore its files"
            )
        deleted_count = self._count_deleted(bases)
        deleted = [self.segment(base) for base in bases[:deleted_count]]
        self._check_orphans(bases, first_place=deleted_count)
        bases = bases[deleted_count:]
        if not bases:
            self._check_is_new(written=written)
            return None
        segments = [self.segment(base) for base in bases]
        self._drop_unused(segments)
        summaries = [directory.summary(segment.base_offset) for segment in segments]
        synced = self._find_synced_end(summaries)
        self._check_sizes(segments, summaries)
        trusted_count = 0
        for segment, summary in zip(segments, trusted_summaries(directory, segments), strict=False):
            segment.open_sealed(summary)
            trusted_count += 1
        self._check_gaps(segments[: trusted_count + 1])
        unknown_from = segments[trusted_count].base_offset
        start = choose_start(directory, segments[0].base_offset, unknown_from, self._known.now_ms)
        return Plan(
            directory,
            segments,
            trusted_count,
            synced,
            start,
            self._log_start,
            written,
            deleted,
        )

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""
        return self._log_start

    def segment(self, base_offset: int) -> Segment:
        """Return a segment that is not opened yet."""
        return Segment(self._disk, self._listing.directory, base_offset, self._open_files)

    def _first_segment_path(self) -> Path:
        return first_segment_path(self._listing.directory, self._listing.names, self._log_start)

    def drop(self, segments: Iterable[Segment]) -> None:
        """Remove all files of segments."""
        dropped = list(segments)
        for segment in dropped:
            segment.close()
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(segment.path(suffix))
        if dropped:
            self._disk.sync_dir(self._listing.directory)

    # -- the log's start ---------------------------------------------------------------------------------------

    def _read_log_start(self, bases: list[int]) -> bool:
        """Find where the log begins. Returns whether the partition's own file says so."""
        path = self._listing.path(LOG_START_FILE)
        is_there = LOG_START_FILE in self._listing
        said = decode_log_start(self._listing.read(LOG_START_FILE), path) if is_there else None
        if said is None and self._known.is_established:
            raise Corrupt(
                f"{path} is gone: where the log begins is not known, and records that were deleted could be read "
                "again. Restore the file"
            )
        first = said if said is not None else bases[0] if bases else 0
        self._log_start = max(self._known.log_start_offset, first)
        return said == self._log_start

    def _count_deleted(self, bases: list[int]) -> int:
        """Count the segments before the log's start: a crash has interrupted their deletion.

        Only a later snapshot knows the transactions that began in them. Without one, they are replayed once more.
        """
        count = max(bisect_right(bases, self._log_start) - 1, 0)
        if not count or any(
            self._directory.has_readable_snapshot(offset)
            for offset in self._directory.snapshots
            if offset >= bases[count]
        ):
            return count
        # The last of them were not durable when the log's start moved, so they were not deleted and have no snapshot.
        for at in range(count - 1, 0, -1):
            if self._directory.has_readable_snapshot(bases[at]):
                return at
        while count:
            summary = self._directory.summary(bases[count - 1])
            if summary is not None and summary.end_offset != bases[count]:
                break  # the one behind it has gone by now
            count -= 1
        return count

    def _check_orphans(self, bases: list[int], *, first_place: int) -> None:
        """Remove files of segments whose log was deleted.

        A crash may have undone some renames of a deletion. So the log file of a deleted segment may be gone while the log
        file of an earlier one exists.

        Args:
            bases: of the log files.
            first_place: of the first segment that stays.

        Raises:
            Corrupt: a log file is gone that was not deleted.
        """
        for name in self._listing.names:
            suffix = name[OFFSET_DIGITS:]
            if not has_offset(name) or suffix not in SEGMENT_SUFFIXES or offset_of(name) in bases:
                continue
            path, base = self._listing.path(name), offset_of(name)
            deleted = base < (bases[first_place] if bases else self._log_start)
            if suffix == SUMMARY and not deleted and self._directory.summary(base) is not None:
                raise Corrupt(
                    f"{path.with_suffix(LOG)} is gone, and was durable. Restore it; or, to go on without its records, run "
                    "`stablelog repair`, which says first what is lost. Only if another program has compacted the log, "
                    f"remove {path}"
                )
            self._disk.remove(path)

    def _check_is_new(self, *, written: bool) -> None:
        """Raise Corrupt if a directory without a log file had one."""
        if self._directory.snapshots or self._known.is_established or written:
            raise Corrupt(
                f"{self._first_segment_path()} is gone: the directory holds no log "
                "file, and the partition was made with one. Restore its files"
            )

    # -- segments and summaries --------------------------------------------------------------------------------

    def _drop_unused(self, segments: list[Segment]) -> None:
        """Remove an empty last segment if the one before it is not known to be sealed: that one continues to grow.

        A snapshot where the last segment begins shows that the one before it was sealed and has lost its summary. Compaction
        may have left gaps in it, so it does not grow.
        """
        while (
            len(segments) > 1
            and self._directory.summary(segments[-2].base_offset) is None
            and segments[-1].base_offset not in self._directory.snapshots
            and not self._disk.size(segments[-1].path(LOG))
        ):
            self.drop([segments.pop()])

    def _find_synced_end(self, summaries: list[Summary | None]) -> SyncedEnd:
        # A summary is written when the name of the next segment's log file is durable.
        if summaries[-1] is not None:
            raise Corrupt(
                f"{self.segment(summaries[-1].end_offset).path(LOG)} is gone, and was durable. Restore it"
            )
        point = self._known.recovery_point
        ends = [summary.end_offset for summary in summaries if summary is not None]
        offset = max(point or 0, *ends, 0)
        for snapshot in reversed(self._directory.snapshots):
            if snapshot <= offset:
                break
            if self._directory.producers(snapshot) is not None:
                offset = snapshot
        return SyncedEnd(offset, self._known.is_clean, is_recorded=point is not None)

    def _check_sizes(self, segments: list[Segment], summaries: list[Summary | None]) -> None:
        """Raise Corrupt if a log file is shorter than when its summary was written.

        If the file ends behind a whole batch, the gap to the next segment looks like a gap that compaction has left.
        """
        for segment, summary in zip(segments, summaries, strict=True):
            path = segment.path(LOG)
            if summary is not None and (size := self._disk.size(path)) < summary.log_size:
                raise Corrupt(
                    f"{path} has {size} bytes; {summary.log_size} were durable. Restore the file from a backup. To go on "
                    "without these records, run `stablelog repair`, which says first what is lost; if another program has "
                    f"compacted the log, remove {segment.path(SUMMARY)}"
                )

    def _check_gaps(self, segments: list[Segment]) -> None:
        """Raise Corrupt if a segment is missing between trusted segments."""
        for segment, following in pairwise(segments):
            if segment.end_offset != following.base_offset:
                raise Corrupt(
                    f"{self.segment(segment.end_offset).path(LOG)} is gone: the segments of offsets "
                    f"{segment.end_offset} to {following.base_offset - 1} were durable. Restore their files"
                )
