"""Spark's readers of topics, for batches and streams. By default they return committed records only."""

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.commits import Commits
from stablelog.client.responses import UnknownTopicOrPartitionError
from stablelog.errors import UsageError
from stablelog.spark.messages import one_line, one_line_each
from stablelog.spark.offsets import StreamOffsets
from stablelog.spark.options import ReadOptions
from stablelog.spark.planning import Piece, TaskLimits, plan_tasks
from stablelog.spark.schema import Columns, shaped
from stablelog.spark.source import (
    broker_log,
    directory_log,
    extent_reader,
    object_log,
    object_reader,
    tiered_log,
)
from stablelog.spark.source.commit_ordered_log import group_of
from stablelog.spark.source.cuts import batch_ranges
from stablelog.spark.source.listing_retry import retry_with_new_listing
from stablelog.spark.source.readable_ranges import batch_parts, micro_batch_ranges, parts_of
from stablelog.spark.source.resolve import (
    Log,
    Waiting,
    report_loss,
    resolve_bound,
    stream_end,
    topic_ids_of,
)
from stablelog.spark.worker import tune_worker
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
METADATA_AGE_MAX_S = 5.0


class TaskPartition(InputPartition):
    """The pieces that one task reads: ranges of offsets, each with what the task needs to read it."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(None)
        self.pieces = tuple(pieces)


def open_log(options: ReadOptions) -> Log:
    """Open the log that the options name, and return it: the log of brokers, of a data directory, or of an object
    store.
    """
    if options.store_url is not None:
        return object_log.ObjectLog(options) if options.bootstrap is None else tiered_log.TieredLog(options)
    if options.bootstrap is None:
        return directory_log.DirectoryLog(options)
    if options.scan == "fetch":
        return broker_log.BrokerLog(options)
    return directory_log.SharedLog(options)


def limits(options: ReadOptions) -> TaskLimits:
    """Return the limits for the size and the number of tasks that the options set.

    PySpark tells the process that plans a read nothing about the cluster. `stablelog.spark.register` sets the option
    parallelism to the session's default parallelism. Without it, the number of cores of this machine (the driver's) is
    used.
    """
    return TaskLimits(
        options.target_size,
        options.parallelism or _core_count(),
        options.task_count_min,
        options.task_offsets_max,
    )


def _core_count() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_offsets(value: Mapping[str, Any], *, at_cuts: bool) -> StreamOffsets:
    """Decode a stream's offsets from their JSON form.

    Args:
        value: the offsets in the JSON format of Spark's checkpoint.
        at_cuts: whether the stream has the option cut=true, so that each micro-batch contains only whole transactions.

    Raises:
        UsageError: the offsets belong to a stream with another value of the option cut.
    """
    found = StreamOffsets.from_json(value)
    if at_cuts and found.cut is None:
        raise UsageError(
            "the checkpoint is of a query without cut=true, whose offsets are not a cut (a position "
            "between two commits): leave out the option cut, or begin with a new checkpoint"
        )
    if not at_cuts and found.cut is not None:
        raise UsageError(
            "the checkpoint is of a query with cut=true: set cut=true again, or begin with a new checkpoint"
        )
    return found


def check_columns(columns: Columns, log: Log, topics: Iterable[str]) -> None:
    """Check that the topics are commit-ordered (readers get their transactions in the order of their commits) if the
    read has a column of commits, such as `commitSequence`.

    Raises:
        UsageError: a topic is not commit-ordered.
    """
    if columns.of_commits:
        for topic in topics:
            group_of(log, topic)


def read_task(options: ReadOptions, columns: Columns, partition: Any) -> Iterator[Any]:
    """Yield the records of a task, whose ranges are in `partition`, as Arrow batches. If the read has no tasks, Spark
    calls this function once with another object as `partition`; then nothing is yielded.
    """
    from stablelog.spark.columns.builder import ColumnBuilder
    from stablelog.spark.columns.commit_columns import CommitColumns, decoded_names
    from stablelog.spark.columns.decoder import Decoder

    tune_worker()
    if not isinstance(partition, TaskPartition):
        return
    cluster = broker_log.connect(options) if options.bootstrap is not None else None
    schema = columns.arrow_schema()
    # Use one builder for the task, so that small pieces share an Arrow batch.
    builder = ColumnBuilder(decoded_names(columns.names))
    fetched: list[Piece] = []
    try:
        for piece in partition.pieces:
            decoder = Decoder(
                piece.topic,
                piece.partition,
                builder,
                isolation=options.isolation,
                check_crc=options.check_crc,
                skipped=None if options.fail_on_data_loss else partial(report_loss, options),
            )
            if piece.stored is not None:
                batches = object_reader.read(options, cluster, piece, decoder)
            elif piece.extents or cluster is None:
                batches = extent_reader.read(options, cluster, piece, decoder)
            else:
                batches = broker_log.read(options, cluster, piece, decoder)
            if columns.of_commits:
                of_commits = CommitColumns(
                    *_commits_of(options, cluster, piece, columns), piece, columns.names
                )
                batches = map(of_commits.with_commits, chain(batches, builder.take_batches()))
            for batch in batches:
                yield shaped(batch, schema)
            if not piece.extents and piece.stored is None and decoder.next_offset > piece.start:
                fetched.append(piece)
        for batch in builder.take_batches():
            yield shaped(batch, schema)
        if cluster is not None and fetched:
            broker_log.check_topics(cluster, fetched)
    finally:
        if cluster is not None:
            cluster.close()


def _commits_of(
    options: ReadOptions, cluster: BlockingCluster | None, piece: Piece, columns: Columns
) -> tuple[Callable[[int], Commits], str]:
    """Return a pair: a function that lists the next transactions of a piece (a range of offsets) that end after a given
    offset, and the name of the topic's transaction group. (A transaction group is the topics whose commits have one
    order.) The name is empty if no column needs it.
    """
    if cluster is None:
        assert piece.stored is not None
        return object_reader.listing(options, piece), piece.stored.group
    log = broker_log.BrokerLog(options, cluster)
    group = group_of(log, piece.topic) if "transactionGroup" in columns.names else ""
    return partial(log.commits, (piece.topic, piece.partition)), group


class StablelogReader(DataSourceReader):
    """Batch reader of topics. It reads the records that exist when the read is planned."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    @one_line
    def partitions(self) -> list[InputPartition]:
        """Return the tasks of the read."""
        log = open_log(self._options)
        try:
            return retry_with_new_listing(log, lambda: self._plan_tasks(log))
        except BaseException:
            log.end_read()
            raise
        finally:
            log.close()

    def _plan_tasks(self, log: Log) -> list[InputPartition]:
        ranges, topic_ids = batch_ranges(self._options, log)
        check_columns(self._columns, log, topic_ids)
        spans = log.spans(batch_parts(self._options, log, ranges, topic_ids), topic_ids)
        return [TaskPartition(pieces) for pieces in plan_tasks(spans, limits(self._options))]

    @one_line_each
    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the records of a task, whose ranges are in `partition`, as Arrow batches."""
        return read_task(self._options, self._columns, partition)


class StablelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of topics. Its offsets are the next offset to read of each partition."""

    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self.options = options
        self.columns = columns
        self._partitions: dict[TopicPartition, str] = {}
        self._partitions_at = float("-inf")
        self._latest: dict[TopicPartition, int] = {}
        self._batch_at = float("-inf")
        self._target: StreamOffsets | None = None
        self._missing: set[str] = set()  # The topics that the options name but that do not exist.
        self._checked: set[str] = set()  # The topics that `check_columns` has accepted.
        self._waiting = Waiting()

    @cached_property
    def source(self) -> Log:
        """The log to read, which is opened at its first use."""
        return open_log(self.options)

    @one_line
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offsets at which a query without a checkpoint begins."""
        return retry_with_new_listing(self.source, self._initial_offsets)

    def _initial_offsets(self) -> dict[str, Any]:
        partitions = self.source.partitions()
        latest, earliest = self.source.latest(partitions), self.source.earliest(partitions)
        found = resolve_bound(
            self.options, self.source, self.options.starting, "startingOffsets", earliest, latest
        )
        return StreamOffsets(found, topic_ids_of(partitions)).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return one of the limits of a micro-batch that the options set, because Spark accepts only one here.
        `latestOffset` applies all of them.
        """
        options = self.options
        if options.trigger_offsets_max is not None:
            return ReadMaxRows(options.trigger_offsets_max)
        if options.trigger_size_max is not None:
            return ReadMaxBytes(options.trigger_size_max)
        if options.trigger_offsets_min is not None:
            return ReadMinRows(options.trigger_offsets_min)
        return ReadAllAvailable()

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Limit the query to the records that exist now."""
        self._target = retry_with_new_listing(self.source, self._current_offsets)

    def _current_offsets(self) -> StreamOffsets:
        partitions = self._existing_partitions()
        return StreamOffsets(self.source.latest(partitions), topic_ids_of(partitions))

    @one_line
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offsets up to which the next micro-batch reads; `start` if there is nothing new to read."""
        return retry_with_new_listing(self.source, lambda: self._next_offsets(start, limit))

    def _next_offsets(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = read_offsets(start, at_cuts=False)
        latest = self._request_ends()
        if self._target is not None:
            latest = {
                place: min(offset, max(self._target.next_offsets[place], before.next_offsets.get(place, 0)))
                for place, offset in latest.items()
                if place in self._target.next_offsets
            }
        if any(before.next_offsets.get(place) != offset for place, offset in latest.items()):
            # Read the topic ids after the offsets: then a topic that was deleted and created again meanwhile has
            # another id than before.
            self._list_partitions()
            latest = {place: offset for place, offset in latest.items() if place in self._partitions}
        end = stream_end(self.options, self.source, before, self._partitions, latest, self._waiting)
        return start if end == before else self._batch_end(before, end, limit).to_json()

    def _batch_end(self, start: StreamOffsets, end: StreamOffsets, limit: ReadLimit) -> StreamOffsets:
        """Return the offsets up to which the next micro-batch reads, within its limits; `start` if the stream waits for
        more records first.
        """
        if not isinstance(limit, ReadAllAvailable):
            end = self._limit_batch(start, end)
        if end != start:
            self._batch_at = time.monotonic()
        return end

    def _request_ends(self) -> dict[TopicPartition, int]:
        """Request the end offsets.

        The offsets are never cached: after a write, a program that calls `processAllAvailable` expects that the stream
        reads the new rows.
        """
        if time.monotonic() - self._partitions_at > METADATA_AGE_MAX_S:
            self._list_partitions()
        try:
            self._latest = self.source.latest(self._partitions)
        except UnknownTopicOrPartitionError:  # A topic was deleted after its partitions were listed.
            self._list_partitions()
            self._latest = self.source.latest(self._partitions)
        return self._latest

    def _list_partitions(self) -> None:
        self._partitions, self._partitions_at = self._existing_partitions(), time.monotonic()

    def _existing_partitions(self) -> dict[TopicPartition, str]:
        """Return the existing partitions. With failOnDataLoss=false, deleted topics are left out. The stream's offsets
        still contain their partitions, so `stream_end` reports their records as lost.
        """
        found = self.source.partitions(there_only=not self.options.fail_on_data_loss)
        missing = set(self.options.topics) - {topic for topic, _ in found}
        if missing - self._missing:
            log.warning(
                "there is no topic %s; the stream continues without it, because failOnDataLoss is false",
                ", ".join(sorted(missing)),
            )
        self._missing = missing
        return found

    def _limit_batch(self, start: StreamOffsets, end: StreamOffsets) -> StreamOffsets:
        options = self.options
        ranges = micro_batch_ranges(options, self.source, start, end, is_planned=False)
        if self._waits_for_records(lambda: sum(one.count for one in ranges)):
            return start
        if options.trigger_offsets_max is None and options.trigger_size_max is None:
            return end
        ends = self.source.limit_ranges(
            ranges, end.topic_ids, options.trigger_offsets_max, options.trigger_size_max
        )
        return StreamOffsets({**end.next_offsets, **ends}, end.topic_ids)

    def _waits_for_records(self, count: Callable[[], int]) -> bool:
        """Return True if the stream waits for more records before the next micro-batch: it would have fewer than the
        minimum, and its maximum delay has not passed yet. `count` returns the number of records that it would have.
        """
        count_min = self.options.trigger_offsets_min
        if count_min is None or self._target is not None or count() >= count_min:
            return False
        if self._batch_at == float("-inf"):
            self._batch_at = time.monotonic()  # The delay of the first micro-batch is measured from here.
        return (time.monotonic() - self._batch_at) * 1000 < self.options.trigger_delay_max_ms

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the end offsets of the partitions as they were last requested, for the query's progress report; None
        if they were not requested yet. They may be after the offsets up to which the stream has read.
        """
        return StreamOffsets(self._latest, topic_ids_of(self._partitions)).to_json() if self._latest else None

    @one_line
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a micro-batch. The tasks depend only on `start` and `end`, not on the state of the
        reader, because a restarted query calls this method before all others.
        """
        before, after = read_offsets(start, at_cuts=False), read_offsets(end, at_cuts=False)
        return retry_with_new_listing(self.source, lambda: self._plan_tasks(before, after))

    def _plan_tasks(self, before: StreamOffsets, after: StreamOffsets) -> list[InputPartition]:
        ranges = micro_batch_ranges(self.options, self.source, before, after)
        topics = after.topic_ids.keys() - self._checked
        check_columns(self.columns, self.source, topics)
        self._checked |= topics
        spans = self.source.spans(parts_of(ranges), after.topic_ids)
        return [TaskPartition(pieces) for pieces in plan_tasks(spans, limits(self.options))]

    @one_line_each
    def read(self, partition: Any) -> Iterator[Any]:
        """Yield the records of a task, whose ranges are in `partition`, as Arrow batches."""
        return read_task(self.options, self.columns, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing when Spark has finished a micro-batch: Spark's checkpoint stores its end offsets (`end`)."""

    def stop(self) -> None:
        """Close connections and files."""
        if "source" in vars(self):
            self.source.end_read()
            self.source.close()
            del self.source

    def __getstate__(self) -> Any:
        return self.options, self.columns

    def __setstate__(self, state: Any) -> None:
        self.__init__(*state)  # type: ignore[misc]
