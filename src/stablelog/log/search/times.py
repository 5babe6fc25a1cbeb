"""Lookups of records by time, in segments of every kind.

A lookup is a generator that runs in steps, because it may read the headers of many batches. Between two steps the event
loop serves other requests. These may change the log, but not its offsets.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, NamedTuple

from stablelog.batch.header import BatchHeader, read_header
from stablelog.batch.records import decode_if_small, find_by_time, is_decoded_quickly
from stablelog.env.disk import Buffer
from stablelog.log.indexes.summary import NOTHING
from stablelog.log.search.source import SegmentReader, SegmentSource

TimestampedOffset = tuple[int, int, int]  # offset, timestamp and leader epoch of a record
Work = Callable[[], Any]
# A lookup in steps. It yields after each step, so that the event loop can serve other requests. If it yields a
# function, the caller runs this function, perhaps in a thread, and sends the result back.
Lookup = Generator[Work | None, Any, TimestampedOffset | None]
# Finds (offset, timestamp) of the first record of a batch with a timestamp or a later one, from an offset on.
FindInBatch = Callable[[Buffer, int, int], tuple[int, int] | None]
STEP_COUNT_MAX = 1000  # how many batch headers one step of a lookup reads, which takes some milliseconds


class Batch(NamedTuple):
    """The result of one step of a lookup by time: a batch that may contain the searched record, so that the caller must
    decode the batch.
    """

    header: BatchHeader
    data: Buffer


def first_at_or_after(
    segments: Callable[[], SegmentSource[Any]],
    timestamp_ms: int,
    start_offset: Callable[[], int],
    limit: int,
    find_in_batch: FindInBatch | None = None,
) -> Lookup:
    """Find the first record before `limit` with this timestamp or a later one. Markers are ignored.

    The time index also covers markers, which have the broker's time. If producers write records with old timestamps,
    the time index leads to markers only, and the lookup must read the headers of all batches.

    Args:
        segments: returns the current segments of the log. It is called again after each step.
        timestamp_ms: the least timestamp of the record.
        start_offset: returns the first offset of the search, inclusive. It is called again before each step, because
            the log's start may move.
        limit: the end of the search, exclusive.
        find_in_batch: called with the bytes of a batch, the timestamp and an offset; finds the first record of the
            batch with this timestamp or a later one, from the offset on. None for `find_by_time`, which does so.

    Returns:
        The record; None if there is none.

    Raises:
        DamageError: the bytes at the position of a batch are no batch.
    """
    found = yield from look_up_in_steps(
        lambda offset: look_from(segments().readers_from(offset), timestamp_ms, offset, limit),
        timestamp_ms,
        start_offset,
        find_in_batch,
    )
    return found if found is None or found[0] < limit else None


def look_up_in_steps(
    look: Callable[[int], TimestampedOffset | Batch | int | None],
    timestamp_ms: int,
    start_offset: Callable[[], int],
    find_in_batch: FindInBatch | None = None,
) -> Lookup:
    """Find the first record with this timestamp or a later one. Each call of `look` does one step of the search.

    Args:
        look: does the step from an offset on. It returns the record if it has found it; a batch that may contain the
            record; the offset where the next step continues; or None if there is no such record.
        timestamp_ms: the least timestamp of the record.
        start_offset: returns the first offset of the search. It is called again before each step, because the log's
            start may move.
        find_in_batch: called with the bytes of a batch, the timestamp and an offset; finds the first record of the
            batch with this timestamp or a later one, from the offset on. None for `find_by_time`, which does so.
    """
    offset = start_offset()
    while True:
        offset = max(offset, start_offset())
        found = look(offset)
        if isinstance(found, Batch):
            record = yield from look_into_batch(
                found, partial(find_in_batch or find_by_time, found.data, timestamp_ms, offset)
            )
            if record is not None:
                return (*record, found.header.leader_epoch)
            offset = found.header.next_offset
        elif isinstance(found, int):
            offset = found
        else:
            return found
        yield None


def look_into_batch(batch: Batch, work: Work) -> Generator[Work, Any, Any]:
    """Decode a batch by a call of `work`, a function without arguments, and return its result. If the call could block
    the event loop for too long, `work` is yielded instead: the caller runs it in a thread, and sends the result back.
    """
    if is_decoded_quickly(batch.header):
        return work()
    return (yield work)


def look_from(
    segments: Iterable[SegmentReader], timestamp_ms: int, start_offset: int, limit: int
) -> Batch | int | None:
    """Do one step of a lookup by time: read a bounded number of batch headers.

    Returns:
        A batch that may contain the record; the offset where the next step continues; or None if there is no such
        record.
    """
    count = 0
    for segment in segments:
        if segment.max_timestamp < timestamp_ms:
            continue
        for position, header in batches_from_time(segment, timestamp_ms, start_offset):
            if header.base_offset >= limit:
                return None
            if count == STEP_COUNT_MAX:
                return max(header.base_offset, start_offset)
            count += 1
            if time_of(header) >= timestamp_ms and header.last_offset >= start_offset:
                return Batch(header, segment.batch_at(position, header.size))
            mark_passed(segment, position, header)
    return None


def batches_from_time(
    segment: SegmentReader, timestamp_ms: int, start_offset: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the batches of a segment that may have records at or after both `start_offset` and
    `timestamp_ms`. Earlier batches are skipped with the help of the indexes.
    """
    offset = max(start_offset, segment.time_index.offset_before(timestamp_ms) or 0)
    position = 0
    if offset > segment.base_offset:
        found = segment.find(offset)
        position = segment.size if found is None else found.position
    passed_size, latest_ms = segment.passed
    return segment.walk(max(position, passed_size) if latest_ms < timestamp_ms else position)


