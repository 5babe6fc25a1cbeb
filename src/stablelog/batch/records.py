"""Codec for the records of a batch.

Only coordinators, topic compaction and tools need the content of batches. The log checks the records of a batch without
decoding them (`batch.proof`), and serves batches as they are.

Format: docs/reference/formats.md, "Record".
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from stablelog.batch.compression import compress, decompress
from stablelog.batch.header import (
    HEADER,
    MAGIC,
    NO_PRODUCER,
    NO_SEQUENCE,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    Codec,
    assemble,
    read_header,
)
from stablelog.errors import DamageError
from stablelog.varint import SHORT_COUNT, SHORT_VARINTS, encode_varint, read_varint

Header = tuple[str, bytes | None]

LOOK_SIZE_MAX = 16 << 20  # bytes: the greatest decompressed size of a batch that `decode_if_small` decodes
LOOK_COUNT_MAX = 20_000
# The greatest size in bytes of a batch without compression that certainly takes only some milliseconds to decode. A
# header of a record may take two bytes. A compressed batch has no such bound: 4 KiB of gzip decompress to 4 MiB.
QUICK_SIZE_MAX = 32 << 10


class Record(NamedTuple):
    """One record of a batch. `offset` is absolute; `encode_batch` ignores it, and numbers the records itself."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


NULL_SIZE = encode_varint(-1)


def _field(value: bytes | None) -> tuple[bytes, bytes]:
    """Encode the name or value of a record header, as its size (a varint, -1 for null) and its bytes."""
    return (NULL_SIZE, b"") if value is None else (encode_varint(len(value)), value)


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = read_varint(data, at)
    if size < 0:
        return None, at
    if size > len(data) - at:
        raise DamageError(
            f"a key, value or header has a size of {size} bytes, but only {len(data) - at} bytes are left in its record"
        )
    return data[at : at + size], at + size


def read_headers(data: bytes, at: int) -> tuple[list[Header], int]:
    """Read the headers of a record, which begin at `at` with their number. Return the headers, and the position after
    them.

    Raises:
        DamageError: the headers are not valid.
    """
    count, at = read_varint(data, at)
    if not 0 <= count <= len(data) - at:
        raise DamageError(
            f"a record says that it has {count} headers, but only {len(data) - at} bytes are left for them"
        )
    found: list[Header] = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        content, at = _read_bytes(data, at)
        if name is None:
            raise DamageError("a record header has a null name")
        found.append((name.decode(errors="replace"), content))
    return found, at


def encode_record(
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    offset_delta: int,
    timestamp_delta: int,
) -> bytes:
    """Encode a record, with its length field. The deltas are relative to the batch's base offset and base timestamp."""
    # The client calls this for each record. So the varints of small numbers are taken from their list without a call.
    short, short_count = SHORT_VARINTS, SHORT_COUNT
    if key is None:
        key_size, key = NULL_SIZE, b""
    else:
        size = len(key)
        key_size = short[size] if size < short_count else encode_varint(size)
    if value is None:
        value_size, value = NULL_SIZE, b""
    else:
        size = len(value)
        value_size = short[size] if size < short_count else encode_varint(size)
    encoded = b"".join(
        (
            b"\0",  # the record's attributes: Kafka defines none
            short[timestamp_delta] if 0 <= timestamp_delta < short_count else encode_varint(timestamp_delta),
            short[offset_delta] if offset_delta < short_count else encode_varint(offset_delta),
            key_size,
            key,
            value_size,
            value,
            _encode_headers(headers) if headers else b"\0",
        )
    )
    size = len(encoded)
    return (short[size] if size < short_count else encode_varint(size)) + encoded


