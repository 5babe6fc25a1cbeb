"""Kafka's records of remote segments, held to the bytes that Kafka 4.2's own serializer writes."""

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stablelog.errors import DamageError, NotLoadedError, UnknownFormatError
from stablelog.tier.manifest import Manifest
from stablelog.tier.names import INDEXES, RemotePartition
from stablelog.tier.records import (
    DeletionState,
    PartitionDeleteRecord,
    SegmentId,
    SegmentLeaderEpoch,
    SegmentRecord,
    SegmentSnapshotRecord,
    SegmentState,
    SegmentUpdateRecord,
    TopicIdPartition,
    decode_record,
    encode_record,
    metadata_partition,
)
from stablelog.tier.remote_log import RemoteLog
from stablelog.tier.remote_segment import RemoteSegment

TOPIC_ID = uuid.UUID("01020304-0506-0708-1112-131415161718")
SEGMENT_ID = uuid.UUID("21222324-2526-2728-3132-333435363738")
PARTITION = TopicIdPartition(name="t", topic_id=TOPIC_ID, partition=3)
SEGMENT = SegmentId(topic_partition=PARTITION, segment_id=SEGMENT_ID)
NOW_MS = 1_700_000_000_000
HELD = {
    "start_offset": 100,
    "end_offset": 199,
    "broker_id": 1,
    "max_timestamp_ms": NOW_MS,
    "event_timestamp_ms": NOW_MS + 1,
    "leader_epochs": (
        SegmentLeaderEpoch(leader_epoch=5, offset=100),
        SegmentLeaderEpoch(leader_epoch=7, offset=150),
    ),
    "size": 1 << 20,
    "custom_metadata": None,
}
# Each was written by org.apache.kafka.server.log.remote.metadata.storage.serialization of Kafka 4.2.0.
VECTORS = [
    (
        SegmentRecord(segment=SEGMENT, state=SegmentState.COPY_STARTED, is_txn_index_empty=True, **HELD),
        (
            "010000027401020304050607081112131415161718000000030021222324252627283132333435363738000000000000"
            "00006400000000000000c7000000010000018bcfe568000000018bcfe568010300000005000000000000006400000000"
            "0700000000000000960000100000000001000101"
        ),
    ),
    (
        SegmentRecord(segment=SEGMENT, state=SegmentState.COPY_STARTED, **HELD),
        (
            "010000027401020304050607081112131415161718000000030021222324252627283132333435363738000000000000"
            "00006400000000000000c7000000010000018bcfe568000000018bcfe568010300000005000000000000006400000000"
            "0700000000000000960000100000000000"
        ),
    ),
    (
        SegmentUpdateRecord(
            segment=SEGMENT,
            broker_id=1,
            event_timestamp_ms=NOW_MS + 2,
            custom_metadata=b"abc",
            state=SegmentState.COPY_FINISHED,
        ),
        (
            "010100027401020304050607081112131415161718000000030021222324252627283132333435363738000000000100"
            "00018bcfe56802046162630100"
        ),
    ),
    (
        PartitionDeleteRecord(
            topic_partition=PARTITION, broker_id=1, event_timestamp_ms=NOW_MS + 3, state=DeletionState.MARKED
        ),
        ("0102000274010203040506070811121314151617180000000300000000010000018bcfe568030000"),
    ),
    (
        SegmentSnapshotRecord(
            segment=SEGMENT_ID, state=SegmentState.COPY_FINISHED, is_txn_index_empty=True, **HELD
        ),
        (
            "01030021222324252627283132333435363738000000000000006400000000000000c7000000010000018bcfe5680000"
            "00018bcfe5680103000000050000000000000064000000000700000000000000960000100000000101000101"
        ),
    ),
]
# The serializer of Kafka 3.9.1, which does not have the field TxnIndexEmpty yet, wrote these records. To write them again:
#     PYTHONPATH=src:. python -m tests.java.tier_records
WITHOUT_THE_FIELD = {
    "segment": (
        "010000027401020304050607081112131415161718000000030021222324252627283132333435363738000000000000"
        "00006400000000000000c7000000010000018bcfe568000000018bcfe568010300000005000000000000006400000000"
        "0700000000000000960000100000000000"
    ),
    "update": (
        "010100027401020304050607081112131415161718000000030021222324252627283132333435363738000000000100"
        "00018bcfe56802000100"
    ),
    "partition delete": "0102000274010203040506070811121314151617180000000300000000010000018bcfe568030000",
    "snapshot": (
        "01030021222324252627283132333435363738000000000000006400000000000000c7000000010000018bcfe5680000"
        "00018bcfe5680203000000050000000000000064000000000700000000000000960000100000000100"
    ),
}


