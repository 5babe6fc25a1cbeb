"""The proof of records agrees with a model that decodes them one by one, for valid batches and for mutated ones."""

import os
import random
from itertools import pairwise

import aiokafka.record.default_records as aiokafka
import pytest

from stablelog.batch.header import HEADER, Codec, assemble, read_header
from stablelog.batch.proof import NO_RECORD, PORTION, prove, prove_in_portions, time_deltas
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError
from stablelog.varint import encode_varint

SEED = int(os.environ.get("STABLELOG_SEED", "1"))
BATCHES = int(os.environ.get("STABLELOG_PROVEN_BATCHES", "60"))
TIME_MS = 1_700_000_000_000
INT_BITS, LONG_BITS = 32, 64


class NotValidError(Exception):
    """The model refuses the records."""


def read_varint(data, at, bits):
    """A zig-zag varint of so many bits: its value, and the position after it."""
    value = shift = 0
    while True:
        if at == len(data) or shift >= bits:
            raise NotValidError
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            break
        shift += 7
    if value >= 1 << bits:
        raise NotValidError
    return (value >> 1) ^ -(value & 1), at


def read_field(data, at):
    size, at = read_varint(data, at, INT_BITS)
    if not -1 <= size <= len(data) - at:
        raise NotValidError
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def model(data, count):
    """Decode the records one by one: the first without a key, and the size of the longest timestamp delta."""
    at, keyless, time_size = 0, NO_RECORD, 1
    for number in range(count):
        size, at = read_varint(data, at, INT_BITS)
        if not 0 < size <= len(data) - at:
            raise NotValidError
        record, at = data[at : at + size], at + size
        if record[0] > 127:
            raise NotValidError
        _, place = read_varint(record, 1, LONG_BITS)
        time_size = max(time_size, place - 1)
        delta, place = read_varint(record, place, INT_BITS)
        key, place = read_field(record, place)
        _, place = read_field(record, place)
        headers, place = read_varint(record, place, INT_BITS)
        if delta != number or not 0 <= headers <= len(record):
            raise NotValidError
        for _ in range(headers):
            name, place = read_field(record, place)
            if name is None:
                raise NotValidError
            _, place = read_field(record, place)
        if place != len(record):
            raise NotValidError
        if key is None and keyless == NO_RECORD:
            keyless = number
    if at != len(data):
        raise NotValidError
    return keyless, time_size


def outcome(prover, data, count):
    """What a prover returns; None if it refuses the records."""
    try:
        return tuple(prover(data, count))
    except (NotValidError, DamageError):
        return None


def drawn_records(rng):
    """Records of one kind: of equal or different sizes, with or without keys and headers, and with any timestamps."""
    count = rng.choice([1, 2, 7, 30, 63, 64, 65, 100, 200, 400])
    sizes = [rng.choice([0, 1, 40, 63, 64, 100, 1000, 8000])] * rng.choice([1, 1, 2]) + [rng.randrange(90)]
    equal = rng.random() < 0.6
    key = rng.choice([None, b"", b"key", b"k" * 63, b"k" * 64, b"k" * 9000])
    named = rng.choice([(), (), (("h", b"v"),), (("", None), ("name", b"v" * 100)), (("h", b""),) * 70])
    longest = rng.choice([0, 1, 50, 5000, 10**6, 10**9, 2**40, 2**62])
    records = []
    for number in range(count if max(sizes) < 1000 else min(count, 70)):
        size = sizes[0] if equal else rng.choice(sizes)
        odd = rng.random() < 0.02
        time_ms = TIME_MS + (
            rng.randint(-longest, longest) if rng.random() < 0.5 else number * longest // 400
        )
        value = None if odd and rng.random() < 0.5 else rng.randbytes(size)
        records.append(Record(0, time_ms, rng.choice([None, b"", key]) if odd else key, value, named))
    return records


