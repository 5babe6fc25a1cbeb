"""The client for programs with an event loop: `stablelog.aio.connect`.

The same transactions and readers as in `client.native`: what waits for a broker is done by threads of the client, what
does not is done at once. The loop never waits, and nothing is decided twice.

Cancelled, a call waits until its thread is done, with the transaction aborted, and then raises: nothing goes on behind
the caller's back. That takes as long as an answer does; if nobody answers, as long as a broker may be silent.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from types import TracebackType
from typing import Final, Literal, ParamSpec, Self, TypeVar

from stablelog.client.cluster import DEADLINE_S
from stablelog.client.native import TIMEOUT_S, Client, Reading
from stablelog.client.reading import CommittedTransaction, Pause
from stablelog.client.writing import Committed, Headers, Outcome, Position, Writing

P = ParamSpec("P")
Result = TypeVar("Result")

THREADS_MAX: Final = 32  # calls that wait for a broker at the same time; more take their turn


async def _wait(
    pool: ThreadPoolExecutor,
    call_off: Callable[[], None],
    call: Callable[P, Result],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Result:
    """Have it done by a thread, to its end: cancelled meanwhile, `call_off` shall bring that near.

    Raises:
        asyncio.CancelledError: it was cancelled. The call is over, well or not.
    """
    working = asyncio.get_running_loop().run_in_executor(pool, lambda: call(*args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
            call_off()
    if cancelled is not None:
        working.exception()  # has been seen
        raise cancelled
    return working.result()


class AsyncTransaction:
    """A transaction of one writer. Made by `AsyncClient.transaction`; several tasks may write into it.

    As a context manager it commits when the block ends, and aborts if it ends by an exception or is cancelled.

    Args:
        begin: makes the transaction, given whom to tell what becomes of it.
        pool: of the client.
    """

    def __init__(
        self, begin: Callable[[Callable[[Outcome], None]], Writing], pool: ThreadPoolExecutor
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self._turn = asyncio.Lock()  # of whoever writes: in the order in which they came
        self._futures: list[asyncio.Future[Position]] = []
        self._is_ending = False
        self._writing = begin(self._tell)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            try:
                await self._end(self._writing.leave, None)
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
        """Write a record. Waits only while too much is under way; for the record's fate there is the future.

        Args:
            topic: as in `Transaction.write`, and so are the rest.
            key: text is written as UTF-8.
            value: as `key`.
            headers: names and values, as pairs or as a mapping.
            partition: by default that of the key; without a key, one after the other.
            timestamp_ms: by default now.

        Returns:
            A future, done when the transaction has ended, and not before: the record's position if it commits, else a
            failure. Cancelling it changes nothing for the record.

        Raises:
            Refused: the transaction has ended, or it is aborted now, and all futures have failed: the broker has ended it,
                or none took what was written within the deadline. Or there is no such topic, or partition of it.
            Unavailable: no broker answers where the topic is asked for. Nothing was written.
        """
        async with self._turn:
            # Asked again after each wait: who leaves meanwhile has its thread, which the loop must not wait for.
            while self._is_ending or not self._writing.is_ready(topic):
                await self._wait(self._writing.make_ready, topic)
            self._writing.put(topic, key, value, headers, partition, timestamp_ms)
            future = self._loop.create_future()
            self._futures.append(future)
            if self._writing.is_due:
                await self._wait(self._writing.send_due)
            return future

    async def commit(self) -> Committed:
        """Commit what was written. May be asked again, after any failure, and answers the same.

        Cancelled, it aborts if the commit was not asked for yet; if it was, the futures tell what became of it, and
        so does another `commit`.

        Returns:
            The commit's number, and the positions of the records that were written first and last.

        Raises:
            Refused: it is aborted, and all futures have failed.
            Unavailable: it is not known whether it is committed, or at which positions: ask again, or `abort`. Until
                then the futures wait.
            OffsetOutOfRange: it is committed, and the records have been removed before their positions were told.
        """
        return await self._end(self._writing.commit)

    async def abort(self) -> None:
        """Abort what was written: all futures fail. Nothing happens if it is aborted already.

        Raises:
            Refused: it is committed.
            Unavailable: its commit was asked for, and it is not known whether it is committed.
        """
        await self._end(self._writing.abort)

    async def _end(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """After the writes that were begun before; cancelled while it waits for them, too, it aborts."""
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
        """Abort, whoever is writing."""
        self._is_ending = True
        if isinstance(error, asyncio.CancelledError):
            self._writing.call_off()
        await _wait(self._pool, self._writing.call_off, self._writing.leave, error)

    async def _wait(self, call: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """Have it done by a thread; cancelled, the transaction is aborted, unless its commit has been asked for."""
        try:
            return await _wait(self._pool, self._writing.call_off, call, *args, **kwargs)
        except asyncio.CancelledError as cancelled:
            await self._leave(cancelled)
            raise

    def _tell(self, outcome: Outcome) -> None:
        """In whichever thread: all futures are done in one step of the loop."""
        with suppress(RuntimeError):  # a loop that is closed has nobody who waits
            self._loop.call_soon_threadsafe(self._settle, outcome)

    def _settle(self, outcome: Outcome) -> None:
        futures, self._futures = self._futures, []
        if isinstance(outcome, list):
            for future, position in zip(futures, outcome, strict=True):
                if not future.cancelled():
                    future.set_result(position)
        else:
            for future in futures:
                if not future.cancelled():
                    future.set_exception(outcome)
                    future.exception()  # whoever ends the transaction is told: nobody has to look at each


class AsyncClient:
    """A client of a stablelog broker. Made by `connect`.

    Args:
        bootstrap: "host:port,host:port"; one that answers is enough.
        deadline_s: how long whatever is asked is tried again before it fails.
    """

    def __init__(self, bootstrap: str, *, deadline_s: float = DEADLINE_S) -> None:
        self._client = Client(bootstrap, deadline_s=deadline_s)
        self._pool = ThreadPoolExecutor(THREADS_MAX, "stablelog-client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; those of transactions and readers when these end. No more can be begun."""
        self._client.close()

    def transaction(self, group: str = "", timeout: float = TIMEOUT_S) -> AsyncTransaction:
        """Begin a transaction. Called in the event loop that is to settle its futures.

        Args:
            group: the transaction group, to which the topics belong; empty for the default one.
            timeout: seconds after which it is aborted, if it is still open.

        Raises:
            InvalidConfig: the timeout is none that a transaction can have, or no group can have this name.
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
        """Read whole transactions of commit-ordered topics. Records outside transactions are passed over.

        Nothing is read before it is asked for.

        Args:
            topics: as in `Client.read`, and so are the rest.
            order: there is no other in which transactions are whole.
            cut: whether a transaction is handed out over all partitions of all topics.
            after: the commit sequence after which to begin; None for what is yet to come.
            wait: seconds to wait for another transaction before the reader ends; None for ever.
            group: the transaction group of the topics, which is asked for if it is None.

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
                step = await _wait(self._pool, reading.call_off, next, steps, None)
                if step is None:
                    return
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    yield step


def connect(bootstrap: str, *, deadline: float = DEADLINE_S) -> AsyncClient:
    """A client of the brokers behind these addresses. Nothing is asked of them yet.

    Args:
        bootstrap: "host:port,host:port"; one that answers is enough.
        deadline: seconds for which whatever is asked is tried again before it fails.

    Raises:
        InvalidConfig: an address that is none.
    """
    return AsyncClient(bootstrap, deadline_s=deadline)
