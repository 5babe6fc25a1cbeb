"""The offsets that a restore of a broker left without records, found by requests to the broker.

The broker answers a fetch at such an offset with OFFSET_OUT_OF_RANGE, although the log goes on after it. Each restore has
its own leader epoch, and the lost offsets are all offsets of this epoch. So the leader epochs tell where they begin and
end, also if the log has only a few records between the lost offsets of two restores.
"""

from typing import Final, NamedTuple

from stablelog.client.cluster import Cluster
from stablelog.errors import OffsetOutOfRangeError
from stablelog.spark.options import ReadOptions
from stablelog.spark.source.resolve import Range, lost, name
from stablelog.types import TopicPartition

LOST_COUNT_MIN: Final = (
    1_000_000_000  # The fewest offsets of a restore that have no record (`tier.restoring.GAP`).
)
EPOCH_END: Final = 1 << 31  # Greater than each leader epoch.


class LostRange(NamedTuple):
    """The lost offsets of a restore.

    Attributes:
        start: the restored end, from which on records are gone. A fetch at this offset gets the records after `end`.
        end: the offset of the first new record.
    """

    start: int
    end: int


def is_lost(cluster: Cluster, place: TopicPartition, offset: int) -> bool:
    """Whether a fetch at an offset, which is between the log start offset and the log end offset, is out of range."""
    try:
        cluster.fetch(*place, offset, 1, "read_uncommitted", wait_ms=0)
    except OffsetOutOfRangeError:
        return True
    return False


def lost_range(cluster: Cluster, place: TopicPartition, offset: int) -> LostRange | None:
    """Return the lost offsets that contain an offset for which `is_lost` holds; None if the log ends at or before it.

    The function searches the least leader epoch that ends after the offset.
    """
    start, end = 0, None
    low, high = -1, EPOCH_END
    while high - low > 1:
        middle = (low + high) // 2
        found = cluster.epoch_end(*place, middle)
        if found is not None and found <= offset:
            low, start = middle, found
        else:
            high, end = middle, found
    return None if end is None else LostRange(start, end)


def readable(options: ReadOptions, cluster: Cluster, wanted: Range) -> list[Range]:
    """Return a range without the lost offsets, as several ranges: a task that began among them would get an error.

    Lost offsets are at least LOST_COUNT_MIN, and the lost broker has used less than half of them. So a range of fewer than
    half as many offsets needs no request.

    Raises:
        UnavailableError: the range begins among lost offsets, and failOnDataLoss is true.
    """
    found, start, step = [], wanted.start, LOST_COUNT_MIN // 2
    while wanted.end - start >= step:
        probes = range(start, wanted.end, step)
        inside = next((offset for offset in probes if is_lost(cluster, wanted.place, offset)), None)
        gone = None if inside is None else lost_range(cluster, wanted.place, inside)
        if gone is None:
            break
        if inside == start:
            report(options, wanted.place, start, gone)
        else:
            found.append(wanted._replace(start=start, end=gone.start))
        start = gone.end
    found.append(wanted._replace(start=start))
    return [one for one in found if one.start < one.end] or [wanted]


def report(options: ReadOptions, place: TopicPartition, offset: int, gone: LostRange) -> None:
    """Report that a reader is at a lost offset. Raises UnavailableError unless failOnDataLoss is false."""
    lost(
        options,
        f"{name(place)} cannot be read from offset {offset}: all records from offset {gone.start} on are gone with the disk "
        f"of a lost broker, and new records begin at offset {gone.end}",
    )
