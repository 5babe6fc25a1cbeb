"""The messages of DescribeCommits, which reports where transactions begin and end in a partition of a commit-ordered
topic, whose readers get whole transactions in the order of their commits.

        10005 DescribeCommits   the next transactions after a position, or after a commit sequence

A position is an offset in that order, and the commit sequence is the number of a commit in its transaction group (the
topics whose commits have one order). The meaning of the messages: docs/reference/protocol.md, "Commits".
"""

import uuid
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32, i64

from stablelog.wire.api import ApiKey
from stablelog.wire.extension.fields import (
    BOOL,
    ERROR,
    INT32,
    INT64,
    STRING,
    UUID,
    ExtensionRequest,
    ExtensionResponse,
    Nested,
)

COUNT_MAX: Final = 1000  # The maximum number of transactions in one response.


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCommitsRequest(ExtensionRequest):
    """Request for the next transactions of one partition.

    Attributes:
        topic, partition_index: a partition of a commit-ordered topic; another topic gets INVALID_REQUEST.
        offset: a position (an offset in commit order); transactions that end at or before it are not listed.
        commit_sequence: transactions with a smaller commit sequence are not listed; -1 to list all.
        count_max: how many transactions to list. The broker lists at most 1,000.
        with_outside: whether to list ranges of records outside transactions, too, with the commit sequence -1.
        max_wait_ms: how long the broker waits for a transaction if there is none.
    """

    __api_key__: ClassVar = i16(ApiKey.DESCRIBE_COMMITS)
    topic: str = field(metadata=STRING)
    partition_index: i32 = field(metadata=INT32)
    offset: i64 = field(metadata=INT64, default=i64(0))
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    count_max: i32 = field(metadata=INT32, default=i32(COUNT_MAX))
    with_outside: bool = field(metadata=BOOL, default=False)
    max_wait_ms: i32 = field(metadata=INT32, default=i32(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedCommit(Nested):
    """One transaction in a response to DescribeCommits, or a range of adjacent records outside transactions. Its
    records in the partition are at the offsets [start_offset, end_offset) in the order of the commits.

    Attributes:
        start_offset, end_offset: the positions of its records; `end_offset` is not included.
        commit_sequence: the number of the commit; -1 for records outside transactions.
        time_ms: when it was committed, by the broker's clock, in ms since 1970.
    """

    start_offset: i64 = field(metadata=INT64)
    end_offset: i64 = field(metadata=INT64)
    commit_sequence: i64 = field(metadata=INT64)
    time_ms: i64 = field(metadata=INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCommitsResponse(ExtensionResponse):
    """Response with the transactions of one partition, or with an error.

    Attributes:
        error_message: the error as text; null without an error.
        topic_id: the id of the topic; a later topic of the same name has another one.
        log_start_offset, end_offset: the positions that can be read; `end_offset` is not included.
        commits: the listed transactions.
    """

    __api_key__: ClassVar = i16(ApiKey.DESCRIBE_COMMITS)
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    topic_id: uuid.UUID | None = field(metadata=UUID, default=None)
    log_start_offset: i64 = field(metadata=INT64, default=i64(-1))
    end_offset: i64 = field(metadata=INT64, default=i64(-1))
    commits: tuple[DescribedCommit, ...] = ()
