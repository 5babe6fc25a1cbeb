"""Records of consumer groups in the offsets log, in the bytes that Kafka writes.

A group has a record with its epoch (key version 3) and one with the epoch of its target assignment (6). Each member has
records with its subscription (5), its target assignment (7) and its current assignment (8). All values have version 0,
which is flexible. A null value (a tombstone) removes the group or member record that the key names.

stablelog writes no records of topics' partition counts (4) and of resolved regular expressions (16): it computes both
from its topics. The tagged field with the hash of the subscribed topics has a hash of stablelog's own. After a change
between Kafka and stablelog, the hash therefore differs, and the assignment of the group is computed once more.

Format: docs/reference/formats.md, "Offsets log".  Source: Kafka's ConsumerGroupMetadataValue and its neighbours.
"""

import uuid
from typing import NamedTuple

from stablelog.coordinators.consumer_groups.consumer_protocol.model import (
    CurrentAssignment,
    MemberState,
    Partitions,
    Subscription,
    by_topic,
)
from stablelog.coordinators.record_fields import INT16, INT32, INT64, FieldReader, compact_string, string
from stablelog.coordinators.record_fields import tagged_fields as encode_tagged_fields
from stablelog.varint import encode_uvarint

GROUP_EPOCH_KEY_VERSION = 3
MEMBER_KEY_VERSION = 5
TARGET_EPOCH_KEY_VERSION = 6
TARGET_KEY_VERSION = 7
CURRENT_KEY_VERSION = 8
MEMBER_KEY_VERSIONS = (MEMBER_KEY_VERSION, TARGET_KEY_VERSION, CURRENT_KEY_VERSION)
CONSUMER_KEY_VERSIONS = (GROUP_EPOCH_KEY_VERSION, TARGET_EPOCH_KEY_VERSION, *MEMBER_KEY_VERSIONS)
VALUE_VERSION = 0
TOPICS_HASH_TAG = 0
UUID_SIZE = 16

# By key version: what the value is.
VALUES = {
    GROUP_EPOCH_KEY_VERSION: "the epoch of a consumer group",
    MEMBER_KEY_VERSION: "a member of a consumer group",
    TARGET_EPOCH_KEY_VERSION: "the epoch of a target assignment",
    TARGET_KEY_VERSION: "a member's target assignment",
    CURRENT_KEY_VERSION: "a member's current assignment",
}


class ConsumerKey(NamedTuple):
    """The key of a record of a consumer group.

    Attributes:
        kind: the version of Kafka's key, one of CONSUMER_KEY_VERSIONS, which tells what the record contains.
        group_id: the group.
        member_id: the member; empty for a record of the whole group.
    """

    kind: int
    group_id: str
    member_id: str = ""


class GroupEpochs(NamedTuple):
    """The value of the record of a whole consumer group: its epoch, and a hash of the topics of this epoch.

    `topics_hash` identifies the subscribed topics, with their partition counts.
    """

    epoch: int
    topics_hash: int


def encode_consumer_key(key: ConsumerKey) -> bytes:
    """Encode the key of a record of a consumer group (KIP-848) in the offsets log."""
    encoded = INT16.pack(key.kind) + string(key.group_id)
    return encoded + string(key.member_id) if key.kind in MEMBER_KEY_VERSIONS else encoded


def read_consumer_key(kind: int, reader: FieldReader) -> ConsumerKey:
    """Read the group id and the member id of a record's key. The reader stands after the kind (the version of the key).

    Raises:
        DamageError: the key is damaged.
    """
    group_id = reader.string()
    return ConsumerKey(kind, group_id, reader.string() if kind in MEMBER_KEY_VERSIONS else "")


_VERSION = INT16.pack(VALUE_VERSION)
_NO_TAGS = encode_tagged_fields([])


def encode_group_epochs(value: GroupEpochs) -> bytes:
    """Encode the epoch of a consumer group and the hash of its topics, as the value of the group's record in the
    offsets log.
    """
    tags = [(TOPICS_HASH_TAG, INT64.pack(value.topics_hash))] if value.topics_hash else []
    return _VERSION + INT32.pack(value.epoch) + encode_tagged_fields(tags)


def encode_target_epoch(epoch: int) -> bytes:
    """Encode the epoch of a group's target assignment, as the value of a record in the offsets log."""
    return _VERSION + INT32.pack(epoch) + _NO_TAGS


