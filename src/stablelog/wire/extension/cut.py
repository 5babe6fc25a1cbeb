"""The messages of DescribeCut, which reports a cut: for each partition, the offset at which the transactions up to a
commit sequence end. The commit sequence is the number of a commit in its transaction group, the topics whose commits
have one order.

    10004 DescribeCut   the offset after the last commit with a sequence up to R, in every partition of the topics

A reader that reads from the offsets of cut R1 to those of cut R2 gets exactly the transactions in (R1, R2], each
complete. The meaning of the messages: docs/reference/protocol.md, "Cuts".
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.static.primitive import i16, i32, i64

from stablelog.wire.api import ApiKey
from stablelog.wire.extension.fields import (
    ERROR,
    INT32,
    INT64,
    STRING,
    ExtensionRequest,
    ExtensionResponse,
    Nested,
)

# The value of removed_commit_sequence if it is unknown which commits have lost records.
NOT_KNOWN: Final = -2
# In a request: the last resolved commit sequence, that is, with durable markers of all commits up to it.
RESOLVED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCutRequest(ExtensionRequest):
    """Request for a cut: for each partition, the offset at which the transactions up to a commit sequence end (the
    number of a commit in its transaction group).

    Attributes:
        group: the transaction group; empty for the default group. Null: that of the topics.
        commit_sequence: R, the commit sequence of the cut; -1 for the greatest resolved one.
        topics: commit-ordered topics of one transaction group. Other topics get INVALID_REQUEST.
    """

    __api_key__: ClassVar = i16(ApiKey.DESCRIBE_CUT)
    group: str | None = field(metadata=STRING, default=None)
    commit_sequence: i64 = field(metadata=INT64, default=i64(RESOLVED))
    topics: tuple[str, ...] = field(metadata=STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPartition(Nested):
    """One partition of a cut in the response: the offset at which its transactions up to the commit sequence R of the
    cut end. (A commit sequence is the number of a commit in its transaction group.)

    Attributes:
        offset: the offset of the cut in this partition.
        removed_commit_sequence: the greatest commit sequence of a transaction that may have lost records here; -1 for
            none, -2 if not known.
        torn_commit_sequence: the greatest commit sequence of a transaction whose beginning retention has removed, so
            that it can no longer be read; -1 for none.
    """

    partition_index: i32 = field(metadata=INT32)
    offset: i64 = field(metadata=INT64)
    removed_commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    torn_commit_sequence: i64 = field(metadata=INT64, default=i64(-1))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTopic(Nested):
    """A topic in the response to DescribeCut, with the offset in each of its partitions at which the transactions up to
    the requested commit end.
    """

    name: str = field(metadata=STRING)
    partitions: tuple[CutPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutHolder(Nested):
    """A commit marker that is not durable yet and therefore holds back the cuts, the positions between two commits in
    all partitions: until the marker is durable, no response to DescribeCut includes this commit or a later one.

    Attributes:
        transactional_id: the id of the transaction; empty if the broker does not know it any more.
    """

    commit_sequence: i64 = field(metadata=INT64)
    transactional_id: str = field(metadata=STRING, default="")
    topic: str = field(metadata=STRING)
    partition_index: i32 = field(metadata=INT32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeCutResponse(ExtensionResponse):
    """Response with a cut, the offsets at which the transactions up to a commit sequence R end, or with an error. A
    commit sequence is the number of a commit in its transaction group, the topics whose commits have one order.

    Attributes:
        error_code: INVALID_REQUEST: R is not resolved yet. COORDINATOR_LOAD_IN_PROGRESS, KAFKA_STORAGE_ERROR: a
            partition that may have lost a commit marker in a crash is opening, or is offline.
        error_message: the error as text; null without an error.
        group: the transaction group of the commit sequences.
        commit_sequence: R of the returned cut.
        last_commit_sequence: the commit sequence of the group's last commit; its markers need not be durable yet.
        topics: the offsets, by topic and partition.
        holders: markers that are not durable yet, because of which no later commit sequence is resolved.
    """

    __api_key__: ClassVar = i16(ApiKey.DESCRIBE_CUT)
    error_code: ErrorCode = field(metadata=ERROR)
    error_message: str | None = field(metadata=STRING, default=None)
    group: str = field(metadata=STRING, default="")
    commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    last_commit_sequence: i64 = field(metadata=INT64, default=i64(-1))
    topics: tuple[CutTopic, ...] = ()
    holders: tuple[CutHolder, ...] = ()
