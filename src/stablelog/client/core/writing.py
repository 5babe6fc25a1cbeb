"""The rules of one transaction of the native client: its batches, its commit or abort, and the positions of its
records.

The packages `client.blocking` and `client.aio` run the steps (generators of I/O operations) of `Writing`, and pass the
outcome to futures. One call at a time runs steps. `cancel` may be called at any moment, and `expire` only while no call
runs.

Batches are sent while the transaction is open. The commit is a joint commit (of several transactions, here of one),
under the next version (number) of a key that no other open transaction uses. The broker stores the key's last version,
so a repeated commit gets the same response, also after a restart. In commit-ordered topics, the client then requests
the positions of the records. In other topics, a record keeps its offset.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.batch.header import Codec
from stablelog.client.core import joint
from stablelog.client.core.arguments import topic_name
from stablelog.client.core.beginning import begin_under_key
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.endings import TransactionEnding, find_offsets
from stablelog.client.core.keys import EPOCH_MAX, LOST, RETENTION_S, WriterKey
from stablelog.client.core.outcomes import (
    UNDECIDED,
    Committed,
    FailureT,
    Outcome,
    WritingState,
    abort_error,
    aborted_error,
    is_decision,
    is_silence,
    lost_outcome,
    naming_group,
    overdue_error,
    shared_key_error,
    undecided_on_error,
    unknown_outcome,
)
from stablelog.client.core.producer import BatchProducer
from stablelog.client.core.record_buffer import RecordBuffer, UnsentBatch
from stablelog.client.core.steps import NOW, Result, Steps
from stablelog.errors import DataLossError, OutcomeUnknownError, RefusedError, UnavailableError

CANCEL_S: Final = 0.3  # how long a cancelled call tries to abort its transaction


class Writing:
    """A transaction of one writer. Its commit (a joint commit) has a key, which is a text, and a version, which is the
    number of the commit under the key: the broker commits each version of a key only once.

    Args:
        cluster: connections to the brokers; only this transaction uses them until `release`.
        key: the key of the joint commit, with the transaction group; only this transaction uses it until `release`.
        timeout_s: how long the transaction may stay open before it is aborted.
        now: the present time, in seconds of the client's monotonic clock (`steps.Now`).
        on_end: called with the outcome: the result of the commit, or the error with the reason of the abort. If an
            exception interrupts `on_end`, it is called again. After a commit, the partitions in `records` have the
            offsets of the records.
        release: called once when no more requests will be sent, so that others can use `cluster` and the key.
        codec: the compression of the batches that are sent.

    Attributes:
        cluster: as given.
        key: as given, or a new one if the broker refused to begin the transaction under the given key. The commit
            increments the key's version.
        is_key_free: whether another transaction may use the key after this one. It may if this transaction has begun
            nothing under the key, or if its outcome is known and no error has shown that someone else uses the key.
        deadline: the time, in seconds of the client's monotonic clock (`steps.Now`), at which the timeout has passed.
        failure: the error that has aborted the transaction, or that makes the positions of its records unknown.
        producer: sends the batches; None before the first one.
        records: the records of the transaction. Before the caller adds a record, it calls `make_ready` unless
            `is_ready`, and `send_due` if `records.is_due`.
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
        codec: Codec = Codec.NONE,
    ) -> None:
        self.cluster, self.key, self.timeout_s = cluster, key, timeout_s
        self.is_key_free = True
        self.deadline = now + timeout_s
        self.failure: RefusedError | DataLossError | None = None
        self._on_end, self._codec = on_end, codec
        self._release: Callable[[Writing], None] | None = release
        self._token = uuid.uuid4().hex  # the digest of this joint commit; the broker stores it
        self._state = WritingState.OPEN
        self.records = RecordBuffer()
        self.producer: BatchProducer | None = None
        self._ending: TransactionEnding  # set before the producer
        self._asked_at = 0.0
        self._commit_sequence: int | None = None
        self._outcome: Outcome | None = None
        self._has_finished = False  # whether `_finish` has run to its end
        # Whether a call has sent a part of the records and did not end: an exception has interrupted it.
        self._is_torn = False
        self._is_to_abort = False  # whether a caller has requested the abort
        self._is_cancelled = False

    # --- writing ---

    def is_ready(self, topic: str, now: float) -> bool:
        """Whether `records` accepts a record of this topic at once. `now` is the present time."""
        return (
            self._state is WritingState.OPEN
            and isinstance(topic, str)
            and not self._is_torn
            and topic in self.records.partition_counts
            and not self._is_cancelled
            and now <= self.deadline
        )

    def make_ready(self, topic: str) -> Steps[None]:
        """Request the number of the topic's partitions, so that records of the topic can be added to `records`.

        Raises:
            TypeError: the topic is no text.
            UsageError: no topic can have this name.
            RefusedError: the transaction has ended, or the topic does not exist.
            UnavailableError: no broker responds.
        """
        yield from self._check_open()
        topic_name(topic)
        if topic not in self.records.partition_counts:
            try:
                counts = yield from self.cluster.partition_counts((topic,))
            except UnavailableError:
                yield from self._check_cancelled()
                raise
            self.records.partition_counts.update(counts)
            yield from self._check_open()

    def mark_interrupted(self) -> None:
        """Record that an exception has interrupted `write_many`, so that the next call aborts the transaction."""
        self._is_torn = True

    def send_due(self) -> Steps[None]:
        """Send the batches that are full, or all batches if the buffer is too large. Wait while too many sent bytes are
        not acknowledged.

        Raises:
            RefusedError: the transaction is aborted, because the broker has ended it or no broker accepted its batches
                within the deadline.
        """
        yield from self._check_open()
        yield from self._abort_on_error(self._send_batches(self.records.take_due_batches))
        yield from self._check_open()

    def flush(self) -> Steps[None]:
        """Send all records, and wait until the broker has acknowledged them.

        Raises:
            RefusedError: the transaction is aborted, because the broker has ended it or did not accept its batches in
                time.
        """
        yield from self._check_open()
        yield from self._abort_on_error(self._send_batches(self.records.take_all_batches))
        if self.producer is not None:
            yield from self._abort_on_error(self.producer.flush())

    def _send_batches(self, take: Callable[[], list[UnsentBatch]]) -> Steps[None]:
        """Send the batches that the function `take` returns."""
        batches = take()
        if batches and self.producer is None:
            yield from self._begin_producer()
        for place, unsent in enumerate(batches, 1):
            assert self.producer is not None
            records, count = unsent.records, unsent.batch.count
            built = unsent.build(self._codec)
            number = yield from self.producer.append(*records.target, built, more=place < len(batches))
            records.add_sent_batch(number, count)

    def _begin_producer(self) -> Steps[None]:
        """Begin the transaction under its key, which identifies its commit, or under a new key if the broker refuses
        this one. Then batches can be sent.
        """
        self.is_key_free = False
        self.key, self._ending, self.producer = yield from begin_under_key(
            self.cluster, self.key, self._token, self.timeout_s, self.records.base_offsets
        )

    @property
    def status(self) -> str:
        """The state of the transaction in words, for a `repr`."""
        if self._state is WritingState.COMMITTED and self._commit_sequence not in (None, -1):
            return f"committed as {self._commit_sequence}"
        return self._state.name.lower().replace("_", " ")

    @property
    def is_in_doubt(self) -> bool:
        """Whether the commit was requested and the client does not know its outcome."""
        return self._state is WritingState.IN_DOUBT

    def _free_key(self, *, may_be_ending: bool) -> None:
        """Free the key, so that another transaction may use it for its commit. `may_be_ending` says that the broker may
        still be writing abort markers of this transaction.
        """
        self.key.may_be_ending = may_be_ending
        self.is_key_free = self.producer is None or self.producer.producer_epoch < EPOCH_MAX

    # --- the end ---

    def commit(self) -> Steps[Committed]:
        """Commit all records. After any failure the call may be repeated, and then returns the same result.

        Returns:
            The commit sequence (number of the commit), and the positions of the records that were written first and
            last.

        Raises:
            RefusedError: the transaction is aborted.
            OutcomeUnknownError: the outcome or the positions are unknown. Repeat the call, or call `abort`.
            DataLossError: the transaction is committed, but its records were removed before their positions were known.
        """
        self._report_outcome()
        if isinstance(self._outcome, Committed):
            return self._outcome
        if self._state is WritingState.OPEN:
            yield from self.flush()
            now = yield NOW
            yield from self._check_cancelled()
            if self.producer is None:
                return self._set_committed(-1)
            self._state, self._asked_at = WritingState.IN_DOUBT, now
        if self.failure is not None:
            raise self.failure
        if self._commit_sequence is None:
            yield from self._request_commit()
        assert self._commit_sequence is not None
        try:
            yield from find_offsets(self.cluster, self._ending, self._commit_sequence, self.records)
        except DataLossError as removed:
            raise self._set_failed(removed, WritingState.COMMITTED) from removed.__cause__
        except (RefusedError, UnavailableError) as failure:
            what = f"at which positions the records of commit {self._commit_sequence} are"
            raise unknown_outcome(what, failure) from failure
        return self._set_committed(self._commit_sequence)

    def abort(self) -> Steps[None]:
        """Abort the transaction. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            OutcomeUnknownError: its commit was requested, and it is unknown whether it is committed.
        """
        self._report_outcome()
        self._is_to_abort = self._state is not WritingState.COMMITTED
        if self._state is WritingState.OPEN:
            yield from self._abandon(None)
        elif self._state is WritingState.IN_DOUBT:
            with undecided_on_error():
                is_aborted = self._commit_sequence is None and (yield from self._request_abort())
            if not is_aborted:
                yield from self.commit()
            else:
                self._set_failed(abort_error(None, is_cancelled=self._is_cancelled))
        if self._state is WritingState.COMMITTED:
            raise RefusedError(
                ErrorCode.invalid_txn_state, "the transaction is committed already, so it cannot be aborted"
            )

    def end_with_block(self, error: BaseException | None) -> Steps[None]:
        """End the transaction at the end of its `with` block: commit if `error`, the exception of the block, is None;
        otherwise abort.

        Raises:
            RefusedError: the transaction is aborted, and `error` is None.
            OutcomeUnknownError: it is unknown whether the transaction is committed.
            DataLossError: the transaction is committed, but its records were removed before their positions were known.
        """
        self._report_outcome()
        if error is None:
            if not self._is_to_abort:
                yield from self.commit()  # raises the error of an earlier write if one has failed
        elif self._state is WritingState.OPEN:
            yield from self._abandon(error)
        elif self._state is WritingState.IN_DOUBT and self._is_cancelled:
            self.cancel()
            with suppress(RefusedError, OutcomeUnknownError):  # try only once
                yield from self.cluster.run_until_deadline(self.abort(), CANCEL_S)
            if not self._state.is_final:
                self.cluster.allow_retries()

    def cancel(self) -> bool:
        """Cancel retries, so that running steps end soon. Return whether this is the first call of `cancel`. No commit
        is requested any more; one that was requested before may succeed. The caller calls `end_with_block` next.
        """
        is_first, self._is_cancelled = not self._is_cancelled, True
        if not self._state.is_final:
            self.cluster.cancel_retries()
        return is_first

    def expire(self) -> None:
        """Handle the timeout of the transaction: abort it if it is open, or report its outcome if it has ended. The
        caller makes sure that no other call runs.
        """
        self._report_outcome()
        if self._state is WritingState.OPEN:
            if self.producer is not None:  # the broker aborts it at the next InitProducerId under the key
                self._free_key(may_be_ending=True)
            self._set_failed(overdue_error(self.timeout_s))

    @property
    def transactional_id(self) -> str:
        """The transactional id of the transaction, which must have sent a batch."""
        return self._ending.transactional_id

    def _request_commit(self) -> Steps[None]:
        """Request the commit, and store its number (commit sequence), also if it was committed before.

        Raises:
            RefusedError: the transaction is aborted.
            OutcomeUnknownError: it is unknown whether it is committed.
        """
        assert self.producer is not None
        try:
            found = yield from self._ending.commit(self.producer, self.records.appended_place())
        except UnavailableError as failure:
            raise unknown_outcome(UNDECIDED, failure) from failure
        except RefusedError as refused:
            if self._ending.is_joint and (yield NOW) - self._asked_at > RETENTION_S / 2:
                raise lost_outcome(f"the broker no longer knows the outcome: {refused}") from refused
            if self._ending.is_commit_unanswered and not is_decision(refused):
                raise unknown_outcome(UNDECIDED, refused) from refused
            found = yield from self._abort_refused(refused)
        if found.already and found.digest != self._token:
            shared = shared_key_error(self.key, found)
            raise self._set_failed(shared) if isinstance(shared, RefusedError) else shared
        # One statement: no exception comes between. With the next version, the request would be another one.
        self._commit_sequence, self.key.version = found.commit_sequence, self.key.version + 1
        self._free_key(may_be_ending=not self._ending.is_joint)  # Kafka responds before it writes the markers

    def _abort_refused(self, refused: RefusedError) -> Steps[joint.JointCommit]:
        """Abort the transaction after a refused commit. If an earlier request has committed it, return its result."""
        assert self.producer is not None
        if (yield from self._try_to_abort(refused)):
            ended = self._set_failed_by(refused)
            raise ended from ended.__cause__
        with undecided_on_error():
            return (yield from self._ending.commit(self.producer, self.records.appended_place()))

    def _request_abort(self) -> Steps[bool]:
        """Request the abort from the broker. Return True if the transaction is aborted; False if it was committed
        before.
        """
        assert self.producer is not None
        is_committed = yield from self._ending.abort(self.producer, self.records.appended_place())
        if not is_committed:
            self._free_key(may_be_ending=True)  # the broker responds before the abort markers are written
        return not is_committed

    def _check_state(self) -> None:
        """Check that the transaction has not ended. If it has, raise the error that says so, for the present call."""
        if self.failure is not None:
            raise self.failure
        if self._state is not WritingState.OPEN:
            raise RefusedError(ErrorCode.invalid_txn_state, "the transaction has ended: begin another one")

    def _check_open(self) -> Steps[None]:
        """Check that the transaction is open; otherwise raise the error that says why not. Abort a transaction first
        that was cancelled or interrupted, or whose timeout has passed.
        """
        self._check_state()
        yield from self._check_cancelled()
        if self._is_torn:
            raise (yield from self._abandon(aborted_error("an exception has interrupted a call")))
        if (yield NOW) > self.deadline:
            raise (yield from self._abandon(overdue_error(self.timeout_s)))

    def _check_cancelled(self) -> Steps[None]:
        if self._is_cancelled:
            raise (yield from self._abandon(aborted_error("it was cancelled")))

    def _abort_on_error(self, steps: Steps[Result]) -> Steps[Result]:
        """Run the steps of a call, and return their result. On an error, abort the transaction, and raise its error."""
        self._is_torn = True  # until the steps have ended; an exception may come at any line
        try:
            result = yield from steps
            self._is_torn = False
            return result
        except (UnavailableError, RefusedError) as failure:
            ended = yield from self._abandon(naming_group(failure, self.key.group))
            raise ended from ended.__cause__
        except GeneratorExit:
            raise  # the shell has dropped the steps, so no request can be sent
        except BaseException as failure:
            yield from self._abandon(failure)
            raise

    def _abandon(self, cause: BaseException | None) -> Steps[RefusedError]:
        """Abort a transaction whose commit was not requested. Return the error that the program gets."""
        yield from self._try_to_abort(cause)
        return self._set_failed_by(cause)

    def _try_to_abort(self, cause: BaseException | None) -> Steps[bool]:
        """Request the abort. Return False if the transaction was committed before, else True."""
        is_aborted = True
        if self.producer is not None and self.producer.producer_id >= 0:
            self.producer.close()
            if self._is_cancelled or not is_silence(cause):
                with suppress(RefusedError, UnavailableError):
                    is_aborted = yield from self.cluster.run_until_deadline(
                        self._request_abort(), CANCEL_S if self._is_cancelled else None
                    )
        return is_aborted

    def _set_failed_by(self, cause: BaseException | None) -> RefusedError:
        if isinstance(cause, RefusedError) and cause.code in LOST:
            self.is_key_free = False
        return self._set_failed(abort_error(cause))

    def _set_failed(self, failure: FailureT, state: WritingState = WritingState.ABORTED) -> FailureT:
        self._state, self.failure, self._outcome = state, failure, failure
        self._report_outcome()
        return failure

    def _set_committed(self, commit_sequence: int) -> Committed:
        committed = Committed(commit_sequence, *self.records.end_positions())
        self._state, self._outcome = WritingState.COMMITTED, committed
        self._report_outcome()
        return committed

    def _report_outcome(self) -> None:
        """If the outcome is known, give the `Cluster` object back (`release`), and call `on_end` with the outcome."""
        if self._outcome is None or self._has_finished:
            return
        if self._release is not None:
            if self.producer is not None:
                self.producer.close()
            self.cluster.allow_retries()
            # From now on, the cluster and the key may be those of another transaction.
            release, self._release = self._release, None
            release(self)
        self._on_end(self._outcome)
        self.records.drop_unsent()
        self.records = RecordBuffer()
        self._has_finished = True
