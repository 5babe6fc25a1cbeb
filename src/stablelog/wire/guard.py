"""Whether a message's counts and lengths can be true, before anything is made of them.

kio's reader sets memory aside for as many items as an array claims. A claim of four billion ends the process. So the
bytes are walked first, by the schema and without making a thing: a count that the bytes left cannot hold is refused.
So is a request of more items than anybody needs: each costs some microseconds, in which nobody else is served.

On the way tagged fields are found that the schema does not know. A newer client may send them in any flexible version;
they mean nothing here and are to be passed over (KIP-482), and kio's reader would fail on them.
"""

import dataclasses
import struct
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from stablelog.wire.versions import required

Buffer = bytes | bytearray | memoryview
Step = Callable[[Buffer, int, "Items"], int]  # from where something begins to where it ends

ITEMS_MAX = 50_000  # topics, partitions and whatever else is listed in a request, all together

FIXED_SIZES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "uuid": 16,
    "error_code": 2,
    "timedelta_i32": 4,
    "timedelta_i64": 8,
    "datetime_i64": 8,
}
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Items:
    """What is counted and found on the way through a message.

    Args:
        count_max: how many items it may have.

    Attributes:
        left: how many more items it may have.
        strange: tagged fields with some that are not known: (begin, end, what is left of them).
    """

    __slots__ = ("_count_max", "left", "strange")

    def __init__(self, count_max: int = ITEMS_MAX) -> None:
        self._count_max = self.left = count_max
        self.strange: list[tuple[int, int, bytes]] = []

    def take(self, count: int) -> None:
        """Count them.

        Raises:
            ValueError: they are too many.
        """
        self.left -= count
        if self.left < 0:
            raise ValueError(f"more than {self._count_max} items in one message")


def checked(message: type, data: Buffer, at: int, *, count_max: int = ITEMS_MAX) -> Buffer:
    """Walk a message of this class.

    Args:
        message: kio's class, or one like it.
        data: the bytes.
        at: where it begins in them.
        count_max: how many items it may list, all together.

    Returns:
        The bytes, without the tagged fields that are not known.

    Raises:
        ValueError: a count or length is more than the bytes that are left, or there are too many items.
    """
    items = Items(count_max)
    _walk(message)(data, at, items)
    if not items.strange:
        return data
    parts: list[Buffer] = []
    copied = 0
    for begin, end, left in items.strange:
        parts += (data[copied:begin], left)
        copied = end
    return b"".join((*parts, data[copied:]))


def read_uvarint(data: Buffer, at: int) -> tuple[int, int]:
    """Read an unsigned varint of up to 32 bits. Returns (value, where the next thing begins)."""
    value = shift = 0
    while shift < 35:
        if at >= len(data):
            raise ValueError("a varint is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a varint that does not end")


def skip_tagged_fields(data: Buffer, at: int) -> int:
    """Where the tagged fields that begin at `at` end."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at = _ahead(data, at, size)
    return at


def _tagged_fields(data: Buffer, at: int, known: frozenset[int], items: Items) -> int:
    """Where the tagged fields that begin at `at` end; those that are not known are noted."""
    if at < len(data) and data[at] == 0:
        return at + 1
    begin = at
    count, at = read_uvarint(data, at)
    kept: dict[int, bytes] = {}
    for _ in range(count):
        field_begin = at
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at = _ahead(data, at, size)
        if tag in known:
            kept[tag] = bytes(data[field_begin:at])
    if len(kept) < count:
        items.strange.append((begin, at, bytes([len(kept)]) + b"".join(kept.values())))
    return at


def _ahead(data: Buffer, at: int, size: int) -> int:
    if size > len(data) - at:
        raise ValueError(f"{size} bytes are claimed where {len(data) - at} are left")
    return at + size


@cache
def _walk(message: Any) -> Step:
    flexible: bool = message.__flexible__
    fields = dataclasses.fields(message)
    steps = [_field(field, flexible=flexible) for field in fields if "tag" not in field.metadata]
    known = frozenset(field.metadata["tag"] for field in fields if "tag" in field.metadata)

    def walk(data: Buffer, at: int, items: Items) -> int:
        for step in steps:
            at = step(data, at, items)
        return _tagged_fields(data, at, known, items) if flexible else at

    return walk


def _field(field: "dataclasses.Field[Any]", *, flexible: bool) -> Step:
    annotation: Any = required(field.type)
    if typing.get_origin(annotation) is tuple:
        item: Any = required(typing.get_args(annotation)[0])
        inner = (
            _walk(_class(item))
            if dataclasses.is_dataclass(item)
            else _single(field.metadata["kafka_type"], flexible=flexible)
        )
        return _array(inner, flexible=flexible, nullable=annotation is not field.type)
    if dataclasses.is_dataclass(annotation):
        return _walk(_class(annotation))
    return _single(field.metadata["kafka_type"], flexible=flexible)


def _class(annotation: Any) -> Any:
    """The same, for a type checker that has narrowed it to what no cache takes."""
    return annotation


def _single(kafka_type: str, *, flexible: bool) -> Step:
    size = FIXED_SIZES.get(kafka_type)
    if size is not None:
        return lambda data, at, _items: _ahead(data, at, size)
    if flexible:
        return _compact
    return _sized(_INT16 if kafka_type == "string" else _INT32)


def _compact(data: Buffer, at: int, _items: Items) -> int:
    size, at = read_uvarint(data, at)
    return _ahead(data, at, max(size - 1, 0))


def _sized(length: struct.Struct) -> Step:
    def step(data: Buffer, at: int, _items: Items) -> int:
        at = _ahead(data, at, length.size)
        size: int = length.unpack_from(data, at - length.size)[0]
        return _ahead(data, at, max(size, 0))

    return step


def _array(inner: Step, *, flexible: bool, nullable: bool) -> Step:
    def step(data: Buffer, at: int, items: Items) -> int:
        if flexible:
            count, at = read_uvarint(data, at)
            count -= 1
        else:
            at = _ahead(data, at, _INT32.size)
            count = _INT32.unpack_from(data, at - _INT32.size)[0]
        if count < 0 and not nullable:
            raise ValueError("null in place of a list")  # kio's reader lets it pass
        if count > len(data) - at:
            raise ValueError(f"{count} items are claimed where {len(data) - at} bytes are left")
        if count > 0:
            items.take(count)
        for _ in range(count):
            at = inner(data, at, items)
        return at

    return step
