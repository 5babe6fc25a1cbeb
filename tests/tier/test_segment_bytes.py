"""The loaded bytes of remote segments: proven by position and identity, found by offset, and asked for if they are not
loaded. An object that is not the one which the manifest means is refused by its name, although its batches are whole and
its size is right.
"""

import re

import pytest

from stablelog.batch.header import headers_in
from stablelog.errors import DamageError, NotLoadedError
from stablelog.log.partition import Isolation
from stablelog.tier.index_object import IndexKind
from stablelog.tier.names import INDEXES
from stablelog.tier.segment_bytes import LoadedSegment, SegmentBytes, check_proof
from stablelog.types import ObjectRange, RangeProof
from tests.log.timeline import NOW_MS
from tests.tier.stored_segments import (
    BATCH_COUNT,
    FAULTS,
    SEGMENT_COUNT,
    keys,
    of_another_segment,
    of_another_topic,
    truncated,
    written,
)
from tests.tier.tiered_log import PARTITION


def missing_of(content, row, *kinds):
    """The ranges of indexes that must be loaded first."""
    try:
        content.require_indexes([row], *kinds)
    except NotLoadedError as error:
        return list(error.ranges)
    return []


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
            assert re.search(f"{key} is damaged: the .* do not match the CRC in the manifest", one)
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
    with pytest.raises(DamageError, match=rf"{key} is damaged: the .* do not match the CRC in the manifest"):
        tiered.look_up_time(NOW_MS)


def test_a_reader_in_commit_order_refuses_the_object_of_another_segment():
    tiered = written(150)
    key = keys(tiered)[1]
    tiered.objects[key] = of_another_segment(tiered, b"")
    row = tiered.remote.manifest.segments[1]
    with pytest.raises(DamageError, match=rf"{key} is damaged: the .* do not match the CRC in the manifest"):
        tiered.loading(lambda: tiered.remote.view.copy_ranges(row.base_offset, [0], [row.size], 1 << 20))


@pytest.mark.parametrize("other", [0, 2])
def test_an_object_of_indexes_of_another_segment_is_refused_by_its_key(other):
    tiered = written(61, aborting=(0, 1, 2))
    objects = keys(tiered, INDEXES)
    tiered.objects[objects[1]] = tiered.objects[objects[other]]
    with pytest.raises(
        DamageError, match=rf"{objects[1]} is damaged: the .* do not match the CRC in the manifest"
    ):
        tiered.read(BATCH_COUNT)
    tiered.read(BATCH_COUNT, isolation=Isolation.READ_UNCOMMITTED)


class Cache:
    """Ranges of objects in memory, and what happened to them.

    Attributes:
        consumed_: the ranges that a reader does not need again.
        dropped: the ranges whose bytes were damaged.
    """

    def __init__(self):
        self.ranges, self.consumed_, self.dropped = {}, [], []

    def get(self, wanted):
        return self.ranges.get(wanted)

    def has(self, wanted):
        return wanted in self.ranges

    def mark_consumed(self, wanted):
        self.consumed_.append(wanted)

    def drop(self, wanted):
        self.dropped.append(wanted)


@pytest.fixture(scope="module")
def segment():
    """A remote segment of six batches in three chunks, and its log file."""
    tiered = written(150)
    row = tiered.remote.manifest.segments[1]
    return row, tiered.objects[row.log_key(PARTITION)], tiered.objects[keys(tiered, INDEXES)[1]]


@pytest.fixture
def cache():
    return Cache()


@pytest.fixture
def content(cache):
    return SegmentBytes(PARTITION, cache, 100, "s3://bucket")


def fill(cache, content, segment, chunks=slice(None)):
    """Load some chunks of the log file of a segment."""
    row, log, _ = segment
    for chunk in list(content.chunks(row, 0, row.size))[chunks]:
        cache.ranges[chunk] = log[chunk.start : chunk.start + chunk.size]


