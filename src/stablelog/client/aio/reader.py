"""A reader of whole transactions, for asyncio programs. `AsyncClient.read` makes it."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from types import TracebackType
from typing import Self

from stablelog.client.aio.cancelling import to_the_end
from stablelog.client.aio.cluster import AsyncCluster
from stablelog.client.base_reader import BaseReader
from stablelog.client.cluster_pool import ClusterPool
from stablelog.client.core.arguments import BATCH_RECORDS, COLLECT_S, batch_limits
from stablelog.client.core.transaction_reader import ReaderSelection
from stablelog.client.core.transaction_stream import CommittedTransaction


class AsyncReader(BaseReader[AsyncCluster], AsyncIterator[CommittedTransaction]):
    """An asynchronous iterator of whole transactions. `AsyncClient.read` makes it. Only one task at a time may use it.

    The iteration ends when no transaction comes within the reader's time limit. The program may then begin another
    iteration. After an error or a cancellation, the next call continues at `position`, after the last transaction that
    the program has got. `close`, or the end of an `async with` block, returns the connections to the client.

    Args:
        clusters: the client's pool of cluster objects, which hold the connections to the brokers.
        selection: the arguments of `AsyncClient.read`: which topics to read, and how.
        check_loop: raises UsageError in an event loop that is not that of the client.
    """

    def __init__(
        self, clusters: ClusterPool[AsyncCluster], selection: ReaderSelection, check_loop: Callable[[], None]
    ) -> None:
        super().__init__(clusters, selection)
        self._check_loop = check_loop

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> CommittedTransaction:
        self._check_loop()
        with self._calls.lock_if_free():
            if not self._given and not await self._read():
                raise StopAsyncIteration
            return self._next_transaction()

    def batches(
        self, max_records: int = BATCH_RECORDS, max_wait: float = COLLECT_S
    ) -> AsyncGenerator[list[CommittedTransaction], None]:
        """Return an iterator of batches: lists of whole transactions.

        A batch is complete when the next transaction would bring it above `max_records`, or `max_wait` seconds after
        its first transaction came. A larger transaction is a batch of its own. The iteration ends when no transaction
        comes within the reader's time limit. `position` is after the last batch that the program has got.

        Args:
            max_records: the maximum number of records in a batch.
            max_wait: for how many seconds a batch waits for more transactions. With 0, it contains only the
                transactions that are available without a wait.

        Raises:
            TypeError: an argument has a wrong type.
            UsageError: an argument is out of range.
        """
        return self._batches(*batch_limits(max_records, max_wait))

    async def _batches(
        self, max_records: int, max_wait: float
    ) -> AsyncGenerator[list[CommittedTransaction], None]:
        self._check_loop()
        while batch := await self._next_batch(max_records, max_wait):
            yield batch

    async def _next_batch(self, max_records: int, max_wait: float) -> list[CommittedTransaction]:
        with self._calls.lock_if_free():
            return await self._batch(max_records, max_wait)

    async def _batch(self, max_records: int, max_wait: float) -> list[CommittedTransaction]:
        if not self._given and not await self._read():
            return []
        until, wait_s = time.monotonic() + max_wait, self._core.wait_s
        count, size = 1, self._record_count(0)
        try:
            while size < max_records:
                left_s = until - time.monotonic()
                self._core.wait_s = max(0.0, left_s)
                is_late = left_s < 0 and max_wait > 0
                if is_late or (len(self._given) == count and not await self._read()):
                    break
                size += self._record_count(count)
                if size > max_records:
                    break
                count += 1
        finally:
            self._core.wait_s = wait_s
        return [self._next_transaction() for _ in range(count)]

    async def close(self) -> None:
        """Close the reader: return its connections to the client. `position` can still be asked for."""
        self._return_cluster()
        if self._calls.is_running and self._cluster is not None:
            self._cluster.cancel()  # the call ends at once

    aclose = close  # the name that `contextlib.aclosing` calls

    async def _read(self) -> bool:
        """Read one more transaction, and store it for the program. Return True if there is one, and False if none came
        within the reader's time limit.
        """
        cluster, steps = self._current_steps()
        try:
            _, given = await to_the_end(cluster.advance(steps), cluster.cancel)
        except BaseException as error:
            self._restart_after(error)
            raise
        return self._take_item(given)
