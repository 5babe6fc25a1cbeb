"""Background work of the broker: starts tasks and timers, and handles their unexpected exceptions.

Each piece of work has a name and a *scope*: the part of the broker that fails if the work raises an unexpected
exception. The exception is logged with its traceback and counted under the name. Then the scope fails: a connection is
closed; a partition goes offline until a restart; or the broker stops, and reports the exception as the reason. The work
itself handles expected errors (`StablelogError`). Only this module starts tasks and timers of the broker, and only
`broker.loop.threads` starts work in threads; `tests/test_tidy.py` checks that.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, TypeVarTuple

from stablelog.errors import StablelogError, UnavailableError
from stablelog.log.partition import Partition

log = logging.getLogger(__name__)

INTERVAL_S_MAX = 1e9  # The longest delay of a timer, in seconds: some event loops cannot wait longer.
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the broker that fails if a piece of work raises an unexpected exception.

    Attributes:
        consequence: what follows from the failure, as words for the log message, such as that the broker stops.
        fail: makes the part fail; called with the reason.
    """

    consequence: str
    fail: Callable[[UnavailableError], None]


class Tasks:
    """The background work of one broker.

    Args:
        on_failure: called once, with the reason, if the broker has to stop.
        fail_partition: takes a partition offline; called when work that concerns only this partition has failed.

    Attributes:
        error_counts: the number of unexpected exceptions, by the name of the work.
        failure: the reason for which the broker has to stop; None while it works.
        broker: the scope (the part of the broker that fails with a piece of work) of all work that concerns more than
            one partition or connection. If such work fails, the broker stops.
    """

    def __init__(
        self,
        on_failure: Callable[[BaseException], None],
        fail_partition: Callable[[Partition, UnavailableError], None] = lambda partition, why: (
            partition.availability.mark_failed(why)
        ),
    ) -> None:
        self._on_failure = [on_failure]
        self._fail_partition = fail_partition
        self._running: set[asyncio.Task[None]] = set()
        self._for_requests: set[asyncio.Task[Any]] = set()
        self.error_counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.broker = Scope("the broker stops", self.stop_broker)

    # -- scopes ------------------------------------------------------------------------------------------------

    def partition_scope(self, partition: Partition) -> Scope:
        """Return the scope of work that concerns one partition only. A scope is the part of the broker that fails if
        the work does: here the partition, which goes offline.
        """
        return Scope(
            f"{partition.topic}-{partition.index} is offline until a restart",
            lambda why: self._fail_partition(partition, why),
        )

    def before_failure(self, callback: Callable[[BaseException], None]) -> None:
        """Register a callback for the failure of the broker. It is called with the reason for the failure. The callback
        that was registered last is called first.
        """
        self._on_failure.insert(0, callback)

    def stop_broker(self, reason: BaseException) -> None:
        """Stop the broker because of a failure.

        No write is acknowledged after this call. Only the reason of the first call is recorded.
        """
        if self.failure is None:
            self.failure = reason
            for callback in self._on_failure:
                callback(reason)

    def report_unexpected(self, name: str, scope: Scope, error: Exception) -> None:
        """Log an unexpected exception with its traceback, count it under the name of the work, and let the scope fail:
        the connection, the partition or the broker that the work belongs to.
        """
        self.error_counts[name] += 1
        log.error("unexpected error in %s. The consequence: %s", name, scope.consequence, exc_info=error)
        scope.fail(UnavailableError(f"{name} failed unexpectedly: {error!r}; the log has the traceback"))

    @contextlib.contextmanager
    def guard(self, name: str, scope: Scope) -> Iterator[None]:
        """Context that handles an unexpected exception of the `with` block: the exception is logged and counted, the
        scope fails, and the program continues after the block.

        Args:
            name: name of the work, in the log and in the metric.
            scope: the part of the broker that fails after an exception.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 - any exception fails the scope, and nothing else
            self.report_unexpected(name, scope, error)

    def watch_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Log and count from now on the exceptions that the event loop itself catches, such as those of a transport
        (the loop's object for a socket).

        After an exception in a transport, the loop closes the connection of this transport.
        """

        def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            if isinstance(context.get("exception"), Exception):
                self.error_counts["event loop"] += 1
            loop.default_exception_handler(context)

        loop.set_exception_handler(handle)

    # -- tasks -------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        work: Callable[[*Arguments], Coroutine[Any, Any, None]],
        *arguments: *Arguments,
        scope: Scope | None = None,
    ) -> asyncio.Task[None]:
        """Run `work` as a task until it ends or `stop` cancels it. Every exception that `work` raises is unexpected.

        Args:
            name: name of the work, in the log and in the metric.
            work: called in the task.
            *arguments: passed to `work`.
            scope: the part of the broker that fails after an exception; None for the whole broker.
        """

        async def guarded() -> None:
            with self.guard(name, scope or self.broker):
                await work(*arguments)

        task = asyncio.create_task(guarded(), name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    @staticmethod
    def start_request(
        work: Coroutine[Any, Any, None], on_end: Callable[[asyncio.Task[None]], None]
    ) -> asyncio.Task[None]:
        """Run the work on a request of a connection as a task.

        Args:
            work: handles its own exceptions. The connection may cancel the task.
            on_end: called with the task when it has ended.
        """
        task = asyncio.create_task(work)
        task.add_done_callback(on_end)
        return task

    def every(
        self,
        name: str,
        interval_s: float,
        step: Callable[[], Awaitable[None]],
        *,
        first_at_once: bool = False,
        pause_s: Callable[[], float] | None = None,
    ) -> asyncio.Task[None]:
        """Run `step` again and again, with pauses, until `stop` is called. An unexpected exception stops the broker.

        If a step raises a StablelogError, the error is logged, but only once until a step succeeds again. The next step
        is made as usual.

        Args:
            name: name of the work, in the log and in the metric.
            interval_s: the pause before each step, in seconds.
            step: does the work once.
            first_at_once: whether there is no pause before the first step.
            pause_s: returns the pause before the next step, if it is not always `interval_s`.
        """

        async def steps() -> None:
            failed = False
            next_s = 0.0 if first_at_once else interval_s
            while True:
                await asyncio.sleep(min(next_s, INTERVAL_S_MAX))
                try:
                    await step()
                except StablelogError as error:
                    if not failed:
                        log.error(
                            "the broker's task '%s' failed; the broker retries this task every %g s: %s",
                            name,
                            interval_s,
                            error,
                        )
                    failed = True
                else:
                    failed = False
                next_s = interval_s if pause_s is None else pause_s()

        return self.start(name, steps)

    async def run_for_request(self, name: str, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run `work` to its end for a request, even if the request is cancelled meanwhile because its connection is
        lost.

        Raises:
            StablelogError: raised by `work`.
            UnavailableError: `work` raised an unexpected exception, which is logged.
        """

        async def contained() -> Result:
            try:
                return await work()
            except StablelogError:
                raise
            except Exception as error:
                failed = UnavailableError(f"{name} failed unexpectedly: {error!r}; the log has the traceback")
                self.report_unexpected(name, Scope("the request fails", lambda _why: None), error)
                raise failed from error

        task = asyncio.create_task(contained(), name=name)
        self._for_requests.add(task)
        task.add_done_callback(self._for_requests.discard)
        # Mark the exception of the work as seen: if the request was cancelled, no task waits for the result, and
        # asyncio would log the exception as never retrieved.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    def request_work_names(self) -> Iterator[str]:
        """Yield the names of the work that `run_for_request` has started and that has not ended."""
        return (task.get_name() for task in self._for_requests)

    async def finish_request_work(self) -> None:
        """Wait until all work that `run_for_request` has started has ended."""
        await asyncio.gather(*self._for_requests, return_exceptions=True)

    async def stop(self) -> None:
        """Wait for the work of `run_for_request`, cancel all other tasks, and wait until they have ended."""
        await self.finish_request_work()
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    # -- callbacks and threads ---------------------------------------------------------------------------------

    def later(
        self,
        name: str,
        delay_s: float,
        callback: Callable[[*Arguments], object],
        *arguments: *Arguments,
        scope: Scope | None = None,
    ) -> asyncio.TimerHandle:
        """Call `callback` after `delay_s` seconds.

        Args:
            name: name of the work, in the log and in the metric.
            delay_s: the delay in seconds.
            callback: called with the arguments.
            *arguments: passed to `callback`.
            scope: the part of the broker that fails after an exception; None for the whole broker.
        """
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_s, self._call, name, scope or self.broker, callback, *arguments)

    def soon(
        self,
        name: str,
        callback: Callable[[*Arguments], object],
        *arguments: *Arguments,
        scope: Scope | None = None,
    ) -> asyncio.Handle:
        """Call `callback` in the next turn of the event loop.

        Args:
            name: name of the work, in the log and in the metric.
            callback: called with the arguments.
            *arguments: passed to `callback`.
            scope: the part of the broker that fails after an exception; None for the whole broker.
        """
        loop = asyncio.get_running_loop()
        return loop.call_soon(self._call, name, scope or self.broker, callback, *arguments)

    def _call(
        self,
        name: str,
        scope: Scope,
        callback: Callable[[*Arguments], object],
        *arguments: *Arguments,
    ) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001 - any exception fails the scope, and nothing else
            self.report_unexpected(name, scope, error)
