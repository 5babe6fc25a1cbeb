"""Snapshots of the producer state, so that recovery replays only the log behind them.

A snapshot of offset S holds the producer state when the log ended at S, in two files. `<S>.snapshot` is Kafka's, with
one batch of each producer. `<S>.producers` is stablelog's own: all five batches, when each producer last wrote by the
broker's clock, and the progress of the segment in which S lies. Recovery reads Kafka's file only without the other one.

The event loop copies the packed table in milliseconds. Any thread then encodes the files piece by piece and writes them.

Format: docs/formats.md, "Producer snapshot", "Producers".
"""

import contextlib
import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from crc32c import crc32c

from stablelog.env.disk import Content, Disk
from stablelog.errors import Corrupt, DiskError, in_words, refuse_newer
from stablelog.log.files.names import PRODUCERS, SNAPSHOT, is_snapshot, offset_of
from stablelog.log.indexes.summary import SUMMARY, Summary
from stablelog.log.producer_state.producer import BATCHES_KEPT, NO_TXN, KeptBatch, Producer
from stablelog.log.producer_state.producer_table import SNAPSHOT_ENTRY, ProducerTable, entries_of
from stablelog.log.producer_state.producers import Producers
from stablelog.log.segments.segment import Segment

SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "i"  # count of entries
)
CRC_END = 6
KEPT_COUNT = 2  # of those within a segment: the newest, and one before it should that be damaged
REPLAYED_SIZE_MAX = 4096  # bytes of the log that a start replays for less than a snapshot costs
SHARE = 8  # a snapshot is taken after so many times its own size at the least
PRODUCERS_VERSION = 2
PRODUCERS_HEADER = struct.Struct(
    ">"
    "h"  # version: 2
    "I"  # crc: CRC-32C of everything after this field
    "q"  # count of producers
)
JSON_BEGINS = b'{"version":1,'  # a file of version 1
PIECE_SIZE = 1 << 20  # bytes of a file that are read at once
PIECE_BLOCKS = 256  # of up to 32 producers: a piece of a file that is written has 1.5 MB at most


class FoundSnapshots(NamedTuple):
    """The snapshots that recovery has found.

    Attributes:
        offsets: of those in the directory.
        whole: of those of which the directory has both files, ours and Kafka's.
        replayed_size: bytes of the log that were replayed behind one of them, or from the log's start.
        holds_producers: whether that one has any.
    """

    offsets: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()
    replayed_size: int = 0
    holds_producers: bool = False


