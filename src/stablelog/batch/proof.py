"""Proof of the structure of a batch's records: the check of every record that the broker makes before a log accepts the
batch.

A proven batch has exactly as many records as its header says, with the offset deltas 0, 1, 2 and so on, and all its
lengths fit. Every Kafka client can decode such records. The proof makes no object of a record, because a broker proves
each batch that it gets. Records are proven in three ways, from the slowest to the fastest:

- `read_fields` and `read_headers` decode one record with all checks, and find what is wrong with it.
- `_walk` passes over records of the usual form, whose lengths take at most two bytes. It stops before any other record.
- `_run_length` proves records of equal size at once. The bytes that decide about the structure of a record stand at the
  same places in all of them. If they are equal to those of a decoded record, the structure is the same. Slices with a
  step compare these bytes.

Format: docs/reference/formats.md, "Record".  Source: Kafka's DefaultRecord.readFrom and LogValidator; docs/decisions/0031.
"""

from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from stablelog.batch.record_fields import (
    LONG_SIZE_MAX,
    ONE_BYTE,
    PLACES_MAX,
    RecordFields,
    read_fields,
    read_headers,
    wrong_record,
)
from stablelog.errors import DamageError
from stablelog.varint import encode_varint, read_varint

PORTION: Final = 1000  # records and headers that are proven without a break; they take about 1 ms
NO_RECORD: Final = -1

_TWO_BYTES: Final = 1 << 14
_THREE_BYTES: Final = 1 << 21
# After a search for records of equal size that finds none, so many records are walked before the next search, and twice
# as many after that.
_PAUSE_MIN: Final = 16
_PAUSE_MAX: Final = 256
_RUN_MIN: Final = 24  # fewer records are proven faster one by one
# The offset deltas of a block of this many records differ only in the two low bytes of their varints. These bytes are:
_BLOCK: Final = 1 << 13
_LOW: Final = bytes(2 * delta & 0x7F | 0x80 for delta in range(_BLOCK))
_HIGH: Final = bytes(2 * delta >> 7 for delta in range(_BLOCK))
_HIGH_CONTINUED: Final = bytes(byte | 0x80 for byte in _HIGH)
_ONE_BYTE_DELTAS: Final = bytes(range(0, ONE_BYTE, 2))
_CONTINUED: Final = bytes(range(0x80, 0x100))  # the bytes of a varint that another byte follows
_LAST: Final = bytes(range(0x80))


class Proven(NamedTuple):
    """What the proof, the check of every record of a batch, has learnt about the records.

    Attributes:
        keyless: the number of the first record without a key; NO_RECORD if each record has one.
        time_size: the size in bytes of the longest timestamp delta. A delta of n bytes is at least -2**(7*n-1), and
            less than 2**(7*n-1).
    """

    keyless: int
    time_size: int


def prove(data: bytes, count: int) -> Proven:
    """Prove that the decompressed records of a batch are well-formed. `count` is the number of records in the batch's
    header.

    Raises:
        DamageError: the bytes are not `count` records with the offset deltas 0, 1, 2 and so on. The message names the
            first record that is not valid, and the reason.
    """
    steps = prove_in_portions(data, count)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            proven: Proven = end.value
            return proven


