"""The transaction index of one segment: what a read-committed reader must leave out.

One entry for each transaction whose abort marker lies in this segment, in the order of the markers. Both the
marker's offset and the stable offset only grow over the whole partition, so two bisections bound the entries
that a fetch can concern.

Format: docs/formats.md, "Transaction index".  Source: the abort index of KIP-98.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stablelog.env.disk import Buffer
from stablelog.errors import Corrupt
from stablelog.log.minima import Minima

ENTRY = struct.Struct(
    ">"
    "h"  # version: always 0
    "q"  # producer_id
    "q"  # first_offset: of the transaction's first record
    "q"  # last_offset: of its abort marker, inclusive
    "q"  # stable_offset: the first offset still undecided once that marker was written
)
VERSION = 0
_INT64 = struct.Struct(">q")
FIRST_AT, LAST_AT, STABLE_AT = 10, 18, 26
SCAN_COUNT_MAX = 64  # a window up to this size is scanned; for a larger one the minima are asked


class AbortedTxn(NamedTuple):
    """An aborted transaction in one partition. Offsets as in the entry."""

    producer_id: int
    first_offset: int
    last_offset: int
    stable_offset: int


def encode_entry(txn: AbortedTxn) -> bytes:
    """The 34 bytes of an entry."""
    return ENTRY.pack(VERSION, *txn)


class TransactionIndex:
    """The transaction index of one segment: growing, or read from its file."""

    def __init__(self, entries: Buffer = b"") -> None:
        if len(entries) % ENTRY.size:
            raise Corrupt(f"a transaction index of {len(entries)} bytes: its last entry is torn")
        self._entries: Buffer = entries
        self._count = len(entries) // ENTRY.size
        self._minima = Minima(self._firsts)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> AbortedTxn:
        if not 0 <= index < self._count:
            raise IndexError(index)
        return AbortedTxn._make(ENTRY.unpack_from(self._entries, index * ENTRY.size)[1:])

    def _first(self, index: int) -> int:
        return int(_INT64.unpack_from(self._entries, index * ENTRY.size + FIRST_AT)[0])

    def _firsts(self, begin: int, end: int) -> Iterator[int]:
        rows = memoryview(self._entries)[begin * ENTRY.size : end * ENTRY.size]
        return (row[2] for row in ENTRY.iter_unpack(rows))

    def append(self, txn: AbortedTxn) -> None:
        """Add a transaction. Raises ValueError if its marker does not lie past all before it."""
        if self._count and self[self._count - 1].last_offset >= txn.last_offset:
            raise ValueError(f"{txn} after {self[self._count - 1]}: markers only go on")
        assert txn.first_offset <= txn.last_offset
        if not isinstance(self._entries, bytearray):
            self._entries = bytearray(self._entries)
        self._entries += encode_entry(txn)
        self._count += 1

    def collect(self, start: int, end: int) -> tuple[list[AbortedTxn], bool]:
        """The aborted transactions that touch [start, end), and whether the search is over.

        It is over once an entry's stable offset reaches `end`: by then every transaction begun before `end` had
        ended. Otherwise it goes on in the next segment's index.
        """
        low = self._bisect(LAST_AT, start)
        stop = self._bisect(STABLE_AT, end)
        complete = stop < self._count
        high = stop + 1 if complete else self._count
        if high - low <= SCAN_COUNT_MAX:
            places: Iterable[int] = (place for place in range(low, high) if self._first(place) < end)
        else:
            self._minima.extend_to(self._count)
            places = self._minima.below(end, low, high)
        return [self[place] for place in places], complete

    def _bisect(self, field_at: int, value: int) -> int:
        """The first entry whose field is `value` or more."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if _INT64.unpack_from(self._entries, middle * ENTRY.size + field_at)[0] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def content(self) -> memoryview:
        """The bytes of the file. While the view exists, nothing can be added: see `memoryview.release`."""
        return memoryview(self._entries)
