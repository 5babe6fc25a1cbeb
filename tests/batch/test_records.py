"""Records and batches: Kafka's bytes, and what comes back of what was written."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.batch.header import HEADER, Codec, crc_holds, headers_in, read_header
from stablelog.batch.records import (
    LOOK_COUNT_MAX,
    Record,
    decode_records,
    encode_batch,
    find_by_time,
    is_decoded_quickly,
    record_heads,
)
from stablelog.errors import DamageError

DATA = (
    "0000000000000005000000420000000302151ba14c0010000000010000018bcfe568000000018bcfe568000000000000"
    "0000050002000000000000000210000000026b0276000e00000201027700"
)
TIME_MS = 1_700_000_000_000
COUNT_AT = 57  # place of the number of records in a batch

records = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**42),
        st.none() | st.binary(max_size=50),
        st.none() | st.binary(max_size=200),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def test_a_batch_is_kafkas_to_the_byte():
    batch = encode_batch(
        [Record(0, TIME_MS, b"k", b"v"), Record(0, TIME_MS, None, b"w")],
        base_offset=5,
        leader_epoch=3,
        producer_id=5,
        producer_epoch=2,
        base_sequence=0,
        transactional=True,
    )
    assert batch.hex() == DATA
    assert crc_holds(batch, 0, read_header(batch))
    assert [(r.offset, r.key, r.value) for r in decode_records(batch)] == [(5, b"k", b"v"), (6, None, b"w")]


@pytest.mark.extended
@given(records, st.sampled_from(list(Codec)))
def test_records_come_back_as_they_went_in(written, codec):
    read = decode_records(encode_batch(written, base_offset=100, codec=codec))
    assert read == [record._replace(offset=100 + n) for n, record in enumerate(written)]


@pytest.mark.extended
@given(records, st.sampled_from(list(Codec)), st.integers(0, 3))
def test_heads_are_the_beginnings_of_records(written, codec, size):
    batch = b"before" + encode_batch(written, base_offset=100, codec=codec)
    assert record_heads(batch, 6, size) == [
        (100 + n, (record.key or b"")[:size], (record.value or b"")[:size])
        for n, record in enumerate(written)
    ]


def test_heads_of_what_is_no_batch_are_refused():
    batch = bytearray(encode_batch([Record(0, 0, b"key", b"value")]))
    batch[61] = 0x7E  # the record's size
    with pytest.raises(DamageError, match="a record has a size of 63 bytes"):
        record_heads(batch, 0, 2)


@pytest.mark.extended
@given(records, st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]))
def test_aiokafka_reads_what_we_write(written, codec):
    from aiokafka.record import MemoryRecords

    parsed = MemoryRecords(encode_batch(written, codec=codec)).next_batch()
    assert parsed.validate_crc()
    assert [(r.key, r.value) for r in parsed] == [(r.key, r.value) for r in written]


def test_changed_batches_raise_corrupt_and_nothing_else():
    chance = random.Random(1)
    whole = encode_batch([Record(0, TIME_MS, b"key", b"value", (("h", b"x"),))] * 5)
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 5)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            decode_records(bytes(data))
            list(headers_in(bytes(data)))
        except DamageError:
            continue


def timed(*times_ms, base_offset=10):
    return encode_batch([Record(0, time_ms, b"k", b"v") for time_ms in times_ms], base_offset=base_offset)


@pytest.mark.parametrize(
    ("time_ms", "start_offset", "found"),
    [
        (0, 0, (10, 5)),
        (6, 0, (11, 9)),
        (6, 12, (12, 7)),
        (8, 12, None),
        (10, 0, None),
    ],
)
def test_the_first_record_of_a_time_has_the_time_or_a_later_one(time_ms, start_offset, found):
    assert find_by_time(b"??" + timed(5, 9, 7), time_ms, start_offset, position=2) == found


def with_wrong_offset(batch):
    """The offset delta of the first record is greater than the header's last one."""
    at = HEADER.size + 3  # behind the size, the attributes and the timestamp delta
    return batch[:at] + b"\x7e" + batch[at + 1 :]


@pytest.mark.parametrize(
    "batch",
    [timed(*[5] * LOOK_COUNT_MAX, 9), timed(5, 9, 7)[:-1] + b"\x7f", with_wrong_offset(timed(5, 9, 7))],
    ids=["too many records", "records that cannot be decoded", "an offset outside of the batch"],
)
def test_where_records_cannot_be_looked_at_a_time_is_found_before_them(batch):
    assert find_by_time(batch, 6, 0) == (10, 9)
    assert find_by_time(batch, 6, 12) == (12, 9)


def test_a_batch_is_decoded_quickly_if_it_is_small_and_not_compressed():
    def is_quick(codec, size):
        return is_decoded_quickly(read_header(encode_batch([Record(0, 0, None, bytes(size))], codec=codec)))

    assert is_quick(Codec.NONE, 1000)
    assert not is_quick(Codec.NONE, 40_000)
    assert not is_quick(Codec.GZIP, 1000)


def test_the_head_of_a_record_has_the_first_bytes_of_key_and_value():
    batch = encode_batch([Record(0, 5, b"key", b"value"), Record(0, 5, None, b"")], base_offset=7)
    assert record_heads(b"?" + batch, 1, size=2) == [(7, b"ke", b"va"), (8, b"", b"")]


def test_bytes_behind_the_last_record_are_no_head():
    batch = bytearray(encode_batch([Record(0, 5, b"key", b"value")] * 2))
    batch[COUNT_AT + 3] = 1
    with pytest.raises(DamageError, match="bytes follow the last record"):
        record_heads(batch, 0, size=2)