def prove_in_portions(data: bytes, count: int) -> Generator[None, None, Proven]:
    """Prove the records of a batch, that is, check that they are well-formed, as `prove` does, but in steps, so that
    the caller can serve other requests between two steps.

    Yields:
        None after each step, which takes about a millisecond.

    Returns:
        What the proof has learnt about the records, as `prove` returns it.

    Raises:
        DamageError: the bytes are not `count` records with the offset deltas 0, 1, 2 and so on.
    """
    keyless, time_size = NO_RECORD, 1
    number = at = 0
    search = (
        0 if count >= _RUN_MIN else count
    )  # the next record from which records of equal size are searched for
    pause = _PAUSE_MIN
    left = PORTION
    while number < count:
        if left <= 0:
            yield
            left = PORTION
        if number < search:
            stop = min(search, number + left)
            before = number
            number, at, header_count, without_key, size = _walk(data, at, number, stop)
            left -= number - before + header_count
            time_size = max(time_size, size)
            if keyless == NO_RECORD:
                keyless = without_key
            if number == stop:
                continue
        head = read_fields(data, at, number)
        places: list[int] = []
        after, headers_left = head.headers, head.headers_left
        while headers_left:
            if left <= 0:
                yield
                left = PORTION
            some = min(headers_left, left)
            after = _after_headers(data, after, head, some, number, places)
            headers_left -= some
            left -= some
        if after != head.end:
            raise wrong_record(number, f"{head.end - after} bytes follow the last field of the record")
        if keyless == NO_RECORD and head.is_keyless:
            keyless = number
        time_size = max(time_size, head.delta - head.attributes - 1)
        length = 1
        if number >= search:
            length = _run_length(data, number, count, head, places)
            pause = _PAUSE_MIN if length > 1 else min(2 * pause, _PAUSE_MAX)
            search = number + length + (0 if length > 1 else pause)
            if search > count - _RUN_MIN:
                search = count
        left -= 2 + (length >> 3)
        at += (head.end - at) * length
        number += length
    if at != len(data):
        raise DamageError(f"{len(data) - at} bytes follow the last of the {count} records of a batch")
    return Proven(keyless, time_size)


def time_deltas(data: bytes) -> Iterator[int]:
    """Yield the timestamp delta of each record of a batch. `data` has the decompressed records, which `prove` has
    checked and accepted before.
    """
    at, end = 0, len(data)
    while at < end:
        size, at = read_varint(data, at)
        yield read_varint(data, at + 1)[0]
        at += size


def _walk(data: bytes, at: int, number: int, stop: int) -> tuple[int, int, int, int, int]:
    """Check the records with the numbers [number, stop), as long as they have the usual form: lengths of at most two
    bytes. Stop before a record of another form, before an invalid record, and before more than PORTION headers.

    Returns:
        Five values: the number of the next record; its position; how many headers were passed; and, for the records
        that were passed, the two fields of `Proven`, `keyless` and `time_size`.
    """
    keyless, time_size, header_count, begin, twice = NO_RECORD, 1, 0, at, 2 * number
    try:
        for twice in range(2 * number, 2 * stop, 2):  # an offset delta is encoded as twice its value
            begin = at
            size = data[at]
            at += 1
            if size > 127:
                size += (data[at] << 7) - 128
                at += 1
            end = at + (size >> 1)
            if data[at] > 127 or size >= _TWO_BYTES:  # the attributes
                break
            at += 1
            if data[at] > 127:
                at += 1
                if data[at] > 127:
                    at += 1
                    time_size = 3
                    if data[at] > 127:
                        break
                elif time_size == 1:
                    time_size = 2
            delta = data[at + 1]
            at += 2
            if delta > 127:
                delta += (data[at] << 7) - 128
                at += 1
                if delta >= _TWO_BYTES:
                    delta += (data[at] << 14) - _TWO_BYTES
                    at += 1
                    if delta >= _THREE_BYTES:
                        break
            if delta != twice:
                break
            key = data[at]
            at += 1
            if key > 127:
                key += (data[at] << 7) - 128
                at += 1
            if key != 1:
                at += key >> 1
                if key & 1 or key >= _TWO_BYTES:
                    break
            elif keyless == NO_RECORD:
                keyless = twice >> 1
            value = data[at]
            at += 1
            if value > 127:
                value += (data[at] << 7) - 128
                at += 1
            if value != 1:
                at += value >> 1
                if value & 1 or value >= _TWO_BYTES:
                    break
            headers = data[at]
            at += 1
            if headers:
                header_count += headers >> 1
                if headers & 1 or headers >= ONE_BYTE or header_count > PORTION:
                    break
                at = _pass_headers(data, at, headers >> 1)
            if at != end or size & 1:
                break
        else:
            return stop, at, header_count, keyless, time_size
    except IndexError:
        pass
    return twice >> 1, begin, header_count, keyless, time_size


def _pass_headers(data: bytes, at: int, count: int) -> int:
    """Return the position after `count` headers that begin at `at`; -1 if one of them does not have the usual form, in
    which the lengths take at most two bytes.
    """
    for _ in range(count):
        name = data[at]
        if name & 1 or name >= ONE_BYTE:
            return -1
        at += 1 + (name >> 1)
        value = data[at]
        at += 1
        if value > 127:
            value += (data[at] << 7) - 128
            at += 1
        if value != 1:
            if value & 1 or value >= _TWO_BYTES:
                return -1
            at += value >> 1
    return at


