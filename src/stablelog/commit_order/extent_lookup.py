"""Lookup of the extents (byte ranges of batches) that a reader in commit order gets next.

A response may contain thousands of small transactions. So the extents of many transactions are looked up together, as
columns (a list for each field), and the work for each batch is one iteration of a list comprehension.
"""

from collections.abc import Iterator
from itertools import groupby

from stablelog.commit_order.extents import LONG_COUNT, ExtentColumns
from stablelog.commit_order.index_format import NO_PRODUCER, Entry
from stablelog.commit_order.index_rows import IndexRows

ENTRIES_AT_ONCE = 64  # how many entries of the commit index are read together
FIRST_AT_ONCE = 64  # how many extents the first lookup of a fetch reads: the fetch may use only a few
LEAST_AT_ONCE = 16  # how many extents a later lookup reads at least, if the transaction has so many
MOST_AT_ONCE = 512
# The kinds of an entry of the commit index: a short transaction, or a torn one, whose beginning retention has removed.
# Adjacent entries of the same kind are handled together. Any other entry is handled alone: its kind is its own number.
SHORT, TORN = -1, -2


def extents_from(
    index: IndexRows, start: int, log_start: int, size_max: int
) -> Iterator[ExtentColumns | Entry]:
    """Yield the extents (byte ranges of batches in a log file) of a commit index, from a position in commit order on.
    Those of transactions are yielded as columns, with one list for each field. For a run of batches outside
    transactions, its entry is yielded instead.

    Args:
        index: the commit index of one segment.
        start: the position where the reader continues. Extents that end before it are left out.
        log_start: the log start offset. Transactions that began before it are torn (retention has removed their
            beginning), and are left out.
        size_max: how many bytes the reader needs. The generator estimates how many extents these are, and may yield
            more.
    """
    place, count, size_left = index.place_of(start), FIRST_AT_ONCE, size_max
    if place == len(index):
        return
    begin = index.extent_with(index[place], start)
    for range_begin, range_end, entry in _ranges(index, place, log_start):
        if entry is not None and entry.producer_id == NO_PRODUCER:
            yield entry
            continue
        first = max(range_begin, begin)
        while first < range_end:
            end, size = min(first + count, range_end), 0
            for extents in index.extents_between(first, end, entry):
                yield extents
                size += extents.size
            # Estimate how many extents the remaining bytes take: assume that the next extents are as large as these.
            size_left -= size
            count = min(max(size_left * (end - first) // size + 1, LEAST_AT_ONCE), MOST_AT_ONCE)
            first = end


def _ranges(index: IndexRows, place: int, log_start: int) -> Iterator[tuple[int, int, Entry | None]]:
    """Divide the extents (byte ranges of batches) of a commit index into ranges to look up together, from entry number
    `place` of the index on. Torn transactions, whose beginning retention has removed, are left out.

    Yields:
        For each range, the number of its first extent, the number after its last extent, and an entry or None. A long
        transaction has a range for itself, and so has a run of batches outside transactions: the third value is then
        its entry. None means that the range has the extents of several short transactions.
    """
    while place < len(index):
        place_end = min(place + ENTRIES_AT_ONCE, len(index))
        first_offsets, producer_ids, firsts, counts = index.entries_between(place, place_end)
        kinds = [
            _kind(number, producer_id, first_offset < log_start, count)
            for number, (first_offset, producer_id, count) in enumerate(
                zip(first_offsets, producer_ids, counts, strict=True)
            )
        ]
        begin = 0
        for kind, same in groupby(kinds):
            end = begin + len(list(same))
            if kind != TORN:
                yield (
                    firsts[begin],
                    firsts[end - 1] + counts[end - 1],
                    None if kind == SHORT else index[place + begin],
                )
            begin = end
        place = place_end


def _kind(number: int, producer_id: int, has_lost_first: bool, extent_count: int) -> int:
    """Return the kind of an entry of a commit index. Consecutive entries of the same kind are looked up as one group.

    Args:
        number: the number of the entry among those that are looked up together.
        producer_id: the producer id of the entry; NO_PRODUCER for a run of batches outside transactions.
        has_lost_first: whether the transaction began before the log start offset, so that its first batches are
            deleted.
        extent_count: the number of extents of the entry, which are the byte ranges of its batches.

    Returns:
        `SHORT` for a transaction with fewer than LONG_COUNT extents; `TORN` for one that has lost its beginning. For a
        long transaction, and for a run of batches outside transactions, the entry's `number`, which no other entry has.
    """
    if producer_id == NO_PRODUCER:
        return number
    if has_lost_first:
        return TORN
    return SHORT if extent_count < LONG_COUNT else number
