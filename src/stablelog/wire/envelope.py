"""The fields of the two messages whose envelopes are read and written by hand: Produce and Fetch.

Each has two forms: with sizes of two or four bytes, and, in flexible versions, with sizes in varints and tagged
fields behind each structure.
"""

import struct

from stablelog.wire.guard import Buffer, read_uvarint

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
NO_TAGS = b"\0"
NULL_SIZE = -1


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_size(size: int, form: struct.Struct, *, flexible: bool) -> bytes:
    """The size of an array, text or bytes; NULL_SIZE for none."""
    return encode_uvarint(size + 1) if flexible else form.pack(size)


def encode_text(text: str | None, *, flexible: bool) -> bytes:
    """A text, or null."""
    encoded = b"" if text is None else text.encode()
    return encode_size(NULL_SIZE if text is None else len(encoded), INT16, flexible=flexible) + encoded


def read_size(data: Buffer, at: int, form: struct.Struct, *, flexible: bool) -> tuple[int, int]:
    """Read the size of an array, text or bytes. Returns (size, where the content begins); below 0 is null.

    Raises:
        ValueError: more is claimed than there are bytes left.
        struct.error: the data ends in the size.
    """
    if flexible:
        claimed, at = read_uvarint(data, at)
        size = claimed - 1
    else:
        (size,) = form.unpack_from(data, at)
        at += form.size
    if size > len(data) - at:
        raise ValueError(f"{size} bytes or items are claimed where {len(data) - at} bytes are left")
    return size, at


def read_text(data: Buffer, at: int, *, flexible: bool) -> tuple[str | None, int]:
    """Read a text, or null. Returns (text, where the next field begins).

    Raises:
        ValueError: more is claimed than is left, or the bytes are no UTF-8.
        struct.error: the data ends in the size.
    """
    size, at = read_size(data, at, INT16, flexible=flexible)
    if size < 0:
        return None, at
    return str(data[at : at + size], "utf-8"), at + size
