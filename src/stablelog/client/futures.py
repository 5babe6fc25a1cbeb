"""The futures of the records of a transaction. All of them are done when the transaction has ended, and not before.

A future refers to an object for the end of its transaction and to one for its partition, and has the number of its
record among those of the partition. The position of the record is computed when the program asks for it. So nothing is
stored for a record whose future the program has dropped, except for its bytes until they are sent.
"""

import logging
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from stablelog.client.core.arguments import function, timeout_seconds
from stablelog.client.core.outcomes import Committed, Outcome
from stablelog.client.core.positions import Position
from stablelog.client.core.record_buffer import ManyRecords, PartitionBuffer
from stablelog.errors import UsageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Generator
    from types import TracebackType

_log = logging.getLogger("stablelog.client")
ResultT = TypeVar("ResultT")


class TransactionEnd:
    """The end of a transaction, for which all futures of the transaction wait.

    An exception of a signal handler, such as KeyboardInterrupt, may interrupt `announce` at any line; the next call of
    `announce` does the rest. No method waits for a lock, because a signal handler that calls one may have interrupted
    another one.

    Args:
        loop: the event loop in which the futures are used; None for the futures of threads.

    Attributes:
        loop: the event loop in which the futures are used; None for the futures of threads.
        outcome: the outcome of the transaction: committed, or the error with which its futures fail; None while it is
            not known.
        traceback: the traceback of an outcome that is an error, as it was when the transaction ended.
    """

    __slots__ = ("_callbacks", "_waiting", "loop", "outcome", "traceback")

    def __init__(self, loop: "asyncio.AbstractEventLoop | None" = None) -> None:
        self.loop = loop
        self.outcome: Outcome | None = None
        self.traceback: TracebackType | None = None
        self._waiting: dict[Callable[[], object], None] = {}  # in the order of the calls of `wake`
        self._callbacks: deque[Callable[[], object]] = deque()

    def set_outcome(self, outcome: Outcome) -> None:
        """Set the outcome of the transaction. From now on all futures are done."""
        if self.outcome is None:
            if isinstance(outcome, BaseException):
                self.traceback = outcome.__traceback__
            self.outcome = outcome

    @property
    def is_announced(self) -> bool:
        """Whether nothing is left for `announce` to do: the transaction has ended, all waiting threads or tasks are
        woken, and all callbacks are called.
        """
        return self.outcome is not None and not self._waiting and not self._callbacks

    def announce(self) -> None:
        """If the transaction has ended, wake the threads that wait for its end, and call the callbacks."""
        self.wake_waiters()
        while self.outcome is not None and self._callbacks:
            self._callbacks.popleft()()

    def wake_waiters(self) -> None:
        """If the transaction has ended, wake the threads or tasks that wait for its end (the waiters)."""
        for waker in list(self._waiting) if self.outcome is not None else ():
            waker()
            self.remove_waker(waker)

    def call_at_end(self, callback: Callable[[], object]) -> None:
        """Call a function when the transaction has ended; at once if it has ended already."""
        self._callbacks.append(callback)
        if self.outcome is not None:
            with suppress(ValueError):  # `settle` has called it
                self._callbacks.remove(callback)
                callback()

    def add_waker(self, waker: Callable[[], object]) -> None:
        """Add a waker: a function that wakes a thread or task when the transaction has ended, unless `remove_waker` is
        called before. It may be called more than once.
        """
        self._waiting[waker] = None
        if self.outcome is not None:
            waker()

    def remove_waker(self, waker: Callable[[], object]) -> None:
        """Remove a function that `add_waker` has added."""
        self._waiting.pop(waker, None)

    def wait_for_end(self, timeout: float | None) -> None:
        """Block this thread until the transaction has ended.

        Raises:
            TimeoutError: the transaction has not ended within `timeout` seconds.
            TypeError: the timeout is no number.
            UsageError: the timeout is NaN.
        """
        seconds = timeout_seconds(timeout)
        if self.outcome is not None:
            return
        ended = threading.Lock()
        ended.acquire()

        def waker() -> None:
            with suppress(RuntimeError):  # it was released before
                ended.release()

        self.add_waker(waker)
        try:
            if not ended.acquire(timeout=-1 if seconds is None else seconds):
                raise TimeoutError(
                    "the transaction has not ended within the timeout: commit or abort it first"
                )
        finally:
            self.remove_waker(waker)


