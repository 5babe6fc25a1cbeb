"""The sink: `write.format("stablelog")` and `writeStream.format("stablelog")`, exactly once.

Each task writes its rows in a transaction of its own, a *child*. The driver decides all children with one joint commit:
one durable record, one commit sequence. A key and a version identify the joint commit:

    a stream                    key: the query's id, which its checkpoint keeps   version: the micro-batch
    a write with txnAppId       key: txnAppId                                     version: txnVersion
    any other write             key: made up for it                               version: 0

If Spark repeats a committed micro-batch, its tasks learn that it is committed and write nothing. If the response to a
commit is lost, a repeated request gets it again. The decision itself aborts what failed, late and repeated attempts
have written. `abort`, which Spark also calls for what has been committed, undoes no commit. Of two drivers on one
checkpoint, the later one takes the micro-batch over, and the earlier one gets an error.

The number of a micro-batch does not identify its rows: after a checkpoint has lost the plan or was restored, Spark may
plan other rows under the same number. The decision therefore contains a digest of the plan, and a micro-batch that was
committed with another plan is refused instead of skipped.

`writer` and `streamWriter` run on the driver before each job, `write` in a Python worker of an executor, `commit` and
`abort` on the driver, in another process and, for a stream, on another writer object.
Source: docs/spark.md, "The sink"; docs/decisions/0006-joint-commit.md.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
)

from stablelog.client import joint
from stablelog.errors import InvalidConfig, Refused, Unavailable, did_you_mean
from stablelog.spark.offsets import by_topic
from stablelog.spark.options import WriteOptions, write_options
from stablelog.spark.sink.checkpoint import digest_of, local_checkpoint, plan_digest, progress
from stablelog.spark.sink.ending import abort_parts, commit_parts
from stablelog.spark.sink.parts import (
    EXACTLY_ONCE,
    Part,
    Written,
    cluster_of,
)
from stablelog.spark.sink.task import Task, write_part

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
ONE_WRITE_RETENTION_MS = 3_600_000  # How long the broker remembers a write that cannot be repeated.
# Columns that a source has, and that the log sets itself.
IGNORED = frozenset(
    {"offset", "timestamp", "timestampType", "commitSequence", "commitTimestamp", "transactionGroup"}
)
# name -> the types that are written, as Spark names them
COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: WriteOptions, run: str, order: int = joint.NO_ORDER) -> None:
        self.options = options
        self.run = run
        self.order = order

    def __getstate__(self) -> dict[str, Any]:
        """Pickle for the tasks of a micro-batch, with the order of this run.

        The driver's decision does not need the order.
        """
        order = _next_order(self.options) if self.order == joint.NO_ORDER else self.order
        return {**self.__dict__, "order": order}

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query_id or batch_id is None:
            raise Unavailable("Spark does not name the query and the micro-batch, which identify the commit")
        run = context.getLocalProperty(RUN_ID) or self.run
        part = Part(query_id, int(batch_id), run, self.order, in_sequence=True)
        return write_part(self.options, part, _task_of(context), iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Decide the micro-batch."""
        checkpoint = self.options.checkpoint
        offsets = progress(checkpoint, batchId) if self.options.commit_group is not None else None
        commit_parts(self.options, messages, offsets, plan_digest(checkpoint, batchId))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Abort what is not committed."""
        abort_parts(self.options, messages)


class BatchWriter(DataSourceArrowWriter):
    """The sink of a batch write, also of one in `foreachBatch`."""

    def __init__(self, options: WriteOptions, part: Part) -> None:
        self._options = options
        self._part = part

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None
        return write_part(self._options, self._part, _task_of(context), iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Decide the write."""
        offsets = self._options.source_offsets
        commit_parts(self._options, messages, offsets, digest_of(by_topic(offsets)) if offsets else "")

    def abort(self, messages: Sequence[Any]) -> None:
        """Abort what is not committed."""
        abort_parts(self._options, messages)


