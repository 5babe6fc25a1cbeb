"""The 61-byte header of a record batch. The log uses only this header, and does not decode the records.

The CRC does not cover the base offset and the leader epoch. So the leader can assign both without computing a new CRC.

Format: docs/reference/formats.md, "Record batch".  Source: KIP-98, KIP-534.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from stablelog.batch.codec import CODECS, Codec
from stablelog.crc32c import crc32c
from stablelog.errors import DamageError

__all__ = [
    "CODECS",
    "CODEC_MASK",
    "CONTROL",
    "CRC",
    "CRC_START",
    "DELETE_HORIZON",
    "EMPTY_COUNT_MAX",
    "HEADER",
    "LENGTH_AND_OFFSET_SIZE",
    "LOG_APPEND_TIME",
    "MAGIC",
    "NO_PRODUCER",
    "NO_SEQUENCE",
    "PREFIX",
    "SEQUENCE_MAX",
    "TRANSACTIONAL",
    "BatchHeader",
    "Buffer",
    "Codec",
    "assemble",
    "crc_holds",
    "empty_batch",
    "headers_in",
    "read_header",
    "write_crc",
]

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(
    ">"
    "q"  # base_offset
    "i"  # batch_length: the number of bytes after this field
    "i"  # leader_epoch: the leader assigns it; the CRC does not cover it
    "b"  # magic: always 2
    "I"  # crc: CRC-32C of everything after this field
    "h"  # attributes
    "i"  # last_offset_delta
    "q"  # base_timestamp
    "q"  # max_timestamp
    "q"  # producer_id: -1 if the batch has no producer
    "h"  # producer_epoch: -1 if the batch has no producer
    "i"  # base_sequence: -1 if the batch has no producer, and in markers
    "i"  # record_count
)
PREFIX = struct.Struct(">qii")  # the first 16 bytes of a header: base_offset, batch_length, leader_epoch
CRC = struct.Struct(">I")
LENGTH_AND_OFFSET_SIZE = 12  # the bytes of a batch that its batch_length does not include
CRC_START = 21  # the CRC covers the bytes from here to the batch's end
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER = -1
NO_SEQUENCE = -1
EMPTY_COUNT_MAX = 2**31 - 1  # how many offsets a batch without records takes at most

assert HEADER.size == 61


class BatchHeader(NamedTuple):
    """The header of one batch. In names, `last` means inclusive: the last offset is that of the last record. `next`
    means the value after the last one.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the whole batch in bytes, with its header."""
        return self.batch_length + LENGTH_AND_OFFSET_SIZE

    @property
    def last_offset(self) -> int:
        """The last offset of the batch, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record; -1 if the batch has no sequence numbers. After the number 2^31-1, the
        sequence numbers of a producer begin with 0 again.
        """
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def codec(self) -> Codec:
        """The compression codec of the records. Raises DamageError for a codec that Kafka does not define."""
        number = self.attributes & CODEC_MASK
        if number >= len(CODECS):
            raise DamageError(
                f"batch at offset {self.base_offset} has the unknown compression codec {number}"
            )
        return CODECS[number]

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a control batch, such as a transaction marker, and holds no data."""
        return bool(self.attributes & CONTROL)

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id != NO_PRODUCER

    @property
    def is_log_append_time(self) -> bool:
        """Whether the timestamps are the broker's append times, not the client's times."""
        return bool(self.attributes & LOG_APPEND_TIME)


def read_header(buffer: Buffer, position: int = 0, buffer_begin: int = 0) -> BatchHeader:
    """Read the header of the batch that begins at `position`.

    Args:
        buffer: bytes of a log file or of a request.
        position: the position of the batch in the buffer.
        buffer_begin: the position of the buffer in its file, for error messages.

    Raises:
        DamageError: fewer than 61 bytes are left, or they are no header of version 2.
    """
    if position < 0 or len(buffer) - position < HEADER.size:
        raise DamageError(
            f"batch header at byte {buffer_begin + position} is incomplete: only {len(buffer) - position} of its {HEADER.size} bytes are there"
        )
    header = BatchHeader._make(HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise DamageError(
            f"batch at byte {buffer_begin + position} has magic {header.magic}; only batches of magic 2 can be read"
        )
    if header.batch_length < HEADER.size - LENGTH_AND_OFFSET_SIZE:
        raise DamageError(
            f"batch at byte {buffer_begin + position} has batch_length {header.batch_length}, which no "
            "batch can have"
        )
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise DamageError(
            f"batch at byte {buffer_begin + position} has {header.record_count} records and last_offset_delta {header.last_offset_delta}, which cannot both be right"
        )
    return header


def headers_in(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch in the buffer. An incomplete batch at the end is left out.

    Raises:
        DamageError: the bytes at the position of a header are no header.
    """
    size = len(buffer)
    while size - position >= HEADER.size:
        header = read_header(buffer, position)
        if position + header.size > size:
            return
        yield position, header
        position += header.size


def crc_holds(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Return whether the CRC in the header matches the batch's bytes. The whole batch must be in the buffer."""
    end = position + header.size
    assert end <= len(buffer)
    return crc32c(memoryview(buffer)[position + CRC_START : end]) == header.crc


def write_crc(batch: bytearray) -> None:
    """Compute the CRC of a batch, and write it into the batch's header. All other bytes must be final."""
    CRC.pack_into(batch, CRC_START - CRC.size, crc32c(memoryview(batch)[CRC_START:]))


def assemble(header: BatchHeader, packed: bytes) -> bytes:
    """Build a batch from a header and its compressed records, `packed`. The fields `batch_length` and `crc` of the
    header are computed, whatever values they have.
    """
    batch_length = HEADER.size + len(packed) - LENGTH_AND_OFFSET_SIZE
    batch = bytearray(HEADER.pack(header.base_offset, batch_length, *header[2:]))
    batch += packed
    write_crc(batch)
    return bytes(batch)


def empty_batch(start: int, end: int, leader_epoch: int) -> bytes:
    """Build a batch without records that takes the offsets [start, end), or only the first `EMPTY_COUNT_MAX` of them if
    there are more. Every client skips the offsets of such a batch, because Kafka's compaction leaves such batches, too.
    """
    count = min(end - start, EMPTY_COUNT_MAX)
    return assemble(BatchHeader(start, 0, leader_epoch, MAGIC, 0, 0, count - 1, -1, -1, -1, -1, -1, 0), b"")
