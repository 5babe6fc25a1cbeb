"""Task of a write: writes its rows as records in a transaction of its own."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.client import joint
from stablelog.client.cluster import Cluster
from stablelog.client.producer import Producer
from stablelog.errors import InvalidConfig, Refused, StablelogError
from stablelog.spark.options import WriteOptions
from stablelog.spark.sink.parts import (
    ABORT_DEADLINE_S,
    EXACTLY_ONCE,
    Part,
    Written,
    cluster_of,
    told,
)
from stablelog.spark.worker import tune_worker

PASSED_OVER = frozenset(
    {"offset", "timestamp", "timestampType", "commitSequence", "commitTimestamp", "transactionGroup"}
)  # a source has them, and a log gives them anew


class Task(NamedTuple):
    """Identity of a task.

    Attributes:
        partition: its number in the job.
        attempt: how often it has been tried before.
        attempt_id: unique among all attempts of all tasks of this driver.
    """

    partition: int
    attempt: int = 0
    attempt_id: int = 0


def task_of(context: Any) -> Task:
    """The task that Spark's context is of."""
    return Task(context.partitionId(), context.attemptNumber(), context.taskAttemptId())


def write_part(options: WriteOptions, part: Part, task: Task, rows: Iterator[Any]) -> Written:
    """Write one task's rows; the joint commit decides them together with those of the other tasks.

    Args:
        options: the options of the write.
        part: the joint commit that the rows belong to.
        task: which task it is.
        rows: Arrow record batches.

    Raises:
        StablelogError: they could not be written, or must not be; what has been is aborted, now or later.
    """
    cluster = cluster_of(options)
    if options.guarantee != EXACTLY_ONCE:
        # The name is the same in every micro-batch, so that the next attempt of this name aborts what a failed attempt
        # has left open.
        name = f"spark:{part.key}:{task.partition}:{task.attempt}"
        return TaskWriter(cluster, options, name, task.partition).write_all(Written(None, None, 0), rows)
    group = options.transaction_group or ""
    begun = told(
        lambda: joint.begin(cluster, part.key, part.version, part.run, order=part.order, group=group),
        options,
        part,
    )
    if begun.committed:
        if part.in_sequence and begun.last_version > part.version:
            # An older checkpoint plans its micro-batches again: the rows of this one may differ from the committed
            # ones.
            raise Refused(
                ErrorCode.producer_fenced,
                f"the checkpoint is at micro-batch {part.version} of query {part.key}, and the log has {begun.last_version} of it: it is an older copy, or another driver has gone on. Rows would be passed over as written that are not. Stop the other driver; or begin with a new checkpoint, and startingOffsets where the output ends",
            )
        for _ in rows:  # Spark requires that a task consumes its rows.
            pass
        return Written(part, None, 0, is_skipped=True, digest=begun.digest)
    name = joint.child_id(part.key, part.version, part.run, task.partition, task.attempt_id, group=group)
    return told(
        lambda: TaskWriter(cluster, options, name, task.partition).write_all(Written(part, None, 0), rows),
        options,
        part,
    )


class TaskWriter:
    """Writes the rows of one task in a transaction, which it leaves open.

    Args:
        cluster: where.
        options: the options of the write.
        transactional_id: the id of the task's transaction.
        number: the task's number. Rows without a partition begin at another partition in each task.
    """

    def __init__(
        self, cluster: Cluster, options: WriteOptions, transactional_id: str, number: int = 0
    ) -> None:
        # Imported only in tasks: the driver does not need the compiled code.
        from stablelog.spark.columns.encoder import Encoder

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
        """Look up the partition counts of these rows' topics."""
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
        """Abort the transaction at once if that can be done quickly; otherwise it is aborted later."""
        if not self._producer.has_begun:
            return
        with contextlib.suppress(StablelogError):
            self._producer.end(commit=False, deadline_s=ABORT_DEADLINE_S)
