"""Queue of deadlines: one deadline for each key (such as a transactional id or a member id), the earliest first.

Moving a deadline to a later time is cheap: the heap keeps the old entry with its earlier time. When that time comes,
the queue replaces the entry by one with the new deadline. So the heap has about one entry for each key, although
heartbeats and transactions move deadlines often. Keys with the same deadline come in the order in which their entries
were added.
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
CORRECTED_AT_ONCE: Final = 1_000


class DeadlineQueue(Generic[Key]):
    """A queue with one deadline for each key, such as a transactional id or a member id.

    `len` is the number of entries in the heap, which can be a little greater than the number of deadlines.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Key]] = []
        self._sequence = itertools.count()
        self._deadlines: dict[Key, int] = {}
        # By key: the time of the key's valid entry in the heap, which is never later than the key's deadline. All other
        # entries of the key in the heap are not valid: this entry, with an earlier time, has replaced them.
        self._queued: dict[Key, int] = {}

    def set(self, key: Key, deadline_ms: int) -> None:
        """Set the deadline of a key. It replaces an earlier deadline of the key."""
        self._deadlines[key] = deadline_ms
        queued_ms = self._queued.get(key)
        if queued_ms is None or deadline_ms < queued_ms:
            self._queue(key, deadline_ms)

    def cancel(self, key: Key) -> None:
        """Remove the deadline of a key. Do nothing if the key has none."""
        self._deadlines.pop(key, None)

    def get(self, key: Key) -> int | None:
        """Return the deadline of a key in milliseconds of broker time (which never goes back); None if the key has no
        deadline.
        """
        return self._deadlines.get(key)

    def next_ms(self) -> int | None:
        """Return the earliest deadline; None if there is none.

        If many deadlines were cancelled, the result may be a cancelled one that is earlier than all present deadlines.
        The caller is then called too early, and finds nothing to do.
        """
        self._correct_top()
        return self._heap[0][0] if self._heap else None

    def is_due(self, now_ms: int) -> bool:
        """Return whether any deadline has passed.

        If many deadlines were cancelled, the result may be True although no deadline has passed. `pop_due` then yields
        no key and removes cancelled entries, and the caller calls `is_due` again.
        """
        next_ms = self.next_ms()
        return next_ms is not None and next_ms <= now_ms

    def pop_due(self, now_ms: int, count_max: int) -> Iterator[Key]:
        """Remove the deadlines that have passed, at most `count_max` of them, and yield their keys, the earliest first.

        Each deadline is removed when the caller takes its key from the iterator.
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

    def _correct_top(self) -> None:
        """Correct the top of the heap until its first entry is valid: entries whose deadline was cancelled are removed,
        and those whose deadline was moved are replaced.

        Stop after CORRECTED_AT_ONCE entries, so that one call does not hold the event loop for long.
        """
        for _ in range(CORRECTED_AT_ONCE):
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
        """Return whether an entry of the heap, given by its time and its key, is valid: the newest entry of the key,
        with the present deadline of the key.
        """
        return self._queued.get(key) == queued_ms == self._deadlines.get(key)
