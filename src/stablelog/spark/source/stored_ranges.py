"""The parts of a range that can be read from an object store. What is gone is reported."""

from stablelog.spark.objects.stored_partition import StoredPartition, missing_between
from stablelog.spark.options import ReadOptions
from stablelog.spark.source.lost_offsets import LostRange, report
from stablelog.spark.source.resolve import Range, lost, name


def readable(options: ReadOptions, stored: StoredPartition, wanted: Range, topic_id: str = "") -> list[Range]:
    """Return the parts of a range that the store has, without the offsets that a restore has left without records.

    Args:
        options: the options of the read.
        stored: the partition in the store.
        wanted: the range.
        topic_id: the id of the topic at the time of planning; empty if unknown.

    Raises:
        UnavailableError: records of the range are gone, and failOnDataLoss is true.
    """
    if topic_id and stored.partition.topic_id.hex != topic_id:
        lost(options, f"{wanted.place[0]} was deleted and created again after {name(wanted.place)} was read")
        return []
    found = []
    for part in _without_lost(options, stored, wanted):
        runs = stored.runs(part.start, part.end)
        for start, end in missing_between(runs, part.start, part.end):
            lost(
                options,
                f"the offsets {start} to {end - 1} of {name(wanted.place)} cannot be read from {stored.url}: a segment is "
                "missing, and with it the markers of transactions that were open before it",
            )
        found += [wanted._replace(start=start, end=end) for start, end in runs]
    return found


def _without_lost(options: ReadOptions, stored: StoredPartition, wanted: Range) -> list[Range]:
    found, start = [], wanted.start
    gone = None if stored.restored is None else stored.restored.lost_range(start)
    if gone is not None:
        report(options, wanted.place, start, LostRange(*gone))
        start = gone[1]
    for lost_start, lost_end in () if stored.restored is None else stored.restored.gaps:
        if start <= lost_start < wanted.end:
            found.append(wanted._replace(start=start, end=lost_start))
        if lost_start < wanted.end:
            start = max(start, lost_end)
    found.append(wanted._replace(start=start))
    return [one for one in found if one.start < one.end]
