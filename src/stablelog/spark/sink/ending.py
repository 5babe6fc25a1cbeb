"""End of a write on the driver: commits the tasks' transactions together, or aborts them."""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.client import joint
from stablelog.client.cluster import Cluster
from stablelog.client.producer import Producer
from stablelog.errors import Refused, StablelogError, Unavailable
from stablelog.spark.options import WriteOptions
from stablelog.spark.sink.parts import Child, Part, Written, cluster_of, explained
from stablelog.types import TopicPartition

_log = logging.getLogger(__name__)


def commit_parts(
    options: WriteOptions,
    messages: Iterable[Any],
    offsets: Mapping[TopicPartition, int] | None = None,
    digest: str = "",
) -> None:
    """Commit what the tasks have written.

    Args:
        options: the options of the write.
        messages: the messages of the tasks.
        offsets: the offsets of the source to commit in the same decision, for the option commitGroup.
        digest: digest of the plan that the tasks were to write; empty if unknown.

    Raises:
        Refused: it cannot be committed, and nothing is; or it was committed before with another plan.
        Unavailable: no answer; whether it is committed is unknown, and a repeated call tells. Or Spark does not pass the
            message of each task; nothing is committed.
    """
    written = _all_written(messages)
    children = [message.child for message in written if message.child is not None]
    part = written[0].part if written else None
    if part is None:
        for child in children:
            _end(cluster_of(options), child, commit=True)
        return
    skipped = [message for message in written if message.is_skipped]
    if skipped:  # The micro-batch or write was committed as a whole before these tasks asked.
        _check_repeated(part, digest, skipped[0].digest, by_another=len(skipped) < len(written))
        return
    with explained(options, part):
        decided = joint.commit(
            cluster_of(options),
            part.key,
            part.version,
            children,
            group_offsets={(options.commit_group or "", *place): at for place, at in (offsets or {}).items()},
            run=part.run,
            retention_ms=part.retention_ms,
            digest=digest,
            group=options.transaction_group or "",
        )
    if decided.already and decided.run != part.run:  # Another run of the writer has committed it meanwhile.
        _check_repeated(part, digest, decided.digest, by_another=True)
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


def _check_repeated(part: Part, digest: str, committed: str, *, by_another: bool) -> None:
    """Check that a version that was committed earlier may be skipped now.

    Args:
        part: the joint commit.
        digest: digest of the plan that the tasks were to write.
        committed: digest of the plan that was committed.
        by_another: whether the commit came after tasks of this run had begun.

    Raises:
        Refused: another plan was committed, so that skipping this one would lose rows; or another driver works on the
            same checkpoint.
    """
    what = f"micro-batch {part.version} of query {part.key}"
    if not part.in_sequence:
        what = f"version {part.version} of txnAppId {part.key}"
        reason = "was committed with other sourceOffsets than these: its rows are not known to be written. A write of other rows needs another txnVersion"
    else:
        reason = "was committed by another plan than the checkpoint has for it now: the checkpoint has lost the plan of its last micro-batch (a power failure, a restored copy), and Spark has planned it again. The sink would skip rows that are not written. Restore the lost entries of its directory offsets; or begin with a new checkpoint, and startingOffsets where the output ends (with commitGroup, the group's offsets say where)"
    if digest and committed and digest != committed:
        raise Refused(ErrorCode.producer_fenced, f"{what} {reason}")
    if committed and not digest and part.in_sequence:
        _log.warning(
            "%s is committed; whether with the plan that the checkpoint has for it now is unknown, because the checkpoint cannot be read here",
            what,
        )
    if by_another and part.in_sequence:
        raise Refused(
            ErrorCode.producer_fenced,
            f"{what} was committed by another driver while this one wrote it, and nothing of this one's: another driver works on the same checkpoint. Stop one of them",
        )


def abort_parts(options: WriteOptions, messages: Iterable[Any]) -> None:
    """Abort the known open transactions, if the broker responds; the others end when they time out."""
    written = [message for message in messages if isinstance(message, Written)]
    children = [message.child for message in written if message.child is not None]
    part = written[0].part if written else None
    try:
        if part is not None:
            group = options.transaction_group or ""
            joint.abort(cluster_of(options), part.key, part.version, children, run=part.run, group=group)
            return
        for child in children:
            with contextlib.suppress(Refused):  # A committed transaction stays committed.
                _end(cluster_of(options), child, commit=False)
    except StablelogError as error:
        _log.warning("the broker will abort what was written after its timeout: %s", error)


def _end(cluster: Cluster, child: Child, *, commit: bool) -> None:
    """End a task's own transaction, from the driver."""
    producer = Producer(cluster, child[0])
    producer.resume(child[1], child[2])
    producer.end(commit=commit)
