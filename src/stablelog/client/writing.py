"""One transaction as the broker is told of it: records, batches, the decision, and where the records stand then.

The two faces, `client.transaction` and `client.aio`, make futures of it. What may wait for a broker says so; the rest
never does. Calls take turns, but for `call_off` and `expire`.

The records go out in batches while the transaction is open. The commit is a joint commit of this one transaction,
under the next version of a key that no other open transaction has (`client.keys`). The commit log remembers the last
version of the key, so a commit whose answer was lost is repeated and gets the same answer, also from a broker that has
restarted. Where a topic is in commit order, the broker is asked at which positions the commit has put the records; in
other topics a record stands where it was appended.
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
from stablelog.client.cluster import Cluster, Target
from stablelog.client.commits import describe_commits
from stablelog.client.keys import ENDING_WAIT_S, LOST, WriterKey
from stablelog.client.partitioning import partition_for
from stablelog.client.producer import Producer
from stablelog.errors import OffsetOutOfRange, Refused, Unavailable

BATCH_SIZE_MAX: Final = 256 << 10  # bytes of keys, values and headers; one record may have more
BUFFERED_SIZE_MAX: Final = 8 << 20  # of all partitions
TIMESTAMP_MAX: Final = (1 << 62) - 1  # so that no two are farther apart than a record can say
RETENTION_S: Final = 86_400  # for which the broker remembers the commit
POLL_FIRST_S, POLL_MAX_S = 0.0005, 0.02

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]


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


Outcome = list[Position] | Refused


class _State(Enum):
    OPEN = auto()
    IN_DOUBT = auto()  # the commit was asked for, and not everything about it has been answered
    COMMITTED = auto()
    ABORTED = auto()


@dataclass(slots=True)
class _Part:
    """What the transaction writes into one partition."""

    count: int = 0  # of all records
    buffered: list[Record] = field(default_factory=list)
    size: int = 0  # of what is buffered
    batches: list[tuple[int, int]] = field(default_factory=list)  # number given by the producer, record count


class Writing:
    """A transaction of one writer.

    Args:
        cluster: where; nobody else uses it until `release`.
        key: of its commit, with the transaction group; nobody else uses it until `release`.
        timeout_s: how long it may stay open: after that it is aborted.
        on_end: told once what has become of the records: their positions in the order in which they were put, or
            why they were aborted.
        release: called once nothing more will be asked of the cluster.

    Attributes:
        turn: taken by whoever does something with it; held while that waits for a broker.
        cluster: as given.
        key: as given, or a new one if the broker did not let the transaction begin under that. Its version is above
            the transaction's own once that is committed.
        is_key_free: whether another transaction may use the key, once this one has ended: nothing was begun under it,
            or the outcome is known and nobody else was seen to use the key.
        deadline: by `time.monotonic`, when it will have been open for too long.
        failure: why it is aborted, or why the positions of what it has committed can't be told.
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
        self._token = uuid.uuid4().hex  # tells this transaction from every other one, in the key's record
        self._state = _State.OPEN
        self._parts: dict[Target, _Part] = {}
        self._order: list[Target] = []  # of each record, in the order of their local sequence numbers
        self._buffered_size = 0
        # Of records without a key: one after the other, from anywhere.
        self._next_partition = uuid.uuid4().int
        self._partition_counts: dict[str, int] = {}
        self._producer: Producer | None = None
        self._base_offsets: dict[int, int] = {}  # of batches, by the number given by the producer
        self._asked_at = 0.0
        self._commit_sequence: int | None = None
        self._committed: Committed | None = None
        self._is_to_abort = False  # somebody asked for it
        self._is_called_off = False
        self._due: set[Target] = set()
        self._owning = threading.Lock()
        self._is_released = False

    # --- writing ---

    def is_ready(self, topic: str) -> bool:
        """Whether a record of this topic can be put."""
        return (
            self._state is _State.OPEN
            and topic in self._partition_counts
            and not self._is_called_off
            and time.monotonic() <= self.deadline
        )

    def make_ready(self, topic: str) -> None:
        """Have records of this topic be such as can be put. May wait.

        Raises:
            Refused: the transaction has ended, or there is no such topic.
            Unavailable: no broker answers.
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
        """Add a record, of a topic for which all is ready. Never waits.

        Raises:
            Refused: the transaction has ended, or there is no such partition.
            TypeError: a key, value or header that is neither bytes nor text. Nothing was put, as with the next one.
            ValueError: a timestamp that no record can have.
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
        """Whether something should be sent before more is put."""
        return bool(self._due) or self._buffered_size >= BUFFERED_SIZE_MAX

    def send_due(self) -> None:
        """Put under way what is due. May wait, while there is too much under way.

        Raises:
            Refused: it is aborted: the broker has ended it, or none took what was written within the deadline.
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

    def _send(self, target: Target, part: _Part) -> None:
        """Put what is buffered for a partition under way."""
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
        """Begin at the broker under the key; if the key can't be used, under a new one.

        Raises:
            Refused: the broker does not begin the transaction under any key.
            Unavailable: no answer within the deadline.
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
        """Let another transaction use the key, once this one has ended."""
        self.key.may_be_ending = may_be_ending
        self.is_key_free = True

    # --- the end ---

    def commit(self) -> Committed:
        """Commit what was written. May be asked again, after any failure, and answers the same. May wait.

        Returns:
            The commit's number, and the positions of the records that were written first and last.

        Raises:
            Refused: it is aborted.
            Unavailable: it is not known whether it is committed, or at which positions: ask again, or `abort`.
            OffsetOutOfRange: it is committed, and the records have been removed before their positions were told.
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
        """Abort what was written. Nothing happens if it is aborted already. May wait.

        Raises:
            Refused: it is committed.
            Unavailable: its commit was asked for, and it is not known whether it is committed.
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
        """The block of the transaction ends: well, which commits it, or by an exception, which aborts it. May wait.

        Raises:
            Refused: as `commit`, where the block ends well.
            Unavailable: likewise.
            OffsetOutOfRange: likewise.
        """
        with self.turn:
            if error is None:
                if not self._is_to_abort:
                    self.commit()  # which raises why, if a write has failed
            elif self._state is _State.OPEN:
                self._abandon(error)
            elif self._state is _State.IN_DOUBT and self._is_called_off:
                self.call_off()
                with suppress(Refused, Unavailable):
                    self.abort()  # asked once: if nobody answers, it stays in doubt
                with self._owning:
                    if not self._is_released:
                        self.cluster.calm()

    def call_off(self) -> None:
        """From any thread: have who waits for a broker wait no longer than need be. Never waits.

        The commit is not asked for any more, if it was not yet. `leave` comes next.
        """
        with self._owning:
            self._is_called_off = True
            if not self._is_released:
                self.cluster.hurry()

    def expire(self) -> bool:
        """From any thread, at the deadline: abort it if it is open; the broker does as much by its own clock.

        Never waits. Returns whether that is settled: not if somebody is at it.
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
        """Commit, or learn that it was committed before. Returns the commit sequence.

        Raises:
            Refused: it is aborted.
            Unavailable: it is not known whether it is committed.
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
        """What to raise if somebody else has committed under the key, as the copy of a virtual machine may."""
        who = f"another writer uses the key {self.key.name!r} of this transaction, and has committed"
        if found.commit_sequence < 0:
            return Unavailable(f"it is not known whether the transaction is committed: {who} a later version")
        failure = _aborted(f"{who} version {self.key.version}")
        self._fail(failure)
        return failure

    def _ask_to_abort(self) -> bool:
        """Abort at the broker. Returns whether it is aborted; if not, it was committed before.

        Raises:
            Refused: the broker does not do that.
            Unavailable: no answer within the deadline.
        """
        is_committed = joint.abort(
            self.cluster, self.key.name, self.key.version, self._shown, group=self.key.group
        )
        if not is_committed:
            self._free_key(may_be_ending=True)  # the answer does not wait for the markers
        return not is_committed

    def _check_state(self) -> None:
        """Raise what has become of it, if it is not open."""
        if self.failure is not None:
            raise self.failure
        if self._state is not _State.OPEN:
            raise Refused(ErrorCode.invalid_txn_state, "the transaction has ended: begin another one")

    def _check_open(self) -> None:
        """The same; if it should not be open any more, abort it."""
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
        """What fails in this aborts the transaction, and is told so: `Unavailable` would mean that one may ask again."""
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
        """Abort a transaction that is not committed, and never will be: at the latest, its timeout ends it."""
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

    def _settle(self, commit_sequence: int, offsets: dict[Target, Sequence[int]]) -> Committed:
        nexts = {target: iter(found) for target, found in offsets.items()}
        positions = [Position(*target, next(nexts[target])) for target in self._order]
        first, last = (positions[0], positions[-1]) if positions else (None, None)
        self._committed = Committed(commit_sequence, first, last)
        self._state = _State.COMMITTED
        self._end(positions)
        return self._committed

    def _end(self, outcome: Outcome) -> None:
        """Nothing more will be asked: give back what was lent, and tell."""
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
        return range(start, start + part.count)

    def _start_in_commit_order(self, target: Target) -> int:
        """The position of the transaction's first record in a partition, once its marker is durable.

        Raises:
            OffsetOutOfRange: the transaction has been removed.
            Refused: with the code invalid_request, the topic is not in commit order.
            Unavailable: nothing of it was to be seen within the deadline.
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
        name.encode()  # which half a surrogate pair cannot be
        return name
    raise TypeError(f"names of headers are text, not {type(name).__name__}")


def _as_timestamp(timestamp_ms: int) -> int:
    if 0 <= timestamp_ms <= TIMESTAMP_MAX:
        return int(timestamp_ms)
    raise ValueError(f"a timestamp of {timestamp_ms} ms: 0 to {TIMESTAMP_MAX}")


def _size(record: Record) -> int:
    """About how many bytes it takes in a batch."""
    named = sum(len(name) + len(value or b"") + 4 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + named + 16
