"""Queue of deadlines: one deadline for each key, the earliest first.

To move a deadline to a later time is cheap: the entry in the heap keeps the earlier time at first. When the earlier
time comes, the entry gets the later time. So heartbeats and transactions, which move deadlines all the time, add no
entries, and the heap has about one entry for each key. Keys with the same deadline come in the order in which their
entries were added to the heap.
"""

import heapq
import itertools
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

# The heap is rebuilt when it has more than this number of entries plus two for each deadline.
COMPACT_SIZE_MIN: Final = 64
# The number of replaced and cancelled entries that one call removes from the beginning of the heap. A joint commit
# cancels the deadlines of thousands of children at a time.
SETTLED_AT_ONCE: Final = 1_000


class Deadlines(Generic[Key]):
    """One deadline for each key. The user of the queue decides what a key stands for. `len` is the number of entries in
    the heap.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._sequence = itertools.count()
        self._deadlines: dict[Key, int] = {}
        # By key: the time of the key's valid entry in the heap, which is never later than the key's deadline. All other
        # entries of the key in the heap are not valid: this entry, with an earlier time, has replaced them.
        self._queued: dict[Key, int] = {}

    def set(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of a key, in place of its former one."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._queue(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of a key, if it has one."""
        self._deadlines.pop(key, None)

    def get(self, key: Key) -> int | None:
        """The deadline of a key; None if it has none."""
        return self._deadlines.get(key)

    def next_ms(self) -> int | None:
        """The earliest deadline; None if there is none.

        If many deadlines were cancelled, the result may be too early.
        """
        self._settle_top()
        return self._heap[0][0] if self._heap else None

    def is_due(self, now_ms: int) -> bool:
        """Whether the deadline of any key has come. If many deadlines were cancelled, the result may be True although
        none has come: the caller then calls `due`, and asks again.
        """
        next_ms = self.next_ms()
        return next_ms is not None and next_ms <= now_ms

    def due(self, now_ms: int, count_max: int) -> Iterator[Key]:
        """Yield the keys whose deadlines have come, at most `count_max`.

        When the caller takes a key, its deadline is removed.
        """
        for _ in range(count_max):
            if not self.is_due(now_ms):
                return
            queued_ms, _, key = self._heap[0]
            if not self._is_valid(queued_ms, key):
                return
            heapq.heappop(self._heap)
            del self._queued[key], self._deadlines[key]
            yield key

    def __len__(self) -> int:
        return len(self._heap)

    def _queue(self, key: Key, deadline_ms: int) -> None:
        self._queued[key] = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, next(self._sequence), key))
        if len(self._heap) > COMPACT_SIZE_MIN + 2 * len(self._deadlines):
            # Drop the entries that have been replaced, and those of cancelled deadlines.
            self._heap = [e for e in self._heap if self._queued.get(e[2]) == e[0] and e[2] in self._deadlines]
            self._queued = {key: queued_ms for queued_ms, _, key in self._heap}
            heapq.heapify(self._heap)

    def _settle_top(self) -> None:
        """Remove or correct the first entry of the heap, until a valid entry is first, or SETTLED_AT_ONCE entries were
        removed.
        """
        for _ in range(SETTLED_AT_ONCE):
            if not self._heap:
                return
            queued_ms, _, key = self._heap[0]
            if self._is_valid(queued_ms, key):
                return
            heapq.heappop(self._heap)
            if self._queued.get(key) != queued_ms:
                continue
            del self._queued[key]
            deadline_ms = self._deadlines.get(key)
            if deadline_ms is not None:
                self._queue(key, deadline_ms)

    def _is_valid(self, queued_ms: int, key: Key) -> bool:
        """Whether an entry of the heap is the current entry of its key and has the time of the key's deadline."""
        return self._queued.get(key) == queued_ms == self._deadlines.get(key)
