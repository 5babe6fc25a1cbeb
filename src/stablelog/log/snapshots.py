"""Producer state on disk, so that recovery replays only what came after.

Two files stand for one offset S and hold what was known when the log ended there. `<S>.snapshot` is Kafka's: it
keeps one batch of each producer. `<S>.producers` is ours: all five, when each last wrote by the broker's clock,
and how far the segment that S lies in had come. We read ours, and Kafka's where there is no other.

Format: docs/formats.md, "Producer snapshot", "Producers".
"""

import contextlib
import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from crc32c import crc32c

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, DiskError, in_words, refuse_newer
from stablelog.log.names import PRODUCERS, is_snapshot, offset_of
from stablelog.log.producers import BATCHES_KEPT, NO_TXN, KeptBatch, Producer, Producers
from stablelog.log.summary import Summary

SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "i"  # count of entries
)
SNAPSHOT_ENTRY = struct.Struct(
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
CRC_END = 6
KEPT_COUNT = 2  # of those within a segment: the newest, and one before it should that be damaged
SHARE = 8  # a snapshot is taken after so many times its own size at the least
PRODUCERS_VERSION = 1


class Snapshots:
    """The snapshots of one partition: when the next one is due, and which of them stay.

    One stands at the beginning of each segment, and stays as long as that does: when the segments before it are deleted,
    nothing else knows of the transactions that began in them. The others save recovery from reading.

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

    def appended(self, size: int) -> None:
        """So many bytes were appended to the log."""
        self._appended_size += size

    def is_due(self, size_min: int) -> bool:
        """Whether enough was appended: `size_min` bytes, and many times what a snapshot takes."""
        return self._appended_size >= max(size_min, SHARE * self._size)

    def put_off(self) -> None:
        """The next one is due when as much has been appended as after one that was taken now."""
        self._appended_size = 0

    def take(self, producers: Producers, progress: Summary) -> list[tuple[Path, bytes]]:
        """What is to be written of the producers, once all up to the end that `progress` tells is durable."""
        offset = progress.end_offset
        if self._within and self._within[-1] == offset:
            self._within.pop()
        if offset != progress.base_offset:
            self._within.append(offset)
        content = encode_producers(producers, progress)
        self._size = len(content)
        self._appended_size = 0
        stem = f"{offset:020d}"
        # Ours first: what is said by Kafka's alone is less, and is read only where there is none of ours.
        return [
            (self._directory / f"{stem}.producers", content),
            (self._directory / f"{stem}.snapshot", encode_snapshot(producers)),
        ]

    def remove(self, offset: int) -> None:
        """Remove the one of this offset."""
        self._disk.remove(self._directory / f"{offset:020d}.snapshot")
        self._disk.remove(self._directory / f"{offset:020d}.producers")

    def remove_older(self, durable_end_offset: int) -> None:
        """Remove snapshots within a segment that newer, durable ones replace; one that cannot go is tried again."""
        with contextlib.suppress(DiskError):
            while len(self._within) > KEPT_COUNT and self._within[KEPT_COUNT] <= durable_end_offset:
                self.remove(self._within[0])
                self._within.popleft()

    def remove_all_but(self, offsets: set[int]) -> None:
        """Keep those of these offsets: the beginnings of segments, as Kafka does, and the newest."""
        for name in self._disk.list_dir(self._directory):
            if is_snapshot(name) and offset_of(name) not in offsets:
                self._disk.remove(self._directory / name)

    def forget_past(self, end_offset: int) -> None:
        """Remove those of offsets past `end_offset`: they will be those of other records."""
        for name in self._disk.list_dir(self._directory):
            if is_snapshot(name) and offset_of(name) > end_offset:
                self._disk.remove(self._directory / name)
        self._within = deque(known for known in self._within if known <= end_offset)


def encode_snapshot(producers: Producers) -> bytes:
    """Kafka's file."""
    body = bytearray()
    for producer in producers.by_id.values():
        last = producer.batches[-1] if producer.batches else KeptBatch(-1, -1, 0, -1)
        body += SNAPSHOT_ENTRY.pack(
            producer.producer_id,
            producer.producer_epoch,
            last.last_sequence,
            last.last_offset,
            last.offset_delta,
            producer.last_timestamp_ms,
            producer.coordinator_epoch,
            producer.txn_first_offset,
        )
    counted = struct.pack(">i", len(producers.by_id)) + body
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(counted)) + counted


