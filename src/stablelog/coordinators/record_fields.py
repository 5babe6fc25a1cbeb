"""Reader and encoders for the fields of records in the coordinators' logs. The commit log and the offsets log share
them.

Keys and values have the encoding of Kafka's messages. Integers are big-endian. A string has an int16 size before it, an
array and a byte string have an int32 size; size -1 is null. In a *flexible* version of a value each size is an unsigned
varint, the size plus one, and 0 is null (KIP-482). A flexible value, and each structure in it, ends with tagged fields:
a count, and for each field its tag, its size and its bytes. A reader skips tags that it does not know.

Format: docs/reference/formats.md, "Commit log" and "Offsets log".
"""

import struct
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final, TypeVar

from stablelog.errors import DamageError, refuse_unknown_version
from stablelog.varint import encode_uvarint, read_uvarint

# A record has a key and a value; a null value removes the state that the key names.
Record = tuple[bytes, bytes | None]
Item = TypeVar("Item")

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")


def string(text: str | None) -> bytes:
    """Encode a string with an int16 size before it, as in versions that are not flexible. A `text` of None is encoded
    as null.
    """
    if text is None:
        return INT16.pack(-1)
    data = text.encode()
    return INT16.pack(len(data)) + data


def byte_string(data: bytes) -> bytes:
    """Encode a byte string with an int32 size before it, as in versions that are not flexible."""
    return INT32.pack(len(data)) + data


def compact_string(text: str) -> bytes:
    """Encode a string with a varint size before it, as in flexible versions (KIP-482)."""
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def tagged_fields(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Encode tagged fields, the last part of a flexible value (KIP-482).

    Args:
        fields: (tag, encoded content), in rising order of the tags.
    """
    parts = [_tag_and_size(tag, len(content)) + content for tag, content in fields]
    return encode_uvarint(len(parts)) + b"".join(parts)


@lru_cache(maxsize=256)  # A cache is worthwhile, because nearly all fields have the same few tags and sizes.
def _tag_and_size(tag: int, size: int) -> bytes:
    return encode_uvarint(tag) + encode_uvarint(size)


class FieldReader:
    """Reads the fields of a record's key or value one after the other.

    Every method raises `DamageError` if the bytes at the present position are not a valid field of the expected type.

    Args:
        data: the key or value.
        what: the name of the key or value in error messages.

    Attributes:
        is_flexible: whether the value has a flexible version (KIP-482): sizes are varints, and tagged fields follow.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self.is_flexible = False
        self._data = bytes(data)
        self._what = what
        self._at = 0

    def damage(self, why: str) -> DamageError:
        """Return the error that reports damage at the present position of the key or value; `why` says what is wrong
        there.
        """
        return DamageError(f"damaged record of a coordinator: {self._what}, at byte {self._at}: {why}")

    def read_bytes(self, size: int) -> bytes:
        """Read the next `size` bytes."""
        end = self._at + size
        if not self._at <= end <= len(self._data):
            left = len(self._data) - self._at
            raise self.damage(f"{size} bytes are expected, but only {left} bytes are left")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def check_end(self) -> None:
        """Check that all bytes were read. Raise DamageError if bytes follow the last field."""
        if self._at != len(self._data):
            raise self.damage(f"{len(self._data) - self._at} bytes follow the last field")

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Read fields of fixed size, and return their values in the order of the struct layout."""
        return layout.unpack(self.read_bytes(layout.size))

    def int16(self) -> int:
        """Read an int16."""
        return int(self.unpack(INT16)[0])

    def int32(self) -> int:
        """Read an int32."""
        return int(self.unpack(INT32)[0])

    def int64(self) -> int:
        """Read an int64."""
        return int(self.unpack(INT64)[0])

    def version(self, known: int, flexible_from: int | None = None, least: int = 0) -> int:
        """Read the version of a value.

        Args:
            known: the highest version that this release reads.
            flexible_from: the lowest flexible version; None if there is none.
            least: the lowest version that this release reads.

        Raises:
            UnknownFormatError: this release does not read the form of the value.
        """
        version = self.int16()
        refuse_unknown_version(self._what, version, known, least)
        if not least <= version <= known:
            raise self.damage(f"the version is {version}, and only versions {least} to {known} can be read")
        self.is_flexible = flexible_from is not None and version >= flexible_from
        return version

    def varint(self) -> int:
        """Read an unsigned varint."""
        try:
            number, self._at = read_uvarint(self._data, self._at)
        except ValueError as error:
            raise self.damage(str(error)) from None
        return number

    def count(self) -> int:
        """Read the number of items of an array; -1 if the array is null."""
        return self._size(self.int32)

    def _size(self, read: Callable[[], int]) -> int:
        return self.varint() - 1 if self.is_flexible else read()

    def nullable_string(self) -> str | None:
        """Read a string, or null, for which the result is None."""
        size = self._size(self.int16)
        if size == -1:
            return None
        try:
            return self.read_bytes(size).decode()
        except UnicodeDecodeError as error:
            raise self.damage(f"a string is not UTF-8: {error}") from None

    def string(self) -> str:
        """Read a string."""
        text = self.nullable_string()
        if text is None:
            raise self.damage("a string is null, which is not allowed")
        return text

    def byte_string(self) -> bytes:
        """Read a byte string."""
        return self.read_bytes(self.count())

    def array(self, read: Callable[[], Item]) -> tuple[Item, ...]:
        """Read an array, and return its items. The function `read` reads one item."""
        count = self.count()
        if count < 0:
            raise self.damage(f"an array cannot have {count} items")
        return tuple(read() for _ in range(count))

    def tagged_fields(self) -> dict[int, bytes]:
        """Read the tagged fields at the present position, as undecoded bytes by tag. Return no fields if the version is
        not flexible.
        """
        if not self.is_flexible:
            return {}
        return {self.varint(): self.read_bytes(self.varint()) for _ in range(self.varint())}
