"""The base of the readers of transactions in the blocking and the asyncio client: the check of their arguments, their
connections, and the transactions that are read and not yet returned to the program.
"""

from collections import deque
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Generic

from stablelog.client.cluster_pool import ClusterPool, ClusterT
from stablelog.client.core import arguments
from stablelog.client.core import transaction_reader as core
from stablelog.client.core.read_position import ReadPosition
from stablelog.client.core.reader_start import After
from stablelog.client.core.seeking import StartTime
from stablelog.client.core.steps import Steps
from stablelog.client.core.times import milliseconds
from stablelog.client.core.transaction_reader import ReaderItem, ReaderSelection
from stablelog.client.core.transaction_stream import CommittedTransaction
from stablelog.client.one_call import OneCall
from stablelog.errors import UsageError
from stablelog.processes import check_process, this_process

WHAT: Final = "this reader"


def check_selection(
    topics: str | Iterable[str],
    order: str,
    *,
    cut: bool,
    after: ReadPosition | str | int | None,
    wait_s: float | None,
    group: str | None,
    skips_unreadable: bool = False,
) -> ReaderSelection:
    """Check the arguments of `Client.read`, and return them as one value.

    Args:
        topics: one name or several.
        order: must be "commit".
        cut: whether the reader returns each transaction once, with its records of all partitions. Otherwise it reads
            each partition separately.
        after: where to begin: after the `position` of an earlier reader or its text, after a commit sequence (the
            number of a commit in its transaction group), or None for new commits only.
        wait_s: seconds to wait for another transaction; None for no limit.
        group: the transaction group, the topics whose commits have one order, to which these topics belong; None to ask
            the broker for it.
        skips_unreadable: whether to leave out records that cannot be decoded although their CRC is right.

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
        arguments.true_or_false("cut", cut),
        _after(after),
        arguments.wait_seconds(wait_s),
        group,
        arguments.true_or_false("skip_unreadable", skips_unreadable),
    )


def _after(after: ReadPosition | str | int | None) -> After:
    if after is None or isinstance(after, ReadPosition):
        return after
    if isinstance(after, str):
        return ReadPosition.parse(after)
    sequence = arguments.whole_number(
        "after", after, "the position of a reader or its text, a commit sequence (int), or None"
    )
    if not 0 <= sequence <= arguments.COMMIT_SEQUENCE_MAX:
        raise UsageError(
            f"{arguments.shown_value(sequence)} is no commit sequence (the number of a commit): the first one is 1, 0 "
            "stands for the beginning, and None for new commits only"
        )
    return sequence


class BaseReader(Generic[ClusterT]):
    """The methods of a reader of transactions that do not wait.

    Args:
        clusters: the client's pool of cluster objects, which hold the connections to the brokers.
        selection: the arguments of `Client.read`: which topics to read, and how.

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
        self._return_cluster()

    def __repr__(self) -> str:
        names, sequence = ", ".join(self._selection.topics), self._core.commit_sequence
        where = f", after commit {sequence}" if sequence else ""
        return f"<{type(self).__name__} of {names}{where}, {'closed' if self._is_closed else 'open'}>"

    @property
    def position(self) -> ReadPosition:
        """The position after the last transaction that the program has got. `str(position)` is a text that a program
        can store.

        `read(..., after=position)` continues there, in this process or a later one. Store the position together with
        the results of the transaction, or after them.

        Raises:
            UsageError: the reader has no position yet, because it has sent no request. This is so only for a reader
                that begins with new commits, or after a commit sequence (the number of a commit) in several partitions.
        """
        return self._core.position

    def seek(self, after: ReadPosition | str | int | None) -> None:
        """Continue after a position of a reader, or after a commit sequence, the number of a commit.

        Args:
            after: as the argument `after` of `read`: 0 stands for the beginning, None for new commits only.

        Raises:
            TypeError: `after` is neither a position nor a number.
            UsageError: the position is of a reader of other topics, or is not valid.
        """
        with self._calls.lock_if_free():
            self._core.seek(_after(after))
            self._restart()

    def seek_to_time(self, time: datetime | int) -> None:
        """Continue at the first transaction that was committed at or after a time, by the broker's clock; with new
        commits if there is none. A reader with `cut=False`, which reads each partition separately, does this in each
        partition.

        Args:
            time: a datetime with a time zone, or milliseconds since 1970; not before 1970. 0 means the beginning.

        Raises:
            TypeError: `time` is neither a datetime nor a whole number.
            UsageError: the time has no time zone, or is before 1970 or out of range.
        """
        with self._calls.lock_if_free():
            self._core.seek(StartTime(milliseconds(time)))
            self._restart()

    def seek_to_offset(self, topic: str, partition: int, offset: int) -> None:
        """Continue at an offset of one partition, with the whole transaction that contains it. The other partitions
        stay where they are. Only for readers with `cut=False`, which read each partition separately. If the offset is
        not in the log, the next call raises `OffsetOutOfRangeError`, and the partition then continues where it was
        before the seek.

        Args:
            topic: one of the topics of the reader.
            partition: the partition.
            offset: the offset.

        Raises:
            UsageError: the reader has `cut=True`, does not read the topic, or has no position yet.
        """
        with self._calls.lock_if_free():
            self._core.seek_to_offset(
                arguments.topic_name(topic),
                arguments.partition_number(partition),
                arguments.offset_number(offset),
            )
            self._restart()

    def pause(self, topic: str, partition: int | None = None) -> None:
        """Pause the reading of a partition: its transactions are not returned until `resume` is called. Only for
        readers with `cut=False`, which read each partition separately: other readers return a transaction with its
        records of all partitions, and it would not be whole without one of them.

        Args:
            topic: the topic.
            partition: the partition; None for all partitions of the topic, also those that are added later.

        Raises:
            UsageError: the reader has `cut=True`.
        """
        with self._calls.lock_if_free():
            self._core.pause(*arguments.topic_and_partition(topic, partition))
            self._restart()

    def resume(self, topic: str, partition: int | None = None) -> None:
        """Resume the reading of a paused partition: its next transaction is the first one that the program has not got.

        Args:
            topic: the topic.
            partition: the partition; None for all partitions of the topic.

        Raises:
            UsageError: the reader has `cut=True`; or the whole topic is paused, so that one partition of it cannot be
                resumed.
        """
        with self._calls.lock_if_free():
            self._core.resume(*arguments.topic_and_partition(topic, partition))
            self._restart()

    def _current_steps(self) -> tuple[ClusterT, Steps[None]]:
        """Return the generator of steps that reads transactions, and the cluster object (the connections to the
        brokers) that runs it. The steps are I/O operations, which the cluster object carries out. If there is no
        generator, or it has ended, begin a new one at the position of the reader.

        Returns:
            The cluster object, which the reader has borrowed from the pool, and the generator.

        Raises:
            UsageError: the reader is closed, or was begun in another process.
            RefusedError: the client is closed.
        """
        check_process(self._process, WHAT)
        self._check_open()
        if self._cluster is None:
            self._cluster = self._clusters.lend_cluster()
        if self._steps is None:
            self._steps = self._core.read_steps(self._cluster.core)
        return self._cluster, self._steps

    def _check_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                "this reader is closed: make another one with `read`, and pass the position of the closed "
                "reader as `after`"
            )

    def _restart_after(self, error: BaseException) -> None:
        """Prepare the reader after `error`, which a call that reads has raised: the next call begins again at the
        reader's position.

        Raises:
            UsageError: the reader was closed meanwhile.
        """
        self._restart()
        if isinstance(error, Exception):
            self._check_open()

    def _take_item(self, given: ReaderItem) -> bool:
        """Store the transaction that the reader has just read, so that a call of the program can return it. `given` is
        what the steps of the reader (a generator of I/O operations) have emitted: a transaction, or the sign that none
        came within the time limit. Return True for a transaction.

        Raises:
            UsageError: the reader was closed meanwhile.
        """
        if self._is_closed:
            self._restart()
            self._check_open()
        if given.transaction is None:
            if not self._given:
                self._core.deliver_item(given)
            return False
        self._given.append(given)
        return True

    def _next_transaction(self) -> CommittedTransaction:
        """Return the next transaction that was read, for the program, and move the reader's position behind it."""
        given = self._given.popleft()
        self._core.deliver_item(given)
        assert given.transaction is not None
        return given.transaction

    def _record_count(self, place: int) -> int:
        """Return the number of records of a transaction that was read and that the program has not got yet. `place` is
        the number of the transaction among these, counted from 0; the program gets number 0 next.
        """
        transaction = self._given[place].transaction
        assert transaction is not None
        return len(transaction.records)

    def _restart(self) -> None:
        """Stop reading: drop the transactions that were read and not returned to the program, and return the
        connections to the pool. The next call begins again at the reader's position.
        """
        if self._steps is not None:
            self._steps.close()
        self._steps = None
        self._given.clear()
        if self._cluster is not None:
            self._clusters.return_cluster(self._cluster)
            self._cluster = None

    def _return_cluster(self) -> None:
        """Return the connections to the client's pool. If a call of the reader is running in another thread or task,
        that call returns them when it ends, and then raises UsageError.
        """
        self._is_closed = True
        if self._calls.is_running:
            self._core.wait_s = 0.0
        else:
            self._restart()
