"""Variable-length integers (varints): seven bits in each byte, the least significant bits first, and the high bit set
in all bytes but the last.

Kafka's protocol messages have unsigned varints of up to 32 bits (KIP-482). Records have signed varints of up to 64
bits, zig-zag encoded, so that small negative numbers are short, too (KIP-98).
"""

from typing import Final

from stablelog.errors import DamageError

Buffer = bytes | bytearray | memoryview

UVARINT_SIZE_MAX: Final = 5
VARINT_BITS: Final = 64
SHORT_COUNT: Final = 1024  # the varints of the numbers below this one are encoded when the module is imported


def _encode(value: int) -> bytes:
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7) if value > 0x7F else (value,))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SHORT_UVARINTS = [_encode(value) for value in range(SHORT_COUNT)]
SHORT_VARINTS: Final = [_encode(2 * value) for value in range(SHORT_COUNT)]  # signed, by number


def encode_uvarint(value: int) -> bytes:
    """Encode an unsigned varint."""
    assert value >= 0
    return _SHORT_UVARINTS[value] if value < SHORT_COUNT else _encode(value)


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """Read an unsigned varint of up to 32 bits from the position `at`.

    Returns:
        A pair: the value, and the position after the varint.

    Raises:
        ValueError: the data ends within the varint, or the varint has more than 32 bits.
    """
    value = shift = 0
    while shift < 7 * UVARINT_SIZE_MAX:
        if at >= len(data):
            raise ValueError("the data ends within a varint")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a varint is longer than {UVARINT_SIZE_MAX} bytes")


def encode_varint(value: int) -> bytes:
    """Encode a zig-zag varint of up to 64 bits."""
    return SHORT_VARINTS[value] if 0 <= value < SHORT_COUNT else _encode((value << 1) ^ (value >> 63))


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """Read a zig-zag varint of up to 64 bits from the position `at`.

    Returns:
        A pair: the value, and the position after the varint.

    Raises:
        DamageError: the data ends within the varint, or the varint has more than 64 bits.
    """
    result = shift = 0
    while True:
        if at >= len(data) or shift >= VARINT_BITS:
            raise DamageError(f"a varint is incomplete, or has more than {VARINT_BITS} bits")
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), at
        shift += 7
