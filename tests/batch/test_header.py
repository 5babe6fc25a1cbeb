"""The header of a batch: what it says, which bytes are none, and what the CRC covers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.header import (
    CRC_START,
    EMPTY_COUNT_MAX,
    HEADER,
    MAGIC,
    NO_SEQUENCE,
    SEQUENCE_MAX,
    BatchHeader,
    Codec,
    assemble,
    crc_holds,
    empty_batch,
    headers_in,
    read_header,
    write_crc,
)
from stablelog.errors import DamageError
from tests.scale import examples

PLAIN = BatchHeader(
    base_offset=40,
    batch_length=49,
    leader_epoch=3,
    magic=MAGIC,
    crc=0,
    attributes=0,
    last_offset_delta=4,
    base_timestamp=1_000,
    max_timestamp=2_000,
    producer_id=7,
    producer_epoch=2,
    base_sequence=5,
    record_count=5,
)


def of(**fields):
    """The bytes of a header with these fields, whatever they say."""
    return HEADER.pack(*PLAIN._replace(**fields))


int16, int32, int64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
counts = st.integers(0, 2**31 - 1)
headers = st.builds(
    BatchHeader,
    int64,
    st.just(0),
    int32,
    st.just(MAGIC),
    st.just(0),
    int16,
    counts,
    int64,
    int64,
    int64,
    int16,
    int32,
    counts,
)


@settings(max_examples=examples(25))
@given(headers, st.binary(max_size=20), st.binary(max_size=5))
def test_a_batch_is_read_as_it_was_assembled(header, body, behind):
    batch = assemble(header, body)
    read = read_header(b"xy" + batch + behind, 2)
    assert read._replace(batch_length=0, crc=0) == header
    assert read.size == len(batch)
    assert crc_holds(b"xy" + batch + behind, 2, read)


def test_offsets_with_last_are_inclusive_and_those_with_next_are_not():
    assert (PLAIN.last_offset, PLAIN.next_offset) == (44, 45)


@pytest.mark.parametrize(
    ("base", "last"),
    [(0, 4), (5, 9), (SEQUENCE_MAX - 4, SEQUENCE_MAX), (SEQUENCE_MAX, 3), (NO_SEQUENCE, NO_SEQUENCE)],
)
def test_sequence_numbers_wrap_to_zero_and_a_batch_without_has_none(base, last):
    assert PLAIN._replace(base_sequence=base).last_sequence == last


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        (0x00, (Codec.NONE, False, False, False)),
        (0x04, (Codec.ZSTD, False, False, False)),
        (0x08, (Codec.NONE, True, False, False)),
        (0x10, (Codec.NONE, False, True, False)),
        (0x30, (Codec.NONE, False, True, True)),
        (0x3B, (Codec.LZ4, True, True, True)),
    ],
)
def test_the_attributes_say_codec_time_transaction_and_control(attributes, said):
    header = PLAIN._replace(attributes=attributes)
    assert (header.codec, header.is_log_append_time, header.is_transactional, header.is_control) == said


@pytest.mark.parametrize("number", [5, 6, 7])
def test_a_codec_that_kafka_does_not_define_is_named_with_the_offset_of_the_batch(number):
    with pytest.raises(DamageError, match=f"batch at offset 40 has the unknown compression codec {number}"):
        PLAIN._replace(attributes=number).codec  # noqa: B018


def test_a_batch_without_a_producer_has_the_id_minus_one():
    assert PLAIN.has_producer
    assert PLAIN._replace(producer_id=0).has_producer
    assert not PLAIN._replace(producer_id=-1).has_producer


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"magic": 1}, "has magic 1; only batches of magic 2 can be read"),
        ({"batch_length": 48}, "has batch_length 48, which no batch can have"),
        ({"batch_length": -1}, "has batch_length -1, which no batch can have"),
        ({"last_offset_delta": -1}, "has 5 records and last_offset_delta -1"),
        ({"record_count": -1}, "has -1 records and last_offset_delta 4"),
    ],
    ids=str,
)
def test_fields_that_no_header_has_are_refused_with_the_position_in_the_file(fields, why):
    with pytest.raises(DamageError, match=f"^batch at byte 102 {why}"):
        read_header(b"xy" + of(**fields), 2, buffer_begin=100)


def test_a_header_that_is_cut_off_is_refused_with_what_is_left_of_it():
    with pytest.raises(
        DamageError, match="header at byte 1002 is incomplete: only 60 of its 61 bytes are there"
    ):
        read_header(b"xy" + of()[:-1], 2, buffer_begin=1000)
    with pytest.raises(DamageError, match="header at byte -1 is incomplete"):
        read_header(of() * 2, -1)


@settings(max_examples=examples(25))
@given(st.lists(st.binary(max_size=9), max_size=4), st.integers(0, 80))
def test_of_a_buffer_whose_last_batch_is_incomplete_the_whole_batches_are_found(bodies, missing):
    batches = [assemble(PLAIN._replace(base_offset=number), body) for number, body in enumerate(bodies)]
    whole = b"".join(batches)
    buffer = whole[: max(len(whole) - missing, 0)]
    expected, end = [], 0
    for number, batch in enumerate(batches):
        if end + len(batch) <= len(buffer):
            expected.append((end, number))
        end += len(batch)
    assert [(position, header.base_offset) for position, header in headers_in(buffer)] == expected
    behind = [(position + 3, number) for position, number in expected]
    assert [(at, header.base_offset) for at, header in headers_in(b"abc" + buffer, 3)] == behind


def test_bytes_that_are_no_header_between_batches_are_refused():
    batch = assemble(PLAIN, b"body")
    found = headers_in(batch + bytes(HEADER.size))
    assert next(found)[0] == 0
    with pytest.raises(DamageError, match=f"batch at byte {len(batch)} has magic 0"):
        next(found)


def test_the_crc_covers_everything_behind_it_and_nothing_before():
    batch = assemble(PLAIN, b"body")
    header = read_header(batch)
    for at in range(len(batch)):
        changed = bytearray(batch)
        changed[at] ^= 1
        is_crc = CRC_START - 4 <= at < CRC_START
        read = header._replace(crc=int.from_bytes(changed[CRC_START - 4 : CRC_START], "big"))
        assert crc_holds(changed, 0, read) is (at < CRC_START and not is_crc), at


def test_the_broker_assigns_offset_and_leader_epoch_without_a_new_crc():
    batch = bytearray(assemble(PLAIN, b"body"))
    before = bytes(batch)
    batch[:8] = (99).to_bytes(8, "big")
    batch[12:16] = (8).to_bytes(4, "big")
    write_crc(batch)
    assert batch[16:] == before[16:]


@pytest.mark.parametrize("count", [1, 1000, EMPTY_COUNT_MAX])
def test_a_batch_without_records_takes_all_offsets_of_its_range(count):
    batch = empty_batch(5, 5 + count, leader_epoch=3)
    header = read_header(batch)
    assert (header.base_offset, header.next_offset, header.leader_epoch) == (5, 5 + count, 3)
    assert (header.record_count, header.size, header.has_producer) == (0, HEADER.size, False)
    assert crc_holds(batch, 0, header)


def test_a_range_of_more_offsets_than_one_batch_can_take_is_taken_in_part():
    assert read_header(empty_batch(5, 10 + EMPTY_COUNT_MAX, 0)).next_offset == 5 + EMPTY_COUNT_MAX
