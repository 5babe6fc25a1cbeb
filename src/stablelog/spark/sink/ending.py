"""End of a write on the driver: commits the tasks' transactions together, or aborts them."""

import contextlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.client import joint
from stablelog.client.cluster import Cluster
from stablelog.client.producer import Producer
from stablelog.errors import Refused, StablelogError, Unavailable
from stablelog.spark.options import WriteOptions
from stablelog.spark.sink.parts import (
    Child,
    Part,
    Written,
    cluster_of,
    told,
)
from stablelog.types import TopicPartition

_log = logging.getLogger(__name__)


def commit_parts(
    options: WriteOptions,
    messages: Iterable[Any],
    offsets: Callable[[], dict[TopicPartition, int]] | None,
    digest: str = "",
) -> None:
    """Commit what the tasks have written.

    Args:
        options: the options of the write.
        messages: the messages of the tasks.
        offsets: up to where the sources were read, if that is to be committed too.
        digest: digest of the plan that the tasks were to write; empty if unknown.

    Raises:
        Refused: it cannot be committed, and nothing is; or it was committed before as something else.
        Unavailable: no answer; it may have been committed or not, and asking again tells. Or Spark does not hand in the
            message of each task; nothing is committed.
    """
    written = _all_written(messages)
    cluster = cluster_of(options)
    children = [message.child for message in written if message.child is not None]
    part = written[0].part if written else None
    if part is None:
        for child in children:
            _end(cluster, child, commit=True)
        return
    skipped = [message for message in written if message.is_skipped]
    if skipped:  # The micro-batch or write was committed as a whole before any task asked.
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
    decided = told(
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
    if decided.already and decided.run != part.run:  # Another run of the writer has committed it meanwhile.
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
    """Check that a version that was committed earlier has the plan that was to be written now.

    Raises:
        Refused: it has another plan, and skipping this one would lose rows.
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
    """Abort the known open transactions, if the broker can be reached; the others end when they time out."""
    written = [message for message in messages if isinstance(message, Written)]
    if not written:
        return
    cluster = cluster_of(options)
    children = [message.child for message in written if message.child is not None]
    part = written[0].part
    try:
        if part is None:
            for child in children:
                with contextlib.suppress(Refused):  # A committed transaction stays committed.
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
