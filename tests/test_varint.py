"""Variable-length integers against the definition of their bytes."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stablelog.errors import DamageError
from stablelog.varint import SHORT_COUNT, encode_uvarint, encode_varint, read_uvarint, read_varint


def groups_of_seven(number):
    """The bytes by their definition: groups of seven bits, the least first, all but the last with the high bit."""
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
@example(SHORT_COUNT - 1, b"")
@example(SHORT_COUNT, b"")
def test_unsigned_ones(number, before):
    encoded = encode_uvarint(number)
    assert encoded == groups_of_seven(number)
    assert read_uvarint(before + encoded + b"\xff", len(before)) == (number, len(before) + len(encoded))
    for end in range(len(encoded)):
        with pytest.raises(ValueError, match="the data ends within a varint"):
            read_uvarint(before + encoded[:end], len(before))


@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=3))
@example(SHORT_COUNT - 1, b"")
@example(SHORT_COUNT, b"")
@example(-1, b"")
def test_signed_ones(number, before):
    encoded = encode_varint(number)
    assert encoded == groups_of_seven(2 * number if number >= 0 else -2 * number - 1)
    assert read_varint(before + encoded + b"\xff", len(before)) == (number, len(before) + len(encoded))
    for end in range(len(encoded)):
        with pytest.raises(DamageError):
            read_varint(before + encoded[:end], len(before))


def test_what_does_not_end_is_refused():
    with pytest.raises(ValueError, match="is longer than 5 bytes"):
        read_uvarint(b"\xff" * 5 + b"\0", 0)
    with pytest.raises(DamageError, match="more than 64 bits"):
        read_varint(b"\xff" * 10 + b"\0", 0)
