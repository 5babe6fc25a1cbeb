"""Whose time is up, and which open producer is the least, without looking at all of them?

Both answers come from heaps that are cleaned when they are read. A heap holds at most one live entry for each
member, however often the member changes, so memory follows the number of ids, not the number of transactions.
"""

import heapq


class Deadlines:
    """When to look at a transactional id again. Times may be too early, never too late."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._at_ms: dict[str, int] = {}

    def watch(self, transactional_id: str, at_ms: int) -> None:
        """Have the id come up at `at_ms`, or before."""
        known_ms = self._at_ms.get(transactional_id)
        if known_ms is None or at_ms < known_ms:
            self._at_ms[transactional_id] = at_ms
            heapq.heappush(self._heap, (at_ms, transactional_id))

    def due(self, now_ms: int, count_max: int) -> list[str]:
        """Take out ids that are due, at most `count_max`. Whoever is still wanted must be watched again."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < count_max:
            at_ms, transactional_id = heapq.heappop(self._heap)
            if self._at_ms.get(transactional_id) == at_ms:
                del self._at_ms[transactional_id]
                found.append(transactional_id)
        return found

    def __len__(self) -> int:
        return len(self._heap)


class OpenProducers:
    """The producer ids with an open transaction."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._heap: list[int] = []
        self._queued: set[int] = set()

    def add(self, producer_id: int) -> None:
        """The producer has an open transaction."""
        self._open.add(producer_id)
        if producer_id not in self._queued:
            self._queued.add(producer_id)
            heapq.heappush(self._heap, producer_id)

    def discard(self, producer_id: int) -> None:
        """The producer has none any more."""
        self._open.discard(producer_id)

    def least(self) -> int | None:
        """The least of them; None if there is none."""
        while self._heap and self._heap[0] not in self._open:
            self._queued.discard(heapq.heappop(self._heap))
        return self._heap[0] if self._heap else None

    def __len__(self) -> int:
        return len(self._open)
