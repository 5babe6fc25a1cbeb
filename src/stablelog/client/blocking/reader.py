"""A reader of whole transactions, for programs with threads. `Client.read` makes it."""

import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Self

from stablelog.client.base_reader import BaseReader
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core.arguments import BATCH_RECORDS, COLLECT_S, batch_limits
from stablelog.client.core.transaction_stream import CommittedTransaction


class Reader(BaseReader[BlockingCluster], Iterator[CommittedTransaction]):
    """An iterator of whole transactions. `Client.read` makes it. Only one thread at a time may use it.

    The iteration ends when no transaction comes within the reader's time limit. The program may then begin another
    iteration. After an error, the next call continues at `position`, after the last transaction that the program has
    got. `close`, or the end of a `with` block, returns the connections to the client.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> CommittedTransaction:
        with self._calls.lock_if_free():
            if not self._given and not self._read():
                raise StopIteration
            return self._next_transaction()

    def batches(
        self, max_records: int = BATCH_RECORDS, max_wait: float = COLLECT_S
    ) -> Generator[list[CommittedTransaction], None, None]:
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

    def _batches(
        self, max_records: int, max_wait: float
    ) -> Generator[list[CommittedTransaction], None, None]:
        while batch := self._next_batch(max_records, max_wait):
            yield batch

    def _next_batch(self, max_records: int, max_wait: float) -> list[CommittedTransaction]:
        with self._calls.lock_if_free():
            return self._batch(max_records, max_wait)

    def _batch(self, max_records: int, max_wait: float) -> list[CommittedTransaction]:
        if not self._given and not self._read():
            return []
        until, wait_s = time.monotonic() + max_wait, self._core.wait_s
        count, size = 1, self._record_count(0)
        try:
            while size < max_records:
                left_s = until - time.monotonic()
                self._core.wait_s = max(0.0, left_s)
                is_late = left_s < 0 and max_wait > 0
                if is_late or (len(self._given) == count and not self._read()):
                    break
                size += self._record_count(count)
                if size > max_records:
                    break
                count += 1
        finally:
            self._core.wait_s = wait_s
        return [self._next_transaction() for _ in range(count)]

    def close(self) -> None:
        """Close the reader: return its connections to the client. `position` can still be asked for."""
        self._return_cluster()

    def _read(self) -> bool:
        """Read one more transaction, and store it for the program. Return True if there is one, and False if none came
        within the reader's time limit.
        """
        cluster, steps = self._current_steps()
        try:
            _, given = cluster.advance(steps)
        except BaseException as error:
            self._restart_after(error)
            raise
        return self._take_item(given)
