"""Limits the bytes that a process transfers to or from an object store at the same time, and adapts the limit to the
speed of the link.

The speed is not known in advance. If many large requests share a slow link, none of them ends within its time limit,
and the bytes already transferred are lost. So there is a *window*, a limit of the bytes that are transferred at the
same time. It becomes half as large after a request that timed out or took long, and twice as large after quick
requests. A request that is larger than the window is divided, so that finished parts are kept.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from stablelog.errors import StoreError

MIB: Final = 1 << 20
IDLE_S: Final = 20.0  # A request fails if no byte comes from the store for this time.
QUICK_S, LONG_S = 1.0, 5.0  # Requests that take less time, or more, change the window.
RATE_MAX: Final = 8 * MIB  # bytes a second
# A link of 64 KiB a second is the slowest one that is supported. The time limit of a write is that of a quarter of it.
RATE_MIN: Final = 16 << 10
# The time of a smaller request says nothing about the rate. It needs no longer limit than IDLE_S over any link.
TELLING_SIZE: Final = MIB
POLL_S: Final = 0.1  # A waiting thread notices after this time that the process stops.


class TransferWindow:
    """The window: the limit of the bytes that are transferred in one direction (to or from the store) at the same time.
    Any thread may use it.

    Args:
        size_min: the least size of the window, in bytes.
        size: its size at the beginning.
        size_max: its greatest size.
        now_s: returns the time in seconds of a clock that is never set back.

    Attributes:
        size: the present size of the window, in bytes.
        rate: a cautious estimate of the speed of the link, in bytes per second: a quarter of the measured speed.
    """

    def __init__(self, size_min: int, size: int, size_max: int, now_s: Callable[[], float]) -> None:
        self._size_min, self._size_max = size_min, size_max
        self._now_s = now_s
        self.size = size
        self.rate = RATE_MAX
        self._under_way = 0
        self._changed_s = now_s()
        self._changed = threading.Condition()

    def limit_s(self, size: int) -> float:
        """Return the time limit in seconds of a write of `size` bytes, by the estimated speed of the link."""
        return IDLE_S + size / self.rate

    @contextmanager
    def reserve(
        self, size: int, last_s: Callable[[], float], *, total: int | None = None
    ) -> Iterator[Callable[[], None]]:
        """Context for a request of this size, which is sent in the `with` block. The context first waits until the
        window (the limit of bytes that are transferred at the same time) has room for the request. At its end, it
        adapts the window to the time that the request took.

        Args:
            size: how many bytes of the request are transferred at the same time. A request that is larger than the
                window waits until no other request is being transferred.
            last_s: returns the time after which no request begins.
            total: the size of the whole request in bytes, if only a part of it is transferred at a time; None
                otherwise.

        Yields:
            A function that the caller calls if the request times out.

        Raises:
            StoreError: the time of `last_s` has passed.
        """
        with self._changed:
            while self._under_way and self._under_way + size > self.size:
                if self._now_s() > last_s():
                    raise StoreError("a request to the object store was not sent, because the broker stops")
                self._changed.wait(POLL_S)
            self._under_way += size
        begun_s = self._now_s()
        is_done = False
        try:
            yield lambda: self._timed_out(begun_s)
            is_done = True
        finally:
            with self._changed:
                if is_done:
                    self._request_ended(size, max(total or 0, size, 1), begun_s)
                self._under_way -= size
                self._changed.notify_all()

    def _request_ended(self, size: int, total: int, begun_s: float) -> None:
        """Adapt the window (the limit of bytes that are transferred at the same time) and the estimated rate to a
        request of `total` bytes, at most `size` of them at the same time, that began at `begun_s` and has ended now.
        """
        took_s = max(self._now_s() - begun_s, 1e-6)
        # The time of the bytes that were under way together.
        turn_s = took_s * size / total
        if turn_s < QUICK_S and self._under_way > self.size // 2:
            self.size = min(2 * self.size, self._size_max)
        if total < TELLING_SIZE:
            return
        self.rate = int(min(max(total / took_s / 4, RATE_MIN), RATE_MAX))
        if turn_s > LONG_S:
            self._halve(begun_s)

    def _timed_out(self, begun_s: float) -> None:
        with self._changed:
            self.rate = max(self.rate // 2, RATE_MIN)
            self._halve(begun_s)

    def _halve(self, begun_s: float) -> None:
        # Requests that were under way together change the window once.
        if begun_s >= self._changed_s:
            self.size = max(self.size // 2, self._size_min)
            self._changed_s = self._now_s()
