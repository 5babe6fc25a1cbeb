"""The messages of the joint commit.

A joint commit decides several open transactions, its *children*, together. They get one commit sequence: one number in
the order of the commits. A key and a version identify the joint commit permanently. The *key* names the writer, such as
a streaming query. The *version* is a number that grows with each commit of the key. A *run* is one start of the writer.

    10001 BeginJoint    ask whether (key, version) is open; if it is, give it to the run that asks
    10002 CommitJoint   commit these children and these consumer group offsets together
    10003 AbortJoint    abort these children, unless (key, version) is committed

The transactional id of a child names its key, version and run: see `children`. The meaning of the messages:
docs/reference/protocol.md, "Joint commit".
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32, i64

from stablelog.wire.api import ApiKey
from stablelog.wire.extension.fields import (
    BOOL,
    ERROR,
    INT16,
    INT32,
    INT64,
    STRING,
    ExtensionRequest,
    ExtensionResponse,
    Nested,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginJointRequest(ExtensionRequest):
    """Request to begin a version of a joint commit. A joint commit decides several open transactions, its *children*,
    together. A writer makes one joint commit after the other, each with a version number of its own.

    The response says whether the version is committed already. If it is not, the version belongs from now on to the
    start of the writer that `run` names, until another start sends such a request for it.

    Attributes:
        group: the transaction group, the topics whose commits have one order; empty for the default group.
        key: the name of the writer, such as a streaming query or an application, of 1 to 255 bytes. Each key has its own
            versions.
        version: the number of the joint commit, greater than that of the key's last one. Numbers may be left out.
        run: a text that names one start of the writer, such as a random one. The broker aborts the open children that
            other starts of the writer have in this version, and refuses children that they begin later. Null: the
            request only asks whether the version is committed, and changes nothing.
        order: a number by which the broker tells which start of the writer is later: a later start has a greater one.
            If a start with a greater number has begun this version, the request is refused. So a start that was delayed
            cannot take the version away from its successor. -1: the start has no such number.
    """

    __api_key__: ClassVar = i16(ApiKey.BEGIN_JOINT)
    group: str = field(metadata=STRING, default="")
    key: str = field(metadata=STRING)
    version: i64 = field(metadata=INT64)
    run: str | None = field(metadata=STRING, default=None)
    order: i64 = field(metadata=INT64, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginJointResponse(ExtensionResponse):
    """Response that says whether a joint commit is open or was committed before. A joint commit commits the
    transactions of several producers together.

    A version is the number of one commit of a key. The key names the writer, and a run is one start of the writer.

    Attributes:
        error_message: the error as text; null without an error.
        committed: whether this version of the key, or a later one, is committed. The writer then need not write it.
        commit_sequence: the number of this version's commit in its transaction group; -1 if the version is open, or is
            not the last committed one.
        last_version: the last version of the key that was committed; -1 if none was.
        committed_run: the run that committed this version; null if the version is open, is not the last committed one,
            or was committed without a run.
        digest: the writer's description of what this version contains, from its CommitJoint; null if the version is
            open, is not the last committed one, or was committed without a digest.
    """

    __api_key__: ClassVar = i16(ApiKey.BEGIN_JOINT)
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    committed: bool = field(metadata=BOOL, default=False)
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    last_version: i64 = field(metadata=INT64, default=i64(-1))
    committed_run: str | None = field(metadata=STRING, default=None)
    digest: str | None = field(metadata=STRING, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointChild(Nested):
    """A transaction that a request names as a child of a joint commit: one of the transactions that are committed
    together.

    Attributes:
        transactional_id: the transactional id, which names the writer (key), the number of the joint commit (version)
            and the start of the writer (run).
        producer_id: the producer id of the child's records.
        producer_epoch: the producer epoch of the child's records.
    """

    transactional_id: str = field(metadata=STRING)
    producer_id: i64 = field(metadata=INT64)
    producer_epoch: i16 = field(metadata=INT16)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointOffset(Nested):
    """The offset of a consumer group in one partition, to be committed together with the transactions of a joint
    commit.
    """

    group_id: str = field(metadata=STRING)
    topic: str = field(metadata=STRING)
    partition_index: i32 = field(metadata=INT32)
    committed_offset: i64 = field(metadata=INT64)
    committed_metadata: str | None = field(metadata=STRING, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitJointRequest(ExtensionRequest):
    """Request to commit these open transactions as the children of one joint commit: all of them or none.

    Attributes:
        group, key, version: identify the joint commit: its transaction group, the name of its writer, and its number
            among the writer's joint commits, as in BeginJointRequest.
        run: the start of the writer that commits. The commit is refused if another start of the writer has begun this
            version since. Null: any start may commit.
        retention_ms: how long the broker remembers the key after its last commit, for keys that are used only once; -1
            for ever.
        digest: the writer's description of what this commit contains, at most 1,000 bytes. The broker does not
            interpret it. It returns the digest to a later start of the writer that begins or commits the same version
            again.
        children: the transactions; if there are none, only the version of the key and the offsets are recorded.
        group_offsets: offsets of consumer groups, which take effect with the commit.
    """

    __api_key__: ClassVar = i16(ApiKey.COMMIT_JOINT)
    group: str = field(metadata=STRING, default="")
    key: str = field(metadata=STRING)
    version: i64 = field(metadata=INT64)
    run: str | None = field(metadata=STRING, default=None)
    retention_ms: i64 = field(metadata=INT64, default=i64(-1))
    digest: str | None = field(metadata=STRING, default=None)
    children: tuple[JointChild, ...]
    group_offsets: tuple[JointOffset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitJointResponse(ExtensionResponse):
    """Response that reports a joint commit, which this request or an earlier one has made, or an error. After an error,
    none of the transactions was committed or aborted.

    Attributes:
        error_message: the error as text, with the name of the child if a child cannot be committed; null without an
            error.
        commit_sequence: the number of the commit in its transaction group; -1 if it is not the last one of the key.
        committed_run: the start of the writer that has made the commit; null if the commit is not the last one of the
            key, or was made without a run.
        digest: the description of the commit's content that its writer has given; null if the commit is not the last
            one of the key, or has no digest.
        already: whether this version of the key, or a later one, was committed before. The children of the request are
            then not part of that commit, unless the request is a repetition.
    """

    __api_key__: ClassVar = i16(ApiKey.COMMIT_JOINT)
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    already: bool = field(metadata=BOOL, default=False)
    committed_run: str | None = field(metadata=STRING, default=None)
    digest: str | None = field(metadata=STRING, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortJointRequest(ExtensionRequest):
    """Request to abort children of a joint commit (the transactions that it would commit together), unless the joint
    commit is made already.

    Attributes:
        group, key, version: identify the joint commit: its transaction group, the name of its writer, and its number
            among the writer's joint commits, as in BeginJointRequest.
        run: a text that names one start of the writer. If it is given, the broker aborts all children that this start
            has in the version, and refuses children that this start begins in it later. Null: only `children` are
            aborted.
        children: the transactions to abort.
    """

    __api_key__: ClassVar = i16(ApiKey.ABORT_JOINT)
    group: str = field(metadata=STRING, default="")
    key: str = field(metadata=STRING)
    version: i64 = field(metadata=INT64)
    run: str | None = field(metadata=STRING, default=None)
    children: tuple[JointChild, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortJointResponse(ExtensionResponse):
    """Response that says whether the children (transactions) of a joint commit were aborted. Children that are
    committed already stay committed.

    Attributes:
        error_message: the error as text; null without an error.
        committed: whether this version of the key, or a later one, is committed already.
        commit_sequence: the number of this version's commit in its transaction group; -1 if the version is not
            committed, or is not the last committed one.
    """

    __api_key__: ClassVar = i16(ApiKey.ABORT_JOINT)
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    committed: bool = field(metadata=BOOL, default=False)
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
