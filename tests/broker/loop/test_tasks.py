"""Background work: an exception that nobody expects is logged, counted, and fails its scope and nothing else."""

import asyncio
import logging

import pytest

from stablelog.broker.loop.tasks import Scope, Tasks
from stablelog.errors import DiskError, UnavailableError
from tests.broker.jump import run, settle


class Failures:
    """What has failed."""

    def __init__(self):
        self.broker = []
        self.scope = []
        self.tasks = Tasks(self.broker.append)
        self.small = Scope("something small is closed", self.scope.append)


def tracebacks(caplog):
    return [record for record in caplog.records if record.exc_info]


async def broken(*arguments):
    raise KeyError(*arguments)


def test_a_task_that_raises_fails_its_scope_once_with_its_reason(caplog):
    async def conversation():
        found = Failures()
        await found.tasks.start("some work", broken, "a", scope=found.small)
        [why] = found.scope
        assert "some work" in str(why)
        assert "KeyError('a')" in str(why)
        assert found.broker == []
        assert found.tasks.error_counts == {"some work": 1}

    run(conversation())
    [record] = tracebacks(caplog)
    assert "some work" in record.getMessage()
    assert "something small is closed" in record.getMessage()
    assert "await work(*arguments)" in caplog.text, "with its traceback"


def test_a_task_of_the_broker_that_raises_stops_the_broker():
    async def conversation():
        found = Failures()
        told = []
        found.tasks.before_failure(lambda why: told.append((why, list(found.broker))))
        await found.tasks.start("broker-wide work", broken)
        await found.tasks.start("more of it", broken)
        [why] = found.broker
        assert "broker-wide work" in str(why)
        assert found.tasks.failure is why
        assert told == [(why, [])], "nothing is acknowledged any more when the broker is told to stop"
        assert found.tasks.error_counts == {"broker-wide work": 1, "more of it": 1}

    run(conversation())


@pytest.mark.parametrize("start", ["later", "soon"])
def test_so_does_a_callback(start, caplog):
    async def conversation():
        found = Failures()

        def raise_it(what):
            raise RuntimeError(what)

        delay = (0.01,) if start == "later" else ()
        getattr(found.tasks, start)("a callback", *delay, raise_it, "x", scope=found.small)
        await asyncio.sleep(1)
        assert len(found.scope) == 1
        assert found.tasks.error_counts == {"a callback": 1}

    run(conversation())
    assert len(tracebacks(caplog)) == 1


def test_work_that_is_done_again_and_again_bears_expected_errors(caplog):
    caplog.set_level(logging.ERROR)

    async def conversation():
        found = Failures()
        outcomes = [
            DiskError("writing /x failed", 28),
            DiskError("writing /x failed", 28),
            None,
            UnavailableError("again"),
        ]
        steps = []

        async def step():
            outcome = outcomes[len(steps)] if len(steps) < len(outcomes) else None
            steps.append(outcome)
            if outcome is not None:
                raise outcome

        found.tasks.every("retention", 1, step)
        await asyncio.sleep(10.5)
        assert len(steps) == 10
        await found.tasks.stop()
        assert found.broker == []
        assert found.tasks.error_counts == {}

    run(conversation())
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [
        "the broker's task 'retention'"
    ] * 2, "once until it works again"


def test_the_pause_before_the_next_step_may_depend_on_the_last_one():
    async def conversation():
        found, loop = Failures(), asyncio.get_running_loop()
        begun_s, steps = loop.time(), []

        async def step():
            steps.append(loop.time() - begun_s)
            await asyncio.sleep(4)

        found.tasks.every("copying", 10, step, pause_s=lambda: 10 - 4 * len(steps) % 8)
        await asyncio.sleep(50)
        assert steps == [10, 20, 34, 44]
        await found.tasks.stop()

    run(conversation())


def test_work_that_is_done_again_and_again_stops_the_broker_by_an_unexpected_error():
    async def conversation():
        found = Failures()
        found.tasks.every("retention", 1, broken)
        await asyncio.sleep(5)
        assert len(found.broker) == 1

    run(conversation())


def test_work_for_a_request_that_has_gone_is_done_all_the_same():
    async def conversation():
        found = Failures()
        done = []

        async def work():
            await asyncio.sleep(1)
            done.append(True)

        asked = asyncio.create_task(found.tasks.run_for_request("making", work))
        await settle()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await found.tasks.stop()
        assert done == [True]

    run(conversation())


def test_work_for_a_request_that_raises_fails_the_request_and_nothing_else(caplog):
    async def conversation():
        found = Failures()
        with pytest.raises(UnavailableError, match="making failed unexpectedly"):
            await found.tasks.run_for_request("making", broken)
        with pytest.raises(DiskError):
            await found.tasks.run_for_request("making", full)
        gone = asyncio.create_task(found.tasks.run_for_request("making", broken))
        await asyncio.sleep(0)
        gone.cancel()
        await settle()
        assert found.broker == []
        assert found.tasks.error_counts == {"making": 2}

    async def full():
        raise DiskError("writing /x failed", 28)

    run(conversation())
    assert len(tracebacks(caplog)) == 2


def test_stop_ends_what_has_not_begun_and_what_waits():
    async def conversation():
        found = Failures()
        found.tasks.start("waits", asyncio.sleep, 10**6)
        await settle()
        found.tasks.start("has not begun", broken)
        await found.tasks.stop()
        assert found.broker == []

    run(conversation())


def test_what_the_event_loop_contains_is_counted():
    async def conversation():
        found = Failures()
        loop = asyncio.get_running_loop()
        found.tasks.watch_loop(loop)
        loop.call_soon(lambda: 1 / 0)
        loop.call_exception_handler({"message": "a task was destroyed"})
        await settle()
        assert found.tasks.error_counts == {"event loop": 1}

    run(conversation())
