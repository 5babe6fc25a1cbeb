"""The bytes of remote segments are proven by position and identity: an object that is not the one which the manifest
means is refused by its name, although its batches are whole and its size is right.
"""

import re
from dataclasses import replace

import pytest

from stablelog.batch.header import headers_in
from stablelog.errors import DamageError, NewerFormatError
from stablelog.log.indexes.summary import Summary
from stablelog.log.partition import Isolation
from stablelog.tier.cut_points import COUNT_MAX, CUT_POINT, chunk_at, cut_points, encode_cut_points
from stablelog.tier.index_object import IndexKind, directory_crc, encode_indexes
from stablelog.tier.names import INDEXES, LOG
from stablelog.tier.remote_segment import RemoteSegment
from tests.log.timeline import NOW_MS
from tests.tier.tiered_log import PARTITION, TieredLog

LOCAL_NOTHING = {"local_retention_ms": 0, "local_retention_bytes": 0}
SEGMENT_COUNT, BATCH_COUNT = 3, 6


def written(chunk_size, *, aborting=(), now_ms=NOW_MS, **config):
    """A log of sealed segments of equal size, all of them only in the store."""
    tiered = TieredLog(chunk_size=chunk_size, index_interval_bytes=0, **LOCAL_NOTHING, **config)
    tiered.now_ms = now_ms
    for number in range(SEGMENT_COUNT):
        for _ in range(BATCH_COUNT - 1):
            tiered.one("P1")
        tiered.one("P1a" if number in aborting else "P1c")
        tiered.partition.roll(now_ms)
        tiered.sync()
    tiered.copy()
    tiered.now_ms += 1
    assert tiered.drop_local() == SEGMENT_COUNT
    return tiered


def keys(tiered, kind=LOG):
    rows = tiered.remote.manifest.segments
    return [PARTITION.segment_key(one.base_offset, one.segment_id, kind) for one in rows]


def of_another_segment(tiered, _content):
    return tiered.objects[keys(tiered)[2]]


def of_another_topic(tiered, _content):
    other = written(tiered.chunk_size, now_ms=NOW_MS + 7)
    return other.objects[keys(other)[1]]


def shifted(_tiered, content):
    """The base offset of one batch is greater by one. The CRC of a batch does not cover this field."""
    at = [at for at, _ in headers_in(content)][-2]
    base_offset = int.from_bytes(content[at : at + 8]) + 1
    return content[:at] + base_offset.to_bytes(8) + content[at + 8 :]


def truncated(_tiered, content):
    return content[:-1]


def with_batches_exchanged(_tiered, content):
    (first, _), (second, _), (third, _) = list(headers_in(content))[:3]
    return content[:first] + content[second:third] + content[first:second] + content[third:]


FAULTS = [of_another_segment, of_another_topic, shifted, truncated, with_batches_exchanged]


