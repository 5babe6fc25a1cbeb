"""The client for asyncio programs: `stablelog.aio.connect`.

It has the same transactions and readers as `client.native`. Calls that may wait for a broker run in threads of the
client; calls that cannot wait run in the event loop. So the client never blocks the loop.

A cancelled call waits until its thread has finished and the transaction is aborted, and then raises. So no work goes on
after a cancelled call has returned. The call takes until the broker's response, or until the timeout for a silent
broker.
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

THREADS_MAX: Final = 32  # calls that wait for a broker at the same time; further calls wait for a thread


async def _wait(
    pool: ThreadPoolExecutor,
    cancel: Callable[[], None],
    call: Callable[P, Result],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Result:
    """Run a call in a thread and wait for its end. If this task is cancelled, run `cancel`, which shortens the call.

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
        working.exception()  # marks the exception as retrieved, so that asyncio does not log it
        raise cancelled
    return working.result()


class AsyncTransaction:
    """A transaction of one writer. Made by `AsyncClient.transaction`; several tasks may write into it.

    As a context manager it commits when the block ends, and aborts if the block raises or is cancelled.

    Args:
        begin: makes the transaction; its argument is called with the outcome.
        pool: the client's threads.

    Attributes:
        writing: the transaction without futures.
    """

    def __init__(
        self, begin: Callable[[Callable[[Outcome], None]], Writing], pool: ThreadPoolExecutor
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._turn = asyncio.Lock()  # held by the task that writes; first come, first served
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
        """Write a record. Waits only while too many bytes are in flight; the future gets the outcome of the record.

        Args:
            topic: as in `Transaction.write`, like the other arguments.
            key: text is written as UTF-8.
            value: as `key`.
            headers: names and values, as pairs or as a mapping.
            partition: by default chosen by the key; without a key, round-robin.
            timestamp_ms: by default the current time.

        Returns:
            A future that is done when the transaction has ended, and not before. Its result is the record's position
            after a commit; after an abort, it has an exception. Cancelling the future does not affect the record.

        Raises:
            Refused: the transaction had ended; or this call aborted it and failed all futures, because the broker has
                ended it or no broker accepted its batches within the deadline; or the topic or partition does not
                exist.
            Unavailable: no broker responds to the request for the topic's metadata. Nothing was written.
        """
        async with self._turn:
            # Check again after each wait: while this task waited, another task may have begun to end the transaction
            # with a call in a thread, and `put` would block the loop for that call.
            while self._is_ending or not self.writing.is_ready(topic):
                await self._wait(self.writing.make_ready, topic)
            self.writing.put(topic, key, value, headers, partition, timestamp_ms)
            future = self._loop.create_future()
            self._futures.append(future)
            if self.writing.records.is_due:
                await self._wait(self.writing.send_due)
            return future

    async def commit(self) -> Committed:
        """Commit what was written. The call may be repeated after any failure and then gives the same result.

        A cancelled call aborts the transaction if the commit was not requested yet. If it was, the futures tell the
        outcome, and so does another `commit`.

        Returns:
            The commit sequence, and the positions of the records that were written first and last.

        Raises:
            Refused: the transaction is aborted, and all futures have failed.
            Unavailable: it is unknown whether the transaction is committed, or at which positions. Repeat the call, or
                call `abort`. Until then the futures are not done.
            OffsetOutOfRange: the transaction is committed, but its records were removed before their positions were
                known.
        """
        return await self._end(self.writing.commit)

    async def abort(self) -> None:
        """Abort what was written: all futures fail. No effect on a transaction that is aborted already.

        Raises:
            Refused: the transaction is committed.
            Unavailable: its commit was requested, and it is unknown whether it is committed.
        """
        await self._end(self.writing.abort)

    async def _end(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run `call` after all earlier writes. If it is cancelled, even while it waits for these writes, it aborts."""
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
        """Abort, even while another task is writing."""
        self._is_ending = True
        if isinstance(error, asyncio.CancelledError):
            self.writing.cancel()
        await _wait(self._pool, self.writing.cancel, self.writing.leave, error)

    async def _wait(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Run a call in a thread. If it is cancelled, abort the transaction, unless its commit has been requested."""
        try:
            return await _wait(self._pool, self.writing.cancel, call, *args, **kwargs)
        except asyncio.CancelledError as cancelled:
            await self._leave(cancelled)
            raise

    def _tell(self, outcome: Outcome) -> None:
        """Set all futures in one step of the event loop. Called from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so no task waits for the futures
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome) -> None:
        futures, self._futures = self._futures, []
        settle(futures, outcome)


class AsyncClient:
    """A client of a stablelog broker. Made by `connect`.

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
        """Close the connections; those of open transactions and readers when these end. New ones are refused."""
        self._client.close()

    def transaction(self, group: str = "", timeout: float = TIMEOUT_S) -> AsyncTransaction:
        """Begin a transaction. Call it in the event loop that will set the futures.

        Args:
            group: the transaction group of the topics; empty for the default group.
            timeout: seconds until an open transaction is aborted.

        Raises:
            InvalidConfig: the timeout is out of range, or the group's name is invalid.
            Refused: the client is closed.
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
            topics: as in `Client.read`, like the other arguments.
            order: the only order in which transactions are whole.
            cut: whether a transaction covers all partitions of all topics.
            after: the commit sequence after which to begin; None for new commits only.
            wait: seconds to wait for another transaction before the reader ends; None for no limit.
            group: the transaction group of the topics; None asks the broker for it.

        Raises:
            InvalidConfig: as in `Client.read`.
            Refused: as in `Client.read`.
            OffsetOutOfRange: as in `Client.read`.
            Unavailable: as in `Client.read`.
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
    """Make a client of the brokers at these addresses. Sends no request yet.

    Args:
        bootstrap: "host:port,host:port"; one reachable address is enough.
        deadline: for how many seconds a request is retried before the call fails.

    Raises:
        InvalidConfig: an address is invalid.
    """
    return AsyncClient(native.connect(bootstrap, deadline=deadline))