def _encode_headers(headers: Sequence[Header]) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, value in headers:
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
    position_count: int = 0,
) -> bytes:
    """Encode a batch of these records, with consecutive offsets from `base_offset` on.

    Args:
        records: the records, at least one. Their own offsets are ignored.
        base_offset: the offset of the first record.
        leader_epoch: the leader epoch in the header.
        codec: the compression codec of the records.
        producer_id: the producer of the batch; NO_PRODUCER for none.
        producer_epoch: the epoch of the producer; -1 without a producer.
        base_sequence: the sequence number of the first record; NO_SEQUENCE for none.
        transactional: whether the batch belongs to a transaction of the producer.
        extra_attributes: bits that are set in the attributes of the header, in addition to those of the other
            arguments.
        position_count: only for a commit marker in a commit-ordered topic, whose readers get whole transactions in the
            order of their commits. The marker takes this number of offsets, one for each record of its transaction, in
            addition to its own.
    """
    records = list(records)
    assert records, "a batch of no records"
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, (_, timestamp_ms, key, value, headers) in enumerate(records):
        body += encode_record(key, value, headers, delta, timestamp_ms - base_timestamp)
    header = BatchHeader(
        base_offset,
        0,
        leader_epoch,
        MAGIC,
        0,
        codec | (TRANSACTIONAL if transactional else 0) | extra_attributes,
        position_count or len(records) - 1,
        base_timestamp,
        max([record.timestamp_ms for record in records]),
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    return assemble(header, compress(codec, body))


def record_ranges(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each record in the decompressed records of a batch.

    Raises:
        DamageError: the bytes are not exactly `count` records. Some of them may have been yielded before.
    """
    if count > len(data):
        raise DamageError(
            f"a batch has {count} records in {len(data)} bytes, but each record needs at least one byte"
        )
    at = 0
    for _ in range(count):
        size, at = read_varint(data, at)
        if not 0 < size <= len(data) - at:
            raise DamageError(
                f"a record has a size of {size} bytes, but only {len(data) - at} bytes are left in the batch"
            )
        yield at, at + size
        at += size
    if at != len(data):
        raise DamageError(f"{len(data) - at} bytes follow the last record of a batch")


def decode_records(batch: Buffer, position: int = 0, *, size_max: int | None = None) -> list[Record]:
    """Decode the records of the batch that begins at `position`. The whole batch must be in the buffer. The CRC is not
    checked; `crc_holds` does that.

    Raises:
        DamageError: the records do not match the header, or have more than `size_max` bytes after decompression; None
            stands for the limit of `decompress`.
    """
    header = read_header(batch, position)
    end = position + header.size
    if end > len(batch):
        raise DamageError(
            f"a batch of {header.size} bytes is incomplete: only {len(batch) - position} bytes are there"
        )
    data = decompress(header.codec, memoryview(batch)[position + HEADER.size : end], size_max)
    records = [
        _decode_record(data[begin:end], header.base_offset, header.base_timestamp)
        for begin, end in record_ranges(data, header.record_count)
    ]
    if header.is_log_append_time:
        return [record._replace(timestamp_ms=header.max_timestamp) for record in records]
    return records


def record_heads(batch: Buffer, position: int, size: int) -> list[tuple[int, bytes, bytes]]:
    """Read the first bytes of each key and value in a batch. This is cheaper than decoding whole records.

    Args:
        batch: the buffer with the batch.
        position: the position of the batch; the whole batch must be in the buffer.
        size: how many bytes of each key and value to return.

    Returns:
        (offset, first bytes of the key, first bytes of the value) for each record. A null is returned as empty bytes.

    Raises:
        DamageError: the records do not match the header.
    """
    header = read_header(batch, position)
    data = decompress(header.codec, memoryview(batch)[position + HEADER.size : position + header.size])
    heads = []
    for begin, _ in record_ranges(data, header.record_count):
        _, at = read_varint(data, begin + 1)
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
    return heads


def find_by_time(
    batch: Buffer, timestamp_ms: int, start_offset: int, *, position: int = 0
) -> tuple[int, int] | None:
    """Find the first record of a batch that has this timestamp or a later one, and this offset or a later one.

    The records are not decoded if this would delay other requests for long. They cannot be decoded if their producer
    has written them wrongly: a broker with `stablelog.produce.proof=header` appends such a batch, because it checks
    only the header. In both cases the function does not look for the record, and returns the least offset at which it
    may be. A reader that begins at this offset misses no record.

    Args:
        batch: a buffer that has the whole batch.
        timestamp_ms: the least timestamp.
        start_offset: the least offset.
        position: the position of the batch in the buffer.

    Returns:
        (offset, timestamp) of the record; None if the batch has no such record. If the records were not decoded: the
        batch's first offset, but at least `start_offset`, and the batch's greatest timestamp.
    """
    header = read_header(batch, position)
    records = decode_if_small(batch, position)
    if records is None:
        return max(header.base_offset, start_offset), header.max_timestamp
    for record in records:
        if record.timestamp_ms >= timestamp_ms and record.offset >= start_offset:
            return record.offset, record.timestamp_ms
    return None


def is_decoded_quickly(header: BatchHeader) -> bool:
    """Return whether it is certain, from the header alone, that the batch can be decoded within some milliseconds."""
    return header.codec is Codec.NONE and header.size <= QUICK_SIZE_MAX


def decode_if_small(batch: Buffer, position: int = 0) -> list[Record] | None:
    """Decode the records of a client's batch, if this takes little time. Return None if the batch is too large, if its
    records cannot be decoded, or if they contradict the batch's header.
    """
    header = read_header(batch, position)
    if header.record_count > LOOK_COUNT_MAX:
        return None
    try:
        records = decode_records(batch, position, size_max=LOOK_SIZE_MAX)
    except DamageError:
        return None
    honest = all(header.base_offset <= record.offset <= header.last_offset for record in records)
    return records if honest else None


def _decode_record(data: bytes, base_offset: int, base_timestamp: int) -> Record:
    timestamp_delta, at = read_varint(data, 1)
    offset_delta, at = read_varint(data, at)
    key, at = _read_bytes(data, at)
    value, at = _read_bytes(data, at)
    headers, at = read_headers(data, at)
    if at != len(data):
        raise DamageError(f"{len(data) - at} bytes follow the last header of a record")
    return Record(base_offset + offset_delta, base_timestamp + timestamp_delta, key, value, tuple(headers))
