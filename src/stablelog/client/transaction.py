"""A transaction for programs with threads. Each record has a future. Either all futures succeed or all fail."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from stablelog.client.cluster import Cluster
from stablelog.client.core.outcomes import Committed, Outcome
from stablelog.client.core.positions import Position
from stablelog.client.core.record_buffer import Headers
from stablelog.client.core.steps import Result, Steps
from stablelog.client.core.writing import Writing
from stablelog.errors import OutcomeUnknownError

if TYPE_CHECKING:
    import asyncio


class Transaction:
    """A transaction of one writer. `Client.transaction` makes it. Several threads may write into it.

    As a context manager, the transaction commits at the end of the block, and aborts if the block raises.

    Args:
        begin: a function that makes the object `writing`, and the cluster that runs its steps. The function gets a
            callback, and the object calls this callback once, with the outcome of the transaction.
        on_end: called once, when the transaction has ended.

    Attributes:
        writing: decides what is sent and how the transaction ends. This class, and not that object, has the futures of
            the records.
        run: runs steps of `writing`.
    """

    def __init__(
        self,
        begin: Callable[[Callable[[Outcome], None]], tuple[Cluster, Writing]],
        on_end: "Callable[[Transaction], None]",
    ) -> None:
        self._futures: list[Future[Position]] = []
        self._on_end = on_end
        # Held while a call waits for a broker. Reentrant, because a future's callback may call `commit` again.
        self._turn = threading.RLock()
        cluster, self.writing = begin(self._tell)
        self.run = cluster.run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._turn:
            self._call(self.writing.leave(error))

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
            topic: the topic's name. It is never created by a write.
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
        with self._turn:
            if not self.writing.is_ready(topic, time.monotonic()):
                self._call(self.writing.make_ready(topic))
            timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
            self.writing.put(topic, key, value, headers, partition, timestamp_ms)
            future: Future[Position] = Future()
            # Mark the future as running, because a caller cannot cancel one record of a transaction.
            future.set_running_or_notify_cancel()
            self._futures.append(future)
            if self.writing.records.is_due:
                self._call(self.writing.send_due())
        return future

    def commit(self) -> Committed:
        """Commit all records that were written. The call may be repeated after any failure and then returns the same
        result.

        Returns:
            The commit sequence, and the positions of the records that were written first and last.

        Raises:
            RefusedError: the transaction is aborted, and all futures have failed.
            OutcomeUnknownError: it is unknown whether the transaction is committed, or at which positions. Repeat the
                call, or call `abort`. Until then the futures are not done.
            DataLossError: the transaction is committed, but its records were removed before their positions were
                known.
        """
        with self._turn:
            return self._call(self.writing.commit())

    def abort(self) -> None:
        """Abort the transaction: all futures fail. A transaction that is aborted already stays aborted.

        Raises:
            RefusedError: the transaction is committed.
            OutcomeUnknownError: its commit was requested, and it is unknown whether it is committed.
        """
        with self._turn:
            self._call(self.writing.abort())

    def _call(self, steps: Steps[Result]) -> Result:
        """Run steps of `writing`. An error about an unknown outcome names this transaction."""
        try:
            return self.run(steps)
        except OutcomeUnknownError as unknown:
            unknown.transaction = self
            raise

    @property
    def deadline(self) -> float:
        """The time (`time.monotonic`) at which the transaction is aborted if it is open."""
        return self.writing.deadline

    def expire(self) -> bool:
        """Abort the transaction at its deadline if it is open. Never waits. Return False, without an abort, if another
        call is in progress.
        """
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self.writing.expire()
            return True
        finally:
            self._turn.release()

    def _tell(self, outcome: Outcome) -> None:
        self._on_end(self)
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
