"""The records of a batch: values to bytes and back.

Only what looks into batches uses this: coordinators and tools. The log itself passes batches on unread.

Format: docs/formats.md, "Record".
"""

from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from stablelog.batch.compression import SIZE_MAX, compress, decompress
from stablelog.batch.header import (
    CRC_START,
    HEADER,
    LENGTH_AND_OFFSET_SIZE,
    MAGIC,
    NO_PRODUCER,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    Codec,
    read_header,
)
from stablelog.errors import Corrupt

Header = tuple[str, bytes | None]

LOOK_SIZE_MAX = 16 << 20  # of a batch that is looked into for a time; a larger one takes too long
LOOK_COUNT_MAX = 20_000
# Of a batch that is decoded in some milliseconds. 4 KiB of gzip unpack to 4 MiB at the most; of zstd, to any size.
QUICK_COUNT_MAX = 1000
QUICK_PACKED_SIZE_MAX = 4 << 10
SHORT_VARINTS_COUNT = 1024  # are made once: sizes and deltas of small batches


class Record(NamedTuple):
    """One record. `offset` is its own, not relative to the batch; it is not looked at when a batch is encoded."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def encode_varint(value: int) -> bytes:
    """A zig-zag varint of up to 64 bits."""
    return _SHORT_VARINTS[value] if 0 <= value < SHORT_VARINTS_COUNT else _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_VARINTS = [_varint(value) for value in range(SHORT_VARINTS_COUNT)]
_NULL_SIZE = _varint(-1)


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Read a zig-zag varint at `at`. Returns (value, where the next thing begins).

    Raises:
        Corrupt: it does not end, or is longer than 64 bits.
    """
    result = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise Corrupt("a varint that does not end")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
        shift += 7


def _field(value: bytes | None) -> tuple[bytes, bytes]:
    """The size of a key, value or header, and its bytes."""
    return (_NULL_SIZE, b"") if value is None else (encode_varint(len(value)), value)


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if size > len(data) - at:
        raise Corrupt(f"a field of {size} bytes where {len(data) - at} are left")
    return data[at : at + size], at + size


def _encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytes:
    parts = [
        b"\0",  # attributes: none are defined
        encode_varint(timestamp_delta),
        encode_varint(offset_delta),
        *_field(record.key),
        *_field(record.value),
        encode_varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += (*_field(name.encode()), *_field(value))
    return b"".join(parts)


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    extra_attributes: int = 0,
) -> bytes:
    """A batch of these records, in this order, with consecutive offsets from `base_offset`."""
    records = list(records)
    assert records, "a batch of no records"
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, record in enumerate(records):
        encoded = _encode_record(record, delta, record.timestamp_ms - base_timestamp)
        body += encode_varint(len(encoded))
        body += encoded
    packed = compress(codec, body)
    batch = bytearray(HEADER.size)
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        HEADER.size + len(packed) - LENGTH_AND_OFFSET_SIZE,
        leader_epoch,
        MAGIC,
        0,
        codec | (TRANSACTIONAL if transactional else 0) | extra_attributes,
        len(records) - 1,
        base_timestamp,
        max([record.timestamp_ms for record in records]),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    batch += packed
    batch[CRC_START - 4 : CRC_START] = crc32c(memoryview(batch)[CRC_START:]).to_bytes(4, "big")
    return bytes(batch)


def decode_records(batch: Buffer, position: int = 0, *, size_max: int = SIZE_MAX) -> list[Record]:
    """The records of the batch that begins at `position`, which must be in the buffer as a whole.

    The CRC is not looked at: see `crc_holds`.

    Raises:
        Corrupt: the records are not what the header says, or unpack to more than `size_max` bytes.
    """
    header = read_header(batch, position)
    end = position + header.size
    if end > len(batch):
        raise Corrupt(f"a batch of {header.size} bytes of which {len(batch) - position} are there")
    data = decompress(header.codec, memoryview(batch)[position + HEADER.size : end], size_max)
    if header.record_count > len(data):
        raise Corrupt(f"{header.record_count} records in {len(data)} bytes")
    records = []
    at = 0
    for _ in range(header.record_count):
        size, at = read_varint(data, at)
        if not 0 < size <= len(data) - at:
            raise Corrupt(f"a record of {size} bytes where {len(data) - at} are left")
        records.append(_decode_record(data[at : at + size], header.base_offset, header.base_timestamp))
        at += size
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes after the last record")
    if header.is_log_append_time:
        return [record._replace(timestamp_ms=header.max_timestamp) for record in records]
    return records


