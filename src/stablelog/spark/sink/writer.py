"""The sink: `write.format("stablelog")` and `writeStream.format("stablelog")`, exactly once.

Each task writes its rows in a transaction of its own, a *child*. The driver commits all children with one joint commit:
one durable record, one commit sequence. A key and a version identify the joint commit:

    a stream                    key: the query's id, which its checkpoint stores  version: the micro-batch
    a write with txnAppId       key: txnAppId and the topic                       version: txnVersion
    any other write             key: a random one                                 version: 0

If Spark repeats a committed micro-batch, the broker reports to its tasks that it is committed, and they write nothing.
If the response to a commit is lost, a repeated request gets the same response. The joint commit also aborts the
transactions of failed, late and repeated attempts. `abort`, which Spark also calls after a commit, never undoes a
commit. If two drivers use one checkpoint, the later one takes the micro-batch over, and the earlier one gets an error.

The number of a micro-batch does not identify its rows: if a checkpoint has lost the plan, or was restored from a copy,
Spark may plan other rows under the same number. The joint commit therefore contains a digest of the plan. If a
micro-batch was committed with another plan, the sink raises an error instead of skipping its rows.

Spark calls `writer` and `streamWriter` on the driver before each job, and `write` in a Python worker of an executor. It
calls `commit` and `abort` on the driver, too, but in another process than `writer` and `streamWriter`; for a stream,
also on another writer object. Source: docs/reference/spark-options.md, "Exactly once";
docs/decisions/0006-joint-commit.md.
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

from stablelog.client.blocking import joint
from stablelog.client.core.security import SecuritySettings
from stablelog.errors import RefusedError, UnavailableError, UsageError, did_you_mean
from stablelog.spark.messages import one_line
from stablelog.spark.offsets import by_topic
from stablelog.spark.options import WriteOptions, write_options
from stablelog.spark.sink.checkpoint import digest_of, local_checkpoint, plan_digest, progress
from stablelog.spark.sink.task import Task, write_part
from stablelog.spark.sink.task_commits import abort_parts, commit_parts
from stablelog.spark.sink.task_messages import (
    EXACTLY_ONCE,
    JointWrite,
    WriteReport,
    application_key,
    shared_cluster,
)

QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
# How long the broker remembers the commit of a batch write without txnAppId, which no later write repeats.
ONE_WRITE_RETENTION_MS = 3_600_000
# Columns of a source's rows that the sink ignores, because the broker sets their values.
IGNORED = frozenset(
    {"offset", "timestamp", "timestampType", "commitSequence", "commitTimestamp", "transactionGroup"}
)
# name of a column -> the types that the sink accepts, in Spark's notation
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

    @one_line
    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state of this writer for the tasks of a micro-batch, with a number that is greater for
        later starts of the query (`order`).

        Only the tasks use this number; the commit on the driver does not.
        """
        order = _next_order(self.options) if self.order == joint.NO_ORDER else self.order
        return {**self.__dict__, "order": order}

    @one_line
    def write(self, iterator: Iterator[Any]) -> WriteReport:
        """Write the rows of one task of a micro-batch, and return its message to the driver. Spark calls this in the
        task.
        """
        context = TaskContext.get()
        assert context is not None
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query_id or batch_id is None:
            raise UnavailableError(
                "Spark has not passed the ids of the query and of the micro-batch, without which the sink cannot identify the commit"
            )
        run = context.getLocalProperty(RUN_ID) or self.run
        part = JointWrite(query_id, int(batch_id), run, self.order, in_sequence=True)
        return write_part(self.options, part, _task_of(context), iterator)

    @one_line
    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Commit the rows of all tasks of the micro-batch `batchId` with one commit of all their transactions. With
        guarantee=at-least-once, each transaction is committed alone.
        """
        checkpoint = self.options.checkpoint
        offsets = progress(checkpoint, batchId) if self.options.commit_group is not None else None
        commit_parts(self.options, messages, offsets, plan_digest(checkpoint, batchId))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Abort the open transactions of the tasks. Committed transactions stay committed."""
        abort_parts(self.options, messages)


class BatchWriter(DataSourceArrowWriter):
    """The sink of a batch write, also of a batch write in `foreachBatch`."""

    def __init__(self, options: WriteOptions, part: JointWrite) -> None:
        self._options = options
        self.part = part

    @one_line
    def write(self, iterator: Iterator[Any]) -> WriteReport:
        """Write the rows of one task of a batch write, and return its message to the driver. Spark calls this in the
        task.
        """
        context = TaskContext.get()
        assert context is not None
        return write_part(self._options, self.part, _task_of(context), iterator)

    @one_line
    def commit(self, messages: Sequence[Any]) -> None:
        """Commit the rows of all tasks of the write with one commit of all their transactions. With
        guarantee=at-least-once, each transaction is committed alone.
        """
        offsets = self._options.source_offsets
        commit_parts(self._options, messages, offsets, digest_of(by_topic(offsets)) if offsets else "")

    def abort(self, messages: Sequence[Any]) -> None:
        """Abort the open transactions of the tasks. Committed transactions stay committed."""
        abort_parts(self._options, messages)


