"""Reads of a log in its remote tier (the segments in an object store), or in its local segments if the remote tier has
no batch any more from the offset on.
"""

from dataclasses import replace

from stablelog.batch.header import HEADER, read_header
from stablelog.log.model import Slice
from stablelog.log.read import read
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.search.aborts import find_aborted
from stablelog.log.segments.segments import LogSegments


def read_remote(
    remote: RemoteTier,
    segments: LogSegments,
    start: int,
    limit: int,
    size_max: int,
    *,
    local_start: int,
    committed: bool,
    at_least_one: bool,
) -> Slice:
    """Read whole batches from an offset in the remote tier, as `log.read.read` does for local segments.

    If the remote tier has no batch at or after `start`, the local segments are read. The search for aborted
    transactions continues in the segments that are only on the local disk, because an abort marker may be in a later
    segment than the records of its transaction.

    Args:
        remote: the remote tier.
        segments: the local segments.
        start: the offset to read from.
        limit: no record at or after this offset is returned.
        size_max: the greatest size of the result in bytes.
        local_start: the local log start offset.
        committed: whether to list the aborted transactions of the batches, as for a read-committed reader.
        at_least_one: whether a first batch of more than `size_max` bytes is returned.

    Raises:
        UnavailableError: the list of remote segments is not loaded yet.
        NotLoadedError: the bytes are not in the broker's cache.
        DamageError: the bytes in the store do not match the segment, or a local index is damaged.
    """
    found = remote.read(start, limit, size_max, at_least_one=at_least_one)
    if (
        not found.buffers and found.end_offset > start
    ):  # No batch is left from `start` to the end of the store.
        rest = read(
            segments,
            max(found.end_offset, local_start),
            limit,
            size_max,
            committed=committed,
            at_least_one=at_least_one,
        )
        return replace(rest, start_offset=start)
    if not committed:
        return found
    first, end = found.start_offset, found.end_offset
    if found.buffers:
        # The header of the first batch may be in two buffers.
        head = b"".join(bytes(buffer[: HEADER.size]) for buffer in found.buffers[:2])
        first = max(first, read_header(head).base_offset)
    aborted, is_complete = remote.aborted_in(first, end) if found.buffers else ([], True)
    if not is_complete:
        aborted = aborted + find_aborted(segments, max(first, remote.end_offset), end)[0]
    return replace(found, aborted=tuple(aborted))
