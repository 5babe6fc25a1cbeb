"""Reads batches by offset, with the aborted transactions in them, and looks up records by time.

A read returns whole batches as slices of the mapped file: it decodes and copies nothing. It lists the aborted
transactions of exactly these batches. More entries would make clients drop committed records, because a client removes
one transaction from the list for each abort marker that it reads.

A lookup by time is divided into steps, because it may read the headers of many batches. Between two steps the event
loop serves other requests, which may change the log in any way that keeps its offsets.

Source: KIP-98.
"""

from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from stablelog.batch.header import BatchHeader, read_header
from stablelog.batch.records import find_by_time, is_decoded_quickly, look_into
from stablelog.log.indexes.summary import NOTHING
from stablelog.log.model import Slice
from stablelog.log.segments.segment import Segment
from stablelog.log.segments.segments import Segments

TimestampedOffset = tuple[int, int, int]  # offset, timestamp and leader epoch of a record
Work = Callable[[], Any]
# A lookup in steps. It yields after each step, so that the event loop can serve other requests. If it yields a
# function, the caller runs this function, perhaps in a thread, and sends the result back.
Lookup = Generator[Work | None, Any, TimestampedOffset | None]
# A read ends after this number of abort markers, because a list of more aborted transactions would hold the event loop
# for too long.
ABORTED_COUNT_MAX = 2000
STEP_COUNT_MAX = 1000  # how many batch headers one step of a lookup reads, which takes some milliseconds


class Batch(NamedTuple):
    """A batch that a lookup must decode, because the batch may contain the record that is searched for."""

    header: BatchHeader
    data: bytes


def read(
    segments: Segments, start: int, limit: int, size_max: int, *, committed: bool, at_least_one: bool
) -> Slice:
    """Read whole batches from `start`: at most `size_max` bytes, but one batch of any size if `at_least_one`.

    A read that lists aborted transactions ends after ABORTED_COUNT_MAX abort markers. It also lists the transactions
    that are open at the end of the read and are aborted by a later marker.

    Args:
        segments: the segments of the log. They contain `start` or end at it.
        start: the offset to read from. The first batch contains this offset, or is the next batch after it.
        limit: no record at or past this offset is returned.
        size_max: the greatest size of the result in bytes.
        committed: whether to list the aborted transactions. If so, no transaction before `limit` may be open.
        at_least_one: whether a first batch of more than `size_max` bytes is returned.

    Raises:
        DamageError: an index that the read uses is damaged.
    """
    empty = Slice([], start, start, () if committed else None)
    if start >= limit:
        return empty
    place = segments.place_of(start)
    found = segments[place].find(start)
    while found is None:
        place += 1  # compaction has removed all batches from here to the segment's end
        if place == len(segments):
            return empty
        found = segments[place].find(start)
    segment = segments[place]
    if found.base_offset >= limit or (found.size > size_max and not at_least_one):
        return empty
    end_position, end_offset = segment.whole_batches(found, max(size_max, found.size))
    if committed and segment.least_aborted_offset is not None:
        begin = max(start, found.base_offset)
        limit = min(limit, segment.txn_index.end_of_markers(begin, ABORTED_COUNT_MAX) or limit)
    if end_offset > limit:
        beyond = segment.find(limit)
        assert beyond is None or beyond.base_offset >= limit, "a limit lies between batches"
        # If there is no batch beyond the limit, compaction has removed all batches from there to the segment's end.
        end_position, end_offset = segment.size if beyond is None else beyond.position, limit
    if segment.damaged_batches:
        segment.check_undamaged(found.position, found.position + found.size)
        damaged = segment.damaged_behind(found.position)
        if damaged is not None and damaged.position < end_position:
            end_position, end_offset = damaged.position, damaged.base_offset
    data = segment.log.view(found.position, end_position - found.position)
    if not committed:
        return Slice([data], start, end_offset, None)
    aborted = segments.aborted(place, max(start, found.base_offset), end_offset)
    return Slice([data], start, end_offset, tuple(aborted))


def first_at_or_after(
    segments: Callable[[], Segments], timestamp_ms: int, start_offset: int, limit: int
) -> Lookup:
    """Find the first record in [start_offset, limit) with this timestamp or a later one. Markers do not count.

    Markers have the broker's time, and records have their producers' times. If producers write records with old
    timestamps, the lookup must read the headers of all batches, because the time index then leads to markers only.

    Args:
        segments: returns the current segments of the log. The lookup calls it again after each step.
        timestamp_ms: the least timestamp of the record.
        start_offset: the first offset of the search, inclusive.
        limit: the end of the search, exclusive.

    Returns:
        The record; None if there is none.

    Raises:
        DamageError: the bytes at the position of a batch are no batch.
    """
    found = yield from in_steps(
        lambda offset: _look(segments(), timestamp_ms, offset, limit), timestamp_ms, lambda: start_offset
    )
    return found if found is None or found[0] < limit else None


def in_steps(
    look: Callable[[int], TimestampedOffset | Batch | int | None],
    timestamp_ms: int,
    start_offset: Callable[[], int],
) -> Lookup:
    """Find the first record whose timestamp is at least `timestamp_ms`, step by step.

    Args:
        look: a function that does one step, from a given offset on. It returns the record if the step has found it. It
            returns a batch if this batch may contain the record, and an offset if the next step must continue there. It
            returns None if there is no such record.
        timestamp_ms: the least timestamp of the record.
        start_offset: returns the first offset of the search. The function is called again before each step, because the
            log's start may move.
    """
    offset = start_offset()
    while True:
        offset = max(offset, start_offset())
        found = look(offset)
        if isinstance(found, Batch):
            record = yield from _looked_into(found, partial(find_by_time, found.data, timestamp_ms, offset))
            if record is not None:
                return (*record, found.header.leader_epoch)
            offset = found.header.next_offset
        elif isinstance(found, int):
            offset = found
        else:
            return found
        yield None


