"""A batch grows record by record, and any record can be removed again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.building import EMPTY, BatchBuilder
from stablelog.batch.header import Codec, crc_holds, read_header
from stablelog.batch.records import Record, decode_records
from tests.scale import examples

CONTENT = st.none() | st.binary(max_size=30)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**42),
        CONTENT,
        CONTENT,
        st.lists(st.tuples(st.text(max_size=3), CONTENT), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=8,
)
NO_LIMIT = 1 << 30


def add(builder, record, size_max=NO_LIMIT):
    return builder.add(record.key, record.value, record.headers, record.timestamp_ms, size_max)


@settings(max_examples=examples(25))
@given(RECORDS, st.sampled_from(Codec))
def test_the_batch_has_the_records_that_were_added_in_their_order(records, codec):
    builder = BatchBuilder()
    sizes = [add(builder, record) for record in records]
    assert (builder.size, builder.count) == (sum(sizes), len(records))
    batch = builder.build(codec)
    header = read_header(batch)
    assert crc_holds(batch, 0, header)
    assert decode_records(batch) == [record._replace(offset=at) for at, record in enumerate(records)]
    assert header.codec is codec
    assert header.base_timestamp == records[0].timestamp_ms
    assert header.max_timestamp == max(record.timestamp_ms for record in records)
    assert not header.has_producer
    unset = header.base_offset, header.leader_epoch, header.producer_epoch, header.base_sequence
    assert unset == (0, -1, -1, -1)


@settings(max_examples=examples(25))
@given(RECORDS, RECORDS, RECORDS)
def test_an_earlier_state_removes_the_records_since(kept, removed, behind):
    """A signal handler may have interrupted the program between two records."""
    builder, expected = BatchBuilder(), BatchBuilder()
    for record in kept:
        add(builder, record)
    state = builder.state
    for record in removed:
        add(builder, record)
    builder.state = state
    for record in behind:
        add(builder, record)
    for record in kept + behind:
        add(expected, record)
    assert builder.build(Codec.NONE) == expected.build(Codec.NONE)


def test_a_state_that_is_set_back_before_the_batch_is_built_removes_the_last_record():
    builder, record = BatchBuilder(), Record(0, 5, b"k", b"v")
    add(builder, record)
    state = builder.state
    add(builder, record)
    builder.state = state
    assert len(decode_records(builder.build(Codec.NONE))) == 1


def test_a_record_that_does_not_fit_is_not_added_and_changes_nothing():
    builder, record = BatchBuilder(), Record(0, 5, b"k", b"v" * 100)
    size = add(builder, record)
    state = builder.state
    assert add(builder, record, size_max=2 * size - 1) == 0
    assert builder.state == state
    assert add(builder, record, size_max=2 * size) == size


def test_the_first_record_is_added_however_large_it_is():
    builder = BatchBuilder()
    assert add(builder, Record(0, 5, None, b"v" * 100), size_max=1) > 100
    assert builder.count == 1


def test_a_new_builder_is_empty_and_builds_no_batch():
    builder = BatchBuilder()
    assert (builder.state, builder.size, builder.count) == (EMPTY, 0, 0)
    with pytest.raises(AssertionError, match="a batch of no records"):
        builder.build(Codec.NONE)


def test_the_same_batch_is_built_again():
    builder = BatchBuilder()
    add(builder, Record(0, 5, b"k", b"v"))
    assert builder.build(Codec.NONE) == builder.build(Codec.NONE)