def time_of(header: BatchHeader) -> int:
    """Return the greatest timestamp of a batch's records; NOTHING (-1) for a marker or a batch without records."""
    return NOTHING if header.is_control or not header.record_count else header.max_timestamp


def mark_passed(segment: SegmentReader, position: int, header: BatchHeader) -> None:
    """Extend `segment.passed`, the part of the log file that lookups by time have read, over a batch whose header such
    a lookup has read. Later lookups skip this part.
    """
    passed_size, latest_ms = segment.passed
    if position == passed_size:
        segment.passed = position + header.size, max(latest_ms, time_of(header))


def greatest_timestamp(segments: Callable[[], SegmentSource[Any]], start_offset: int, limit: int) -> Lookup:
    """Find the first record with the greatest timestamp. Markers are ignored.

    Args:
        segments: returns the current segments of the log. It is called again after each step.
        start_offset: the first offset of the search, inclusive.
        limit: the end of the offsets that the reader may read, exclusive.

    Returns:
        The record; None if there is none, or if its offset is not less than `limit`.

    Raises:
        DamageError: the bytes at the position of a batch are no batch.
    """
    greatest = yield from _greatest(segments, start_offset)
    return (
        None
        if greatest == NOTHING
        else (yield from first_at_or_after(segments, greatest, lambda: start_offset, limit))
    )


def _greatest(segments: Callable[[], SegmentSource[Any]], offset: int) -> Generator[Work | None, Any, int]:
    """Find the greatest timestamp of all records from an offset on, in steps.

    Yields:
        After each step, work that the caller runs in a thread, and whose result it sends back; or None if there is no
        such work.

    Returns:
        The greatest timestamp; -1 if there is no record.
    """
    greatest = NOTHING
    while True:
        segment = next(segments().readers_from(offset), None)
        if segment is None:
            return greatest
        if offset <= segment.base_offset:
            found = _greatest_from(segments().readers_from(offset), greatest)
            if found is not None:
                return found
        else:
            # The known greatest timestamp of this segment may belong to a record before `offset`, so the headers are
            # read.
            first = segment.find(offset)
            if first is None:
                offset = segment.end_offset
            elif first.base_offset < offset:
                data = segment.batch_at(first.position, first.size)
                batch = Batch(read_header(data), data)
                greatest = max(
                    greatest, (yield from look_into_batch(batch, partial(_greatest_in, batch, offset)))
                )
                offset = batch.header.next_offset
            else:
                for _, header in islice(segment.walk(first.position), STEP_COUNT_MAX):
                    greatest = max(greatest, time_of(header))
                    offset = header.next_offset
        yield None


def _greatest_from(segments: Iterable[SegmentReader], greatest: int) -> int | None:
    """Do one step of the search for the greatest timestamp in whole segments.

    Args:
        segments: the segments.
        greatest: the greatest timestamp that was found before. Segments without a greater one are not read.

    Returns:
        The greatest timestamp, at least `greatest`; None if the step has reached its limit of headers, so that another
        call must continue.
    """
    count = 0
    for segment in sorted(segments, key=attrgetter("max_timestamp"), reverse=True):
        if segment.max_timestamp <= greatest:
            break
        for position, header in segment.walk(segment.passed[0]):
            if count == STEP_COUNT_MAX:
                return None
            count += 1
            mark_passed(segment, position, header)
        greatest = max(greatest, segment.passed[1])
    return greatest


def _greatest_in(batch: Batch, offset: int) -> int:
    """Return the greatest timestamp of a batch's records from an offset on; -1 if there is no such record."""
    records = None if batch.header.is_control else decode_if_small(batch.data)
    if records is None:
        return time_of(batch.header)
    return max((record.timestamp_ms for record in records if record.offset >= offset), default=NOTHING)


def run_lookup(lookup: Lookup) -> TimestampedOffset | None:
    """Run all steps of a lookup (a generator that searches by time) at once. Functions that it yields to be run in a
    thread are run in this thread. Return the record that the lookup has found; None if there is none.
    """
    done: Any = None
    while True:
        try:
            work = lookup.send(done)
        except StopIteration as end:
            found: TimestampedOffset | None = end.value
            return found
        done = None if work is None else work()