class TransactionFuture(Generic[ResultT]):
    """The base of all futures of the client. A future is done when its transaction has ended. A program cannot make a
    future, and cannot cancel one.
    """

    __slots__ = ("_end",)
    _end: TransactionEnd

    @abstractmethod
    def _result(self) -> ResultT:
        """Return the result of the future. Called only when the transaction is committed."""

    @abstractmethod
    def _what(self) -> str:
        """Return words that name the record or records of the future, such as their partition, for `repr`."""

    def _shown_result(self) -> str:
        """Return the result as text for `repr`. Called only when the transaction is committed."""
        return repr(self._result())

    def __repr__(self) -> str:
        outcome = self._end.outcome
        if outcome is None:
            state = "pending"
        else:
            state = self._shown_result() if isinstance(outcome, Committed) else repr(outcome)
        return f"<{type(self).__name__} of {self._what()}: {state}>"

    def done(self) -> bool:
        """Whether the transaction has ended."""
        return self._end.outcome is not None

    def _error(self) -> BaseException | None:
        outcome = self._end.outcome
        return outcome if isinstance(outcome, BaseException) else None

    def _value(self) -> ResultT:
        outcome = self._end.outcome
        if isinstance(outcome, BaseException):
            raise outcome.with_traceback(self._end.traceback)  # without those of earlier calls
        return self._result()


class RecordFuture(TransactionFuture[Position]):
    """A future of one record. Its result is the record's position.

    Args:
        end: the end of the transaction.
        records: the records that the transaction has written to the partition.
        number: the number of the record in `records`.
    """

    __slots__ = ("_number", "_records")

    def __init__(self, end: TransactionEnd, records: PartitionBuffer, number: int) -> None:
        self._end = end
        self._records = records
        self._number = number

    def _result(self) -> Position:
        return self._records.position(self._number)

    def _what(self) -> str:
        topic, partition = self._records.target
        return f"a record in {topic}-{partition}"


class RecordsFuture(TransactionFuture[list[Position]]):
    """A future of the records of one call of `write_many`. Its result is the list of their positions.

    Args:
        end: the end of the transaction.
        many: the records of the call, in their order.
    """

    __slots__ = ("_many",)

    def __init__(self, end: TransactionEnd, many: ManyRecords) -> None:
        self._end = end
        self._many = many

    def __len__(self) -> int:
        return len(self._many.order)

    def _result(self) -> list[Position]:
        return self._many.positions()

    def _what(self) -> str:
        return f"{len(self)} records"

    def _shown_result(self) -> str:
        positions = self._result()
        return f"{positions[0]} to {positions[-1]}" if len(positions) > 1 else repr(positions)


