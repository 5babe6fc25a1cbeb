"""A connection whose client is above a quota: it begins no requests, and what has begun goes on."""

import asyncio

from stablelog.broker.network.connection_limits import AT_ONCE, Arrival
from stablelog.broker.network.inbox import INBOX_SIZE
from tests.broker.jump import Door, request, run, settle

KB = 1 << 10


def test_a_muted_connection_begins_no_requests_until_the_time_is_over_and_sends_what_has_begun():
    async def conversation():
        door, loop = Door(at_once=False), asyncio.get_running_loop()
        wire = door.connect()
        wire.send(request(10, fill=1))
        await settle()
        wire.protocol.mute(5000)
        begun = loop.time()
        assert wire.paused
        wire.send(request(10, fill=2))
        door.release()
        await settle()
        assert [answer[-1] for answer in wire.answers()] == [1], "the response is sent at once"
        assert not door.begun
        while not door.begun:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert 4.9 <= loop.time() - begun <= 5.3
        door.release()
        await settle()
        assert [answer[-1] for answer in wire.answers()] == [1, 2]

    run(conversation())


def test_requests_that_have_arrived_together_wait_too():
    async def conversation():
        door = Door()
        wire = door.connect()
        wire.protocol.mute(1000)
        wire.paused = False  # the bytes have been read before
        wire.send(request(10, fill=1) + request(10, fill=2))
        await settle()
        begun_before = len(door.begun)
        await asyncio.sleep(1.1)
        await settle()
        assert (begun_before, len(door.begun)) == (0, 2)

    run(conversation())


def test_the_longest_of_several_mutes_counts():
    async def conversation():
        door, loop = Door(), asyncio.get_running_loop()
        wire = door.connect()
        begun = loop.time()
        for ms in (2000, 4000, 1000):
            wire.protocol.mute(ms)
        wire.send(request(10))
        while not door.begun:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        assert 3.9 <= loop.time() - begun <= 4.3

    run(conversation())


def test_a_large_request_that_has_begun_to_arrive_is_received_and_gives_its_memory_back():
    async def conversation():
        door = Door()
        wire = door.connect()
        whole = request(3 * INBOX_SIZE, fill=1)
        wire.send(whole[: 2 * INBOX_SIZE])
        wire.protocol.mute(60_000)
        assert not wire.paused
        wire.send(whole[2 * INBOX_SIZE :] + request(10, fill=2))
        await settle()
        assert len(door.begun) == 1
        assert wire.paused
        assert door.budget.left == door.budget.size_max
        await asyncio.sleep(60.1)
        await settle()
        assert len(door.begun) == 2

    run(conversation())


def test_a_request_whose_rest_waits_for_the_end_of_the_mute_is_not_too_slow():
    async def conversation():
        door = Door(receive_ms_max=10_000)
        wire = door.connect()
        one = request(100)
        wire.send(one[:50])
        wire.protocol.mute(60_000)
        wire.send(one[50:])
        await asyncio.sleep(60.1)
        await settle()
        assert len(door.begun) == 1
        assert not wire.closed

    run(conversation())


def test_a_client_that_disconnects_while_muted_leaves_nothing_behind():
    async def conversation():
        door = Door()
        wire = door.connect()
        wire.protocol.mute(5000)
        wire.lost()
        await asyncio.sleep(6)
        assert not door.members
        assert door.budget.left == door.budget.size_max
        assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    run(conversation())


def test_a_muted_connection_is_closed_as_an_idle_one():
    async def conversation():
        door = Door(idle_ms_max=10_000)
        wire = door.connect()
        wire.protocol.mute(2_000_000)
        await asyncio.sleep(12)
        assert wire.closed

    run(conversation())


def test_a_stop_does_not_wait_for_the_end_of_a_mute():
    async def conversation():
        door, loop = Door(), asyncio.get_running_loop()
        wire = door.connect()
        wire.protocol.mute(500_000)
        begun = loop.time()
        await wire.protocol.finish()
        assert wire.closed
        assert loop.time() - begun < 1

    run(conversation())


def test_a_new_connection_above_the_rate_is_served_later_or_closed_later(caplog):
    arrivals = {"10.0.0.1": AT_ONCE, "10.0.0.2": Arrival(500), "10.0.0.3": Arrival(500, "too many")}

    async def conversation():
        door = Door(arrive=arrivals.__getitem__)
        wires = {host: door.connect(host=host) for host in arrivals}
        for wire in wires.values():
            wire.send(request(10))
        await settle()
        assert [len(wire.answers()) for wire in wires.values()] == [1, 0, 0]
        await asyncio.sleep(0.6)
        await settle()
        assert [len(wire.answers()) for wire in wires.values()] == [1, 1, 0]
        assert [wire.closed for wire in wires.values()] == [False, False, True]
        assert len(door.members) == 2

    run(conversation())
    assert "closing 10.0.0.3:5: too many" in caplog.text
