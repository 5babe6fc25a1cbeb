"""Transaction markers: the control batches that end a transaction by commit or abort.

The value of a commit marker also has, after the fields that Kafka's clients read, the transaction group (the topics
whose commits have one order) and the commit sequence (the number of the commit in this group). The key of a marker has
exactly Kafka's bytes.

Format: docs/reference/formats.md, "Transaction marker".  Source: KIP-98, KIP-890.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from stablelog.batch.header import CONTROL, LOG_APPEND_TIME, NO_SEQUENCE, Buffer
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError

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
GROUP_SIZE = struct.Struct(">h")  # the size of the transaction group's name, which follows
SEQUENCE = struct.Struct(
    ">"
    "q"  # commit_sequence
    "q"  # reserved: -1
)
RESERVED = -1


class MarkerType(IntEnum):
    """How a transaction has ended."""

    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    """The content of a transaction marker.

    Attributes:
        type: how the transaction has ended.
        coordinator_epoch: the epoch of the coordinator that decided the transaction.
        group: the transaction group, the topics whose commits have one order; None in abort markers and in markers of
            Apache Kafka.
        commit_sequence: the number of the commit in its transaction group; -1 for none.
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
    """Encode a transaction marker as a control batch: 78 bytes as in Kafka, and more if it names a transaction group
    (the topics whose commits have one order).

    Args:
        marker: the content.
        base_offset: the offset of the marker.
        leader_epoch: the leader epoch in which the marker is written.
        producer_id: the producer whose transaction ends.
        producer_epoch: the producer epoch of the marker.
        timestamp_ms: the time of the broker's clock.
        position_count: how many offsets the marker takes in addition to its own. In a commit-ordered topic, whose
            readers get whole transactions in the order of their commits, a commit marker takes one for each record of
            the transaction; otherwise 0.
        by_broker_time: whether the topic has LogAppendTime, so that the batch declares its timestamp to be broker time.
    """
    value = VALUE.pack(0, marker.coordinator_epoch)
    if marker.group is not None:
        name = marker.group.encode()
        value += GROUP_SIZE.pack(len(name)) + name + SEQUENCE.pack(marker.commit_sequence, RESERVED)
    record = Record(base_offset, timestamp_ms, KEY.pack(0, marker.type), value)
    return encode_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        transactional=True,
        extra_attributes=CONTROL | (LOG_APPEND_TIME if by_broker_time else 0),
        position_count=position_count,
    )


def read_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """Decode the control batch at `position`; None if it is no transaction marker.

    Versions of key and value that a later release writes are accepted: bytes after the known fields are ignored.

    Raises:
        DamageError: the batch has no control record.
    """
    records = decode_records(batch, position)
    if not records:
        return None  # compaction has removed the record of this control batch
    key, value = records[0].key, records[0].value
    if key is None or len(key) < KEY.size:
        raise DamageError("a control record has no key, or a key that is too short")
    kind = KEY.unpack_from(key)[1]
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if value is None or len(value) < VALUE.size:
        raise DamageError("the value of a transaction marker is too short for its coordinator epoch")
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
