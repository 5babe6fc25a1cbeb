"""The futures of a transaction's records. All succeed, or all fail."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from stablelog.client.core.outcomes import Outcome
from stablelog.client.core.positions import Position

if TYPE_CHECKING:
    import asyncio

FutureT = TypeVar("FutureT", "Future[Position]", "asyncio.Future[Position]")


class RecordFutures(Generic[FutureT]):
    """The futures of the records of one transaction, in the order of the records.

    An exception of a signal handler, such as KeyboardInterrupt, may interrupt each method at any line. The next call
    then continues: no future is left, and none gets the position of another record.
    """

    def __init__(self) -> None:
        self._futures: list[FutureT] = []
        self._outcome: Outcome | None = None
        self._settled_count = 0

    @property
    def is_settled(self) -> bool:
        """Whether all futures are done."""
        return self._outcome is not None and self._settled_count >= len(self._futures)

    def add(self, future: FutureT, index: int) -> None:
        """Add the future of the record with this number. A future of an interrupted call, whose record was not added,
        is dropped.
        """
        del self._futures[index:]
        self._futures.append(future)

    def decide(self, outcome: Outcome) -> None:
        """Note the outcome of the transaction."""
        if self._outcome is None:
            self._outcome = outcome

    def settle(self) -> None:
        """Set the futures to the outcome. A future that the program has cancelled stays cancelled."""
        if self._outcome is None:
            return
        while self._settled_count < len(self._futures):
            future = self._futures[self._settled_count]
            if not future.done():
                self._set(future, self._outcome)
            self._settled_count += 1

    def _set(self, future: FutureT, outcome: Outcome) -> None:
        if not isinstance(outcome, list):
            future.set_exception(outcome)
            # Mark the exception as retrieved, because the call that ends the transaction raises it, too.
            future.exception()
        elif self._settled_count < len(outcome):
            future.set_result(cast("Sequence[Position]", outcome)[self._settled_count])
        else:  # the record of an interrupted call, which was not added and whose future the program does not have
            future.cancel()
