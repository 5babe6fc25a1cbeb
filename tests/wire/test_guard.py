"""Requests that are too much are refused before anything is made of them."""

import struct

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from stablelog.errors import RefusedError
from stablelog.varint import encode_uvarint
from stablelog.wire.guard import ITEMS_MAX, checked
from stablelog.wire.messages import PREFIX, decode_request, message_class
from tests.declared_apis import APIS

HEADER = b"\0\2me"


def metadata(count, name=b"t"):
    names = (struct.pack(">h", len(name)) + name) * count
    return PREFIX.pack(3, 0, 1) + HEADER + struct.pack(">i", count) + names


def list_offsets(topics, partitions):
    one = struct.pack(">h1si", 1, b"t", partitions) + struct.pack(">iq", 0, -1) * partitions
    return PREFIX.pack(2, 1, 1) + HEADER + struct.pack(">ii", -1, topics) + one * topics


def refused(key, version, data):
    with pytest.raises(RefusedError) as caught:
        decode_request(APIS[key], version, data)
    assert caught.value.code is ErrorCode.invalid_request
    return str(caught.value)


@pytest.mark.extended
def test_as_many_items_as_anybody_needs_are_read():
    assert len(decode_request(APIS[3], 0, metadata(ITEMS_MAX))[1].topics) == ITEMS_MAX


@pytest.mark.extended
def test_more_are_refused_in_one_list_or_in_many():
    assert "items" in refused(3, 0, metadata(ITEMS_MAX + 1))
    assert len(decode_request(APIS[2], 1, list_offsets(100, 400))[1].topics) == 100
    assert "items" in refused(2, 1, list_offsets(100, 500))


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_it_is_counted():
    data = PREFIX.pack(3, 0, 1) + HEADER + struct.pack(">i", 2**31 - 1) + b"\0\1t"
    assert "announces" in refused(3, 0, data)


def test_no_list_where_there_must_be_one_is_refused_and_read_where_there_may_be_none():
    assert "null" in refused(2, 1, PREFIX.pack(2, 1, 1) + HEADER + struct.pack(">ii", -1, -1))
    assert decode_request(APIS[3], 1, PREFIX.pack(3, 1, 1) + HEADER + struct.pack(">i", -1))[1].topics is None


def tagged(*fields):
    """Tagged fields, as they stand behind a message."""
    return bytes([len(fields)]) + b"".join(bytes([tag, len(content)]) + content for tag, content in fields)


def end_txn(tags):
    body = b"\2a" + struct.pack(">qhb", 7, 1, 1)
    return PREFIX.pack(26, 3, 1) + HEADER + b"\0" + body + tags


@pytest.mark.parametrize(
    "tags",
    [tagged(), tagged((5, b"new")), tagged((5, b"new"), (99, b"")), bytes([1]) + b"\xea\2" + b"\1x"],
    ids=["none", "one", "two", "one of two bytes"],
)
def test_tagged_fields_that_a_newer_client_sends_are_passed_over(tags):
    """KIP-482: a flexible version can grow without a new number."""
    request = decode_request(APIS[26], 3, end_txn(tags))[1]
    assert (request.transactional_id, request.producer_id, request.committed) == ("a", 7, True)


def test_a_string_is_as_long_as_kafkas_at_most():
    def of_id(size):
        body = encode_uvarint(size + 1) + b"a" * size + struct.pack(">qhb", 7, 1, 1)
        return PREFIX.pack(26, 3, 1) + HEADER + b"\0" + body + b"\0"

    assert len(decode_request(APIS[26], 3, of_id(32_767))[1].transactional_id) == 32_767
    assert "a string has 32768 bytes" in refused(26, 3, of_id(32_768))
    members = encode_uvarint(2**15 + 1) + bytes(2**15)  # bytes have no such limit
    body = b"\2g" + struct.pack(">i", 1) + b"\2m" + b"\0" + b"\2\2m" + members + b"\0"
    assert (
        decode_request(APIS[14], 4, PREFIX.pack(14, 4, 1) + HEADER + b"\0" + body + b"\0")[1].group_id == "g"
    )


def test_known_tagged_fields_stay_where_unknown_ones_go():
    topic = (
        b"\2t\2"
        + struct.pack(">iiqiqi", 0, -1, 0, -1, 0, 100)
        + tagged((7, b"in a partition"))
        + tagged((8, b"t"))
    )
    body = struct.pack(">iiiibii", -1, 0, 1, 100, 0, 0, -1) + b"\2" + topic + b"\1" + b"\1"
    tags = tagged((0, b"\5mine"), (1, b"whatever that is"), (44, b""))
    message = message_class(1, 12, "request")
    request, _ = entity_reader(message)(checked(message, body + tags, 0), 0)
    assert request.cluster_id == "mine"
    assert request.topics[0].partitions[0].partition_max_bytes == 100
    by_hand = decode_request(APIS[1], 12, PREFIX.pack(1, 12, 1) + HEADER + b"\0" + body + tags)[1]
    assert by_hand.topics[0].partitions[0].size_max == 100


def test_tagged_fields_that_are_cut_short_are_refused():
    refused(26, 3, end_txn(b"\1\5\7new"))
    refused(26, 3, end_txn(b"\2\5\3new"))


@pytest.mark.parametrize(("topics", "partitions"), [(1, ITEMS_MAX), (ITEMS_MAX // 2 + 1, 1)])
def test_a_write_to_too_many_partitions_is_refused(topics, partitions):
    one = struct.pack(">h1si", 1, b"t", partitions) + struct.pack(">ii", 0, -1) * partitions
    data = PREFIX.pack(0, 8, 1) + HEADER + struct.pack(">hhii", -1, 1, 1000, topics) + one * topics
    assert "items" in refused(0, 8, data)


def topic_partitions(cursor):
    """A DescribeTopicPartitions request for no topic, with these bytes of the cursor, a structure that may be null."""
    return PREFIX.pack(75, 0, 1) + HEADER + b"\0" + b"\1" + struct.pack(">i", 5) + cursor


def test_a_structure_that_may_be_null_is_read_with_its_limits():
    cursor = b"\2t" + struct.pack(">i", 3)
    assert decode_request(APIS[75], 0, topic_partitions(b"\xff\0"))[1].cursor is None
    read = decode_request(APIS[75], 0, topic_partitions(b"\1" + cursor + b"\0\0"))[1].cursor
    assert (read.topic_name, read.partition_index) == ("t", 3)
    strange = tagged((9, b"xyz"))
    assert decode_request(APIS[75], 0, topic_partitions(b"\1" + cursor + strange + strange))[1].cursor == read
    assert "begins with the byte 2" in refused(75, 0, topic_partitions(b"\2" + cursor + b"\0\0"))
    assert "left" in refused(75, 0, topic_partitions(b"\1" + encode_uvarint(2**15) + b"t"))
    long = encode_uvarint(2**15 + 1) + bytes(2**15)
    assert "a string has" in refused(75, 0, topic_partitions(b"\1" + long + struct.pack(">i", 3) + b"\0\0"))
    refused(75, 0, topic_partitions(b""))
