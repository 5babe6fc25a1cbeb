"""One client's connection: bytes in, frames to the router, answers out in the order of the requests.

Requests of one connection are begun in the order in which they came, and worked on together, so that one fsync
serves all that a producer has in flight. What it takes from the machine is bounded: the size of a request, the
requests in flight, their bytes over all connections, and the time a request may take to arrive.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import cast

from stablelog.env.disk import Buffer
from stablelog.errors import StablelogError

log = logging.getLogger(__name__)

LENGTH = struct.Struct(">i")
INBOX_SIZE = 64 << 10
FREE_IN_FLIGHT_COUNT = 8
REQUEST_SIZE_MIN = 8  # api key, version and correlation id

Respond = Callable[["Connection", Buffer], Awaitable[Sequence[Buffer] | None]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What connections may take."""

    request_size_max: int
    connection_count_max: int
    in_flight_count_max: int
    in_flight_size_max: int
    idle_ms_max: int
    receive_ms_max: int


class Budget:
    """Bytes of requests in flight, over all connections. First come, first served."""

    def __init__(self, size_max: int) -> None:
        self.left = size_max
        self.size_max = size_max
        self._queue: deque[tuple[int, Connection]] = deque()

    def take(self, size: int, connection: "Connection") -> bool:
        """Take `size` bytes now, or be called back (`Connection.admitted`) when they are there."""
        if not self._queue and (size <= self.left or self.left == self.size_max):
            self.left -= size
            return True
        self._queue.append((size, connection))
        return False

    def give_back(self, size: int) -> None:
        """Return bytes, and admit who waits for them."""
        self.left += size
        while self._queue and (self._queue[0][0] <= self.left or self.left == self.size_max):
            taken, connection = self._queue.popleft()
            self.left -= taken
            connection.admitted()

    def give_up(self, connection: "Connection") -> None:
        """The connection no longer waits."""
        self._queue = deque(entry for entry in self._queue if entry[1] is not connection)


