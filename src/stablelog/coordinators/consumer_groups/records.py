"""What a record of the offsets log (`__consumer_offsets`) says, byte for byte as Kafka writes it.

Two kinds of key are ours: a committed offset (versions 0 and 1) and the metadata of a classic group (2).
Higher versions belong to Kafka's other kinds of group; they are told apart and left alone. A null value
takes the key's subject away.

We write the versions that Kafka 4 writes: offsets in value version 3 (1 if the commit carries its own
expiry), groups in version 3. We read every version there is. From version 4 on a value is flexible: compact
lengths, and tagged fields, of which unknown ones are passed over. Kafka does the same, so two tagged fields
of our own can say what a trimmed log would otherwise forget (`OffsetValue`), and Kafka's dump tool still
reads it.

Format: docs/formats.md, "Offsets log".  Source: Kafka's OffsetCommitKey, OffsetCommitValue, GroupMetadataKey
and GroupMetadataValue; KIP-915 on the tagged fields.
"""

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from stablelog.errors import Corrupt, refuse_newer
from stablelog.varint import encode_uvarint

KEY_VERSION = struct.Struct(">h")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")

OFFSET_KEY_VERSIONS = (0, 1)  # the same bytes; Kafka writes 1
OFFSET_KEY_VERSION = 1
GROUP_KEY_VERSION = 2
VALUE_VERSION_LAST = 4
OFFSET_VALUE, GROUP_VALUE = "a committed offset", "the metadata of a group"
FLEXIBLE_VERSION = 4
OFFSET_VALUE_VERSION = 3
EXPIRING_OFFSET_VALUE_VERSION = 1  # the only one with an expiry
GROUP_VALUE_VERSION = 3

# Tagged fields of our own, far from the numbers that Kafka hands out (its own tag 0 is the topic id).
OVERTAKEN_BY_TAG = 10_000
EXPIRE_MS_TAG = 10_001

Item = TypeVar("Item")


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group_id: str


class OffsetValue(NamedTuple):
    """A committed offset.

    Attributes:
        offset: the next one to read.
        leader_epoch: of the last record read; -1 if not known.
        metadata: whatever the client wanted to keep.
        commit_ms: the broker's time of the commit.
        expire_ms: when it is to be forgotten; -1 if the broker's retention decides.
        overtaken_by: producers whose open transaction committed the same partition *after* this commit. Only
            a checkpoint says so: it writes an old commit again behind newer ones, and their order must
            survive that.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = -1
    overtaken_by: tuple[int, ...] = ()


class MemberValue(NamedTuple):
    """A member of a stable group. `rebalance_timeout_ms` is -1 where the version does not know it."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupValue(NamedTuple):
    """A generation of a group. `state_ms`: since when it is in its state; -1 in versions without it."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader_id: str | None
    state_ms: int
    members: tuple[MemberValue, ...]


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key of the offset that a group committed for a partition."""
    return KEY_VERSION.pack(OFFSET_KEY_VERSION) + _string(group_id) + _string(topic) + INT32.pack(partition)


def encode_group_key(group_id: str) -> bytes:
    """The key of a group's metadata."""
    return KEY_VERSION.pack(GROUP_KEY_VERSION) + _string(group_id)


def encode_offset_value(value: OffsetValue) -> bytes:
    """A committed offset in the version that Kafka would use for it; 4 if it needs a field of our own."""
    if value.overtaken_by:
        return _encode_tagged_offset_value(value)
    if value.expire_ms >= 0:
        return b"".join(
            (
                INT16.pack(EXPIRING_OFFSET_VALUE_VERSION),
                INT64.pack(value.offset),
                _string(value.metadata),
                INT64.pack(value.commit_ms),
                INT64.pack(value.expire_ms),
            )
        )
    return b"".join(
        (
            INT16.pack(OFFSET_VALUE_VERSION),
            INT64.pack(value.offset),
            INT32.pack(value.leader_epoch),
            _string(value.metadata),
            INT64.pack(value.commit_ms),
        )
    )


def _encode_tagged_offset_value(value: OffsetValue) -> bytes:
    tagged = [(OVERTAKEN_BY_TAG, b"".join(map(INT64.pack, value.overtaken_by)))]
    if value.expire_ms >= 0:
        tagged.append((EXPIRE_MS_TAG, INT64.pack(value.expire_ms)))
    metadata = value.metadata.encode()
    return b"".join(
        (
            INT16.pack(FLEXIBLE_VERSION),
            INT64.pack(value.offset),
            INT32.pack(value.leader_epoch),
            encode_uvarint(len(metadata) + 1) + metadata,
            INT64.pack(value.commit_ms),
            encode_uvarint(len(tagged)),
            *(encode_uvarint(tag) + encode_uvarint(len(data)) + data for tag, data in tagged),
        )
    )


