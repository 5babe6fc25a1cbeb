"""Records of the offsets log (`__consumer_offsets`), in the bytes that Kafka writes.

The coordinator reads and writes three kinds of key: a committed offset (key versions 0 and 1), the metadata of a
classic group (key version 2), and a consumer group and its members (`consumer_protocol.records`). The coordinator skips
all other key versions: they belong to Kafka's other kinds of group. A null value (a tombstone) removes the offset,
group or member that the key names.

The coordinator writes the value versions that Kafka 4 writes: version 3 of offsets (version 1 if the commit has an
expiry of its own) and version 3 of groups. It reads all versions. Value version 4 is flexible. An offset that a
checkpoint writes again can have tagged fields that only stablelog knows (see `OffsetValue`). Kafka's readers skip them.

Format: docs/reference/formats.md, "Offsets log".  Source: Kafka's OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and
GroupMetadataValue; KIP-915 on the tagged fields.
"""

from typing import NamedTuple

from stablelog.coordinators.consumer_groups.consumer_protocol.records import (
    CONSUMER_KEY_VERSIONS,
    ConsumerKey,
    read_consumer_key,
)
from stablelog.coordinators.record_fields import (
    INT16,
    INT32,
    INT64,
    FieldReader,
    byte_string,
    compact_string,
    string,
    tagged_fields,
)
from stablelog.errors import DamageError, UnknownFormatError

OFFSET_KEY_VERSIONS = (0, 1)  # Both key versions of an offset have the same layout; Kafka writes version 1.
OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION_LAST = 4
OFFSET_VALUE, GROUP_VALUE = "a committed offset", "the metadata of a group"
FLEXIBLE_VERSION = 4
OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1  # The only version of an offset value that has an expiry.
GROUP_VALUE_VERSION = 3

# Tagged fields of stablelog, far from the numbers that Kafka assigns (Kafka's tag 0 is the topic id).
OVERTAKEN_BY_TAG = 10_000  # versions of the program before the first release wrote it
EXPIRE_MS_TAG = 10_001
REPEATED_TAG = 10_002


class OffsetKey(NamedTuple):
    """The key of the record of a committed offset: the group and the partition."""

    group_id: str
    topic: str
    partition: int


class GroupMetadataKey(NamedTuple):
    """The key of the record with the metadata of a classic group."""

    group_id: str


class OffsetValue(NamedTuple):
    """The value of the record of a committed offset.

    Attributes:
        offset: the next offset to read.
        leader_epoch: the leader epoch of the last record that the consumer read; -1 if unknown.
        metadata: text that the client has sent with the offset.
        commit_ms: the time of the commit, by the broker's clock.
        expire_ms: the time at which the offset expires; -1 if the broker's retention decides.
        is_repeated: whether this record is a copy that the coordinator has appended again before it trimmed the log
            (deleted its beginning), and the order of the copies of one partition matters. A copy counts as older than
            all records without this mark.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    is_repeated: bool = False


class MemberValue(NamedTuple):
    """A member of a stable classic group, as the record of the group contains it.

    `rebalance_timeout_ms` is -1 if the version of the record does not contain it.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """The value of the record of a classic group: one generation of the group.

    `state_ms` is the time of the group's last change of state; -1 if the version of the record does not contain it.
    """

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Encode the key of a group's committed offset for a partition."""
    return INT16.pack(OFFSET_KEY_VERSION) + string(group_id) + string(topic) + INT32.pack(partition)


def encode_group_key(group_id: str) -> bytes:
    """Encode the key of the record of a classic group."""
    return INT16.pack(GROUP_KEY_VERSION) + string(group_id)


def encode_offset_value(value: OffsetValue) -> bytes:
    """Encode the value of a committed offset in the version that Kafka uses: 1 if the offset has an expiry time of its
    own, otherwise 3.

    Only an offset that is marked as repeated (a copy that was appended before the log was trimmed) has version 4, with
    a tagged field of stablelog.
    """
    offset, leader_epoch = INT64.pack(value.offset), INT32.pack(value.leader_epoch)
    commit_ms, expire_ms = INT64.pack(value.commit_ms), INT64.pack(value.expire_ms)
    if value.is_repeated:
        tagged = [(EXPIRE_MS_TAG, expire_ms)] if value.expire_ms >= 0 else []
        tagged.append((REPEATED_TAG, b""))
        version, metadata = INT16.pack(FLEXIBLE_VERSION), compact_string(value.metadata)
        return version + offset + leader_epoch + metadata + commit_ms + tagged_fields(tagged)
    if value.expire_ms >= 0:
        version = INT16.pack(EXPIRING_OFFSET_VALUE_VERSION)
        return version + offset + string(value.metadata) + commit_ms + expire_ms
    return INT16.pack(OFFSET_VALUE_VERSION) + offset + leader_epoch + string(value.metadata) + commit_ms


