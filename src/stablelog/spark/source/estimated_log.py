"""The common base of logs whose segment files this process cannot read (brokers, object stores), so that the sizes of
ranges in bytes are estimates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from stablelog.spark.planning import shares
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.ranges import Range, Readable
from stablelog.types import TopicPartition


class EstimatedLog(ABC):
    """A log whose segment files this process does not read. The sizes of ranges are estimates."""

    @abstractmethod
    def _estimated_size(self, wanted: Range) -> int:
        """Return the estimated size of the records of a range, in bytes."""

    def files_of(
        self, ranges: Sequence[Range], topic_ids: Mapping[str, str]
    ) -> Mapping[Range, PartitionFiles | None]:
        """Return None for each range, because this process cannot read the segment files of its partition."""
        return dict.fromkeys(ranges)

    def limit_ranges(
        self,
        ranges: Sequence[Readable],
        topic_ids: Mapping[str, str],
        count_max: int | None,
        size_max: int | None,
    ) -> dict[TopicPartition, int]:
        """Return an end offset for each range of a micro-batch, so that all ranges together stay within a limit of
        records and of bytes. Each offset counts as one record of the average size.

        Args:
            ranges: the range of each partition.
            topic_ids: the ids of the topics.
            count_max: the limit of records; None for no limit.
            size_max: the limit of bytes; None for no limit.
        """
        counts = {one.place: one.count for one in ranges}
        if count_max is not None:
            counts = shares(counts, count_max)
        if size_max is not None:
            limited = [
                part
                for one in ranges
                for part in one.inside(one.whole.start, one.end_after(counts[one.place]))
            ]
            excess = sum(map(self._estimated_size, limited)) / size_max
            if excess > 1:
                counts = shares(counts, max(1, int(sum(counts.values()) / excess)))
        return {one.place: one.end_after(counts[one.place]) for one in ranges}
