"""One transaction of the native client at the broker: its records, batches, commit or abort, and the records'
positions.

`client.transaction` and `client.aio` make futures of its outcome. A method whose docstring says "May wait" may wait for
a broker; no other method does. Only one call runs at a time, except for `call_off` and `expire`.

The records are sent in batches while the transaction is open. The commit is a joint commit of this one transaction,
under the next version of a key that no other open transaction has (`client.keys`). The commit log remembers the last
version of the key. So a commit whose response was lost is repeated and gets the same response, even from a broker that
has restarted. For a commit-ordered topic, the broker is asked at which positions the commit has put the records. In
other topics, a record stays at the offset at which it was appended.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, encode_batch
from stablelog.client import joint
from stablelog.client.cluster import Cluster
from stablelog.client.commits import describe_commits
from stablelog.client.keys import ENDING_WAIT_S, LOST, WriterKey
from stablelog.client.partitioning import partition_for
from stablelog.client.producer import Producer
from stablelog.errors import OffsetOutOfRange, Refused, Unavailable
from stablelog.types import TopicPartition

BATCH_SIZE_MAX: Final = 256 << 10  # bytes of keys, values and headers; one record may have more
BUFFERED_SIZE_MAX: Final = 8 << 20  # bytes of records that are not in a batch yet, in all partitions together
TIMESTAMP_MAX: Final = (1 << 62) - 1  # the difference of any two fits into the timestamp delta of a record
RETENTION_S: Final = 86_400  # how long the broker remembers the commit
POLL_FIRST_S, POLL_MAX_S = 0.0005, 0.02

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


class Position(NamedTuple):
    """Where a record is: its position in commit order in a commit-ordered topic, otherwise its offset.

    The offset is -1 if the broker recognised a repeated batch but no longer knew its offset.
    """

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of a commit.

    Attributes:
        commit_sequence: the number of the commit in its transaction group; -1 if nothing was written.
        first: the position of the record that was written first; None if nothing was written.
        last: the position of the record that was written last.
    """

    commit_sequence: int
    first: Position | None
    last: Position | None


Outcome = list[Position] | Refused


class _State(Enum):
    OPEN = auto()
    IN_DOUBT = auto()  # the commit was requested, and its result is not completely known
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True)
class _Part:
    """The transaction's part in one partition."""

    count: int = 0  # of all records
    buffered: list[Record] = field(default_factory=list)
    size: int = 0  # bytes that are buffered
    batches: list[tuple[int, int]] = field(default_factory=list)  # number given by the producer, record count


