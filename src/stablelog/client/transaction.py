"""One transaction as its writer sees it: each record is a future, and all of them come true together or fail together.

The records go out in batches while the transaction is open. The commit is a joint commit of this one transaction,
under a key of its own: the commit log remembers the key, so that a commit whose answer was lost can be asked again, and
is answered as it was, also by a broker that has restarted. Where a topic is in commit order, the broker is asked at
which positions the commit has put the records; in other topics a record stands where it was appended.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from types import TracebackType
from typing import Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from stablelog.batch.records import Header, Record, encode_batch
from stablelog.client import joint
from stablelog.client.cluster import Cluster, Target
from stablelog.client.commits import describe_commits
from stablelog.client.partitioning import partition_for
from stablelog.client.producer import Producer
from stablelog.errors import OffsetOutOfRange, Refused, StablelogError, Unavailable

BATCH_SIZE_MAX: Final = 256 << 10  # bytes of keys, values and headers; one record may have more
BUFFERED_SIZE_MAX: Final = 8 << 20  # of all partitions
RETENTION_S: Final = 86_400  # for which the broker remembers the commit
RUN: Final = "1"
POLL_FIRST_S, POLL_MAX_S = 0.0005, 0.02


class Position(NamedTuple):
    """Where a record stands: in commit order in a commit-ordered topic, else as it was appended.

    The offset is -1 if the broker did not tell: where it knew a repeated batch and no more.
    """

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit has done.

    Attributes:
        commit_sequence: the number of the commit in its transaction group; -1 if nothing was written.
        first: the position of the record that was written first; None if nothing was written.
        last: the position of the record that was written last.
    """

    commit_sequence: int
    first: Position | None
    last: Position | None


class _State(Enum):
    OPEN = auto()
    IN_DOUBT = auto()  # the commit was asked for, and not everything about it has been answered
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True)
class _Part:
    """What the transaction writes into one partition."""

    futures: "list[Future[Position]]" = field(default_factory=list)
    buffered: list[Record] = field(default_factory=list)
    size: int = 0  # of what is buffered
    batches: list[tuple[int, int]] = field(default_factory=list)  # number given by the producer, record count