def _task_of(context: TaskContext) -> Task:
    return Task(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def stream_writer(given: Mapping[str, str], schema: Any) -> StreamWriter:
    """A writer for the rows of a stream.

    Raises:
        InvalidConfig: an option or a column is unknown, contradictory or of another type.
        Refused: the topic does not exist, or the broker does not support the guarantee.
        Unavailable: no broker answers.
    """
    options = write_options(given)
    if options.app_id is not None:
        raise InvalidConfig(
            "txnAppId and txnVersion are for batch writes: the checkpoint of a stream identifies its commits, and one txnVersion for all of its micro-batches would skip all but the first"
        )
    if options.source_offsets is not None:
        raise InvalidConfig("sourceOffsets are for batch writes: a stream's are in its checkpoint")
    if options.commit_group is not None:
        local_checkpoint(options.checkpoint)
    check_columns(schema, options.topic)
    _check_broker(options)
    return StreamWriter(options, uuid.uuid4().hex)


def batch_writer(given: Mapping[str, str], schema: Any, *, overwrite: bool) -> BatchWriter:
    """A writer for the rows of a batch.

    Raises:
        InvalidConfig: an option or a column is unknown, contradictory or of another type.
        Refused: the topic does not exist, or the broker does not support the guarantee.
        Unavailable: no broker answers.
    """
    options = write_options(given)
    if overwrite:
        raise InvalidConfig("a log is appended to, not overwritten: .mode('append')")
    if options.commit_group is not None and options.source_offsets is None:
        raise InvalidConfig("commitGroup of a batch write: option sourceOffsets says which offsets to commit")
    check_columns(schema, options.topic)
    _check_broker(options)
    run = uuid.uuid4().hex
    if options.app_id is None or options.version is None:
        return BatchWriter(options, Part(f"write-{run}", 0, run, retention_ms=ONE_WRITE_RETENTION_MS))
    return BatchWriter(options, Part(options.app_id, options.version, run, _next_order(options)))


def _next_order(options: WriteOptions) -> int:
    """The order of this run among those with the same key: tasks of earlier runs are refused from now on.

    Raises:
        Unavailable: no broker responds.
    """
    return joint.next_order(cluster_of(options)) if options.guarantee == EXACTLY_ONCE else joint.NO_ORDER


def check_columns(schema: Any, topic: str | None) -> None:
    """Check that rows of this schema can be written.

    Raises:
        InvalidConfig: a column is missing, unknown, or of an unsupported type; names it.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name, found in types.items():
        if name in IGNORED:
            continue
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS) or f"; there are {', '.join(COLUMNS)}"
            raise InvalidConfig(f"column {name!r} is not one that is written{hint}")
        written = found.simpleString()
        if written not in COLUMNS[name]:
            raise InvalidConfig(f"column {name!r} is {written}: it has to be {' or '.join(COLUMNS[name])}")
    if "value" not in types:
        raise InvalidConfig(f"there is no column 'value'; the rows have {', '.join(types) or 'no columns'}")
    if topic is None and "topic" not in types:
        raise InvalidConfig("say where to write: option topic, or a column topic")


_checked: set[tuple[str, str | None, str]] = set()


def _check_broker(options: WriteOptions) -> None:
    """Check before the job that the broker supports what its tasks need. Done once in a process."""
    asked = (options.bootstrap, options.topic, options.guarantee)
    if asked in _checked:
        return
    cluster = cluster_of(options)
    if options.guarantee == EXACTLY_ONCE and not joint.supported(cluster):
        raise Refused(
            ErrorCode.unsupported_version,
            f"{options.bootstrap} is no stablelog broker: it cannot decide the transactions of many tasks as one, which exactly once needs (Kafka's two-phase commit is not enough, see docs/spark.md). Option guarantee=at-least-once commits each task's transaction when Spark commits the micro-batch: readers never see what failed tasks wrote, but after a crash rows are repeated, or a part of a micro-batch is visible",
        )
    if options.topic is not None:
        cluster.partition_counts([options.topic])
    _checked.add(asked)
