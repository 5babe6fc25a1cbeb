"""The plan of a recovery: what the names and the small files of a partition say, and where replay begins.

Reads no log file, and removes only what a crash left behind: files of segments whose log is deleted.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from crc32c import crc32c

from stablelog.errors import Corrupt
from stablelog.log.listing import SMALL_SIZE, Listing
from stablelog.log.log_start import LOG_START_FILE, decode_log_start
from stablelog.log.names import (
    INDEX_SUFFIXES,
    LOG,
    OFFSET_DIGITS,
    PRODUCERS,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SUMMARY,
    first_segment_path,
    has_offset,
    is_log,
    is_snapshot,
    offset_of,
)
from stablelog.log.producer_table import ProducerTable
from stablelog.log.producers import Producers
from stablelog.log.recovery.tail import SyncedEnd
from stablelog.log.segment import OpenFiles, Segment
from stablelog.log.snapshots import decode_producers, decode_snapshot, read_producers
from stablelog.log.summary import Summary

NEVER = 2**31  # greater than any leader epoch


@dataclass(frozen=True, slots=True)
class Known:
    """What the broker knows of a partition when it opens its directory.

    Attributes:
        is_clean: whether the last owner closed the log, so that all of it was durable.
        is_established: whether the directory was made complete, with all files of this release: what is missing
            then is lost.
        recovery_point: the synced end that the broker recorded; None if none is known.
        leader_epoch: of this start. No batch has a later one.
        now_ms: the broker's clock.
        log_start_offset: what lies before it was deleted, whatever the partition's own file says.
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
class Start:
    """Where replay begins, and what is known there.

    Attributes:
        offset: of the first batch that is replayed.
        producers: producer state there.
        progress: of the segment in which it lies, if its indexes are whole.
        indexes: content of these indexes, in the order of INDEX_SUFFIXES.
    """

    offset: int
    producers: Producers
    progress: Summary | None = None
    indexes: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Plan:
    """What replay works on.

    Attributes:
        segments: all there are, oldest first; the first `trusted_count` are opened by their summaries.
        synced: up to where the log was synced.
        start: where replay begins.
        log_start: the first offset that can be read.
        is_log_start_written: whether the partition's own file says so.
        snapshots: offsets, ascending.
        deleted: segments before the log's start, to be removed once the log is known to reach that.
    """

    segments: list[Segment]
    trusted_count: int
    synced: SyncedEnd
    start: Start
    log_start: int
    is_log_start_written: bool
    snapshots: list[int]
    deleted: list[Segment]