class Writing:
    """A transaction of one writer.

    Args:
        cluster: the brokers; used by this transaction alone until `release`.
        key: the key of its commit, with the transaction group; used by this transaction alone until `release`.
        timeout_s: how long it may stay open before it is aborted.
        on_end: called once with the outcome: the records' positions in the order of the `put` calls, or the error that
            says why they were aborted.
        release: called once when no more requests will be sent.

    Attributes:
        turn: the lock for every call but `call_off` and `expire`; held while a call waits for a broker.
        cluster: as given.
        key: as given, or a new one if the broker refused to begin the transaction under the given key. After the
            commit, its version is above that of the transaction.
        is_key_free: whether another transaction may use the key after this one: nothing was begun under it, or the
            outcome is known and no other user of the key was seen.
        deadline: `time.monotonic` at which the timeout has passed.
        failure: why it is aborted, or why the positions of a committed transaction are unknown.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        key: WriterKey,
        timeout_s: float,
        on_end: Callable[[Outcome], None],
        release: "Callable[[Writing], None]",
    ) -> None:
        self.turn = threading.RLock()
        self.cluster = cluster
        self.key = key
        self.is_key_free = True
        self.deadline = time.monotonic() + timeout_s
        self.failure: Refused | None = None
        self._timeout_s = timeout_s
        self._on_end = on_end
        self._release = release
        self._token = uuid.uuid4().hex  # identifies this transaction in the key's record
        self._state = _State.OPEN
        self._parts: dict[TopicPartition, _Part] = {}
        self._order: list[TopicPartition] = []  # of each record, in the order of the `put` calls
        self._buffered_size = 0
        # Partition of the next record without a key: round-robin from a random start.
        self._next_partition = uuid.uuid4().int
        self._partition_counts: dict[str, int] = {}
        self._producer: Producer | None = None
        self._base_offsets: dict[int, int] = {}  # of batches, by the number given by the producer
        self._asked_at = 0.0
        self._commit_sequence: int | None = None
        self._committed: Committed | None = None
        self._is_to_abort = False  # a caller has requested the abort
        self._is_called_off = False
        self._due: set[TopicPartition] = set()
        self._owning = threading.Lock()
        self._is_released = False

    # --- writing ---

    def is_ready(self, topic: str) -> bool:
        """Whether `put` accepts a record of this topic."""
        return (
            self._state is _State.OPEN
            and topic in self._partition_counts
            and not self._is_called_off
            and time.monotonic() <= self.deadline
        )

    def make_ready(self, topic: str) -> None:
        """Prepare for a record of this topic, so that `put` accepts it. May wait.

        Raises:
            Refused: the transaction has ended, or the topic does not exist.
            Unavailable: no broker responds.
        """
        with self.turn:
            self._check_open()
            if topic not in self._partition_counts:
                self._partition_counts.update(self.cluster.partition_counts((topic,)))
                self._check_open()

    def put(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        """Add a record of a topic that is ready. Never waits. After an error, nothing was added.

        Raises:
            Refused: the transaction has ended, or the partition does not exist.
            TypeError: a key, value or header is neither bytes nor text.
            ValueError: the timestamp is out of range.
        """
        with self.turn:
            self._check_state()
            named = headers.items() if isinstance(headers, Mapping) else headers
            record = Record(
                0,
                time.time_ns() // 1_000_000 if timestamp_ms is None else _as_timestamp(timestamp_ms),
                _as_bytes(key),
                _as_bytes(value),
                tuple((_as_name(name), _as_bytes(content)) for name, content in named),
            )
            size = _size(record)
            target = (topic, self._partition(topic, record.key, partition))
            part = self._parts.setdefault(target, _Part())
            part.count += 1
            part.buffered.append(record)
            part.size += size
            self._buffered_size += size
            self._order.append(target)
            if part.size >= BATCH_SIZE_MAX:
                self._due.add(target)

    @property
    def is_due(self) -> bool:
        """Whether batches are due, so that `send_due` should be called before the next `put`."""
        return bool(self._due) or self._buffered_size >= BUFFERED_SIZE_MAX

    def send_due(self) -> None:
        """Send the batches that are due. May wait while too many bytes are in flight.

        Raises:
            Refused: the transaction is aborted, because the broker has ended it or no broker accepted its batches
                within the deadline.
        """
        with self.turn:
            self._check_open()
            with self._or_abort():
                for target in self._parts if self._buffered_size >= BUFFERED_SIZE_MAX else tuple(self._due):
                    self._send(target, self._parts[target])
            self._check_open()

    def _partition(self, topic: str, key: bytes | None, partition: int | None) -> int:
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

    def _send(self, target: TopicPartition, part: _Part) -> None:
        """Send the buffered records of a partition."""
        if not part.buffered:
            return
        if self._producer is None:
            self._begin()
            assert self._producer is not None
        batch = bytearray(encode_batch(part.buffered))
        part.batches.append((self._producer.append(*target, batch), len(part.buffered)))
        self._buffered_size -= part.size
        part.size = 0
        part.buffered.clear()
        self._due.discard(target)

    def _begin(self) -> None:
        """Begin the transaction at the broker under the key, or under a new key if this one cannot be used.

        Raises:
            Refused: the broker does not begin the transaction under any key.
            Unavailable: no response within the deadline.
        """
        self.is_key_free = False
        deadline_s = self.cluster.deadline_s
        try:
            self._begin_under_key(min(ENDING_WAIT_S, deadline_s) if self.key.may_be_ending else deadline_s)
        except Refused as refused:
            if refused.code not in LOST:
                raise
        except Unavailable:
            if not self.key.may_be_ending or self.cluster.is_hurried:
                raise
        else:
            return
        self.key = WriterKey(self.key.group)
        self._begin_under_key(deadline_s)

    def _begin_under_key(self, deadline_s: float) -> None:
        self._producer = Producer(
            self.cluster,
            self.key.transactional_id,
            transaction_timeout_ms=max(1, int(self._timeout_s * 1000)),
            deadline_s=self.cluster.deadline_s,
            on_acknowledged=self._base_offsets.__setitem__,
        )
        self._producer.begin(deadline_s=deadline_s)

    def _free_key(self, *, may_be_ending: bool) -> None:
        """Let another transaction use the key after this one has ended."""
        self.key.may_be_ending = may_be_ending
        self.is_key_free = True

    # --- the end ---

    def commit(self) -> Committed:
        """Commit what was written. The call may be repeated after any failure and then gives the same result. May wait.

        Returns:
            The commit sequence, and the positions of the records that were written first and last.

        Raises:
            Refused: the transaction is aborted.
            Unavailable: it is unknown whether it is committed, or at which positions. Repeat the call, or call `abort`.
            OffsetOutOfRange: it is committed, but its records were removed before their positions were known.
        """
        with self.turn:
            if self._committed is not None:
                return self._committed
            if self._state is _State.OPEN:
                self._check_open()
                with self._or_abort():
                    self._send_all()
                    if self._producer is not None:
                        self._producer.flush()
                self._check_called_off()
                if self._producer is None:
                    return self._settle(-1, {})
                self._state, self._asked_at = _State.IN_DOUBT, time.monotonic()
                self.is_key_free = False
            if self.failure is not None:
                raise self.failure
            if self._commit_sequence is None:
                self._commit_sequence = self._ask_to_commit()
            try:
                offsets = {target: self._offsets(target, part) for target, part in self._parts.items()}
            except OffsetOutOfRange as removed:
                self._fail(removed, _State.COMMITTED)
                raise
            return self._settle(self._commit_sequence, offsets)

    def abort(self) -> None:
        """Abort what was written. No effect on a transaction that is aborted already. May wait.

        Raises:
            Refused: the transaction is committed.
            Unavailable: its commit was requested, and it is unknown whether it is committed.
        """
        with self.turn:
            self._is_to_abort = self._state is not _State.COMMITTED
            if self._state is _State.OPEN:
                self._abandon(None)
            elif self._state is _State.IN_DOUBT:
                if self._commit_sequence is not None or not self._ask_to_abort():
                    self.commit()
                else:
                    self._fail(_aborted("it was called off"))
            if self._state is _State.COMMITTED:
                raise Refused(ErrorCode.invalid_txn_state, "the transaction is committed")

    def leave(self, error: BaseException | None) -> None:
        """End the transaction with its `with` block: commit if `error` is None, otherwise abort. May wait.

        Raises:
            Refused: as in `commit`, if `error` is None.
            Unavailable: as in `commit`, if `error` is None.
            OffsetOutOfRange: as in `commit`, if `error` is None.
        """
        with self.turn:
            if error is None:
                if not self._is_to_abort:
                    self.commit()  # it raises the error of a write that has failed
            elif self._state is _State.OPEN:
                self._abandon(error)
            elif self._state is _State.IN_DOUBT and self._is_called_off:
                self.call_off()
                with suppress(Refused, Unavailable):
                    self.abort()  # one attempt: without a response, the transaction stays in doubt
                with self._owning:
                    if not self._is_released:
                        self.cluster.calm()

    def call_off(self) -> None:
        """Cancel retries, so that a call in progress ends soon. From any thread; never waits.

        If the commit was not requested yet, it will not be. The caller has to call `leave` next.
        """
        with self._owning:
            self._is_called_off = True
            if not self._is_released:
                self.cluster.hurry()

    def expire(self) -> bool:
        """Abort the transaction at its deadline if it is open. The broker does the same by its own clock.

        From any thread; never waits. Returns False if another call is in progress; then nothing was done.
        """
        if not self.turn.acquire(blocking=False):
            return False
        try:
            if self._state is _State.OPEN:
                if self._producer is not None:
                    # The next transaction under the key aborts this one by its InitProducerId.
                    self._free_key(may_be_ending=True)
                self._fail(self._overdue())
            return True
        finally:
            self.turn.release()

    @property
    def _shown(self) -> list[joint.Shown]:
        assert self._producer is not None
        return [(self.key.transactional_id, self._producer.producer_id, self._producer.producer_epoch)]

    def _ask_to_commit(self) -> int:
        """Request the commit, or learn that it was committed before. Return the commit sequence.

        Raises:
            Refused: the transaction is aborted.
            Unavailable: it is unknown whether it is committed.
        """
        try:
            found = joint.commit(
                self.cluster,
                self.key.name,
                self.key.version,
                self._shown,
                retention_ms=RETENTION_S * 1000,
                digest=self._token,
                group=self.key.group,
            )
        except Refused as refused:
            if time.monotonic() - self._asked_at > RETENTION_S / 2:
                raise Unavailable(
                    f"what became of the transaction is not known any more: {refused}"
                ) from refused
            self._abandon(refused)
            raise
        if found.already and found.digest != self._token:
            raise self._key_shared(found)
        self.key.version += 1
        self._free_key(may_be_ending=False)
        return found.commit_sequence

    def _key_shared(self, found: joint.Committed) -> Exception:
        """Return the error for a key that another client has committed under, such as the copy of a virtual machine."""
        who = f"another writer uses the key {self.key.name!r} of this transaction, and has committed"
        if found.commit_sequence < 0:
            return Unavailable(f"it is not known whether the transaction is committed: {who} a later version")
        failure = _aborted(f"{who} version {self.key.version}")
        self._fail(failure)
        return failure

    def _ask_to_abort(self) -> bool:
        """Request the abort. Return whether the transaction is aborted; if not, it was committed before.

        Raises:
            Refused: the broker refuses the request.
            Unavailable: no response within the deadline.
        """
        is_committed = joint.abort(
            self.cluster, self.key.name, self.key.version, self._shown, group=self.key.group
        )
        if not is_committed:
            self._free_key(may_be_ending=True)  # the response does not wait for the markers
        return not is_committed

    def _check_state(self) -> None:
        """Raise the transaction's error if it is not open."""
        if self.failure is not None:
            raise self.failure
        if self._state is not _State.OPEN:
            raise Refused(ErrorCode.invalid_txn_state, "the transaction has ended: begin another one")

    def _check_open(self) -> None:
        """Raise if the transaction is not open. First abort it if its timeout has passed or `call_off` was called."""
        self._check_state()
        self._check_called_off()
        if time.monotonic() > self.deadline:
            overdue = self._overdue()
            self._abandon(overdue)
            raise overdue

    def _check_called_off(self) -> None:
        if self._is_called_off:
            self._abandon(None)
            assert self.failure is not None
            raise self.failure

    def _overdue(self) -> Refused:
        return _aborted(f"it was open for longer than its timeout of {self._timeout_s:g} s")

    @contextmanager
    def _or_abort(self) -> Iterator[None]:
        """Abort on any error in the block. Convert Unavailable to Refused, because a retry cannot help."""
        try:
            yield
        except Unavailable as failure:
            self._abandon(failure)
            assert self.failure is not None
            raise self.failure from failure
        except Refused as refused:
            if refused.code is not ErrorCode.topic_authorization_failed:
                self._abandon(refused)
                raise
            crossing = Refused(
                refused.code, f"the transaction was begun with group={self.key.group!r}: {refused}"
            )
            self._abandon(crossing)
            raise crossing from refused
        except BaseException as failure:
            self._abandon(failure)
            raise

    def _abandon(self, cause: BaseException | None) -> None:
        """Abort a transaction that is not committed. If the request fails, the broker aborts it after its timeout."""
        if self._producer is not None and self._producer.producer_id >= 0:
            self._producer.close()
            if not isinstance(cause, Unavailable):
                with suppress(Refused, Unavailable):
                    self._ask_to_abort()
        if isinstance(cause, Refused):
            if cause.code in LOST:
                self.is_key_free = False
            self._fail(cause)
            return
        failure = _aborted("it was called off" if cause is None else f"{type(cause).__name__}: {cause}")
        failure.__cause__ = cause
        self._fail(failure)

    def _fail(self, failure: Refused, state: _State = _State.ABORTED) -> None:
        self._state, self.failure = state, failure
        self._end(failure)

    def _settle(self, commit_sequence: int, offsets: dict[TopicPartition, Sequence[int]]) -> Committed:
        nexts = {target: iter(found) for target, found in offsets.items()}
        positions = [Position(*target, next(nexts[target])) for target in self._order]
        first, last = (positions[0], positions[-1]) if positions else (None, None)
        self._committed = Committed(commit_sequence, first, last)
        self._state = _State.COMMITTED
        self._end(positions)
        return self._committed

    def _end(self, outcome: Outcome) -> None:
        """Release the cluster and report the outcome. No more requests follow."""
        if self._producer is not None:
            self._producer.close()
        with self._owning:
            self._is_released = True
            self.cluster.calm()
        self._release(self)
        self._parts, self._order, self._buffered_size = {}, [], 0
        self._due.clear()
        self._on_end(outcome)

    # --- positions ---

    def _offsets(self, target: TopicPartition, part: _Part) -> Sequence[int]:
        """Return the positions of a partition's records in the order in which they were written."""
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
        return range(start, start + part.count)

    def _start_in_commit_order(self, target: TopicPartition) -> int:
        """Return the position of the transaction's first record in a partition, once its commit marker is durable.

        Raises:
            OffsetOutOfRange: the transaction has been removed.
            Refused: with the code invalid_request, the topic is not commit-ordered.
            Unavailable: the transaction was not listed within the deadline.
        """
        assert self._commit_sequence is not None
        deadline = time.monotonic() + self.cluster.deadline_s
        pause = POLL_FIRST_S
        while True:
            found = describe_commits(
                self.cluster, *target, commit_sequence=self._commit_sequence, count_max=1
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
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, str):
        return content.encode()
    raise TypeError(f"keys and values are bytes or text, not {type(content).__name__}")


def _as_name(name: str) -> str:
    if isinstance(name, str):
        name.encode()  # fails for an unpaired surrogate
        return name
    raise TypeError(f"names of headers are text, not {type(name).__name__}")


def _as_timestamp(timestamp_ms: int) -> int:
    if 0 <= timestamp_ms <= TIMESTAMP_MAX:
        return int(timestamp_ms)
    raise ValueError(f"a timestamp of {timestamp_ms} ms: 0 to {TIMESTAMP_MAX}")


def _size(record: Record) -> int:
    """Return about how many bytes the record takes in a batch."""
    named = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named + 16
