"""The lost offsets of a partition: those that were left without records when the broker was restored from an object
store. They are found by requests to the broker.

The broker answers a fetch at such an offset with OFFSET_OUT_OF_RANGE, although the log goes on after it. Each restore
has a leader epoch of its own, which is greater than the one before by LEADER_EPOCH_STEP or more, and the lost offsets
are all offsets of this epoch. If no record was written between two restores, both have one epoch. So the leader epochs
show where the lost offsets begin and end, however many there are. A log whose leader epoch is below LEADER_EPOCH_STEP
was never restored.
"""

from typing import Final, NamedTuple

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.errors import OffsetOutOfRangeError
from stablelog.tier.restored_files import LEADER_EPOCH_STEP
from stablelog.types import TopicPartition

EPOCH_END: Final = 1 << 31  # Greater than each leader epoch.


class LostOffsets(NamedTuple):
    """The offsets that were left without records when the broker was restored from an object store.

    Attributes:
        start: the end of the log that was restored; the records from here on are gone. A fetch at exactly this offset
            gets the records from `end` on.
        end: the offset of the first new record.
    """

    start: int
    end: int


def is_lost(cluster: BlockingCluster, place: TopicPartition, offset: int) -> bool:
    """Return whether the record at an offset was lost in a restore of the broker: whether the broker answers a fetch
    there with OFFSET_OUT_OF_RANGE. The offset must be between the log start offset and the log end offset.
    """
    try:
        cluster.fetch(*place, offset, 1, "read_uncommitted", wait_ms=0)
    except OffsetOutOfRangeError:
        return True
    return False


def lost_range(cluster: BlockingCluster, place: TopicPartition, offset: int) -> LostOffsets | None:
    """Return the range of lost offsets that contains an offset; None if the log ends at or before the offset. Lost
    offsets are those without records since the broker was restored from an object store. The caller has checked the
    offset by `is_lost`.

    The lost offsets of a restore are those of its leader epoch. The function therefore searches the least leader epoch
    that ends after the offset.
    """
    start, end = 0, None
    low, high = -1, EPOCH_END
    while high - low > 1:
        middle = (low + high) // 2
        found = cluster.epoch_end(*place, middle)
        if found is not None and found[1] <= offset:
            low, start = middle, found[1]
        else:
            high, end = middle, None if found is None else found[1]
    return None if end is None else LostOffsets(start, end)


def lost_ranges(
    cluster: BlockingCluster, place: TopicPartition, leader_epoch: int, log_start: int
) -> tuple[LostOffsets, ...]:
    """Return the ranges of lost offsets of all restores of a partition, in the order of the offsets.

    The search goes down in steps of LEADER_EPOCH_STEP. Among the epochs of one step, only the lowest can be that of a
    restore. So each restore takes about a dozen requests, and ordinary starts of the broker take none.

    Args:
        cluster: the brokers.
        place: the partition.
        leader_epoch: the partition's present leader epoch.
        log_start: the log start offset. Lost offsets before it are left out.
    """
    found: list[LostOffsets] = []
    high = leader_epoch
    while high >= LEADER_EPOCH_STEP:
        below = high - LEADER_EPOCH_STEP
        before = cluster.epoch_end(*place, below)
        if before is None:  # The log has no epoch above `below`.
            high = below
            continue
        low, start = before
        # The epochs up to `low` end at `start`, and the next one begins there.
        one = _end_of_next(cluster, place, start, low, high)
        if one is not None and _is_of_restore(cluster, place, max(start + 1, log_start), one):
            found.append(LostOffsets(start, one))
        high = min(low, below)
        if start <= log_start:
            break
    return tuple(reversed(found))


def _is_of_restore(cluster: BlockingCluster, place: TopicPartition, offset: int, end: int) -> bool:
    """Return whether the leader epoch that contains an offset, and ends at `end`, is that of a restore. The number of
    the epoch alone does not show this: if the broker has started LEADER_EPOCH_STEP times and no record was written to
    the partition, the epoch may be that of a start.
    """
    # Between two restores without a record between them there is a border, at which a fetch is not out of range.
    return offset < end and any(is_lost(cluster, place, one) for one in (offset, end - 1))


def _end_of_next(
    cluster: BlockingCluster, place: TopicPartition, start: int, low: int, high: int
) -> int | None:
    """Return the offset at which a leader epoch ends that begins at the offset `start`, and that is greater than `low`
    and at most `high`; None if there is no such epoch.
    """
    end = None
    while low < high:
        middle = (low + high + 1) // 2
        found = cluster.epoch_end(*place, middle)
        if found is not None and found[1] <= start:
            low = middle
        else:
            end = None if found is None else found[1]
            high = middle - 1
    return end
