"""When a connection is closed because its client sends or reads nothing, and when it is not."""

import asyncio
from dataclasses import dataclass

from stablelog.broker.network.arriving import ArrivingRequests
from stablelog.broker.network.connection_limits import ConnectionLimits
from stablelog.broker.network.connection_timeouts import ConnectionTimeouts
from stablelog.broker.network.responses import Responses
from stablelog.broker.network.session import Session
from tests.broker.jump import run

LIMITS = ConnectionLimits(
    request_size_max=1000,
    connection_count_max=1,
    connection_count_per_host_max=1,
    in_flight_count_max=1,
    idle_ms_max=60_000,
    receive_ms_max=10_000,
)


@dataclass
class Login:
    principal: object = None


class Sink:
    def writelines(self, buffers):
        pass


class Timed:
    """A connection without a socket, and its time limits."""

    def __init__(self, login=None):
        self.loop = asyncio.get_running_loop()
        self.session = Session(login=login)
        self.arriving, self.responses = ArrivingRequests(), Responses()
        self.timeouts = ConnectionTimeouts(self, LIMITS, self.session, self.arriving, self.responses)
        self.is_reading = True
        self.begun = self.loop.time()
        self.closed = []

    def later(self, delay_s, callback):
        return self.loop.call_later(delay_s, callback)

    def close(self, why=None):
        self.closed.append((round(self.loop.time() - self.begun), why))

    async def after(self, seconds):
        await asyncio.sleep(seconds)
        return self.closed


def test_a_connection_is_idle_from_its_last_request_on_if_all_responses_are_sent():
    async def conversation():
        timed = Timed()
        timed.timeouts.begin()
        assert await timed.after(50) == []
        timed.timeouts.last_request_at = timed.loop.time()
        response = timed.responses.add_response()
        assert await timed.after(100) == [], "a response is still to be sent"
        response.done = True
        assert timed.responses.send_ready(Sink()) is False
        assert await timed.after(2) == [(151, None)]

    run(conversation())


def test_a_client_that_reads_nothing_is_named():
    async def conversation():
        timed = Timed()
        timed.timeouts.begin()
        timed.responses.add_response()
        timed.responses.block_sending(timed.loop.time())
        assert await timed.after(59) == []
        assert await timed.after(3) == [(61, "the client has not read any byte of a response for 60 s")]

    run(conversation())


def test_a_client_must_log_in_within_the_time_of_a_request():
    async def conversation():
        late, early = Timed(Login()), Timed(Login("alice"))
        late.timeouts.begin()
        early.timeouts.begin()
        assert await late.after(11) == [(10, "the client has not logged in within 10 s")]
        assert early.closed == []

    run(conversation())


def test_the_rest_of_a_request_must_arrive_in_time():
    async def conversation():
        timed = Timed()
        timed.arriving.since = timed.loop.time()
        timed.timeouts.expect_rest()
        assert await timed.after(9) == []
        timed.timeouts.expect_rest()
        assert await timed.after(30) == [(10, "the rest of a request did not arrive within 10 s")]

    run(conversation())


def test_a_connection_that_does_not_read_has_time():
    async def conversation():
        timed = Timed()
        timed.arriving.since = timed.loop.time()
        timed.timeouts.expect_rest()
        timed.is_reading = False
        assert await timed.after(25) == []
        timed.is_reading = True
        assert len(await timed.after(10)) == 1

    run(conversation())


def test_a_request_that_is_complete_is_not_waited_for():
    async def conversation():
        timed = Timed()
        timed.arriving.since = timed.loop.time()
        timed.timeouts.expect_rest()
        timed.arriving.since = None
        assert await timed.after(20) == []

    run(conversation())


def test_nothing_is_closed_after_the_end():
    async def conversation():
        timed = Timed(Login())
        timed.arriving.since = timed.loop.time()
        timed.timeouts.begin()
        timed.timeouts.expect_rest()
        timed.timeouts.cancel()
        timed.timeouts.begin()
        timed.timeouts.expect_rest()
        assert await timed.after(100) == []

    run(conversation())
