"""Markers: Kafka's bytes, and what a commit marker also contains."""

from stablelog.batch.markers import Marker, MarkerType, encode_marker, read_marker
from stablelog.batch.records import decode_records

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
