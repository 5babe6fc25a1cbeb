"""One transaction for a program with threads: each record is a future, and all come true together or fail together."""

from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from stablelog.client.writing import Committed, Headers, Outcome, Position, Writing


class Transaction:
    """A transaction of one writer. Made by `Client.transaction`; several threads may write into it.

    As a context manager it commits when the block ends, and aborts if it ends by an exception.

    Args:
        begin: makes the transaction, given whom to tell what becomes of it.
    """

    def __init__(self, begin: Callable[[Callable[[Outcome], None]], Writing]) -> None:
        self._futures: list[Future[Position]] = []
        self._writing = begin(self._tell)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writing.leave(error)

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
        """Write a record. What it returns is done when the transaction has ended, and not before.

        Args:
            topic: where; it comes into being if the broker makes topics by being asked for them.
            key: text is written as UTF-8.
            value: as `key`.
            headers: names and values, as pairs or as a mapping; a value is as `key`.
            partition: by default the one that Kafka's Java producer would choose for the key; without a key, one
                after the other.
            timestamp_ms: by default now.

        Returns:
            A future: the record's position if the transaction commits; it fails if that is aborted.

        Raises:
            Refused: the transaction has ended, or it is aborted now, and all futures have failed: the broker has ended it,
                or none took what was written within the deadline. Or there is no such topic, or partition of it.
            Unavailable: no broker answers where the topic is asked for. Nothing was written.
        """
        with self._writing.turn:
            if not self._writing.is_ready(topic):
                self._writing.make_ready(topic)
            self._writing.put(topic, key, value, headers, partition, timestamp_ms)
            future: Future[Position] = Future()
            future.set_running_or_notify_cancel()  # a part of a transaction can't be called off
            self._futures.append(future)
            if self._writing.is_due:
                self._writing.send_due()
        return future

    def commit(self) -> Committed:
        """Commit what was written. May be asked again, after any failure, and answers the same.

        Returns:
            The commit's number, and the positions of the records that were written first and last.

        Raises:
            Refused: it is aborted, and all futures have failed.
            Unavailable: it is not known whether it is committed, or at which positions: ask again, or `abort`. Until
                then the futures wait.
            OffsetOutOfRange: it is committed, and the records have been removed before their positions were told.
        """
        return self._writing.commit()

    def abort(self) -> None:
        """Abort what was written: all futures fail. Nothing happens if it is aborted already.

        Raises:
            Refused: it is committed.
            Unavailable: its commit was asked for, and it is not known whether it is committed.
        """
        self._writing.abort()

    def _tell(self, outcome: Outcome) -> None:
        futures, self._futures = self._futures, []
        if isinstance(outcome, list):
            for future, position in zip(futures, outcome, strict=True):
                future.set_result(position)
        else:
            for future in futures:
                future.set_exception(outcome)
