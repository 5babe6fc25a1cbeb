"""Requests that are too much are refused before anything is made of them."""

import struct

import pytest
from kio.schema.errors import ErrorCode

from stablelog.errors import Refused
from stablelog.wire.guard import ITEMS_MAX
from stablelog.wire.messages import PREFIX, decode_request

HEADER = b"\0\2me"


def metadata(count, name=b"t"):
    names = (struct.pack(">h", len(name)) + name) * count
    return PREFIX.pack(3, 0, 1) + HEADER + struct.pack(">i", count) + names


def list_offsets(topics, partitions):
    one = struct.pack(">h1si", 1, b"t", partitions) + struct.pack(">iq", 0, -1) * partitions
    return PREFIX.pack(2, 1, 1) + HEADER + struct.pack(">ii", -1, topics) + one * topics


def refused(key, version, data):
    with pytest.raises(Refused) as caught:
        decode_request(key, version, data)
    assert caught.value.code is ErrorCode.invalid_request
    return str(caught.value)


def test_as_many_items_as_anybody_needs_are_read():
    assert len(decode_request(3, 0, metadata(ITEMS_MAX))[1].topics) == ITEMS_MAX


def test_more_are_refused_in_one_list_or_in_many():
    assert "items" in refused(3, 0, metadata(ITEMS_MAX + 1))
    assert len(decode_request(2, 1, list_offsets(100, 400))[1].topics) == 100
    assert "items" in refused(2, 1, list_offsets(100, 500))


def test_a_count_that_the_bytes_cannot_hold_is_refused_before_it_is_counted():
    data = PREFIX.pack(3, 0, 1) + HEADER + struct.pack(">i", 2**31 - 1) + b"\0\1t"
    assert "claimed" in refused(3, 0, data)
