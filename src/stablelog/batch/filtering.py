"""Removal of some or all records of a batch, for compaction.

The remaining records keep all their bytes, with offsets and headers. The batch keeps its first and last offset, its
sequence numbers and its leader epoch, so readers need not know that records are missing.

Format: docs/reference/formats.md, "Record batch", "Record".  Source: Kafka's MemoryRecords.filterTo, KIP-534.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stablelog.batch.compression import compress, decompress
from stablelog.batch.header import (
    CODEC_MASK,
    DELETE_HORIZON,
    HEADER,
    MAGIC,
    NO_PRODUCER,
    NO_SEQUENCE,
    BatchHeader,
    Buffer,
    assemble,
)
from stablelog.batch.records import record_ranges
from stablelog.errors import DamageError
from stablelog.varint import encode_varint, read_varint

NO_TIMESTAMP = -1


class RawRecord(NamedTuple):
    """A record with only those fields decoded that compaction needs.

    Attributes:
        offset: the record's absolute offset.
        timestamp_ms: the record's timestamp.
        key: the record's key; None if it is null.
        is_tombstone: whether the value is null.
        attributes: the record's attributes byte.
        rest: all bytes of the record after its timestamp.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    is_tombstone: bool
    attributes: int
    rest: bytes


def raw_records(batch: Buffer, header: BatchHeader) -> list[RawRecord]:
    """Return the records of the batch at the beginning of the buffer, without a check of the CRC.

    Raises:
        DamageError: the records do not match the header.
    """
    return list(walk_records(batch, header))


def walk_records(batch: Buffer, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield the records of a batch one at a time, to save memory.

    Raises:
        DamageError: the records do not match the header. Some of them may have been yielded before.
    """
    return walk_decompressed(decompress(header.codec, memoryview(batch)[HEADER.size : header.size]), header)


def walk_decompressed(data: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Yield the records of a batch one at a time. `data` has the decompressed records, without the header of the
    batch.
    """
    last_delta = -1
    for at, end in record_ranges(data, header.record_count):
        timestamp_delta, rest_at = read_varint(data, at + 1)
        offset_delta, key_at = read_varint(data, rest_at)
        key_size, key_at = read_varint(data, key_at)
        value_at = key_at + max(key_size, 0)
        if not last_delta < offset_delta <= header.last_offset_delta:
            raise DamageError(
                f"a record has offset delta {offset_delta}, which must be greater than {last_delta} and at most {header.last_offset_delta}"
            )
        last_delta = offset_delta
        if key_size < -1 or value_at > end:
            raise DamageError(
                f"a record's key has a size of {key_size} bytes, but only {end - key_at} bytes are left"
            )
        value_size, headers_at = read_varint(data, value_at)
        if value_size < -1 or headers_at + max(value_size, 0) >= end:
            raise DamageError(
                f"a record's value has a size of {value_size} bytes, but only {end - headers_at} bytes are left"
            )
        yield RawRecord(
            header.base_offset + offset_delta,
            header.base_timestamp + timestamp_delta,
            None if key_size < 0 else data[key_at:value_at],
            value_size < 0,
            data[at],
            data[rest_at:end],
        )


def with_records(header: BatchHeader, records: Sequence[RawRecord], horizon_ms: int | None) -> bytes:
    """Return the bytes of a copy of a batch that has only these records, of which there must be at least one.

    Args:
        header: the header of the original batch.
        records: the records of the copy, as `raw_records` returns them.
        horizon_ms: the delete horizon (the time from which compaction may remove tombstones, KIP-534), which is stored
            in the field of the base timestamp; None if that field keeps its value.
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
    return assemble(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=header.max_timestamp if header.is_log_append_time else newest_ms,
            record_count=len(records),
        ),
        compress(header.codec, body),
    )


def without_records(header: BatchHeader) -> bytes:
    """Build a copy of a batch without its records, as Kafka's compaction does. It keeps the producer id and the last
    sequence number, by which the broker still recognizes a repeated request of the producer.
    """
    return assemble(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )


def filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Build a *filler*: a batch without a producer and without records that takes up the offsets [base_offset,
    end_offset). Compaction writes it in place of removed records, so that no offset is missing between batches.
    """
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
    return assemble(header, b"")
