"""The states of a connection: the table, and that a connection uses all of it and nothing else."""

import asyncio
import itertools
import random

import pytest

from stablelog.broker.network import connection, responses
from stablelog.broker.network.connection_states import (
    AFTER_INTAKE,
    AFTER_LIFE,
    AFTER_SENDING,
    DROPPING,
    LOST,
    Intake,
    Life,
    Sending,
    transition,
)
from stablelog.broker.network.inbox import INBOX_SIZE
from stablelog.broker.network.responses import TURN_SIZE
from tests.broker.jump import Door, request, run, settle
from tests.scale import seeds

KB = 1 << 10
TABLES = {Life: AFTER_LIFE, Intake: AFTER_INTAKE, Sending: AFTER_SENDING}


@pytest.mark.parametrize("kind", TABLES)
def test_the_table_has_each_state_and_each_is_reached(kind):
    table = TABLES[kind]
    assert set(table) == set(kind)
    reached = {next(iter(kind))}
    for _ in kind:
        reached |= set(itertools.chain.from_iterable(table[state] for state in reached))
    assert reached == set(kind)


def test_what_has_ended_stays_ended():
    assert [state for table in TABLES.values() for state in table if not table[state]] == [LOST, DROPPING]
    assert all(LOST in AFTER_LIFE[state] for state in list(Life)[1:] if state is not LOST)
    assert all(DROPPING in AFTER_INTAKE[state] for state in Intake if state is not DROPPING)


@pytest.mark.parametrize("kind", TABLES)
def test_a_change_that_the_table_does_not_have_is_an_error(kind):
    for before, after in itertools.product(kind, kind):
        if after in TABLES[kind][before]:
            assert transition(before, after) is after
        else:
            with pytest.raises(AssertionError, match=f"{after.name} does not follow .*{before.name}"):
                transition(before, after)


class Client:
    """One connection and a client that does anything, in any order, by one seed."""

    def __init__(self, random_):
        self.random = random_
        self.door = Door(
            size_max=300 * KB, at_once=False, in_flight_count_max=12, idle_ms_max=10**9, receive_ms_max=10**8
        )
        self.others = [self.door.connect(), self.door.connect()]
        self.wire = self.door.connect(
            reads=random_.random() < 0.5, high_water=20 * KB, piece=random_.choice([1000, 30 * KB, 1 << 20])
        )
        self.door.answer_with = lambda frame: [bytes(random_.choice([10, 10, 30 * KB, 5 << 20]))]
        self.finishing = []
        self.rest = b""  # of a request that has begun to arrive

    def send(self):
        sizes = self.random.choices([10, 100, 40 * KB, INBOX_SIZE, 200 * KB], k=self.random.randint(1, 12))
        data = self.rest + b"".join(map(request, sizes))
        count = max(len(data) - self.random.choice([0, 5, 100 * KB]), 0)
        self.rest = data[count:]
        self.wire.send(data[:count])

    def send_small(self):
        self.wire.send(self.rest + request(10) * 30)
        self.rest = b""

    def crowd(self):
        self.random.choice(self.others).send(request(self.random.choice([100 * KB, 250 * KB])))

    def release(self):
        for _ in range(self.random.randint(1, 10)):
            self.release_one()

    def release_one(self):
        if self.door.begun:
            _, future = self.door.begun.popleft()
            if not future.done():  # A request may be cancelled.
                future.set_result(None)

    def read(self):
        self.wire.read_on()

    def leave_unread(self):
        self.wire.leave_unread()

    def mute(self):
        self.wire.protocol.mute(self.random.choice([1, 1000]))

    async def wait(self):
        await asyncio.sleep(self.random.choice([0.01, 2]))

    def drain(self):
        self.wire.protocol.drain()

    def close_when_sent(self):
        self.wire.protocol.close_when_sent()

    def finish(self):
        self.finishing.append(asyncio.create_task(self.wire.protocol.finish()))

    def close(self):
        self.wire.protocol.close()

    def lose(self):
        if not self.wire.closed:
            self.wire.lost()

    async def live(self):
        often = [
            *(self.send, self.send_small, self.crowd, self.release, self.release),
            *(self.read, self.leave_unread, self.mute, self.wait),
        ]
        ends = [self.drain, self.close_when_sent, self.finish, self.close, self.lose]
        for _ in range(40):
            step = self.random.choice(often if self.random.random() < 0.95 else ends)
            if (done := step()) is not None:
                await done
            for _ in range(self.random.choice([0, 1, 2, 20])):
                await asyncio.sleep(0)
        self.wire.protocol.close()
        await settle()
        while self.door.begun:
            self.release_one()
            await settle()
        await asyncio.gather(*self.finishing)
        assert self.wire.protocol not in self.door.members
        assert not self.door.tasks.error_counts, "an assertion has failed"


async def drained_before_its_turn(door):
    wire = door.connect()
    wire.send(request(10) * 30)
    wire.protocol.drain()


async def unread_within_a_large_request(door):
    wire = door.connect()
    wire.send(request(200 * KB)[: 100 * KB])
    wire.leave_unread()
    wire.read_on()


async def drained_without_room_for_a_large_request(door):
    door.at_once = False
    wire, other = door.connect(), door.connect()
    wire.send(request(200 * KB)[: 70 * KB])
    other.send(request(150 * KB))
    wire.send(bytes(100 * KB))
    wire.protocol.drain()


async def unread_between_two_turns_of_sending(door):
    door.answer_with = lambda _frame: [bytes(2 * TURN_SIZE)]
    wire = door.connect()
    wire.send(request(10))
    while not wire.outbound:  # noqa: ASYNC110
        await asyncio.sleep(0)
    wire.leave_unread()


RARE = (
    drained_before_its_turn,
    unread_within_a_large_request,
    drained_without_room_for_a_large_request,
    unread_between_two_turns_of_sending,
)


@pytest.mark.extended
def test_a_connection_uses_the_whole_table_and_nothing_else(monkeypatch):
    """An assertion of `transition` would be an unexpected error, which fails the test."""
    seen = set()

    def noted(before, after):
        seen.add((before, after))
        return transition(before, after)

    for module in (connection, responses):
        monkeypatch.setattr(module, "transition", noted)
    for seed in seeds(50):

        async def conversation(seed=seed):
            await Client(random.Random(seed)).live()

        run(conversation())
    for story in RARE:

        async def rare(story=story):
            door = Door(size_max=300 * KB)
            await story(door)
            await settle()
            assert not door.tasks.error_counts, "an assertion has failed"

        run(rare())
    expected = {(before, after) for table in TABLES.values() for before in table for after in table[before]}
    assert expected - seen == set(), (
        "no event of the test leads there: remove it from the table, or add the event"
    )


def test_a_connection_that_waits_for_its_client_to_read_the_end_can_be_closed():
    """A transport that was closed sends what it has, for as long as the client takes."""

    async def conversation():
        door = Door()
        wire = door.connect(lingers=True)
        wire.send(request(10))
        wire.protocol.close_when_sent()
        await settle()
        assert wire.is_closing()
        assert door.members
        wire.protocol.close()
        await settle()
        assert not door.members

    run(conversation())
