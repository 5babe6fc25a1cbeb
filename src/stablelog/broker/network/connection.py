"""One client's connection: receives requests, passes them to the router, and sends the responses in the order of the
requests.

The requests of one connection begin in the order in which they arrived, and are then processed concurrently, so that
one fsync serves all batches that a producer has in flight. How much memory and time of the broker one connection can
take is limited: see `ConnectionLimits` and `broker.network.budget`. While the client leaves too many response bytes
unread, none of its requests begins.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from stablelog.broker.loop.tasks import Scope, Tasks
from stablelog.broker.network import connection_states as states
from stablelog.broker.network.arriving import ArrivingRequests
from stablelog.broker.network.budget import MemoryBudgets, MemoryClaim
from stablelog.broker.network.connection_limits import (
    AT_ONCE,
    ConnectionLimits,
    OpenConnection,
    limit_reached,
    peer_addresses,
)
from stablelog.broker.network.connection_states import transition
from stablelog.broker.network.connection_timeouts import ConnectionTimeouts
from stablelog.broker.network.contained import contained
from stablelog.broker.network.long_messages import RequestDecoder
from stablelog.broker.network.mute import Mute
from stablelog.broker.network.request_head import request_api, request_name
from stablelog.broker.network.requests_in_flight import RequestsInFlight
from stablelog.broker.network.responses import LENGTH, QueuedResponse, Responses
from stablelog.broker.network.session import Session
from stablelog.env.disk import Buffer
from stablelog.errors import StablelogError

if TYPE_CHECKING:
    from stablelog.broker.network.request_router import RequestRouter

FREE_IN_FLIGHT_COUNT = 8
# The number of requests of one connection that begin in one turn of the event loop, before other connections' turns.
BEGUN_AT_ONCE_COUNT = 8

OnMade = Callable[["Connection", asyncio.BaseTransport], None]


class Connection(asyncio.BufferedProtocol):
    """One client's connection. An unexpected exception closes it, and is logged and counted.

    Args:
        router: computes the response to a request.
        budgets: the memory that all connections share.
        open_connections: the open connections of the broker, to which this one adds itself.
        tasks: starts the work on requests, and timers.
        on_made: called with the connection and its transport. If it raises ValueError, the connection is closed.

    Attributes:
        decoding: decodes the requests in the order in which they arrived, the long ones in a thread.
        appending: a lock that a request holds while it appends records or makes other changes, so that the changes have
            the order of the requests.
    """

    def __init__(
        self,
        router: "RequestRouter",
        limits: ConnectionLimits,
        budgets: MemoryBudgets,
        open_connections: set[OpenConnection],
        tasks: Tasks,
        session: Session | None = None,
        on_made: OnMade | None = None,
    ) -> None:
        self.background = tasks
        self._on_made = on_made
        self._life = states.CONNECTING
        self._intake = states.READING
        self.session = session or Session()
        self.listener = self.session.listener.name
        self._respond = router.respond
        self._apis = router.apis
        self._limits = limits
        self._budgets = budgets
        self._open_connections = open_connections
        self._transport: asyncio.Transport | None = None
        self._arriving = ArrivingRequests()
        self._responses = Responses()
        self._in_flight = RequestsInFlight()
        self._heavy_turn = asyncio.Lock()
        self.decoding = RequestDecoder()
        self.appending = asyncio.Lock()
        self._mute = Mute(self.later, self._unmute)
        self._timeouts = ConnectionTimeouts(self, limits, self.session, self._arriving, self._responses)
        self._loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self.peer = "?"
        self.host = "?"

    # -- life ------------------------------------------------------------------------------------------------

    @contained
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the client that has connected, or close the connection if the broker has as many connections as its
        limits allow.
        """
        self._life = transition(self._life, states.OPEN)
        self._transport = cast("asyncio.Transport", transport)
        self.host, self.peer = peer_addresses(transport)
        self.session.host = self.host
        if self._on_made is not None:
            try:
                self._on_made(self, transport)
            except ValueError as refused:
                self.close(str(refused))
                return
        reached = limit_reached(self._open_connections, self._limits, self.host)
        if reached is not None:
            self._limits.log_close(self.peer, reached)
            self._life = transition(self._life, states.CUT)
            self._transport.close()
            return
        self._open_connections.add(self)
        self._timeouts.begin()
        # A listener with TLS has counted the connection before its handshake.
        arrival = self._limits.arrive(self.host) if self._on_made is None else AT_ONCE
        if arrival.delay_ms:
            self.mute(arrival.delay_ms, arrival.why_closed)

    def later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call a function after a number of seconds, and return the timer. An exception closes the connection."""
        return self.background.later("connection", delay_s, callback, scope=self.scope)

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection was lost, and cancel the requests that are being processed. As in Kafka, the
        records of Produce requests with acks=0 are still appended.

        The connection counts as open until its requests have ended, because they take memory: otherwise clients that
        connect, send and leave could use more memory than the limits allow. The stop of the broker waits for it, too.
        """
        is_cut, self._life = self._life is states.CUT, transition(self._life, states.LOST)
        self._lost.set()
        self._timeouts.cancel()
        self._mute.cancel()
        self._responses.unblock_sending()
        self._in_flight.cancel_requests(keeps_one_way=not is_cut)
        if not self._in_flight:
            self._open_connections.discard(self)
        self._drop_arriving()
        self._responses.clear()

    def close(self, why: str | None = None) -> None:
        """Close the connection at once, and cancel the requests that are being processed.

        Args:
            why: the reason for the log, if the client has caused the close; None to log nothing.
        """
        if why is not None:
            self._limits.log_close(self.peer, why)
        if self._life is states.LOST:
            self._in_flight.cancel_requests()
        elif self._life is not states.CUT:
            self._life = transition(self._life, states.CUT)
            if self._transport is not None:
                self._transport.abort()  # also if it is closing, and the client does not read the rest

    @property
    def is_closing(self) -> bool:
        """Whether the connection can neither send nor receive: it is closed, or not established yet."""
        return self._transport is None or self._transport.is_closing()

    @property
    def is_writable(self) -> bool:
        """Whether the client reads its responses fast enough, so that they are sent and requests begin."""
        return self._responses.state is not states.BLOCKED

    @property
    def is_reading(self) -> bool:
        """Whether the connection reads from its socket."""
        return self._intake in states.READ

    @property
    def is_draining(self) -> bool:
        """Whether the connection accepts no more requests, because it will be closed."""
        return self._intake is states.DROPPING

    @property
    def scope(self) -> Scope:
        """The scope of the connection's work: what fails after an unexpected exception in this work. It is the
        connection.
        """
        # Made for each call: an attribute with the scope would create a reference cycle.
        return Scope(f"the connection of {self.peer} is closed", lambda _why: self.close())

    @property
    def tasks(self) -> "frozenset[asyncio.Task[None]]":
        """The tasks of the requests that are being processed, one for each request."""
        return self._in_flight.tasks

    def drain(self) -> None:
        """Accept no more requests, and drop those that have arrived but have not begun. The requests in flight are
        completed.

        Bytes that arrive later are read and dropped. If the broker closed a socket with unread bytes, the operating
        system would reset the connection, and the client would lose the responses that it has not read yet.
        """
        if self._life is states.OPEN:
            self._life = transition(self._life, states.DRAINING)
            self._drop_arriving()

    def _drop_arriving(self) -> None:
        """Drop the requests that have arrived but have not begun, and all bytes that arrive from now on."""
        self._arriving.drop()
        if self._intake is not states.DROPPING:
            was_paused = self._intake not in states.READ
            self._intake = transition(self._intake, states.DROPPING)
            if was_paused and self._transport is not None and not self.is_closing:
                self._transport.resume_reading()

    async def finish(self) -> None:
        """Accept no more requests, complete the requests in flight, and close when all responses have been sent.

        The call ends when the client has read all responses. The caller limits the time, and then calls `close`.
        """
        self.drain()
        while self._in_flight:
            await asyncio.wait(self.tasks)
        self.close_when_sent()
        self._send_answered()
        await self._lost.wait()

    def close_when_sent(self) -> None:
        """Accept no more requests, and close the connection when the responses to all earlier requests have been sent."""
        self.drain()
        if self._life is states.DRAINING:
            self._life = transition(self._life, states.ENDING)

    # -- bytes in --------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes: the inbox, or the frame (buffer) of the large request that is arriving."""
        return self._arriving.free_space(self._budgets.budget_for(self.session.login).inboxes)

    @contained
    def buffer_updated(self, nbytes: int) -> None:
        """Process `nbytes` bytes that have arrived in the buffer of the last `get_buffer`. The event loop calls this
        method.
        """
        arriving = self._arriving
        if self._intake is states.DROPPING:
            arriving.inbox.clear()
        elif not arriving.has_frame:
            arriving.inbox.filled += nbytes
            self._split_inbox()
        elif (complete := arriving.fill_frame(nbytes)) is not None:
            self._intake = transition(self._intake, states.READING)
            self._begin_request(*complete)
        elif not arriving.has_room():
            self._pause_reading(states.LARGE_ROOM)

    def _split_inbox(self) -> None:
        """Begin the complete requests in the inbox (the buffer for small requests), until one of them has to wait, for
        example for memory or for the next turn of the event loop.
        """
        arriving, inbox = self._arriving, self._arriving.inbox
        at = begun = 0
        while self._intake is states.READING and inbox.filled - at >= LENGTH.size:
            size = LENGTH.unpack_from(inbox.buffer, at)[0]
            size_min, size_max = self._limits.request_sizes(self.session.login)
            if not size_min <= size <= size_max:
                self.close(f"a request has {size} bytes, and {size_min} to {size_max} are allowed")
                return
            end = at + LENGTH.size + size
            if end > inbox.filled:
                if at == 0 and inbox.filled == len(inbox.buffer):
                    self._expect_large(size)
                break
            if begun == BEGUN_AT_ONCE_COUNT:
                self._pause_reading(states.TURN)
                self.background.soon("connection", self._continue_inbox, scope=self.scope)
                break
            claim = None
            # Small requests need the memory budget only if their connection has many requests in flight. Otherwise they
            # never wait for large requests of other connections.
            if len(self._responses) >= FREE_IN_FLIGHT_COUNT:
                claim = self._budgets.budget_for(self.session.login).open_claim(self, size)
                if not claim.budget.fill_claim(claim):
                    arriving.claim = claim
                    self._pause_reading(states.ROOM)
                    break
            frame = bytes(inbox.buffer[at + LENGTH.size : end])
            at = end
            begun += 1
            self._begin_request(frame, claim)
        if at and self._intake is not states.DROPPING:
            arriving.since = None
            inbox.drop_bytes(at)
        if arriving.since is None and (inbox.filled > 0 or arriving.has_frame):
            arriving.since = self._loop.time()
            self._timeouts.expect_rest()

    def _expect_large(self, size: int) -> None:
        """Begin to receive a request of `size` bytes that is too large for the inbox, into a frame (a buffer for this
        request only).
        """
        claim = self._budgets.budget_for(self.session.login).open_claim(self, size)
        if self._arriving.expect_large(claim):
            self._intake = transition(self._intake, states.LARGE)
        else:
            self._pause_reading(states.ROOM)

    def _continue_inbox(self) -> None:
        if self._intake is states.TURN:
            self._intake = transition(self._intake, states.HELD)
            self._resume_reading()

    @contained
    def resume_receiving(self) -> None:
        """Continue receiving a request, because the memory budget has granted the bytes that the request waited for."""
        if self._intake is states.LARGE_ROOM:
            self._intake = transition(self._intake, states.LARGE_HELD)
        elif (complete := self._arriving.take_from_inbox()) is not None:
            self._intake = transition(self._intake, states.HELD)
            self._begin_request(*complete)
        else:
            self._intake = transition(self._intake, states.LARGE_HELD)
            self._arriving.open_frame()
        self._resume_reading()

    # -- requests and responses ------------------------------------------------------------------------------

    def _begin_request(self, frame: Buffer, claim: MemoryClaim | None) -> None:
        self._timeouts.last_request_at = self._loop.time()
        if claim is not None:
            claim.budget.mark_complete(claim, is_quick=not request_api(frame, self._apis).is_long_poll)
        work = self._process_request(frame, self._responses.add_response())
        self._in_flight.add_request(self.background.start_request(work, self._end_request), frame, claim)
        if self._mute.is_on or len(self._responses) >= self._limits.in_flight_count_max:
            self._hold_reading()

    @contained
    def _end_request(self, task: "asyncio.Task[None]") -> None:
        """Free the memory of a request whose task has ended, perhaps by a cancellation before its first step."""
        self._in_flight.end_request(task)
        if self._life is states.LOST and not self._in_flight:
            self._open_connections.discard(self)

    async def _process_request(self, frame: Buffer, answer: QueuedResponse) -> None:
        try:
            while self._responses.state is states.BLOCKED:
                await self._responses.unblocked.wait()
            if request_api(frame, self._apis).is_heavy:
                async with self._heavy_turn:
                    answer.buffers = await self._respond(self, frame)
            else:
                answer.buffers = await self._respond(self, frame)
        except StablelogError as error:
            self.close(f"{error}")
            return
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the exception fails this connection only
            self.background.report_unexpected(request_name(frame), self.scope, error)
            return
        answer.done = True
        self._send_answered()

    def _send_answered(self) -> None:
        transport, responses = self._transport, self._responses
        if transport is None or self.is_closing or responses.state is states.LATER:
            return
        if responses.send_ready(transport):
            self.background.soon("connection", self._send_next_turn, scope=self.scope)
            return
        if self._life is states.ENDING and responses.are_sent and responses.state is states.READY:
            transport.close()  # The transport sends its buffered bytes before it closes.
        self._resume_reading()

    def _send_next_turn(self) -> None:
        self._responses.end_turn()
        self._send_answered()

    # -- flow ------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Send no more responses and begin no more requests, because the client leaves too many response bytes unread."""
        self._responses.block_sending(self._loop.time())
        self._hold_reading()

    @contained
    def resume_writing(self) -> None:
        """Send responses and begin requests again, because the client has read enough response bytes."""
        self._responses.unblock_sending()
        self._send_answered()

    def mute(self, ms: int, why_closed: str | None = None) -> None:
        """Begin no more requests for `ms` milliseconds, because the client is above a quota.

        A large request whose first bytes have arrived is still received and processed: it holds memory of the budget.

        Args:
            ms: the time in ms.
            why_closed: the reason, for the log, for which the connection is closed after this time; None to begin
                requests again after it.
        """
        if not self.is_draining and not self.is_closing:
            self._mute.begin(ms, why_closed)
            if self._intake is states.READING:
                self._pause_reading(states.HELD)

    def _unmute(self) -> None:
        if self._mute.why_closed is not None:
            self.close(self._mute.why_closed)
        if self._arriving.since is not None:
            self._arriving.since = self._loop.time()
        self._resume_reading()

    def _hold_reading(self) -> None:
        """Stop reading from the socket, so that no more requests arrive, until `_resume_reading` is called. Has no
        effect if reading is stopped already.
        """
        if self._intake is states.READING:
            self._pause_reading(states.HELD)
        elif self._intake is states.LARGE:
            self._pause_reading(states.LARGE_HELD)

    def _pause_reading(self, why: states.Intake) -> None:
        self._intake = transition(self._intake, why)
        if self._transport is not None and not self.is_closing:
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        """Read from the socket again, unless a reason not to read is left: the client is above a quota (the connection
        is muted), leaves responses unread, or has too many requests in flight.
        """
        is_held = self._intake is states.HELD
        if (
            not (is_held or self._intake is states.LARGE_HELD)
            or (is_held and self._mute.is_on)
            or self._responses.state is states.BLOCKED
            or len(self._responses) >= self._limits.in_flight_count_max
            or self._transport is None
            or self.is_closing
        ):
            return
        if is_held:
            self._intake = transition(self._intake, states.READING)
            self._split_inbox()
        else:
            self._intake = transition(self._intake, states.LARGE)
        if self._intake in states.READ and not self.is_closing:
            self._transport.resume_reading()