def decode_snapshot(content: bytes, now_ms: int) -> list[Producer]:
    """Read Kafka's file. Who wrote it does not say when a producer last wrote by the broker's clock: it is now.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is not a snapshot, or damaged.
    """
    refuse_newer("a producer snapshot", int.from_bytes(content[:2], "big"), SNAPSHOT_VERSION)
    if len(content) < SNAPSHOT_HEADER.size:
        raise Corrupt(f"a producer snapshot of {len(content)} bytes")
    version, crc, count = SNAPSHOT_HEADER.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        raise Corrupt(f"a producer snapshot of version {version}; {SNAPSHOT_VERSION} is known")
    if crc != crc32c(content[CRC_END:]) or len(content) != SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size:
        raise Corrupt("a producer snapshot whose CRC or size does not hold")
    found = []
    for entry in SNAPSHOT_ENTRY.iter_unpack(content[SNAPSHOT_HEADER.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = entry
        producer = Producer(
            producer_id, epoch, coordinator_epoch, used_ms=now_ms, last_timestamp_ms=timestamp
        )
        if offset >= 0:
            producer.batches.append(KeptBatch(sequence, offset, delta, timestamp))
        if txn_first != NO_TXN:
            producer.txn_first_offset = txn_first
            producer.txn_started_ms = now_ms
        found.append(producer)
    return found


def encode_producers(producers: Producers, progress: Summary) -> bytes:
    """Our file.

    Args:
        producers: all of them.
        progress: how far the segment had come, in the form of the summary that it will once have.
    """
    content = {
        "version": PRODUCERS_VERSION,
        "segment": progress.encode().hex(),
        "producers": [_row(producer) for producer in producers.by_id.values()],
    }
    timestamps = [
        [producer.producer_id, producer.last_timestamp_ms]
        for producer in producers.by_id.values()
        if producer.last_timestamp_ms != _timestamp_of(producer.batches, producer.used_ms)
    ]
    if timestamps:
        content["timestamps"] = timestamps
    text = json.dumps(content, separators=(",", ":")).encode()
    return text + b"\n" + crc32c(text).to_bytes(4, "big").hex().encode() + b"\n"


def _row(producer: Producer) -> list[object]:
    return [
        producer.producer_id,
        producer.producer_epoch,
        producer.coordinator_epoch,
        producer.used_ms,
        producer.txn_first_offset,
        producer.txn_started_ms,
        producer.txn_record_count,
        [list(batch) for batch in producer.batches],
    ]


def decode_producers(content: bytes) -> tuple[list[Producer], Summary]:
    """Read our file.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: it is not whole.
    """
    text, _, crc = content.rstrip(b"\n").rpartition(b"\n")
    try:
        if crc32c(text) != int(crc, 16):
            raise Corrupt("a file of producers whose CRC does not hold")
        read = json.loads(text)
        refuse_newer("a file of producers", read["version"], PRODUCERS_VERSION)
        if read["version"] != PRODUCERS_VERSION:
            raise Corrupt(f"a file of producers of version {read['version']}; {PRODUCERS_VERSION} is known")
        found = {producer.producer_id: producer for producer in _producers(read["producers"])}
        for producer_id, timestamp_ms in read.get("timestamps", ()):
            found[producer_id].last_timestamp_ms = timestamp_ms
        return list(found.values()), Summary.decode(bytes.fromhex(read["segment"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"not a file of producers: {in_words(error)}") from error


def decode_either(name: str, content: bytes) -> list[Producer]:
    """The producers in a file of either form, which its name tells. How long they have been idle does not matter.

    Raises:
        NewerFormat, Corrupt: as `decode_producers` and `decode_snapshot`.
    """
    return decode_producers(content)[0] if name.endswith(PRODUCERS) else decode_snapshot(content, -1)


def _producers(rows: Iterable[Sequence[Any]]) -> Iterator[Producer]:
    for producer_id, epoch, coordinator_epoch, used_ms, txn_first, txn_started, txn_records, batches in rows:
        kept = deque((KeptBatch(*batch) for batch in batches), maxlen=BATCHES_KEPT)
        yield Producer(
            producer_id,
            epoch,
            coordinator_epoch,
            kept,
            used_ms,
            _timestamp_of(kept, used_ms),
            txn_first,
            txn_started,
            txn_records,
        )


def _timestamp_of(batches: Sequence[KeptBatch], used_ms: int) -> int:
    """The last timestamp of a producer where its row says all: of its last batch, or else when its marker was written."""
    return batches[-1].timestamp_ms if batches else used_ms
