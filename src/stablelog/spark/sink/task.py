"""Task of a write: it writes its rows as records in its own transaction."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.header import read_header
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import RefusedError, StablelogError, UsageError
from stablelog.spark.options import WriteOptions
from stablelog.spark.sink.task_messages import (
    EXACTLY_ONCE,
    JointWrite,
    WriteReport,
    explaining_fences,
    shared_cluster,
)
from stablelog.spark.worker import tune_worker

ABORT_DEADLINE_S = 5.0


class Task(NamedTuple):
    """The numbers that identify one attempt of a task of a Spark job.

    Attributes:
        partition: the task's number in the job.
        attempt: how many earlier attempts of the task there were.
        attempt_id: a number that is unique among all attempts of all tasks of this driver.
    """

    partition: int
    attempt: int = 0
    attempt_id: int = 0


def write_part(options: WriteOptions, part: JointWrite, task: Task, rows: Iterator[Any]) -> WriteReport:
    """Write the rows of one task in a transaction, which stays open. Later, the driver commits the transactions of all
    tasks. Return the message with which the task reports its transaction to the driver.

    Args:
        options: the options of the write.
        part: the joint commit with which the rows are to be committed: one commit of the transactions of all tasks.
        task: the task's identity.
        rows: Arrow record batches.

    Raises:
        StablelogError: the rows could not be written, or must not be written. The transaction is aborted, now or after
            its timeout.
    """
    if options.guarantee != EXACTLY_ONCE:
        # The transactional id is the same in every micro-batch, so that the next task with this id aborts a transaction
        # that a failed attempt has left open.
        return write_rows(options, f"spark:{part.key}:{task.partition}:{task.attempt}", task.partition, rows)
    group = options.transaction_group or ""
    with explaining_fences(options, part):
        begun = joint.begin(
            shared_cluster(options), part.key, part.version, part.run, order=part.order, group=group
        )
    if begun.committed:
        return _skipped(part, begun, rows)
    name = joint.child_id(part.key, part.version, part.run, task.partition, task.attempt_id, group=group)
    with explaining_fences(options, part):
        return replace(write_rows(options, name, task.partition, rows), part=part)


def _skipped(part: JointWrite, begun: joint.JointVersion, rows: Iterator[Any]) -> WriteReport:
    """Read the rows of a task without writing them, because their micro-batch or write is already committed. Spark
    requires that a task reads its rows. Return the task's message to the driver, which says that nothing was written.

    Raises:
        RefusedError: later micro-batches of the query are committed. So Spark runs with an older copy of the
            checkpoint, whose plan of this micro-batch may have other rows than the committed one.
    """
    if part.in_sequence and begun.last_version > part.version:
        raise RefusedError(
            ErrorCode.producer_fenced,
            f"the checkpoint is at micro-batch {part.version} of query {part.key}, but micro-batch {begun.last_version} is committed: the checkpoint is an older copy, or another driver continues the query. The sink would skip rows that are not written. Stop the other driver. Or begin with a new checkpoint and set startingOffsets to the end of the output",
        )
    for _ in rows:
        pass
    return WriteReport(part, None, 0, is_skipped=True, digest=begun.digest, last_version=begun.last_version)


def write_rows(options: WriteOptions, transactional_id: str, number: int, rows: Iterator[Any]) -> WriteReport:
    """Write rows in a transaction, which stays open, and wait until the brokers have acknowledged all of them. Return
    the message with which the task reports the transaction to the driver.

    Args:
        options: the options of the write.
        transactional_id: the id of the transaction.
        number: the task's number. It determines the first partition for rows without key and partition.
        rows: Arrow record batches.

    Raises:
        StablelogError: the rows could not be written. The transaction is aborted, now or after its timeout.
    """
    # Import the encoder only in tasks: the driver does not use its compiled code.
    from stablelog.spark.columns.encoder import Encoder

    cluster = shared_cluster(options)
    appended: list[
        tuple[str, int, int]
    ] = []  # topic, partition and count of offsets of each batch, by its number
    ends: dict[tuple[str, int], int] = {}

    def record_end(number: int, base_offset: int) -> None:
        topic, partition, count = appended[number]
        ends[topic, partition] = max(base_offset + count, ends.get((topic, partition), 0))

    producer = BlockingProducer(
        cluster,
        transactional_id,
        transaction_timeout_ms=options.transaction_timeout_ms,
        deadline_s=options.timeout_ms / 1000,
        on_acknowledged=record_end,
    )
    encoder = Encoder(options.codec, options.batch_size_max, lingers=True, first_partition=number)
    tune_worker()
    try:
        for encoded in _encoded(encoder, cluster, options.topic, rows):
            if not producer.has_begun:
                producer.begin()
            count = read_header(encoded.batch).last_offset_delta + 1
            appended.append((encoded.topic, encoded.partition, count))
            producer.append(encoded.topic, encoded.partition, encoded.batch)
        producer.flush()
    except BaseException as error:
        if producer.has_begun:
            # If this abort fails, the broker aborts the transaction after its timeout.
            with contextlib.suppress(StablelogError):
                producer.end(commit=False, deadline_s=ABORT_DEADLINE_S)
        if isinstance(error, RefusedError) and error.code is ErrorCode.message_too_large:
            raise RefusedError(
                error.code,
                f"{error}. A batch has at most {options.batch_size_max} bytes (option batchBytes), or one larger row: "
                "reduce batchBytes, or increase max.message.bytes of the topic",
            ) from error
        raise
    finally:
        producer.close()
    if not producer.has_begun:
        return WriteReport(None, None, 0)
    child = transactional_id, producer.producer_id, producer.producer_epoch
    found = tuple((*place, end) for place, end in sorted(ends.items()))
    return WriteReport(None, child, producer.record_count, found)


def _encoded(encoder: Any, cluster: BlockingCluster, topic: str | None, rows: Iterator[Any]) -> Iterator[Any]:
    """Encode the rows as record batches, and yield each batch with its topic and partition. `topic` is the topic of all
    rows; None if a column has it.
    """
    counts: dict[str, int] = {}
    for batch in rows:
        if not batch.num_rows:
            continue
        topics = {topic} if topic is not None else set(batch.column("topic").unique().to_pylist())
        if None in topics:
            raise UsageError("a row has no topic: give the option topic, which applies to all rows")
        if topics - counts.keys():
            counts |= cluster.partition_counts(sorted(topics - counts.keys()))
        yield from encoder.encode(batch, partition_counts=counts, topic=topic)
    yield from encoder.flush()
