"""The producer state of a partition in packed form, which takes 60 to 170 bytes for each producer.

The table consists of *blocks* of up to 32 producers, ordered by producer id. A block is immutable: a change replaces
it. So a copy of the table shares the blocks of the original, and a thread may read the copy while the original changes.
Copying a million producers takes a few milliseconds. Snapshots contain the blocks as they are.

Format: docs/reference/formats.md, "Producers".
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from stablelog.batch.header import NO_SEQUENCE
from stablelog.errors import DamageError
from stablelog.log.producer_state.producer import BATCHES_KEPT, NO_TXN, KeptBatch, ProducerEntry

BLOCK_COUNT_MAX: Final = 32

SNAPSHOT_ENTRY: Final = struct.Struct(
    ">"
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # last_sequence: -1 none
    "q"  # last_offset: the last offset of the last batch; -1 none
    "i"  # offset_delta: the last batch's last offset minus its first
    "q"  # timestamp: the timestamp of the last batch or marker, ms; -1 none
    "i"  # coordinator_epoch: -1 none
    "q"  # current_txn_first_offset: the first offset of the open transaction; -1 none
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
    "q"  # txn_started: when the open transaction began, by the broker's clock, ms
    "q"  # txn_record_count
)
USED_SIZE: Final = 8
TIMESTAMP: Final = struct.Struct(">q")
# Each packed producer has one byte, its *kind*. This bit in it marks an open transaction; the lower bits count the kept
# batches.
OPEN: Final = 8
NO_BATCH: Final = KeptBatch(NO_SEQUENCE, -1, 0, -1)
_KINDS: Final = bytes(batches | txn for txn in (0, OPEN) for batches in range(BATCHES_KEPT + 1))


# By the number of kept batches of a producer: the format of the last batch's timestamp, followed by the other batches.
_BATCHES: Final = [
    struct.Struct(">"),
    *(struct.Struct(TIMESTAMP.format + BATCH_ROW.format[1:] * others) for others in range(BATCHES_KEPT)),
]
# By kind: the size in bytes of the last part of a packed producer. It is 0 for a kind that no producer has.
_REST_SIZES: Final = bytes(
    _BATCHES[kind & ~OPEN].size + (TXN_ROW.size if kind & OPEN else 0) if kind in _KINDS else 0
    for kind in range(256)
)
_IDS: Final = [
    struct.Struct(">" + f"q{SNAPSHOT_ENTRY.size - 8}x" * count) for count in range(BLOCK_COUNT_MAX + 1)
]
_USED: Final = [struct.Struct(f">{count}q") for count in range(BLOCK_COUNT_MAX + 1)]


class _Row(NamedTuple):
    """A packed producer.

    Attributes:
        entry: its entry in the format of Kafka's snapshots.
        used: the time of its last use, as 8 bytes.
        kind: the number of its remembered batches; plus `OPEN` if it has an open transaction.
        rest: the fields that Kafka's format does not have: the timestamp of the last batch, the earlier batches, and
            the time and the record count of the open transaction.
    """

    entry: bytes
    used: bytes
    kind: int
    rest: bytes


def _pack(producer: ProducerEntry) -> _Row:
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


def _unpack(row: _Row) -> ProducerEntry:
    entry, used, kind, rest = row
    producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = (
        SNAPSHOT_ENTRY.unpack(entry)
    )
    (used_ms,) = TIMESTAMP.unpack(used)
    producer = ProducerEntry(producer_id, epoch, coordinator_epoch, [], used_ms, timestamp, txn_first)
    at = _BATCHES[kind & ~OPEN].size
    if at:
        (last_timestamp,) = TIMESTAMP.unpack_from(rest)
        producer.batches = list(map(KeptBatch._make, BATCH_ROW.iter_unpack(rest[TIMESTAMP.size : at])))
        producer.batches.append(KeptBatch(sequence, offset, delta, last_timestamp))
    if kind & OPEN:
        producer.txn_started_ms, producer.txn_record_count = TXN_ROW.unpack_from(rest, at)
    return producer


def _columns(block: bytes) -> tuple[int, int, int, int]:
    """Return four numbers that describe a block: how many producers it has, and the positions at which its second,
    third and fourth column begin. The first column begins at byte 1.

    The columns have one value for each producer. They are, in this order: the entries in the format of Kafka's
    snapshots, the times of last use, the kinds (the byte with the number of remembered batches, and whether a
    transaction is open), and the other fields.
    """
    count = block[0]
    used = 1 + count * SNAPSHOT_ENTRY.size
    kinds = used + count * USED_SIZE
    return count, used, kinds, kinds + count


def _block_end(content: bytes, at: int) -> int | None:
    """Return the end of the block (up to 32 packed producers) that begins at the byte `at` of `content`; None if the
    content ends within the block.

    Raises:
        DamageError: the bytes at `at` are no block of packed producers.
    """
    if at == len(content):
        return None
    count = content[at]
    if not 0 < count <= BLOCK_COUNT_MAX:
        raise DamageError(f"the producer table of a snapshot is damaged: a block has {count} producers")
    kinds_at = at + 1 + count * (SNAPSHOT_ENTRY.size + USED_SIZE)
    kinds = content[kinds_at : kinds_at + count]
    if kinds.translate(None, _KINDS):
        raise DamageError(
            "the producer table of a snapshot is damaged: a block has a producer of an unknown kind"
        )
    end = kinds_at + count + sum(kinds.translate(_REST_SIZES))
    return end if len(kinds) == count and end <= len(content) else None


def entries_of(block: bytes) -> bytes:
    """Return the producers of a block (up to 32 packed producers) as entries in the format of Kafka's snapshots."""
    return block[1 : 1 + block[0] * SNAPSHOT_ENTRY.size]


