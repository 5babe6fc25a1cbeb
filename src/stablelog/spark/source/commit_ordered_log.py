"""The interface of logs with commit-ordered topics, whose readers get transactions in the order of their commits: the
cuts (positions between two commits, in all partitions), and the transactions of a partition.

The answers come from a broker, or from the lists of segments (manifests) and the commit indexes in an object store.
"""

from collections.abc import Collection
from typing import Protocol, cast

from kio.schema.errors import ErrorCode

from stablelog.client.blocking.commits import Commits
from stablelog.client.blocking.cuts import Cut
from stablelog.errors import RefusedError, UsageError
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.resolve import Log
from stablelog.types import TopicPartition
from stablelog.wire.extension.commits import COUNT_MAX


class CommitOrderedLog(Protocol):
    """A log with commit-ordered topics, whose readers get transactions in the order of their commits: the log of
    brokers, or the log in an object store.

    Attributes:
        may_lag: whether the last cut of this log (the last position between two commits, in all partitions) may be
            before one that a stream has reached already. In an object store it may: the stream may have read from a
            broker before, or at a time at which the topics had fewer partitions.
    """

    may_lag: bool

    def cut(self, topics: Collection[str], commit_sequence: int) -> Cut:
        """Return the cut of some topics at a commit sequence: for each partition the offset that divides the commits up
        to this sequence from the later ones. (A commit sequence is the number of a commit in its transaction group.)
        RESOLVED stands for the last commit whose markers are all durable.

        Raises:
            RefusedError: a topic does not exist, or is in another transaction group than another one; or, with the code
                invalid_request, the topic is not commit-ordered, or some markers of the commits up to this sequence are
                not durable yet.
        """

    def group(self, topic: str) -> str:
        """Return the name of the transaction group (the topics whose commits have one order) to which a topic belongs.
        Raises RefusedError if the topic does not exist, or is not commit-ordered, so that its readers do not get
        transactions in the order of their commits.
        """

    def commits(
        self, place: TopicPartition, offset: int, count_max: int = COUNT_MAX, *, with_outside: bool = False
    ) -> Commits:
        """Return the next transactions of a partition that end after an offset.

        Args:
            place: the partition.
            offset: the offset.
            count_max: the maximum number of transactions to return.
            with_outside: whether records outside transactions are listed, too.
        """

    def record_size(self, wanted: Range, isolation: str) -> float:
        """Return the average size of a record of a range, in bytes, for a reader with this isolation level."""


def commit_ordered(log: Log) -> CommitOrderedLog:
    """Return the log as a CommitOrderedLog. The caller has checked that the read is in the order of the commits, so it
    is not the log of a data directory, which cannot be read in this order.
    """
    assert hasattr(log, "cut")
    return cast("CommitOrderedLog", log)


def group_of(log: Log, topic: str) -> str:
    """Return the name of the transaction group (the topics whose commits have one order) to which a topic belongs;
    empty for the default group.

    Raises:
        UsageError: the topic is not commit-ordered: its readers do not get transactions in the order of their commits.
            The read cannot have the columns of commits, such as `commitSequence`.
    """
    try:
        return commit_ordered(log).group(topic)
    except RefusedError as refused:
        if refused.code is ErrorCode.invalid_request:
            raise UsageError(f"the read has columns of commits: {refused}") from refused
        raise
