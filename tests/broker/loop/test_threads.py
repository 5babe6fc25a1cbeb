"""Work in threads: what it raises, and how many threads work on many items."""

import asyncio
import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from stablelog.broker.loop.threads import each_in_threads, in_thread, in_thread_to_its_end
from stablelog.errors import DamageError, RefusedError


def test_what_a_thread_raises_is_raised_where_it_is_waited_for():
    async def conversation():
        with ThreadPoolExecutor(1) as threads:
            assert await in_thread(threads, divmod, 7, 2) == (3, 1)
            with pytest.raises(ZeroDivisionError):
                await in_thread(threads, divmod, 7, 0)

    asyncio.run(conversation())


async def in_one_of_the_threads(threads, work):
    outcomes = [outcome async for _, outcome in each_in_threads(threads, 1, lambda _item: work(), [None])]
    raise outcomes.pop()


@pytest.mark.extended
@pytest.mark.parametrize("run_in_thread", [in_thread, in_thread_to_its_end, in_one_of_the_threads])
def test_what_a_thread_raises_keeps_no_buffer_and_is_freed_with_its_last_reference(run_in_thread):
    """The garbage collector may come late, and passes over what it has frozen."""
    kept = []

    class Buffer:
        """Large in the broker."""

    def decompress():
        buffer = Buffer()
        kept.append(weakref.ref(buffer))
        raise DamageError("too large")

    def check():
        try:
            decompress()
        except DamageError as damaged:
            raise RefusedError(87, "refused") from damaged

    async def conversation():
        with ThreadPoolExecutor(1) as threads:
            try:
                await run_in_thread(threads, check)
            except RefusedError as refused:
                assert kept[0]() is None
                kept.append(weakref.ref(refused))
        await asyncio.sleep(0)  # the event loop keeps the future until this step of the task has ended
        assert kept[1]() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(conversation())
    finally:
        gc.enable()


def test_threads_work_on_items_and_the_loop_is_woken_for_many_at_once():
    async def conversation():
        wakes = []
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *arguments: wakes.append(arguments) or wake(*arguments)
        with ThreadPoolExecutor(1) as threads:
            outcomes = {}
            async for item, outcome in each_in_threads(threads, 3, lambda item: 10 // item, range(1000)):
                outcomes[item] = outcome
                if len(outcomes) == 1:
                    held = threading.Event()
                    threads.submit(held.set)  # a thread is free for this when all items are done
                    assert held.wait(60)
        assert isinstance(outcomes.pop(0), ZeroDivisionError)
        assert outcomes == {item: 10 // item for item in range(1, 1000)}
        assert len(wakes) < 20
        async for _ in each_in_threads(threads, 3, str, ()):
            raise AssertionError("there is no item")

    asyncio.run(conversation())


@contextlib.contextmanager
def ends(steps):
    """Let all work end when the block ends, so that a failed assertion does not wait for the threads."""
    try:
        yield
    finally:
        steps.release(10)


def test_threads_are_added_while_they_wait_for_the_disk(caplog):
    async def conversation():
        loop = asyncio.get_running_loop()
        timers, starts = [], []
        run_in_executor = loop.run_in_executor

        def start(*arguments):
            starts.append(1)
            if len(starts) == 5:
                raise RuntimeError("can't start new thread")
            return run_in_executor(*arguments)

        loop.call_later = lambda _delay, add: timers.append(add) or loop.call_soon(int)
        loop.run_in_executor = start
        steps = threading.Semaphore(0)
        spent = threading.local()

        def work(item):
            assert steps.acquire(timeout=60)
            spent.s = getattr(spent, "s", 0) + (1e9 if item else 0)

        with ThreadPoolExecutor(5) as threads, ends(steps):
            outcomes = each_in_threads(threads, 5, work, range(9), lambda: getattr(spent, "s", 0))

            async def complete_one():
                steps.release()
                await anext(outcomes)

            await complete_one()
            assert len(starts) == 1
            timers[-1]()
            assert len(starts) == 2, "the processor was idle"
            steps.release(2)
            for _ in range(2):
                await anext(outcomes)
            timers[-1]()
            assert len(starts) == 2, "the threads use the processor"
            timers[-1]()
            assert len(starts) == 3, "no item was completed"
            timers[-1]()
            timers[-1]()
            assert len(starts) == 5
            assert "cannot start another thread" in caplog.text
            for _ in range(6):
                await complete_one()
            assert [one async for one in outcomes] == []

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_the_caller_gets_the_error_if_the_first_thread_cannot_be_started():
    async def conversation():
        asyncio.get_running_loop().run_in_executor = lambda *_: divmod(1, 0)
        with ThreadPoolExecutor(1) as threads, pytest.raises(ZeroDivisionError):
            async for _ in each_in_threads(threads, 2, str, range(3)):
                pass

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_what_is_no_exception_ends_the_work_and_is_raised():
    class Crash(BaseException):
        pass

    def work(item):
        if item == 5:
            raise Crash

    async def conversation():
        with ThreadPoolExecutor(2) as threads, pytest.raises(Crash):
            async for _ in each_in_threads(threads, 2, work, range(10)):
                pass

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_threads_begin_nothing_more_once_the_outcomes_are_given_up():
    async def conversation():
        begun, may_end, both_work = [], threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def work(item):
            begun.append(item)
            if len(begun) == 2:
                loop.call_soon_threadsafe(both_work.set)
            assert may_end.wait(60)

        with ThreadPoolExecutor(2) as threads:
            outcomes = each_in_threads(threads, 2, work, range(100))
            first = asyncio.create_task(anext(outcomes))
            await both_work.wait()
            first.cancel()
            await asyncio.wait([first])
            await outcomes.aclose()
            may_end.set()
        assert len(begun) == 2

    asyncio.run(conversation())