class Planner:
    """Makes the plan of one partition.

    Args:
        listing: of its directory.
        open_files: counts the open segments.
        known: what the broker knows of the partition.
    """

    def __init__(self, listing: Listing, open_files: OpenFiles, known: Known) -> None:
        self._listing = listing
        self._disk = listing.disk
        self._directory = listing.directory
        self._open_files = open_files
        self._known = known
        self._snapshots: list[int] = []
        # What our snapshots say, by their offsets, as far as they have been read.
        self._producers: dict[int, tuple[ProducerTable, Summary] | None] = {}
        self._log_start: int  # where the log begins, once its file is read

    def plan(self) -> Plan | None:
        """The plan; None if a log begins here.

        Raises:
            Corrupt: bytes that were durable are gone. No log file was changed.
        """
        names = self._listing.names
        self._snapshots = sorted({offset_of(name) for name in names if is_snapshot(name)})
        bases = sorted(offset_of(name) for name in names if is_log(name))
        written = self._read_log_start(bases)
        if bases and bases[0] > self._log_start:
            raise Corrupt(
                f"{first_segment_path(self._directory, names, self._log_start)} is gone: the log begins at offset "
                f"{self._log_start}, and the first segment that is there at {bases[0]}. Restore its files"
            )
        deleted_count = self._count_deleted(bases)
        deleted = [self.segment(base) for base in bases[:deleted_count]]
        self._check_orphans(names, bases, first_place=deleted_count)
        bases = bases[deleted_count:]
        if not bases:
            self._check_is_new(names, written=written)
            return None
        segments = [self.segment(base) for base in bases]
        summaries = [self._read_summary(segment) for segment in segments]
        self._drop_unused(segments, summaries)
        synced = self._find_synced_end(summaries)
        self._check_sizes(segments, summaries)
        trusted_count = self._count_trusted(segments, summaries)
        for segment, summary in zip(segments[:trusted_count], summaries, strict=False):
            assert summary is not None
            segment.open_sealed(summary)
        self._check_gaps(segments[: trusted_count + 1])
        start = self._choose_start(segments, trusted_count)
        return Plan(
            segments, trusted_count, synced, start, self._log_start, written, self._snapshots, deleted
        )

    @property
    def log_start(self) -> int:
        """The first offset that can be read."""
        return self._log_start

    def segment(self, base_offset: int) -> Segment:
        """A segment that is not opened yet."""
        return Segment(self._disk, self._directory, base_offset, self._open_files)

    def drop(self, segments: Iterable[Segment]) -> None:
        """Remove all files of segments."""
        dropped = list(segments)
        for segment in dropped:
            segment.close()
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(segment.path(suffix))
        if dropped:
            self._disk.sync_dir(self._directory)

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
        """How many of the first segments were being deleted: those before the log's start.

        Of transactions that began in them only a snapshot behind them knows. Without one they are replayed once more.
        """
        count = max(bisect_right(bases, self._log_start) - 1, 0)
        if not count or any(
            self._is_readable(offset) for offset in self._snapshots if offset >= bases[count]
        ):
            return count
        # The last of them were not durable when the log's start moved: they were not deleted, and have no snapshot.
        for at in range(count - 1, 0, -1):
            if self._is_readable(bases[at]):
                return at
        while count:
            summary = self._read_summary(self.segment(bases[count - 1]))
            if summary is not None and summary.end_offset != bases[count]:
                break  # the one behind it has gone by now
            count -= 1
        return count

    def _check_orphans(self, names: list[str], bases: list[int], *, first_place: int) -> None:
        """Remove files of segments whose log was deleted.

        A crash may have taken back some of the renames of a deletion: also the log file of one of the deleted segments
        may be gone, and that of one before it be there.

        Args:
            names: in the directory.
            bases: of the log files.
            first_place: of the first segment that stays.

        Raises:
            Corrupt: a log file is gone that was not deleted.
        """
        for name in names:
            suffix = name[OFFSET_DIGITS:]
            if not has_offset(name) or suffix not in SEGMENT_SUFFIXES or offset_of(name) in bases:
                continue
            path, base = self._directory / name, offset_of(name)
            deleted = base < (bases[first_place] if bases else self._log_start)
            if suffix == SUMMARY and not deleted and self._read_summary(self.segment(base)) is not None:
                raise Corrupt(
                    f"{path.with_suffix(LOG)} is gone, and was durable. Restore it; or, to go on without its records, run "
                    "`stablelog repair`, which says first what is lost. Only if another program has compacted the log, "
                    f"remove {path}"
                )
            self._disk.remove(path)

    def _check_is_new(self, names: list[str], *, written: bool) -> None:
        """Raise Corrupt if a directory without a log file had one."""
        if self._snapshots or self._known.is_established or written:
            raise Corrupt(
                f"{first_segment_path(self._directory, names, self._log_start)} is gone: the directory holds no log "
                "file, and the partition was made with one. Restore its files"
            )

    # -- segments and summaries --------------------------------------------------------------------------------

    def _drop_unused(self, segments: list[Segment], summaries: list[Summary | None]) -> None:
        """Remove a last segment that is empty, if the one before it was not known to be sealed: it goes on growing.

        With a snapshot where the last one begins, the one before it has lost its summary: it was sealed, and
        compaction may have left gaps in it.
        """
        while (
            len(segments) > 1
            and summaries[-2] is None
            and segments[-1].base_offset not in self._snapshots
            and not self._disk.size(segments[-1].path(LOG))
        ):
            self.drop([segments.pop()])
            summaries.pop()

    def _read_summary(self, segment: Segment) -> Summary | None:
        try:
            summary = Summary.decode(self._listing.read(f"{segment.base_offset:020d}{SUMMARY}"))
        except (FileNotFoundError, Corrupt):
            return None
        return summary if summary.base_offset == segment.base_offset else None

    def _find_synced_end(self, summaries: list[Summary | None]) -> SyncedEnd:
        # A summary is written when the name of the next segment's log file is durable.
        if summaries[-1] is not None:
            raise Corrupt(
                f"{self.segment(summaries[-1].end_offset).path(LOG)} is gone, and was durable. Restore it"
            )
        point = self._known.recovery_point
        ends = [summary.end_offset for summary in summaries if summary is not None]
        offset = max(point or 0, *ends, 0)
        for snapshot in reversed(self._snapshots):
            if snapshot <= offset:
                break
            if self._read_producers(snapshot) is not None:
                offset = snapshot
        return SyncedEnd(offset, self._known.is_clean, is_recorded=point is not None)

    def _check_sizes(self, segments: list[Segment], summaries: list[Summary | None]) -> None:
        """Raise Corrupt if a log file is shorter than when its summary was written.

        Where it ends behind a whole batch, the gap to the next segment looks like one that compaction has left.
        """
        for segment, summary in zip(segments, summaries, strict=True):
            path = segment.path(LOG)
            if summary is not None and (size := self._disk.size(path)) < summary.log_size:
                raise Corrupt(
                    f"{path} has {size} bytes; {summary.log_size} were durable. Restore the file from a backup. To go on "
                    "without these records, run `stablelog repair`, which says first what is lost; if another program has "
                    f"compacted the log, remove {segment.path(SUMMARY)}"
                )

    def _count_trusted(self, segments: list[Segment], summaries: list[Summary | None]) -> int:
        """How many of the first segments are as their summaries say. The last one never is: it grows."""
        count = 0
        for segment, summary in zip(segments[:-1], summaries, strict=False):
            if (
                summary is None
                or summary.end_offset > segments[count + 1].base_offset
                or not segment.matches(summary)
            ):
                break
            count += 1
        return count

    def _check_gaps(self, segments: list[Segment]) -> None:
        """Raise Corrupt if a segment is missing between trusted segments."""
        for segment, following in pairwise(segments):
            if segment.end_offset != following.base_offset:
                raise Corrupt(
                    f"{self.segment(segment.end_offset).path(LOG)} is gone: the segments of offsets "
                    f"{segment.end_offset} to {following.base_offset - 1} were durable. Restore their files"
                )

    # -- where replay begins -----------------------------------------------------------------------------------

    def _read_producers(self, offset: int) -> tuple[ProducerTable, Summary] | None:
        if offset not in self._producers:
            name = f"{offset:020d}{PRODUCERS}"
            self._producers[offset] = None
            with contextlib.suppress(FileNotFoundError, Corrupt):
                head = self._listing.head(name)
                is_whole = len(head) < SMALL_SIZE
                self._producers[offset] = (
                    decode_producers(head) if is_whole else read_producers(self._disk, self._directory / name)
                )
        return self._producers[offset]

    def _read_kafkas(self, offset: int) -> ProducerTable | None:
        try:
            content = self._listing.read(f"{offset:020d}{SNAPSHOT}")
            return decode_snapshot(content, self._known.now_ms)
        except (FileNotFoundError, Corrupt):
            return None

    def _is_readable(self, offset: int) -> bool:
        return self._read_producers(offset) is not None or self._read_kafkas(offset) is not None

    def _choose_start(self, segments: list[Segment], trusted_count: int) -> Start:
        """The newest snapshot from which replay gives all that is not known without it; one of ours is preferred."""
        first_offset, unknown_from = segments[0].base_offset, segments[trusted_count].base_offset
        offsets = [offset for offset in reversed(self._snapshots) if offset >= first_offset]
        for offset in offsets:
            start = self._start_at_ours(offset, unknown_from)
            if start is not None:
                return start
        for offset in offsets:
            table = self._read_kafkas(offset) if offset <= unknown_from else None
            if table is not None:
                return Start(offset, Producers.restored(table, self._known.now_ms))
        return Start(first_offset, Producers())

    def _start_at_ours(self, offset: int, unknown_from: int) -> Start | None:
        known = self._read_producers(offset)
        if known is None:
            return None
        table, progress = known
        if offset <= unknown_from:
            return Start(offset, Producers.restored(table, self._known.now_ms))
        indexes = held_indexes(self._listing, progress) if progress.base_offset == unknown_from else None
        if indexes is None:
            return None
        return Start(offset, Producers.restored(table, self._known.now_ms), progress, indexes)


def held_indexes(listing: Listing, progress: Summary) -> tuple[bytes, ...] | None:
    """The indexes of the growing segment as a snapshot tells of them; None if their files hold something else.

    The files may have more behind that.
    """
    stem = f"{progress.base_offset:020d}"
    sizes = (progress.index_size, progress.timeindex_size, progress.txnindex_size)
    crcs = (progress.index_crc, progress.timeindex_crc, progress.txnindex_crc)
    try:
        if listing.disk.size(listing.path(f"{stem}{LOG}")) < progress.log_size:
            return None
        indexes = tuple(
            listing.read(f"{stem}{suffix}")[:size] if size else b""
            for suffix, size in zip(INDEX_SUFFIXES, sizes, strict=True)
        )
    except FileNotFoundError:
        return None
    is_held = all(crc32c(index) == crc for index, crc in zip(indexes, crcs, strict=True) if index)
    return indexes if is_held and tuple(map(len, indexes)) == sizes else None
