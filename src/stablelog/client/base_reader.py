"""What the readers of both clients share: their arguments, their connections, and what is not handed over yet."""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Generic

from stablelog.client.cluster_pool import ClusterPool, ClusterT
from stablelog.client.core import arguments
from stablelog.client.core import transaction_reader as core
from stablelog.client.core.read_position import ReadPosition
from stablelog.client.core.seeking import StartTime
from stablelog.client.core.steps import Steps
from stablelog.client.core.times import milliseconds
from stablelog.client.core.transaction_reader import ReaderItem, ReaderSelection
from stablelog.client.core.transaction_stream import CommittedTransaction
from stablelog.client.one_call import OneCall
from stablelog.errors import UsageError
from stablelog.processes import check_process, this_process

WHAT: Final = "this reader"


def select(
    topics: str | Iterable[str],
    order: str,
    *,
    cut: bool,
    after: ReadPosition | str | int | None,
    wait_s: float | None,
    group: str | None,
    skips_unreadable: bool = False,
) -> ReaderSelection:
    """Check the arguments of `Client.read`.

    Raises:
        TypeError: an argument has a wrong type.
        UsageError: another order than "commit", no topic, an invalid name, or an `after` or `wait` that is not valid.
    """
    if arguments.text("order", order) != "commit":
        raise UsageError(
            f"the order {order!r} is not valid: whole transactions can only be read with order='commit'"
        )
    if group is not None:
        arguments.text("group", group, "the name of a transaction group (str), or None")
    return ReaderSelection(
        arguments.topic_names(topics),
        arguments.flag("cut", cut),
        _after(after),
        arguments.wait_seconds(wait_s),
        group,
        arguments.flag("skip_unreadable", skips_unreadable),
    )


def _after(after: ReadPosition | str | int | None) -> core.After:
    if after is None or isinstance(after, ReadPosition):
        return after
    if isinstance(after, str):
        return ReadPosition.parse(after)
    sequence = arguments.whole(
        "after", after, "the position of a reader or its text, a commit sequence (int), or None"
    )
    if not 0 <= sequence <= arguments.COMMIT_SEQUENCE_MAX:
        raise UsageError(
            f"{arguments.shown(sequence)} is no commit sequence: the first one is 1, 0 stands for the beginning, and None "
            "for new commits only"
        )
    return sequence


