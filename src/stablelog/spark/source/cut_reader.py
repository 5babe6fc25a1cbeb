"""Reader of a stream with the option cut=true: each micro-batch consists of whole transactions over all topics of the
stream.

A cut consists of a commit sequence R, the number of a commit in the transaction group (topics whose commits have one
order), and of one offset for each partition. Before this offset, the partition has all its commits up to R, and no
later ones. The stream's offsets contain the next offset of each partition, and the cut. A commit in another topic of
the transaction group changes the last cut, but not the offsets of the stream's partitions. Such a commit does not start
a micro-batch.
"""

import logging
import time
from dataclasses import replace
from functools import cached_property
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit

from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import UsageError
from stablelog.spark.messages import one_line
from stablelog.spark.offsets import StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import plan_tasks
from stablelog.spark.schema import Columns
from stablelog.spark.source import reader
from stablelog.spark.source.commit_ordered_log import commit_ordered
from stablelog.spark.source.cuts import Cuts
from stablelog.spark.source.micro_batch_end import NO_LIMIT, TriggerLimits, count_up_to, micro_batch_end
from stablelog.spark.source.readable_ranges import micro_batch_ranges, parts_of
from stablelog.spark.source.reader import METADATA_AGE_MAX_S, StablelogStreamReader, TaskPartition
from stablelog.spark.source.resolve import report_loss, stream_end
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)


