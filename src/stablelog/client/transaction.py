"""A transaction for programs with threads. Each record has a future. Either all futures succeed or all fail."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stablelog.client.positions import Position
from stablelog.client.record_buffer import Headers
from stablelog.client.writing import Committed, Outcome, Writing

if TYPE_CHECKING:
    import asyncio


class Transaction:
    """A transaction of one writer. `Client.transaction` makes it. Several threads may write into it.

    As a context manager, the transaction commits at the end of the block, and aborts if the block raises.

    Args:
        begin: a function that makes the object `writing`. The function gets a callback, and the object calls this
            callback once, with the outcome of the transaction.

    Attributes:
        writing: the object that sends the records and ends the transaction. This class, and
            not that object, has the futures of the records.
    """

    def __init__(self, begin: Callable[[Callable[[Outcome], None]], Writing]) -> None:
        self._futures: list[Future[Position]] = []
        self.writing = begin(self._tell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.writing.leave(error)

    def write(
        self,
        topic: str,
        key: bytes | str | None = None,
        value: bytes | str | None = None,
        *,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> "Future[Position]":
        """Write a record. The returned future is done when the transaction has ended, and not before.

        Args:
            topic: created if it is missing and the broker creates topics automatically.
            key: text is written as UTF-8.
            value: text is written as UTF-8.
            headers: names and values, as pairs or as a mapping; text in a value is written as UTF-8.
            partition: by default the one that Kafka's Java producer would choose for the key; without a key,
                round-robin.
            timestamp_ms: by default the current time.

        Returns:
            A future. Its result is the record's position after a commit; it fails if the transaction is aborted.

        Raises:
            RefusedError: the transaction had ended; or this call aborted it and failed all futures, because the broker
                has ended it or no broker accepted its batches within the deadline; or the topic or partition does not
                exist.
            UnavailableError: no broker responds to the request for the topic's metadata. Nothing was written.
        """
        with self.writing.turn:
            self.writing.make_ready(topic)
            self.writing.put(topic, key, value, headers, partition, timestamp_ms)
            future: Future[Position] = Future()
            # Mark the future as running, because a caller cannot cancel one record of a transaction.
            future.set_running_or_notify_cancel()
            self._futures.append(future)
            if self.writing.records.is_due:
                self.writing.send_due()
        return future

    def commit(self) -> Committed:
        """Commit all records that were written. The call may be repeated after any failure and then returns the same
        result.

        Returns:
            The commit sequence, and the positions of the records that were written first and last.

        Raises:
            RefusedError: the transaction is aborted, and all futures have failed.
            UnavailableError: it is unknown whether the transaction is committed, or at which positions. Repeat the
                call, or call `abort`. Until then the futures are not done.
            DataLossError: the transaction is committed, but its records were removed before their positions were
                known.
        """
        return self.writing.commit()

    def abort(self) -> None:
        """Abort the transaction: all futures fail. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            UnavailableError: its commit was requested, and it is unknown whether it is committed.
        """
        self.writing.abort()

    def _tell(self, outcome: Outcome) -> None:
        futures, self._futures = self._futures, []
        settle(futures, outcome)


def settle(futures: "Sequence[Future[Position] | asyncio.Future[Position]]", outcome: Outcome) -> None:
    """Set the futures of a transaction to its outcome. A future that the program has cancelled stays cancelled."""
    if isinstance(outcome, list):
        for future, position in zip(futures, outcome, strict=True):
            if not future.cancelled():
                future.set_result(position)
        return
    for future in futures:
        if not future.cancelled():
            future.set_exception(outcome)
            # Mark the exception as retrieved, because the call that ends the transaction raises it, too.
            future.exception()
