"""The time limits of a connection: for its login, its next request, the rest of a request, and the reading of responses
by its client.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from stablelog.broker.network import connection_states as states
from stablelog.broker.network.arriving import ArrivingRequests
from stablelog.broker.network.connection_limits import ConnectionLimits
from stablelog.broker.network.responses import Responses
from stablelog.broker.network.session import Session


class TimedConnection(Protocol):
    """What `ConnectionTimeouts` uses of a connection."""

    @property
    def is_reading(self) -> bool:
        """Whether the connection reads from its socket."""

    def later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function after a number of seconds, and return the timer."""

    def close(self, why: str | None = None) -> None:
        """Close the connection. `why` is the reason for the log; None to log nothing."""


class ConnectionTimeouts:
    """Closes one connection when a time limit has passed.

    Args:
        connection: the connection.
        limits: the limits of the connection.
        session: its session, with the client's login.
        arriving: the requests that are arriving on the connection.
        responses: the responses of the connection that are not sent yet.

    Attributes:
        last_request_at: when the last request began, in seconds of the event loop.
    """

    def __init__(
        self,
        connection: TimedConnection,
        limits: ConnectionLimits,
        session: Session,
        arriving: ArrivingRequests,
        responses: Responses,
    ) -> None:
        self._connection: TimedConnection | None = connection
        self._limits = limits
        self._session = session
        self._arriving = arriving
        self._responses = responses
        self._idle_timer: asyncio.TimerHandle | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.last_request_at = self._loop.time()

    def begin(self) -> None:
        """Begin to check whether the connection is idle, or its login takes too long, because the client has
        connected.
        """
        if self._connection is not None:
            first_check_s = self._limits.first_check_s(has_login=self._session.login is not None)
            self._idle_timer = self._connection.later(first_check_s, self._check_idle)

    def expect_rest(self) -> None:
        """Expect the rest of a request of which a part has arrived: close the connection if the rest does not arrive in
        time.
        """
        if self._receive_timer is None and self._connection is not None:
            limit_s = self._limits.receive_ms_max / 1000
            self._receive_timer = self._connection.later(limit_s, self._check_receive_time)

    def cancel(self) -> None:
        """End all checks, because the connection is closed."""
        for timer in (self._idle_timer, self._receive_timer):
            if timer is not None:
                timer.cancel()
        # Without this reference, the connection is freed as soon as nobody uses it.
        self._connection = None

    def _check_idle(self) -> None:
        connection, login, responses = self._connection, self._session.login, self._responses
        assert connection is not None
        if login is not None and login.principal is None:
            connection.close(f"the client has not logged in within {self._limits.receive_ms_max / 1000:g} s")
            return
        limit_s = self._limits.idle_ms_max / 1000
        idle_s = limit_s - (self._loop.time() - self.last_request_at)
        if responses.state is states.BLOCKED and self._loop.time() - responses.blocked_since > limit_s:
            connection.close(f"the client has not read any byte of a response for {limit_s:g} s")
        elif idle_s <= 0 and responses.are_sent:
            connection.close()
        else:
            self._idle_timer = connection.later(max(idle_s, 1), self._check_idle)

    def _check_receive_time(self) -> None:
        """Close the connection if a request that has begun to arrive is not complete in time.

        The time in which the request waited for the memory budget does not count.
        """
        self._receive_timer, connection = None, self._connection
        assert connection is not None
        since = self._arriving.receives_since
        if self._arriving.since is None or since is None:
            return
        limit_s = self._limits.receive_ms_max / 1000
        left_s = limit_s - (self._loop.time() - since if connection.is_reading else 0)
        if left_s <= 0:
            connection.close(f"the rest of a request did not arrive within {limit_s:g} s")
        else:
            self._receive_timer = connection.later(left_s, self._check_receive_time)