def encode_group_value(value: GroupValue) -> bytes:
    """A group's metadata in version 3."""
    parts = [
        INT16.pack(GROUP_VALUE_VERSION),
        _string(value.protocol_type),
        INT32.pack(value.generation),
        _nullable_string(value.protocol_name),
        _nullable_string(value.leader_id),
        INT64.pack(value.state_ms),
        INT32.pack(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _nullable_string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            INT32.pack(member.rebalance_timeout_ms),
            INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def read_key(key: bytes) -> OffsetKey | GroupKey | None:
    """What a record is about. None: a kind that this coordinator does not keep.

    Raises:
        Corrupt: these are not the bytes of a key.
    """
    source = _Source(key, "the key")
    version = source.int16()
    if version < 0:
        raise Corrupt(f"a record of the offsets log has a key of version {version}")
    if version in OFFSET_KEY_VERSIONS:
        return OffsetKey(source.string(), source.string(), source.int32())
    return GroupKey(source.string()) if version == GROUP_KEY_VERSION else None


def read_offset_value(value: bytes) -> OffsetValue:
    """Read a committed offset of any version.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: these are not the bytes of one.
    """
    source = _Source(value, OFFSET_VALUE)
    version = source.value_version()
    offset = source.int64()
    leader_epoch = source.int32() if version >= 3 else -1
    metadata = source.string()
    commit_ms = source.int64()
    expire_ms = source.int64() if version == EXPIRING_OFFSET_VALUE_VERSION else -1
    overtaken_by: tuple[int, ...] = ()
    for tag, data in source.tagged_fields():
        if tag == OVERTAKEN_BY_TAG and len(data) % INT64.size == 0:
            overtaken_by = tuple(producer_id for (producer_id,) in INT64.iter_unpack(data))
        elif tag == EXPIRE_MS_TAG and len(data) == INT64.size:
            (expire_ms,) = INT64.unpack(data)
    return OffsetValue(offset, leader_epoch, metadata, commit_ms, expire_ms, overtaken_by)


def read_group_value(value: bytes) -> GroupValue:
    """Read a group's metadata of any version.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: these are not the bytes of it.
    """
    source = _Source(value, GROUP_VALUE)
    version = source.value_version()
    protocol_type = source.string()
    generation = source.int32()
    protocol_name = source.nullable_string()
    leader_id = source.nullable_string()
    state_ms = source.int64() if version >= 2 else -1
    members = source.array(lambda: _read_member(source, version))
    source.tagged_fields()
    return GroupValue(protocol_type, generation, protocol_name, leader_id, state_ms, members)


def _read_member(source: "_Source", version: int) -> MemberValue:
    member_id = source.string()
    group_instance_id = source.nullable_string() if version >= 3 else None
    client_id = source.string()
    client_host = source.string()
    rebalance_timeout_ms = source.int32() if version >= 1 else -1
    member = MemberValue(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        rebalance_timeout_ms,
        source.int32(),
        source.bytes_(),
        source.bytes_(),
    )
    source.tagged_fields()
    return member


def subscribed_topics(subscription: bytes) -> tuple[str, ...] | None:
    """The topics in a member's metadata of the protocol type "consumer". None: it cannot be read.

    Every version of that metadata begins as version 0 does: i16 version, array of topics.
    """
    source = _Source(subscription, "the subscription")
    try:
        source.int16()
        return source.array(source.string)
    except Corrupt:
        return None


def assigned_partitions(assignment: bytes) -> dict[str, tuple[int, ...]] | None:
    """The partitions of each topic in a member's assignment of the protocol type "consumer". None: it cannot be read.

    Every version of it begins as version 0 does: i16 version, array of (topic, array of i32 partitions).
    """
    source = _Source(assignment, "the assignment")
    try:
        source.int16()
        return dict(source.array(lambda: (source.string(), source.array(source.int32))))
    except Corrupt:
        return None


# -- primitives ----------------------------------------------------------------------------------------------


def _string(text: str) -> bytes:
    data = text.encode()
    return INT16.pack(len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return INT16.pack(-1) if text is None else _string(text)


def _bytes(data: bytes) -> bytes:
    return INT32.pack(len(data)) + data


class _Source:
    """Bytes being read, one field after the other; compact lengths once the version is flexible."""

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._at = 0
        self._what = what
        self._flexible = False

    def _corrupt(self, why: str) -> Corrupt:
        return Corrupt(
            f"{self._what} of a record of the offsets log cannot be read: {why} at byte {self._at}"
        )

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._data):
            raise self._corrupt(f"{size} bytes are not there")
        taken = self._data[self._at : end]
        self._at = end
        return bytes(taken)

    def value_version(self) -> int:
        version = self.int16()
        refuse_newer(self._what, version, VALUE_VERSION_LAST)
        if not 0 <= version <= VALUE_VERSION_LAST:
            raise self._corrupt(f"version {version}, known are 0 to {VALUE_VERSION_LAST},")
        self._flexible = version >= FLEXIBLE_VERSION
        return version

    def int16(self) -> int:
        number: int
        (number,) = INT16.unpack(self._take(INT16.size))
        return number

    def int32(self) -> int:
        number: int
        (number,) = INT32.unpack(self._take(INT32.size))
        return number

    def int64(self) -> int:
        number: int
        (number,) = INT64.unpack(self._take(INT64.size))
        return number

    def _varint(self) -> int:
        number = 0
        for place in range(5):
            (byte,) = self._take(1)
            number |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return number
        raise self._corrupt("a number of more than 5 bytes")

    def _length(self, read: Callable[[], int]) -> int:
        return self._varint() - 1 if self._flexible else read()

    def nullable_string(self) -> str | None:
        size = self._length(self.int16)
        if size == -1:
            return None
        try:
            return self._take(size).decode()
        except UnicodeDecodeError:
            raise self._corrupt("a string that is not UTF-8") from None

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise self._corrupt("null where a string must be")
        return text

    def bytes_(self) -> bytes:
        return self._take(self._length(self.int32))

    def array(self, read: Callable[[], Item]) -> tuple[Item, ...]:
        count = self._length(self.int32)
        if count < 0:
            raise self._corrupt(f"an array of {count}")
        return tuple(read() for _ in range(count))

    def tagged_fields(self) -> Iterable[tuple[int, bytes]]:
        """The tagged fields; none before the flexible versions."""
        if not self._flexible:
            return ()
        return [(self._varint(), self._take(self._varint())) for _ in range(self._varint())]