class CutStreamReader(StablelogStreamReader):
    """Stream reader of commit-ordered topics of one transaction group: topics whose commits have one order, in which
    readers get the transactions. Each micro-batch reads from one cut (a position between two commits, in all
    partitions) to a later one: all records of the commits in between.
    """

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        super().__init__(options, columns)
        self._last: StreamOffsets | None = None  # The last cut that the broker has reported.
        self._waits_for_store = (
            False  # Whether the last cut of the object store is before the stream's position.
        )

    @cached_property
    def cuts(self) -> Cuts:
        """The object that requests the cuts of this stream's topics (positions between two commits, in all partitions)
        from the broker or the object store.
        """
        return Cuts(self.options, self.source, self._existing_partitions)

    @one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the cut (the position in all partitions after a commit, with the number of this commit) at which a
        query without a checkpoint begins.
        """
        latest = self.cuts.last_cut()
        return self.cuts.resolve_bound(self.options.starting, "startingOffsets", latest).to_json()

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to the transactions that are committed now."""
        self._target = self._last = self.cuts.last_cut()

    @one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the cut (the position in all partitions after a commit, with the number of this commit) up to which
        the next micro-batch reads; `start` if there is nothing new to read.
        """
        before = reader.read_offsets(start, at_cuts=True)
        last = self._wait_for_position(before, self._target or self._request_last_cut())
        _check_history(self.options, before, last)
        partitions = {place: last.topic_ids.get(place[0], "") for place in last.next_offsets}
        found = stream_end(self.options, self.source, before, partitions, last.next_offsets, self._waiting)
        end = replace(found, cut=last.stream_cut)
        if (end.next_offsets, end.topic_ids) == (before.next_offsets, before.topic_ids):
            return start
        return self._batch_end(before, end, limit).to_json()

    def _wait_for_position(self, before: StreamOffsets, last: StreamOffsets) -> StreamOffsets:
        """Return the last cut, a position between two commits in all partitions. If it is before the stream's position,
        first wait for a later cut.

        After a restart, the broker may report an earlier cut until it has opened all partitions: this method waits for
        a limited time until the broker reports the stream's position or a later one. The last cut of an object store
        may also be before the stream's position: this method then returns the position itself, so that the stream reads
        nothing until the store has more.

        Args:
            before: the stream's position, which is a cut.
            last: the last cut that the broker or the store has reported.
        """
        if not before.next_offsets or last.stream_cut.group != before.stream_cut.group:
            return last
        if last.stream_cut < before.stream_cut:
            found = self.cuts.wait_for_cut(before.stream_cut.commit_sequence)
            if found is not None:
                self._last = found
                self._target = self._target and found
                last = found
        if not self.cuts.may_lag or before.replaced_topics(last.topic_ids):
            return last
        if last.stream_cut < before.stream_cut:
            if not self._waits_for_store:
                log.warning(
                    "the stream has read up to commit sequence %s, but the object store has all partitions only up to "
                    "commit sequence %s. The stream waits, skips nothing, and goes on when the broker has copied more "
                    "to the store. If it waits for long, check that the broker runs and copies its segments",
                    before.stream_cut.commit_sequence,
                    last.stream_cut.commit_sequence,
                )
            self._waits_for_store = True
            return before
        self._waits_for_store = False
        # A broker may have returned records outside transactions that are after the end of the store.
        ends = {
            place: max(end, before.next_offsets.get(place, 0)) for place, end in last.next_offsets.items()
        }
        return replace(last, next_offsets=ends)

    def _request_last_cut(self) -> StreamOffsets:
        """Request the last cut that the log has: the position after the last commit whose markers are all durable.

        A cut at the commit sequence R (the number of a commit) has one offset for each partition. The records of a
        commit up to R are before these offsets in all partitions. The records of a later commit are at or after these
        offsets in all partitions.

        The response is never cached: after a commit, a program that calls `processAllAvailable` expects that the stream
        reads this commit.
        """
        now = time.monotonic()
        known = self._last if now - self._partitions_at <= METADATA_AGE_MAX_S else None
        found = self.cuts.last_cut(known)
        if found is not known:
            self._partitions_at = now
        if self._last is not None and found.topic_ids != self._last.topic_ids:
            self.cuts.clear_listings()
        self._last = found
        return found

    def _limit_batch(self, start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
        options = self.options
        known = replace(start, next_offsets=self._start_offsets(start, end))
        ranges = micro_batch_ranges(options, self.source, known, end, is_planned=False)
        whole = [one.whole for one in ranges]
        if self._waits_for_records(
            lambda: count_up_to(ranges, self.cuts.commits(whole), options.trigger_offsets_min or 0)
        ):
            return start
        limits = TriggerLimits(options.trigger_offsets_max or NO_LIMIT, options.trigger_size_max or NO_LIMIT)
        if limits.size_max < NO_LIMIT:
            record_size = commit_ordered(self.source).record_size
            sizes = {one.place: record_size(one.parts[0], "read_committed") for one in ranges if one.parts}
            limits = replace(limits, record_sizes=sizes)
        # A range has at most as many records as offsets. If the number of all offsets is within the limits, read all
        # ranges to their ends.
        counts = {one.place: one.count for one in ranges}
        size = sum(count * limits.record_sizes.get(place, 0) for place, count in counts.items())
        if sum(counts.values()) <= limits.count_max and size <= limits.size_max:
            return end
        found = micro_batch_end(ranges, self.cuts.commits(whole), end.stream_cut.commit_sequence, limits)
        return StreamOffsets(
            {**end.next_offsets, **found.ends},
            end.topic_ids,
            end.stream_cut._replace(commit_sequence=found.commit_sequence),
        )

    def _start_offsets(self, start: StreamOffsets, end: StreamOffsets) -> dict[TopicPartition, int]:
        """Return the offset of each partition at which a micro-batch begins, also for partitions that the stream has
        not read before. `start` and `end` are the cuts at which the micro-batch begins and ends, positions between two
        commits in all partitions.
        """
        replaced = start.replaced_topics(end.topic_ids)
        begun = {}
        for place in end.next_offsets:
            known = start.next_offsets.get(place)
            if not start.next_offsets:
                begun[place] = 0  # No topic existed when the query began, so the stream reads all records.
            elif known is not None and place[0] not in replaced:
                begun[place] = known
            elif (
                start.stream_cut.commit_sequence <= end.stream_cut.commit_sequence
                and end.next_offsets[place] > 0
            ):
                try:
                    begun[place] = self.cuts.begins(place, start.stream_cut)
                except UnknownTopicOrPartitionError:
                    if self.options.fail_on_data_loss:
                        raise
        return begun

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the last cut (the position in all partitions after a commit, with the number of this commit), for the
        query's progress report; None if it was not requested yet. The stream may not have read up to this cut yet.
        """
        return self._last.to_json() if self._last is not None else None

    @one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch. The tasks depend only on `start` and `end`, not on the state of the
        reader, because a restarted query calls this method before all others.
        """
        before = reader.read_offsets(start, at_cuts=True)
        after = reader.read_offsets(end, at_cuts=True)
        known = replace(before, next_offsets=self._start_offsets(before, after))
        ranges = micro_batch_ranges(self.options, self.source, known, after)
        if ranges:
            read = replace(before, next_offsets={one.place: one.whole.end for one in ranges})
            self.cuts.check_whole(read, before.next_offsets.keys())
        spans = self.source.spans(parts_of(ranges), after.topic_ids)
        return [TaskPartition(pieces) for pieces in plan_tasks(spans, reader.limits(self.options))]

    def stop(self) -> None:
        """Close connections and files."""
        super().stop()
        vars(self).pop("cuts", None)


def _check_history(options: ReadOptions, before: StreamOffsets, last: StreamOffsets) -> None:
    """Check that the broker still has the commits that the stream has read: that the last cut (a position between two
    commits) is not before the stream's position.

    Raises:
        UsageError: the topics belong to another transaction group now.
        UnavailableError: the log of the coordinator was lost or replaced, so the numbers of the commits begin again.
    """
    if not before.next_offsets or not last.next_offsets:
        return  # Without topics, the transaction group is unknown.
    if before.stream_cut.group != last.stream_cut.group:
        raise UsageError(
            f"the checkpoint belongs to transaction group {before.stream_cut.group!r}, but the topics "
            f"belong to {last.stream_cut.group!r}: begin with a new checkpoint"
        )
    if last.stream_cut.commit_sequence < before.stream_cut.commit_sequence:
        report_loss(
            options,
            f"commit sequence {last.stream_cut.commit_sequence} is the last one, but the stream has read up to "
            f"{before.stream_cut.commit_sequence}: the commit log was lost, and its commit sequences have begun again",
        )
