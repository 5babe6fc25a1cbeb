"""Ready-made batches on their way: the producer's fields stamped into them, and the request that carries them.

Produce versions 3 to 12, by hand: batches are handed to the socket from where they lie.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from stablelog.batch.header import CRC_START, HEADER, TRANSACTIONAL, read_header
from stablelog.client.fetching import string, uvarint
from stablelog.wire.messages import Buffer

VERSION_FLEXIBLE = 9
ACKS_ALL = -1
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_NULL_16 = _INT16.pack(-1)
_CRC = struct.Struct(">I")
_CRC_POSITION = CRC_START - _CRC.size
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")  # producer id, producer epoch, base sequence
_PRODUCER_POSITION = HEADER.size - 4 - _PRODUCER.size


@dataclass(eq=False, slots=True)
class Pending:
    """A batch that is not acknowledged yet.

    Attributes:
        index: its place in the order in which batches were given.
        batch: its bytes, stamped.
        base_sequence: of its first record.
        record_count: of its records.
    """

    index: int
    topic: str
    partition: int
    batch: Buffer
    base_sequence: int
    record_count: int


def stamp(
    batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int, *, transactional: bool
) -> int:
    """Write who sends a batch, and the CRC, into it; its bytes up to now are all the rest.

    Returns:
        How many sequence numbers it takes: one for each offset.

    Raises:
        Corrupt: it is no record batch.
    """
    header = read_header(batch)
    assert header.size == len(batch), "one batch, whole"
    attributes = header.attributes | TRANSACTIONAL if transactional else header.attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(batch, CRC_START, attributes)
    _PRODUCER.pack_into(batch, _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence)
    _CRC.pack_into(batch, _CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return header.last_offset_delta + 1


def produce_request(
    version: int, transactional_id: str | None, timeout_ms: int, batches: Sequence[Pending]
) -> list[Buffer]:
    """The body of a request with one batch at most for each partition, in pieces."""
    flexible = version >= VERSION_FLEXIBLE
    tags = b"\0" if flexible else b""
    topics: dict[str, list[Pending]] = {}
    for pending in batches:
        topics.setdefault(pending.topic, []).append(pending)
    if transactional_id is None:
        envelope = bytearray(b"\0" if flexible else _NULL_16)
    else:
        envelope = bytearray(string(transactional_id, flexible=flexible))
    envelope += struct.pack(">hi", ACKS_ALL, timeout_ms) + _size(len(topics), flexible=flexible)
    pieces: list[Buffer] = []
    for topic, partitions in topics.items():
        assert len({pending.partition for pending in partitions}) == len(partitions)
        envelope += string(topic, flexible=flexible) + _size(len(partitions), flexible=flexible)
        for pending in partitions:
            envelope += _INT32.pack(pending.partition) + _size(len(pending.batch), flexible=flexible)
            pieces += [envelope, pending.batch]
            envelope = bytearray(tags)
        envelope += tags
    envelope += tags
    pieces.append(envelope)
    return pieces


def _size(size: int, *, flexible: bool) -> bytes:
    return uvarint(size + 1) if flexible else _INT32.pack(size)
