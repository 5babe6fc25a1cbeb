"""The client for asyncio programs: `stablelog.aio.connect`.

This client has the same transactions and readers as `client.native`. Calls that may wait for a broker run in threads of
the client; calls that cannot wait run in the event loop. So the client never blocks the loop.

If a task is cancelled during a call, the call waits until its thread has finished and the transaction is aborted. Then
the call raises CancelledError. So the client does no more work for a call that has raised. The wait ends with the
broker's response, or with the timeout for a broker that does not respond.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from types import TracebackType
from typing import Final, Literal, ParamSpec, Self, TypeVar

from stablelog.client import native
from stablelog.client.cluster import DEADLINE_S
from stablelog.client.native import TIMEOUT_S, Client, Reading
from stablelog.client.positions import Position
from stablelog.client.reading import CommittedTransaction, Pause
from stablelog.client.record_buffer import Headers
from stablelog.client.transaction import settle
from stablelog.client.writing import Committed, Outcome, Writing

P = ParamSpec("P")
Result = TypeVar("Result")

# Maximum number of calls that wait for a broker at the same time. Further calls wait until a thread is free.
THREADS_MAX: Final = 32


async def _wait(
    pool: ThreadPoolExecutor,
    cancel: Callable[[], None],
    call: Callable[P, Result],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Result:
    """Run `call` in a thread and wait for its end. If this task is cancelled, run `cancel`, so that `call` ends soon.

    Raises:
        asyncio.CancelledError: the task was cancelled. The call has ended, with a result or an error.
    """
    working = asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
            cancel()
    if cancelled is not None:
        working.exception()  # mark the call's exception as retrieved, so that asyncio does not log it
        raise cancelled
    return working.result()


class AsyncTransaction:
    """A transaction of one writer. `AsyncClient.transaction` makes it. Several tasks may write into it.

    As a context manager, the transaction commits at the end of the block, and aborts if the block raises or is
    cancelled.

    Args:
        begin: a function that makes the object `writing`. The function gets a callback, and the object calls this
            callback once, with the outcome of the transaction.
        pool: the client's threads.

    Attributes:
        writing: the object that sends the records and ends the transaction, by blocking calls. This class, and
            not that object, has the futures of the records.
    """

    def __init__(
        self, begin: Callable[[Callable[[Outcome], None]], Writing], pool: ThreadPoolExecutor
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        # The lock of the task that writes. Tasks get the lock in the order of their requests.
        self._turn = asyncio.Lock()
        self._futures: list[asyncio.Future[Position]] = []
        self._is_ending = False
        self.writing = begin(self._tell)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            try:
                await self._end(self.writing.leave, None)
            except asyncio.CancelledError as cancelled:
                await self._leave(cancelled)
                raise
        else:
            await self._leave(error)

    async def write(
        self,
        topic: str,
        key: bytes | str | None = None,
        value: bytes | str | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "asyncio.Future[Position]":
        """Write a record. Wait only while too many bytes are in flight.

        Args:
            topic: created if it is missing and the broker creates topics automatically.
            key: text is written as UTF-8.
            value: text is written as UTF-8.
            headers: names and values, as pairs or as a mapping.
            partition: by default chosen by the key; without a key, round-robin.
            timestamp_ms: by default the current time.

        Returns:
            A future that is done when the transaction has ended, and not before. Its result is the record's position
            after a commit. After an abort, the future raises. Cancelling the future does not affect the record.

        Raises:
            RefusedError: the transaction had ended, or the topic or partition does not exist. Or this call has aborted
                the transaction and failed all futures, because the broker has ended the transaction or no broker
                accepted its batches within the deadline.
            UnavailableError: no broker responds to the request for the topic's metadata. Nothing was written.
        """
        async with self._turn:
            # Check `_is_ending` again after each wait, because another task may have begun to end the transaction in
            # the meantime. That task's call runs in a thread and holds the lock that `put` needs, so `put` would block
            # the event loop until the call returns.
            while self._is_ending or not self.writing.is_ready(topic):
                await self._wait(self.writing.make_ready, topic)
            self.writing.put(topic, key, value, headers, partition, timestamp_ms)
            future = self._loop.create_future()
            self._futures.append(future)
            if self.writing.records.is_due:
                await self._wait(self.writing.send_due)
            return future

    async def commit(self) -> Committed:
        """Commit all records that were written. The call may be repeated after any failure and then returns the same
        result.

        A cancelled call aborts the transaction if the commit was not requested yet. If the commit was requested
        already, the futures get the outcome, and another call of `commit` returns it.

        Returns:
            The commit sequence, and the positions of the records that were written first and last.

        Raises:
            RefusedError: the transaction is aborted, and all futures have failed.
            UnavailableError: it is unknown whether the transaction is committed, or at which positions. Repeat the
                call, or call `abort`. Until then the futures are not done.
            DataLossError: the transaction is committed, but its records were removed before their positions were
                known.
        """
        return await self._end(self.writing.commit)

    async def abort(self) -> None:
        """Abort the transaction: all futures fail. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            UnavailableError: its commit was requested, and it is unknown whether it is committed.
        """
        await self._end(self.writing.abort)

    async def _end(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run `call` after all earlier writes. If this task is cancelled, also while it waits for these writes, abort
        the transaction.
        """
        try:
            await self._turn.acquire()
        except asyncio.CancelledError as cancelled:
            await self._leave(cancelled)
            raise
        try:
            self._is_ending = True
            return await self._wait(call, *args, **kwargs)
        finally:
            self._turn.release()

    async def _leave(self, error: BaseException) -> None:
        """Abort the transaction because of `error`, even while another task is writing into the transaction."""
        self._is_ending = True
        if isinstance(error, asyncio.CancelledError):
            self.writing.cancel()
        await _wait(self._pool, self.writing.cancel, self.writing.leave, error)

    async def _wait(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run `call` in a thread. If this task is cancelled, abort the transaction, unless its commit has been
        requested.
        """
        try:
            return await _wait(self._pool, self.writing.cancel, call, *args, **kwargs)
        except asyncio.CancelledError as cancelled:
            await self._leave(cancelled)
            raise

    def _tell(self, outcome: Outcome) -> None:
        """Give the outcome to all futures in one step of the event loop. May be called from any thread."""
        with suppress(RuntimeError):  # the event loop is closed, so no task waits for the futures
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome) -> None:
        futures, self._futures = self._futures, []
        settle(futures, outcome)


class AsyncClient:
    """A client of a stablelog broker. `connect` makes it.

    Args:
        client: the client that makes the transactions and readers.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(THREADS_MAX, "stablelog-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the client: it refuses new transactions and readers. Connections in use are closed when their
        transaction or reader ends.
        """
        self._client.close()

    def transaction(self, group: str = "", timeout: float = TIMEOUT_S) -> AsyncTransaction:
        """Begin a transaction. Call this in the event loop in which the program awaits the futures.

        Args:
            group: the transaction group of the topics; empty for the default group.
            timeout: seconds until an open transaction is aborted.

        Raises:
            UsageError: the timeout is out of range, or the group's name is invalid.
            RefusedError: the client is closed.
        """
        return AsyncTransaction(lambda on_end: self._client.begin(group, timeout, on_end), self._pool)

    def read(
        self,
        topics: str | Iterable[str],
        *,
        order: Literal["commit"] = "commit",
        cut: bool = False,
        after: int | None = 0,
        wait: float | None = None,
        group: str | None = None,
    ) -> AsyncGenerator[CommittedTransaction, None]:
        """Read whole transactions of commit-ordered topics. Records outside transactions are skipped.

        No request is sent before the first transaction is requested from the generator.

        Args:
            topics: one name or several.
            order: only "commit" is valid, because in no other order are transactions whole.
            cut: whether to return each transaction once, with its records of all partitions of all topics. Otherwise
                each partition is read separately.
            after: the commit sequence after which to begin: that of the last transaction that the caller has handled. 0
                for the oldest transaction that is left, None for new commits only.
            wait: seconds to wait for another transaction before the reader ends; None for no limit.
            group: the transaction group of the topics; None asks the broker for it.

        Raises:
            UsageError: another order, no topic, or an invalid group name.
            RefusedError: a topic does not exist, is not commit-ordered or is in another group; or the client is closed.
            DataLossError: transactions were removed before they were read.
            UnavailableError: no response within the deadline.
        """
        return self._read(self._client.reading(topics, order, cut=cut, after=after, wait_s=wait, group=group))

    async def _read(self, reading: Reading) -> AsyncGenerator[CommittedTransaction, None]:
        with closing(reading.steps()) as steps:
            while True:
                step = await _wait(self._pool, reading.cancel, next, steps, None)
                if step is None:
                    return
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    yield step


def connect(bootstrap: str, *, deadline: float = DEADLINE_S) -> AsyncClient:
    """Make a client of the brokers at these addresses. This sends no request yet.

    The client needs a stablelog broker. Its methods are `transaction`, `read` and `close`.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        deadline: for how many seconds a request is retried before the call fails.

    Returns:
        The client, for one event loop. At the end of an `async with` block it is closed.

    Raises:
        UsageError: an address is invalid.

    Example:
        async def main():
            async with stablelog.aio.connect(broker.bootstrap) as client:
                async with client.transaction(timeout=30) as txn:
                    order = await txn.write("orders", "o-18", b"a table")
                print(await order)  # Position(topic='orders', partition=0, offset=43)

                async for transaction in client.read("orders", wait=1):
                    print(transaction.commit_sequence, [record.value for record in transaction.records])

        asyncio.run(main())
    """
    return AsyncClient(native.connect(bootstrap, deadline=deadline))
