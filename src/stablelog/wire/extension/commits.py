"""The message that asks where transactions begin and end in a partition of a commit-ordered topic.

        10005 DescribeCommits   the next transactions after a position, or after a commit sequence

The meaning of the messages: docs/protocol.md, "Commits".
"""

import uuid
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i64

from stablelog.wire.api import ApiKey
from stablelog.wire.extension.fields import BOOL, ERROR, INT32, INT64, STRING, UUID

COUNT_MAX: Final = 1000  # transactions in one response


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCommitsRequest:
    """Asks for the next transactions of one partition."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.DESCRIBE_COMMITS)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    topic: str = field(metadata=STRING)
    """A commit-ordered one."""
    partition_index: i32 = field(metadata=INT32)
    offset: i64 = field(metadata=INT64, default=i64(0))
    """Transactions that end at or before this position are passed over."""
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    """So are those with a lesser number; -1 for none."""
    count_max: i32 = field(metadata=INT32, default=i32(COUNT_MAX))
    """How many to list; the broker lists 1,000 at most."""
    with_outside: bool = field(metadata=BOOL, default=False)
    """Whether to list the runs of records outside transactions as well, with -1 for a commit sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedCommit:
    """One transaction. Its records in this partition are at [start_offset, end_offset)."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    start_offset: i64 = field(metadata=INT64)
    end_offset: i64 = field(metadata=INT64)
    commit_sequence: i64 = field(metadata=INT64)
    time_ms: i64 = field(metadata=INT64)
    """Of the commit, by the broker's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCommitsResponse:
    """The transactions, or the error that explains why there are none."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ApiKey.DESCRIBE_COMMITS)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    """What was wrong, for people; null if nothing was."""
    topic_id: uuid.UUID | None = field(metadata=UUID, default=None)
    """Tells the topic from a later one of the same name."""
    log_start_offset: i64 = field(metadata=INT64, default=i64(-1))
    """The first position that can be read."""
    end_offset: i64 = field(metadata=INT64, default=i64(-1))
    """The position behind the last one that can be read."""
    commits: tuple[DescribedCommit, ...] = ()
