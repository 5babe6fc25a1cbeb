"""`write.format("stablelog")` and `writeStream.format("stablelog")`: how do rows get into the log exactly once?

Each task writes its rows in a transaction of its own, a *child*. The driver decides all of them with one joint commit:
one durable record, one commit sequence. What it is known by:

    a stream                    key: the query's id, which its checkpoint keeps   version: the micro-batch
    a write with txnAppId       key: txnAppId                                     version: txnVersion
    any other write             key: made up for it                               version: 0

So a micro-batch that Spark repeats is recognised by its tasks, which write nothing then; an answer to the commit that
was lost is given again; what failed, late and repeated attempts have written is aborted by the decision itself; and
`abort`, which Spark also calls for what has been committed, undoes nothing. Of two drivers on one checkpoint the
later one takes the micro-batch over, and the earlier one is told.

A number alone does not say what is in a micro-batch: one that Spark has planned anew, after its checkpoint lost the plan
or was put back, may hold other rows under the same number. So the decision keeps a digest of the plan, and a micro-batch
that was committed by another plan is refused, not passed over.

Runs where: `writer` and `streamWriter` on the driver before each job, `write` in a Python worker of an executor,
`commit` and `abort` on the driver, in another process and, for a stream, on another writer.

Source: docs/spark.md, "The sink"; docs/decisions/0006-joint-commit.md.
"""

import contextlib
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from stablelog.client import joint
from stablelog.client.cluster import Cluster
from stablelog.client.producer import Producer
from stablelog.errors import InvalidConfig, Refused, StablelogError, Unavailable
from stablelog.spark.checkpoint import digest_of, local_checkpoint, plan_digest, progress
from stablelog.spark.offsets import Place
from stablelog.spark.options import WriteOptions, write_options
from stablelog.spark.worker import tune_worker

Result = TypeVar("Result")
Child = tuple[str, int, int]  # transactional id, producer id, producer epoch

EXACTLY_ONCE = "exactly-once"
QUERY_ID, BATCH_ID, RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"
ONE_WRITE_RETENTION_MS = 3_600_000  # how long the broker remembers a write that nobody can repeat
ABORT_DEADLINE_S = 5.0
_log = logging.getLogger(__name__)

# name -> (types that are taken, as Spark writes them; whether nulls make no sense)
COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
PASSED_OVER = frozenset(
    {"offset", "timestamp", "timestampType", "commitSequence", "commitTimestamp", "transactionGroup"}
)  # a source has them, and a log gives them anew


@dataclass(frozen=True, slots=True)
class Part:
    """Which joint commit a task writes a part of.

    Attributes:
        key: of the joint commit.
        version: of it.
        run: which start of the writer this is; the same in all tasks.
        order: of the run, among those of the key.
        retention_ms: how long the key is remembered.
        in_sequence: whether each version is begun only after the one before it was seen to be committed.
    """

    key: str
    version: int
    run: str
    order: int = joint.NO_ORDER
    retention_ms: int = joint.FOR_EVER
    in_sequence: bool = False


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What a task tells the driver.

    Attributes:
        part: of what; None for a transaction of its own.
        child: its transaction; None if it had no rows.
        record_count: how many rows it has written.
        is_skipped: whether the micro-batch, or the write, had been committed before.
        digest: of what it was then; empty if that is not known.
    """

    part: Part | None
    child: Child | None
    record_count: int
    is_skipped: bool = False
    digest: str = ""


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, options: WriteOptions, run: str, order: int = joint.NO_ORDER) -> None:
        self._options = options
        self._run = run
        self._order = order

    def __getstate__(self) -> dict[str, Any]:
        """As it goes to the tasks of a micro-batch: with its place among the starts. To decide, nobody needs it."""
        order = _next_order(self._options) if self._order == joint.NO_ORDER else self._order
        return {**self.__dict__, "_order": order}

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None
        query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query_id or batch_id is None:
            raise Unavailable(
                "Spark does not tell which query and micro-batch this is, which the sink goes by"
            )
        run = context.getLocalProperty(RUN_ID) or self._run
        part = Part(query_id, int(batch_id), run, self._order, in_sequence=True)
        return write_part(self._options, part, _task(context), iterator)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Decide the micro-batch."""
        options = self._options
        offsets: Callable[[], dict[Place, int]] | None = None
        if options.commit_group is not None:
            offsets = lambda: progress(options.checkpoint, batchId)  # noqa: E731
        commit_parts(options, messages, offsets, plan_digest(options.checkpoint, batchId))

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Abort what is not committed."""
        abort_parts(self._options, messages)


class BatchWriter(DataSourceArrowWriter):
    """The sink of a batch write, also of one in `foreachBatch`."""

    def __init__(self, options: WriteOptions, part: Part) -> None:
        self._options = options
        self._part = part

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write a task's rows."""
        context = TaskContext.get()
        assert context is not None
        return write_part(self._options, self._part, _task(context), iterator)

    def commit(self, messages: Sequence[Any]) -> None:
        """Decide the write."""
        given = self._options.source_offsets
        offsets = None if given is None else lambda: _by_place(given)
        digest = "" if given is None else digest_of(given)
        commit_parts(self._options, messages, offsets, digest)

    def abort(self, messages: Sequence[Any]) -> None:
        """Abort what is not committed."""
        abort_parts(self._options, messages)


