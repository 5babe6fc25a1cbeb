"""Markers: Kafka's bytes, and what a commit marker also contains."""

import pytest

from stablelog.batch.header import NO_SEQUENCE
from stablelog.batch.markers import KEY, VALUE, Marker, MarkerType, encode_marker, read_marker
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError

TIME_MS = 1_700_000_000_000
ABORT = (
    "00000000000000070000004200000003028dc466a70030000000000000018bcfe568000000018bcfe5680000000000000000050002"
    "ffffffff000000012000000008000000000c00000000000900"
)


def test_an_abort_marker_is_kafkas_to_the_byte():
    marker = Marker(MarkerType.ABORT, 9)
    batch = encode_marker(
        marker, base_offset=7, leader_epoch=3, producer_id=5, producer_epoch=2, timestamp_ms=TIME_MS
    )
    assert batch.hex() == ABORT
    assert read_marker(batch) == marker


def test_a_commit_marker_also_says_group_and_sequence_and_kafka_reads_its_part():
    from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord

    marker = Marker(MarkerType.COMMIT, 9, "payments", 42)
    batch = encode_marker(
        marker, base_offset=7, leader_epoch=3, producer_id=5, producer_epoch=2, timestamp_ms=TIME_MS
    )
    assert read_marker(batch) == marker
    record = decode_records(batch)[0]
    assert ControlRecord.parse(record.key) == COMMIT_MARKER != ABORT_MARKER


def control_batch(*records):
    return encode_batch(
        list(records),
        base_offset=5,
        producer_id=41,
        producer_epoch=2,
        base_sequence=NO_SEQUENCE,
        transactional=True,
        extra_attributes=0x20,
    )


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (None, VALUE.pack(0, 3), "no key, or a key that is too short"),
        (b"\0\0", VALUE.pack(0, 3), "no key, or a key that is too short"),
        (KEY.pack(0, MarkerType.ABORT), None, "too short for its coordinator epoch"),
        (KEY.pack(0, MarkerType.ABORT), VALUE.pack(0, 3)[:-1], "too short for its coordinator epoch"),
    ],
)
def test_a_marker_without_what_every_marker_has_is_damage(key, value, why):
    with pytest.raises(DamageError, match=why):
        read_marker(control_batch(Record(5, 1000, key, value)))


def test_a_control_batch_of_another_kind_is_no_marker():
    assert read_marker(control_batch(Record(5, 1000, KEY.pack(0, 7), b"of a later release"))) is None


@pytest.mark.parametrize("rest", [b"\0", b"\xff\xff", b"\0\3pay", b"\0\3pay" + bytes(15)])
def test_what_a_later_release_adds_to_a_marker_is_ignored(rest):
    value = VALUE.pack(0, 3) + rest
    found = read_marker(control_batch(Record(5, 1000, KEY.pack(0, MarkerType.COMMIT), value)))
    assert found == Marker(MarkerType.COMMIT, 3)
