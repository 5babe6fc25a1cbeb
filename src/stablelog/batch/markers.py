"""Transaction markers: the control batches that say how a transaction ended.

A commit's marker also carries which transaction group it belongs to and its commit sequence, behind the fields
that Kafka reads. Its key is Kafka's to the byte.

Format: docs/formats.md, "Transaction marker".  Source: KIP-98, KIP-890.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from stablelog.batch.header import CONTROL, CRC_START, LOG_APPEND_TIME, NO_SEQUENCE, Buffer
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import Corrupt

KEY = struct.Struct(
    ">"
    "h"  # version: always 0
    "h"  # type: 0 abort, 1 commit
)
VALUE = struct.Struct(
    ">"
    "h"  # version: always 0
    "i"  # coordinator_epoch
)
GROUP_SIZE = struct.Struct(">h")  # bytes of the transaction group's name that follow
LAST_OFFSET_DELTA = struct.Struct(">i")
LAST_OFFSET_DELTA_AT = 23
CRC = struct.Struct(">I")
SEQUENCE = struct.Struct(
    ">"
    "q"  # commit_sequence
    "q"  # reserved: -1; earlier releases wrote a producer id here, which no reader uses
)
RESERVED = -1


class MarkerType(IntEnum):
    """How a transaction ended."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """What a marker says.

    Attributes:
        type: how the transaction ended.
        coordinator_epoch: of the coordinator that decided it.
        group: its transaction group; None if the marker does not say (aborts, and markers that Kafka wrote).
        commit_sequence: the commit's place among all commits of the group; -1 none.
    """

    type: MarkerType
    coordinator_epoch: int
    group: str | None = None
    commit_sequence: int = -1


def encode_marker(
    marker: Marker,
    *,
    base_offset: int,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    position_count: int = 0,
    by_broker_time: bool = False,
) -> bytes:
    """The control batch of a marker: Kafka's 78 bytes, and more where a group is said.

    Args:
        marker: what it says.
        base_offset: its own.
        leader_epoch: under which it is written.
        producer_id: whose transaction it ends.
        producer_epoch: with which it ends.
        timestamp_ms: by the broker's clock.
        position_count: how many offsets it takes behind its own: in a commit-ordered topic, one for each record.
        by_broker_time: whether it says so, as all batches of a topic with LogAppendTime do.
    """
    value = VALUE.pack(0, marker.coordinator_epoch)
    if marker.group is not None:
        name = marker.group.encode()
        value += GROUP_SIZE.pack(len(name)) + name + SEQUENCE.pack(marker.commit_sequence, RESERVED)
    record = Record(base_offset, timestamp_ms, KEY.pack(0, marker.type), value)
    batch = encode_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        transactional=True,
        extra_attributes=CONTROL | (LOG_APPEND_TIME if by_broker_time else 0),
    )
    if not position_count:
        return batch
    stamped = bytearray(batch)
    LAST_OFFSET_DELTA.pack_into(stamped, LAST_OFFSET_DELTA_AT, position_count)
    CRC.pack_into(stamped, CRC_START - CRC.size, crc32c(memoryview(stamped)[CRC_START:]))
    return bytes(stamped)


def read_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """What the control batch at `position` says; None if it is not a transaction's end.

    Longer keys and values, and higher versions, are read as far as they are known.

    Raises:
        Corrupt: the batch holds no control record.
    """
    records = decode_records(batch, position)
    if not records:
        return None  # a marker that compaction has emptied
    key, value = records[0].key, records[0].value
    if key is None or len(key) < KEY.size:
        raise Corrupt("a control record without a key")
    kind = KEY.unpack_from(key)[1]
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if value is None or len(value) < VALUE.size:
        raise Corrupt("a transaction marker without a coordinator epoch")
    coordinator_epoch = VALUE.unpack_from(value)[1]
    rest = value[VALUE.size :]
    if len(rest) < GROUP_SIZE.size:
        return Marker(MarkerType(kind), coordinator_epoch)
    size = GROUP_SIZE.unpack_from(rest)[0]
    if size < 0 or len(rest) < GROUP_SIZE.size + size + SEQUENCE.size:
        return Marker(MarkerType(kind), coordinator_epoch)
    group = rest[GROUP_SIZE.size : GROUP_SIZE.size + size].decode(errors="replace")
    commit_sequence, _ = SEQUENCE.unpack_from(rest, GROUP_SIZE.size + size)
    return Marker(MarkerType(kind), coordinator_epoch, group, commit_sequence)