def encode_subscription(value: Subscription) -> bytes:
    """Encode the subscription of a member, as the value of a record in the offsets log."""
    return b"".join(
        [
            _VERSION,
            _nullable(value.instance_id),
            _nullable(value.rack_id),
            compact_string(value.client_id),
            compact_string(value.client_host),
            encode_uvarint(len(value.topics) + 1),
            *map(compact_string, value.topics),
            _nullable(value.pattern),
            INT32.pack(value.rebalance_timeout_ms),
            _nullable(value.assignor),
            _NO_TAGS,
        ]
    )


def encode_target(partitions: Partitions) -> bytes:
    """Encode the target assignment of a member, as the value of a record in the offsets log."""
    return _VERSION + _partitions(partitions) + _NO_TAGS


def encode_current(value: CurrentAssignment) -> bytes:
    """Encode the current assignment of a member, as the value of a record in the offsets log."""
    epochs = INT32.pack(value.epoch) + INT32.pack(value.previous_epoch)
    state = value.state.to_bytes(1, "big")
    return _VERSION + epochs + state + _partitions(value.assigned) + _partitions(value.revoking) + _NO_TAGS


def _nullable(text: str | None) -> bytes:
    return encode_uvarint(0) if text is None else compact_string(text)


def _partitions(partitions: Partitions) -> bytes:
    topics = by_topic(partitions)
    parts = [encode_uvarint(len(topics) + 1)]
    for topic_id, indexes in topics:
        parts += (topic_id.bytes, encode_uvarint(len(indexes) + 1), *map(INT32.pack, indexes), _NO_TAGS)
    return b"".join(parts)


def _reader(kind: int, value: bytes) -> FieldReader:
    reader = FieldReader(value, VALUES[kind])
    reader.version(VALUE_VERSION, flexible_from=0)
    return reader


def read_group_epochs(value: bytes) -> GroupEpochs:
    """Read the value of the record with a group's epoch.

    Raises:
        UnknownFormatError: a later release has written the value.
        DamageError: the value is damaged.
    """
    reader = _reader(GROUP_EPOCH_KEY_VERSION, value)
    epoch = reader.int32()
    topics_hash = reader.tagged_fields().get(TOPICS_HASH_TAG, b"")
    return GroupEpochs(epoch, INT64.unpack(topics_hash)[0] if len(topics_hash) == INT64.size else 0)


def read_target_epoch(value: bytes) -> int:
    """Read the value of the record with the epoch of a group's target assignment. Raises UnknownFormatError or
    DamageError.
    """
    reader = _reader(TARGET_EPOCH_KEY_VERSION, value)
    epoch = reader.int32()
    reader.tagged_fields()
    return epoch


def read_subscription(value: bytes) -> Subscription:
    """Read the value of the record with the subscription of a member. Raises UnknownFormatError or DamageError."""
    reader = _reader(MEMBER_KEY_VERSION, value)
    subscription = Subscription(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topics=reader.array(reader.string),
        pattern=reader.nullable_string(),
        rebalance_timeout_ms=reader.int32(),
        assignor=reader.nullable_string(),
    )
    reader.tagged_fields()
    return subscription


def read_target(value: bytes) -> Partitions:
    """Read the value of the record with the target assignment of a member. Raises UnknownFormatError or DamageError."""
    reader = _reader(TARGET_KEY_VERSION, value)
    partitions = _read_partitions(reader)
    reader.tagged_fields()
    return partitions


def read_current(value: bytes) -> CurrentAssignment:
    """Read the value of the record with the current assignment of a member. Raises UnknownFormatError or
    DamageError.
    """
    reader = _reader(CURRENT_KEY_VERSION, value)
    epoch, previous_epoch = reader.int32(), reader.int32()
    state = reader.read_bytes(1)[0]
    assigned, revoking = _read_partitions(reader), _read_partitions(reader)
    reader.tagged_fields()
    if state not in MemberState._value2member_map_:
        raise reader.damage(f"a member has the unknown state {state}; states 0 to 2 are known")
    return CurrentAssignment(epoch, previous_epoch, MemberState(state), assigned, revoking)


def _read_partitions(reader: FieldReader) -> Partitions:
    def read_topic() -> list[tuple[uuid.UUID, int]]:
        topic_id = uuid.UUID(bytes=reader.read_bytes(UUID_SIZE))
        indexes = reader.array(reader.int32)
        reader.tagged_fields()
        return [(topic_id, index) for index in indexes]

    return frozenset(partition for topic in reader.array(read_topic) for partition in topic)
