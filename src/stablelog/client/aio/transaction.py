"""A transaction for asyncio programs. Each record has a future. Either all futures succeed or all fail.

If a task is cancelled during a call, the call waits for the response to its last request, or until its timeout. It does
not repeat the request, and aborts the transaction. Then the call raises CancelledError. So a call that has raised has
no effect at the broker afterwards.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from stablelog.client.aio.cancelling import to_the_end
from stablelog.client.aio.cluster import AsyncCluster
from stablelog.client.core.arguments import Content, Headers
from stablelog.client.core.outcomes import Committed, Outcome
from stablelog.client.core.record_buffer import ManyRecords
from stablelog.client.core.settings import EXPIRE_RETRY_S
from stablelog.client.core.steps import Result, Steps
from stablelog.client.core.writing import Writing
from stablelog.client.futures import AsyncWriteFuture, AsyncWriteManyFuture, TransactionEnd
from stablelog.errors import OutcomeUnknownError, UsageError
from stablelog.processes import check_process, this_process

_log = logging.getLogger("stablelog.client")
WHAT = "this transaction"


class AsyncTransaction:
    """A transaction of the asyncio client. `AsyncClient.transaction` makes it. Several tasks may write into it.

    As a context manager, the transaction commits at the end of the block, and aborts if the block raises or is
    cancelled.

    Args:
        begin: makes the object `writing`, which has the state of the transaction, and the cluster object with its
            connections. Its argument is a callback that `writing` calls once, with the outcome of the transaction.
    """

    def __init__(self, begin: Callable[[Callable[[Outcome], None]], tuple[AsyncCluster, Writing]]) -> None:
        self._loop = asyncio.get_running_loop()
        # The lock of the task that writes. Tasks get the lock in the order of their requests.
        self._turn = asyncio.Lock()
        self._process = this_process()
        self._ended = TransactionEnd(self._loop)
        # Held while steps of `writing` run. `_leave` runs steps while another task has the turn, and waits here.
        self._running = asyncio.Lock()
        self._is_ending = False
        self._cluster, self._writing = begin(self._ended.set_outcome)
        self._timer: asyncio.TimerHandle | None = None
        self._watch_deadline()

    def __repr__(self) -> str:
        writing = self._writing
        group = f" of group {writing.key.group}" if writing.key.group else ""
        return f"<{type(self).__name__}{group}, {writing.status}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None and self._process is not this_process():
            return  # a forked process leaves the block: the transaction is that of the parent process
        if error is None:
            try:
                await self._end(lambda: self._writing.end_with_block(None))
            except asyncio.CancelledError as cancelled:
                await self._abort_for(cancelled)
                raise
        else:
            await self._abort_for(error)

    async def write(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncWriteFuture:
        """Write a record. Wait only while too many bytes are in flight.

        Args:
            topic: the topic's name. It is never created by a write.
            value: text is written as UTF-8. None deletes the key in a compacted topic.
            key: text is written as UTF-8.
            headers: names and values, as pairs or as a mapping.
            partition: by default chosen by the key; without a key, round-robin.
            timestamp_ms: by default the current time.

        Returns:
            A future that is done when the transaction has ended, and not before. After a commit, its result is the
            record's position (topic, partition and offset). After an abort, the future raises. A program that does not
            need the position may drop the future.

        Raises:
            RefusedError: the transaction had ended, or the topic or partition does not exist. Or this call has aborted
                the transaction and failed all futures, because the broker has ended the transaction or no broker
                accepted its batches within the deadline.
            UnavailableError: no broker responds to the request for the topic's metadata. Nothing was written.
            TypeError: an argument has a wrong type. Nothing was written.
            UsageError: the timestamp is out of range, no topic can have this name, or UTF-8 cannot encode a text, and
                nothing was written. Or this is another process or event loop than the one in which the transaction was
                begun.
        """
        self._check_caller()
        # Without a wait, no other task comes between the check and the record: the lock is not needed.
        if self._turn.locked() or not self._is_ready(topic):
            async with self._turn:
                await self._make_ready(topic)
                return self._add(topic, value, key, headers, partition, timestamp_ms)
        return self._add(topic, value, key, headers, partition, timestamp_ms)

    def _add(
        self,
        topic: str,
        value: Content,
        key: Content,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> AsyncWriteFuture:
        if timestamp_ms is None:
            timestamp_ms = int(time.time() * 1000)
        records = self._writing.records
        last = records.last
        try:
            return AsyncWriteFuture(
                self._ended, *records.add_record(topic, value, key, headers, partition, timestamp_ms)
            )
        except BaseException:
            records.remove_after(last)  # the program does not get the future
            raise

    async def write_many(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        *,
        keys: Iterable[bytes | str | None] | None = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> AsyncWriteManyFuture:
        """Write several records to one topic, in their order. This is faster than a call of `write` for each.

        If a value, key or header, or the partition, is not valid, no record is written. If the call is cancelled, the
        transaction is aborted.

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
        timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
        many = ManyRecords(values, keys, headers, partition, timestamp_ms)
        async with self._turn:
            await self._make_ready(topic)
            records = self._writing.records
            many.check(records, topic)
            try:
                while not many.add_to(records, topic):
                    await self._make_ready(topic)
                return AsyncWriteManyFuture(self._ended, many)
            except BaseException:
                self._writing.mark_interrupted()  # a part of the records is in the transaction
                raise

    def _is_ready(self, topic: str) -> bool:
        writing = self._writing
        return (
            not self._is_ending and not writing.records.is_due and writing.is_ready(topic, time.monotonic())
        )

    async def _make_ready(self, topic: str) -> None:
        """Make the transaction ready for a write to a topic: request the topic's metadata if necessary, and send full
        batches, or all batches if they take too much memory. Raise an error if the transaction is not open.
        """
        # Check again after each wait: another task may have begun to end the transaction meanwhile. Its steps hold
        # `_running`, so this call waits for them, and then raises.
        while not self._is_ready(topic):
            if self._writing.records.is_due and not self._is_ending:
                await self._run_or_abort(self._writing.send_due)
            else:
                await self._run_or_abort(lambda: self._writing.make_ready(topic))

    async def commit(self) -> Committed:
        """Commit all records that were written. The call may be repeated after any failure; if the transaction is
        committed, it returns the result of the commit.

        If the call is cancelled before it has requested the commit from the broker, it aborts the transaction. If it is
        cancelled later, the futures get the outcome, and another call of `commit` returns it.

        Returns:
            The commit sequence (the number of the commit in its transaction group, the topics whose commits have one
            order), and the positions of the records that were written first and last.

        Raises:
            RefusedError: the transaction is aborted, and all futures have failed.
            OutcomeUnknownError: it is unknown whether the transaction is committed, or at which positions. Repeat the
                call, or call `abort`. Until then the futures are not done.
            DataLossError: the transaction is committed, but its records were removed before their positions were
                known.
        """
        return await self._end(self._writing.commit)

    async def abort(self) -> None:
        """Abort the transaction: all futures fail. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            OutcomeUnknownError: its commit was requested, and it is unknown whether it is committed.
        """
        await self._end(self._writing.abort)

    async def _end(self, steps: Callable[[], Steps[Result]]) -> Result:
        """End the transaction: wait for the writes that other tasks have begun, then run the steps (a generator of I/O
        operations) that commit or abort it, and return their result. If this task is cancelled meanwhile, abort the
        transaction.
        """
        self._check_caller()
        has_turn = False
        try:
            async with self._turn:
                has_turn = self._is_ending = True
                return await self._run_or_abort(steps)
        except asyncio.CancelledError as cancelled:
            if not has_turn:
                await self._abort_for(cancelled)
            raise

    def _check_caller(self) -> None:
        """Raise UsageError if the caller runs in a process that was forked from the one of the transaction, or in
        another event loop than the one in which the transaction's futures are used.
        """
        if self._process is not this_process():
            check_process(self._process, WHAT)
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                f"{WHAT} was begun in another event loop, to which its futures belong: use the transaction "
                "in that loop, or begin another one in this loop"
            )

    async def _run_or_abort(self, steps: Callable[[], Steps[Result]]) -> Result:
        """Run the steps (a generator of I/O operations) of one call, and return their result. If this task is
        cancelled, abort the transaction, unless its commit was requested.
        """
        try:
            return await self._run_in_turn(steps)
        except asyncio.CancelledError as cancelled:
            await self._abort_for(cancelled)
            raise

    async def _abort_for(self, error: BaseException) -> None:
        """Abort the transaction because of `error`, which was raised in its block or in a call. A write of another task
        that is under way is ended first.
        """
        self._is_ending = True
        if isinstance(error, asyncio.CancelledError):
            self._cancel()
        await self._run_in_turn(lambda: self._writing.end_with_block(error))

    async def _run_in_turn(self, steps: Callable[[], Steps[Result]]) -> Result:
        """Run the steps of one call as soon as no other call of this transaction runs its steps, and return their
        result. If the task is cancelled, the steps are made to end soon, and the call waits for their end.

        Args:
            steps: a function that returns the steps of the call: a generator of I/O operations.

        Raises:
            CancelledError: the task was cancelled. No step runs any more.
        """

        async def in_turn() -> Result:
            async with self._running:
                try:
                    return await self._cluster.run(self._writing.cluster.run_until_deadline(steps()))
                finally:
                    self._announce()

        try:
            return await to_the_end(in_turn(), self._cancel)
        except OutcomeUnknownError as unknown:
            unknown.transaction = self
            raise

    def _cancel(self) -> None:
        is_first = self._writing.cancel()
        if self._writing.is_in_doubt:
            _log.warning("a cancelled task waits for the outcome of a commit that is in flight")
            self._cluster.end_pause()
        elif is_first:  # a further cancellation does not break off the request for the abort
            self._cluster.end_waits()

    # --- the deadline ---

    def _watch_deadline(self) -> None:
        """Schedule the abort of the transaction at its deadline, so that it is aborted even if the program makes no
        further call.
        """
        self._cancel_timer()
        self._timer = self._loop.call_later(max(0.0, self._writing.deadline - time.monotonic()), self._expire)

    def _expire(self) -> None:
        if self._running.locked():
            self._timer = self._loop.call_later(EXPIRE_RETRY_S, self._expire)
        else:
            self._writing.expire()
            self._announce()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _announce(self) -> None:
        """If the transaction has ended, wake the tasks that wait for the futures, and schedule the callbacks."""
        self._ended.announce()
        if self._ended.is_announced:
            self._cancel_timer()
