"""Costly work is done for one address after another."""

import asyncio

from stablelog.broker.security.fair_turns import FairTurns
from tests.broker.jump import run, settle


def test_an_address_with_many_requests_does_not_delay_another():
    done = []

    async def work(turns, address):
        async with turns.turn(address):
            await asyncio.sleep(0)
            done.append(address)

    async def conversation():
        turns = FairTurns(2)
        many = [asyncio.ensure_future(work(turns, "10.0.0.1")) for _ in range(500)]
        await asyncio.sleep(0)
        await asyncio.gather(work(turns, "10.0.0.2"), work(turns, "10.0.0.3"))
        assert done.count("10.0.0.1") <= 10
        await asyncio.gather(*many)
        assert len(done) == 502

    run(conversation())


def test_a_place_is_passed_on_when_a_request_is_cancelled():
    async def conversation():
        turns = FairTurns(1)
        entered = []

        async def work(address, *, ends):
            async with turns.turn(address):
                entered.append(address)
                await ends.wait()

        first, last = asyncio.Event(), asyncio.Event()
        holder = asyncio.ensure_future(work("a", ends=first))
        await settle()
        waiting = [asyncio.ensure_future(work(address, ends=last)) for address in "bcd"]
        await settle()
        waiting[0].cancel()  # while it waits
        first.set()
        await holder
        waiting[1].cancel()  # with the place, or just before it gets the place
        await settle()
        assert entered[-1] == "d"
        last.set()
        await waiting[2]
        async with turns.turn("e"):
            entered.append("e")

    run(conversation())


def test_a_failed_request_gives_its_place_back():
    async def conversation():
        turns = FairTurns(1)
        for _ in range(3):
            try:
                async with turns.turn("a"):
                    raise ValueError
            except ValueError:
                pass

    run(conversation())