def test_the_chunks_of_a_range_are_those_that_have_some_of_its_bytes(content, segment):
    row, log, _ = segment
    every = list(content.chunks(row, 0, row.size))
    assert [one.start for one in every] == [0, *(one.start + one.size for one in every[:-1])]
    assert sum(one.size for one in every) == len(log)
    second = every[1]
    assert list(content.chunks(row, second.start, second.start + second.size)) == [second]
    assert list(content.chunks(row, second.start - 1, second.start + 1)) == every[:2]
    assert list(content.chunks(row, second.start, second.start)) == []


def test_bytes_over_several_chunks_are_joined_from_their_views(cache, content, segment):
    row, log, _ = segment
    fill(cache, content, segment)
    for begin, end in ((0, row.size), (10, 20), (100, row.size - 5)):
        assert b"".join(content.loaded_views(row, begin, end - begin)) == log[begin:end]


def test_of_bytes_that_are_not_all_loaded_the_missing_chunks_are_asked_for(cache, content, segment):
    row, _, _ = segment
    every = list(content.chunks(row, 0, row.size))
    fill(cache, content, segment, slice(1, 2))
    with pytest.raises(NotLoadedError) as missing:
        content.loaded_views(row, 0, row.size)
    assert missing.value.ranges == (every[0], *every[2:])
    assert missing.value.size == row.size, "all bytes of the read must be in memory at once"


def test_only_chunks_that_a_read_has_passed_count_as_consumed(cache, content, segment):
    row, _, _ = segment
    every = list(content.chunks(row, 0, row.size))
    content.mark_consumed(row, 10, every[1].start + 5)
    assert cache.consumed_ == every[:1]
    content.mark_consumed(row, 10, every[1].start + every[1].size)
    assert cache.consumed_ == [every[0], *every[:2]]


def test_the_chunks_of_damaged_bytes_are_dropped(cache, content, segment):
    row, _, _ = segment
    every = list(content.chunks(row, 0, row.size))
    content.drop_chunks(row, every[1].start - 1, 2)
    assert cache.dropped == every[:2]


def test_an_index_is_asked_for_once_and_then_read(cache, content, segment):
    row, _, indexes = segment
    (wanted,) = missing_of(content, row, IndexKind.OFFSETS)
    with pytest.raises(NotLoadedError) as missing:
        content.index_bytes(row, IndexKind.OFFSETS)
    assert missing.value.ranges == (wanted,)
    cache.ranges[wanted] = indexes[wanted.start : wanted.start + wanted.size]
    assert missing_of(content, row, IndexKind.OFFSETS) == []
    assert content.index_bytes(row, IndexKind.OFFSETS) == indexes[: row.summary.index_size]


def test_an_empty_index_needs_no_request(content, segment):
    row, _, _ = segment
    assert missing_of(content, row, IndexKind.TRANSACTIONS) == []
    assert content.index_bytes(row, IndexKind.TRANSACTIONS) == b""


def test_the_place_of_a_log_file_is_its_url(content, segment):
    row, _, _ = segment
    assert content.log_place(row) == f"s3://bucket/{row.log_key(PARTITION)}"


@pytest.mark.parametrize("chunks", [slice(None), slice(0, 1)], ids=["all loaded", "first chunk loaded"])
def test_the_crc_of_a_batch_is_checked_in_one_chunk_and_over_two(cache, content, segment, chunks):
    row, log, _ = segment
    fill(cache, content, segment, chunks)
    batches = [
        (at, header.size)
        for at, header in headers_in(log)
        if at + header.size <= sum(map(len, cache.ranges.values()))
    ]
    assert all(content.crc_holds(row, at, size) for at, size in batches)
    at, size = batches[0]
    assert not content.crc_holds(row, at, size - 1)


@pytest.fixture
def loaded(cache, content, segment):
    fill(cache, content, segment)
    return LoadedSegment(content, segment[0])