@pytest.mark.parametrize(("record", "content"), VECTORS, ids=lambda one: type(one).__name__)
def test_a_record_has_kafkas_bytes(record, content):
    assert encode_record(record).hex() == content
    assert decode_record(bytes.fromhex(content)) == record


def test_the_metadata_partition_is_kafkas():
    assert metadata_partition(TOPIC_ID, 3) == 34


def test_the_records_of_a_kafka_without_the_field_are_read():
    read = {kind: decode_record(bytes.fromhex(content)) for kind, content in WITHOUT_THE_FIELD.items()}
    assert read["segment"] == SegmentRecord(segment=SEGMENT, state=SegmentState.COPY_STARTED, **HELD)
    assert read["update"] == SegmentUpdateRecord(
        segment=SEGMENT,
        broker_id=1,
        event_timestamp_ms=NOW_MS + 2,
        custom_metadata=None,
        state=SegmentState.COPY_FINISHED,
    )
    assert read["partition delete"] == VECTORS[3][0]
    assert read["snapshot"] == SegmentSnapshotRecord(
        segment=SEGMENT_ID,
        state=SegmentState.COPY_FINISHED,
        **{**HELD, "event_timestamp_ms": NOW_MS + 2},
    )
    for kind in ("segment", "snapshot"):
        assert not read[kind].is_txn_index_empty


def test_a_segment_of_a_kafka_without_the_field_may_have_aborts_and_a_missing_index_object_means_none():
    segment = RemoteSegment.from_record(decode_record(bytes.fromhex(WITHOUT_THE_FIELD["snapshot"])))
    assert segment.may_have_aborts
    partition = RemotePartition("t", TOPIC_ID, 3)
    manifest = Manifest("cluster", 100, (segment,))
    loaded = {}
    remote = RemoteLog(partition, manifest, loaded, lambda _start: None)
    with pytest.raises(NotLoadedError) as missing:
        remote.aborted_in(100, 200)
    (wanted,) = missing.value.ranges
    assert wanted.key == partition.segment_key(100, SEGMENT_ID, INDEXES)
    loaded[wanted] = b""  # what the cache has of an object that does not exist
    assert remote.aborted_in(100, 200) == ([], False)


def test_a_summary_and_cut_points_travel_in_the_record_and_kafkas_limit_holds():
    from stablelog.log.indexes.summary import SUMMARY, Summary

    summary = Summary(100, 200, log_size=1 << 20, stable_offset=200).encode()
    kafkas_default_limit = 128
    assert len(summary) == SUMMARY.size <= kafkas_default_limit
    record = VECTORS[4][0]
    held = {**HELD, "custom_metadata": summary, "cut_points": bytes(range(128))}
    record = SegmentSnapshotRecord(segment=SEGMENT_ID, state=SegmentState.COPY_FINISHED, **held)
    decoded = decode_record(encode_record(record))
    assert decoded == record
    assert Summary.decode(decoded.custom_metadata).end_offset == 200


def test_a_tag_that_is_not_known_is_skipped():
    """Kafka may add fields; it skips ours."""
    content = bytes.fromhex(VECTORS[1][1])
    assert content[-1] == 0
    with_tag = content[:-1] + bytes.fromhex("01 05 02 abcd")
    assert decode_record(with_tag) == VECTORS[1][0]


@pytest.mark.parametrize(("record", "content"), VECTORS, ids=lambda one: type(one).__name__)
def test_a_record_that_is_not_whole_is_refused(record, content):
    whole = bytes.fromhex(content)
    for size in range(len(whole)):
        with pytest.raises(DamageError):
            decode_record(whole[:size])
    with pytest.raises(DamageError, match="1 bytes too many"):
        decode_record(whole + b"\0")


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content):
    with contextlib.suppress(DamageError, UnknownFormatError):
        decode_record(b"\x01\x00\x00" + content)


@pytest.mark.parametrize("at", [0, 2])
def test_a_record_of_a_later_release_is_refused(at):
    content = bytearray.fromhex(VECTORS[0][1])
    content[at] += 1
    with pytest.raises(UnknownFormatError):
        decode_record(bytes(content))