class ThreadFuture(TransactionFuture[ResultT]):
    """The methods of the futures of the blocking client. Several threads may use a future."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> ResultT:
        """Wait until the transaction has ended, and return the result. This sends no request.

        Args:
            timeout: how many seconds to wait; None for no limit.

        Raises:
            TimeoutError: the transaction has not ended in time.
            TypeError: the timeout is no number.
            UsageError: the timeout is NaN.
            RefusedError: the transaction is aborted.
            DataLossError: the transaction is committed, but its records were removed before their positions were known.
        """
        self._end.wait_for_end(timeout)
        return self._value()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait until the transaction has ended, and return the error that `result` raises; None after a commit.

        Args:
            timeout: how many seconds to wait; None for no limit.

        Raises:
            TimeoutError: the transaction has not ended in time.
            TypeError: the timeout is no number.
            UsageError: the timeout is NaN.
        """
        self._end.wait_for_end(timeout)
        return self._error()

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Call a function with this future when the transaction has ended, in the thread that ends it; at once if it
        has ended. If no call of the program ends the transaction, but its timeout does, a thread of the client calls
        the function. An exception of the function is logged.

        Args:
            callback: the function. It should be short.

        Raises:
            TypeError: the callback is no function.
        """
        function("callback", callback)

        def call() -> None:
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - the function is the program's
                _log.exception("the callback %r of %r has failed", callback, self)

        self._end.call_at_end(call)


class LoopFuture(TransactionFuture[ResultT]):
    """The methods of the futures of the asyncio client. A future is used in the event loop of its transaction."""

    __slots__ = ()

    def __await__(self) -> "Generator[Any, None, ResultT]":
        """Wait until the transaction has ended, and return the result. This sends no request.

        Raises:
            RefusedError: the transaction is aborted.
            DataLossError: the transaction is committed, but its records were removed before their positions were known.
            UsageError: this is another event loop than that of the transaction.
        """
        self._check_loop()
        if self._end.outcome is None:
            yield from self._end_of_transaction().__await__()
        return self._value()

    async def _end_of_transaction(self) -> None:
        from asyncio import get_running_loop

        ended: asyncio.Future[None] = get_running_loop().create_future()

        def waker() -> None:
            if not ended.done():
                ended.set_result(None)

        self._end.add_waker(waker)
        try:
            await ended
        finally:
            self._end.remove_waker(waker)

    def _check_loop(self) -> None:
        from asyncio import get_running_loop

        if self._end.loop is not None and get_running_loop() is not self._end.loop:
            raise UsageError(
                "the transaction of this future was begun in another event loop, and only that loop can "
                "wake tasks that wait for the future: use the future there"
            )

    def result(self) -> ResultT:
        """Return what `await` of this future returns, without waiting.

        Raises:
            asyncio.InvalidStateError: the transaction has not ended yet.
            RefusedError: the transaction is aborted.
            DataLossError: the transaction is committed, but its records were removed before their positions were known.
        """
        self._check_done()
        return self._value()

    def exception(self) -> BaseException | None:
        """Return the error that `await` of this future raises; None after a commit.

        Raises:
            asyncio.InvalidStateError: the transaction has not ended yet.
        """
        self._check_done()
        return self._error()

    def _check_done(self) -> None:
        if self._end.outcome is None:
            from asyncio import InvalidStateError

            raise InvalidStateError("the transaction has not ended yet: await the future")

    def add_done_callback(self, callback: Callable[[Self], object]) -> None:
        """Let the event loop call a function with this future when the transaction has ended.

        Args:
            callback: the function.

        Raises:
            TypeError: the callback is no function.
            UsageError: this is another event loop than that of the transaction.
        """
        function("callback", callback)
        from asyncio import get_running_loop

        self._check_loop()
        loop = get_running_loop()
        self._end.call_at_end(lambda: loop.call_soon(callback, self))


class WriteFuture(RecordFuture, ThreadFuture[Position]):
    """The future of the record that `Transaction.write` has written. Its result is the position of the record."""

    __slots__ = ()


class WriteManyFuture(RecordsFuture, ThreadFuture[list[Position]]):
    """The future of the records that `Transaction.write_many` has written. Its result is the list of their positions."""

    __slots__ = ()


class AsyncWriteFuture(RecordFuture, LoopFuture[Position]):
    """The future of the record that `AsyncTransaction.write` has written. Its result is the position of the record."""

    __slots__ = ()


class AsyncWriteManyFuture(RecordsFuture, LoopFuture[list[Position]]):
    """The future of the records that `AsyncTransaction.write_many` has written. Its result is the list of their
    positions.
    """

    __slots__ = ()