def test_a_loaded_segment_finds_the_batch_of_each_offset(cache, content, loaded, segment):
    row, log, indexes = segment
    (wanted,) = missing_of(content, row, IndexKind.OFFSETS)
    cache.ranges[wanted] = indexes[wanted.start : wanted.start + wanted.size]
    for at, header in headers_in(log):
        found = loaded.find(header.base_offset)
        assert (found.position, found.size, found.base_offset) == (at, header.size, header.base_offset)
        assert loaded.batch_at(at, header.size) == log[at : at + header.size]
    assert loaded.find(row.end_offset) is None
    assert [at for at, _ in loaded.walk(0)] == [at for at, _ in headers_in(log)]


def test_the_first_batch_of_a_segment_and_one_after_a_known_position_need_no_index(loaded, segment):
    row, log, _ = segment
    second = [at for at, _ in headers_in(log)][1]
    assert loaded.find(row.base_offset).position == 0
    assert loaded.find(row.base_offset + 1, known=second).position == second
    with pytest.raises(NotLoadedError):
        loaded.find(row.base_offset + 1)


def test_a_lookup_by_time_asks_for_both_indexes_at_once(content, loaded, segment):
    row, _, _ = segment
    with pytest.raises(NotLoadedError) as error:
        _ = loaded.time_index
    assert list(error.value.ranges) == missing_of(content, row, IndexKind.TIMES, IndexKind.OFFSETS)


def test_a_batch_with_offsets_of_another_segment_is_refused_and_its_chunk_loaded_again(
    cache, loaded, segment
):
    row, log, _ = segment
    first = next(iter(cache.ranges))
    cache.ranges[first] = (row.base_offset - 6).to_bytes(8) + log[8 : first.size]
    with pytest.raises(
        DamageError, match=rf"^s3://bucket/{row.log_key(PARTITION)} has no batch of the segment at byte 0$"
    ):
        next(loaded.walk(0))
    assert cache.dropped == [first]


@pytest.fixture(scope="module")
def proven(segment):
    """The first chunk of a log file, and its bytes."""
    row, log, _ = segment
    chunk = SegmentBytes(PARTITION, Cache(), 100, "").chunk_at(row, 0)
    return chunk, log[: chunk.size]


def test_the_right_bytes_pass_the_proof(proven):
    chunk, good = proven
    check_proof(good, chunk, "")
    check_proof(memoryview(good), chunk, "")


def flipped(content, at):
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda good: flipped(good, 16), "there is no batch at byte 0"),
        (lambda good: flipped(good, 70), None),
        (lambda good: flipped(good, 30), "the CRC of the batch at byte 0 does not match its bytes"),
        (lambda good: good[:-1], "the CRC of the batch at byte .* does not match its bytes"),
        (
            lambda good: good[second(good) :] + good[: second(good)],
            "the offsets of the batch at byte .* do not follow",
        ),
        (
            lambda good: good[: second(good)],
            "the batches are whole, and the headers of some batches are those of others",
        ),
        (lambda good: b"", "the batches are whole"),
    ],
    ids=["no batch", "body", "header", "torn", "exchanged", "one missing", "empty"],
)
def test_other_bytes_are_refused_with_what_is_wrong_with_them(proven, change, what):
    chunk, good = proven
    if what is None:  # A damaged body is found when its batch is read: the proof reads only headers.
        check_proof(change(good), chunk, "u")
        return
    wanted = f"^u/{chunk.key} is damaged: the {chunk.size} bytes at byte 0 do not match the CRC in the manifest: {what}.*Restore the object$"
    with pytest.raises(DamageError, match=wanted):
        check_proof(change(good), chunk, "u")


def second(content):
    """The position of the second batch."""
    return [at for at, _ in headers_in(content)][1]


def test_an_index_is_proven_by_the_crc_of_its_bytes():
    wanted = ObjectRange("key", 7, 3, RangeProof(0x364B3FB7))
    check_proof(b"abc", wanted, "u")
    with pytest.raises(
        DamageError,
        match=r"^u/key is damaged: the 3 bytes at byte 7 do not match the CRC in the manifest\. Restore",
    ):
        check_proof(b"abd", wanted, "u")


def test_bytes_that_no_manifest_describes_need_no_proof():
    check_proof(b"anything", ObjectRange("key", 0, 8), "")
