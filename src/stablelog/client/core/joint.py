"""Requests for joint commits: several open transactions, the *children*, that are committed together or not at all.

A *key* names a series of joint commits. A *version* is the number of one joint commit under its key; each version is
committed at most once. A *run* is one start of the program that writes, such as a Spark driver.

A writer with several tasks calls `begin` in each task. Each task writes its records in its own transaction, whose
transactional id is `child_id(...)`, and leaves it open. The process that knows which tasks have succeeded calls
`commit` with the transactions of these tasks. Each call may be repeated after any failure: the broker then gives the
same response again.

What the broker does: docs/reference/protocol.md, "Joint commit".
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32, i64

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.extension import call_extension
from stablelog.client.core.steps import Steps
from stablelog.client.responses import RetriableError, refused_error
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import child_id
from stablelog.wire.extension.joint import (
    AbortJointRequest,
    BeginJointRequest,
    CommitJointRequest,
    JointChild,
    JointOffset,
)

FOR_EVER: Final = -1
NO_ORDER: Final = -1
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.kafka_storage_error,
    }
)
ChildId = tuple[str, int, int]  # transactional id, producer id, producer epoch
GroupTarget = tuple[str, str, int]  # consumer group, topic, partition


@dataclass(frozen=True, slots=True)
class JointVersion:
    """The result of `begin`: whether a version of a joint commit (the number of one joint commit under its key) is
    committed already, and by which run (start of the writing program).

    Attributes:
        committed: whether the requested version of the joint commit, or a later version of its key, is committed. If
            so, there is nothing to write.
        commit_sequence: the number of the requested version's commit in its transaction group (the topics whose commits
            have one order); -1 if the version is not committed, or if a later version is.
        last_version: the last committed version of the joint commit's key; -1 if there is none.
        run: the run (start of the writing program) that committed the requested version. Empty if the version is not
            committed, if a later one is, or if the commit named no run.
        digest: the digest of the requested version, a hash of its content that the writer passed to `commit`. Empty if
            the version is not committed, or if a later one is.
    """

    committed: bool
    commit_sequence: int
    last_version: int
    run: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class JointCommit:
    """The result of `commit`, which has committed a version of a joint commit (the number of one joint commit under its
    key) or found it committed.

    Attributes:
        commit_sequence: the number of the commit in its transaction group (the topics whose commits have one order); -1
            if a later version of the key has been committed since.
        already: whether this version of the joint commit, or a later one, was committed before this call. If so, the
            records of this call's children (the transactions that it was to commit) are aborted, unless this call
            repeats the call that has committed the version.
        run: the run (start of the writing program) that committed this version. Empty if a later version is committed,
            or if the commit named no run.
        digest: the digest of this version, a hash of its content that the writer passed to `commit`. Empty if a later
            version is committed.
    """

    commit_sequence: int
    already: bool
    run: str = ""
    digest: str = ""


def supported(cluster: Cluster) -> Steps[bool]:
    """Return whether the broker supports joint commits, which commit several transactions together or none. A stablelog
    broker does, Apache Kafka does not.

    Raises:
        UnavailableError: no broker responds.
    """
    connection = yield from cluster.retrying("asking the broker for its APIs", cluster.any_connection)
    return connection.supports_api(ApiKey.COMMIT_JOINT)


def next_order(cluster: Cluster) -> Steps[int]:
    """Return an order number, which is greater than the results of all earlier calls. A writing program requests one at
    its start, so that the broker can tell later starts of the program from earlier ones.

    The number is a producer id: the broker assigns each id once, in rising order, also after a restart.

    Raises:
        UnavailableError: no broker responds.
    """
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    def attempt() -> Steps[int]:
        connection = yield from cluster.any_connection()
        answer = yield from connection.request_steps(
            InitProducerIdRequest(transactional_id=None, transaction_timeout=timedelta(minutes=1))
        )
        if answer.error_code is not ErrorCode.none:
            raise RetriableError(answer.error_code.name)
        return int(answer.producer_id)

    return (yield from cluster.retrying("asking for a run's order", attempt))


def begin(
    cluster: Cluster,
    key: str,
    version: int,
    run: str | None = None,
    *,
    order: int = NO_ORDER,
    group: str = "",
) -> Steps[JointVersion]:
    """Ask whether a version of a joint commit (a commit of several transactions together) is committed. If not, the
    version belongs to `run` (one start of the writing program) from now on: an earlier run can no longer commit it.

    Args:
        cluster: the brokers.
        key: the key of the joint commit.
        version: the number of this joint commit under its key: from 0, rising with each commit; gaps are allowed.
        run: identifies the start of the writer, and is the same in all its tasks. The broker aborts open children
            (transactions that this joint commit would commit) of other runs of this version, and refuses new ones. With
            None, the call changes nothing.
        order: a number from `next_order`, which is greater for later starts of the writer; -1 for none. A run with a
            lower number cannot take over the version from this run. So tasks of an earlier start that still run cannot
            prevent the commit of a later start.
        group: the transaction group, whose commits have one order; empty for the default group.

    Raises:
        RefusedError: another run began this version after this one, or has a greater order number.
        UnavailableError: no response within the deadline.
    """
    request = BeginJointRequest(group=group, key=key, version=i64(version), run=run, order=i64(order))
    answer = yield from _ask(cluster, request, "beginning")
    return JointVersion(
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
    children: Iterable[ChildId],
    *,
    group_offsets: Mapping[GroupTarget, int | tuple[int, str | None]] | None = None,
    run: str | None = None,
    retention_ms: int = FOR_EVER,
    digest: str = "",
    group: str = "",
    on_unanswered: Callable[[], None] | None = None,
) -> Steps[JointCommit]:
    """Commit the open transactions `children` together, with one commit sequence (number of a commit in its transaction
    group), or none of them.

    The broker aborts all other children of this version and of earlier versions, and refuses new ones.

    Args:
        cluster: the brokers.
        key: the key of the joint commit.
        version: the number of this joint commit under its key.
        children: (transactional id, producer id, producer epoch) of each; may be empty.
        group_offsets: consumer group offsets that become visible with the commit: (consumer group, topic, partition) to
            the next offset to read, or to (offset, metadata).
        run: the start of the writer that commits. The broker refuses the commit if another start of the writer has
            begun this version since. With None, the broker accepts the first commit of this version from any start.
        retention_ms: how long the broker remembers the key of the joint commit after its last commit; `FOR_EVER` for no
            limit. Set it for keys that are used only once.
        digest: a hash of what this commit contains, at most 100 bytes. `begin` and `commit` return it, so that a writer
            that prepares the same version again can compare the contents.
        group: the transaction group, whose commits have one order; empty for the default group.
        on_unanswered: called for each request that the broker may have carried out without a response.

    Raises:
        RefusedError: nothing was committed or aborted; the message names the child that is unknown, aborted or fenced.
        UnavailableError: no response within the deadline. The version may be committed: repeat the call.
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
    answer = yield from _ask(cluster, request, "committing", on_unanswered)
    return JointCommit(
        answer.commit_sequence, answer.already, answer.committed_run or "", answer.digest or ""
    )