def _task_of(context: TaskContext) -> Task:
    return Task(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def stream_writer(given: Mapping[str, str], schema: Any) -> StreamWriter:
    """Return a writer for the rows of a stream.

    Raises:
        UsageError: an option or a column is unknown, contradictory or of a wrong type.
        RefusedError: the topic does not exist, or the broker does not support the guarantee.
        UnavailableError: no broker answers.
    """
    options = write_options(given)
    if options.app_id is not None:
        raise UsageError(
            "txnAppId and txnVersion are for batch writes: the checkpoint of a stream identifies its commits, and one txnVersion for all of its micro-batches would skip all but the first"
        )
    if options.source_offsets is not None:
        raise UsageError("sourceOffsets are for batch writes: a stream's are in its checkpoint")
    if options.commit_group is not None:
        local_checkpoint(options.checkpoint)
    check_columns(schema, options.topic)
    _check_broker(options)
    return StreamWriter(options, uuid.uuid4().hex)


def batch_writer(given: Mapping[str, str], schema: Any, *, overwrite: bool) -> BatchWriter:
    """Return a writer for the rows of a batch write.

    Args:
        given: the options of the write.
        schema: the columns of the rows.
        overwrite: whether the mode of the write is `overwrite`. The sink only appends rows, so it refuses this mode.

    Raises:
        UsageError: an option or a column is unknown, contradictory or of a wrong type.
        RefusedError: the topic does not exist, or the broker does not support the guarantee.
        UnavailableError: no broker answers.
    """
    options = write_options(given)
    if overwrite:
        raise UsageError("a log cannot be overwritten, only appended to: use .mode('append')")
    if options.commit_group is not None and options.source_offsets is None:
        raise UsageError(
            "there are no offsets for the commitGroup of a batch write: give the offsets to commit in the option "
            "sourceOffsets"
        )
    check_columns(schema, options.topic)
    key = application_key(options.app_id, options.topic) if options.app_id is not None else ""
    _check_broker(options)
    run = uuid.uuid4().hex
    if options.app_id is None or options.version is None:
        return BatchWriter(options, JointWrite(f"write-{run}", 0, run, retention_ms=ONE_WRITE_RETENTION_MS))
    target = "rows with a column topic" if options.topic is None else f"topic {options.topic}"
    write = f"txnAppId {options.app_id} for {target}"
    part = JointWrite(key, options.version, run, _next_order(options), write=write)
    return BatchWriter(options, part)


def _next_order(options: WriteOptions) -> int:
    """Return the next number in the order of the starts of this query or job: it is greater than the numbers of earlier
    starts. By it, the broker recognizes and refuses tasks of earlier starts. Return NO_ORDER if the guarantee is
    at-least-once.

    Raises:
        UnavailableError: no broker responds.
    """
    return joint.next_order(shared_cluster(options)) if options.guarantee == EXACTLY_ONCE else joint.NO_ORDER


def check_columns(schema: Any, topic: str | None) -> None:
    """Check that rows of this schema can be written. `topic` is the topic of all rows; None if the rows must have the
    column `topic`.

    Raises:
        UsageError: a column is missing, unknown, or of an unsupported type. The message names the column.
    """
    types = {field.name: field.dataType for field in schema.fields}
    for name, found in types.items():
        if name in IGNORED:
            continue
        if name not in COLUMNS:
            hint = did_you_mean(name, COLUMNS) or f"; there are {', '.join(COLUMNS)}"
            raise UsageError(f"column {name!r} is unknown to the sink{hint}")
        written = found.simpleString()
        if written not in COLUMNS[name]:
            raise UsageError(f"column {name!r} is {written}: it has to be {' or '.join(COLUMNS[name])}")
    if "value" not in types:
        raise UsageError(f"there is no column 'value'; the rows have {', '.join(types) or 'no columns'}")
    if topic is None and "topic" not in types:
        raise UsageError("the rows have no topic: give the option topic or a column topic")


_checked: set[tuple[str, str | None, str, SecuritySettings]] = set()


def _check_broker(options: WriteOptions) -> None:
    """Check before the job that the broker supports the guarantee of the write: for exactly-once, it must be able to
    commit the transactions of all tasks together. Each process checks a broker only once.
    """
    asked = (options.bootstrap, options.topic, options.guarantee, options.security)
    if asked in _checked:
        return
    cluster = shared_cluster(options)
    if options.guarantee == EXACTLY_ONCE and not joint.supported(cluster):
        raise RefusedError(
            ErrorCode.unsupported_version,
            f"{options.bootstrap} is no stablelog broker: it cannot commit the transactions of many tasks as one, which guarantee=exactly-once requires (Kafka's two-phase commit is not sufficient, see docs/how-it-works/spark-internals.md). Option guarantee=at-least-once commits each task's transaction when Spark commits the micro-batch: readers never see rows of failed tasks, but after a crash rows may be repeated, or only a part of a micro-batch may be visible",
        )
    if options.topic is not None:
        cluster.partition_counts([options.topic])
    _checked.add(asked)
