import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.consumer_groups import records
from stablelog.coordinators.consumer_groups.consumer_protocol.records import ConsumerKey
from stablelog.coordinators.consumer_groups.records import (
    GroupMetadataKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    read_group_value,
    read_key,
    read_offset_value,
    subscribed_topics,
)
from stablelog.errors import DamageError, UnknownFormatError

NAMES = st.text(max_size=40)
I16, I32, I64 = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
OFFSET_VALUES = st.builds(OffsetValue, I64, I32, NAMES, I64, st.just(-1), st.just(False))
MEMBER_VALUES = st.builds(
    MemberValue, NAMES, st.none() | NAMES, NAMES, NAMES, I32, I32, st.binary(), st.binary()
)
GROUP_VALUES = st.builds(
    GroupValue,
    NAMES,
    I32,
    st.none() | NAMES,
    st.none() | NAMES,
    I64,
    st.lists(MEMBER_VALUES, max_size=3).map(tuple),
)


def string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


# The fields one by one, in the order and with the widths of Kafka's message definitions.
OFFSET_KEY = "0001 0001 67 0001 74 00000003".replace(" ", "")
OFFSET_VALUE_3 = "0003 000000000000002a 00000007 0002 6d64 0000018bcfe56800".replace(" ", "")
OFFSET_VALUE_1 = "0001 000000000000002a 0002 6d64 0000018bcfe56800 0000018bcfe56c00".replace(" ", "")
GROUP_KEY = "0002 0001 67".replace(" ", "")
GROUP_VALUE_3 = (
    "0003 0008 636f6e73756d6572 00000005 0005 72616e6765 0002 6d31 0000018bcfe56800 00000001"
    " 0002 6d31 ffff 0001 63 0002 2f31 0000ea60 00002710 00000002 aabb 00000003 ccddee"
).replace(" ", "")
MEMBER = MemberValue("m1", None, "c", "/1", 60_000, 10_000, b"\xaa\xbb", b"\xcc\xdd\xee")
GROUP = GroupValue("consumer", 5, "range", "m1", 1_700_000_000_000, (MEMBER,))


def test_keys_and_values_are_kafkas_bytes() -> None:
    assert encode_offset_key("g", "t", 3).hex() == OFFSET_KEY
    assert encode_offset_value(OffsetValue(42, 7, "md", 1_700_000_000_000)).hex() == OFFSET_VALUE_3
    assert (
        encode_offset_value(OffsetValue(42, -1, "md", 1_700_000_000_000, 1_700_000_001_024)).hex()
        == OFFSET_VALUE_1
    )
    assert encode_group_key("g").hex() == GROUP_KEY
    assert encode_group_value(GROUP).hex() == GROUP_VALUE_3


def test_keys_are_told_apart_by_their_version() -> None:
    assert read_key(bytes.fromhex(OFFSET_KEY)) == OffsetKey("g", "t", 3)
    assert read_key(bytes.fromhex("0000" + OFFSET_KEY[4:])) == OffsetKey("g", "t", 3)
    assert read_key(bytes.fromhex(GROUP_KEY)) == GroupMetadataKey("g")
    assert read_key(bytes.fromhex("0003000167")) == ConsumerKey(3, "g")
    assert read_key(bytes.fromhex("000500016700016d")) == ConsumerKey(5, "g", "m")
    assert read_key(bytes.fromhex("0004000167")) is None


@given(OFFSET_VALUES)
def test_an_offset_reads_back_as_it_was_written(value: OffsetValue) -> None:
    assert read_offset_value(encode_offset_value(value)) == value


@given(OFFSET_VALUES, st.integers(-1, 2**62), st.booleans())
def test_an_offset_with_an_expiry_or_repeated_reads_back_too(
    value: OffsetValue, expire_ms: int, is_repeated: bool
) -> None:
    value = value._replace(expire_ms=expire_ms, is_repeated=is_repeated)
    if not is_repeated and expire_ms >= 0:
        value = value._replace(leader_epoch=-1)  # Kafka's version with an expiry has no epoch
    assert read_offset_value(encode_offset_value(value)) == value


