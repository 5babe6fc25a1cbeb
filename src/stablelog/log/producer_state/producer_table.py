"""Packed producer state of a partition: 60 to 170 bytes for a producer.

Producers lie in *blocks*, ordered by producer id, up to 32 in a block. A block is immutable: a change replaces it. So
a copy of the table shares its blocks, takes a few milliseconds for a million producers, and stays as it was; a
thread may read it while the table changes. Blocks are written to disk as they are.

Format: docs/formats.md, "Producers".
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from stablelog.batch.header import NO_SEQUENCE
from stablelog.errors import Corrupt
from stablelog.log.producer_state.producer import BATCHES_KEPT, NO_TXN, KeptBatch, Producer

BLOCK_COUNT_MAX: Final = 32
NEVER_MS: Final = 2**63 - 1  # later than any time

SNAPSHOT_ENTRY: Final = struct.Struct(
    ">"
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # last_sequence: -1 none
    "q"  # last_offset: of the last batch, -1 none
    "i"  # offset_delta: of the last batch
    "q"  # timestamp: of the last batch or marker, ms; -1 none
    "i"  # coordinator_epoch: -1 none
    "q"  # current_txn_first_offset: -1 none
)
BATCH_ROW: Final = struct.Struct(
    ">"
    "i"  # last_sequence
    "q"  # last_offset
    "i"  # offset_delta
    "q"  # timestamp: ms
)
TXN_ROW: Final = struct.Struct(
    ">"
    "q"  # txn_started: by the broker's clock, ms
    "q"  # txn_record_count
)
USED_SIZE: Final = 8
TIMESTAMP: Final = struct.Struct(">q")
OPEN: Final = 8  # the bit of a kind for an open transaction; the bits below it count kept batches
NO_BATCH: Final = KeptBatch(NO_SEQUENCE, -1, 0, -1)
_KINDS: Final = bytes(batches | txn for txn in (0, OPEN) for batches in range(BATCHES_KEPT + 1))


def _rest_size(kind: int) -> int:
    """Bytes that a producer of this kind takes behind the columns of its block."""
    batches = kind & ~OPEN
    size = TIMESTAMP.size + (batches - 1) * BATCH_ROW.size if batches else 0
    return size + (TXN_ROW.size if kind & OPEN else 0)


# By the number of kept batches: the timestamp of the last one, and all of those before it.
_BATCHES: Final = [
    struct.Struct(TIMESTAMP.format + BATCH_ROW.format[1:] * (count - 1)) for count in range(BATCHES_KEPT + 1)
]
_REST_SIZES: Final = bytes(_rest_size(kind) if kind in _KINDS else 0 for kind in range(256))
_IDS: Final = [
    struct.Struct(">" + f"q{SNAPSHOT_ENTRY.size - 8}x" * count) for count in range(BLOCK_COUNT_MAX + 1)
]
_USED: Final = [struct.Struct(f">{count}q") for count in range(BLOCK_COUNT_MAX + 1)]


class _Row(NamedTuple):
    """A packed producer: its Kafka entry, when it was used, its kind, and the rest."""

    entry: bytes
    used: bytes
    kind: int
    rest: bytes


def _pack(producer: Producer) -> _Row:
    batches = producer.batches
    last = batches[-1] if batches else NO_BATCH
    entry = SNAPSHOT_ENTRY.pack(
        producer.producer_id,
        producer.producer_epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        producer.last_timestamp_ms,
        producer.coordinator_epoch,
        producer.txn_first_offset,
    )
    kind = len(batches)
    rest = _BATCHES[kind].pack(last.timestamp_ms, *chain.from_iterable(batches[:-1])) if kind else b""
    if producer.txn_first_offset != NO_TXN:
        kind |= OPEN
        rest += TXN_ROW.pack(producer.txn_started_ms, producer.txn_record_count)
    return _Row(entry, TIMESTAMP.pack(producer.used_ms), kind, rest)


def _unpack(row: _Row) -> Producer:
    entry, used, kind, rest = row
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = (
        SNAPSHOT_ENTRY.unpack(entry)
    )
    (used_ms,) = TIMESTAMP.unpack(used)
    producer = Producer(producer_id, epoch, coordinator_epoch, [], used_ms, timestamp, txn_first)
    count, at = kind & ~OPEN, 0
    if count:
        (last_timestamp,) = TIMESTAMP.unpack_from(rest)
        at = TIMESTAMP.size + (count - 1) * BATCH_ROW.size
        producer.batches = list(map(KeptBatch._make, BATCH_ROW.iter_unpack(rest[TIMESTAMP.size : at])))
        producer.batches.append(KeptBatch(sequence, offset, delta, last_timestamp))
    if kind & OPEN:
        producer.txn_started_ms, producer.txn_record_count = TXN_ROW.unpack_from(rest, at)
    return producer


def _columns(block: bytes) -> tuple[int, int, int, int]:
    """Return the number of producers in a block, and where its three later columns begin: `used_ms`, kinds, the rest."""
    count = block[0]
    used = 1 + count * SNAPSHOT_ENTRY.size
    kinds = used + count * USED_SIZE
    return count, used, kinds, kinds + count


def _block_end(content: bytes, at: int) -> int | None:
    """Where the block that begins at `at` ends; None if the content ends before.

    Raises:
        Corrupt: no block begins there.
    """
    if at == len(content):
        return None
    count = content[at]
    if not 0 < count <= BLOCK_COUNT_MAX:
        raise Corrupt(f"a block of {count} producers")
    kinds_at = at + 1 + count * (SNAPSHOT_ENTRY.size + USED_SIZE)
    kinds = content[kinds_at : kinds_at + count]
    if kinds.translate(None, _KINDS):
        raise Corrupt("a block with producers of an unknown kind")
    end = kinds_at + count + sum(kinds.translate(_REST_SIZES))
    return end if len(kinds) == count and end <= len(content) else None


def entries_of(block: bytes) -> bytes:
    """The entries of Kafka's snapshot for the producers of a block."""
    return block[1 : 1 + block[0] * SNAPSHOT_ENTRY.size]


