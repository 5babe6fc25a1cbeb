"""Codec for the envelopes of the messages Produce and Fetch: all their fields but the records. Both messages are read
and written without the message library kio, which would copy the records.

Each field has two encodings. In flexible versions, sizes are varints, and tagged fields follow each structure. In older
versions, sizes have two or four bytes.
"""

import struct

from stablelog.varint import encode_uvarint, read_uvarint
from stablelog.wire.guard import Buffer, Items

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
NO_TAGS = b"\0"
NULL_SIZE = -1


def encode_size(size: int, form: struct.Struct, *, flexible: bool) -> bytes:
    """Encode the size of an array, a text or bytes; NULL_SIZE encodes null.

    Args:
        size: the size.
        form: the layout of the size field in versions that are not flexible: two or four bytes.
        flexible: whether the version of the message is flexible: the size is then a varint.
    """
    return encode_uvarint(size + 1) if flexible else form.pack(size)


def encode_text(text: str | None, *, flexible: bool) -> bytes:
    """Encode a text with its size before it; None is encoded as null. `flexible` says whether the version of the
    message is flexible: sizes are then varints.
    """
    encoded = b"" if text is None else text.encode()
    return encode_size(NULL_SIZE if text is None else len(encoded), INT16, flexible=flexible) + encoded


def read_size(data: Buffer, at: int, form: struct.Struct, *, flexible: bool) -> tuple[int, int]:
    """Read the size of an array, a text or bytes. A size below 0 means null.

    Args:
        data: the message.
        at: the position of the size.
        form: the layout of the size field in versions that are not flexible: two or four bytes.
        flexible: whether the version of the message is flexible: the size is then a varint.

    Returns:
        A pair: the size, and the position after it, where the content begins.

    Raises:
        ValueError: the size is greater than the number of bytes left.
        struct.error: the data ends inside the size.
    """
    if flexible:
        claimed, at = read_uvarint(data, at)
        size = claimed - 1
    else:
        (size,) = form.unpack_from(data, at)
        at += form.size
    if size > len(data) - at:
        raise ValueError(f"{size} bytes or items are announced, but only {len(data) - at} bytes are left")
    return size, at


def read_count(data: Buffer, at: int, what: str, items: Items, *, flexible: bool) -> tuple[int, int]:
    """Read the size of an array that must not be null, and count its items in `items`.

    Args:
        data: the message.
        at: the position of the size.
        what: the name of the array in error messages.
        items: counts the items of the whole message, and refuses too many.
        flexible: whether the version of the message is flexible: the size is then a varint.

    Returns:
        A pair: the number of items, and the position of the first.

    Raises:
        ValueError: the array is null, has more items than bytes are left, or exceeds the number of items that a message
            may have.
        struct.error: the data ends inside the size.
    """
    count, at = read_size(data, at, INT32, flexible=flexible)
    if count < 0:
        raise ValueError(f"{what} is null, which is not allowed")
    items.count_items(count)
    return count, at


def read_text(data: Buffer, at: int, *, flexible: bool) -> tuple[str | None, int]:
    """Read a text or null from a message. `flexible` says whether the version of the message is flexible: the size of
    the text is then a varint.

    Returns:
        A pair: the text, or None for null; and the position of the next field.

    Raises:
        ValueError: the size is greater than the number of bytes left, or the bytes are not UTF-8.
        struct.error: the data ends inside the size.
    """
    size, at = read_size(data, at, INT16, flexible=flexible)
    if size < 0:
        return None, at
    return str(data[at : at + size], "utf-8"), at + size
