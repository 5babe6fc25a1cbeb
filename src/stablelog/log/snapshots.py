"""Producer state on disk, so that recovery replays only what came after.

Two files stand for one offset S and hold what was known when the log ended there. `<S>.snapshot` is Kafka's: it
keeps one batch of each producer. `<S>.producers` is ours: all five, when each last wrote by the broker's clock,
and how far the segment that S lies in had come. We read ours, and Kafka's where there is no other.

Format: docs/formats.md, "Producer snapshot", "Producers".
"""

import json
import struct
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from crc32c import crc32c

from stablelog.errors import Corrupt
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
    "q"  # timestamp: of the last batch, ms
    "i"  # coordinator_epoch: -1 none
    "q"  # current_txn_first_offset: -1 none
)
CRC_END = 6
PRODUCERS_VERSION = 1


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
            last.timestamp_ms,
            producer.coordinator_epoch,
            producer.txn_first_offset,
        )
    counted = struct.pack(">i", len(producers.by_id)) + body
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(counted)) + counted


def decode_snapshot(content: bytes, now_ms: int) -> list[Producer]:
    """Read Kafka's file. Who wrote it does not say when a producer last wrote by the broker's clock: it is now.

    Raises:
        Corrupt: it is not a snapshot, of another version, or damaged.
    """
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
        producer = Producer(producer_id, epoch, coordinator_epoch, used_ms=now_ms)
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
        Corrupt: it is not whole.
    """
    text, _, crc = content.rstrip(b"\n").rpartition(b"\n")
    try:
        if crc32c(text) != int(crc, 16):
            raise Corrupt("a file of producers whose CRC does not hold")
        read = json.loads(text)
        if read["version"] != PRODUCERS_VERSION:
            raise Corrupt(f"a file of producers of version {read['version']}; {PRODUCERS_VERSION} is known")
        return list(_producers(read["producers"])), Summary.decode(bytes.fromhex(read["segment"]))
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"not a file of producers: {error!r}") from error


def _producers(rows: Iterable[Sequence[Any]]) -> Iterator[Producer]:
    for producer_id, epoch, coordinator_epoch, used_ms, txn_first, txn_started, txn_records, batches in rows:
        kept = deque((KeptBatch(*batch) for batch in batches), maxlen=BATCHES_KEPT)
        yield Producer(
            producer_id, epoch, coordinator_epoch, kept, used_ms, txn_first, txn_started, txn_records
        )