def _ids(block: bytes) -> tuple[int, ...]:
    return _IDS[block[0]].unpack_from(block, 1)


def _used(block: bytes) -> tuple[int, ...]:
    count = block[0]
    return _USED[count].unpack_from(block, 1 + count * SNAPSHOT_ENTRY.size)


def _kinds(block: bytes) -> bytes:
    _, _, kinds, rest = _columns(block)
    return block[kinds:rest]


def _row(block: bytes, place: int) -> _Row:
    _, used, kinds, rest = _columns(block)
    begin = rest + sum(block[kinds : kinds + place].translate(_REST_SIZES))
    kind = block[kinds + place]
    entry_at, used_at = 1 + place * SNAPSHOT_ENTRY.size, used + place * USED_SIZE
    return _Row(
        block[entry_at : entry_at + SNAPSHOT_ENTRY.size],
        block[used_at : used_at + USED_SIZE],
        kind,
        block[begin : begin + _REST_SIZES[kind]],
    )


def _rows(block: bytes) -> Iterator[_Row]:
    count, used, kinds, at = _columns(block)
    for place in range(count):
        kind = block[kinds + place]
        entry_at, used_at = 1 + place * SNAPSHOT_ENTRY.size, used + place * USED_SIZE
        end = at + _REST_SIZES[kind]
        yield _Row(
            block[entry_at : entry_at + SNAPSHOT_ENTRY.size],
            block[used_at : used_at + USED_SIZE],
            kind,
            block[at:end],
        )
        at = end


def _block(rows: Sequence[_Row]) -> bytes:
    entries, used, kinds, rests = zip(*rows, strict=True)
    return b"".join((bytes((len(rows),)), *entries, *used, bytes(kinds), *rests))


def _spliced(block: bytes, place: int, row: _Row, *, replaced: int) -> bytes:
    """Return the block with a row put in at `place`. If `replaced` is 1, the row replaces the one that is there."""
    count, used, kinds, rest = _columns(block)
    size = SNAPSHOT_ENTRY.size
    entry_at, used_at, kind_at = 1 + place * size, used + place * USED_SIZE, kinds + place
    rest_at = rest + sum(block[kinds:kind_at].translate(_REST_SIZES))
    rest_end = rest_at + (_REST_SIZES[block[kind_at]] if replaced else 0)
    return b"".join(
        (
            bytes((count + 1 - replaced,)),
            block[1:entry_at],
            row.entry,
            block[entry_at + replaced * size : used_at],
            row.used,
            block[used_at + replaced * USED_SIZE : kind_at],
            bytes((row.kind,)),
            block[kind_at + replaced : rest_at],
            row.rest,
            block[rest_end:],
        )
    )


