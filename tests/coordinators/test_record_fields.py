"""Fields of the records of both logs: sizes, strings, arrays and tagged fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.coordinators.record_fields import (
    INT16,
    FieldReader,
    byte_string,
    compact_string,
    string,
    tagged_fields,
)
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.varint import encode_uvarint


def flexible(data: bytes) -> FieldReader:
    reader = FieldReader(data, "it")
    reader.is_flexible = True
    return reader


@pytest.mark.parametrize(
    ("number", "content"),
    [
        (0, "00"),
        (1, "01"),
        (126, "7e"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        (2**28, "8080808001"),
        (2**32 - 1, "ffffffff0f"),
    ],
)
def test_varints_are_as_short_as_they_can_be_and_have_at_most_five_bytes(number: int, content: str) -> None:
    assert encode_uvarint(number).hex() == content
    assert FieldReader(bytes.fromhex(content), "it").varint() == number
    if number < 128:
        with pytest.raises(DamageError, match="it, at byte 0: a varint is longer than 5 bytes"):
            FieldReader(bytes.fromhex("80" * 5 + content), "it").varint()


@given(st.none() | st.text(max_size=20), st.binary(max_size=20))
def test_strings_and_bytes_are_read_as_they_were_written(text: str | None, data: bytes) -> None:
    reader = FieldReader(string(text) + byte_string(data), "it")
    assert (reader.nullable_string(), reader.byte_string()) == (text, data)
    reader.check_end()


@pytest.mark.extended
@given(st.text(max_size=200), st.dictionaries(st.integers(0, 2**31), st.binary(max_size=200)))
def test_flexible_fields_are_read_as_they_were_written(text: str, fields: dict[int, bytes]) -> None:
    reader = flexible(compact_string(text) + tagged_fields(sorted(fields.items())) + b"\0")
    assert (reader.string(), reader.tagged_fields(), reader.nullable_string()) == (text, fields, None)
    reader.check_end()


def test_a_version_that_is_not_flexible_has_no_tagged_fields() -> None:
    assert FieldReader(b"\x01\x05\x00", "it").tagged_fields() == {}


def test_a_value_says_in_its_version_whether_it_is_flexible() -> None:
    for version in range(4):
        reader = FieldReader(INT16.pack(version), "it")
        assert reader.version(3, flexible_from=2) == version
        assert reader.is_flexible == (version >= 2)
    with pytest.raises(UnknownFormatError, match="it of version 4; this release reads versions up to 3"):
        FieldReader(INT16.pack(4), "it").version(3)
    with pytest.raises(
        DamageError, match="it, at byte 2: the version is -1, and only versions 0 to 3 can be read"
    ):
        FieldReader(INT16.pack(-1), "it").version(3)


def test_damage_is_named_with_its_place() -> None:
    with pytest.raises(DamageError, match="it, at byte 0: 4 bytes are expected, but only 3 bytes are left"):
        FieldReader(b"abc", "it").int32()
    with pytest.raises(DamageError, match="-3 bytes are expected"):
        FieldReader(INT16.pack(-3), "it").string()
    with pytest.raises(DamageError, match="at byte 2: a string is null"):
        FieldReader(INT16.pack(-1), "it").string()
    with pytest.raises(DamageError, match="a string is not UTF-8"):
        FieldReader(INT16.pack(1) + b"\xff", "it").string()
    with pytest.raises(DamageError, match="at byte 4: an array cannot have -1 items"):
        FieldReader(b"\xff" * 4, "it").array(lambda: None)
    reader = FieldReader(b"abc", "it")
    reader.read_bytes(1)
    with pytest.raises(DamageError, match="at byte 1: 2 bytes follow the last field"):
        reader.check_end()
