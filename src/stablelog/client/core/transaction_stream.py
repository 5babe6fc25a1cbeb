"""The transactions of one partition, in the order of their commits. `core.transaction_reader` combines the streams of
several partitions.

A stream reads the transactions of one partition. It gets the bounds of the transactions by DescribeCommits
(`core.commits`), and the records by ordinary fetches. It holds in memory one whole transaction, and the records of the
next transactions that the same fetch returned.

A reader that has read everything waits in a long poll: a fetch of all its partitions, which the broker answers when one
of them has a new record. So a commit wakes the reader, and an idle reader sends one or two requests a second. The
records of this fetch are kept, because the reader needs them next.
"""

import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.records import Header, Record
from stablelog.client.core.batches import read_batches
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.commits import Commit, describe_commits
from stablelog.client.core.long_poll import WAIT_MAX_S, wait_for_records
from stablelog.client.core.partitions import fetch
from stablelog.client.core.read_position import Mark
from stablelog.client.core.steps import NOW, Emit, Pause, Steps
from stablelog.errors import DamageError, DataLossError, UnavailableError
from stablelog.types import TopicPartition
from stablelog.wire.fetch import Fetched
from stablelog.wire.guard import Buffer

LISTED_MAX: Final = 200  # maximum of transactions in one DescribeCommits response
FETCH_SIZE_MAX: Final = 1 << 20
PAUSE_FIRST_S, PAUSE_MAX_S = 0.002, 0.2
DISK_ATTEMPTS: Final = 5  # a partition may be closed for a moment; these attempts take less than a second