def _least_used(block: bytes) -> int:
    """The least time of last use of those without an open transaction; NEVER_MS if there are none."""
    used = _used(block)
    kinds = _kinds(block)
    if max(kinds) < OPEN:
        return min(used)
    return min((time for time, kind in zip(used, kinds, strict=True) if kind < OPEN), default=NEVER_MS)


def _without_unused(block: bytes, used_before_ms: int) -> bytes:
    """The block without producers that were last used before a time and have no open transaction; empty: none is left."""
    times, kinds = _used(block), _kinds(block)
    if max(times) < used_before_ms and max(kinds) < OPEN:
        return b""
    kept = [
        row
        for row, used_ms in zip(_rows(block), times, strict=True)
        if row.kind >= OPEN or used_ms >= used_before_ms
    ]
    if len(kept) == len(times):
        return block
    return _block(kept) if kept else b""


class ProducerTable:
    """Producers by producer id, packed."""

    def __init__(self) -> None:
        # The producer id of the first producer in each block; the first block takes lower ids, too.
        self._firsts = array("q")
        self._blocks: list[bytes] = []
        # For each block, a time before which none of it was last used, but for producers with an open transaction.
        self._used_since = array("q")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Producer]:
        """Producers in the order of their ids; copies, whose changes the table does not see."""
        for block in self._blocks:
            for row in _rows(block):
                yield _unpack(row)

    @property
    def size(self) -> int:
        """Bytes of all blocks."""
        return sum(map(len, self._blocks))

    def copy(self) -> "ProducerTable":
        """The table as it is now: later changes of either are not seen by the other."""
        copied = ProducerTable()
        copied._firsts = self._firsts[:]
        copied._blocks = self._blocks[:]
        copied._used_since = self._used_since[:]
        copied._count = self._count
        return copied

    def _place_of(self, producer_id: int) -> int:
        return max(bisect_right(self._firsts, producer_id) - 1, 0)

    def get(self, producer_id: int) -> Producer | None:
        """A copy of a producer's state; None if it is not known."""
        if not self._blocks:
            return None
        block = self._blocks[self._place_of(producer_id)]
        ids = _ids(block)
        place = bisect_left(ids, producer_id)
        if place == len(ids) or ids[place] != producer_id:
            return None
        return _unpack(_row(block, place))

    def greatest_id(self, at_most: int) -> int:
        """The greatest producer id that is not above `at_most`; -1 if there is none."""
        if not self._blocks:
            return -1
        ids = _ids(self._blocks[self._place_of(at_most)])
        place = bisect_right(ids, at_most)
        return ids[place - 1] if place else -1

    def put(self, producer: Producer) -> None:
        """Hold a producer's state as it is now, in the place of what was held of it."""
        row = _pack(producer)
        used_ms = producer.used_ms if row.kind < OPEN else NEVER_MS
        if not self._blocks:
            self._insert_block(0, _block([row]))
            self._count = 1
            return
        at = self._place_of(producer.producer_id)
        block = self._blocks[at]
        ids = _ids(block)
        place = bisect_left(ids, producer.producer_id)
        if place < len(ids) and ids[place] == producer.producer_id:
            self._blocks[at] = _spliced(block, place, row, replaced=1)
        else:
            self._count += 1
            if len(ids) == BLOCK_COUNT_MAX:
                if place == BLOCK_COUNT_MAX and at == len(self._blocks) - 1:
                    self._insert_block(at + 1, _block([row]))  # ids rise: the blocks before it stay full
                    return
                rows = list(_rows(block))
                rows.insert(place, row)
                half = BLOCK_COUNT_MAX // 2
                del self._firsts[at], self._blocks[at], self._used_since[at]
                self._insert_block(at, _block(rows[half:]))
                self._insert_block(at, _block(rows[:half]))
                return
            self._blocks[at] = _spliced(block, place, row, replaced=0)
        self._used_since[at] = min(self._used_since[at], used_ms)

    def _insert_block(self, at: int, block: bytes) -> None:
        self._blocks.insert(at, block)
        self._firsts.insert(at, _ids(block)[0])
        self._used_since.insert(at, _least_used(block))

    def remove_unused(self, used_before_ms: int, block_count_max: int) -> tuple[int, bool]:
        """Remove producers that were last used before a time, but for those with an open transaction.

        Args:
            used_before_ms: the time.
            block_count_max: how many blocks to look into; the next call goes on.

        Returns:
            How many were removed, and whether there may be more.
        """
        removed, emptied, more = 0, False, False
        for at, since_ms in enumerate(self._used_since):
            if since_ms >= used_before_ms:
                continue
            if not block_count_max:
                more = True
                break
            block_count_max -= 1
            block = self._blocks[at]
            kept = _without_unused(block, used_before_ms)
            removed += block[0] - (kept[0] if kept else 0)
            self._blocks[at] = kept
            if kept:
                self._firsts[at] = _ids(kept)[0]
                self._used_since[at] = _least_used(kept)
            else:
                emptied = True
        self._count -= removed
        if emptied:
            self._drop_empty_blocks()
        return removed, more

    def _drop_empty_blocks(self) -> None:
        blocks = self._blocks
        self._firsts = array("q", [first for first, block in zip(self._firsts, blocks, strict=True) if block])
        self._used_since = array(
            "q", [since for since, block in zip(self._used_since, blocks, strict=True) if block]
        )
        self._blocks = [block for block in blocks if block]

    # -- as a whole --------------------------------------------------------------------------------------------

    @classmethod
    def of(cls, producers: Iterable[Producer]) -> "ProducerTable":
        """A table of these producers. Of several with one id the last one counts. Ordered by id, it is fastest."""
        self = cls()
        rows: list[_Row] = []
        last_id: int | None = None
        for producer in producers:
            if last_id is not None and producer.producer_id <= last_id:
                self._append_rows(rows)
                rows = []
                self.put(producer)
                last_id = self._last_id()
                continue
            rows.append(_pack(producer))
            last_id = producer.producer_id
            if len(rows) == BLOCK_COUNT_MAX:
                self._append_rows(rows)
                rows = []
        self._append_rows(rows)
        return self

    def _last_id(self) -> int:
        return _ids(self._blocks[-1])[-1]

    def _append_rows(self, rows: Sequence[_Row]) -> None:
        if rows:
            self._append_block(_block(rows))

    def _append_block(self, block: bytes) -> None:
        self._insert_block(len(self._blocks), block)
        self._count += block[0]

    def blocks(self) -> Sequence[bytes]:
        """The blocks, in the order of the ids."""
        return self._blocks

    @classmethod
    def of_blocks(cls, pieces: Iterable[bytes]) -> "ProducerTable":
        """A table of blocks as `blocks` gave them, one behind the other.

        Args:
            pieces: their bytes, in pieces of any sizes.

        Raises:
            Corrupt: they are no such blocks.
        """
        self = cls()
        rest, last_id = b"", None
        for piece in pieces:
            content, at = rest + piece, 0
            while (end := _block_end(content, at)) is not None:
                block = content[at:end]
                ids = _ids(block)
                if list(ids) != sorted(set(ids)) or (last_id is not None and ids[0] <= last_id):
                    raise Corrupt(f"the producer ids do not rise behind {last_id}")
                self._append_block(block)
                at, last_id = end, ids[-1]
            rest = content[at:]
        if rest:
            raise Corrupt(f"{len(rest)} bytes behind the last block of producers")
        return self

    def open_producers(self) -> list[Producer]:
        """Producers with an open transaction, in the order of their ids; copies."""
        return [
            _unpack(row)
            for block in self._blocks
            if max(_kinds(block)) >= OPEN
            for row in _rows(block)
            if row.kind >= OPEN
        ]

    def limit_times(self, now_ms: int) -> None:
        """Make times by the broker's clock that lie after `now_ms` to `now_ms`."""
        for at, block in enumerate(self._blocks):
            if max(_used(block)) <= now_ms and max(_kinds(block)) < OPEN:
                continue
            producers = [_unpack(row) for row in _rows(block)]
            for producer in producers:
                producer.used_ms = min(producer.used_ms, now_ms)
                producer.txn_started_ms = min(producer.txn_started_ms, now_ms)
            self._blocks[at] = _block([_pack(producer) for producer in producers])
            self._used_since[at] = _least_used(self._blocks[at])