def _after_headers(
    data: bytes, at: int, head: RecordFields, count: int, number: int, places: list[int]
) -> int:
    """Prove `count` headers of a record, which begin at `at`: check that they are valid. Return the position after
    them. If the record has few headers, also append the positions of their lengths to `places`, so that `_run_length`
    can compare later records with this one.

    Args:
        data: the decompressed records of the batch.
        at: the position of the first header.
        head: the positions of the record's other fields.
        count: the number of headers to prove.
        number: the number of the record, for error messages.
        places: the list that gets the positions of the lengths of the headers.

    Raises:
        DamageError: a header is not valid.
    """
    if head.headers_left > PLACES_MAX:
        try:
            after = _pass_headers(data, at, count)
        except IndexError:
            after = -1
        if 0 <= after <= head.end:
            places[:] = range(PLACES_MAX + 1)  # too many
            return after
    return read_headers(data, at, head, count, number, places)


def _run_length(data: bytes, number: int, count: int, head: RecordFields, header_places: list[int]) -> int:
    """Return how many records from record `number` on are proven (known to be well-formed) by a comparison with this
    record alone, because they have the same size and the same structure. Record `number` itself is counted, so the
    result is at least 1.

    Args:
        data: the decompressed records of the batch.
        number: the number of a record that was decoded.
        count: the number of records of the batch.
        head: the positions of this record's fields.
        header_places: the positions of the lengths of its headers.
    """
    begin, size = head.begin, head.end - head.begin
    deltas = _delta_columns(number, head)
    time_last = head.delta - 1
    fixed = [
        *range(head.value_size, head.value),
        *range(begin, head.attributes + 1),
        *range(head.key_size, head.key),
        *range(head.header_count, head.headers),
        *header_places,
        *range(head.delta + len(deltas), head.key_size),
    ]
    if len(fixed) > PLACES_MAX or not deltas or time_last - head.attributes == LONG_SIZE_MAX:
        return 1
    rows = min(count - number, (len(data) - begin) // size, len(deltas[0]))
    # The first look is at few records: most often the sizes differ, or all are equal.
    first = fixed[0]
    if rows < _RUN_MIN or data[first : first + _RUN_MIN * size : size].count(data[first]) < _RUN_MIN:
        return 1
    for place in fixed:
        column = data[place : place + rows * size : size]
        if column.count(data[place]) != rows:
            rows = rows - len(column.lstrip(data[place : place + 1]))
    for place in range(head.attributes + 1, time_last):
        column = data[place : place + rows * size : size]
        if column.translate(None, _CONTINUED):
            rows = rows - len(column.lstrip(_CONTINUED))
    column = data[time_last : time_last + rows * size : size]
    if not column.isascii():
        rows = rows - len(column.lstrip(_LAST))
    for place, wanted in enumerate(deltas, head.delta):
        column = data[place : place + rows * size : size]
        if column != wanted[:rows]:
            rows = next(row for row in range(rows) if column[row] != wanted[row])
    return rows if rows >= _RUN_MIN else 1


def _delta_columns(number: int, head: RecordFields) -> tuple[bytes, ...]:
    """Return the bytes that the offset deltas of the records from `number` on must have, so that many records can be
    compared at once. `head` has the positions of the fields of record `number`.

    Returns:
        A column for each byte of an offset delta that changes from record to record. The first byte of a column belongs
        to record `number`, the next byte to the next record, and so on. The columns end before the first record whose
        offset delta has another size, or differs in a byte without a column. The tuple is empty if the offset delta of
        record `number` is encoded with more bytes than necessary.
    """
    if head.key_size - head.delta != len(encode_varint(number)):
        return ()
    if 2 * number < ONE_BYTE:
        return (_ONE_BYTE_DELTAS[number:],)
    row = number % _BLOCK
    return (_LOW[row:], _HIGH[row:] if number < _BLOCK else _HIGH_CONTINUED[row:])
