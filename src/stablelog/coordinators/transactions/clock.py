"""Deadlines of transactional ids: which ids are due, without a look at all of them.

The answer comes from a heap that is cleaned when it is read. The heap holds at most one live entry for each id,
however often its deadline changes, so memory follows the number of ids, not the number of transactions.
"""

import heapq
from typing import Final

SLACK: Final = 64  # entries of forgotten ids that are not worth the work of removing them


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

    def forget(self, transactional_id: str) -> None:
        """The id is gone. Memory follows the ids that are watched."""
        self._at_ms.pop(transactional_id, None)
        if len(self._heap) > 2 * len(self._at_ms) + SLACK:
            self._heap = [(at_ms, key) for key, at_ms in self._at_ms.items()]
            heapq.heapify(self._heap)

    def due(self, now_ms: int, count_max: int) -> list[str]:
        """Take out ids that are due, at most `count_max`. Whoever is still wanted must be watched again."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < count_max:
            at_ms, transactional_id = heapq.heappop(self._heap)
            if self._at_ms.get(transactional_id) == at_ms:
                del self._at_ms[transactional_id]
                found.append(transactional_id)
        return found

    def is_due(self, now_ms: int) -> bool:
        """Whether `due` would take something out."""
        return bool(self._heap) and self._heap[0][0] <= now_ms

    def __len__(self) -> int:
        return len(self._heap)
