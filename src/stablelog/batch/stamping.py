"""Stamping of a batch: the producer id, producer epoch and base sequence are written into a batch that is otherwise
complete.
"""

import struct

from stablelog.batch.header import CRC_START, HEADER, TRANSACTIONAL, read_header, write_crc

_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION = HEADER.size - 4 - _PRODUCER.size


def stamp_producer(
    batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
) -> int:
    """Write producer id, producer epoch and base sequence into a batch, set its attribute `transactional`, and compute
    its CRC.

    Args:
        batch: the bytes of the batch, which are changed in place.
        producer_id: the id of the producer.
        producer_epoch: the epoch of the producer.
        base_sequence: the sequence number of the first record.
        transactional: whether the batch belongs to a transaction.

    Returns:
        How many sequence numbers the batch uses: one for each offset.

    Raises:
        DamageError: the bytes are not a record batch.
    """
    header = read_header(batch)
    assert header.size == len(batch), "one batch, whole"
    attributes = header.attributes | TRANSACTIONAL if transactional else header.attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes)
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    write_crc(batch)
    return header.last_offset_delta + 1
