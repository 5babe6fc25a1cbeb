"""Checks the counts and lengths in a message before any object is made from it.

The reader of the message library kio allocates memory for as many items as the size field of an array says. A size of
four billion items would end the process. So this module first reads the bytes by the message's schema, without making
objects, and refuses a size that is greater than the number of remaining bytes allows. It also refuses a request with
more items than any client needs: each item costs some microseconds in which the broker serves no other client. It
refuses long strings, too, because some strings stay in memory after the request, for example in the cache of responses
that are sent often.

The check also finds tagged fields that the schema does not have. A newer client may send such fields in any flexible
version. The receiver has to skip them (KIP-482), but kio's reader would fail, so the check removes them.
"""

import dataclasses
import struct
import typing
from collections.abc import Callable
from functools import cache
from typing import Any

from stablelog.varint import read_uvarint
from stablelog.wire.versions import required

Buffer = bytes | bytearray | memoryview
# A function that checks one field: takes the start position of the field and returns its end position.
Step = Callable[[Buffer, int, "Items"], int]

# The maximum number of bytes of a string. Flexible versions have room for longer strings, but Kafka refuses them, too.
STRING_SIZE_MAX = 2**15 - 1
# The maximum number of topics, partitions and other list entries of a request, all together.
ITEMS_MAX = 50_000

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
# The byte before a structure that may be null: -1 and 1, as unsigned numbers.
NULL_STRUCTURE, STRUCTURE = 0xFF, 1
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Items:
    """Counts the items of all arrays of a message while the message is checked, and collects its unknown tagged fields.

    Args:
        count_max: the maximum number of items of the message.

    Attributes:
        left: the number of further items that the message may have.
        strange: for each section of tagged fields that contains unknown fields: its beginning, its end, and its bytes
            without the unknown fields.
    """

    __slots__ = ("_count_max", "left", "strange")

    def __init__(self, count_max: int = ITEMS_MAX) -> None:
        self._count_max = self.left = count_max
        self.strange: list[tuple[int, int, bytes]] = []

    def count_items(self, count: int) -> None:
        """Count further items of the message.

        Raises:
            ValueError: the message has more items than allowed.
        """
        self.left -= count
        if self.left < 0:
            raise ValueError(f"the message has more than {self._count_max} items")


def checked(message: type, data: Buffer, at: int, *, count_max: int = ITEMS_MAX) -> Buffer:
    """Check the counts and lengths of a message, and remove unknown tagged fields.

    Args:
        message: the message's class, of kio or of `wire.extension`.
        data: the buffer.
        at: position in `data` where the message begins.
        count_max: the maximum number of items in all lists of the message together.

    Returns:
        The bytes without the unknown tagged fields.

    Raises:
        ValueError: a count or length exceeds the bytes that are left, a string is too long, or the message has too
            many items.
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


def skip_tagged_fields(data: Buffer, at: int) -> int:
    """Return the position after the tagged fields that begin at `at`."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at = _ahead(data, at, size)
    return at


def _tagged_fields(data: Buffer, at: int, known: frozenset[int], items: Items) -> int:
    """Check the tagged fields at `at`, and return the position after them. Fields whose tags are not in `known` are
    recorded in `items.strange`, so that they can be removed from the message.
    """
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
        raise ValueError(f"a field announces {size} bytes, but only {len(data) - at} are left")
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
        walk = _walk(_class(annotation))
        return walk if annotation is field.type else _nullable(walk)
    return _single(field.metadata["kafka_type"], flexible=flexible)


def _nullable(inner: Step) -> Step:
    """Return the check of a structure that may be null. `inner` checks the structure itself; a byte before the
    structure says whether it is null (KIP-893).
    """

    def step(data: Buffer, at: int, items: Items) -> int:
        marker_at, at = at, _ahead(data, at, 1)
        marker = data[marker_at]
        if marker not in (NULL_STRUCTURE, STRUCTURE):
            raise ValueError(
                f"a structure that may be null begins with the byte {marker}, which means neither that it "
                "is null nor that it is there"
            )
        return at if marker == NULL_STRUCTURE else inner(data, at, items)

    return step


def _class(annotation: Any) -> Any:
    """Return a type annotation unchanged. Only its static type changes, to Any: mypy would otherwise not accept the
    annotation as the argument of a cached function.
    """
    return annotation


def _single(kafka_type: str, *, flexible: bool) -> Step:
    size = FIXED_SIZES.get(kafka_type)
    if size is not None:
        return lambda data, at, _items: _ahead(data, at, size)
    if flexible:
        return _compact_string if kafka_type == "string" else _compact
    return _sized(_INT16 if kafka_type == "string" else _INT32)


def _compact(data: Buffer, at: int, _items: Items) -> int:
    size, at = read_uvarint(data, at)
    return _ahead(data, at, max(size - 1, 0))


def _compact_string(data: Buffer, at: int, _items: Items) -> int:
    size, at = read_uvarint(data, at)
    if size - 1 > STRING_SIZE_MAX:
        raise ValueError(f"a string has {size - 1} bytes; at most {STRING_SIZE_MAX} are allowed")
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
            # Refuse the null here: kio's reader would accept it.
            raise ValueError("a list that must not be null is null")
        if count > len(data) - at:
            raise ValueError(f"a list announces {count} items, but only {len(data) - at} bytes are left")
        if count > 0:
            items.count_items(count)
        for _ in range(count):
            at = inner(data, at, items)
        return at

    return step
