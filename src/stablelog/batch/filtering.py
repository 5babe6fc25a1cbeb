"""A batch with some of its records left out, or all of them.

What is left stands as it came, byte for byte: offsets, headers, whatever a record holds. The batch keeps its first and
last offset, its sequences and its leader epoch, so that nobody has to know what is missing.

Format: docs/formats.md, "Record batch", "Record".  Source: Kafka's MemoryRecords.filterTo, KIP-534.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from stablelog.batch.compression import compress, decompress
from stablelog.batch.header import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER,
    LENGTH_AND_OFFSET_SIZE,
    MAGIC,
    NO_PRODUCER,
    NO_SEQUENCE,
    BatchHeader,
    Buffer,
)
from stablelog.batch.records import encode_varint, read_varint
from stablelog.errors import Corrupt

NO_TIMESTAMP = -1


class RawRecord(NamedTuple):
    """A record of which only what decides on it was read.

    Attributes:
        offset: its own.
        timestamp_ms: its producer's.
        key: None if it has none.
        is_tombstone: its value is null.
        attributes: the byte in front of its timestamp.
        rest: all that follows its timestamp, as it stands in the batch.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    is_tombstone: bool
    attributes: int
    rest: bytes


def raw_records(batch: Buffer, header: BatchHeader) -> list[RawRecord]:
    """The records of a batch that begins the buffer. The CRC is not looked at.

    Raises:
        Corrupt: the records are not what the header says.
    """
    return list(walk_records(batch, header))


def walk_records(batch: Buffer, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield what `raw_records` returns, so that not all records are in memory. Raises as that, also after some records."""
    data = decompress(header.codec, memoryview(batch)[HEADER.size : header.size])
    if header.record_count > len(data):
        raise Corrupt(f"{header.record_count} records in {len(data)} bytes")
    at = 0
    last_delta = -1
    for _ in range(header.record_count):
        size, at = read_varint(data, at)
        end = at + size
        if size <= 0 or end > len(data):
            raise Corrupt(f"a record of {size} bytes where {len(data) - at} are left")
        timestamp_delta, rest_at = read_varint(data, at + 1)
        offset_delta, key_at = read_varint(data, rest_at)
        key_size, key_at = read_varint(data, key_at)
        value_at = key_at + max(key_size, 0)
        if not last_delta < offset_delta <= header.last_offset_delta:
            raise Corrupt(
                f"a record at {offset_delta} of {header.last_offset_delta}, behind the one at {last_delta}"
            )
        last_delta = offset_delta
        if key_size < -1 or value_at > end:
            raise Corrupt(f"a key of {key_size} bytes where {end - key_at} are left")
        value_size, headers_at = read_varint(data, value_at)
        if value_size < -1 or headers_at + max(value_size, 0) >= end:
            raise Corrupt(f"a value of {value_size} bytes where {end - headers_at} are left")
        yield RawRecord(
            header.base_offset + offset_delta,
            header.base_timestamp + timestamp_delta,
            None if key_size < 0 else data[key_at:value_at],
            value_size < 0,
            data[at],
            data[rest_at:end],
        )
        at = end
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes after the last record")


def with_records(header: BatchHeader, records: Sequence[RawRecord], horizon_ms: int | None) -> bytes:
    """The batch with these of its records, at least one.

    Args:
        header: of the whole batch.
        records: those that stay.
        horizon_ms: the delete horizon, which takes the place of the base timestamp; None: the batch keeps the one
            that it has, or has none.
    """
    assert records
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if horizon_ms is not None:
        base_timestamp, attributes = horizon_ms, attributes | DELETE_HORIZON
    body = bytearray()
    for record in records:
        encoded = bytearray((record.attributes,))
        encoded += encode_varint(record.timestamp_ms - base_timestamp)
        encoded += record.rest
        body += encode_varint(len(encoded))
        body += encoded
    newest_ms = max(record.timestamp_ms for record in records)
    return _assemble(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp if header.is_log_append_time else newest_ms,
            record_count=len(records),
        ),
        compress(header.codec, body),
    )


def emptied(header: BatchHeader) -> bytes:
    """The batch without any record, as Kafka leaves it: whose it is and up to which sequence can still be read."""
    return _assemble(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """A batch of nobody without any record that takes the offsets [base_offset, end_offset)."""
    assert base_offset < end_offset
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=end_offset - 1 - base_offset,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER,
        producer_epoch=-1,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return _assemble(header, b"")


def _assemble(header: BatchHeader, packed: bytes) -> bytes:
    batch_length = HEADER.size + len(packed) - LENGTH_AND_OFFSET_SIZE
    batch = bytearray(HEADER.pack(*header._replace(batch_length=batch_length, crc=0)))
    batch += packed
    batch[CRC_START - 4 : CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)
