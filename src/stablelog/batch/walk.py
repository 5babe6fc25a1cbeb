"""Iteration over the records of a batch as plain values, without an object for each record, for readers that process
many records.

Most varints have one byte, and are read without a function call; `read_varint` reads the others. `records.read_headers`
reads the headers of a record.

Format: docs/reference/formats.md, "Record".
"""

from collections.abc import Iterator

from stablelog.errors import DamageError
from stablelog.varint import read_varint

# (timestamp delta, offset delta, key, value, position of the headers)
Fields = tuple[int, int, bytes | None, bytes | None, int]


def walk_fields(data: bytes, count: int) -> Iterator[Fields]:
    """Yield (timestamp delta, offset delta, key, value, position of the headers) of each record.

    Args:
        data: the decompressed records of a batch.
        count: the number of records in the header of the batch.

    Raises:
        DamageError: the bytes are not exactly `count` records. Some of them may have been yielded before.
    """
    at, size = 0, len(data)
    try:
        for _ in range(count):
            begin = at
            byte = data[at]
            length, at = (byte >> 1, at + 1) if byte < 0x80 and not byte & 1 else read_varint(data, at)
            end = at + length
            if not at < end <= size:
                raise DamageError(
                    f"a record has a size of {length} bytes, but only {size - at} bytes are left in the batch"
                )
            byte = data[at + 1]
            if byte < 0x80:
                timestamp_delta, at = (byte >> 1) ^ -(byte & 1), at + 2
            else:
                timestamp_delta, at = read_varint(data, at + 1)
            byte = data[at]
            if byte < 0x80:
                offset_delta, at = (byte >> 1) ^ -(byte & 1), at + 1
            else:
                offset_delta, at = read_varint(data, at)
            byte = data[at]
            length, at = ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else read_varint(data, at)
            if length < 0:
                key = None
            else:
                key = data[at : at + length]
                at += length
            byte = data[at]
            length, at = ((byte >> 1) ^ -(byte & 1), at + 1) if byte < 0x80 else read_varint(data, at)
            if length < 0:
                value = None
            else:
                value = data[at : at + length]
                at += length
            if at >= end:
                raise DamageError(
                    f"the fields of a record are longer than the record, which has {end - begin} bytes"
                )
            yield timestamp_delta, offset_delta, key, value, at
            at = end
    except IndexError:
        raise DamageError(
            f"a batch ends within a record: the records of the batch have {size} bytes"
        ) from None
    if at != size:
        raise DamageError(f"{size - at} bytes follow the last record of a batch")
