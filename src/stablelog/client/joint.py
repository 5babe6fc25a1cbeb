"""The joint commit as a client asks for it: several open transactions, decided as one, once and for ever.

A writer of many tasks calls `begin` in each of them, writes each task's records in a transaction of its own whose id
is `child_id(...)`, and never commits these. Who knows which tasks have succeeded calls `commit` with their children.
Every call may be repeated, after any failure: an answer that was lost is given again.

What the broker makes of it: docs/protocol.md, "Joint commit".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32, i64

from stablelog.client.cluster import Again, Cluster
from stablelog.errors import Refused
from stablelog.wire.extension import BEGIN_JOINT, COMMIT_JOINT
from stablelog.wire.extension.children import VERSION_MAX, Child, child_id, child_of
from stablelog.wire.extension.joint import (
    AbortJointRequest,
    BeginJointRequest,
    CommitJointRequest,
    JointChild,
    JointOffset,
)

__all__ = [
    "FOR_EVER",
    "VERSION_MAX",
    "Begun",
    "Child",
    "Committed",
    "abort",
    "begin",
    "child_id",
    "child_of",
    "commit",
    "next_order",
    "supported",
]

FOR_EVER: Final = -1
NO_ORDER: Final = -1
INIT_PRODUCER_ID: Final = 22
_COORDINATOR_AWAY: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.kafka_storage_error,
    }
)
Shown = tuple[str, int, int]  # transactional id, producer id, producer epoch
GroupTarget = tuple[str, str, int]  # consumer group, topic, partition


@dataclass(frozen=True, slots=True)
class Begun:
    """What `begin` found.

    Attributes:
        committed: whether this version, or a later one, is committed: there is nothing to write.
        commit_sequence: of its commit; -1 if it is open, or not the last version that was committed.
        last_version: the last version of the key that was committed; -1 if none was.
        run: who has committed this version; empty if it is open, not the last one, or nobody said.
        digest: what it is made of, in the words of `commit`; empty likewise.
    """

    committed: bool
    commit_sequence: int
    last_version: int
    run: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """What `commit` did.

    Attributes:
        commit_sequence: of the commit; -1 if a later version has been committed since.
        already: whether this version, or a later one, was committed before this call. Unless the call is a repetition,
            what its children wrote was aborted.
        run: as in `Begun`.
        digest: as in `Begun`.
    """

    commit_sequence: int
    already: bool
    run: str = ""
    digest: str = ""


def supported(cluster: Cluster) -> bool:
    """Whether the broker knows joint commits: stablelog does, Apache Kafka does not.

    Raises:
        Unavailable: no broker answers.
    """
    return cluster.retrying(
        "asking what the broker speaks", lambda: cluster.any_connection().speaks(COMMIT_JOINT)
    )


def next_order(cluster: Cluster) -> int:
    """A number greater than any that was given before: who asks for it when it starts knows its place among the runs.

    It is a producer id, which the broker gives once and in growing order, through any restart.

    Raises:
        Unavailable: no broker answers.
    """

    def attempt() -> int:
        connection = cluster.any_connection()
        request_class = connection.request_class(INIT_PRODUCER_ID, newest=5)
        answer = cluster.ask(
            connection, request_class(transactional_id=None, transaction_timeout=timedelta(minutes=1))
        )
        if answer.error_code is not ErrorCode.none:
            raise Again(answer.error_code.name)
        return int(answer.producer_id)

    return cluster.retrying("asking for a run's order", attempt)


def begin(
    cluster: Cluster,
    key: str,
    version: int,
    run: str | None = None,
    *,
    order: int = NO_ORDER,
    group: str = "",
) -> Begun:
    """Whether a version is still open; if it is, `run` has it from now on.

    Args:
        cluster: where.
        key: whose versions these are.
        version: from 0, growing with each commit; gaps are legal.
        run: which start of the writer asks, the same in all of its tasks: open children of other runs of this
            version are aborted, new ones refused. None to ask only.
        order: of the run, from `next_order`: a run never takes a version from one of a greater order, so what is left
            of an earlier start cannot come between a later one and its commit. -1 for none.
        group: the transaction group.

    Raises:
        Refused: another run has begun the version since this one did, or started later.
        Unavailable: no answer within the deadline.
    """
    request = BeginJointRequest(group=group, key=key, version=i64(version), run=run, order=i64(order))
    answer = _ask(cluster, BEGIN_JOINT, request, f"beginning version {version} of {key!r}")
    return Begun(
        answer.committed,
        answer.commit_sequence,
        answer.last_version,
        answer.committed_run or "",
        answer.digest or "",
    )


def commit(
    cluster: Cluster,
    key: str,
    version: int,
    children: Iterable[Shown],
    *,
    group_offsets: Mapping[GroupTarget, int | tuple[int, str | None]] | None = None,
    run: str | None = None,
    retention_ms: int = FOR_EVER,
    digest: str = "",
    group: str = "",
) -> Committed:
    """Commit the children as one, with one commit sequence; or none of them.

    All other children of this version and of earlier ones are aborted, and new ones refused.

    Args:
        cluster: where.
        key: as in `begin`.
        version: as in `begin`.
        children: (transactional id, producer id, producer epoch) of each; may be none.
        group_offsets: offsets of consumer groups that become visible with the commit: (consumer group, topic,
            partition) to the next offset to read, or to (offset, metadata).
        run: who commits: refused if another run has begun the version since. None if whoever comes first may.
        retention_ms: how long the broker remembers the key after its last commit. For keys that are used once.
        digest: what the version is made of, at most 100 bytes: `begin` and `commit` give it back, so that whoever plans
            the version anew sees whether it is the same.
        group: the transaction group.

    Raises:
        Refused: nothing was decided; the message names the child that is unknown, aborted or fenced.
        Unavailable: no answer within the deadline. It may have been committed: ask again.
    """
    request = CommitJointRequest(
        group=group,
        key=key,
        version=i64(version),
        run=run,
        retention_ms=i64(retention_ms),
        digest=digest or None,
        children=_children(children),
        group_offsets=tuple(
            _offset(target, value) for target, value in sorted((group_offsets or {}).items())
        ),
    )
    answer = _ask(cluster, COMMIT_JOINT, request, f"committing version {version} of {key!r}")
    return Committed(answer.commit_sequence, answer.already, answer.committed_run or "", answer.digest or "")


def abort(
    cluster: Cluster,
    key: str,
    version: int,
    children: Iterable[Shown] = (),
    *,
    run: str | None = None,
    group: str = "",
) -> bool:
    """Abort the children, unless the version is committed; never undoes a commit.

    Args:
        cluster: where.
        key: as in `begin`.
        version: as in `begin`.
        children: as in `commit`. Those that are gone already do not matter.
        run: if given, all children of this run are aborted, and it can begin no more of this version.
        group: the transaction group.

    Returns:
        Whether the version, or a later one, is committed: then nothing was done.

    Raises:
        Refused: a child belongs to something else.
        Unavailable: no answer within the deadline.
    """
    request = AbortJointRequest(
        group=group,
        key=key,
        version=i64(version),
        run=run,
        children=_children(children),
    )
    return bool(
        _ask(cluster, request.__api_key__, request, f"aborting version {version} of {key!r}").committed
    )


def _children(children: Iterable[Shown]) -> tuple[JointChild, ...]:
    return tuple(
        JointChild(transactional_id=i, producer_id=i64(p), producer_epoch=i16(e)) for i, p, e in children
    )


def _offset(target: GroupTarget, value: int | tuple[int, str | None]) -> JointOffset:
    group_id, topic, partition = target
    offset, metadata = value if isinstance(value, tuple) else (value, None)
    return JointOffset(
        group_id=group_id,
        topic=topic,
        partition_index=i32(partition),
        committed_offset=i64(offset),
        committed_metadata=metadata,
    )


def _ask(cluster: Cluster, api_key: int, request: Any, what: str) -> Any:
    # The children's ids lead to the coordinator, as every transactional id does: that of the transaction group.
    found_by = child_id(request.key, request.version, "", "-", "-", group=request.group)

    def attempt() -> Any:
        connection = cluster.coordinator(found_by)
        if not connection.speaks(api_key):
            raise Refused(
                ErrorCode.unsupported_version,
                f"{what}: {cluster.bootstrap} knows no joint commits; it is no stablelog broker",
            )
        answer = cluster.ask(connection, request)
        if answer.error_code in _COORDINATOR_AWAY:
            raise Again(answer.error_message or answer.error_code.name)
        return answer

    answer = cluster.retrying(what, attempt)
    if answer.error_code is not ErrorCode.none:
        raise Refused(answer.error_code, f"{what}: {answer.error_message}")
    return answer
