"""Lookups by time, step by step, against a look at every record."""

import random

import pytest

from stablelog.batch.header import Codec, read_header
from stablelog.batch.markers import Marker, MarkerType, encode_marker
from stablelog.batch.records import Record, encode_batch
from stablelog.log.indexes.summary import NOTHING
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.search import times
from stablelog.log.search.source import FoundBatch
from stablelog.log.search.times import first_at_or_after, greatest_timestamp, run_lookup


class Segment:
    """A segment in memory, with a time index that has an entry for each greater timestamp."""

    def __init__(self, base_offset, batches):
        self.base_offset, self.passed = base_offset, (0, NOTHING)
        self.content = b"".join(batches)
        self.time_index = TimeIndex(base_offset)
        self.headers, at = [], 0
        for batch in batches:
            header = read_header(batch)
            self.headers.append((at, header))
            if header.record_count:
                self.time_index.append_if_later(header.max_timestamp, header.last_offset)
            at += header.size
        self.size = at
        self.end_offset = self.headers[-1][1].next_offset if batches else base_offset
        self.max_timestamp = max((one.max_timestamp for _, one in self.headers), default=NOTHING)
        self.walked = 0

    def find(self, offset):
        for at, header in self.headers:
            if header.last_offset >= offset:
                return FoundBatch(at, header.size, header.base_offset, header.last_offset)
        return None

    def walk(self, position):
        for at, header in self.headers:
            if at >= position:
                self.walked += 1
                yield at, header

    def batch_at(self, position, size):
        return self.content[position : position + size]


class Segments:
    def __init__(self, segments):
        self.segments = segments

    def readers_from(self, offset):
        return (one for one in self.segments if one.end_offset > offset)


def log_of(timestamps, per_batch=2, per_segment=3):
    """Segments of a log with these timestamps, one for each offset. None stands for a marker, which has the time 10**6."""
    segments, batches, base, offset = [], [], 0, 0
    while offset < len(timestamps):
        if timestamps[offset] is None:
            batch = marker(offset)
        else:
            some = []
            while (
                len(some) < per_batch
                and offset + len(some) < len(timestamps)
                and timestamps[offset + len(some)] is not None
            ):
                some.append(Record(0, timestamps[offset + len(some)], None, b"v"))
            batch = encode_batch(some, base_offset=offset)
        batches.append(batch)
        offset = read_header(batch).next_offset
        if len(batches) == per_segment or offset == len(timestamps):
            segments.append(Segment(base, batches))
            batches, base = [], offset
    return Segments(segments)


def marker(base_offset):
    return encode_marker(
        Marker(MarkerType.COMMIT, 0),
        base_offset=base_offset,
        leader_epoch=0,
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=10**6,
    )


def first(timestamps, time_ms, start, limit):
    """(offset, timestamp) of the first record of a time, by a look at each."""
    for offset in range(start, min(limit, len(timestamps))):
        if timestamps[offset] is not None and timestamps[offset] >= time_ms:
            return offset, timestamps[offset]
    return None


def drawn(seed):
    chance = random.Random(seed)
    return [None if chance.random() < 0.1 else chance.randrange(20) for _ in range(60)]


@pytest.mark.parametrize("step", [1, 3, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_record_of_a_time_is_that_of_a_look_at_each(seed, step, monkeypatch):
    monkeypatch.setattr(times, "STEP_COUNT_MAX", step)
    timestamps = drawn(seed)
    segments = log_of(timestamps)
    for time_ms in range(0, 22, 2):
        for start, limit in ((0, 60), (7, 60), (13, 40), (59, 60), (20, 20)):
            found = run_lookup(first_at_or_after(lambda: segments, time_ms, lambda at=start: at, limit))
            assert (found and found[:2]) == first(timestamps, time_ms, start, limit), (time_ms, start, limit)


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize("seed", range(3))
def test_the_greatest_timestamp_is_that_of_the_first_record_that_has_it(seed, step, monkeypatch):
    monkeypatch.setattr(times, "STEP_COUNT_MAX", step)
    timestamps = drawn(seed)
    segments = log_of(timestamps)
    for start in (0, 1, 17, 58):
        greatest = max((one for one in timestamps[start:] if one is not None), default=None)
        wanted = None if greatest is None else first(timestamps, greatest, start, 60)
        found = run_lookup(greatest_timestamp(lambda: segments, start, 60))
        assert (found and found[:2]) == wanted


def test_the_record_of_the_greatest_timestamp_must_be_one_that_the_reader_sees():
    segments = log_of([1, 2, 9, 9])
    assert run_lookup(greatest_timestamp(lambda: segments, 0, 2)) is None


def test_a_log_without_records_has_no_time():
    for timestamps in ([], [None, None]):
        segments = log_of(timestamps)
        assert run_lookup(greatest_timestamp(lambda found=segments: found, 0, 9)) is None
        assert run_lookup(first_at_or_after(lambda found=segments: found, 0, lambda: 0, 9)) is None


def test_headers_that_a_lookup_has_read_are_not_read_by_the_next_one():
    segments = log_of([5] * 40, per_segment=100)
    (segment,) = segments.segments
    segment.max_timestamp = 9  # as if the greatest timestamp of a marker
    for walked in (20, 20):
        segment.walked = 0
        assert run_lookup(first_at_or_after(lambda: segments, 7, lambda: 0, 40)) is None
        assert segment.walked <= walked
    assert segment.passed == (segment.size, 5)
    segment.walked = 0
    run_lookup(first_at_or_after(lambda: segments, 7, lambda: 0, 40))
    assert segment.walked == 0


def test_a_step_reads_a_bounded_number_of_headers(monkeypatch):
    monkeypatch.setattr(times, "STEP_COUNT_MAX", 5)
    segments = log_of([5] * 40, per_segment=100)
    segments.segments[0].max_timestamp = 9
    lookup = first_at_or_after(lambda: segments, 7, lambda: 0, 40)
    steps = sum(1 for _ in lookup)
    assert steps == 20 // 5 - 1, "the last step returns the result"


def test_a_search_goes_on_behind_records_that_were_deleted_between_two_steps(monkeypatch):
    monkeypatch.setattr(times, "STEP_COUNT_MAX", 1)
    segments, start = log_of([1, 1, 1, 1, 5, 5]), [0]
    for one in segments.segments:
        one.max_timestamp = 9
    lookup = first_at_or_after(lambda: segments, 5, lambda: start[0], 6)
    next(lookup)
    start[0] = 5
    with pytest.raises(StopIteration) as end:
        while True:
            next(lookup)
    assert end.value.value[:2] == (5, 5)


def test_a_large_batch_is_decoded_by_the_caller():
    records = [Record(0, 1, None, b"v" * 2000)] * 3000 + [Record(0, 7, None, b"v")]
    segments = Segments([Segment(0, [encode_batch(records, base_offset=0, codec=Codec.GZIP)])])
    lookup = first_at_or_after(lambda: segments, 7, lambda: 0, 9999)
    work = next(lookup)
    assert callable(work)
    with pytest.raises(StopIteration) as end:
        lookup.send(work())
    assert end.value.value[:2] == (3000, 7)
