"""Records and batches: Kafka's bytes, and what comes back of what was written."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.batch.header import Codec, crc_holds, headers_in, read_header
from stablelog.batch.records import Record, decode_records, encode_batch, record_heads
from stablelog.errors import DamageError

DATA = (
    "0000000000000005000000420000000302151ba14c0010000000010000018bcfe568000000018bcfe568000000000000"
    "0000050002000000000000000210000000026b0276000e00000201027700"
)
TIME_MS = 1_700_000_000_000

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