def _looked_into(batch: Batch, work: Work) -> Generator[Work, Any, Any]:
    """Decode a batch by calling `work`. If that would block the event loop for too long, yield `work` to the caller,
    who runs it in a thread.
    """
    if is_decoded_quickly(batch.header):
        return work()
    return (yield work)


def _look(segments: Segments, timestamp_ms: int, start_offset: int, limit: int) -> Batch | int | None:
    """Do one step of a lookup. Return a batch that may contain the record, the offset at which the next step begins, or
    None if there is no such record.
    """
    count = 0
    for place in range(segments.place_of(start_offset), len(segments)):
        segment = segments[place]
        if segment.max_timestamp < timestamp_ms:
            continue
        for position, header in segment.walk(_begin(segment, timestamp_ms, start_offset)):
            if header.base_offset >= limit:
                return None
            if count == STEP_COUNT_MAX:
                return max(header.base_offset, start_offset)
            count += 1
            if _time_of(header) >= timestamp_ms and header.last_offset >= start_offset:
                return Batch(header, segment.log.read(position, header.size))
            _pass(segment, position, header)
    return None


def _begin(segment: Segment, timestamp_ms: int, start_offset: int) -> int:
    """Return the position in a segment where a lookup begins. All records before this position have an earlier offset
    than `start_offset` or an earlier timestamp than `timestamp_ms`.
    """
    offset = max(start_offset, segment.time_index.offset_before(timestamp_ms) or 0)
    position = 0
    if offset > segment.base_offset:
        found = segment.find(offset)
        position = segment.size if found is None else found.position
    passed_size, latest_ms = segment.passed
    return max(position, passed_size) if latest_ms < timestamp_ms else position


def _time_of(header: BatchHeader) -> int:
    """Return the greatest timestamp of a batch's records; NOTHING for a marker or a batch without records."""
    return NOTHING if header.is_control or not header.record_count else header.max_timestamp


def _pass(segment: Segment, position: int, header: BatchHeader) -> None:
    """Update `segment.passed` for a batch: the size of the first part of the segment in which lookups have read all
    headers, and the greatest timestamp in this part.
    """
    passed_size, latest_ms = segment.passed
    if position == passed_size:
        segment.passed = position + header.size, max(latest_ms, _time_of(header))


def greatest_timestamp(segments: Callable[[], Segments], start_offset: int, limit: int) -> Lookup:
    """Find the record with the greatest timestamp; if several have it, the first of them. Markers do not count.

    Args:
        segments: returns the current segments of the log. The lookup calls it again after each step.
        start_offset: the first offset of the search, inclusive.
        limit: the end of the offsets that the reader sees. If the record with the greatest timestamp is at or past this
            offset, the result is None.

    Returns:
        The record; None if there is none, or if its offset is not less than `limit`.

    Raises:
        DamageError: the bytes at the position of a batch are no batch.
    """
    greatest = yield from _greatest(segments, start_offset)
    return (
        None
        if greatest == NOTHING
        else (yield from first_at_or_after(segments, greatest, start_offset, limit))
    )


def _greatest(segments: Callable[[], Segments], offset: int) -> Generator[Work | None, Any, int]:
    """Return the greatest timestamp of all records from an offset on; -1 if there is no record."""
    greatest = NOTHING
    while True:
        now = segments()
        place = now.place_of(offset)
        segment = now[place]
        if offset >= segment.end_offset:
            return greatest
        if offset <= segment.base_offset:
            found = _greatest_from(now, place, greatest)
            if found is not None:
                return found
        else:
            # The known greatest timestamp of this segment may belong to a record before `offset`, so the headers are
            # read.
            first = segment.find(offset)
            if first is None:
                offset = segment.end_offset
            elif first.base_offset < offset:
                data = segment.log.read(first.position, first.size)
                batch = Batch(read_header(data), data)
                greatest = max(
                    greatest, (yield from _looked_into(batch, partial(_greatest_in, batch, offset)))
                )
                offset = batch.header.next_offset
            else:
                for _, header in islice(segment.walk(first.position), STEP_COUNT_MAX):
                    greatest = max(greatest, _time_of(header))
                    offset = header.next_offset
        yield None


def _greatest_from(segments: Segments, first: int, greatest: int) -> int | None:
    """Return the greatest timestamp of the segments from number `first` on, or `greatest` if that is greater. None if
    the step has reached its limit of headers; the next call then continues.
    """
    places = sorted(
        range(first, len(segments)), key=lambda place: segments[place].max_timestamp, reverse=True
    )
    count = 0
    for place in places:
        segment = segments[place]
        if segment.max_timestamp <= greatest:
            break
        for position, header in segment.walk(segment.passed[0]):
            if count == STEP_COUNT_MAX:
                return None
            count += 1
            _pass(segment, position, header)
        greatest = max(greatest, segment.passed[1])
    return greatest


def _greatest_in(batch: Batch, offset: int) -> int:
    """Return the greatest timestamp of a batch's records from an offset on; -1 if there is no such record."""
    records = None if batch.header.is_control else look_into(batch.data)
    if records is None:
        return _time_of(batch.header)
    return max((record.timestamp_ms for record in records if record.offset >= offset), default=NOTHING)


def finished(lookup: Lookup) -> TimestampedOffset | None:
    """Run all steps of a lookup at once, and return its result."""
    done: Any = None
    while True:
        try:
            work = lookup.send(done)
        except StopIteration as end:
            found: TimestampedOffset | None = end.value
            return found
        done = None if work is None else work()
