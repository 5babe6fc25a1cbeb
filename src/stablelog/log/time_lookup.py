"""Lookups by time in an open log: in its commit-ordered view (the committed batches in the order of their commits), its
remote tier (the segments in the object store) and its local segments.
"""

from stablelog.log.model import Isolation
from stablelog.log.open_log import OpenLog
from stablelog.log.search.times import Lookup, first_at_or_after, greatest_timestamp


def look_up_time(log: OpenLog, timestamp_ms: int, isolation: Isolation) -> Lookup:
    """Find the first record with this timestamp or a later one. For a read-committed reader of a commit-ordered
    partition, the time of a record is that of its commit, and the result is a position in commit order, which such a
    reader sees as the offset.

    Returns:
        A lookup, a generator that the caller runs in steps, so that other work can run in between. Its result is None
        if a reader of this isolation level can read no such record.
    """
    if log.view is not None and isolation is Isolation.READ_COMMITTED:
        return (yield from log.view.look_up_time(timestamp_ms))
    if log.remote is not None and log.remote.start_offset < log.start_offset:
        found = yield from log.remote.look_up_time(timestamp_ms)
        # A segment may be both in the store and on the local disk. Only its local copy is searched.
        if found is not None and found[0] < log.start_offset:
            return found
    return (
        yield from first_at_or_after(
            lambda: log.log.segments, timestamp_ms, lambda: log.start_offset, log.visible_end(isolation)
        )
    )


def look_up_newest(log: OpenLog, isolation: Isolation) -> Lookup:
    """Find the first record with the greatest timestamp. As in Apache Kafka, only records on the local disk are
    searched.

    Returns:
        A lookup, a generator that the caller runs in steps, so that other work can run in between. Its result is None
        if a reader of this isolation level cannot read the record.
    """
    if log.view is not None and isolation is Isolation.READ_COMMITTED:
        return log.view.look_up_newest()
    return greatest_timestamp(lambda: log.log.segments, log.start_offset, log.visible_end(isolation))
