"""Sizes and texts of the messages that are read and written without kio."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.wire.envelope import (
    INT16,
    INT32,
    NULL_SIZE,
    encode_size,
    encode_text,
    read_count,
    read_size,
    read_text,
)
from stablelog.wire.guard import Items
from tests.scale import examples

BOTH = pytest.mark.parametrize("flexible", [False, True], ids=["fixed sizes", "flexible"])


@settings(max_examples=examples(25))
@given(st.none() | st.text(max_size=300), st.binary(max_size=3), st.booleans())
def test_a_text_that_was_encoded_is_read_back_with_the_position_after_it(text, behind, flexible):
    encoded = encode_text(text, flexible=flexible)
    assert read_text(b"ab" + encoded + behind, 2, flexible=flexible) == (text, 2 + len(encoded))


def test_null_and_the_empty_text_are_encoded_as_kafka_does():
    assert encode_text(None, flexible=False) == b"\xff\xff"
    assert encode_text(None, flexible=True) == b"\0"
    assert encode_text("", flexible=False) == b"\0\0"
    assert encode_text("", flexible=True) == b"\1"


def test_the_size_of_a_text_counts_bytes_and_not_characters():
    assert encode_text("ä", flexible=False) == b"\0\2\xc3\xa4"
    assert encode_text("ä", flexible=True) == b"\3\xc3\xa4"


@BOTH
@pytest.mark.parametrize("form", [INT16, INT32], ids=["two bytes", "four bytes"])
def test_a_size_is_read_back_and_null_is_below_zero(form, flexible):
    for size in (NULL_SIZE, 0, 1, 127, 128, 300):
        encoded = encode_size(size, form, flexible=flexible)
        assert read_size(encoded + bytes(300), 0, form, flexible=flexible) == (size, len(encoded))


@BOTH
def test_a_size_of_more_than_the_bytes_that_are_left_is_refused_with_both_numbers(flexible):
    encoded = encode_size(4, INT16, flexible=flexible)
    assert read_size(encoded + bytes(4), 0, INT16, flexible=flexible)[0] == 4
    with pytest.raises(ValueError, match="4 bytes or items are announced, but only 3 bytes are left"):
        read_size(encoded + bytes(3), 0, INT16, flexible=flexible)


def test_data_that_end_inside_a_size_are_refused():
    with pytest.raises(struct.error):
        read_size(b"\0", 0, INT16, flexible=False)
    with pytest.raises(ValueError, match="ends within a varint"):
        read_size(b"\x80", 0, INT16, flexible=True)


def test_a_text_that_is_not_utf_8_is_refused():
    with pytest.raises(UnicodeDecodeError):
        read_text(b"\0\1\xff", 0, flexible=False)


@BOTH
def test_an_array_that_is_null_is_refused_by_its_name(flexible):
    encoded = encode_size(NULL_SIZE, INT32, flexible=flexible)
    with pytest.raises(ValueError, match="forgotten topics is null"):
        read_count(encoded, 0, "forgotten topics", Items(), flexible=flexible)


@BOTH
def test_the_arrays_of_a_message_have_one_limit_of_items_together(flexible):
    items = Items(5)
    encoded = encode_size(3, INT32, flexible=flexible)
    assert read_count(encoded + bytes(3), 0, "topics", items, flexible=flexible) == (3, len(encoded))
    with pytest.raises(ValueError, match="more than 5 items"):
        read_count(encoded + bytes(3), 0, "topics", items, flexible=flexible)
