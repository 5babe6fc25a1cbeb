"""What a reader gets, and what it must leave out.

A read hands out whole batches as they stand in the mapped file: nothing is decoded or copied. What it says of
aborted transactions concerns exactly those batches. To say more would do harm: clients take one transaction of the
list for each abort marker that they see.

Source: KIP-98; the abort index.
"""

from stablelog.batch.header import BatchHeader
from stablelog.batch.records import find_by_time, look_into
from stablelog.log.model import Slice
from stablelog.log.segment import Segment
from stablelog.log.segments import Segments
from stablelog.log.summary import NOTHING

TimestampedOffset = tuple[int, int, int]  # offset, timestamp, leader epoch


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
    data = segment.log.view(found.position, end_position - found.position)
    if not committed:
        return Slice([data], start, end_offset, None)
    aborted = segments.aborted(place, max(start, found.base_offset), end_offset)
    return Slice([data], start, end_offset, tuple(aborted))


def first_at_or_after(
    segments: Segments, timestamp_ms: int, start_offset: int, limit: int
) -> TimestampedOffset | None:
    """The first record in [start_offset, limit) that has this time or a later one; None if there is none."""
    for segment in segments:
        if segment.max_timestamp < timestamp_ms or segment.end_offset <= start_offset:
            continue
        begin = segment.time_index.offset_before(timestamp_ms)
        found = segment.find(segment.base_offset if begin is None else begin)
        for position, header in () if found is None else segment.walk(found.position):
            if header.max_timestamp < timestamp_ms or header.last_offset < start_offset:
                continue
            if header.base_offset >= limit:
                return None
            record = _first_record(segment, position, header, timestamp_ms, start_offset)
            if record is not None:
                return record if record[0] < limit else None
    return None


def _first_record(
    segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, start_offset: int
) -> TimestampedOffset | None:
    found = find_by_time(segment.log.view(position, header.size), timestamp_ms, start_offset)
    return None if found is None else (*found, header.leader_epoch)


def greatest_timestamp(segments: Segments, start_offset: int, limit: int) -> TimestampedOffset | None:
    """The first of the records with the greatest time, if it lies in [start_offset, limit); None if not."""
    place = segments.place_of(start_offset)
    later = [segments[at].max_timestamp for at in range(place + 1, len(segments))]
    greatest = max([_greatest_of(segments[place], start_offset), *later])
    return None if greatest < 0 else first_at_or_after(segments, greatest, start_offset, limit)


def _greatest_of(segment: Segment, start_offset: int) -> int:
    """The greatest time in a segment, of what begins at `start_offset`; -1 if there is none."""
    if start_offset == segment.base_offset:
        return segment.max_timestamp
    found = segment.find(start_offset)
    greatest = NOTHING
    for position, header in () if found is None else segment.walk(found.position):
        if header.base_offset < start_offset:
            records = look_into(segment.log.view(position, header.size))
            if records is None:
                times = [header.max_timestamp]
            else:
                times = [record.timestamp_ms for record in records if record.offset >= start_offset]
        else:
            times = [header.max_timestamp] if header.record_count else []
        greatest = max([greatest, *times])
    return greatest