def record_heads(batch: Buffer, position: int, size: int) -> list[tuple[int, bytes, bytes]]:
    """Read how the keys and values of a batch begin, for whoever looks at many records and at little of each.

    Args:
        batch: the buffer.
        position: of the batch, which must be in the buffer as a whole.
        size: bytes of each key and value.

    Returns:
        (offset, begin of the key, begin of the value) of each record; empty bytes stand for null, too.

    Raises:
        Corrupt: the records are not what the header says.
    """
    header = read_header(batch, position)
    data = decompress(header.codec, memoryview(batch)[position + HEADER.size : position + header.size])
    heads = []
    at = 0
    for _ in range(header.record_count):
        record_size, at = read_varint(data, at)
        end = at + record_size
        if not 0 < record_size <= len(data) - at:
            raise Corrupt(f"a record of {record_size} bytes where {len(data) - at} are left")
        _, at = read_varint(data, at + 1)
        delta, at = read_varint(data, at)
        key_size, key_at = read_varint(data, at)
        value_size, value_at = read_varint(data, key_at + max(key_size, 0))
        heads.append(
            (
                header.base_offset + delta,
                data[key_at : key_at + max(min(key_size, size), 0)],
                data[value_at : value_at + max(min(value_size, size), 0)],
            )
        )
        at = end
    return heads


def find_by_time(
    batch: Buffer, timestamp_ms: int, start_offset: int, *, position: int = 0
) -> tuple[int, int] | None:
    """The first record of a batch at or after `start_offset` with this time or a later one: (offset, time).

    A batch is its producer's affair: in one that is not what its header says, or too large to be looked into while others
    wait, the batch's own first offset and greatest time stand for the record's. A reader that begins there misses nothing.
    """
    header = read_header(batch, position)
    records = look_into(batch, position)
    if records is None:
        return max(header.base_offset, start_offset), header.max_timestamp
    for record in records:
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record.offset, record.timestamp_ms
    return None


def is_decoded_quickly(header: BatchHeader) -> bool:
    """Whether the records of a batch are decoded in some milliseconds, whatever its bytes are."""
    if header.record_count > QUICK_COUNT_MAX or header.codec is Codec.ZSTD:
        return False
    return header.codec is Codec.NONE or header.size <= QUICK_PACKED_SIZE_MAX


def look_into(batch: Buffer, position: int = 0) -> list[Record] | None:
    """The records of a client's batch; None if it is too large to be looked into, or not what its header says."""
    header = read_header(batch, position)
    if header.record_count > LOOK_COUNT_MAX:
        return None
    try:
        records = decode_records(batch, position, size_max=LOOK_SIZE_MAX)
    except Corrupt:
        return None
    honest = all(header.base_offset <= record.offset <= header.last_offset for record in records)
    return records if honest else None


def _decode_record(data: bytes, base_offset: int, base_timestamp: int) -> Record:
    timestamp_delta, at = read_varint(data, 1)
    offset_delta, at = read_varint(data, at)
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    header_count, at = read_varint(data, at)
    if not 0 <= header_count <= len(data):
        raise Corrupt(f"a record with {header_count} headers in {len(data)} bytes")
    headers = []
    for _ in range(header_count):
        name, at = _read_bytes(data, at)
        content, at = _read_bytes(data, at)
        if name is None:
            raise Corrupt("a record header without a name")
        headers.append((name.decode(errors="replace"), content))
    if at != len(data):
        raise Corrupt(f"{len(data) - at} bytes after the last field of a record")
    return Record(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, tuple(headers))