def encode_group_value(value: GroupValue) -> bytes:
    """Encode the value of the record of a classic group in version 3."""
    parts = [
        INT16.pack(GROUP_VALUE_VERSION),
        string(value.protocol_type),
        INT32.pack(value.generation),
        string(value.protocol_name),
        string(value.leader_id),
        INT64.pack(value.state_ms),
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            string(member.member_id),
            string(member.group_instance_id),
            string(member.client_id),
            string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            byte_string(member.subscription),
            byte_string(member.assignment),
        )
    return b"".join(parts)


def read_key(key: bytes) -> OffsetKey | GroupMetadataKey | ConsumerKey | None:
    """Read the key of a record of the offsets log.

    Returns:
        The key; None for a kind of key that the coordinator skips.

    Raises:
        DamageError: the key is damaged.
    """
    reader = FieldReader(key, "the key")
    version = reader.int16()
    if version < 0:
        raise reader.damage(f"the key's version {version} is negative")
    if version in OFFSET_KEY_VERSIONS:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version in CONSUMER_KEY_VERSIONS:
        return read_consumer_key(version, reader)
    return GroupMetadataKey(reader.string()) if version == GROUP_KEY_VERSION else None


def read_offset_value(value: bytes) -> OffsetValue:
    """Read the value of a committed offset, of any version.

    Raises:
        UnknownFormatError: a later release has written the value.
        DamageError: the value is damaged.
    """
    reader = FieldReader(value, OFFSET_VALUE)
    version = reader.version(VALUE_VERSION_LAST, FLEXIBLE_VERSION)
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_ms = reader.int64()
    expire_ms = reader.int64() if version == EXPIRING_OFFSET_VALUE_VERSION else -1
    tagged = reader.tagged_fields()
    if OVERTAKEN_BY_TAG in tagged:
        raise UnknownFormatError(f"{OFFSET_VALUE} with the tagged field {OVERTAKEN_BY_TAG}", None, version)
    if len(tagged.get(EXPIRE_MS_TAG, b"")) == INT64.size:
        (expire_ms,) = INT64.unpack(tagged[EXPIRE_MS_TAG])
    is_repeated = REPEATED_TAG in tagged
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, is_repeated=is_repeated)


def read_group_value(value: bytes) -> GroupValue:
    """Read the value of the record of a classic group, of any version.

    Raises:
        UnknownFormatError: a later release has written the value.
        DamageError: the value is damaged.
    """
    reader = FieldReader(value, GROUP_VALUE)
    version = reader.version(VALUE_VERSION_LAST, FLEXIBLE_VERSION)
    group = GroupValue(
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol_name=reader.nullable_string(),
        leader_id=reader.nullable_string(),
        state_ms=reader.int64() if version >= 2 else -1,
        members=reader.array(lambda: _read_member(reader, version)),
    )
    reader.tagged_fields()
    return group


def _read_member(reader: FieldReader, version: int) -> MemberValue:
    member = MemberValue(
        member_id=reader.string(),
        group_instance_id=reader.nullable_string() if version >= 3 else None,
        client_id=reader.string(),
        client_host=reader.string(),
        rebalance_timeout_ms=reader.int32() if version >= 1 else -1,
        session_timeout_ms=reader.int32(),
        subscription=reader.byte_string(),
        assignment=reader.byte_string(),
    )
    reader.tagged_fields()
    return member


def subscribed_topics(subscription: bytes) -> tuple[str, ...] | None:
    """Read the topics in a subscription, the metadata of a member with the protocol type "consumer".

    Every version of this metadata begins like version 0: an int16 version, and an array of topics.

    Returns:
        The names of the topics; None if the bytes are not a subscription.
    """
    reader = FieldReader(subscription, "a subscription")
    try:
        reader.int16()
        return reader.array(reader.string)
    except DamageError:
        return None


def assigned_partitions(assignment: bytes) -> dict[str, tuple[int, ...]] | None:
    """Read the partitions of each topic in an assignment of a member with the protocol type "consumer".

    Every version of an assignment begins like version 0: an int16 version, and an array of (topic, array of int32
    partitions).

    Returns:
        The partition indexes by topic; None if the bytes are not an assignment.
    """
    reader = FieldReader(assignment, "an assignment")
    try:
        reader.int16()
        return dict(reader.array(lambda: (reader.string(), reader.array(reader.int32))))
    except DamageError:
        return None