class Transaction:
    """A transaction of one writer. Made by `Client.transaction`; used by one thread at a time.

    As a context manager it commits when the block ends, and aborts if it ends by an exception.

    Args:
        cluster: where; nobody else uses it until `release`.
        group: the transaction group.
        timeout_s: how long it may stay open: after that it is aborted.
        release: called once nothing more will be asked of the cluster.
    """

    def __init__(
        self, cluster: Cluster, *, group: str, timeout_s: float, release: Callable[[Cluster], None]
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._timeout_s = timeout_s
        self._release = release
        self._deadline = time.monotonic() + timeout_s
        self._key = uuid.uuid4().hex
        self._state = _State.OPEN
        self._parts: dict[Target, _Part] = {}
        self._buffered_size = 0
        self._ends: tuple[tuple[Target, int], tuple[Target, int]] | None = None  # first and last record
        self._next_partition = (
            uuid.uuid4().int
        )  # of records without a key: one after the other, from anywhere
        self._partition_counts: dict[str, int] = {}
        self._producer: Producer | None = None
        self._base_offsets: dict[int, int] = {}  # of batches, by the number given by the producer
        self._asked_at = 0.0
        self._commit_sequence: int | None = None
        self._committed: Committed | None = None
        self._failure: StablelogError | None = None
        self._is_called_off = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            if not self._is_called_off:
                self.commit()  # which raises why, if a write has failed
        elif self._state is _State.OPEN:
            self._abandon(error)

    # --- writing ---

    def write(
        self,
        topic: str,
        key: bytes | str | None = None,
        value: bytes | str | None = None,
        *,
        headers: Iterable[Header] = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "Future[Position]":
        """Write a record. What it returns is done when the transaction has ended, and not before.

        Args:
            topic: where; it comes into being if the broker makes topics by being asked for them.
            key: text is written as UTF-8.
            value: as `key`.
            headers: names and values.
            partition: by default the one that Kafka's Java producer would choose for the key; without a key, one
                after the other.
            timestamp_ms: by default now.

        Returns:
            A future: the record's position if the transaction commits; it fails if that is aborted.

        Raises:
            Refused: the transaction has ended, or the broker has ended it: then all futures have failed.
            Unavailable: no broker took what was written within the deadline: likewise.
        """
        self._check_open()
        record = Record(
            0,
            time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms,
            _as_bytes(key),
            _as_bytes(value),
            tuple(headers),
        )
        target = (topic, self._partition(topic, record.key, partition))
        future: Future[Position] = Future()
        future.set_running_or_notify_cancel()  # a part of a transaction can't be called off
        part = self._parts.setdefault(target, _Part())
        end = (target, len(part.futures))
        self._ends = (self._ends[0] if self._ends else end, end)
        part.futures.append(future)
        part.buffered.append(record)
        size = _size(record)
        part.size += size
        self._buffered_size += size
        try:
            if part.size >= BATCH_SIZE_MAX:
                self._send(target, part)
            elif self._buffered_size >= BUFFERED_SIZE_MAX:
                self._send_all()
        except BaseException as failure:
            self._abandon(failure)
            raise
        return future

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
        if topic not in self._partition_counts:
            self._partition_counts.update(self._cluster.partition_counts((topic,)))
        count = self._partition_counts[topic]
        if partition is not None:
            if not 0 <= partition < count:
                raise Refused(
                    ErrorCode.unknown_topic_or_partition,
                    f"{topic} has partitions 0 to {count - 1}, not {partition}",
                )
            return partition
        if key is not None:
            return partition_for(key, count)
        self._next_partition += 1
        return self._next_partition % count

    def _send_all(self) -> None:
        for target, part in self._parts.items():
            self._send(target, part)

    def _send(self, target: Target, part: _Part) -> None:
        """Put what is buffered for a partition under way."""
        if not part.buffered:
            return
        if self._producer is None:
            self._producer = Producer(
                self._cluster,
                joint.child_id(self._key, 0, RUN, 0, 0, group=self._group),
                transaction_timeout_ms=max(1, int(self._timeout_s * 1000)),
                deadline_s=self._cluster.deadline_s,
                on_acknowledged=self._base_offsets.__setitem__,
            )
            self._producer.begin()
        batch = bytearray(encode_batch(part.buffered))
        part.batches.append((self._producer.append(*target, batch), len(part.buffered)))
        self._buffered_size -= part.size
        part.size = 0
        part.buffered.clear()

    # --- the end ---

    def commit(self) -> Committed:
        """Commit what was written. May be asked again, after any failure, and answers the same.

        Returns:
            The commit's number, and the positions of the records that were written first and last.

        Raises:
            Refused: it is aborted, and all futures have failed.
            Unavailable: it is not known whether it is committed, or at which positions: ask again, or `abort`. Until
                then the futures wait.
            OffsetOutOfRange: it is committed, and the records have been removed before their positions were told.
        """
        if self._committed is not None:
            return self._committed
        if self._state is _State.OPEN:
            self._check_open()
            try:
                self._send_all()
                if self._producer is not None:
                    self._producer.flush()
            except BaseException as failure:
                self._abandon(failure)
                raise
            if self._producer is None:
                return self._settle(-1, {})
            self._state, self._asked_at = _State.IN_DOUBT, time.monotonic()
        if self._failure is not None:
            raise self._failure
        if self._commit_sequence is None:
            self._commit_sequence = self._ask_to_commit()
        try:
            offsets = {target: self._offsets(target, part) for target, part in self._parts.items()}
        except OffsetOutOfRange as removed:
            self._state, self._failure = _State.COMMITTED, removed
            self._fail_futures(removed)
            raise
        return self._settle(self._commit_sequence, offsets)

    def abort(self) -> None:
        """Abort what was written: all futures fail. Nothing happens if it is aborted already.

        Raises:
            Refused: it is committed.
            Unavailable: its commit was asked for, and it is not known whether it is committed.
        """
        self._is_called_off = self._state is not _State.COMMITTED
        if self._state is _State.OPEN:
            self._abandon(None)
        elif self._state is _State.IN_DOUBT:
            if self._commit_sequence is not None or joint.abort(
                self._cluster, self._key, 0, self._shown, group=self._group
            ):
                self.commit()
            else:
                self._fail(_aborted("it was called off"))
        if self._state is _State.COMMITTED:
            raise Refused(ErrorCode.invalid_txn_state, "the transaction is committed")

    @property
    def _shown(self) -> list[joint.Shown]:
        assert self._producer is not None
        child = joint.child_id(self._key, 0, RUN, 0, 0, group=self._group)
        return [(child, self._producer.producer_id, self._producer.producer_epoch)]

    def _ask_to_commit(self) -> int:
        try:
            return joint.commit(
                self._cluster,
                self._key,
                0,
                self._shown,
                retention_ms=RETENTION_S * 1000,
                group=self._group,
            ).commit_sequence
        except Refused as refused:
            if time.monotonic() - self._asked_at > RETENTION_S / 2:
                raise Unavailable(
                    f"what became of the transaction is not known any more: {refused}"
                ) from refused
            self._abandon(refused)
            raise

    def _check_open(self) -> None:
        """Raise what has become of it, if it is not open, or overdue."""
        if self._failure is not None:
            raise self._failure
        if self._state is not _State.OPEN:
            raise Refused(ErrorCode.invalid_txn_state, "the transaction has ended: begin another one")
        if time.monotonic() > self._deadline:
            overdue = _aborted(f"it was open for longer than its timeout of {self._timeout_s:g} s")
            self._abandon(overdue)
            raise overdue

    def _abandon(self, cause: BaseException | None) -> None:
        """Abort a transaction that is not committed, and never will be: at the latest, its timeout ends it."""
        if self._producer is not None and self._producer.producer_id >= 0:
            self._producer.close()
            if not isinstance(cause, Unavailable):
                with suppress(Refused, Unavailable):
                    joint.abort(self._cluster, self._key, 0, self._shown, group=self._group)
        if isinstance(cause, StablelogError):
            self._fail(cause)
            return
        failure = _aborted("it was called off" if cause is None else f"{type(cause).__name__}: {cause}")
        failure.__cause__ = cause
        self._fail(failure)

    def _fail(self, failure: StablelogError) -> None:
        self._state, self._failure = _State.ABORTED, failure
        self._fail_futures(failure)

    def _fail_futures(self, failure: StablelogError) -> None:
        parts = self._forget()
        for part in parts.values():
            for future in part.futures:
                future.set_exception(failure)

    def _settle(self, commit_sequence: int, offsets: dict[Target, Sequence[int]]) -> Committed:
        first, last = (
            (None, None)
            if self._ends is None
            else (Position(*target, offsets[target][place]) for target, place in self._ends)
        )
        self._committed = Committed(commit_sequence, first, last)
        self._state = _State.COMMITTED
        for target, part in self._forget().items():
            for future, offset in zip(part.futures, offsets[target], strict=True):
                future.set_result(Position(*target, offset))
        return self._committed

    def _forget(self) -> dict[Target, _Part]:
        """Nothing more will be asked: give back what was lent. Returns what was written."""
        if self._producer is not None:
            self._producer.close()
        self._release(self._cluster)
        parts, self._parts = self._parts, {}
        return parts

    # --- positions ---

    def _offsets(self, target: Target, part: _Part) -> Sequence[int]:
        """Where the records of a partition stand, in the order in which they were written."""
        try:
            start = self._start_in_commit_order(target)
        except Refused as refused:
            if refused.code is not ErrorCode.invalid_request:
                raise
            return [
                base + place if base >= 0 else -1
                for number, count in part.batches
                for base in (self._base_offsets[number],)
                for place in range(count)
            ]
        return range(start, start + len(part.futures))

    def _start_in_commit_order(self, target: Target) -> int:
        """The position of the transaction's first record in a partition, once its marker is durable.

        Raises:
            OffsetOutOfRange: the transaction has been removed.
            Refused: with the code invalid_request, the topic is not in commit order.
            Unavailable: nothing of it was to be seen within the deadline.
        """
        assert self._commit_sequence is not None
        deadline = time.monotonic() + self._cluster.deadline_s
        pause = POLL_FIRST_S
        while True:
            found = describe_commits(
                self._cluster, *target, commit_sequence=self._commit_sequence, count_max=1
            )
            if found.commits and found.commits[0].commit_sequence == self._commit_sequence:
                return found.commits[0].start_offset
            name = f"{target[0]}-{target[1]}"
            if found.commits:
                raise OffsetOutOfRange(
                    f"commit {self._commit_sequence} is not in {name} any more: its records were removed"
                )
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"commit {self._commit_sequence} is decided, and not to be seen in {name} yet"
                )
            time.sleep(pause)
            pause = min(2 * pause, POLL_MAX_S)


def _aborted(why: str) -> Refused:
    return Refused(ErrorCode.transaction_abortable, f"the transaction was aborted: {why}")


def _as_bytes(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _size(record: Record) -> int:
    """About how many bytes it takes in a batch."""
    named = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named + 16
