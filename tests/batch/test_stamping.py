"""A batch gets its producer after its records are complete, and stays a valid batch."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.header import HEADER, NO_PRODUCER, Codec, crc_holds, read_header
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.batch.stamping import stamp_producer
from stablelog.errors import DamageError
from tests.scale import examples

RECORDS = [Record(0, 1_000 + number, b"k", bytes(number)) for number in range(3)]
CHANGED = {"producer_id", "producer_epoch", "base_sequence", "attributes", "crc"}


def fresh(**fields):
    return bytearray(encode_batch(RECORDS, base_offset=9, leader_epoch=4, **fields))


@settings(max_examples=examples(25))
@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.integers(0, 2**31 - 1),
    st.booleans(),
    st.sampled_from(Codec),
)
def test_only_the_fields_of_the_producer_change_and_the_crc_holds(
    producer_id, epoch, sequence, transactional, codec
):
    batch = fresh(codec=codec)
    before, records = read_header(batch), decode_records(batch)
    stamp_producer(batch, producer_id, epoch, sequence, transactional=transactional)
    after = read_header(batch)
    assert (after.producer_id, after.producer_epoch, after.base_sequence) == (producer_id, epoch, sequence)
    assert after.is_transactional is transactional
    assert after.codec is codec
    assert crc_holds(batch, 0, after)
    assert decode_records(batch) == records
    for name in set(before._fields) - CHANGED:
        assert getattr(after, name) == getattr(before, name), name


def test_a_batch_uses_one_sequence_number_for_each_offset():
    assert stamp_producer(fresh(), 7, 0, 0, transactional=False) == 3


def test_the_same_bytes_come_of_a_stamp_as_of_a_batch_that_was_encoded_with_its_producer():
    batch = fresh()
    stamp_producer(batch, 7, 2, 5, transactional=True)
    assert batch == fresh(producer_id=7, producer_epoch=2, base_sequence=5, transactional=True)


def test_a_second_stamp_replaces_the_first():
    batch, once = fresh(), fresh()
    stamp_producer(batch, 7, 2, 5, transactional=True)
    for one in (batch, once):
        stamp_producer(one, 8, 0, 0, transactional=False)
    assert batch == once
    assert not read_header(batch).is_transactional


def test_bytes_that_are_no_batch_are_refused_and_stay():
    batch = fresh()
    for damaged in (batch[: HEADER.size - 1], bytearray(HEADER.size)):
        before = bytes(damaged)
        with pytest.raises(DamageError):
            stamp_producer(damaged, 7, 2, 5, transactional=True)
        assert damaged == before


def test_two_batches_together_are_a_fault_of_the_caller_and_stay():
    both = fresh() * 2
    before = bytes(both)
    with pytest.raises(AssertionError, match="one batch, whole"):
        stamp_producer(both, 7, 2, 5, transactional=True)
    assert both == before
    assert read_header(both).producer_id == NO_PRODUCER
