"""The transaction index of a segment: the aborted transactions whose records a read-committed reader leaves out.

The index has one entry for each transaction whose abort marker lies in the segment, in the order of the markers. An
entry also has a *stable offset*: all transactions that began before it had ended at this marker. The offsets of the
markers and the stable offsets grow from entry to entry over the whole partition. Two binary searches therefore find the
range of entries that concern a fetch.

Format: docs/reference/formats.md, "Transaction index".  Source: the abort index of KIP-98.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stablelog.env.disk import Buffer
from stablelog.errors import DamageError
from stablelog.log.indexes.index_entries import IndexEntries
from stablelog.log.indexes.minima import Minima

ENTRY = struct.Struct(
    ">"
    "h"  # version: always 0
    "q"  # producer_id
    "q"  # first_offset: the offset of the transaction's first record
    "q"  # last_offset: the offset of the transaction's abort marker
    "q"  # stable_offset: first offset of the oldest transaction that was open after this marker
)
VERSION = 0
LAST, STABLE = struct.Struct(">18xq"), struct.Struct(">26xq")
# Up to this number of entries, a search reads each of them. In more entries, it uses the tree of minima.
SCAN_COUNT_MAX = 64
# Up to this number of entries, a search also reads each of them if more entries are missing in the tree.
LONG_SCAN_COUNT_MAX = 4096


class AbortedTxn(NamedTuple):
    """An aborted transaction of one partition: an entry of the transaction index.

    Attributes:
        producer_id: the producer of the transaction.
        first_offset: the offset of its first record.
        last_offset: the offset of its abort marker.
        stable_offset: the first offset of the oldest transaction that was still open after this marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


class TransactionIndex(IndexEntries):
    """The transaction index of one segment: growing, or read from its file."""

    ENTRY = ENTRY

    def __init__(self, entries: Buffer = b"") -> None:
        if len(entries) % ENTRY.size:
            raise DamageError(f"a transaction index has {len(entries)} bytes, so its last entry is torn")
        super().__init__(entries, len(entries) // ENTRY.size)
        self._minima = Minima()

    def __getitem__(self, place: int) -> AbortedTxn:
        return AbortedTxn._make(self._row(place)[1:])

    def _firsts(self, begin: int, end: int) -> Iterator[int]:
        rows = ENTRY.iter_unpack(memoryview(self._entries)[begin * ENTRY.size : end * ENTRY.size])
        return (row[2] for row in rows)

    def append(self, txn: AbortedTxn) -> None:
        """Add an aborted transaction. Raises ValueError if its marker does not follow the markers of all other entries."""
        if self._count and self[self._count - 1].last_offset >= txn.last_offset:
            raise ValueError(
                f"the aborted transaction {txn} cannot follow {self[self._count - 1]} in the index: the "
                "offset of its marker must be greater"
            )
        assert txn.first_offset <= txn.last_offset
        self._add(ENTRY.pack(VERSION, *txn))

    def end_of_markers(self, start: int, count: int) -> int | None:
        """Return the offset after the abort marker number `count`, counted from `start` on; None if there are fewer
        markers. A read ends there, so that its list of aborted transactions has at most `count` markers.
        """
        place = self._count_below(LAST, start) + count - 1
        return self[place].last_offset + 1 if place < self._count else None

    def collect(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """Find the aborted transactions with offsets in [start, end).

        Returns:
            The transactions in the order of their markers, and whether the search is complete. It is complete when the
            stable offset of an entry reaches `end`: all transactions that began before this offset had ended at the
            marker of the entry. If it is not complete, the index of the next segment may have further transactions of
            this range.
        """
        low = self._count_below(LAST, start)
        stop = self._count_below(STABLE, end)
        complete = stop < self._count
        high = stop + 1 if complete else self._count
        count = high - low
        # After a start, the tree of an index of a million entries would hold the event loop for longer than the search.
        is_tree_longer = self._count - len(self._minima) > count
        if count <= (LONG_SCAN_COUNT_MAX if is_tree_longer else SCAN_COUNT_MAX):
            firsts = enumerate(self._firsts(low, high), low)
            places: Iterable[int] = (place for place, first in firsts if first < end)
        else:
            self._minima.extend_to(self._count, self._firsts)
            places = self._minima.below(end, low, high)
        return [self[place] for place in places], complete
