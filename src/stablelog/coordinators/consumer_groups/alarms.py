"""Which deadline comes next?

A deadline that is put off, as every heartbeat does, costs nothing: its entry stays where it is in the heap
and is moved on when its old time comes. So the heap holds about one entry per alarm, however many heartbeats
there are.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Any

COMPACT_SIZE_MIN = 64


class Alarm:
    """Something to be done when its time comes. Set, put off and cancelled through `Alarms`.

    Attributes:
        action: what is called with whatever `Alarms`' owner hands to it.
        deadline_ms: when; None while it is not set.
        queued_ms: the time of its entry in the heap; None if it has none. Never later than the deadline.
    """

    __slots__ = ("action", "deadline_ms", "queued_ms")

    def __init__(self, action: Callable[..., Any]) -> None:
        self.action = action
        self.deadline_ms: int | None = None
        self.queued_ms: int | None = None


class Alarms:
    """All alarms of a coordinator, by deadline; of one deadline, in the order in which they were queued."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Alarm]] = []
        self._sequence = itertools.count()
        self._set_count = 0

    def set(self, alarm: Alarm, deadline_ms: int) -> None:
        """Let the alarm go off at `deadline_ms`, and not at its former deadline."""
        if alarm.deadline_ms is None:
            self._set_count += 1
        alarm.deadline_ms = deadline_ms
        if alarm.queued_ms is None or deadline_ms < alarm.queued_ms:
            self._queue(alarm, deadline_ms)

    def cancel(self, alarm: Alarm) -> None:
        """Let the alarm not go off."""
        if alarm.deadline_ms is not None:
            alarm.deadline_ms = None
            self._set_count -= 1

    def end(self, alarm: Alarm) -> None:
        """Let the alarm never go off again. It forgets its owner, with which it would be a cycle."""
        self.cancel(alarm)
        alarm.action = _nothing

    def next_deadline_ms(self) -> int | None:
        """When the next alarm goes off; None if none is set."""
        self._settle_top()
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> Alarm | None:
        """Take out the next alarm that is due. It is not set any more then."""
        self._settle_top()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        _, _, alarm = heapq.heappop(self._heap)
        alarm.queued_ms = None
        self.cancel(alarm)
        return alarm

    def _queue(self, alarm: Alarm, deadline_ms: int) -> None:
        alarm.queued_ms = deadline_ms
        heapq.heappush(self._heap, (deadline_ms, next(self._sequence), alarm))
        if len(self._heap) > COMPACT_SIZE_MIN + 2 * self._set_count:
            self._compact()

    def _settle_top(self) -> None:
        """Bring the top of the heap to an entry that holds: its alarm is set, for this very time."""
        while self._heap:
            queued_ms, _, alarm = self._heap[0]
            if alarm.queued_ms == queued_ms == alarm.deadline_ms:
                return
            heapq.heappop(self._heap)
            if alarm.queued_ms != queued_ms:
                continue  # it was set to an earlier time since, and has another entry
            alarm.queued_ms = None
            if alarm.deadline_ms is not None:
                self._queue(alarm, alarm.deadline_ms)

    def _compact(self) -> None:
        """Drop the entries of cancelled alarms."""
        kept: list[tuple[int, int, Alarm]] = []
        for queued_ms, sequence, alarm in self._heap:
            if alarm.queued_ms != queued_ms:
                continue
            if alarm.deadline_ms is None:
                alarm.queued_ms = None
            else:
                kept.append((queued_ms, sequence, alarm))
        heapq.heapify(kept)
        self._heap = kept


def _nothing(*_arguments: object) -> None:
    pass
