"""A walk through the records of a batch gives what decoding gives, and refuses what decoding refuses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.batch.header import HEADER, read_header
from stablelog.batch.records import Record, decode_records, encode_batch, read_headers
from stablelog.batch.walk import walk_fields
from stablelog.errors import DamageError

CONTENT = st.none() | st.binary(max_size=200)
RECORDS = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-(1 << 40), 1 << 50),
        CONTENT,
        CONTENT,
        st.lists(st.tuples(st.text(max_size=5), CONTENT), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=80,
)


def walked(batch):
    header = read_header(batch)
    data = bytes(batch[HEADER.size :])
    return [
        Record(
            header.base_offset + offset,
            header.base_timestamp + time,
            key,
            value,
            tuple(read_headers(data, at)[0]),
        )
        for time, offset, key, value, at in walk_fields(data, header.record_count)
    ]


@given(RECORDS)
def test_a_walk_gives_the_records(records):
    batch = encode_batch(records, base_offset=7)
    assert walked(batch) == decode_records(batch)


@given(RECORDS, st.data())
def test_changed_bytes_give_records_or_are_refused(records, data):
    batch = bytearray(encode_batch(records))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER.size, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    try:
        expected = decode_records(batch)
    except DamageError:
        return  # the walk may pass over what it does not read, such as the end of the headers
    assert walked(batch) == expected


@pytest.mark.parametrize("cut", [1, 5])
def test_a_batch_that_is_cut_off_is_refused(cut):
    body = encode_batch([Record(0, 1, b"k", b"value")] * 3)[HEADER.size : -cut]
    with pytest.raises(DamageError):
        list(walk_fields(bytes(body), 3))


def test_bytes_after_the_last_record_are_refused():
    body = encode_batch([Record(0, 1, b"k", b"value")] * 3)[HEADER.size :]
    with pytest.raises(DamageError, match="bytes follow the last record"):
        list(walk_fields(bytes(body), 2))