@given(GROUP_VALUES)
def test_a_group_reads_back_as_it_was_written(value: GroupValue) -> None:
    assert read_group_value(encode_group_value(value)) == value


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (0, struct.pack(">q", 42) + string("md") + struct.pack(">q", 9), OffsetValue(42, -1, "md", 9)),
        (
            1,
            struct.pack(">q", 42) + string("md") + struct.pack(">qq", 9, 11),
            OffsetValue(42, -1, "md", 9, 11),
        ),
        (1, struct.pack(">q", 42) + string("md") + struct.pack(">qq", 9, -1), OffsetValue(42, -1, "md", 9)),
        (2, struct.pack(">q", 42) + string("md") + struct.pack(">q", 9), OffsetValue(42, -1, "md", 9)),
        (3, struct.pack(">qi", 42, 7) + string("md") + struct.pack(">q", 9), OffsetValue(42, 7, "md", 9)),
        (
            4,
            struct.pack(">qi", 42, 7) + b"\x03md" + struct.pack(">q", 9) + b"\x00",
            OffsetValue(42, 7, "md", 9),
        ),
        (  # Kafka 4.1+ may add the topic id, tag 0
            4,
            struct.pack(">qi", 42, 7) + b"\x03md" + struct.pack(">q", 9) + b"\x01\x00\x10" + bytes(16),
            OffsetValue(42, 7, "md", 9),
        ),
        (  # repeated by a checkpoint, with an expiry
            4,
            struct.pack(">qi", 42, 7)
            + b"\x03md"
            + struct.pack(">q", 9)
            + b"\x02\x91\x4e\x08"
            + struct.pack(">q", 11)
            + b"\x92\x4e\x00",
            OffsetValue(42, 7, "md", 9, 11, is_repeated=True),
        ),
    ],
)
def test_offsets_of_every_version_are_read(version: int, fields: bytes, expected: OffsetValue) -> None:
    assert read_offset_value(struct.pack(">h", version) + fields) == expected


def test_an_offset_with_the_producers_that_have_overtaken_it_is_refused() -> None:
    fields = struct.pack(">hqi", 4, 42, 7) + b"\x03md" + struct.pack(">q", 9)
    with pytest.raises(
        UnknownFormatError, match=r"^a committed offset with the tagged field 10000; no release"
    ):
        read_offset_value(fields + b"\x01\x90\x4e\x08" + struct.pack(">q", 5))


def group_value(version: int) -> bytes:
    timestamp = struct.pack(">q", 77) if version >= 2 else b""
    instance = string("i") if version >= 3 else b""
    rebalance = struct.pack(">i", 60) if version >= 1 else b""
    head = string("consumer") + struct.pack(">i", 5) + string("range") + string("m1") + timestamp
    member = string("m1") + instance + string("c") + string("/h") + rebalance
    member += struct.pack(">i", 10) + struct.pack(">i", 1) + b"s" + struct.pack(">i", 1) + b"a"
    return struct.pack(">h", version) + head + struct.pack(">i", 1) + member


def flexible_group_value() -> bytes:
    head = b"\x09consumer" + struct.pack(">i", 5) + b"\x06range" + b"\x03m1" + struct.pack(">q", 77)
    member = b"\x03m1\x02i\x02c\x03/h" + struct.pack(">ii", 60, 10) + b"\x02s" + b"\x02a" + b"\x00"
    return struct.pack(">h", 4) + head + b"\x02" + member + b"\x00"


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_groups_of_every_version_are_read(version: int) -> None:
    value = read_group_value(flexible_group_value() if version == 4 else group_value(version))

    instance_id = "i" if version >= 3 else None
    member = MemberValue("m1", instance_id, "c", "/h", 60 if version >= 1 else -1, 10, b"s", b"a")
    assert value == GroupValue("consumer", 5, "range", "m1", 77 if version >= 2 else -1, (member,))


@pytest.mark.parametrize("cut", range(1, len(bytes.fromhex(GROUP_VALUE_3))))
def test_a_value_that_ends_early_is_corrupt(cut: int) -> None:
    with pytest.raises(DamageError, match="the metadata of a group"):
        read_group_value(bytes.fromhex(GROUP_VALUE_3)[:-cut])