class Snapshots:
    """The snapshots of one partition: when the next one is due, and which of them stay.

    The snapshot at the beginning of a segment stays as long as the segment: when earlier segments are deleted, only it
    has the transactions that began in them. The others shorten recovery.

    Args:
        disk: where the partition lies.
        directory: its own.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._within: deque[int] = deque()  # offsets of those within a segment, oldest first
        self._appended_size = 0  # since the last one
        self._size = 0  # of the last one
        self._offsets: set[int] = set()  # of all that are on disk or will be
        self._whole: set[int] = set()  # and of those with both files
        self._replayed_size = 0  # bytes of the log behind the newest one
        self._holds_producers = False  # the newest one

    def opened(self, found: FoundSnapshots) -> None:
        """Note what recovery has found."""
        self._offsets, self._whole = set(found.offsets), set(found.whole)
        self._replayed_size, self._holds_producers = found.replayed_size, found.holds_producers
        self.put_off()

    def appended(self, size: int) -> None:
        """Note that bytes were appended to the log."""
        self._appended_size += size
        self._replayed_size += size

    def lacks_newest(self, producers: Producers, active: Segment) -> bool:
        """Whether the next start needs a snapshot at the log's end that is not there.

        Without producers, and with only a few bytes to replay, a snapshot would cost more than it saves. When a producer
        wrote and when a transaction began, only a snapshot says.

        Args:
            producers: as they are now.
            active: the growing segment, whose time index a snapshot at the end has to describe as complete.
        """
        is_worth_it = len(producers) or self._holds_producers or self._replayed_size > REPLAYED_SIZE_MAX
        return bool(is_worth_it) and not (active.is_time_index_complete and active.end_offset in self._whole)

    def is_due(self, size_min: int) -> bool:
        """Whether enough was appended: `size_min` bytes, and many times what a snapshot takes."""
        return self._appended_size >= max(size_min, SHARE * self._size)

    def put_off(self) -> None:
        """Count the bytes to the next snapshot from now on, as if one was taken."""
        self._appended_size = 0

    def take(self, producers: Producers, progress: Summary) -> dict[Path, Content]:
        """The files to be written, together, once all up to the end that `progress` tells is durable.

        A crash may leave one of them: ours alone is enough, and Kafka's alone is read only where none of ours helps.
        """
        offset = progress.end_offset
        if self._within and self._within[-1] == offset:
            self._within.pop()
        if offset != progress.base_offset:
            self._within.append(offset)
        table = producers.frozen()
        content = ProducersFile(table, progress)
        self._size = len(content)
        self._appended_size = self._replayed_size = 0
        self._offsets.add(offset)
        self._whole.add(offset)
        self._holds_producers = bool(len(table))
        stem = f"{offset:020d}"
        return {
            self._directory / f"{stem}{PRODUCERS}": content,
            self._directory / f"{stem}{SNAPSHOT}": SnapshotFile(table),
        }

    def remove(self, offset: int) -> None:
        """Remove the snapshot of an offset."""
        self._offsets.discard(offset)
        self._whole.discard(offset)
        self._disk.remove(self._directory / f"{offset:020d}.snapshot")
        self._disk.remove(self._directory / f"{offset:020d}.producers")

    def remove_older(self, durable_end_offset: int) -> None:
        """Remove snapshots within a segment that newer, durable ones replace. What fails is tried again later."""
        with contextlib.suppress(DiskError):
            while len(self._within) > KEPT_COUNT and self._within[KEPT_COUNT] <= durable_end_offset:
                self.remove(self._within[0])
                self._within.popleft()

    def keep_newest(self, end_offset: int, bases: Iterable[int]) -> None:
        """If there is a snapshot at the log's end, remove all others but those at the beginnings of segments."""
        if end_offset in self._whole:
            for offset in sorted(self._offsets - {end_offset, *bases}):
                self.remove(offset)

    def forget_past(self, end_offset: int) -> None:
        """Remove snapshots past `end_offset`: other records will get their offsets."""
        for name in self._disk.list_dir(self._directory):
            if is_snapshot(name) and offset_of(name) > end_offset:
                self._disk.remove(self._directory / name)
        self._within = deque(known for known in self._within if known <= end_offset)
        self._offsets = {known for known in self._offsets if known <= end_offset}
        self._whole &= self._offsets


def _pieces(table: ProducerTable) -> Iterator[list[bytes]]:
    blocks = table.blocks()
    for at in range(0, len(blocks), PIECE_BLOCKS):
        yield list(blocks[at : at + PIECE_BLOCKS])


class SnapshotFile:
    """The content of Kafka's file.

    Args:
        table: all producers. It must not change any more.
    """

    def __init__(self, table: ProducerTable) -> None:
        self._table = table

    def __len__(self) -> int:
        return SNAPSHOT_HEADER.size + len(self._table) * SNAPSHOT_ENTRY.size

    def __iter__(self) -> Iterator[bytes]:
        counted = struct.pack(">i", len(self._table))
        crc = crc32c(counted)
        for piece in self._entries():
            crc = crc32c(piece, crc)
        yield struct.pack(">hI", SNAPSHOT_VERSION, crc) + counted
        yield from self._entries()

    def _entries(self) -> Iterator[bytes]:
        for blocks in _pieces(self._table):
            yield b"".join([entries_of(block) for block in blocks])


def decode_snapshot(content: bytes, now_ms: int) -> ProducerTable:
    """Read Kafka's file. It does not tell when a producer last wrote by the broker's clock: `now_ms` is taken.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is not a snapshot, or damaged.
    """
    refuse_newer("a producer snapshot", int.from_bytes(content[:2], "big"), SNAPSHOT_VERSION)
    if len(content) < SNAPSHOT_HEADER.size:
        raise Corrupt(f"a producer snapshot that ends in its header, after {len(content)} bytes")
    version, crc, count = SNAPSHOT_HEADER.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        raise Corrupt(f"a producer snapshot of version {version}; {SNAPSHOT_VERSION} is known")
    if crc != crc32c(content[CRC_END:]) or len(content) != SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size:
        raise Corrupt("a producer snapshot whose CRC or size does not hold")
    return ProducerTable.of(_from_entries(memoryview(content)[SNAPSHOT_HEADER.size :], now_ms))


def _from_entries(entries: memoryview, now_ms: int) -> Iterator[Producer]:
    for entry in SNAPSHOT_ENTRY.iter_unpack(entries):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = entry
        producer = Producer(
            producer_id, epoch, coordinator_epoch, used_ms=now_ms, last_timestamp_ms=timestamp
        )
        if offset >= 0:
            producer.batches.append(KeptBatch(sequence, offset, delta, timestamp))
        if txn_first != NO_TXN:
            producer.txn_first_offset = txn_first
            producer.txn_started_ms = now_ms
        yield producer


