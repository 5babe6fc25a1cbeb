"""Reads batches by offset, with the aborted transactions in them, and looks up records by time.

A read returns whole batches as slices of the mapped file: it decodes and copies nothing. It lists the aborted
transactions of exactly these batches. A longer list would do harm: a client takes one transaction off the list for each
abort marker that it reads.

A lookup by time goes in steps, because it may read the headers of many batches. Between two steps the log may change in
any way that keeps its offsets.

Source: KIP-98; the abort index.
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

TimestampedOffset = tuple[int, int, int]  # offset, timestamp, leader epoch
Work = Callable[[], Any]
# In steps: after each, others may be served. Where a step yields work, the caller does it, in a thread perhaps, and sends
# what it has returned.
Lookup = Generator[Work | None, Any, TimestampedOffset | None]
STEP_COUNT_MAX = 1000  # batches whose headers are read in a step of a lookup: some milliseconds


class Batch(NamedTuple):
    """A batch that has to be looked into."""

    header: BatchHeader
    data: bytes


def read(
    segments: Segments, start: int, limit: int, size_max: int, *, committed: bool, at_least_one: bool
) -> Slice:
    """Read whole batches from `start`: at most `size_max` bytes, but one batch in any case if `at_least_one`.

    Args:
        segments: where to read. They hold `start`, or end there.
        start: the first batch is the one that holds this offset, or the next one behind it.
        limit: nothing at or past this offset is handed out.
        size_max: bytes.
        committed: whether to say which transactions were aborted. All before `limit` is decided then.
        at_least_one: whether a first batch of more than `size_max` bytes is handed out.

    Raises:
        Corrupt: an index that is needed is damaged.
    """
    empty = Slice([], start, start, () if committed else None)
    if start >= limit:
        return empty
    place = segments.place_of(start)
    found = segments[place].find(start)
    while found is None:
        place += 1  # the rest of the segment was compacted away
        if place == len(segments):
            return empty
        found = segments[place].find(start)
    segment = segments[place]
    if found.base_offset >= limit or (found.size > size_max and not at_least_one):
        return empty
    end_position, end_offset = segment.whole_batches(found, max(size_max, found.size))
    if end_offset > limit:
        beyond = segment.find(limit)
        assert beyond is not None
        assert beyond.base_offset >= limit, "a watermark lies between batches"
        end_position, end_offset = beyond.position, limit
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
    """Find the first record in [start_offset, limit) that has this time or a later one. Markers are passed over.

    Markers have the broker's time, and records their producers': where records are dated long before they are written,
    nothing tells where to look but the headers of all batches.

    Args:
        segments: gives the log's segments as they are; asked again after each step.
        timestamp_ms: the record's timestamp at least.
        start_offset: inclusive.
        limit: exclusive.

    Returns:
        The record; None if there is none.

    Raises:
        Corrupt: what stands where a batch should is not one.
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
    """Find the first record at or after a time, step by step.

    Args:
        look: one step from an offset on: what is found, a batch that may hold it, the offset at which to go on, or None.
        timestamp_ms: the record's timestamp at least.
        start_offset: of the first record that counts; asked again before each step.
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
    """Look into a batch: at once if that takes some milliseconds, else by the caller of the lookup."""
    if is_decoded_quickly(batch.header):
        return work()
    return (yield work)


def _look(segments: Segments, timestamp_ms: int, start_offset: int, limit: int) -> Batch | int | None:
    """One step of a lookup: a batch that may hold the record, the offset at which to go on, or None if there is none."""
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
    """The position of a batch before which no record is both at or after an offset, and of a time or later."""
    offset = max(start_offset, segment.time_index.offset_before(timestamp_ms) or 0)
    position = 0
    if offset > segment.base_offset:
        found = segment.find(offset)
        position = segment.size if found is None else found.position
    passed_size, latest_ms = segment.passed
    return max(position, passed_size) if latest_ms < timestamp_ms else position


def _time_of(header: BatchHeader) -> int:
    """The latest time of a batch's records; that of a marker is none."""
    return NOTHING if header.is_control or not header.record_count else header.max_timestamp


def _pass(segment: Segment, position: int, header: BatchHeader) -> None:
    """Remember the latest record of the bytes that lookups have walked from the segment's beginning without a gap."""
    passed_size, latest_ms = segment.passed
    if position == passed_size:
        segment.passed = position + header.size, max(latest_ms, _time_of(header))


def greatest_timestamp(segments: Callable[[], Segments], start_offset: int, limit: int) -> Lookup:
    """Find the first of the records with the greatest time. Markers are passed over.

    Args:
        segments: gives the log's segments as they are; asked again after each step.
        start_offset: of the first record that counts.
        limit: a record at or behind it counts, and is not told.

    Returns:
        The record; None if there is none before `limit`.

    Raises:
        Corrupt: what stands where a batch should is not one.
    """
    greatest = yield from _greatest(segments, start_offset)
    return (
        None
        if greatest == NOTHING
        else (yield from first_at_or_after(segments, greatest, start_offset, limit))
    )


def _greatest(segments: Callable[[], Segments], offset: int) -> Generator[Work | None, Any, int]:
    """The greatest time of a record from an offset on; -1 if there is none."""
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
        else:  # what is known of the segment's times is of all its records, those before the offset too
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
    """The greatest of a time and those of the segments from a place on. None after a step that was not enough."""
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
    """The greatest time of a batch's records from an offset on; -1 if there is none."""
    records = None if batch.header.is_control else look_into(batch.data)
    if records is None:
        return _time_of(batch.header)
    return max((record.timestamp_ms for record in records if record.offset >= offset), default=NOTHING)


def finished(lookup: Lookup) -> TimestampedOffset | None:
    """What a lookup finds, all its steps done at once."""
    done: Any = None
    while True:
        try:
            work = lookup.send(done)
        except StopIteration as end:
            found: TimestampedOffset | None = end.value
            return found
        done = None if work is None else work()
