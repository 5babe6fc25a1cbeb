"""The reading side of a commit index, which lists the transactions that commit in a segment: its entries in commit
order, and their extents (byte ranges of batches).

The rows are in files of the partition's directory (`commit_index`), or in an object store (`remote_index`).
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from stablelog.commit_order.extents import EXTENT, BatchExtent, ExtentColumns, column, with_positions
from stablelog.commit_order.index_format import ENTRY, NO_PRODUCER, NOTHING, Entry
from stablelog.env.disk import Buffer

COLUMNS_AT_ONCE = 1024  # how many entries a search over all entries reads together


class Rows(Protocol):
    """The rows of a file of the commit index, all of the same size: one for each entry (a transaction), or one for each
    extent (a byte range with its batches).
    """

    def __len__(self) -> int:
        """The number of rows in the file of the commit index, which lists the commits of a segment."""

    def __getitem__(self, place: int) -> tuple[int, ...]:
        """Return the fields of the row with the number `place`, counted from 0, in the file of the commit index, which
        lists the commits of a segment.
        """

    def between(self, first: int, end: int) -> Buffer:
        """Return the bytes of those rows that have the numbers from `first` to before `end`, counted from 0, in the
        file of the commit index, which lists the commits of a segment.
        """


@dataclass(eq=False)
class IndexRows:
    """The commit index of one segment, as its readers see it. It has an *entry* for each transaction that commits in
    the segment, and one for each run of batches outside transactions. The *extents* of an entry are the byte ranges of
    its batches in the log files.

    Attributes:
        base_offset: the base offset of the segment.
        view_end: a position in commit order: all entries of this and of earlier indexes end at or before it, and all
            entries of later indexes begin at or after it.
        least_first_offset: the least log offset at which a transaction of this index begins.
        latest_sequence: the greatest commit sequence (number of a commit, counted over all topics of its transaction
            group) in this and all earlier indexes of the partition; -1 if there is none.
        latest_ms: the latest commit time in the index, in ms since 1970; -1 if there is none.
        entries: one row for each entry, in commit order.
        extents: one row for each extent; those of an entry follow each other.
        loaded_size: how many bytes of memory the rows take, if they were loaded from an object store; 0 if they are in
            local files.
    """

    base_offset: int
    view_end: int
    least_first_offset: int
    latest_sequence: int
    latest_ms: int
    entries: Rows
    extents: Rows
    loaded_size: int = 0

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, place: int) -> Entry:
        return Entry(*self.entries[place])

    def entries_between(self, first: int, end: int) -> tuple[list[int], list[int], list[int], list[int]]:
        """Return four lists with one field each of the entries (transactions, or runs of batches outside transactions)
        with the numbers [first, end): their first offsets, their producer ids, the numbers of their first extents (byte
        ranges of batches), and how many extents they have.

        Lists are returned because an `Entry` object for each entry would cost more time than all work with its fields.
        """
        rows = self.entries.between(first, end)
        return (
            column("q", rows, 3, ENTRY.size).tolist(),
            column("q", rows, 4, ENTRY.size).tolist(),
            column("q", rows, 6, ENTRY.size).tolist(),
            column("i", rows, 14, ENTRY.size).tolist(),
        )

    def least_first_offset_from(self, place: int) -> int:
        """Return the least log offset at which a transaction begins, among the entries of the commit index from number
        `place` on; `NOTHING` if all of them are batches outside transactions.
        """
        least = NOTHING
        for first in range(place, len(self), COLUMNS_AT_ONCE):
            least = min(least, *self._first_offsets(first, min(first + COLUMNS_AT_ONCE, len(self))))
        return least

    def place_of_last_before(self, log_start: int) -> int:
        """Return the number of the last entry whose transaction begins before the log offset `log_start`. The caller
        makes sure that there is one.
        """
        for end in range(len(self), 0, -COLUMNS_AT_ONCE):
            first = max(end - COLUMNS_AT_ONCE, 0)
            first_offsets = self._first_offsets(first, end)
            for place in range(end - 1, first - 1, -1):
                if first_offsets[place - first] < log_start:
                    return place
        raise AssertionError(
            "no transaction of the index begins before this offset, but the caller expects one"
        )

    def _first_offsets(self, first: int, end: int) -> list[int]:
        """Return, for each entry of the commit index with a number in [first, end), the log offset at which its
        transaction begins; `NOTHING` for a run of batches outside transactions.
        """
        first_offsets, producer_ids, _, _ = self.entries_between(first, end)
        return [
            NOTHING if producer_id == NO_PRODUCER else offset
            for offset, producer_id in zip(first_offsets, producer_ids, strict=True)
        ]

    def extent(self, place: int) -> BatchExtent:
        """Return the extent (byte range of batches) with this number."""
        return BatchExtent(*self.extents[place])

    def extents_between(self, first: int, end: int, long: Entry | None = None) -> Iterator[ExtentColumns]:
        """Yield the extents with the numbers [first, end). An extent is a range of bytes in a log file, with batches of
        one entry of this index. An entry is a committed transaction, or a run of batches outside transactions.

        Args:
            first: the number of the first extent.
            end: the number after the last extent.
            long: the entry of a long transaction (`Entry.is_long`) to which all these extents belong. The index has the
                extents of a long transaction with positions that count from 0 and without leader epochs; both are
                computed here from this entry. None if the extents belong to entries that are not long: theirs are
                complete.

        Yields:
            The extents as columns (one list for each field), in their order. Consecutive extents in the log file of the
            same segment are yielded together.
        """
        rows = self.extents.between(first, end)
        if long is not None:
            rows = with_positions(rows, long.start, long.leader_epoch)
        segments = column("q", rows, 2, EXTENT.size)
        extents = ExtentColumns(
            segments[0],
            list(struct.unpack("16s16x" * (end - first), rows)),
            column("i", rows, 2, EXTENT.size).tolist(),
            column("I", rows, 6, EXTENT.size).tolist(),
            column("I", rows, 7, EXTENT.size).tolist(),
        )
        if segments == segments[:1] * len(segments):
            yield extents
            return
        begin = 0
        for segment, same in groupby(segments):
            end = begin + len(list(same))
            yield extents.part(begin, end)._replace(segment=segment)
            begin = end

    def place_of(self, position: int) -> int:
        """Return the number of the first entry (a transaction, or a run of batches outside transactions) that ends
        after a position in commit order; `len(self)` if there is none.
        """
        return bisect_right(self.entries, position, key=lambda entry: entry[0] + entry[1])

    def place_at_time(self, time_ms: int) -> int:
        """Return the number of the first entry (transaction, or run of batches outside transactions) of the commit
        index with this commit time or a later one; `len(self)` if there is none.
        """
        return bisect_left(self.entries, time_ms, key=itemgetter(2))

    def offset_after(self, commit_sequence: int) -> int | None:
        """Return the position in commit order at which the first entry after `commit_sequence` starts: the first one
        with a greater commit sequence (the number of the commit, counted over all topics of its transaction group).
        None if there is none.

        The entries are sorted by commit sequence, because all transactions of a partition belong to one transaction
        group, whose commits have this order.
        """
        place = bisect_right(self.entries, commit_sequence, key=itemgetter(5))
        return self[place].start if place < len(self) else None

    def sequence_before(self, position: int, earlier: int | None) -> int:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group)
        before a position of this commit index; -1 if there is none, or if it is unknown.

        Args:
            position: the position in commit order.
            earlier: the greatest commit sequence in the commit indexes of earlier segments; None if there are none, or
                if it is unknown.
        """
        place = self.place_of(position)
        if place:
            return max(self[place - 1].latest_sequence, -1 if earlier is None else earlier)
        if earlier is not None:
            return earlier
        if not len(self):
            return self.latest_sequence
        return self[0].latest_sequence if self[0].is_outside else -1

    def torn_sequence(self, log_start: int, first: int = 0) -> int:
        """Return the greatest commit sequence (the number of a commit, counted over all topics of its transaction
        group) among the torn transactions from entry number `first` on; -1 if there are none. A transaction is torn if
        it began before the log offset `log_start`: retention has removed its beginning.
        """
        entries = (self[place] for place in range(first, len(self)))
        return max((entry.latest_sequence for entry in entries if entry.is_torn(log_start)), default=-1)

    def extent_with(self, entry: Entry, position: int) -> int:
        """Return the number of the extent (byte range of batches) that has the record at a position in commit order.
        The position must be in `entry`, and only the extents of this entry are searched.
        """
        first, end = entry.extent_first, entry.extent_first + entry.extent_count
        base_offset = position - entry.start if entry.is_long else position
        return bisect_right(self.extents, base_offset, first + 1, end, key=itemgetter(0)) - 1