class Answer:
    """The place of one answer in the row of answers."""

    __slots__ = ("buffers", "done")

    def __init__(self) -> None:
        self.done = False
        self.buffers: Sequence[Buffer] | None = None


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, respond: Respond, limits: Limits, budget: Budget, members: "set[Connection]") -> None:
        self._respond = respond
        self._limits = limits
        self._budget = budget
        self._members = members
        self._transport: asyncio.Transport | None = None
        self._inbox = bytearray(INBOX_SIZE)
        self._inbox_view = memoryview(self._inbox)
        self._inbox_filled = 0
        self._frame: memoryview | None = None  # a request too large for the inbox, as it arrives
        self._frame_filled = 0
        self._frame_claimed = 0
        self._waits_for_budget = False
        self._answers: deque[Answer] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading = True
        self._writable = True
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._last_request_at = self._loop.time()
        self.peer = "?"
        self.host = "?"

    # -- life --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host = str(peer[0])
            self.peer = f"{peer[0]}:{peer[1]}"
        if len(self._members) >= self._limits.connection_count_max:
            log.warning(
                "closing %s: max.connections=%d are open", self.peer, self._limits.connection_count_max
            )
            transport.close()
            return
        self._members.add(self)
        self._timer = self._loop.call_later(self._limits.idle_ms_max / 1000, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: nobody is left to answer."""
        self._members.discard(self)
        for timer in (self._timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._waits_for_budget:
            self._budget.give_up(self)
        elif self._frame is not None:
            self._budget.give_back(self._frame_claimed)
        self._frame = None
        self._answers.clear()

    def close(self, why: str | None = None) -> None:
        """Close, with a log line if the client is at fault."""
        if why is not None:
            log.warning("closing %s: %s", self.peer, why)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    @property
    def tasks(self) -> "frozenset[asyncio.Task[None]]":
        """The requests that are being worked on."""
        return frozenset(self._tasks)

    def drain(self) -> None:
        """Take no more requests."""
        self._draining = True
        self._pause_reading()

    def _check_idle(self) -> None:
        idle_s = self._limits.idle_ms_max / 1000 - (self._loop.time() - self._last_request_at)
        if idle_s <= 0 and not self._answers:
            self.close()
        else:
            self._timer = self._loop.call_later(max(idle_s, 1), self._check_idle)

    # -- bytes in ----------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: the inbox, or straight into the large request they belong to."""
        if self._frame is not None and not self._waits_for_budget:
            return self._frame[self._frame_filled :]
        return self._inbox_view[self._inbox_filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        if self._frame is not None:
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._begin(frame.toreadonly(), self._frame_claimed)
            return
        self._inbox_filled += nbytes
        self._split_inbox()

    def _split_inbox(self) -> None:
        at = 0
        while self._reading and self._inbox_filled - at >= LENGTH.size:
            size = LENGTH.unpack_from(self._inbox, at)[0]
            if not REQUEST_SIZE_MIN <= size <= self._limits.request_size_max:
                self.close(
                    f"a request of {size} bytes; {REQUEST_SIZE_MIN} to {self._limits.request_size_max} are read"
                )
                return
            end = at + LENGTH.size + size
            if end > self._inbox_filled:
                if LENGTH.size + size > INBOX_SIZE:
                    self._expect_large(size, at + LENGTH.size)
                    at = self._inbox_filled
                break
            # Small requests never wait behind others' large ones, as long as their connection has few in flight.
            if len(self._answers) < FREE_IN_FLIGHT_COUNT:
                self._budget.left -= size
            elif not self._budget.take(size, self):
                self._waits_for_budget = True
                self._pause_reading()
                break
            frame = bytes(self._inbox_view[at + LENGTH.size : end])
            at = end
            self._begin(frame, size)
        if at:
            rest = self._inbox_filled - at
            self._inbox[:rest] = self._inbox[at : self._inbox_filled]
            self._inbox_filled = rest
        if self._inbox_filled > 0 or self._frame is not None:
            self._expect_rest()

    def _expect_large(self, size: int, begin: int) -> None:
        self._frame_claimed = size
        part = self._inbox_view[begin : self._inbox_filled]
        if self._budget.take(size, self):
            self._frame = memoryview(bytearray(size))
            self._frame[: len(part)] = part
        else:
            # Hold what has come; the request's own buffer is made when its bytes are granted.
            self._waits_for_budget = True
            self._frame = memoryview(bytes(part))
            self._pause_reading()
        self._frame_filled = len(part)

    def admitted(self) -> None:
        """The budget has room for what this connection waited with; the bytes are taken already."""
        self._waits_for_budget = False
        if self._frame is not None:
            part = self._frame
            self._frame = memoryview(bytearray(self._frame_claimed))
            self._frame[: len(part)] = part
            self._resume_reading()
        else:
            size = LENGTH.unpack_from(self._inbox, 0)[0]
            frame = bytes(self._inbox_view[LENGTH.size : LENGTH.size + size])
            rest = self._inbox_filled - LENGTH.size - size
            self._inbox[:rest] = self._inbox[LENGTH.size + size : self._inbox_filled]
            self._inbox_filled = rest
            self._begin(frame, size)
            self._resume_reading()

    def _expect_rest(self) -> None:
        """Close if the rest of a request does not come in time."""
        began_at = self._last_request_at = self._loop.time()
        seconds = self._limits.receive_ms_max / 1000

        def check() -> None:
            partial = (self._inbox_filled or self._frame is not None) and self._reading
            if (
                self._transport is not None
                and not self._transport.is_closing()
                and partial
                and self._last_request_at == began_at
            ):
                self.close(f"the rest of a request did not come within {seconds:g} s")

        if self._rest_timer is not None:
            self._rest_timer.cancel()
        self._rest_timer = self._loop.call_later(seconds, check)

    # -- requests and answers ----------------------------------------------------------------------------------

    def _begin(self, frame: Buffer, size: int) -> None:
        self._last_request_at = self._loop.time()
        answer = Answer()
        self._answers.append(answer)
        task = self._loop.create_task(self._work(frame, size, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if len(self._answers) >= self._limits.in_flight_count_max:
            self._pause_reading()

    async def _work(self, frame: Buffer, size: int, answer: Answer) -> None:
        try:
            answer.buffers = await self._respond(self, frame)
        except StablelogError as error:
            self.close(f"{error}")
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception(
                "a request of %s failed by a fault of the broker; the connection is closed", self.peer
            )
            self.close()
            return
        finally:
            self._budget.give_back(size)
        answer.done = True
        self._send_answered()

    def _send_answered(self) -> None:
        while self._writable and self._answers and self._answers[0].done:
            buffers = self._answers.popleft().buffers
            if buffers is not None and self._transport is not None and not self._transport.is_closing():
                size = sum(len(buffer) for buffer in buffers)
                self._transport.writelines([LENGTH.pack(size), *buffers])
        if len(self._answers) < self._limits.in_flight_count_max and not self._waits_for_budget:
            self._resume_reading()

    # -- flow --------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client reads slower than it is answered: keep its answers back."""
        self._writable = False

    def resume_writing(self) -> None:
        """The client has caught up."""
        self._writable = True
        self._send_answered()

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading or self._draining or self._transport is None or self._transport.is_closing():
            return
        self._reading = True
        if self._frame is None:
            self._split_inbox()
        if self._reading:
            self._transport.resume_reading()