def mutated(rng, data, count):
    """The records with one or a few changes, and perhaps another count."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        at = rng.randrange(len(data)) if data else 0
        change = rng.randrange(7)
        if change == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif change == 1 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 2:
            del data[at : at + rng.choice([1, 1, 2, 30])]
        elif change == 3:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 20]))
        elif change == 4 and data:  # perhaps a varint that is longer than necessary
            data[at : at + 1] = bytes(
                [data[at] | 0x80, *[0x80] * rng.choice([0, 1, 3, 8]), rng.choice([0, 0, 1, 0x0F, 0x10])]
            )
        elif change == 5:
            data[at:] = data[: len(data) - at]
        else:
            count = max(1, count + rng.choice([-1, 1, -count + 1, 10**6]))
    return bytes(data), count


def test_the_proof_agrees_with_a_model_that_decodes_record_by_record():
    rng = random.Random(f"proof {SEED}")
    valid = refused = still_valid = 0
    for _ in range(BATCHES):
        records = drawn_records(rng)
        data = encode_batch(records)[HEADER.size :]
        expected = model(data, len(records))
        assert outcome(prove, data, len(records)) == expected
        valid += 1
        for _ in range(4):
            changed, count = mutated(rng, data, len(records))
            expected = outcome(model, changed, count)
            assert outcome(prove, changed, count) == expected, f"seed {SEED}"
            refused += expected is None
            still_valid += expected is not None
    assert min(valid, refused, still_valid) >= BATCHES // 4  # each kind was drawn often


def record(
    delta=0, *, time=b"\0", key=b"\1", value=b"\1", headers=b"\0", attributes=b"\0", size=None, deltas=None
):
    """A record whose fields are given as bytes."""
    body = attributes + time + (encode_varint(delta) if deltas is None else deltas) + key + value + headers
    return (encode_varint(len(body)) if size is None else size) + body


REFUSED = {
    "random bytes": (bytes.fromhex("9f13c1aa0255"), 1, "record 0 "),
    "no bytes": (b"", 1, "record 0 of a batch is not valid: a varint in the record is incomplete"),
    "fewer records than the count": (record(), 2, "record 1 "),
    "more records than the count": (record() + record(1), 1, "7 bytes follow the last of the 1 records"),
    "a size that is negative": (record(size=b"\x0d"), 1, "the record has a size of -7 bytes"),
    "a size of 0": (b"\0" + record(), 1, "the record has a size of 0 bytes"),
    "a size past the end": (
        record(size=b"\x10"),
        1,
        "the record has a size of 8 bytes, but only 6 bytes are left",
    ),
    "a size before the end of the fields": (record(size=b"\x0a") + record(1), 2, "record 0 "),
    "a size of more than 32 bits": (record(size=b"\x8c\x80\x80\x80\x10"), 1, "more than 32 bits"),
    "attributes that look like the first of two bytes": (
        record(attributes=b"\x80"),
        1,
        "the record's attributes are 0x80, which some clients take for two bytes",
    ),
    "an offset delta that does not begin at 0": (
        record(1),
        1,
        "record 0 of a batch is not valid: the record's offset delta is 1",
    ),
    "an offset delta that is left out": (
        record() + record(2),
        2,
        "record 1 of a batch is not valid: the record's offset delta is 2",
    ),
    "an offset delta that comes twice": (record() + record(0), 2, "the record's offset delta is 0"),
    "a negative offset delta": (record(-1), 1, "the record's offset delta is -1"),
    "a timestamp delta of more than 64 bits": (record(time=b"\x80" * 9 + b"\2"), 1, "more than 64 bits"),
    "a timestamp delta of eleven bytes": (record(time=b"\x80" * 10 + b"\0"), 1, "more than 64 bits"),
    "a key of size -2": (record(key=b"\3"), 1, "the record's key has a size of -2 bytes"),
    "a key past the end": (
        record(key=b"\x20"),
        1,
        "the record's key has a size of 16 bytes, but only 2 bytes are left",
    ),
    "a value of size -2": (record(value=b"\3"), 1, "the record's value has a size of -2 bytes"),
    "a value past the end": (
        record(value=b"\4"),
        1,
        "the record's value has a size of 2 bytes, but only 1 bytes are left",
    ),
    "a negative number of headers": (record(headers=b"\1"), 1, "the record has -1 headers"),
    "more headers than bytes": (record(headers=b"\2"), 1, "the record has 1 headers, but only 0 bytes"),
    "a header without a name": (record(headers=b"\2\1\1"), 1, "a header has no name"),
    "a header's name past the end": (record(headers=b"\2\4a\1"), 1, "record 0 "),
    "a header's value of size -2": (
        record(headers=b"\2\2a\3"),
        1,
        "the record's header's value has a size of -2 bytes",
    ),
    "bytes after the last header": (record(headers=b"\2\2a\1x"), 1, "1 bytes follow the last field"),
    "bytes after a record without headers": (record(headers=b"\0x"), 1, "1 bytes follow the last field"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_records_that_clients_cannot_read_are_refused_with_what_is_wrong(name):
    data, count, why = REFUSED[name]
    assert outcome(model, data, count) is None
    with pytest.raises(DamageError, match=why.replace("(", r"\(")):
        prove(data, count)


@pytest.mark.parametrize("name", [name for name in REFUSED if REFUSED[name][2].startswith("record 0 ")])
def test_the_same_is_found_behind_a_run_of_equal_records(name):
    data, count, _ = REFUSED[name]
    begin = b"".join(record(delta) for delta in range(40))
    with pytest.raises(DamageError, match="record 40 "):
        prove(begin + data, 40 + count)


ACCEPTED = {
    "of no key, value and headers": record(),
    "with attributes, which no client uses": record(attributes=b"\x7f"),
    "with a size in more bytes than necessary": record(size=b"\x8c\x80\x80\x80\0"),
    "with an offset delta in more bytes than necessary": record(deltas=b"\x80\0"),
    "with a null key in two bytes": record(key=b"\x81\0"),
    "with a null value in two bytes": record(value=b"\x81\0"),
    "with the least timestamp delta": record(time=b"\xff" * 9 + b"\1"),
    "with a header whose name is not UTF-8": record(headers=b"\2\2\xff\1"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_apache_kafka_accepts_is_accepted(name):
    data = ACCEPTED[name]
    assert prove(data, 1) == model(data, 1)


@pytest.mark.parametrize("attributes", [0, 1, 0x7F, 0x80, 0xFF])
def test_attributes_are_accepted_if_aiokafka_decodes_the_record(attributes):
    """The Java client reads a byte. aiokafka and kafka-python read a varint, and so one byte more if the first bit is set."""
    data = record(attributes=bytes([attributes]), key=b"\4kk") + record(1)
    header = read_header(encode_batch([Record(0, TIME_MS, b"", b"")] * 2))
    batch = bytearray(assemble(header, data))
    if outcome(prove, data, 2) is None:
        with pytest.raises(Exception, match="Corrupt"):
            list(aiokafka.DefaultRecordBatch(batch))
    else:
        assert [(one.offset, one.key) for one in aiokafka.DefaultRecordBatch(batch)] == [
            (0, b"kk"),
            (1, None),
        ]


@pytest.mark.parametrize("place", range(45))
@pytest.mark.parametrize("change", [1, 2, 0x80])
def test_a_change_within_a_run_of_equal_records_is_found(place, change):
    """Each byte of the structure is compared: of one record in the middle of a long run, each byte is changed."""
    rows = [
        record(n, time=b"\x90\1", key=b"\4kk", value=b"\x14" + b"v" * 10, headers=b"\2\6abc\4xy")
        for n in range(150)
    ]
    changed = bytearray(rows[100])
    if place < len(changed):
        changed[place] ^= change
        data = b"".join((*rows[:100], bytes(changed), *rows[101:]))
        assert outcome(prove, data, 150) == outcome(model, data, 150)


@pytest.mark.parametrize("count", [8190, 8191, 8192, 8193, 8250, 20_000])
def test_the_offset_deltas_of_long_batches_are_proven(count):
    data = b"".join(map(record, range(count)))
    assert prove(data, count) == (0, 1)
    wrong = data[: -len(record(count - 1))] + record(count)
    with pytest.raises(
        DamageError, match=f"record {count - 1} of a batch is not valid: the record's offset delta is {count}"
    ):
        prove(wrong, count)


def equal_records(first, end):
    """The records of the offset deltas from `first` to `end`, all of one size, made column by column."""
    row = record(first)
    rows = bytearray(row * (end - first))
    width = len(row) - len(record(0)) + 1
    for place in range(width):
        more = 0x80 if place < width - 1 else 0
        repeats = 64 * 128 ** (place - 1)  # records that follow each other have the same byte
        values = [2 * delta & 0x7F for delta in range(64)] if place == 0 else range(128)
        column = b"".join(bytes([value | more]) * int(max(repeats, 1)) for value in values)
        column *= end // len(column) + 1
        rows[3 + place :: len(row)] = column[first:end]
    return bytes(rows)


def test_the_deltas_of_more_than_a_million_records_are_proven():
    ends = (0, 1 << 6, 1 << 13, 1 << 20, (1 << 20) + 100)  # where an offset delta gets one more byte
    rows = b"".join(equal_records(*span) for span in pairwise(ends))
    count = ends[-1]
    assert rows.startswith(b"".join(map(record, range(9000))))
    assert rows.endswith(record(count - 1))
    assert prove(rows, count) == (0, 1)
    wrong = rows[: -len(record(count))] + record(count)
    with pytest.raises(DamageError, match=f"the record's offset delta is {count}"):
        prove(wrong, count)


def test_of_an_offset_delta_of_four_bytes_all_are_read():
    count = 1 << 20
    rows = b"".join(equal_records(*span) for span in pairwise((0, 1 << 6, 1 << 13, count)))
    # If three of the four bytes were the delta, the fourth would be a null key, and the record would be valid.
    body = b"\0\0" + encode_varint(count) + b"\1\0"
    assert body[5:] == b"\1\1\0"
    with pytest.raises(DamageError, match=f"record {count} "):
        prove(rows + encode_varint(len(body)) + body, count + 1)


def varied(number, **fields):
    return record(number, value=encode_varint(number % 7) + b"v" * (number % 7), **fields)


LONG = {
    "records of different sizes": (b"".join(map(varied, range(10 * PORTION))), 10 * PORTION, 10),
    "records with a header each": (
        b"".join(
            record(n, headers=b"\2" + encode_varint(n % 5) + b"h" * (n % 5) + b"\1")
            for n in range(5 * PORTION)
        ),
        5 * PORTION,
        10,
    ),
    "one record of many headers": (record(headers=encode_varint(9 * PORTION) + b"\0\1" * 9 * PORTION), 1, 9),
    "records of an unusual form": (
        b"".join(varied(n, time=b"\x80\x80\x80\0") for n in range(3 * PORTION)),
        3 * PORTION,
        6,
    ),
}


@pytest.mark.parametrize("name", LONG)
def test_long_batches_are_proven_in_portions(name):
    data, count, least = LONG[name]
    assert sum(1 for _ in prove_in_portions(data, count)) >= least - 1
    assert prove(data, count) == model(data, count)


def test_records_of_equal_size_take_few_portions():
    data = b"".join(map(record, range(50_000)))
    assert sum(1 for _ in prove_in_portions(data, 50_000)) < 10


def test_a_proven_batch_is_decoded():
    records = [Record(n, TIME_MS + n, b"k", b"v" * (n % 3), (("h", None),)) for n in range(500)]
    batch = encode_batch(records, codec=Codec.NONE)
    assert prove(batch[HEADER.size :], 500) == (NO_RECORD, 2)
    assert decode_records(batch) == records


def test_the_timestamp_deltas_of_records_are_theirs():
    deltas = [0, 70, 5, 300, 1 << 30]
    records = [Record(0, TIME_MS + delta, b"k", bytes(delta % 90)) for delta in deltas]
    data = encode_batch(records)[HEADER.size :]
    prove(data, len(records))
    assert list(time_deltas(data)) == deltas