# --- on the driver, before the job ---


def stream_writer(given: Mapping[str, str], schema: Any) -> StreamWriter:
    """A writer for the rows of a stream.

    Raises:
        InvalidConfig: an option or a column is not what it can be.
        Refused: the topic is not there, or the broker cannot do what is asked for.
        Unavailable: no broker answers.
    """
    options = write_options(given)
    if options.app_id is not None:
        raise InvalidConfig(
            "txnAppId and txnVersion are for batch writes: a stream goes by its checkpoint, and one txnVersion for all of its micro-batches would skip all but the first"
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
        InvalidConfig: an option or a column is not what it can be.
        Refused: the topic is not there, or the broker cannot do what is asked for.
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
    """The place of this start among those that write the same: what is left of an earlier one comes too late.

    Raises:
        Unavailable: no broker answers.
    """
    return joint.next_order(_cluster(options)) if options.guarantee == EXACTLY_ONCE else joint.NO_ORDER


def check_columns(schema: Any, topic: str | None) -> None:
    """Whether rows of this schema can be written.

    Raises:
        InvalidConfig: a column is missing, unknown, or of a type that is not taken; names it.
    """
    import difflib

    types = {field.name: field.dataType for field in schema.fields}
    for name, found in types.items():
        if name in PASSED_OVER:
            continue
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(COLUMNS)}"
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
    """Say before the job what its tasks would only stumble upon. Asked once in a process."""
    asked = (options.bootstrap, options.topic, options.guarantee)
    if asked in _checked:
        return
    cluster = _cluster(options)
    if options.guarantee == EXACTLY_ONCE and not joint.supported(cluster):
        raise Refused(
            ErrorCode.unsupported_version,
            f"{options.bootstrap} is no stablelog broker: it cannot decide the transactions of many tasks as one, so exactly once is not to be had there (nor is it with Kafka's two-phase commit, see docs/spark.md). Option guarantee=at-least-once commits each task's transaction when Spark commits the micro-batch: what failed tasks wrote is never seen, but a crash in between repeats rows, or shows a part of a micro-batch",
        )
    if options.topic is not None:
        cluster.partition_counts([options.topic])
    _checked.add(asked)


_clusters: dict[tuple[int, str, str, int], Cluster] = {}


def _cluster(options: WriteOptions) -> Cluster:
    """This process's cluster of these options: workers live longer than tasks, and so do connections."""
    known_by = (os.getpid(), options.bootstrap, options.client_id, options.timeout_ms)
    if known_by not in _clusters:
        _clusters[known_by] = Cluster(
            options.bootstrap, client_id=options.client_id, deadline_s=options.timeout_ms / 1000
        )
    return _clusters[known_by]


# --- in a task ---


class Task(NamedTuple):
    """Which task it is.

    Attributes:
        partition: its number in the job.
        attempt: how often it has been tried before.
        attempt_id: no other attempt of any task of this driver has it.
    """

    partition: int
    attempt: int = 0
    attempt_id: int = 0


