"""One transaction of the native client: its records, its batches, its commit or abort, and the records' positions.

`client.transaction` and `client.aio` run the steps of `Writing`, and pass the transaction's outcome to futures. The
caller runs the steps of one call at a time. `cancel` is for any moment. `expire` is for a moment without a call.

The records are sent in batches while the transaction is open. The commit is a joint commit of this one transaction,
under the next version of a key that no other open transaction uses (`client.keys`). The broker stores the last version
of the key in the commit log. So the client can repeat a commit whose response was lost, and gets the same response,
even after a restart of the broker. For a commit-ordered topic, the client then asks the broker for the records'
positions. In other topics, a record stays at the offset at which it was appended.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.batch.records import encode_batch
from stablelog.client.core import joint
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.keys import ENDING_WAIT_S, LOST, WriterKey
from stablelog.client.core.outcomes import (
    Committed,
    Outcome,
    aborted,
    decides,
    failure_of,
    is_silence,
    unknown,
    unknown_for_ever,
)
from stablelog.client.core.positions import Position, offsets_after_commit
from stablelog.client.core.producer import Producer
from stablelog.client.core.record_buffer import Headers, RecordBuffer
from stablelog.client.core.steps import NOW, Result, Steps
from stablelog.errors import (
    DataLossError,
    OutcomeUnknownError,
    RefusedError,
    UnavailableError,
)
from stablelog.types import TopicPartition

UNDECIDED: Final = "whether the transaction is committed"
RETENTION_S: Final = 86_400  # how long the broker remembers the key of a joint commit after the commit


FailureT = TypeVar("FailureT", RefusedError, DataLossError)


class _State(Enum):
    OPEN = auto()
    IN_DOUBT = auto()  # the commit was requested, and the client does not have its complete result yet
    COMMITTED = auto()
    ABORTED = auto()


class Writing:
    """A transaction of one writer. Its commit is a joint commit: the broker commits each version of its key once.

    Args:
        cluster: the brokers; used by this transaction alone until `release`.
        key: the key of the joint commit, with the transaction group; used by this transaction alone until `release`.
        timeout_s: how long the transaction may stay open before it is aborted.
        now: the seconds of the shell's clock.
        on_end: called once with the outcome: the records' positions in the order of the `put` calls, or the error with
            the reason of the abort.
        release: called once when no more requests will be sent.

    Attributes:
        cluster: as given.
        key: as given, or a new one if the broker refused to begin the transaction under the given key. The commit
            increments the key's version.
        is_key_free: whether another transaction may use the key after this one. This is so if this transaction has
            begun nothing under the key, or if its outcome is known and no error has shown another user of the key.
        deadline: the time, in seconds of the shell's clock, at which the timeout has passed.
        failure: the error that has aborted the transaction, or that makes the positions of its records unknown.
        producer: sends the batches; None before the first one.
        records: the records. If `records.is_due`, call `send_due` before the next `put`.
        timeout_s: as given.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        key: WriterKey,
        timeout_s: float,
        now: float,
        on_end: Callable[[Outcome], None],
        release: "Callable[[Writing], None]",
    ) -> None:
        self.cluster = cluster
        self.key = key
        self.is_key_free = True
        self.deadline = now + timeout_s
        self.failure: RefusedError | DataLossError | None = None
        self.timeout_s = timeout_s
        self._on_end = on_end
        self._release = release
        self._token = uuid.uuid4().hex  # the digest of this joint commit; the broker stores it
        self._state = _State.OPEN
        self.records = RecordBuffer()
        # By partition: for each batch the number that `Producer.append` has returned, and the count of its records.
        self._batches: dict[TopicPartition, list[tuple[int, int]]] = defaultdict(list)
        self.producer: Producer | None = None
        # The base offset of each batch, by the number that `Producer.append` has returned.
        self._base_offsets: dict[int, int] = {}
        self._asked_at = 0.0
        self._commit_sequence: int | None = None
        self._committed: Committed | None = None
        self._is_unanswered = False  # whether a request for the commit was sent and not answered
        self._is_to_abort = False  # whether a caller has requested the abort
        self._is_cancelled = False

    # --- writing ---

    def is_ready(self, topic: str, now: float) -> bool:
        """Whether `put` accepts a record of this topic. `now` is in seconds of the shell's clock."""
        return (
            self._state is _State.OPEN
            and topic in self.records.partition_counts
            and not self._is_cancelled
            and now <= self.deadline
        )

    def make_ready(self, topic: str) -> Steps[None]:
        """Request the topic's partitions, so that `put` accepts its records.

        Raises:
            RefusedError: the transaction has ended, or the topic does not exist.
            UnavailableError: no broker responds.
        """
        yield from self._check_open()
        if topic not in self.records.partition_counts:
            counts = yield from self.cluster.partition_counts((topic,))
            self.records.partition_counts.update(counts)
            yield from self._check_open()

    def put(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int,
    ) -> None:
        """Add a record of a topic for which `is_ready` is true. After an error, no record was added.

        Raises:
            RefusedError: the transaction has ended, or the partition does not exist.
            TypeError: a key, value or header is neither bytes nor text.
            ValueError: the timestamp is out of range.
        """
        self._check_state()
        self.records.add(topic, key, value, headers, partition, timestamp_ms)

    def send_due(self) -> Steps[None]:
        """Send full batches, or all if the buffer is too large. Wait while too many bytes are in flight.

        Raises:
            RefusedError: the transaction is aborted, because the broker has ended it or no broker accepted its batches
                within the deadline.
        """
        yield from self._check_open()
        yield from self._or_abort(self._send(self.records.due()))
        yield from self._check_open()

    def flush(self) -> Steps[None]:
        """Send all records, and wait until the broker has acknowledged them.

        Raises:
            RefusedError: the broker ended the transaction or did not accept its batches in time. It is aborted.
        """
        yield from self._check_open()
        yield from self._or_abort(self._flush())

    def _flush(self) -> Steps[None]:
        yield from self._send(self.records.unsent())
        if self.producer is not None:
            yield from self.producer.flush()

    def _send(self, targets: Sequence[TopicPartition]) -> Steps[None]:
        """Send the unsent records of these partitions in batches."""
        if targets and self.producer is None:
            yield from self._begin()
        for target in targets:
            assert self.producer is not None
            records = self.records.take(target)
            batch = bytearray(encode_batch(records))
            number = yield from self.producer.append(*target, batch, more=target is not targets[-1])
            self._batches[target].append((number, len(records)))

    def _begin(self) -> Steps[None]:
        """Begin the transaction under its key of joint commits, or under a new key if this one cannot be used.

        Raises:
            RefusedError: the broker does not begin the transaction under any key.
            UnavailableError: no response within the deadline.
        """
        self.is_key_free = False
        deadline_s = self.cluster.deadline_s
        try:
            yield from self._begin_under_key(
                min(ENDING_WAIT_S, deadline_s) if self.key.may_be_ending else deadline_s
            )
        except RefusedError as refused:
            if refused.code not in LOST:
                raise
        except UnavailableError:
            if not self.key.may_be_ending or self.cluster.are_retries_cancelled:
                raise
        else:
            return
        self.key = WriterKey(self.key.group)
        yield from self._begin_under_key(deadline_s)

    def _begin_under_key(self, deadline_s: float) -> Steps[None]:
        self.producer = Producer(
            self.cluster,
            self.key.transactional_id,
            transaction_timeout_ms=max(1, int(self.timeout_s * 1000)),
            deadline_s=self.cluster.deadline_s,
            on_acknowledged=self._base_offsets.__setitem__,
        )
        yield from self.producer.begin(deadline_s=deadline_s)

    def _free_key(self, *, may_be_ending: bool) -> None:
        """Mark the key of the joint commit as free: it returns to the pool of keys when this transaction ends."""
        self.key.may_be_ending = may_be_ending
        self.is_key_free = True

    # --- the end ---

    def commit(self) -> Steps[Committed]:
        """Commit the written records. The call may be repeated after any failure and then returns the same result.

        Returns:
            The commit sequence, and the positions of the records that were written first and last.

        Raises:
            RefusedError: the transaction is aborted.
            OutcomeUnknownError: the outcome or the positions are unknown. Repeat the call, or call `abort`.
            DataLossError: it is committed, but its records were removed before their positions were known.
        """
        if self._committed is not None:
            return self._committed
        if self._state is _State.OPEN:
            yield from self.flush()
            now = yield NOW
            yield from self._check_cancelled()
            if self.producer is None:
                return self._settle(-1, {})
            self._state, self._asked_at = _State.IN_DOUBT, now
            self.is_key_free = False
        if self.failure is not None:
            raise self.failure
        if self._commit_sequence is None:
            self._commit_sequence = yield from self._ask_to_commit()
        offsets: dict[TopicPartition, Sequence[int]] = {}
        try:
            for target in self._batches:
                offsets[target] = yield from self._offsets(target)
        except DataLossError as removed:
            self._fail(removed, _State.COMMITTED)
            raise
        except (RefusedError, UnavailableError) as failure:
            what = f"at which positions the records of commit {self._commit_sequence} are"
            raise unknown(what, failure) from failure
        return self._settle(self._commit_sequence, offsets)

    def _offsets(self, target: TopicPartition) -> Steps[Sequence[int]]:
        assert self._commit_sequence is not None
        batches = [(self._base_offsets[number], count) for number, count in self._batches[target]]
        return (yield from offsets_after_commit(self.cluster, target, self._commit_sequence, batches))

    def abort(self) -> Steps[None]:
        """Abort the transaction. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            OutcomeUnknownError: its commit was requested, and it is unknown whether it is committed.
        """
        self._is_to_abort = self._state is not _State.COMMITTED
        if self._state is _State.OPEN:
            yield from self._abandon(None)
        elif self._state is _State.IN_DOUBT:
            try:
                is_aborted = self._commit_sequence is None and (yield from self._ask_to_abort())
            except (RefusedError, UnavailableError) as failure:
                raise unknown(UNDECIDED, failure) from failure
            if not is_aborted:
                yield from self.commit()
            else:
                self._fail(aborted("it was cancelled"))
        if self._state is _State.COMMITTED:
            raise RefusedError(ErrorCode.invalid_txn_state, "the transaction is committed")

    def leave(self, error: BaseException | None) -> Steps[None]:
        """End the transaction with its `with` block: commit if `error` is None, otherwise abort.

        Raises:
            RefusedError: the transaction is aborted, and `error` is None.
            OutcomeUnknownError: it is unknown whether the transaction is committed.
            DataLossError: it is committed, but its records were removed before their positions were known.
        """
        if error is None:
            if not self._is_to_abort:
                yield from self.commit()  # raises the error of an earlier write if one has failed
        elif self._state is _State.OPEN:
            yield from self._abandon(error)
        elif self._state is _State.IN_DOUBT and self._is_cancelled:
            self.cancel()
            with suppress(RefusedError, OutcomeUnknownError):
                yield from self.abort()  # try only once; without a response, the transaction stays in doubt
            if not self._has_ended:
                self.cluster.allow_retries()

    def cancel(self) -> None:
        """Cancel retries, so that the steps in progress end soon.

        After this call, the client requests no commit. A commit that was requested before may still happen. Call
        `leave` next.
        """
        self._is_cancelled = True
        if not self._has_ended:
            self.cluster.cancel_retries()

    def expire(self) -> None:
        """Abort the transaction at its deadline if it is open. The broker does the same by its own clock. No other call
        may be in progress.
        """
        if self._state is _State.OPEN:
            if self.producer is not None:
                # The broker aborts this transaction when the next transaction under the key sends InitProducerId.
                self._free_key(may_be_ending=True)
            self._fail(self._overdue())

    @property
    def _has_ended(self) -> bool:
        """Whether the outcome is known. If so, another transaction may use the `Cluster` object."""
        return self._state in (_State.COMMITTED, _State.ABORTED)

    @property
    def children(self) -> list[joint.Shown]:
        """The children of the joint commit: only this transaction. Call this only after a batch was sent."""
        assert self.producer is not None
        return [(self.key.transactional_id, self.producer.producer_id, self.producer.producer_epoch)]

    def _ask_to_commit(self) -> Steps[int]:
        """Request the commit, and return the commit sequence, also if the transaction was committed before.

        Raises:
            RefusedError: the transaction is aborted.
            OutcomeUnknownError: it is unknown whether it is committed.
        """
        try:
            found = yield from joint.commit(
                self.cluster,
                self.key.name,
                self.key.version,
                self.children,
                retention_ms=RETENTION_S * 1000,
                digest=self._token,
                group=self.key.group,
                on_unanswered=self._note_unanswered,
            )
        except UnavailableError as failure:
            raise unknown(UNDECIDED, failure) from failure
        except RefusedError as refused:
            if (yield NOW) - self._asked_at > RETENTION_S / 2:
                raise unknown_for_ever(f"the broker no longer remembers it: {refused}") from refused
            if self._is_unanswered and not decides(refused):
                raise unknown(UNDECIDED, refused) from refused
            ended = yield from self._abandon(refused)
            raise ended from ended.__cause__
        if found.already and found.digest != self._token:
            raise self._key_shared(found)
        self.key.version += 1
        self._free_key(may_be_ending=False)
        return found.commit_sequence

    def _note_unanswered(self) -> None:
        """Note that the broker may have carried out a request for the commit that it did not answer."""
        self._is_unanswered = True

    def _key_shared(self, found: joint.Committed) -> Exception:
        """Return the error for a key under which another client, such as one in a cloned machine, has committed."""
        sharing = f"another writer uses the key {self.key.name!r} of this transaction, and has committed"
        if found.commit_sequence < 0:
            return unknown_for_ever(f"{sharing} a later version")
        return self._fail(aborted(f"{sharing} version {self.key.version}"))

    def _ask_to_abort(self) -> Steps[bool]:
        """Request the abort. Return whether the transaction is aborted; if not, it was committed before.

        Raises:
            RefusedError: the broker refuses the request.
            UnavailableError: no response within the deadline.
        """
        is_committed = yield from joint.abort(
            self.cluster, self.key.name, self.key.version, self.children, group=self.key.group
        )
        if not is_committed:
            self._free_key(may_be_ending=True)  # the broker responds before the abort markers are written
        return not is_committed

    def _check_state(self) -> None:
        """Raise the transaction's error if it is not open."""
        if self.failure is not None:
            raise self.failure
        if self._state is not _State.OPEN:
            raise RefusedError(ErrorCode.invalid_txn_state, "the transaction has ended: begin another one")

    def _check_open(self) -> Steps[None]:
        """Raise if the transaction is not open. First abort it if its timeout has passed or `cancel` was called."""
        self._check_state()
        yield from self._check_cancelled()
        if (yield NOW) > self.deadline:
            raise (yield from self._abandon(self._overdue()))

    def _check_cancelled(self) -> Steps[None]:
        if self._is_cancelled:
            raise (yield from self._abandon(None))

    def _overdue(self) -> RefusedError:
        return aborted(f"it was open for longer than its timeout of {self.timeout_s:g} s")

    def _or_abort(self, steps: Steps[Result]) -> Steps[Result]:
        """Run steps, and abort the transaction on any error. The error is then that of the transaction."""
        try:
            return (yield from steps)
        except (UnavailableError, RefusedError) as failure:
            cause: BaseException = failure
            if isinstance(failure, RefusedError) and failure.code is ErrorCode.topic_authorization_failed:
                message = f"the transaction was begun with group={self.key.group!r}: {failure}"
                cause = RefusedError(failure.code, message)
            ended = yield from self._abandon(cause)
            raise ended from ended.__cause__
        except GeneratorExit:
            raise  # the shell has dropped the steps, so no request can be sent
        except BaseException as failure:
            yield from self._abandon(failure)
            raise

    def _abandon(self, cause: BaseException | None) -> Steps[RefusedError]:
        """Abort a transaction that is not committed. If the request fails, the broker aborts the transaction after the
        transaction's timeout.

        Args:
            cause: the error that makes the abort necessary; None if the caller has asked for the abort.

        Returns:
            The error with which the transaction has failed.
        """
        if self.producer is not None and self.producer.producer_id >= 0:
            self.producer.close()
            if not is_silence(cause):
                with suppress(RefusedError, UnavailableError):
                    yield from self._ask_to_abort()
        if isinstance(cause, RefusedError) and cause.code in LOST:
            self.is_key_free = False
        return self._fail(failure_of(cause))

    def _fail(self, failure: FailureT, state: _State = _State.ABORTED) -> FailureT:
        self._state, self.failure = state, failure
        self._end(failure)
        return failure

    def _settle(self, commit_sequence: int, offsets: dict[TopicPartition, Sequence[int]]) -> Committed:
        nexts = {target: iter(found) for target, found in offsets.items()}
        positions = [Position(*target, next(nexts[target])) for target in self.records.order]
        first, last = (positions[0], positions[-1]) if positions else (None, None)
        self._committed = Committed(commit_sequence, first, last)
        self._state = _State.COMMITTED
        self._end(positions)
        return self._committed

    def _end(self, outcome: Outcome) -> None:
        """Give the `Cluster` object back, and report the outcome. The transaction sends no more requests after this."""
        if self.producer is not None:
            self.producer.close()
        self.cluster.allow_retries()
        self._release(self)
        self.records = RecordBuffer()
        self._batches.clear()
        self._on_end(outcome)
