"""Long work is done in turns of the event loop."""

import asyncio

import pytest

from stablelog.broker.loop import turns
from stablelog.broker.loop.turns import Turn, free_in_turns, in_turns


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Each turn is over at once."""
    monkeypatch.setattr(turns, "TURN_S", -1)


def turn_of_each_step(count, at_once):
    """The number of the turn in which each item was processed, and then that of the work that follows."""
    return numbers_of_turns(lambda: in_turns(range(count), at_once=at_once))


def numbers_of_turns(items):
    """The number of the turn in which each item comes, and then that of the work that follows."""

    async def work():
        number = 0

        async def count_turns():
            nonlocal number
            while True:
                number += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count_turns())
        await asyncio.sleep(0)
        begun = number
        numbers = [number - begun async for _ in items()]
        numbers.append(number - begun)
        counting.cancel()
        return numbers

    return asyncio.run(work())


def test_few_items_and_what_follows_are_processed_in_one_turn():
    assert turn_of_each_step(3, at_once=3) == [0, 0, 0, 0]


def test_work_that_follows_many_items_begins_in_a_turn_of_its_own():
    assert turn_of_each_step(5, at_once=2) == [0, 0, 1, 2, 3, 4]


def test_no_items_take_no_turn():
    assert turn_of_each_step(0, at_once=1) == [0]


def test_the_loops_within_a_loop_share_its_turn():
    """Each inner loop is so short that a turn of its own would never be over."""

    async def work(groups):
        turn = Turn()
        async for group in in_turns(groups, turn=turn):
            async for item in in_turns(group, turn=turn):
                yield item

    assert len(set(numbers_of_turns(lambda: work([range(1)] * 5)))) == 5 + 1


def test_the_items_of_dicts_and_lists_are_freed_in_turns():
    freed_in = []
    names, offsets = {"first": Freed(freed_in), "second": Freed(freed_in)}, [Freed(freed_in)]

    async def work():
        freeing = asyncio.ensure_future(free_in_turns(names, offsets))
        turn = 0
        while not freeing.done():
            await asyncio.sleep(0)
            freed_in.append(turn := turn + 1)

    asyncio.run(work())
    assert not names
    assert not offsets
    freed = [at for at, entry in enumerate(freed_in) if entry == "freed"]
    assert len(freed) == 3
    assert freed[1] > freed[0] + 1, "other work runs between two items"


class Freed:
    """Notes when it is freed."""

    def __init__(self, notes):
        self.notes = notes

    def __del__(self):
        self.notes.append("freed")


def test_one_turn_of_long_work_begins_in_each_iteration_however_much_long_work_there_is():
    """Short requests wait for one turn, and the long ones take turns."""

    async def work():
        order, iteration = [], 0

        async def long_work(name):
            async for _ in in_turns(range(5)):
                order.append((name, iteration))  # noqa: PERF401 - the order of all tasks

        running = [asyncio.ensure_future(long_work(name)) for name in range(8)]
        await asyncio.sleep(0)
        while not all(one.done() for one in running):
            iteration += 1
            await asyncio.sleep(0)
        later = [at for _, at in order if at]
        assert len(later) == len(set(later)), "two turns in one iteration"
        assert [name for name, at in order if at][:8] == list(range(8))

    asyncio.run(work())


def test_long_work_that_is_cancelled_while_it_waits_does_not_stop_other_work():
    async def work():
        done = []

        async def long_work():
            async for item in in_turns(range(5)):
                done.append(item)  # noqa: PERF401 - the items before the cancellation

        running = [asyncio.ensure_future(long_work()) for _ in range(4)]
        await asyncio.sleep(0)
        running[0].cancel()
        running[2].cancel()
        await asyncio.gather(*running, return_exceptions=True)
        assert done.count(4) == 2

    asyncio.run(work())
