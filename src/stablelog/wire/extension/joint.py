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
        group: the transaction group; empty for the default group.
        key: the name of the writer, 1 to 255 bytes.
        version: the number of the writer's commit, from 0.
        run: the start of the writer that sends the request. Null: the request only asks whether the version is
            committed.
        order: a number that grows with each start of the writer: a start cannot take over a version from one with a
            greater order. -1: none.
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
        commit_sequence: the number of this version's commit in its transaction group; -1 if it is not the last
            committed version.
        last_version: the last committed version of the key; -1 if there is none.
        committed_run, digest: the run and the digest of this version's CommitJoint; null if it had none, or if this is
            not the last committed version.
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
        transactional_id, producer_id, producer_epoch: the transaction of the child: its transactional id, and the
            producer of its records.
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
        group, key, version: as in BeginJointRequest.
        run: the start of the writer that commits. The commit is refused if another one has begun this version since.
            Null: any start may commit.
        retention_ms: how long the broker remembers the key after its last commit; -1 for ever.
        digest: a text of at most 1,000 bytes that describes the contents of the version. The broker only returns it.
        children: the transactions to commit; may be empty.
        group_offsets: offsets of consumer groups that are committed with the children.
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
        error_message: the error as text, with the name of the child that cannot be committed; null without an error.
        commit_sequence: the number of the commit in its transaction group; -1 if a later version of the key is
            committed.
        already: whether this version of the key, or a later one, was committed before this request.
        committed_run, digest: as in BeginJointResponse.
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
        group, key, version: as in BeginJointRequest.
        run: if it is given, all its children of this version are aborted, and it can begin no more of them. Null: only
            `children` are aborted.
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
        committed, commit_sequence: as in BeginJointResponse. If `committed` is true, no child of this commit was
            aborted.
    """

    __api_key__: ClassVar = i16(ApiKey.ABORT_JOINT)
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    committed: bool = field(metadata=BOOL, default=False)
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