class ProducersFile:
    """The content of our file.

    Args:
        table: all producers. It must not change any more.
        progress: how far the segment had come, in the form of the summary that it will once have.
    """

    def __init__(self, table: ProducerTable, progress: Summary) -> None:
        self._table = table
        self._head = progress.encode()
        self._size = PRODUCERS_HEADER.size + len(self._head) + table.size

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[bytes]:
        counted = len(self._table).to_bytes(8, "big") + self._head
        crc = crc32c(counted)
        for block in self._table.blocks():
            crc = crc32c(block, crc)
        yield struct.pack(">hI", PRODUCERS_VERSION, crc) + counted
        for blocks in _pieces(self._table):
            yield b"".join(blocks)


def decode_producers(content: bytes) -> tuple[ProducerTable, Summary]:
    """Decode our file, of this version or the one before.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is not whole.
    """
    return _decode_pieces(iter((content,)))


def read_producers(disk: Disk, path: Path) -> tuple[ProducerTable, Summary]:
    """Read our file as `decode_producers` does, without a copy of it in memory.

    Raises:
        FileNotFoundError: it is missing.
    """
    file = disk.open(path)
    try:
        return _decode_pieces(file.read(at, PIECE_SIZE) for at in range(0, max(file.size, 1), PIECE_SIZE))
    finally:
        file.close()


def _decode_pieces(pieces: Iterator[bytes]) -> tuple[ProducerTable, Summary]:
    first = next(pieces)
    if first.startswith(JSON_BEGINS):
        return _decode_json(b"".join((first, *pieces)))
    refuse_newer("a file of producers", int.from_bytes(first[:2], "big"), PRODUCERS_VERSION)
    begin = PRODUCERS_HEADER.size + SUMMARY.size
    if len(first) < begin:
        raise Corrupt(f"a file of producers that ends in its header, after {len(first)} bytes")
    version, wanted_crc, count = PRODUCERS_HEADER.unpack_from(first)
    if version != PRODUCERS_VERSION:
        raise Corrupt(f"a file of producers of version {version}; {PRODUCERS_VERSION} is known")
    crc = crc32c(memoryview(first)[CRC_END:])

    def blocks() -> Iterator[bytes]:
        nonlocal crc
        yield first[begin:]
        for piece in pieces:
            crc = crc32c(piece, crc)
            yield piece

    table = ProducerTable.of_blocks(blocks())
    if crc != wanted_crc:
        raise Corrupt("a file of producers whose CRC does not hold")
    if len(table) != count:
        raise Corrupt(f"a file of {len(table)} producers that says {count}")
    return table, Summary.decode(first[PRODUCERS_HEADER.size : begin])


def _decode_json(content: bytes) -> tuple[ProducerTable, Summary]:
    """Read our file of version 1."""
    text, _, crc = content.rstrip(b"\n").rpartition(b"\n")
    try:
        if crc32c(text) != int(crc, 16):
            raise Corrupt("a file of producers whose CRC does not hold")
        read = json.loads(text)
        timestamps = dict(read.get("timestamps", ()))
        rows = sorted(read["producers"])
        return ProducerTable.of(_from_rows(rows, timestamps)), Summary.decode(bytes.fromhex(read["segment"]))
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise Corrupt(f"not a file of producers: {in_words(error)}") from error


def decode_either(name: str, content: bytes) -> ProducerTable:
    """The producers in a file of either form, which its name tells. How long they have been idle does not matter.

    Raises:
        NewerFormat, Corrupt: as `decode_producers` and `decode_snapshot`.
    """
    return decode_producers(content)[0] if name.endswith(PRODUCERS) else decode_snapshot(content, -1)


def _from_rows(rows: Iterable[Sequence[Any]], timestamps: Mapping[int, int]) -> Iterator[Producer]:
    for producer_id, epoch, coordinator_epoch, used_ms, txn_first, txn_started, txn_records, batches in rows:
        kept = [KeptBatch(*batch) for batch in batches][-BATCHES_KEPT:]
        # The timestamp of a row that says no other: of its last batch, or else when its marker was written.
        timestamp_ms = kept[-1].timestamp_ms if kept else used_ms
        yield Producer(
            producer_id,
            epoch,
            coordinator_epoch,
            kept,
            used_ms,
            timestamps.get(producer_id, timestamp_ms),
            txn_first,
            txn_started,
            txn_records,
        )
