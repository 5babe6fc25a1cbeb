"""Mute: a time in which a connection begins no requests, because its client is above a quota, such as a limit of bytes
per second (KIP-219).
"""

import asyncio
from collections.abc import Callable

Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


class Mute:
    """The mute of one connection: the time during which none of its requests begins, because the client is above a
    quota.

    Args:
        later: calls a function after a number of seconds.
        on_end: called when the time is over, so that the connection begins requests again or is closed.

    Attributes:
        why_closed: why the connection is closed when the time is over; None if it then begins requests again.
    """

    def __init__(self, later: Later, on_end: Callable[[], None]) -> None:
        self._later: Later | None = later
        self._on_end: Callable[[], None] | None = on_end
        self._timer: asyncio.TimerHandle | None = None
        self.why_closed: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether the connection is muted now, so that it begins no requests."""
        return self._timer is not None

    def begin(self, ms: int, why_closed: str | None) -> None:
        """Mute the connection for `ms` milliseconds. If it is muted for longer already, nothing changes.

        Args:
            ms: the time in ms.
            why_closed: why the connection is closed when the time is over; None if it then begins requests again.
        """
        if self._later is None:
            return
        if self._timer is not None:
            if self._timer.when() >= asyncio.get_running_loop().time() + ms / 1000:
                return
            self._timer.cancel()
        self.why_closed = why_closed
        self._timer = self._later(ms / 1000, self._end)

    def cancel(self) -> None:
        """End the mute (the time in which the connection begins no requests) without calling `on_end`, because the
        connection is closed.
        """
        if self._timer is not None:
            self._timer.cancel()
        # The functions belong to the connection. Without them, the connection is freed as soon as nobody uses it.
        self._timer = self._later = self._on_end = None

    def _end(self) -> None:
        self._timer = None
        if self._on_end is not None:
            self._on_end()
