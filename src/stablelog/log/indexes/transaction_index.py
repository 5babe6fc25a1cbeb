"""The transaction index of a segment: the aborted transactions that a read-committed reader leaves out.

The index has one entry for each transaction whose abort marker lies in the segment, in the order of the markers. Both
the marker's offset and the stable offset only grow over the whole partition. Two bisections therefore bound the entries
that concern a fetch.

Format: docs/formats.md, "Transaction index".  Source: the abort index of KIP-98.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stablelog.env.disk import Buffer
from stablelog.errors import Corrupt
from stablelog.log.indexes.index_entries import IndexEntries
from stablelog.log.indexes.minima import Minima

ENTRY = struct.Struct(
    ">"
    "h"  # version: always 0
    "q"  # producer_id
    "q"  # first_offset: of the transaction's first record
    "q"  # last_offset: of its abort marker, inclusive
    "q"  # stable_offset: the first offset still undecided once that marker was written
)
VERSION = 0
FIRST, LAST, STABLE = struct.Struct(">10xq"), struct.Struct(">18xq"), struct.Struct(">26xq")
SCAN_COUNT_MAX = 64  # A window of at most this size is scanned. In a larger one the minima are searched.


class AbortedTxn(NamedTuple):
    """An aborted transaction in one partition. Offsets as in the entry."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


def encode_entry(txn: AbortedTxn) -> bytes:
    """The 34 bytes of an entry."""
    return ENTRY.pack(VERSION, *txn)


class TransactionIndex(IndexEntries):
    """The transaction index of one segment: growing, or read from its file."""

    ENTRY = ENTRY

    def __init__(self, entries: Buffer = b"") -> None:
        if len(entries) % ENTRY.size:
            raise Corrupt(f"a transaction index of {len(entries)} bytes: its last entry is torn")
        super().__init__(entries, len(entries) // ENTRY.size)
        self._minima = Minima(self._firsts)

    def __getitem__(self, place: int) -> AbortedTxn:
        return AbortedTxn._make(self._row(place)[1:])

    def _first(self, place: int) -> int:
        return int(FIRST.unpack_from(self._entries, place * ENTRY.size)[0])

    def _firsts(self, begin: int, end: int) -> Iterator[int]:
        rows = memoryview(self._entries)[begin * ENTRY.size : end * ENTRY.size]
        return (row[2] for row in ENTRY.iter_unpack(rows))

    def append(self, txn: AbortedTxn) -> None:
        """Add a transaction. Raises ValueError if its marker does not lie past all before it."""
        if self._count and self[self._count - 1].last_offset >= txn.last_offset:
            raise ValueError(f"{txn} after {self[self._count - 1]}: markers only go on")
        assert txn.first_offset <= txn.last_offset
        self._add(encode_entry(txn))

    def collect(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """The aborted transactions that touch [start, end), and whether the search is over.

        The search is over when an entry's stable offset reaches `end`: at that marker, every transaction that began
        before `end` had ended. Otherwise the search goes on in the next segment's index.
        """
        low = self._count_below(LAST, start)
        stop = self._count_below(STABLE, end)
        complete = stop < self._count
        high = stop + 1 if complete else self._count
        if high - low <= SCAN_COUNT_MAX:
            places: Iterable[int] = (place for place in range(low, high) if self._first(place) < end)
        else:
            self._minima.extend_to(self._count)
            places = self._minima.below(end, low, high)
        return [self[place] for place in places], complete
