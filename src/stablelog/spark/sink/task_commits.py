"""End of a write, on the driver: commits the transactions of all tasks together, or aborts them."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.errors import DataLossError, RefusedError, StablelogError, UnavailableError
from stablelog.spark.options import WriteOptions
from stablelog.spark.sink.task_messages import (
    Child,
    JointWrite,
    WriteReport,
    explaining_fences,
    shared_cluster,
)
from stablelog.spark.sink.written_ends import WrittenEnds, read_text, text_of
from stablelog.types import TopicPartition

_log = logging.getLogger(__name__)
# By target and key: the run and the last micro-batch that this process has committed, and where the rows of the query end.
# Spark may use a process for several starts of a query, and each start is another run.
committed_here: dict[tuple[str, str, str], tuple[str, int, WrittenEnds]] = {}


def commit_parts(
    options: WriteOptions,
    messages: Iterable[Any],
    offsets: Mapping[TopicPartition, int] | None = None,
    digest: str = "",
) -> None:
    """Commit all parts of a write: the transactions in which the tasks have written their rows, with one joint commit,
    or each alone if the write has the option guarantee=at-least-once.

    Args:
        options: the options of the write.
        messages: the messages in which the tasks report their transactions.
        offsets: the offsets of the source that are committed for the consumer group of the option commitGroup, together
            with the rows.
        digest: digest of the plan of this write (its source offsets); empty if unknown.

    Raises:
        RefusedError: the write cannot be committed, and no row of it is committed. Or the same micro-batch or write was
            committed before with another plan, that is, with other source offsets.
        DataLossError: the target has lost earlier micro-batches of the query, and failOnDataLoss is true. No row is
            committed.
        UnavailableError: no broker responds, so it is unknown whether the write is committed; repeat the call. Or Spark
            has not passed the message of each task; then nothing is committed.
    """
    written = _all_written(messages)
    children = [message.child for message in written if message.child is not None]
    part = written[0].part if written else None
    if part is None:
        for child in children:
            _end(shared_cluster(options), child, commit=True)
        return
    skipped = [message for message in written if message.is_skipped]
    if skipped:  # The micro-batch or write was committed as a whole before these tasks began.
        committed, ends = read_text(skipped[0].digest)
        _check_repeated(part, digest, committed, by_another=len(skipped) < len(written))
        _check_rows(options, part, ends)
        if not part.in_sequence:
            _log.warning(
                "%s is skipped, and none of its rows is written: version %d is committed already. A write of other rows "
                "needs a greater txnVersion; a new checkpoint, whose micro-batches begin again at 0, needs another txnAppId",
                part,
                skipped[0].last_version,
            )
        return
    text, ends = digest, WrittenEnds()
    if part.in_sequence:
        rows = [one for message in written for one in message.ends]
        ends = _ends_before(options, part).with_written(shared_cluster(options), rows)
        text = text_of(digest, ends)
    with explaining_fences(options, part):
        decided = joint.commit(
            shared_cluster(options),
            part.key,
            part.version,
            children,
            group_offsets={(options.commit_group or "", *place): at for place, at in (offsets or {}).items()},
            run=part.run,
            retention_ms=part.retention_ms,
            digest=text,
            group=options.transaction_group or "",
        )
    # Another start of this Spark query or job has committed the same joint commit while these tasks wrote.
    if decided.already and decided.run != part.run:
        _check_repeated(part, digest, read_text(decided.digest)[0], by_another=True)
    committed_here[_target(options, part)] = part.run, part.version, ends
    _log.info(
        "%s: committed %d records of %d tasks with commit sequence %d",
        part,
        sum(message.record_count for message in written),
        len(written),
        decided.commit_sequence,
    )


def _ends_before(options: WriteOptions, part: JointWrite) -> WrittenEnds:
    """Return the end offsets of a stream's rows before a micro-batch. At the first micro-batch after a start of the
    query, check that the target still has the rows of the earlier micro-batches.

    Raises:
        DataLossError: the target has lost some of these rows, and failOnDataLoss is true.
    """
    if not part.version:
        return WrittenEnds()
    before = part.version - 1
    run, version, ends = committed_here.get(_target(options, part), ("", -1, WrittenEnds()))
    if (run, version) == (part.run, before):
        return ends
    group = options.transaction_group or ""
    known = joint.begin(shared_cluster(options), part.key, before, None, group=group)
    if known.last_version < before:
        _report(
            options,
            f"{options.bootstrap} does not know that micro-batches {known.last_version + 1} to {before} of query {part.key} "
            "were committed: a restore of the broker has lost them, or the query wrote to another target before",
        )
        return WrittenEnds()
    ends = read_text(known.digest)[1]
    _check_rows(options, part, ends)
    return ends


def _check_rows(options: WriteOptions, part: JointWrite, ends: WrittenEnds) -> None:
    """Check that the partitions of the target still have the last rows that a query has written (`ends` says where
    these end).

    Raises:
        DataLossError: the target has lost some of them, and failOnDataLoss is true.
    """
    gone = ends.lost_rows(shared_cluster(options)) if part.in_sequence else {}
    if gone:
        places = ", ".join(
            f"{topic}-{index} from offset {start} on" for (topic, index), start in gone.items()
        )
        _report(
            options,
            f"rows of committed micro-batches of query {part.key} are gone, because the broker was restored or the topic was "
            f"created again: {places}",
        )


def _target(options: WriteOptions, part: JointWrite) -> tuple[str, str, str]:
    return options.bootstrap, options.transaction_group or "", part.key


def _report(options: WriteOptions, message: str) -> None:
    """Report that the target, the topics to which a query writes, has lost committed rows: raise DataLossError, or only
    log the loss if failOnDataLoss is false.
    """
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{message}. To write them again, begin with a new checkpoint and set startingOffsets to the end of the output "
            "that is left. To continue without them, set failOnDataLoss to false for the sink"
        )
    _log.warning("%s; the query continues, because failOnDataLoss is false", message)


def _all_written(messages: Iterable[Any]) -> list[WriteReport]:
    """Check that the messages of all tasks have arrived and belong to one joint commit (the commit of all tasks'
    transactions). Return the messages as a list.

    Raises:
        UnavailableError: a message is missing or not of this joint commit, so the commit would lack rows of its task.
    """
    written: list[WriteReport] = []
    for number, message in enumerate(messages):
        if not isinstance(message, WriteReport) or (written and message.part != written[0].part):
            wanted = "a WriteReport" if not written else f"a WriteReport of {written[0].part!r}"
            raise UnavailableError(
                f"the write is not committed: the message of task {number} is {message!r}, not {wanted}, so the rows "
                "of this task are unknown. Run the query again"
            )
        written.append(message)
    return written


def _check_repeated(part: JointWrite, digest: str, committed: str, *, by_another: bool) -> None:
    """Check that a micro-batch or write that is committed already may be skipped: that its plan is the one that was
    committed.

    Args:
        part: the joint commit, with which all transactions of the write were committed.
        digest: digest of the plan of this write (its source offsets).
        committed: digest of the plan that was committed.
        by_another: whether another start of the query or job made the joint commit after these tasks had begun.

    Raises:
        RefusedError: the joint commit was made with another plan, and rows of this write would be lost if they were
            skipped. Or another driver uses the same checkpoint.
    """
    if not part.in_sequence:
        reason = "was committed with other sourceOffsets than these, so its rows may not be written. A write of other rows needs another txnVersion"
    else:
        reason = "was committed with another plan than the checkpoint has for it now: the checkpoint has lost the plan of its last micro-batch (by a power failure, or because it is a restored copy), and Spark has planned it again. The sink would skip rows that are not written. Restore the lost files in the directory offsets of the checkpoint. Or begin with a new checkpoint and set startingOffsets to the end of the output (with commitGroup, these are the group's offsets)"
    if digest and committed and digest != committed:
        raise RefusedError(ErrorCode.producer_fenced, f"{part} {reason}")
    if committed and not digest and part.in_sequence:
        _log.warning(
            "%s is committed already and is skipped, but its plan was not compared with the committed one, because this process cannot read the checkpoint",
            part,
        )
    if by_another and part.in_sequence:
        raise RefusedError(
            ErrorCode.producer_fenced,
            f"{part} was committed by another driver while this one wrote it, and no row of this driver was committed: both use the same checkpoint. Stop one of them",
        )


def abort_parts(options: WriteOptions, messages: Iterable[Any]) -> None:
    """Abort the transactions that the tasks have reported. The broker aborts the other transactions after their
    timeout: those of tasks that have reported nothing, and all of them if no broker responds now.
    """
    written = [message for message in messages if isinstance(message, WriteReport)]
    children = [message.child for message in written if message.child is not None]
    part = written[0].part if written else None
    try:
        if part is not None:
            group = options.transaction_group or ""
            joint.abort(shared_cluster(options), part.key, part.version, children, run=part.run, group=group)
            return
        for child in children:
            # The broker refuses to abort a committed transaction, which stays committed.
            with contextlib.suppress(RefusedError):
                _end(shared_cluster(options), child, commit=False)
    except StablelogError as error:
        _log.warning(
            "the transactions could not be aborted; the broker aborts them after their timeout: %s", error
        )


def _end(cluster: BlockingCluster, child: Child, *, commit: bool) -> None:
    """End `child`, the transaction of a task, from the driver: commit it if `commit` is True, otherwise abort it. The
    write has the option guarantee=at-least-once, so the transactions of its tasks are not committed together.
    """
    producer = BlockingProducer(cluster, child[0])
    producer.resume(child[1], child[2])
    producer.end(commit=commit)