def _ids(block: bytes) -> tuple[int, ...]:
    return _IDS[block[0]].unpack_from(block, 1)


def _used(block: bytes) -> tuple[int, ...]:
    return _USED[block[0]].unpack_from(block, 1 + block[0] * SNAPSHOT_ENTRY.size)


def _kinds(block: bytes) -> bytes:
    _, _, kinds, rest = _columns(block)
    return block[kinds:rest]


def _rows(block: bytes, first: int = 0) -> Iterator[_Row]:
    """Yield the packed producers of a block, from number `first` on, counted from 0."""
    count, used, kinds, rest = _columns(block)
    at = rest + sum(block[kinds : kinds + first].translate(_REST_SIZES))
    for place in range(first, count):
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
    """Return a copy of a block in which one packed producer was replaced or inserted.

    Args:
        block: the block.
        place: the number of the producer in the new block, counted from 0.
        row: the packed producer.
        replaced: 1 if `row` replaces the producer at this place; 0 if it is inserted before it.
    """
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


def _without_unused(block: bytes, used_before_ms: int) -> bytes:
    """Return a block without its unused producers: those that were last used before `used_before_ms` and have no open
    transaction. The result is empty if no producer is left.
    """
    times = _used(block)
    if min(times) >= used_before_ms:
        return block
    if max(times) < used_before_ms and max(_kinds(block)) < OPEN:
        return b""
    return _block(
        [
            row
            for row, used_ms in zip(_rows(block), times, strict=True)
            if row.kind >= OPEN or used_ms >= used_before_ms
        ]
    )


