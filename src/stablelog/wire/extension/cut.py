"""The message that asks for a cut: where in each partition the transactions up to a commit sequence end.

    10004 DescribeCut   which offset follows the last commit up to R, in every partition of these topics

A reader that reads between the answers for R1 and R2 sees exactly the transactions in (R1, R2], whole.
What the messages mean: docs/protocol.md, "Cuts".
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64

from stablelog.wire.extension import DESCRIBE_CUT
from stablelog.wire.extension.fields import ERROR, INT32, INT64, STRING

NOT_KNOWN: Final = -2  # of what was removed
RESOLVED: Final = -1  # as the commit sequence that is asked for: the last one that is resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCutRequest:
    """Where the transactions up to a commit sequence end."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_CUT)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    group: str | None = field(metadata=STRING, default=None)
    """The transaction group, empty for the default one; null for the one that the topics belong to."""
    commit_sequence: i64 = field(metadata=INT64, default=i64(RESOLVED))
    """R; -1 for the last one that is resolved."""
    topics: tuple[str, ...] = field(metadata=STRING)
    """Commit-ordered topics, all of one transaction group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPartition:
    """Where the cut goes through a partition."""

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
    """A topic of the cut, with all its partitions."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata=STRING)
    partitions: tuple[CutPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutHolder:
    """A marker that is not durable yet, so that the cut cannot come to its commit."""

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
    """The cut, or why there is none."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_CUT)
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
