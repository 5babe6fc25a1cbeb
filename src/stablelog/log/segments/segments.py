"""The segments of a partition on the local disk, oldest first. Only the last one grows; all others are sealed."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import UnprovenError
from stablelog.log.files.names import LOG, SEGMENT_SUFFIXES, SUMMARY
from stablelog.log.search.source import ReaderRows
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segment import Segment


class LogSegments(ReaderRows[Segment]):
    """All local segments of one partition, oldest first.

    Attributes:
        active: the growing segment.
    """

    # A broker has one of these objects for each partition, and reads thousands of them in one callback.
    __slots__ = ("_are_proven", "_sealed_size", "active")

    def __init__(self, sealed: Sequence[SealedSegment], active: GrowingSegment) -> None:
        super().__init__([*sealed, active], grows=True)
        self.active = active
        self._sealed_size = sum(segment.size for segment in sealed)
        self._are_proven = False  # whether all log files are known to have passed the proof

    @property
    def sealed(self) -> list[SealedSegment]:
        """The sealed segments, oldest first: all but the last one."""
        return [segment for segment in self._row if isinstance(segment, SealedSegment)]

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""
        return self._sealed_size + self._row[-1].size

    @property
    def damaged_count(self) -> int:
        """The number of damaged batches and damaged log files that are known."""
        return sum(len(one.proof.damaged_batches) + (one.proof.damage is not None) for one in self._row)

    def find_truncation(self, offset: int) -> tuple[int, int, Segment, list[Segment]]:
        """Find where a log file must be truncated so that the log ends at an offset. If a batch contains the offset,
        the log must end at the beginning of this batch. Raises DamageError or UnprovenError if the log file cannot be
        read.

        Returns:
            Four values: the end offset of the truncated log, the size of the truncated log file, its segment, and the
            later segments, which must be removed.
        """
        place = self.place_of(offset)
        segment, later = self._row[place], self._row[place + 1 :]
        found = segment.find(offset)
        # If nothing is found, compaction has removed all batches from `offset` on. The log file then keeps its size.
        if found is None:
            return offset, segment.size, segment, later
        return found.base_offset, found.position, segment, later

    def from_base(self, base_offset: int) -> list[Segment]:
        """Return the segments from a base offset on: those whose base offset is at least `base_offset`."""
        return self._row[bisect_right(self.bases, base_offset - 1) :]

    def unproven_ahead(self, offset: int) -> UnprovenError | None:
        """Return the error that a reader at this offset would get in its next segment, because the batch headers of
        that segment are not proven yet (compared with their recorded CRC). The error has a function that proves them,
        so that the caller can run it before the reader comes to the segment.

        Return None if there is no next segment, if its headers are proven, or if they do not have this CRC.
        """
        if self._are_proven:
            return None
        place = self.place_of(max(offset - 1, 0)) + 1
        if place == len(self._row):
            self._are_proven = all(segment.is_proven for segment in self._row)
            return None
        segment = self._row[place]
        return None if segment.is_proven or segment.proof.damage is not None else segment.unproven_error()

    def roll(self, sealed: SealedSegment, active: GrowingSegment) -> None:
        """Roll the list: replace the growing segment by the sealed one that it has become, and add the new growing
        segment `active`.
        """
        assert sealed.is_same(self.active)
        assert active.base_offset == sealed.end_offset
        self._sealed_size += sealed.size
        self._row[-1:] = sealed, active
        self.active = active
        self.bases.append(active.base_offset)

    def drop_first(self, count: int) -> list[Segment]:
        """Remove the `count` oldest segments from the list, and return them. Their files stay."""
        assert 0 <= count < len(self._row)
        self.index_aborts()  # so that all segments have numbers
        dropped = self._row[:count]
        del self._row[:count]
        del self.bases[:count]
        self._dropped_count += count
        self._sealed_size -= sum(segment.size for segment in dropped)
        return dropped

    def with_replaced(self, place: int, count: int, segment: SealedSegment) -> "LogSegments":
        """Return a new list with `segment` in place of `count` sealed segments that have the same offsets together."""
        assert segment.base_offset == self._row[place].base_offset
        assert segment.end_offset == self._row[place + count - 1].end_offset
        sealed = self.sealed
        return LogSegments([*sealed[:place], segment, *sealed[place + count :]], self.active)


def truncate_files(
    disk: Disk, directory: Path, segment: Segment, position: int, later: Sequence[Segment]
) -> None:
    """Truncate the log file of a closed segment, and remove the files of the later segments. Durable on return.

    First the summaries of these segments (with their end offsets and sizes) are removed, and the directory is synced.
    So after a crash no file says that the log was durable past its new end.
    """
    for sealed in (segment, *later):
        disk.remove(sealed.path(SUMMARY))
    disk.sync_dir(directory)
    for gone in later:
        for suffix in SEGMENT_SUFFIXES:
            disk.remove(gone.path(suffix))
    with closing(disk.open(segment.path(LOG))) as log:
        log.truncate(position)
        log.sync()
    disk.sync_dir(directory)
