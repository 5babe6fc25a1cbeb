"""Reads of batches by offset, with the aborted transactions in them.

A read returns whole batches as slices of the mapped log file, without decoding or copying. It lists the aborted
transactions of exactly these batches. A longer list would make clients drop committed records, because a client removes
one transaction from the list for each abort marker that it reads.

Source: KIP-98.
"""

from stablelog.log.model import Slice
from stablelog.log.search.aborts import find_aborted
from stablelog.log.segments.segments import LogSegments

# A read ends after this number of abort markers, because a list of more aborted transactions would hold the event loop
# for too long.
ABORTED_COUNT_MAX = 2000


def read(
    segments: LogSegments, start: int, limit: int, size_max: int, *, committed: bool, at_least_one: bool
) -> Slice:
    """Read whole batches from an offset on: at most `size_max` bytes, but one batch of any size if `at_least_one`.

    With `committed`, the read ends after 2000 abort markers (ABORTED_COUNT_MAX), so that its list of aborted
    transactions does not become too long. The list includes the transactions that are open at the end of the read and
    aborted later.

    Args:
        segments: the segments of the log. The log must contain `start` or end there.
        start: the offset to read from. The first batch contains it, or is the next batch after it.
        limit: no record at or after this offset is returned.
        size_max: the greatest size of the result in bytes.
        committed: whether to list the aborted transactions. No transaction before `limit` may be open then.
        at_least_one: whether a first batch of more than `size_max` bytes is returned.

    Raises:
        DamageError: an index that the read uses is damaged.
    """
    empty = Slice([], start, start, () if committed else None)
    if start >= limit:
        return empty
    for segment in segments.ending_behind(start):
        found = segment.find(start)
        if found is not None:
            break
        # Compaction has removed all batches from here to the segment's end.
    else:
        return empty
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
    if segment.proof.damaged_batches:
        segment.check_undamaged(found.position, found.position + found.size)
        damaged = segment.damaged_behind(found.position)
        if damaged is not None and damaged.position < end_position:
            end_position, end_offset = damaged.position, damaged.base_offset
    data = segment.log.view(found.position, end_position - found.position)
    if not committed:
        return Slice([data], start, end_offset, None)
    aborted, _ = find_aborted(segments, max(start, found.base_offset), end_offset)
    return Slice([data], start, end_offset, tuple(aborted))
