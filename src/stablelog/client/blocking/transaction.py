"""A transaction for programs with threads. Each record has a future. Either all futures succeed or all fail.

A signal handler may interrupt a call at any line. If the handler raises an exception, the transaction can still be
committed or aborted. A signal handler must not call the transaction whose call it has interrupted, because it would
wait for itself: it gets a UsageError.
"""

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.deadlines import TransactionDeadlines, call_in_thread
from stablelog.client.core.arguments import Headers
from stablelog.client.core.outcomes import Committed, Outcome
from stablelog.client.core.record_buffer import ManyRecords
from stablelog.client.core.steps import Result, Steps
from stablelog.client.core.writing import Writing
from stablelog.client.futures import TransactionEnd, WriteFuture, WriteManyFuture
from stablelog.errors import OutcomeUnknownError, UsageError
from stablelog.processes import check_process, this_process

WHAT = "this transaction"


class Transaction:
    """A transaction of the blocking client. `Client.transaction` makes it. Several threads may write into it.

    As a context manager, the transaction commits at the end of the block, and aborts if the block raises.

    Args:
        begin: makes the object `writing`, which has the state of the transaction, and the cluster object with its
            connections. Its argument is a callback that `writing` calls with the outcome of the transaction.
        deadlines: the thread that aborts transactions at their deadlines; this transaction is added to it.
    """

    def __init__(
        self,
        begin: Callable[[Callable[[Outcome], None]], tuple[BlockingCluster, Writing]],
        deadlines: TransactionDeadlines,
    ) -> None:
        self._process = this_process()
        self._ended = TransactionEnd()
        self._deadlines = deadlines
        # Held during a call. Reentrant, so that `_check` sees that this thread holds it, and does not wait for itself.
        self._turn: Any = threading.RLock()
        # Held while callbacks of futures are called. They may call `commit` again.
        self._settling: Any = threading.RLock()
        cluster, self._writing = begin(self._ended.set_outcome)
        self._run = cluster.run
        deadlines.add_transaction(self._expire, self._writing.deadline)

    def __repr__(self) -> str:
        writing = self._writing
        group = f" of group {writing.key.group}" if writing.key.group else ""
        return f"<{type(self).__name__}{group}, {writing.status}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._process is not this_process():
            return  # a forked process leaves the block: the transaction is that of the parent process
        self._end(lambda: self._writing.end_with_block(error))

    def write(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> WriteFuture:
        """Write a record. The returned future is done when the transaction has ended, and not before.

        Args:
            topic: the topic's name. It is never created by a write.
            value: text is written as UTF-8. None deletes the key in a compacted topic.
            key: text is written as UTF-8.
            headers: names and values, as pairs or as a mapping; text in a value is written as UTF-8.
            partition: by default the one that Kafka's Java producer would choose for the key; without a key,
                round-robin.
            timestamp_ms: by default the current time.

        Returns:
            A future. After a commit, its result is the record's position (topic, partition and offset); it fails if the
            transaction is aborted. A program that does not need the position may drop the future.

        Raises:
            RefusedError: the transaction had ended; or this call aborted it and failed all futures, because the broker
                has ended it or no broker accepted its batches within the deadline; or the topic or partition does not
                exist.
            UnavailableError: no broker responds to the request for the topic's metadata. Nothing was written.
            TypeError: an argument has a wrong type. Nothing was written.
            UsageError: the timestamp is out of range, no topic can have this name, or UTF-8 cannot encode a text, and
                nothing was written. Or the transaction was begun in another process, or this is a signal handler that
                has interrupted a call of this transaction.
        """
        self._check_caller()
        writing = self._writing
        try:
            with self._turn:
                records = writing.records
                if records.is_due or not writing.is_ready(topic, time.monotonic()):
                    self._make_ready(topic)
                    records = writing.records
                if timestamp_ms is None:
                    timestamp_ms = int(time.time() * 1000)
                last = records.last
                try:
                    return WriteFuture(
                        self._ended, *records.add_record(topic, value, key, headers, partition, timestamp_ms)
                    )
                except BaseException:
                    records.remove_after(last)  # the program does not get the future
                    raise
        except BaseException:
            self._announce()  # if the call has aborted the transaction
            raise

    def write_many(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> WriteManyFuture:
        """Write several records to one topic, in their order. This is faster than a call of `write` for each.

        If a value, key or header, or the partition, is not valid, no record is written. If an exception of a signal
        handler interrupts the call, the transaction is aborted.

        Args:
            topic: the topic's name.
            values: a value for each record, as for `write`.
            keys: a key for each record; None for records without keys.
            headers: the headers of each record.
            partition: the partition of all records; by default chosen for each record, as for `write`.
            timestamp_ms: the timestamp of all records; by default the current time.

        Returns:
            A future. Its result is the list of the records' positions.

        Raises:
            TypeError: an argument has a wrong type; the message says which value or key.
            UsageError: as for `write`; or there are not as many keys as values.
            RefusedError: as for `write`.
            UnavailableError: as for `write`.
        """
        self._check_caller()
        writing = self._writing
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        many = ManyRecords(values, keys, headers, partition, timestamp_ms)
        try:
            with self._turn:
                self._make_ready(topic)
                many.check(writing.records, topic)
                try:
                    while not many.add_to(writing.records, topic):
                        self._make_ready(topic)
                    return WriteManyFuture(self._ended, many)
                except BaseException:
                    writing.mark_interrupted()  # a part of the records is in the transaction
                    raise
        except BaseException:
            self._announce()
            raise

    def _make_ready(self, topic: str) -> None:
        """Make the transaction ready for a write to a topic: request the topic's metadata if necessary, and send full
        batches, or all batches if they take too much memory. Raise an error if the transaction is not open.
        """
        writing = self._writing
        if not writing.is_ready(topic, time.monotonic()):
            self._run_steps(writing.make_ready(topic))
        if writing.records.is_due:
            self._run_steps(writing.send_due())

    def commit(self) -> Committed:
        """Commit all records that were written. The call may be repeated after any failure; if the transaction is
        committed, it returns the result of the commit.

        Returns:
            The commit sequence (the number of the commit in its transaction group, the topics whose commits have one
            order), and the positions of the records that were written first and last.

        Raises:
            RefusedError: the transaction is aborted, and all futures have failed.
            OutcomeUnknownError: it is unknown whether the transaction is committed, or at which positions. Repeat the
                call, or call `abort`. Until then the futures are not done.
            DataLossError: the transaction is committed, but its records were removed before their positions were
                known.
            UsageError: the transaction was begun in another process, or this is a signal handler that has interrupted
                a call of this transaction.
        """
        return self._end(self._writing.commit)

    def abort(self) -> None:
        """Abort the transaction: all futures fail. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            OutcomeUnknownError: its commit was requested, and it is unknown whether it is committed.
            UsageError: the transaction was begun in another process, or this is a signal handler that has interrupted
                a call of this transaction.
        """
        self._end(self._writing.abort)

    def _end(self, steps: Callable[[], Steps[Result]]) -> Result:
        self._check_caller()
        try:
            with self._turn:
                return self._run_steps(steps())
        finally:
            self._announce()

    def _check_caller(self) -> None:
        """Raise UsageError if the caller is a signal handler that has interrupted a call of this transaction, for which
        it would wait forever, or if the caller runs in a process that was forked from the one of the transaction.
        """
        if self._process is not this_process():
            check_process(self._process, WHAT)
        if self._turn._is_owned():  # noqa: SLF001 - as in `_is_held_here`, without a call for each record
            raise UsageError(
                f"{WHAT} is in use by this thread: a signal handler has interrupted one of its calls. Do "
                "not use the transaction in the handler"
            )

    def _run_steps(self, steps: Steps[Result]) -> Result:
        """Run the steps (a generator of I/O operations) of one call, and return their result. If they raise an
        OutcomeUnknownError, set its attribute `transaction` to this object, so that the program can repeat the commit.
        """
        try:
            return self._run(self._writing.cluster.run_until_deadline(steps))
        except OutcomeUnknownError as unknown:
            unknown.transaction = self
            raise

    def _announce(self) -> None:
        """If the transaction has ended, wake the threads that wait for the futures, and call the callbacks."""
        if _is_held_here(self._settling):
            return  # this is a callback of a future; the call that has called it goes on
        try:
            with self._settling:
                self._ended.announce()
        except BaseException:
            self._deadlines.expire_now(
                self._expire
            )  # the thread goes on where a signal handler has interrupted this one
            raise
        if self._ended.is_announced:
            self._deadlines.remove_transaction(self._expire)

    def _expire(self) -> bool:
        """Abort the transaction at its deadline if it is open. If it has ended already, have its callbacks called in
        another thread. This method never waits for a broker or a callback.

        Returns:
            True if nothing is left to do. False if another call of the transaction is in progress, or no thread could
            be started: call this method again later.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self._writing.expire()
        finally:
            self._turn.release()
        self._ended.wake_waiters()
        return self._ended.is_announced or call_in_thread(self._announce)


def _is_held_here(lock: Any) -> bool:
    """Return whether this thread holds the lock, an RLock. A flag beside the lock could be wrong after an exception of
    a signal handler, so the function asks the lock itself, as threading.Condition does.
    """
    return bool(lock._is_owned())  # noqa: SLF001 - there is no public way
