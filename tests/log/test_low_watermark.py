"""Decision 0015: no rule that prunes producer state by a low watermark keeps what a partition promises."""

import struct

import pytest

from stablelog.batch.header import NO_SEQUENCE
from stablelog.batch.markers import KEY, VALUE, Marker, MarkerType, encode_marker, read_marker
from stablelog.batch.records import Record, decode_records, encode_batch
from tests.log.low_watermark import MUTANTS, NO_LOW_WATERMARK, shortest_failure

FAILURES = {
    "forget producers below the mark": "a record stands in the log twice",
    "forget transactional producers below the mark": "a record stands in the log twice",
    "abort what is open below the mark": "a live transaction is aborted",
    "refuse batches below the mark": "a batch that must be taken is refused",
}


@pytest.mark.extended
def test_without_it_every_history_keeps_the_promises():
    assert shortest_failure(NO_LOW_WATERMARK, 12) is None


@pytest.mark.extended
@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_that_uses_it_breaks_one(name):
    failure = shortest_failure(MUTANTS[name], 12)
    assert failure is not None
    assert failure[0] == FAILURES[name]


def marker_value(batch):
    (record,) = decode_records(batch)
    return record.value


def test_the_field_is_reserved():
    marker = Marker(MarkerType.COMMIT, 3, "pay", 7)
    batch = encode_marker(
        marker, base_offset=5, leader_epoch=0, producer_id=41, producer_epoch=2, timestamp_ms=1000
    )
    assert marker_value(batch).endswith(struct.pack(">qq", 7, -1))
    assert read_marker(batch) == marker


def test_what_earlier_releases_wrote_there_is_ignored():
    value = VALUE.pack(0, 3) + struct.pack(">h3sqq", 3, b"pay", 7, 41)
    batch = encode_batch(
        [Record(5, 1000, KEY.pack(0, MarkerType.COMMIT), value)],
        base_offset=5,
        producer_id=41,
        producer_epoch=2,
        base_sequence=NO_SEQUENCE,
        transactional=True,
        extra_attributes=0x20,
    )
    assert read_marker(batch) == Marker(MarkerType.COMMIT, 3, "pay", 7)
