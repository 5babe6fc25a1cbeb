"""The offsets of a range that cannot be read from an object store."""

from collections.abc import Iterator

from stablelog.spark.objects.tiered_partition import TieredPartition, missing_between
from stablelog.spark.source.ranges import Absence, OffsetState, Range, gaps_for, readable_parts
from stablelog.spark.source.resolve import partition_name


def absences_in(stored: TieredPartition, wanted: Range, topic_id: str = "") -> list[Absence]:
    """Return the absences in a range, in the order of the offsets: the offsets that cannot be read from the store,
    because they were left without records when the broker was restored, or because their segment is missing. If the
    topic was deleted and created again, this is the whole range.

    Args:
        stored: the partition in the store.
        wanted: the range. It ends at the end of the store or before.
        topic_id: the id of the topic at the time of planning; empty if unknown.
    """
    if topic_id and stored.partition.topic_id.hex != topic_id:
        message = (
            f"{wanted.place[0]} was deleted and created again after {partition_name(wanted.place)} was read"
        )
        return [Absence(wanted.start, wanted.end, OffsetState.REMOVED, message)]
    restored = stored.restored
    gaps = (
        []
        if restored is None
        else gaps_for(wanted, restored.gaps, lambda offset: restored.lost_range(offset) is not None)
    )
    holes = [hole for part in readable_parts(wanted, 0, gaps).parts for hole in holes_in(stored, part)]
    return sorted([*gaps, *holes], key=lambda one: one.start)


def holes_in(stored: TieredPartition, part: Range) -> Iterator[Absence]:
    """Yield the holes in a range: the offsets that cannot be read because their segment is missing in the store."""
    for start, end in missing_between(stored.runs(part.start, part.end), part.start, part.end):
        message = (
            f"the offsets {start} to {end - 1} of {partition_name(part.place)} cannot be read from {stored.url}: a segment is missing, "
            "and with it the markers of transactions that were open before it"
        )
        yield Absence(start, end, OffsetState.HOLE, message)