def _task(context: Any) -> Task:
    return Task(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def write_part(options: WriteOptions, part: Part, task: Task, rows: Iterator[Any]) -> Written:
    """Write one task's rows, to be decided with those of the others.

    Args:
        options: of the write.
        part: of what.
        task: which task it is.
        rows: Arrow record batches.

    Raises:
        StablelogError: they could not be written, or must not be; what has been is aborted, now or later.
    """
    cluster = _cluster(options)
    if options.guarantee != EXACTLY_ONCE:
        # The same in every micro-batch: what an attempt that failed has left open, the next of this name aborts.
        name = f"spark:{part.key}:{task.partition}:{task.attempt}"
        return TaskWriter(cluster, options, name, task.partition).write_all(Written(None, None, 0), rows)
    group = options.transaction_group or ""
    begun = _told(
        lambda: joint.begin(cluster, part.key, part.version, part.run, order=part.order, group=group),
        options,
        part,
    )
    if begun.committed:
        if part.in_sequence and begun.last_version > part.version:
            # An older checkpoint plans its micro-batches anew: what is in this one need not be what was committed.
            raise Refused(
                ErrorCode.producer_fenced,
                f"the checkpoint is at micro-batch {part.version} of query {part.key}, and the log has {begun.last_version} of it: it is an older copy, or another driver has gone on. Rows would be passed over as written that are not. Stop the other driver; or begin with a new checkpoint, and startingOffsets where the output ends",
            )
        for _ in rows:  # Spark wants them taken
            pass
        return Written(part, None, 0, is_skipped=True, digest=begun.digest)
    name = joint.child_id(part.key, part.version, part.run, task.partition, task.attempt_id, group=group)
    return _told(
        lambda: TaskWriter(cluster, options, name, task.partition).write_all(Written(part, None, 0), rows),
        options,
        part,
    )


class TaskWriter:
    """Writes the rows of one task in a transaction, which it leaves open.

    Args:
        cluster: where.
        options: of the write.
        transactional_id: of the transaction.
        number: of the task: tasks begin at different partitions with rows that do not say which.
    """

    def __init__(
        self, cluster: Cluster, options: WriteOptions, transactional_id: str, number: int = 0
    ) -> None:
        # Compiled code is imported where it is run only: the driver's processes have no use for it.
        from stablelog.spark.encoder import Encoder

        self._cluster = cluster
        self._options = options
        self._transactional_id = transactional_id
        self._producer = Producer(
            cluster,
            transactional_id,
            transaction_timeout_ms=options.transaction_timeout_ms,
            deadline_s=options.timeout_ms / 1000,
        )
        self._encoder = Encoder(
            options.codec,
            options.batch_size_max,
            lingers=True,
            first_partition=number,
        )
        self._partition_counts: dict[str, int] = {}
        tune_worker()

    def write_all(self, message: Written, rows: Iterator[Any]) -> Written:
        """Write the rows, and wait until all are acknowledged.

        Returns:
            The message, with what has been written.

        Raises:
            StablelogError: it could not be written; what has been is aborted, now or later.
        """
        producer = self._producer
        try:
            for batch in rows:
                if batch.num_rows:
                    self._write(batch)
            for encoded in self._encoder.flush():
                self._append(encoded)
            producer.flush()
        except BaseException as error:
            self._give_up()
            if isinstance(error, Refused) and error.code is ErrorCode.message_too_large:
                raise Refused(
                    error.code,
                    f"{error}. batchBytes is {self._options.batch_size_max}; a larger row is a batch of its own",
                ) from error
            raise
        finally:
            producer.close()
        if not producer.has_begun:
            return message
        child = (self._transactional_id, producer.producer_id, producer.producer_epoch)
        return replace(message, child=child, record_count=producer.record_count)

    def _write(self, batch: Any) -> None:
        self._look_up_topics(batch)
        for encoded in self._encoder.encode(
            batch, partition_counts=self._partition_counts, topic=self._options.topic
        ):
            self._append(encoded)

    def _append(self, encoded: Any) -> None:
        if not self._producer.has_begun:
            self._producer.begin()
        self._producer.append(encoded.topic, encoded.partition, encoded.batch)

    def _look_up_topics(self, batch: Any) -> None:
        """Know how many partitions each topic of these rows has."""
        if self._options.topic is not None:
            named = {self._options.topic}
        else:
            column = batch.column(batch.schema.get_field_index("topic"))
            named = set(column.unique().to_pylist())
            if None in named:
                raise InvalidConfig("a row has no topic: option topic says where all rows go")
        unknown = named - self._partition_counts.keys()
        if unknown:
            self._partition_counts |= self._cluster.partition_counts(sorted(unknown))

    def _give_up(self) -> None:
        """Abort at once what would be aborted anyway, if it can be done quickly."""
        if not self._producer.has_begun:
            return
        with contextlib.suppress(StablelogError):
            self._producer.end(commit=False, deadline_s=ABORT_DEADLINE_S)


# --- on the driver, after the job ---


def commit_parts(
    options: WriteOptions,
    messages: Iterable[Any],
    offsets: Callable[[], dict[Place, int]] | None,
    digest: str = "",
) -> None:
    """Decide what the tasks have written.

    Args:
        options: of the write.
        messages: of the tasks.
        offsets: up to where the sources were read, if that is to be committed too.
        digest: of what the tasks were to write; empty if it is not known.

    Raises:
        Refused: it cannot be committed, and nothing is; or it was committed before as something else.
        Unavailable: no answer; it may have been committed or not, and asking again tells. Or Spark does not hand in the
            message of each task; nothing is committed.
    """
    written = _all_written(messages)
    cluster = _cluster(options)
    children = [message.child for message in written if message.child is not None]
    part = written[0].part if written else None
    if part is None:
        for child in children:
            _end(cluster, child, commit=True)
        return
    skipped = [message for message in written if message.is_skipped]
    if skipped:  # as a whole: it had been decided before a task asked
        _check_same(part, digest, skipped[0].digest)
        if part.in_sequence and len(skipped) < len(written):
            raise _committed_by_another(part)
        return
    group_offsets: dict[tuple[str, str, int], int | tuple[int, str | None]] = {}
    if offsets is not None and options.commit_group is not None:
        group_offsets = {
            (options.commit_group, topic, partition): offset
            for (topic, partition), offset in offsets().items()
        }
    decided = _told(
        lambda: joint.commit(
            cluster,
            part.key,
            part.version,
            children,
            group_offsets=group_offsets,
            run=part.run,
            retention_ms=part.retention_ms,
            digest=digest,
            group=options.transaction_group or "",
        ),
        options,
        part,
    )
    if decided.already and decided.run != part.run:  # while this was under way
        _check_same(part, digest, decided.digest)
        if part.in_sequence:
            raise _committed_by_another(part)
    _log.info(
        "%s version %d: %d records of %d tasks are commit %d",
        part.key,
        part.version,
        sum(message.record_count for message in written),
        len(written),
        decided.commit_sequence,
    )


def _all_written(messages: Iterable[Any]) -> list[Written]:
    """The messages of a job's tasks, each of which has written its rows as a part of the same.

    Raises:
        Unavailable: a message is another one. The rows of its task would be missing from the commit.
    """
    written: list[Written] = []
    for number, message in enumerate(messages):
        if not isinstance(message, Written) or (written and message.part != written[0].part):
            wanted = "a Written" if not written else f"a Written of {written[0].part}"
            raise Unavailable(
                f"the write is not committed: the message of task {number} is {message!r}, not {wanted}, so it is not known "
                "what the task has written. Run the query again"
            )
        written.append(message)
    return written


def _check_same(part: Part, digest: str, committed: str) -> None:
    """Whether what was committed under this number is what was to be written now.

    Raises:
        Refused: it is something else, and passing over it would lose rows.
    """
    if committed and not digest and part.in_sequence:
        _log.warning(
            "micro-batch %d of query %s is committed; whether as what the checkpoint has for it now cannot be told, because the checkpoint cannot be read here",
            part.version,
            part.key,
        )
    if not digest or not committed or digest == committed:
        return
    if part.in_sequence:
        raise Refused(
            ErrorCode.producer_fenced,
            f"micro-batch {part.version} of query {part.key} was committed by another plan than the checkpoint has for it now: the checkpoint has lost the plan of its last micro-batch (a power failure, a copy put back), and Spark has planned it anew. Rows between the two would be passed over as written that are not. Put the lost entries of its directory offsets back; or begin with a new checkpoint, and startingOffsets where the output ends (with commitGroup, the group's offsets say where)",
        )
    raise Refused(
        ErrorCode.producer_fenced,
        f"version {part.version} of txnAppId {part.key} was committed with other sourceOffsets than these: its rows are not known to be written. A write of other rows needs another txnVersion",
    )


def _committed_by_another(part: Part) -> Refused:
    return Refused(
        ErrorCode.producer_fenced,
        f"micro-batch {part.version} of query {part.key} was committed by another driver while this one wrote it, and nothing of this one's: another driver works on the same checkpoint. Stop one of them",
    )


def abort_parts(options: WriteOptions, messages: Iterable[Any]) -> None:
    """Abort what is not committed, as far as it is known here and the broker can be reached; the rest ends by itself."""
    written = [message for message in messages if isinstance(message, Written)]
    if not written:
        return
    cluster = _cluster(options)
    children = [message.child for message in written if message.child is not None]
    part = written[0].part
    try:
        if part is None:
            for child in children:
                with contextlib.suppress(Refused):  # committed: that stays
                    _end(cluster, child, commit=False)
        else:
            group = options.transaction_group or ""
            joint.abort(cluster, part.key, part.version, children, run=part.run, group=group)
    except StablelogError as error:
        _log.warning("what was written will be aborted by the broker after its timeout: %s", error)


def _end(cluster: Cluster, child: Child, *, commit: bool) -> None:
    """End a task's own transaction, from here."""
    producer = Producer(cluster, child[0])
    producer.resume(child[1], child[2])
    producer.end(commit=commit)


def _told(ask: Callable[[], Result], options: WriteOptions, part: Part) -> Result:
    """Ask; and say of a refusal what it means for whoever started the query.

    Raises:
        Refused: with what to do.
    """
    try:
        return ask()
    except Refused as refused:
        if refused.code is not ErrorCode.producer_fenced:
            raise
        raise Refused(
            refused.code,
            f"{refused}. Nothing of version {part.version} was committed by this run. Either another driver works on the same checkpoint or txnAppId: stop one of them. Or a task's transaction was open for longer than transactionTimeout ({options.transaction_timeout_ms} ms): give it more",
        ) from refused


def _by_place(offsets: Mapping[str, Mapping[int, int]]) -> dict[Place, int]:
    return {
        (topic, partition): offset
        for topic, places in offsets.items()
        for partition, offset in places.items()
    }