class ReadRecord(NamedTuple):
    """A record that a reader has got. For read-committed readers of a commit-ordered topic, its offset is the offset in
    commit order.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """A whole transaction: all its records in the partitions that are read. If the reader reads each partition
    separately (`cut=False`), these are only the records in one partition.

    Attributes:
        commit_sequence: the number of the commit in its transaction group, the topics whose commits have one order.
        time_ms: the time of the commit, by the broker's clock.
        records: the records, sorted by topic and partition; in each partition in the order in which they were written.
        unreadable_count: how many records are left out because no client can decode them.
    """

    commit_sequence: int
    time_ms: int
    records: tuple[ReadRecord, ...]
    unreadable_count: int = 0


class TransactionStream:
    """Reads the transactions of one partition, beginning at a mark (an offset and the number of a commit).

    Args:
        cluster: the brokers.
        target: the partition.
        mark: how far the partition was read before; the stream begins there.
        topic_id: the id of the topic; None if it is unknown.
        skips_unreadable: whether records that cannot be decoded are left out.

    Attributes:
        unreadable_count: how many records of the last taken transaction could not be decoded and were left out.
    """

    def __init__(
        self,
        cluster: Cluster,
        target: TopicPartition,
        mark: Mark,
        topic_id: uuid.UUID | None,
        *,
        skips_unreadable: bool = False,
    ) -> None:
        self._cluster = cluster
        self._skips_unreadable = skips_unreadable
        # (first offset, number) of records that are left out
        self._unreadable: deque[tuple[int, int]] = deque()
        self.unreadable_count = 0  # how many the transaction that was taken last lacks
        self._target = target
        self._after = mark.commit_sequence
        self._leader_epoch = mark.leader_epoch
        self._taken_end = max(0, mark.needed_end)
        self._topic_id = topic_id
        # All transactions that end before this position were requested; UNKNOWN before the first request.
        self._position = mark.offset
        self._listed: deque[Commit] = deque()
        self._list_is_full = False  # the last response had `LISTED_MAX` transactions, so more may follow
        self._is_at_end = False  # nothing follows `_position`, as far as the reader knows
        self._known = -1  # all transactions up to this commit sequence were requested
        self._fetched: deque[Record] = deque()
        self._fetched_end = 0

    @property
    def is_listed(self) -> bool:
        """Whether the bounds of the next transaction are known, so that `peek_transaction` needs no request."""
        return bool(self._listed)

    @property
    def end(self) -> int | None:
        """The position (offset in commit order) after the last record that can be read, if the caller has taken all
        transactions before it; otherwise None.
        """
        return self._position if self._is_at_end and not self._listed else None

    @property
    def mark(self) -> Mark:
        """How far the partition was read: the caller has taken all transactions before this mark (an offset and the
        number of a commit), and none after it.
        """
        offset = self._listed[0].start_offset if self._listed else self._position
        return Mark(offset, self._after, self._leader_epoch, self._taken_end)

    def expect_records_from(self, position: int) -> None:
        """Drop the fetched records, because the caller is about to send a fetch from `position` on, whose result it
        then passes to `apply_fetched`. It must have taken all transactions before this position.
        """
        self._fetched.clear()
        self._fetched_end = position

    def apply_fetched(self, fetched: Fetched | None) -> None:
        """Take over the result of a fetch that the caller has sent after `expect_records_from`; None if the broker did
        not respond. The next `peek_transaction` then asks again whether there is another transaction.
        """
        self._is_at_end = False
        if fetched is not None and fetched.error is ErrorCode.none:
            self._add_batches(fetched.records)

    def peek_transaction(self, up_to: int | None = None) -> Steps[Commit | None]:
        """Return the bounds of the next transaction (the positions of its records), without taking it; None if there is
        none yet. If a call without `up_to` has returned None, further calls send no request until `apply_fetched` is
        called, because without a new record there is no further transaction.

        Args:
            up_to: return only a transaction with at most this commit sequence (the number of a commit). The markers of
                all commits up to it must be durable in all partitions. None for any transaction.

        Raises:
            DataLossError: transactions may have been removed before they were read, or the topic was deleted and
                created again.
        """
        if not self._listed and (not self._is_at_end if up_to is None else self._known < up_to):
            yield from self._list_transactions()
            if not self._list_is_full and up_to is not None:
                self._known = up_to
        if not self._listed or (up_to is not None and self._listed[0].commit_sequence > up_to):
            return None
        return self._listed[0]

    def _list_transactions(self) -> Steps[None]:
        """Request the bounds of the next transactions, and store them.

        Raises:
            DataLossError: transactions before them may have been removed, or the topic was deleted and created again.
        """
        found = yield from describe_commits(
            self._cluster,
            *self._target,
            offset=max(0, self._position),
            commit_sequence=self._after + 1,
            count_max=LISTED_MAX,
        )
        if self._topic_id not in (None, found.topic_id):
            raise DataLossError(
                f"topic {self._target[0]} was deleted and created again: {self._target[0]}-{self._target[1]} of the deleted "
                f"topic was read up to {self._position}"
            )
        self._topic_id = found.topic_id
        self._leader_epoch = yield from self._cluster.leader_epoch(*self._target)
        if self._position > found.end_offset:
            raise DataLossError(
                f"{self._target[0]}-{self._target[1]} ends at {found.end_offset} and was read up to "
                f"{self._position}: the records between are gone. The broker was probably restored from an "
                "older copy"
            )
        if 0 <= self._position < found.start_offset:
            raise DataLossError(
                f"{self._target[0]}-{self._target[1]} begins at {found.start_offset} and was read up to "
                f"{self._position}: the records between were removed, by retention or by DeleteRecords"
            )
        self._listed.extend(found.commits)
        self._list_is_full = len(found.commits) == LISTED_MAX
        self._is_at_end = not self._list_is_full
        self._position = found.commits[-1].end_offset if self._list_is_full else found.end_offset

    def take_transaction(self) -> Steps[list[ReadRecord]]:
        """Take the transaction that `peek_transaction` has returned, and return its records.

        The transactions that a joint commit has committed together (its children) have one commit sequence (number of
        the commit) and count as one transaction. They are adjacent in the partition, but may be listed by two
        DescribeCommits responses.

        Raises:
            DataLossError: the transaction may have been removed, or the topic was deleted and created again.
        """
        sequence = self._listed[0].commit_sequence
        self.unreadable_count = 0
        records: list[ReadRecord] = []
        while self._listed and self._listed[0].commit_sequence == sequence:
            commit = self._listed[0]
            read = yield from self._read_records(commit.start_offset, commit.end_offset)
            records += (
                ReadRecord(*self._target, one.offset, one.timestamp_ms, one.key, one.value, one.headers)
                for one in read
            )
            self._listed.popleft()
            self._taken_end = commit.end_offset
            if not self._listed and self._list_is_full:
                yield from self._list_transactions()
        self._after = sequence
        return records

    def _read_records(self, start: int, end: int) -> Steps[list[Record]]:
        """Return the records whose offsets are at least `start` and less than `end`."""
        while self._fetched and self._fetched[0].offset < start:
            self._fetched.popleft()
        self._fetched_end = max(self._fetched_end, start)
        while self._fetched_end < end:
            yield from self._fetch_batches(end)
        records = []
        while self._fetched and self._fetched[0].offset < end:
            records.append(self._fetched.popleft())
        while self._unreadable and self._unreadable[0][0] < end:
            offset, count = self._unreadable.popleft()
            self.unreadable_count += count if offset >= start else 0
        return records

    def _fetch_batches(self, end: int) -> Steps[None]:
        """Fetch the next batches of a transaction whose end offset is `end`.

        Raises:
            DamageError: the broker cannot read the records, or the first batch of them is damaged.
            UnavailableError: the broker has listed the transaction as readable, but returns none of its records.
        """
        before = self._fetched_end
        fetched = yield from fetch(
            self._cluster, *self._target, before, FETCH_SIZE_MAX, disk_attempts=DISK_ATTEMPTS
        )
        self._add_batches(fetched.records)
        if self._fetched_end == before:
            raise UnavailableError(
                f"{self._target[0]}-{self._target[1]}: the broker returns no records at offset {before}, although it has "
                f"listed a transaction there that ends at {end}"
            )

    def _add_batches(self, batches: Buffer) -> None:
        """Decode fetched batches, and add their records. If a batch is damaged, the ones before it are used first.

        Raises:
            DamageError: the first of these batches is damaged.
        """
        before, skips = self._fetched_end, self._skips_unreadable
        try:
            for header, records in read_batches(self._target, batches, before, skips_unreadable=skips):
                if records is None:
                    self._unreadable.append((header.base_offset, header.record_count))
                else:
                    self._fetched.extend(one for one in records if one.offset >= before)
                self._fetched_end = header.next_offset
        except DamageError:
            if self._fetched_end == before:
                raise


class ReaderWait:
    """The wait of a reader for the next transaction, when it has read all transactions that there are.

    Args:
        cluster: the brokers.
        wait_s: a function that returns for how many seconds the present call of the program waits for a transaction;
            None for no limit.
    """

    def __init__(self, cluster: Cluster, wait_s: Callable[[], float | None]) -> None:
        self._cluster = cluster
        self._wait_s = wait_s
        # When the wait for the next transaction has begun; None if there was no wait since the last one. The clock is
        # not read for each transaction.
        self._waited_from: float | None = None
        # From which positions the last long poll began that ended early; None if none did since the last transaction.
        self._woken_at: Mapping[TopicPartition, int] | None = None
        self._pause_s = PAUSE_FIRST_S

    def emit_item(self, item: Any) -> Steps[None]:
        """Emit an item, such as a transaction, and begin the time limit again: the next item may take as long."""
        yield Emit(item)
        self._pause_s, self._waited_from, self._woken_at = PAUSE_FIRST_S, None, None

    def wait_for_change(
        self, streams: Mapping[TopicPartition, TransactionStream], positions: Mapping[TopicPartition, int]
    ) -> Steps[bool]:
        """Wait until one of the partitions may have another transaction, and pass the records that were fetched
        meanwhile to the streams, each of which reads one partition.

        A long wait can end at once, again and again: a record is visible, and its transaction is not complete, because
        the markers in other partitions are not durable yet. So if the last wait from the same positions ended early,
        only pause instead of another such wait: otherwise the reader would send requests without end.

        Args:
            streams: the partitions.
            positions: for each partition, where the next transaction begins.

        Returns:
            True if the wait has ended because a partition may have changed. False, without a wait, if the time limit of
            the reader has passed.

        Raises:
            RefusedError: a partition does not exist.
            UnavailableError: the call was cancelled.
        """
        left_s = WAIT_MAX_S
        wait_s = self._wait_s()
        if wait_s is not None:
            now = yield NOW
            if self._waited_from is None:
                self._waited_from = now
            left_s = self._waited_from + wait_s - now
        if left_s <= 0:
            return False
        if not positions:  # all partitions are paused
            yield Pause(min(PAUSE_MAX_S, left_s))
            self._cluster.check_cancelled("waiting for the next transaction")
        elif positions == self._woken_at:
            yield Pause(min(self._pause_s, left_s))
            self._cluster.check_cancelled("waiting for the next transaction")
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
            for target in positions:
                streams[target].apply_fetched(None)
        else:
            self._pause_s = PAUSE_FIRST_S
            is_woken = yield from poll_streams(self._cluster, streams, positions, left_s)
            self._woken_at = positions if is_woken else None
        return True


def poll_streams(
    cluster: Cluster,
    streams: Mapping[TopicPartition, TransactionStream],
    positions: Mapping[TopicPartition, int],
    wait_s: float = 0,
) -> Steps[bool]:
    """Wait at most `wait_s` seconds for records from the given positions on, and pass the fetched records to the
    streams, each of which reads the transactions of one partition.

    Args:
        cluster: the brokers.
        streams: the partitions.
        positions: for each partition, where the next transaction begins.
        wait_s: how many seconds to wait; with 0, only records that exist already are fetched.

    Returns:
        Whether a partition has changed: it has a new record, or it can no longer be read there.
    """
    for target, position in positions.items():
        streams[target].expect_records_from(position)
    changed = yield from wait_for_records(cluster, positions, wait_s, FETCH_SIZE_MAX)
    for target, fetched in changed.items():
        streams[target].apply_fetched(fetched)
    return bool(changed)