def abort(
    cluster: Cluster,
    key: str,
    version: int,
    children: Iterable[ChildId] = (),
    *,
    run: str | None = None,
    group: str = "",
) -> Steps[bool]:
    """Abort the children of a joint commit, the open transactions that it would have committed, unless this version is
    committed already.

    Args:
        cluster: the brokers.
        key: the key of the joint commit.
        version: the number of this joint commit under its key.
        children: (transactional id, producer id, producer epoch) of each. Children that have ended already are ignored.
        run: a start of the writer. If given, all children of this start are aborted, and it can begin no more children
            of this version.
        group: the transaction group, whose commits have one order; empty for the default group.

    Returns:
        Whether this version of the joint commit, or a later one, is committed. If so, no child was aborted.

    Raises:
        RefusedError: a child belongs to another key, version or run.
        UnavailableError: no response within the deadline.
    """
    request = AbortJointRequest(
        group=group,
        key=key,
        version=i64(version),
        run=run,
        children=_children(children),
    )
    answer = yield from _ask(cluster, request, "aborting")
    return bool(answer.committed)


def _children(children: Iterable[ChildId]) -> tuple[JointChild, ...]:
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


def _ask(
    cluster: Cluster, request: Any, what: str, on_unanswered: Callable[[], None] | None = None
) -> Steps[Any]:
    # The transaction group determines the coordinator, both of the joint commit and of its children's transactional
    # ids. So the coordinator is found by a made-up id of a child.
    child = child_id(request.key, request.version, "", "-", "-", group=request.group)
    failed_request = f"{what} version {request.version} of {request.key!r}"
    answer = yield from call_extension(
        cluster, lambda: cluster.coordinator(child), request, failed_request, _RETRIABLE, on_unanswered
    )
    if answer.error_code is not ErrorCode.none:
        raise refused_error(answer.error_code, f"{failed_request}: {answer.error_message}")
    return answer