class ProducerTable:
    """Table of the producers of a partition in packed form: the state of each takes 60 to 170 bytes. It is ordered by
    producer id.
    """

    def __init__(self) -> None:
        # The least producer id of each block of packed producers. An id below all of these belongs to the first block.
        self._firsts = array("q")
        self._blocks: list[bytes] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[ProducerEntry]:
        """Yield a copy of each producer's state, in the order of the producer ids."""
        for block in self._blocks:
            yield from map(_unpack, _rows(block))

    @property
    def size(self) -> int:
        """The size of all packed producers in bytes."""
        return sum(map(len, self._blocks))

    def copy(self) -> "ProducerTable":
        """Return a copy of the table, independent of later changes."""
        copied = ProducerTable()
        copied._firsts = self._firsts[:]
        copied._blocks = self._blocks[:]
        copied._count = self._count
        return copied

    def _find(self, producer_id: int) -> tuple[int, int, bool]:
        """Find a producer in the table. Return the number of its block, its number in this block, and whether the table
        has it; if it does not, the numbers say where to insert it. Numbers begin at 0.
        """
        at = max(bisect_right(self._firsts, producer_id) - 1, 0)
        ids = _ids(self._blocks[at]) if self._blocks else ()
        place = bisect_left(ids, producer_id)
        return at, place, place < len(ids) and ids[place] == producer_id

    def get(self, producer_id: int) -> ProducerEntry | None:
        """Return a copy of a producer's state; None if the table does not have the producer."""
        at, place, is_there = self._find(producer_id)
        return _unpack(next(_rows(self._blocks[at], place))) if is_there else None

    def greatest_id(self, at_most: int) -> int:
        """Return the greatest producer id in the table that is not greater than `at_most`; -1 if there is none."""
        at, place, is_there = self._find(at_most)
        if is_there:
            return at_most
        return _ids(self._blocks[at])[place - 1] if place else -1

    def put(self, producer: ProducerEntry) -> None:
        """Store the current state of a producer, in place of an earlier state."""
        row, blocks = _pack(producer), self._blocks
        at, place, is_there = self._find(producer.producer_id)
        self._count += not is_there
        if is_there or (blocks and blocks[at][0] < BLOCK_COUNT_MAX):
            blocks[at] = _spliced(blocks[at], place, row, replaced=int(is_there))
        elif not blocks or (place == BLOCK_COUNT_MAX and at == len(blocks) - 1):
            # The new producer id is the greatest. Its producer begins a new block, so that the full last block is not
            # divided.
            self._insert_block(len(blocks), _block([row]))
        else:
            rows = list(_rows(blocks[at]))
            rows.insert(place, row)
            half = BLOCK_COUNT_MAX // 2
            blocks[at] = _block(rows[:half])
            self._insert_block(at + 1, _block(rows[half:]))

    def _insert_block(self, at: int, block: bytes) -> None:
        self._blocks.insert(at, block)
        self._firsts.insert(at, _ids(block)[0])

    def remove_unused(self, used_before_ms: int, first: int, block_count_max: int) -> tuple[int, int]:
        """Remove the producers that were last used before a time and have no open transaction.

        Args:
            used_before_ms: the time, in broker time (a clock that never goes back, even if the machine's clock is set
                back).
            first: the number of the first block that this call examines, counted from 0.
            block_count_max: how many blocks, of up to 32 producers each, this call may examine.

        Returns:
            How many producers were removed, and the number of the first block that was not examined. A later call
            continues there, also if producers were stored meanwhile: new blocks move the others only to later places.
        """
        examined = slice(first, first + block_count_max)
        count = self._count
        kept = []
        for block in self._blocks[examined]:
            rest = _without_unused(block, used_before_ms)
            self._count += (rest[0] if rest else 0) - block[0]
            if rest:
                kept.append(rest)
        self._blocks[examined] = kept
        self._firsts[examined] = array("q", [_ids(block)[0] for block in kept])
        return count - self._count, first + len(kept)

    # -- all producers -----------------------------------------------------------------------------------------

    @classmethod
    def from_producers(cls, producers: Iterable[ProducerEntry]) -> "ProducerTable":
        """Make a table of these producers. If several have the same id, the last one counts."""
        self = cls()
        for producer in producers:
            self.put(producer)
        return self

    def blocks(self) -> Sequence[bytes]:
        """Return the blocks of up to 32 packed producers, in the order of the producer ids."""
        return self._blocks

    @classmethod
    def from_blocks(cls, pieces: Iterable[bytes]) -> "ProducerTable":
        """Make a table from the concatenated blocks of another table, as a snapshot contains them.

        Args:
            pieces: the bytes, divided at any places.

        Raises:
            DamageError: the bytes are no blocks of packed producers in the order of their ids.
        """
        self = cls()
        rest, last_id = b"", None
        for piece in pieces:
            content, at = rest + piece, 0
            while (end := _block_end(content, at)) is not None:
                block = content[at:end]
                ids = _ids(block)
                if list(ids) != sorted(set(ids)) or (last_id is not None and ids[0] <= last_id):
                    raise DamageError(
                        f"the producer table of a snapshot is damaged: its producer ids do not ascend after id {last_id}"
                    )
                self._insert_block(len(self._blocks), block)
                self._count += block[0]
                at, last_id = end, ids[-1]
            rest = content[at:]
        if rest:
            raise DamageError(
                f"the producer table of a snapshot is damaged: {len(rest)} bytes follow its last block"
            )
        return self

    def open_producers(self) -> list[ProducerEntry]:
        """Return copies of the producers with an open transaction, in the order of the producer ids."""
        return [
            _unpack(row)
            for block in self._blocks
            if max(_kinds(block)) >= OPEN
            for row in _rows(block)
            if row.kind >= OPEN
        ]

    def limit_times(self, now_ms: int) -> None:
        """Limit the times of last use, and of the beginnings of open transactions, to `now_ms`. Later times occur if
        the machine's clock was set back.
        """
        for at, block in enumerate(self._blocks):
            if max(_used(block)) > now_ms or max(_kinds(block)) >= OPEN:
                producers = [_unpack(row) for row in _rows(block)]
                for producer in producers:
                    producer.used_ms = min(producer.used_ms, now_ms)
                    producer.txn_started_ms = min(producer.txn_started_ms, now_ms)
                self._blocks[at] = _block([_pack(producer) for producer in producers])
