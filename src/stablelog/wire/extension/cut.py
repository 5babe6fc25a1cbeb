"""The message that asks for a cut: the offset in each partition where the transactions up to a commit sequence end.

    10004 DescribeCut   the offset after the last commit up to sequence R, in every partition of the topics

A reader that reads from the offsets of cut R1 to those of cut R2 gets exactly the transactions in (R1, R2], each
complete. The meaning of the messages: docs/protocol.md, "Cuts".
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64

from stablelog.wire.api import ApiKey
from stablelog.wire.extension.fields import ERROR, INT32, INT64, STRING

NOT_KNOWN: Final = -2  # in removed_commit_sequence: which commits lost records is unknown
RESOLVED: Final = -1  # in place of a commit sequence in the request: the last one that is resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCutRequest:
    """Asks where the transactions up to a commit sequence end."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.DESCRIBE_CUT)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str | None = field(metadata=STRING, default=None)
    """The transaction group, empty for the default one; null for the one that the topics belong to."""
    commit_sequence: i64 = field(metadata=INT64, default=i64(RESOLVED))
    """R; -1 for the last one that is resolved."""
    topics: tuple[str, ...] = field(metadata=STRING)
    """Commit-ordered topics, all of one transaction group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPartition:
    """The offset of the cut in one partition."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    partition_index: i32 = field(metadata=INT32)
    offset: i64 = field(metadata=INT64)
    """The first position that is not in the cut."""
    removed_commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """The greatest commit sequence of a transaction of which something may have been removed; -1 none, -2 not known."""
    torn_commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """The greatest one of a transaction that was removed though positions before it may be left; -1 none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTopic:
    """A topic of the cut with all its partitions."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata=STRING)
    partitions: tuple[CutPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutHolder:
    """A marker that is not durable yet. The cut cannot include its commit until it is."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    commit_sequence: i64 = field(metadata=INT64)
    transactional_id: str = field(metadata=STRING, default="")
    """Empty where the broker does not know it any more."""
    topic: str = field(metadata=STRING)
    partition_index: i32 = field(metadata=INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCutResponse:
    """The cut, or the error that explains why there is none."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.DESCRIBE_CUT)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    """What was wrong, for people; null if nothing was."""
    group: str = field(metadata=STRING, default="")
    """The transaction group whose commits are numbered; empty for the default one, and where there is an error."""
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """R of this cut."""
    last_commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """Of the last commit that was decided; from there to R they are held back."""
    topics: tuple[CutTopic, ...] = ()
    holders: tuple[CutHolder, ...] = ()
    """What R waits for, if it is behind the last commit."""
