"""Reads of an open log by offset: from its commit-ordered view (the committed batches in the order of their commits),
its remote tier (the segments in the object store) or its local segments.
"""

from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.model import Isolation, Slice
from stablelog.log.open_log import OpenLog
from stablelog.log.read import read
from stablelog.log.remote_read import read_remote


def read_from_offset(
    log: OpenLog, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool
) -> Slice:
    """Read whole batches from an offset on, where they are: in the view of a commit-ordered partition (its committed
    batches in the order of their commits), in the remote tier (the segments in the object store), or in the local
    segments.

    Args:
        log: the open log.
        start: the offset to read from. Read-committed readers of a commit-ordered partition see positions in commit
            order as offsets.
        size_max: the greatest size of the result in bytes.
        isolation: the isolation level of the reader.
        at_least_one: whether a first batch of more than `size_max` bytes is returned.

    Raises:
        OffsetOutOfRangeError: `start` is before the log's start or after its end, or was lost with the disk of a
            broker.
        DamageError: an index that the read uses is damaged.
    """
    lost = None if log.restored is None else log.restored.lost_range(start)
    if lost is not None:
        raise OffsetOutOfRangeError(
            f"offset {start} of {log.topic}-{log.index} was lost with the disk of a broker: the restored log ends at "
            f"offset {lost[0]}, and new records begin at {lost[1]}"
        )
    committed = isolation is Isolation.READ_COMMITTED
    if committed and log.view is not None:
        return log.view.read(start, size_max, at_least_one=at_least_one)
    limit, segments = log.visible_end(isolation), log.log.segments
    if start < log.start_offset and log.remote is not None and start >= log.remote.start_offset:
        return read_remote(
            log.remote,
            segments,
            start,
            limit,
            size_max,
            local_start=log.start_offset,
            committed=committed,
            at_least_one=at_least_one,
        )
    if not log.start_offset <= start <= log.end_offset:
        raise OffsetOutOfRangeError(
            f"offset {start} is not in the log of {log.topic}-{log.index}, which has the offsets "
            f"{log.visible_start(isolation)} to {log.end_offset} (exclusive)"
        )
    return read(segments, start, limit, size_max, committed=committed, at_least_one=at_least_one)