class BaseReader(Generic[ClusterT]):
    """The part of a reader that waits for nothing.

    Args:
        clusters: the pool of the client.
        selection: what to read.

    Raises:
        RefusedError: the client is closed.
    """

    def __init__(self, clusters: ClusterPool[ClusterT], selection: ReaderSelection) -> None:
        self._is_closed = True  # if the client is closed
        self._calls = OneCall()
        self._steps: Steps[None] | None = None  # None if steps have to be begun at the position
        self._cluster: ClusterT | None = None  # None while the reader has no connections
        self._given: deque[ReaderItem] = deque()  # read, and not handed over yet
        clusters.check_open()
        self._clusters = clusters
        self._selection = selection
        self._core = core.TransactionReader(selection)
        self._process = this_process()
        self._is_closed = False

    def __del__(self) -> None:
        self._end()

    def __repr__(self) -> str:
        names, sequence = ", ".join(self._selection.topics), self._core.commit_sequence
        where = f", after commit {sequence}" if sequence else ""
        return f"<{type(self).__name__} of {names}{where}, {'closed' if self._is_closed else 'open'}>"

    @property
    def position(self) -> ReadPosition:
        """The position after the last transaction that the program has got. `str(position)` is a text to store.

        `read(..., after=position)` goes on there, in this process or a later one. Store the position together with
        the results of the transaction, or after them.

        Raises:
            UsageError: the reader has no position yet, because nothing says where it begins before its first request.
        """
        return self._core.position

    def seek(self, after: ReadPosition | str | int | None) -> None:
        """Go on after a position or a commit sequence.

        Args:
            after: as the argument `after` of `read`: 0 stands for the beginning, None for new commits only.

        Raises:
            TypeError: it is neither a position nor a number.
            UsageError: the position is of another reader, or is not valid.
        """
        with self._calls.free():
            self._core.seek(_after(after))
            self._begin_again()

    def seek_to_time(self, time: datetime | int) -> None:
        """Go on at the first commit at or after a time, by the broker's clock; with new commits if there is none. With
        `cut=False`, this holds for each partition.

        Args:
            time: a datetime with a time zone, or milliseconds since 1970; not before 1970. 0 means the beginning.

        Raises:
            TypeError: it is neither a datetime nor a whole number.
            UsageError: the time has no time zone, or is before 1970 or out of range.
        """
        with self._calls.free():
            self._core.seek(StartTime(milliseconds(time)))
            self._begin_again()

    def seek_to_offset(self, topic: str, partition: int, offset: int) -> None:
        """Go on at an offset of one partition, with the whole transaction that contains it. The other partitions go on
        where they are. Only for readers with `cut=False`. If the offset is not in the log, the next call raises
        `OffsetOutOfRangeError`, and the partition then goes on where it was before the seek.

        Args:
            topic: one of the topics of the reader.
            partition: the partition.
            offset: the offset.

        Raises:
            UsageError: the reader has `cut=True`, does not read the topic, or has no position yet.
        """
        with self._calls.free():
            self._core.seek_to_offset(
                arguments.topic_name(topic),
                arguments.partition_number(partition),
                arguments.offset_number(offset),
            )
            self._begin_again()

    def pause(self, topic: str, partition: int | None = None) -> None:
        """Return no more transactions of a partition until `resume`. Only for readers with `cut=False`: without one of its
        partitions, a transaction of a cut is not whole.

        Args:
            topic: the topic.
            partition: the partition; None for all partitions of the topic, also those that are added later.

        Raises:
            UsageError: the reader has `cut=True`.
        """
        with self._calls.free():
            self._core.pause(*arguments.place(topic, partition))
            self._begin_again()

    def resume(self, topic: str, partition: int | None = None) -> None:
        """Return the transactions of a paused partition again, from the first one that was not returned.

        Args:
            topic: the topic.
            partition: the partition; None for all partitions of the topic.

        Raises:
            UsageError: the reader has `cut=True`; or a partition is given, and the whole topic was paused.
        """
        with self._calls.free():
            self._core.resume(*arguments.place(topic, partition))
            self._begin_again()

    def _begun(self) -> tuple[ClusterT, Steps[None]]:
        """Return the cluster and the steps that read on.

        Raises:
            UsageError: the reader is closed, or was begun in another process.
            RefusedError: the client is closed.
        """
        check_process(self._process, WHAT)
        self._check_open()
        if self._cluster is None:
            self._cluster = self._clusters.lend()
        if self._steps is None:
            self._steps = self._core.steps(self._cluster.core)
        return self._cluster, self._steps

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError("this reader is closed: make another one with read, after its position")

    def _failed(self, error: BaseException) -> None:
        """Begin again after an error of the steps.

        Raises:
            UsageError: the reader was closed meanwhile.
        """
        self._begin_again()
        if isinstance(error, Exception):
            self._check_open()

    def _take(self, given: ReaderItem) -> bool:
        """Take an item of the steps. Return whether it has a transaction.

        Raises:
            UsageError: the reader was closed meanwhile.
        """
        if self._is_closed:
            self._begin_again()
            self._check_open()
        if given.transaction is None:
            if not self._given:
                self._core.deliver(given)
            return False
        self._given.append(given)
        return True

    def _hand_over(self) -> CommittedTransaction:
        """Return the next transaction, for the program, and move the position."""
        given = self._given.popleft()
        self._core.deliver(given)
        assert given.transaction is not None
        return given.transaction

    def _size(self, place: int) -> int:
        """Return how many records a transaction has that is not handed over yet."""
        transaction = self._given[place].transaction
        assert transaction is not None
        return len(transaction.records)

    def _begin_again(self) -> None:
        """After an error or a seek, drop what is not handed over, and begin again at the position."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None
        self._given.clear()
        if self._cluster is not None:
            self._clusters.give_back(self._cluster)
            self._cluster = None

    def _end(self) -> None:
        """Give the connections back. A call that is running does this when it ends, and then raises UsageError."""
        self._is_closed = True
        if self._calls.is_running:
            self._core.wait_s = 0.0
        else:
            self._begin_again()
