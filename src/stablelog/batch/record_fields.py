"""The fields of one record of a batch, decoded with all checks, so that an error names what is wrong with the record.

`batch.proof` uses it for a record that is not like the ones before it.

Format: docs/reference/formats.md, "Record".  Source: Kafka's DefaultRecord.readFrom.
"""

from typing import Final, NamedTuple

from stablelog.errors import DamageError

INT_SIZE_MAX: Final = 5  # bytes of a varint of 32 bits; the last has four bits
LONG_SIZE_MAX: Final = 10  # bytes of a varint of 64 bits; the last has one bit
ONE_BYTE: Final = 1 << 7  # a varint of one byte is less than this, before its sign is decoded
PLACES_MAX: Final = 40  # records with more bytes that decide about their structure are proven one by one


class RecordFields(NamedTuple):
    """The positions of a record's fields up to its headers. Each field begins where the one before ends.

    Attributes:
        begin: the beginning of the length field.
        attributes: the position of the attributes byte. The timestamp delta follows.
        end: the end of the record, exclusive.
        delta: the beginning of the offset delta.
        key_size: the beginning of the key's length field.
        key: the beginning of the key.
        value_size: the beginning of the value's length field.
        value: the beginning of the value.
        header_count: the beginning of the field with the number of headers.
        headers: the beginning of the first header.
        headers_left: the number of headers that follow; none of them is decoded.
        is_keyless: whether the key is null.
    """

    begin: int
    attributes: int
    end: int
    delta: int
    key_size: int
    key: int
    value_size: int
    value: int
    header_count: int
    headers: int
    headers_left: int
    is_keyless: bool


def wrong_record(number: int, why: str) -> DamageError:
    """Return the error for a record that is not valid. `number` is its number in the batch, and `why` says what is
    wrong with it.
    """
    return DamageError(f"record {number} of a batch is not valid: {why}")


def _read_int(data: bytes, at: int, end: int, number: int) -> tuple[int, int]:
    """Read the varint of up to 32 bits that begins at `at` and must end before `end`. Return its value, and the
    position after it. `number` is the number of the record, for error messages.
    """
    value = shift = 0
    for place in range(at, min(at + INT_SIZE_MAX, end)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < ONE_BYTE:
            if value >> 32:
                break
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise wrong_record(number, "a varint in the record is incomplete, or has more than 32 bits")


def _after_long(data: bytes, at: int, end: int, number: int) -> int:
    """Return the position after the varint of up to 64 bits that begins at `at` and must end before `end`. `number` is
    the number of the record, for error messages.
    """
    for place in range(at, min(at + LONG_SIZE_MAX, end)):
        byte = data[place]
        if byte < ONE_BYTE:
            if place == at + LONG_SIZE_MAX - 1 and byte > 1:
                break
            return place + 1
    raise wrong_record(number, "the record's timestamp delta is incomplete, or has more than 64 bits")


def _read_size(data: bytes, at: int, end: int, number: int, what: str) -> tuple[int, int, int]:
    """Read the length field of a key, a value or a header.

    Args:
        data: the decompressed records of the batch.
        at: the position of the length field.
        end: the end of the record, exclusive.
        number: the number of the record, for error messages.
        what: the name of the field, for error messages.

    Returns:
        Three values: the length, or -1 for a null; and the beginning and the end of the bytes that follow.
    """
    size, at = _read_int(data, at, end, number)
    if not -1 <= size <= end - at:
        raise wrong_record(
            number,
            f"the record's {what} has a size of {size} bytes, but only {end - at} bytes are left in "
            "the record",
        )
    return size, at, at + max(size, 0)


def read_fields(data: bytes, begin: int, number: int) -> RecordFields:
    """Decode the record that begins at `begin`, up to its headers.

    Raises:
        DamageError: the record is not valid, or has not the offset delta `number`.
    """
    size, attributes = _read_int(data, begin, len(data), number)
    end = attributes + size
    if not 0 < size <= len(data) - attributes:
        raise wrong_record(
            number,
            f"the record has a size of {size} bytes, but only {len(data) - attributes} bytes are left "
            "in the batch",
        )
    if data[attributes] >= ONE_BYTE:
        # kafka-python and aiokafka read the attributes as a varint, and Java as a byte. Kafka defines no bit of them.
        raise wrong_record(
            number,
            f"the record's attributes are {data[attributes]:#04x}, which some clients take for two bytes",
        )
    delta_at = _after_long(data, attributes + 1, end, number)
    delta, key_size_at = _read_int(data, delta_at, end, number)
    if delta != number:
        raise wrong_record(
            number, f"the record's offset delta is {delta}, but must be the number of the record in the batch"
        )
    key_size, key, value_size_at = _read_size(data, key_size_at, end, number, "key")
    _, value, count_at = _read_size(data, value_size_at, end, number, "value")
    header_count, headers = _read_int(data, count_at, end, number)
    if not 0 <= header_count <= end - headers:
        raise wrong_record(
            number, f"the record has {header_count} headers, but only {end - headers} bytes are left for them"
        )
    return RecordFields(
        begin,
        attributes,
        end,
        delta_at,
        key_size_at,
        key,
        value_size_at,
        value,
        count_at,
        headers,
        header_count,
        key_size < 0,
    )


def read_headers(data: bytes, at: int, head: RecordFields, count: int, number: int, places: list[int]) -> int:
    """Decode `count` headers of a record, which begin at `at`, and return the position after them. Also append the
    positions of their lengths to the list `places`, by which `batch.proof` compares later records with this one; but
    not more than about PLACES_MAX positions.

    Raises:
        DamageError: a header is not valid.
    """
    for _ in range(count):
        name_size, name, value_size_at = _read_size(data, at, head.end, number, "header's name")
        if name_size < 0:
            raise wrong_record(number, "a header has no name")
        _, value, after = _read_size(data, value_size_at, head.end, number, "header's value")
        if len(places) <= PLACES_MAX:
            places += range(at, name)
            places += range(value_size_at, value)
        at = after
    return at
