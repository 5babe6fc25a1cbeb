"""A loop whose time jumps to what is due next when there is nothing to do now, and a wire without a network."""

import asyncio
import struct
from collections import deque

import pytest

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.network.budget import MemoryBudget, MemoryBudgets
from stablelog.broker.network.connection import Connection
from stablelog.broker.network.connection_limits import ConnectionLimits
from tests.declared_apis import APIS

LENGTH = struct.Struct(">i")
THREAD_S = 20  # How long a thread may take, if nothing else goes on.


class JumpLoop(asyncio.SelectorEventLoop):
    """Waits in no time."""

    def __init__(self):
        super().__init__()
        self._now_s = 1000.0
        select = self._selector.select

        def jump(timeout=None):
            events = select(THREAD_S if timeout is None else 0)
            if not events:
                assert timeout is not None, "everybody waits for ever"
                self._now_s += timeout
            return events

        self._selector.select = jump

    def time(self):
        return self._now_s


def run(conversation):
    """Run it on a loop of its own; tasks that it leaves behind are cancelled."""
    with asyncio.Runner(loop_factory=JumpLoop) as runner:
        return runner.run(conversation)


class Wire:
    """A transport with its client: what that sends arrives in pieces, and what it is answered it reads or does not.

    A transport that lingers has bytes which its client does not read: it ends when it is aborted, not when it is closed.
    """

    def __init__(self, *, piece=1 << 20, reads=True, high_water=64 << 10, host="10.0.0.1", lingers=False):
        self.host = host
        self.inbound = bytearray()
        self.outbound = bytearray()
        self.piece = piece
        self.reads = reads
        self.high_water = high_water
        self.unread = 0
        self.closed = False
        self.lingers = lingers
        self.paused = False
        self.protocol = None
        self._told = False
        self._ended = False

    # what the connection sees

    def get_extra_info(self, _name):
        return (self.host, 5)

    def is_closing(self):
        return self.closed

    def abort(self):
        if not self._ended:
            self.closed = self._ended = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def close(self):
        self.closed = True
        if not self.lingers:
            self.abort()

    def pause_reading(self):
        self.paused = True

    def resume_reading(self):
        self.paused = False
        asyncio.get_running_loop().call_soon(self._pump)

    def writelines(self, buffers):
        data = b"".join(bytes(buffer) for buffer in buffers)
        if self.reads:
            self.outbound += data
            return
        self.unread += len(data)
        self.outbound += data
        if self.unread > self.high_water and not self._told:
            self._told = True
            self.protocol.pause_writing()

    # what the client does

    def send(self, data):
        self.inbound += data
        self._pump()

    def _pump(self):
        while self.inbound and not self.paused and not self.closed:
            room = self.protocol.get_buffer(-1)
            count = min(len(room), len(self.inbound), self.piece)
            assert count > 0, "nowhere to put what has come"
            room[:count] = self.inbound[:count]
            del self.inbound[:count], room
            self.protocol.buffer_updated(count)

    def leave_unread(self):
        """The client reads nothing more, and what its transport holds is too much."""
        if not self._told:
            self._told = True
            self.protocol.pause_writing()

    def read_on(self):
        """The client reads what it has left unread."""
        self.unread = 0
        if self._told:
            self._told = False
            self.protocol.resume_writing()

    def lost(self):
        self.closed = self._ended = True
        self.protocol.connection_lost(None)

    def answers(self):
        found, at = [], 0
        while at < len(self.outbound):
            size = LENGTH.unpack_from(self.outbound, at)[0]
            found.append(bytes(self.outbound[at + 4 : at + 4 + size]))
            assert len(found[-1]) == size
            at += 4 + size
        return found


class Door:
    """Connections over one budget, and who works on their requests.

    A request is answered with itself when `release`d, or at once if `at_once`.
    """

    def __init__(self, *, size_max=1 << 20, at_once=True, **limits):
        values = {
            "request_size_max": size_max,
            "connection_count_max": 100,
            "connection_count_per_host_max": 100,
            "in_flight_count_max": 20,
            "idle_ms_max": 600_000,
            "receive_ms_max": 30_000,
        }
        self.limits = ConnectionLimits(**values | limits)
        loop = asyncio.get_running_loop()
        self.tasks = Tasks(pytest.fail)
        self.budget = MemoryBudget(size_max, self.limits.receive_ms_max / 1000, loop.time, loop.call_later)
        self.budgets = MemoryBudgets(self.budget, self.budget)
        self.members = set()
        self.apis = APIS
        self.at_once = at_once
        self.begun = deque()
        self.held_most = 0
        self.answer_with = lambda frame: [bytes(frame)]

    async def respond(self, _connection, frame):
        future = asyncio.get_running_loop().create_future()
        self.begun.append((frame, future))
        self.held_most = max(self.held_most, self.budget.size_max - self.budget.left)
        if not self.at_once:
            await future
        return self.answer_with(frame)

    def release(self, place=0):
        frame, future = self.begun[place]
        del self.begun[place]
        future.set_result(None)
        return frame

    def connect(self, *, session=None, limits=None, **wire):
        made = Wire(**wire)
        made.protocol = Connection(
            self, limits or self.limits, self.budgets, self.members, self.tasks, session
        )
        made.protocol.connection_made(made)
        return made


def request(size, api_key=0, fill=0):
    """A request of this many bytes behind its length."""
    return LENGTH.pack(size) + struct.pack(">hh", api_key, 0) + bytes([fill]) * (size - 4)


async def settle():
    """Let everything run that can run now."""
    for _ in range(20):
        await asyncio.sleep(0)