@pytest.mark.parametrize("chunk_size", [61, 150, 4 << 20])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("isolation", [Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED])
def test_a_log_object_that_is_not_the_one_of_the_manifest_is_refused(chunk_size, fault, isolation):
    tiered = written(chunk_size)
    key = keys(tiered)[1]
    good = tiered.objects[key]
    tiered.objects[key] = fault(tiered, good)
    assert fault is truncated or len(tiered.objects[key]) == len(good)
    found = [outcome(tiered, offset, isolation) for offset in range(SEGMENT_COUNT * BATCH_COUNT)]
    refused = {offset for offset, one in enumerate(found) if isinstance(one, str)}
    assert refused
    assert refused <= set(range(BATCH_COUNT, 2 * BATCH_COUNT))
    for offset, one in enumerate(found):
        segment = tiered.remote.manifest.segments[offset // BATCH_COUNT]
        if offset in refused:
            assert re.search(f"{key}: the .* do not match the manifest", one)
        else:  # What is served is what was written.
            assert one in (good if offset // BATCH_COUNT == 1 else tiered.objects[segment.log_key(PARTITION)])


def outcome(tiered, offset, isolation):
    """The bytes that a reader gets, or the message of the damage that it finds."""
    try:
        return b"".join(tiered.read(offset, 1, isolation).buffers)
    except DamageError as error:
        return str(error)


def test_a_lookup_by_time_refuses_the_object_of_another_topic():
    tiered = written(150)
    key = keys(tiered)[0]
    tiered.objects[key] = of_another_topic(tiered, b"")
    with pytest.raises(DamageError, match=rf"{key}: the .* do not match the manifest"):
        tiered.look_up_time(NOW_MS)


def test_a_reader_in_commit_order_refuses_the_object_of_another_segment():
    tiered = written(150)
    key = keys(tiered)[1]
    tiered.objects[key] = of_another_segment(tiered, b"")
    row = tiered.remote.manifest.segments[1]
    with pytest.raises(DamageError, match=rf"{key}: the .* do not match the manifest"):
        tiered.loading(lambda: tiered.remote.view.content(row.base_offset, [0], [row.size], 1 << 20))


@pytest.mark.parametrize("other", [0, 2])
def test_an_object_of_indexes_of_another_segment_is_refused_by_its_key(other):
    tiered = written(61, aborting=(0, 1, 2))
    objects = keys(tiered, INDEXES)
    tiered.objects[objects[1]] = tiered.objects[objects[other]]
    with pytest.raises(DamageError, match=rf"{objects[1]}: the .* do not match the manifest"):
        tiered.read(BATCH_COUNT)
    tiered.read(BATCH_COUNT, isolation=Isolation.READ_UNCOMMITTED)


def test_an_object_with_the_same_indexes_and_another_producer_snapshot_is_refused():
    files = dict.fromkeys((IndexKind.OFFSETS, IndexKind.TIMES, IndexKind.TRANSACTIONS), b"")
    files[IndexKind.PRODUCERS] = b"mine"
    row = written(150).remote.manifest.segments[0]
    summary = Summary(row.base_offset, row.end_offset, log_size=row.size)
    segment = replace(row, summary=summary, indexes_crc=directory_crc(files))
    assert segment.indexes_in(encode_indexes(files), "x")[IndexKind.PRODUCERS] == b"mine"
    other = encode_indexes({**files, IndexKind.PRODUCERS: b"your"})
    with pytest.raises(DamageError, match=r"^x: the object of indexes is not the one"):
        segment.indexes_in(other, "x")
    assert RemoteSegment.of_record(segment.record()) == segment


@pytest.mark.parametrize("field", ["indexes_crc", "header_crcs"])
def test_a_segment_without_crcs_in_the_manifest_is_refused(field):
    row = written(150).remote.manifest.segments[1]
    assert cut_points(row)
    without = replace(row, **{field: None if field == "indexes_crc" else b""})
    with pytest.raises(
        NewerFormatError, match=f"the remote segment {row.segment_id} without CRCs of .*; no release"
    ):
        RemoteSegment.of_record(without.record())


@pytest.mark.parametrize("chunk_size", [61, 80, 150, 400, 4 << 20])
def test_the_chunks_of_a_log_file_are_whole_batches_and_follow_each_other(chunk_size):
    tiered = written(chunk_size)
    row = tiered.remote.manifest.segments[1]
    content = tiered.objects[row.log_key(PARTITION)]
    starts = {at for at, _ in headers_in(content)} | {row.size}
    position, chunks = 0, []
    while position < row.size:
        begin, end, proof = chunk_at(row, position, 10)
        assert (begin, proof is None) == (position, False)
        assert {chunk_at(row, at, 10) for at in (begin, (begin + end) // 2, end - 1)} == {(begin, end, proof)}
        assert {begin, end} <= starts
        chunks.append(end - begin)
        position = end
    assert [one.position for one in cut_points(row)] == [sum(chunks[:n]) for n in range(1, len(chunks))]
    assert all(size >= min(chunk_size, row.size) for size in chunks[:-1])
    largest = max(header.size for _, header in headers_in(content))
    assert all(size < chunk_size + largest for size in chunks)


def test_a_segment_has_a_bounded_number_of_cut_points():
    tiered = TieredLog(chunk_size=61)
    for _ in range(3 * COUNT_MAX):
        tiered.one("-")
    tiered.partition.roll(NOW_MS)
    tiered.sync()
    [row] = tiered.copy()
    assert COUNT_MAX // 2 < len(cut_points(row)) <= COUNT_MAX


def test_impossible_cut_points_are_refused():
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    count = len(cut_points(row))
    for point, position in ((-1, 0), (row.size + 1, 0), (row.size + 1, row.size - 1)):
        with pytest.raises(DamageError, match="cut points"):
            chunk_at(replace(row, cut_points=CUT_POINT.pack(1, point) * count), position, 100)


def test_a_segment_whose_headers_are_unknown_is_read_in_chunks_of_one_size():
    """Apache Kafka writes no summary."""
    row = replace(written(150).remote.manifest.segments[1], summary=None)
    assert chunk_at(row, 130, 100) == (100, 200, None)
    assert chunk_at(row, row.size - 1, row.size - 1) == (row.size - 1, row.size, None)


@pytest.mark.parametrize("fault", [one for one in FAULTS if one is not truncated])
def test_a_log_file_that_is_not_the_one_of_its_summary_is_not_copied(fault):
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    content = fault(tiered, tiered.objects[row.log_key(PARTITION)])
    with pytest.raises(DamageError, match="not those that its summary describes"):
        encode_cut_points(row.summary, lambda at, size: content[at : at + size], 150)