@pytest.mark.parametrize("read", [read_key, read_offset_value, read_group_value])
@given(data=st.binary(max_size=60))
def test_any_bytes_are_either_read_or_refused(read: Callable[[bytes], object], data: bytes) -> None:
    with contextlib.suppress(DamageError, UnknownFormatError):
        read(data)


def test_a_later_version_is_refused_as_such_and_any_other_as_damage() -> None:
    with pytest.raises(
        UnknownFormatError, match="a committed offset of version 5; this release reads versions up to 4"
    ):
        read_offset_value(b"\x00\x05" + bytes(40))
    with pytest.raises(UnknownFormatError, match="the metadata of a group of version 5;"):
        read_group_value(b"\x00\x05" + bytes(40))
    with pytest.raises(DamageError, match="the version is -1, and only versions 0 to 4 can be read"):
        read_offset_value(b"\xff\xff" + bytes(40))


def test_topics_are_read_from_a_subscription_of_any_version() -> None:
    topics = struct.pack(">i", 2) + string("a") + string("b")
    assert subscribed_topics(struct.pack(">h", 0) + topics + b"\xff\xff\xff\xff") == ("a", "b")
    assert subscribed_topics(struct.pack(">h", 3) + topics + b"whatever later versions say") == ("a", "b")
    assert subscribed_topics(b"\x00\x00\x00") is None
    assert subscribed_topics(b"") is None


def test_a_string_that_is_not_utf_8_is_corrupt() -> None:
    key, value = encode_offset_key("g", "topic", 3), encode_offset_value(OffsetValue(5, 1, "meta", 7))
    assert read_key(key) is not None
    with pytest.raises(DamageError, match="UTF-8"):
        read_key(key.replace(b"topic", b"to\xffic"))
    with pytest.raises(DamageError, match="UTF-8"):
        read_offset_value(value.replace(b"meta", b"m\xffta"))


def test_what_cannot_be_null_is_refused_where_it_is() -> None:
    key, value = encode_group_key("g"), encode_group_value(GROUP)
    with pytest.raises(DamageError, match="a string is null"):
        read_key(key[:2] + b"\xff\xff")
    with pytest.raises(DamageError, match="a string is null"):
        read_group_value(value[:2] + b"\xff\xff" + value[12:])
    count_at = value.index(struct.pack(">i", 1) + string("m1"))
    for count in (-1, -2):
        with pytest.raises(DamageError, match=f"an array cannot have {count} items"):
            read_group_value(value[:count_at] + struct.pack(">i", count) + value[count_at + 4 :])
    with pytest.raises(DamageError, match="-1 bytes are expected"):
        read_group_value(value[:-7] + b"\xff\xff\xff\xff")
    with pytest.raises(DamageError, match="the key's version -1 is negative"):
        read_key(b"\xff\xff")


def test_partitions_are_read_from_an_assignment_of_any_version() -> None:
    partitions = struct.pack(">i", 1) + string("t") + struct.pack(">iii", 2, 4, 5)
    for version in (0, 3):
        assignment = struct.pack(">h", version) + partitions + b"\xff\xff\xff\xff"
        assert records.assigned_partitions(assignment) == {"t": (4, 5)}
    assert records.assigned_partitions(b"\0\0" + partitions[:-1]) is None


def test_a_member_of_the_flexible_version_ends_with_its_tagged_fields() -> None:
    """Two members, so that one is read behind the other's tagged fields."""
    member = b"\x03m1\x02i\x02c\x03/h" + struct.pack(">ii", 60, 10) + b"\x02s" + b"\x02a" + b"\x01\x07\x02xy"
    head = b"\x09consumer" + struct.pack(">i", 5) + b"\x06range" + b"\x03m1" + struct.pack(">q", 77)
    value = read_group_value(struct.pack(">h", 4) + head + b"\x03" + 2 * member + b"\x01\x63\x00")
    assert value.members == 2 * (MemberValue("m1", "i", "c", "/h", 60, 10, b"s", b"a"),)
    with pytest.raises(DamageError):
        read_group_value(struct.pack(">h", 4) + head + b"\x03" + 2 * member)
