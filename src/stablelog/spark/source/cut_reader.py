"""Reader of a stream at cuts: each micro-batch is a set of whole transactions over all its topics.

Its offsets are those of an ordinary stream, with their cut. A commit in another topic of the transaction group moves
the last cut but none of the stream's offsets, so it makes no micro-batch.
"""

import time
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from stablelog.client.responses import Missing
from stablelog.errors import InvalidConfig
from stablelog.spark.offsets import StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import plan
from stablelog.spark.schema import Columns
from stablelog.spark.source import reader
from stablelog.spark.source.admission import NO_LIMIT, TriggerLimits, admit, count_up_to
from stablelog.spark.source.broker_log import RECORD_SIZE_GUESS, record_size
from stablelog.spark.source.cuts import Cuts, cluster_of
from stablelog.spark.source.reader import METADATA_AGE_MAX_S, StablelogStreamReader, TaskPartition
from stablelog.spark.source.resolve import Range, lost, ranges_between, stream_end, stream_ranges
from stablelog.types import TopicPartition


class CutStreamReader(StablelogStreamReader):
    """Reads commit-ordered topics of one transaction group as they grow, from cut to cut."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._cuts: Cuts | None = None
        self._last: StreamOffsets | None = None  # The last cut, as last requested.
        self._record_sizes: dict[TopicPartition, float] = {}

    @property
    def _at_cuts(self) -> Cuts:
        if self._cuts is None:
            self._cuts = Cuts(self._options, self._opened, cluster_of(self._opened), self._there)
        return self._cuts

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The cut at which a query without a checkpoint begins."""
        latest = self._at_cuts.latest()
        return self._at_cuts.resolve(self._options.starting, "startingOffsets", latest).to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to transactions that are committed by now."""
        self._target = self._last = self._at_cuts.latest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The cut up to which the next micro-batch reads; `start` itself if there is nothing to read."""
        before = reader.read_offsets(start, at_cuts=True)
        last = self._not_before(before, self._target or self._look_at_cut())
        _check_history(self._options, before, last)
        partitions = {place: last.topic_ids.get(place[0], "") for place in last.next_offsets}
        end = replace(stream_end(self._options, before, partitions, last.next_offsets), cut=last.cut)
        if (end.next_offsets, end.topic_ids) == (before.next_offsets, before.topic_ids):
            return start
        return self._admitted(before, end, limit).to_json()

    def _not_before(self, before: StreamOffsets, last: StreamOffsets) -> StreamOffsets:
        """The last cut; after a restart of the broker, not one before the stream's position."""
        assert before.cut is not None
        assert last.cut is not None
        if before.next_offsets and last.cut < before.cut and last.cut.group == before.cut.group:
            found = self._at_cuts.regained(before.cut.commit_sequence)
            if found is not None:
                self._last = found
                self._target = self._target and found
                return found
        return last

    def _look_at_cut(self) -> StreamOffsets:
        """Request the last cut.

        It is never cached: a writer that then calls `processAllAvailable` expects its commits.
        """
        now = time.monotonic()
        known = self._last if now - self._partitions_at <= METADATA_AGE_MAX_S else None
        found = self._at_cuts.latest(known)
        if found is not known:
            self._partitions_at = now
        if self._last is not None and found.topic_ids != self._last.topic_ids:
            self._at_cuts.forget()
        self._last = found
        return found

    def _limited(self, start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
        assert end.cut is not None
        options = self._options
        ranges = ranges_between(self._begun(start, end), end.next_offsets)
        if self._waits(
            lambda: count_up_to(ranges, self._at_cuts.commits(ranges), options.trigger_offsets_min or 0)
        ):
            return start
        limits = TriggerLimits(options.trigger_offsets_max or NO_LIMIT, options.trigger_size_max or NO_LIMIT)
        if limits.size_max < NO_LIMIT:
            limits = replace(limits, record_sizes={one.place: self._record_size(one) for one in ranges})
        counts = {
            one.place: one.end - one.start for one in ranges
        }  # There are at most as many records as offsets.
        size = sum(count * limits.record_sizes.get(place, 0) for place, count in counts.items())
        if sum(counts.values()) <= limits.count_max and size <= limits.size_max:
            return end
        found = admit(ranges, self._at_cuts.commits(ranges), end.cut.commit_sequence, limits)
        return StreamOffsets(
            {**end.next_offsets, **found.ends},
            end.topic_ids,
            end.cut._replace(commit_sequence=found.commit_sequence),
        )

    def _record_size(self, wanted: Range) -> float:
        if wanted.place not in self._record_sizes:
            found = record_size(cluster_of(self._opened), wanted)
            if found is None:
                return RECORD_SIZE_GUESS  # the task that reads it will say so
            self._record_sizes[wanted.place] = found
        return self._record_sizes[wanted.place]

    def _begun(self, start: StreamOffsets, end: StreamOffsets) -> dict[TopicPartition, int]:
        """The start of each partition, including those that the stream has not read before."""
        assert start.cut is not None
        assert end.cut is not None
        begun = {}
        for place in end.next_offsets:
            topic = place[0]
            is_other = start.topic_ids.get(topic, "") != end.topic_ids.get(topic, "")
            known = start.next_offsets.get(place)
            if not start.next_offsets:
                begun[place] = 0  # The topic did not exist when the query began.
            elif known is not None and not (is_other and topic in start.topic_ids):
                begun[place] = known
            elif start.cut.commit_sequence <= end.cut.commit_sequence and end.next_offsets[place] > 0:
                try:
                    begun[place] = self._at_cuts.begins(place, start.cut)
                except Missing:
                    if self._options.fail_on_data_loss:
                        raise
        return begun

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The last cut, for the query's progress: what is still to be read lies before it."""
        return self._last.to_json() if self._last is not None else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a micro-batch. They depend only on the offsets, because a restarted query calls this first."""
        before = reader.read_offsets(start, at_cuts=True)
        after = reader.read_offsets(end, at_cuts=True)
        known = replace(before, next_offsets=self._begun(before, after))
        ranges = stream_ranges(self._options, self._opened, known, after)
        if ranges:
            read = replace(before, next_offsets={one.place: one.end for one in ranges})
            self._at_cuts.check_whole(read, before.next_offsets.keys())
        spans = self._opened.spans(ranges, after.topic_ids)
        return [TaskPartition(pieces) for pieces in plan(spans, reader.limits(self._options))]

    def stop(self) -> None:
        """Close connections and files."""
        super().stop()
        self._cuts = None


def _check_history(options: ReadOptions, before: StreamOffsets, last: StreamOffsets) -> None:
    """Check that the commits continue those that the stream has read.

    Raises:
        InvalidConfig: they belong to another transaction group.
        Unavailable: their commit sequences begin again.
    """
    assert before.cut is not None
    assert last.cut is not None
    if not before.next_offsets or not last.next_offsets:
        return  # of no topics: of which group they would be is not known
    if before.cut.group != last.cut.group:
        raise InvalidConfig(
            f"the checkpoint is of transaction group {before.cut.group!r}, and the topics are of {last.cut.group!r} by now: "
            "begin with a new checkpoint"
        )
    if last.cut.commit_sequence < before.cut.commit_sequence:
        lost(
            options,
            f"commit sequence {last.cut.commit_sequence} is the last one, and was read up to {before.cut.commit_sequence} "
            "before: the commit log has begun anew",
        )
