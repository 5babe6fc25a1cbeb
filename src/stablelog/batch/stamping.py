"""Writing of the producer's fields into a batch that is otherwise complete."""

import struct

from crc32c import crc32c

from stablelog.batch.header import CRC_START, HEADER, TRANSACTIONAL, read_header

_CRC = struct.Struct(">I")
_CRC_POSITION = CRC_START - _CRC.size
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION = HEADER.size - 4 - _PRODUCER.size


def stamp(
    batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
) -> int:
    """Write the producer's fields into a batch, then its CRC. All other bytes must be final.

    Returns:
        How many sequence numbers the batch takes: one for each offset.

    Raises:
        Corrupt: the bytes are not a record batch.
    """
    header = read_header(batch)
    assert header.size == len(batch), "one batch, whole"
    attributes = header.attributes | TRANSACTIONAL if transactional else header.attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes)
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return header.last_offset_delta + 1
