"""A reader of whole transactions of the blocking client."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from stablelog.client.cluster import Cluster
from stablelog.client.core.reading import CommittedTransaction
from stablelog.client.readers import BaseReader


class Reader(BaseReader[Cluster], Iterator[CommittedTransaction]):
    """An iterator of whole transactions. `Client.read` makes it; one thread at a time uses it.

    The iteration ends when no transaction comes within the reader's time limit. The reader then lives on: another
    iteration goes on. After an error, the next call goes on from the position, too. `close`, or the end of a `with`
    block, gives the connections back to the client.
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
        if not self._given and not self._read():
            raise StopIteration
        return self._hand_over()

    def close(self) -> None:
        """Give the connections back to the client. The position remains."""
        self._end()

    def _read(self) -> bool:
        """Read one more transaction. Return False if there was none within the time limit."""
        cluster, steps = self._begun()
        try:
            _, given = cluster.advance(steps)
        except BaseException:
            self._begin_again()
            raise
        return self._take(given)
