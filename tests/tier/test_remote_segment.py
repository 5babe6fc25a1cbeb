"""A segment as the manifest describes it: its record is read as it was written, and contradictions are refused."""

from dataclasses import replace

import pytest

from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.tier.cut_points import cut_points
from stablelog.tier.index_object import CommitFiles, IndexKind, directory_crc, encode_indexes
from stablelog.tier.names import INDEXES
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.types import ObjectRange, RangeProof
from tests.tier.stored_segments import written
from tests.tier.test_manifest import segment
from tests.tier.tiered_log import PARTITION

COMMIT = CommitFiles(120, 5, 1000, 64, 11, 32, 12)


def test_an_object_with_the_same_indexes_and_another_producer_snapshot_is_refused():
    files = dict.fromkeys((IndexKind.OFFSETS, IndexKind.TIMES, IndexKind.TRANSACTIONS), b"")
    files[IndexKind.PRODUCERS] = b"mine"
    row = written(150).remote.manifest.segments[0]
    summary = Summary(row.base_offset, row.end_offset, log_size=row.size)
    segment = replace(row, summary=summary, indexes_crc=directory_crc(encode_indexes(files)))
    assert segment.indexes_in(encode_indexes(files), "x")[IndexKind.PRODUCERS] == b"mine"
    other = encode_indexes({**files, IndexKind.PRODUCERS: b"your"})
    with pytest.raises(DamageError, match=r"^the object x is not the object of indexes"):
        segment.indexes_in(other, "x")
    assert RemoteSegment.from_record(segment.to_record()) == segment


@pytest.mark.parametrize("field", ["indexes_crc", "header_crcs"])
def test_a_segment_without_crcs_in_the_manifest_is_refused(field):
    row = written(150).remote.manifest.segments[1]
    assert cut_points(row)
    without = replace(row, **{field: None if field == "indexes_crc" else b""})
    with pytest.raises(
        UnknownFormatError, match=f"the remote segment {row.segment_id} without CRCs of .*; no release"
    ):
        RemoteSegment.from_record(without.to_record())


@pytest.mark.parametrize(
    "written_segment",
    [segment(1), segment(1, least=20), segment(2, by_kafka=True), segment(1, commit=COMMIT)],
    ids=["plain", "with aborts", "of Kafka", "in commit order"],
)
def test_a_segment_is_read_as_it_was_written(written_segment):
    assert RemoteSegment.from_record(written_segment.to_record()) == written_segment


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start_offset": -1}, "has impossible offsets or an impossible size"),
        ({"end_offset": 99}, "has impossible offsets or an impossible size"),
        ({"size": -1}, "has impossible offsets or an impossible size"),
        (
            {"commit_index": b"xy"},
            "is damaged: the description of the commit index has 2 bytes instead of 40",
        ),
        ({"indexes_crc": b"xyz"}, "is damaged: the CRC of the indexes has 3 bytes instead of 4"),
    ],
)
def test_impossible_fields_of_a_record_are_refused_with_the_id_of_the_segment(changes, message):
    row = segment(1)
    with pytest.raises(DamageError, match=f"^the remote segment {row.segment_id} {message}"):
        RemoteSegment.from_record(replace(row.to_record(), **changes))


@pytest.mark.parametrize("changes", [{"base_offset": 0}, {"end_offset": 201}, {"log_size": 999}])
def test_a_summary_of_another_segment_is_refused_with_the_id_of_the_segment(changes):
    row = segment(1)
    other = replace(row, summary=replace(row.summary, **changes))
    with pytest.raises(
        DamageError, match=f"the summary of the remote segment {row.segment_id} is of another segment"
    ):
        RemoteSegment.from_record(other.to_record())


def test_the_summary_tells_whether_the_segment_has_aborts_and_where_they_began():
    without, with_abort = segment(1), segment(1, least=20)
    assert (without.may_have_aborts, without.least_aborted_offset) == (False, None)
    assert with_abort.may_have_aborts
    assert with_abort.least_aborted_offset == 20
    assert segment(1, stable=150).stable_offset == 150


def test_a_segment_without_summary_may_have_aborts_from_anywhere_unless_kafka_says_it_has_none():
    known = segment(2, by_kafka=True)
    unknown = replace(known, is_txn_index_empty=False)
    assert (known.may_have_aborts, known.least_aborted_offset) == (False, None)
    assert (unknown.may_have_aborts, unknown.least_aborted_offset) == (True, 0)
    assert unknown.stable_offset is None


def test_the_place_of_an_index_is_its_range_in_the_object_of_indexes():
    row = segment(1)
    row = replace(
        row,
        summary=replace(row.summary, index_size=16, timeindex_size=12, timeindex_crc=7),
        commit=COMMIT,
    )
    key = PARTITION.segment_key(row.base_offset, row.segment_id, INDEXES)
    assert row.index_place(PARTITION, IndexKind.TIMES) == ObjectRange(key, 16, 12, RangeProof(7))
    assert row.index_place(PARTITION, IndexKind.TRANSACTIONS) is None, "it is empty"
    assert row.index_place(PARTITION, IndexKind.COMMIT_EXTENTS) == ObjectRange(
        key, 28 + 64, 32, RangeProof(12)
    )


def test_without_a_summary_the_whole_object_of_indexes_must_be_read():
    row = segment(2, by_kafka=True)
    key = PARTITION.segment_key(row.base_offset, row.segment_id, INDEXES)
    assert row.index_place(PARTITION, IndexKind.TIMES) == ObjectRange(key, 0, 0)
