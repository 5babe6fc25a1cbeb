"""The messages of the joint commit.

A joint commit decides several open transactions, its *children*, together and with one commit sequence. A key and a
version identify the joint commit permanently.

    10001 BeginJoint    ask whether (key, version) is open; if it is, give it to the run that asks
    10002 CommitJoint   commit these children and these consumer group offsets together
    10003 AbortJoint    abort these children, unless (key, version) is committed

The transactional id of a child names its key, version and run: see `children`.
The meaning of the messages: docs/protocol.md, "Joint commit".
"""

from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64

from stablelog.wire.api import ApiKey
from stablelog.wire.extension.fields import BOOL, ERROR, INT16, INT32, INT64, STRING


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginJointRequest:
    """Asks whether (key, version) is open. If it is, it belongs to `run` from now on."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.BEGIN_JOINT)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str = field(metadata=STRING, default="")
    """The transaction group; empty for the default one."""
    key: str = field(metadata=STRING)
    """Whose versions these are: a streaming query, an application."""
    version: i64 = field(metadata=INT64)
    """Grows with each commit of the key; gaps are legal."""
    run: str | None = field(metadata=STRING, default=None)
    """Who asks. Open children of other runs of this (key, version) are aborted, and new ones refused. Null: only ask."""
    order: i64 = field(metadata=INT64, default=i64(-1))
    """Of the run among the runs of the key: a run never takes a version from one of a greater order. -1: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginJointResponse:
    """Whether (key, version) is open or was committed before."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.BEGIN_JOINT)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    """What was wrong, for people; null if nothing was."""
    committed: bool = field(metadata=BOOL, default=False)
    """Whether this version of the key, or a later one, is committed: then there is nothing to do."""
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """Of this version's commit; -1 if it is open, or not the last version that was committed."""
    last_version: i64 = field(metadata=INT64, default=i64(-1))
    """The last version of the key that was committed; -1 if none was."""
    committed_run: str | None = field(metadata=STRING, default=None)
    """Who has committed this version; null if it is open, not the last one, or nobody said."""
    digest: str | None = field(metadata=STRING, default=None)
    """What CommitJoint said that this version is made of; null likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointChild:
    """An open transaction that is to be a child."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    transactional_id: str = field(metadata=STRING)
    producer_id: i64 = field(metadata=INT64)
    """With which its records were written."""
    producer_epoch: i16 = field(metadata=INT16)
    """Likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointOffset:
    """The offset of a consumer group in one partition, to be committed together with the children."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    group_id: str = field(metadata=STRING)
    topic: str = field(metadata=STRING)
    partition_index: i32 = field(metadata=INT32)
    committed_offset: i64 = field(metadata=INT64)
    committed_metadata: str | None = field(metadata=STRING, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitJointRequest:
    """Commit these children: all of them or none."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.COMMIT_JOINT)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str = field(metadata=STRING, default="")
    key: str = field(metadata=STRING)
    version: i64 = field(metadata=INT64)
    run: str | None = field(metadata=STRING, default=None)
    """Who commits. Refused if another run has begun the version since. Null: whoever comes first."""
    retention_ms: i64 = field(metadata=INT64, default=i64(-1))
    """How long the key is remembered after its last commit; -1 for ever. For keys that are used once."""
    digest: str | None = field(metadata=STRING, default=None)
    """What the version is made of, at most 100 bytes: whoever plans it anew is told, and can compare. Not looked into."""
    children: tuple[JointChild, ...]
    """May be empty: then only the version, and the offsets, are recorded."""
    group_offsets: tuple[JointOffset, ...] = ()
    """Become visible with the decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitJointResponse:
    """The commit, made now or before, or an error; after an error nothing was decided."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.COMMIT_JOINT)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    """Names the child that cannot be committed."""
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """As in BeginJointResponse."""
    already: bool = field(metadata=BOOL, default=False)
    """The version, or a later one, was committed before: the children that were named now are not part of it
    unless this is a repetition."""
    committed_run: str | None = field(metadata=STRING, default=None)
    """As in BeginJointResponse."""
    digest: str | None = field(metadata=STRING, default=None)
    """As in BeginJointResponse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortJointRequest:
    """Abort these children, unless (key, version) is committed."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.ABORT_JOINT)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str = field(metadata=STRING, default="")
    key: str = field(metadata=STRING)
    version: i64 = field(metadata=INT64)
    run: str | None = field(metadata=STRING, default=None)
    """If given, all children of this run are aborted, and it can begin no more of this version."""
    children: tuple[JointChild, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortJointResponse:
    """Whether the children were aborted. Children that were committed before stay committed."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.ABORT_JOINT)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    committed: bool = field(metadata=BOOL, default=False)
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """As in BeginJointResponse."""
