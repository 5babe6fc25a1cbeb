"""Chooses, among overlapping segments of a partition, which copy is read for which offsets.

A new leader copies from the end of what it finds in the store, in segments of its own. Its segments may overlap those
of earlier leaders. An attempt that failed may have left a whole copy, too. All copies of an offset have the same batch,
and batches begin at the same offsets in all copies. Of two copies, either may therefore be read.

After an unclean leader election this is not true: the new leader may lack the last batches of the earlier one, and
write others at their offsets. Each segment has the list of the log's leader epochs up to its end, each with its first
offset. The list of the latest leader says which epoch each offset of the log has. Batches that an earlier leader wrote
at offsets of a later epoch are not a part of the log.
"""

import itertools
from collections.abc import Callable, Sequence

from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.search.source import OFFSET_MAX
from stablelog.spark.objects.kafka_tiers.segment import KafkaSegment


def without_overlaps(
    segments: Sequence[KafkaSegment],
    epochs_of: Callable[[Sequence[KafkaSegment]], Sequence[LeaderEpochs]],
    cut_short: Callable[[KafkaSegment, int], KafkaSegment],
) -> list[KafkaSegment]:
    """Return segments that together have all offsets of the partition, each offset once, in the order of offsets.

    Args:
        segments: all segments of the partition in the store, which may overlap.
        epochs_of: loads the leader epochs of segments. It is not called unless segments overlap.
        cut_short: a function that gets a segment and an offset, and returns the segment without the batches from this
            offset on.
    """
    ordered = sorted(segments, key=lambda one: (one.base_offset, -one.end_offset, one.segment_id))
    if all(one.end_offset <= other.base_offset for one, other in itertools.pairwise(ordered)):
        return ordered
    ends = _valid_ends(ordered, epochs_of(ordered))
    rows: list[tuple[KafkaSegment, int]] = []
    for end, segment in sorted(
        zip(ends, ordered, strict=True), key=lambda one: (one[1].base_offset, -one[0])
    ):
        if end <= max(segment.base_offset, rows[-1][1] if rows else 0):
            continue  # Another segment has all its offsets, or none of them is a part of the log.
        if rows and rows[-1][1] > segment.base_offset:
            rows[-1] = rows[-1][0], segment.base_offset
        rows.append((segment, end))
    return [one if one.end_offset == end else cut_short(one, end) for one, end in rows]


def _valid_ends(segments: Sequence[KafkaSegment], epochs: Sequence[LeaderEpochs]) -> list[int]:
    """Return a list with the end of the valid part of each segment: the batches of the segment before this offset
    belong to the log of the latest leader, and later ones do not.
    """
    latest = max(range(len(segments)), key=lambda place: (epochs[place].latest, segments[place].end_offset))
    log = _ranges(epochs[latest], OFFSET_MAX)
    return [
        max(
            (
                min(end, log[epoch][1])
                for epoch, (start, end) in _ranges(own, segment.end_offset).items()
                if epoch in log and max(start, log[epoch][0]) < min(end, log[epoch][1])
            ),
            default=segment.base_offset,
        )
        for segment, own in zip(segments, epochs, strict=True)
    ]


def _ranges(epochs: LeaderEpochs, end_offset: int) -> dict[int, tuple[int, int]]:
    """Return the range of offsets of each leader epoch, by epoch, as a pair: the first offset, and the offset after
    the last one.
    """
    ends = [start for _, start in epochs.entries[1:]] + [end_offset]
    return {epoch: (start, end) for (epoch, start), end in zip(epochs.entries, ends, strict=True)}
