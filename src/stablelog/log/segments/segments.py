"""The segments of a partition, oldest first: which one holds an offset, and which have entries of aborted transactions.

Only the last segment grows; all others are sealed. The summary of a sealed segment has two numbers that the search for
aborted transactions needs: the first offset that was undecided at its end, which only grows from segment to segment,
and the least first offset of the transactions aborted in it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import Unproven
from stablelog.log.files.names import LOG, SEGMENT_SUFFIXES, SUMMARY
from stablelog.log.indexes.minima import Minima
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.segments.segment import Segment

NO_ABORT = 2**63 - 1  # greater than any offset


class Segments:
    """The segments of one partition, oldest first.

    Attributes:
        active: the one that grows.
        bases: the base offsets. Other modules only read them.
    """

    def __init__(self, segments: list[Segment]) -> None:
        assert segments
        assert all(segment.sealed for segment in segments[:-1])
        self._row = segments
        self.active = segments[-1]
        self.bases = [segment.base_offset for segment in segments]
        self._sealed_size = sum(segment.size for segment in segments[:-1])
        self._gone = 0  # how many were dropped from the beginning: minima count from there
        self._minima = Minima(self._least_aborted)
        self._are_proven = False  # all of them; looked at again until they are

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._row)

    def __getitem__(self, place: int) -> Segment:
        return self._row[place]

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return self._sealed_size + self._row[-1].size

    def place_of(self, offset: int) -> int:
        """The place of the segment in which the offset lies, or of the first one if it lies before all."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def cut_at(self, offset: int) -> tuple[int, int, Segment, list[Segment]]:
        """Find where to cut a log that is to end at `offset`, or at the beginning of the batch in which that lies.

        Returns:
            The end of the log after the cut; the size that its last log file then has; that segment; and the segments
            behind it, of which nothing is left. Raises as `Segment.find` does.
        """
        place = self.place_of(offset)
        segment, later = self._row[place], self._row[place + 1 :]
        found = segment.find(offset)
        if found is None:  # compaction has left nothing behind `offset`: the segment stays whole
            return offset, segment.size, segment, later
        return found.base_offset, found.position, segment, later

    def from_base(self, base_offset: int) -> list[Segment]:
        """The segments that begin at this offset or after it."""
        return self._row[bisect_right(self.bases, base_offset - 1) :]

    def unproven_ahead(self, offset: int) -> Unproven | None:
        """The error of a reader that goes on from `offset` to a segment that is not proven; None without one.

        A segment that is known to be damaged is not proven again.
        """
        if self._are_proven:
            return None
        place = self.place_of(max(offset - 1, 0)) + 1
        if place == len(self._row):
            self._are_proven = all(segment.is_proven for segment in self._row)
            return None
        segment = self._row[place]
        return None if segment.is_proven or segment.damage is not None else segment.unproven()

    def add(self, segment: Segment) -> None:
        """Add a segment that begins where the last one, sealed by now, ends."""
        assert self.active.sealed
        assert segment.base_offset == self.active.end_offset
        self._sealed_size += self.active.size
        self._row.append(segment)
        self.active = segment
        self.bases.append(segment.base_offset)

    def drop_first(self, count: int) -> list[Segment]:
        """Take out the oldest segments. Returns them."""
        assert 0 <= count < len(self._row)
        dropped = self._row[:count]
        del self._row[:count]
        del self.bases[:count]
        self._gone += count
        self._sealed_size -= sum(segment.size for segment in dropped)
        return dropped

    def replaced(self, place: int, count: int, segment: Segment) -> "Segments":
        """The segments with one in the place of `count` sealed ones, of the same offsets."""
        assert segment.sealed
        assert segment.base_offset == self._row[place].base_offset
        assert segment.end_offset == self._row[place + count - 1].end_offset
        return Segments([*self._row[:place], segment, *self._row[place + count :]])

    # -- aborted transactions ----------------------------------------------------------------------------------

    def aborted(self, place: int, start: int, end: int) -> list[AbortedTxn]:
        """The aborted transactions that touch [start, end), of which `start` lies in the segment at `place`.

        The search ends with the first sealed segment whose stable offset reaches `end`: at its end, every transaction
        that began before `end` had ended. Up to there the search opens only the indexes that have a transaction with a
        first offset before `end`. However many segments there are, it opens no index without a result.
        """
        last = len(self._row) - 1
        low = bisect_left(self._row, end, place, last, key=lambda segment: segment.stable_offset)
        found: list[AbortedTxn] = []
        if place < last:
            self._minima.extend_to(self._gone + last)
            for number in self._minima.below(end, self._gone + place, self._gone + min(low + 1, last)):
                found += self._row[number - self._gone].txn_index.collect(start, end)[0]
        if low == last:
            least = self.active.least_aborted_offset
            if least is not None and least < end:
                found += self.active.txn_index.collect(start, end)[0]
        return found

    def _least_aborted(self, begin: int, end: int) -> Iterator[int]:
        for number in range(begin, end):
            # Segments that were dropped before the first search are not opened.
            least = self._row[number - self._gone].least_aborted_offset if number >= self._gone else None
            yield NO_ABORT if least is None else least


def cut_files(disk: Disk, directory: Path, segment: Segment, position: int, later: Sequence[Segment]) -> None:
    """Cut the log file of a closed segment at `position`, and remove the files of later ones. Durable on return.

    The summaries are removed first. That also makes durable what the caller has removed from the directory. After a
    crash no file then says that the log was durable past the cut.
    """
    for sealed in (segment, *later):
        disk.remove(sealed.path(SUMMARY))
    disk.sync_dir(directory)
    for gone in later:
        for suffix in SEGMENT_SUFFIXES:
            disk.remove(gone.path(suffix))
    log = disk.open(segment.path(LOG))
    log.truncate(position)
    log.sync()
    log.close()
    disk.sync_dir(directory)
