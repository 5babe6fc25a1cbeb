"""Work of the broker in threads, so that it does not block the event loop.

An exception in a thread is raised in the task that waits for the thread, without the local variables of its traceback: they
may be large buffers. Only `start_thread` starts a thread for which no task waits.
"""

import asyncio
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from concurrent.futures import Executor
from enum import Enum
from typing import Final, TypeVar, TypeVarTuple

log = logging.getLogger(__name__)

# Only one thread at a time runs Python code. If the threads of `each_in_threads` use more than this share of one
# processor, another thread would only compete for the interpreter: 8 threads that open files in the page cache take 1.7
# times as long as one thread.
BUSY_SHARE = 0.6
# The number of seconds after which `each_in_threads` measures the used share of a processor, and may add a thread.
ADD_INTERVAL_S = 0.05


class EndOfWork(Enum):
    """The type of END, the value that stands for the end of an iterator or of a queue: `next_in_thread` returns it
    after the last item.
    """

    END = "end"


END: Final = EndOfWork.END

Item = TypeVar("Item")
Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def start_thread(name: str, work: Callable[[], None]) -> None:
    """Run `work` in a new thread, for which no task waits. An exception of `work` is logged. The thread is a daemon:
    the process can end while the thread runs.
    """

    def run() -> None:
        try:
            work()
        except Exception:
            log.exception("unexpected error in the thread %s, which has ended", name)

    threading.Thread(target=run, name=name, daemon=True).start()


def ask_loop(loop: asyncio.AbstractEventLoop, answer: Callable[[], None]) -> None:
    """Let an event loop call `answer` soon, from another thread. `answer` raises no exception.

    Raises:
        RuntimeError: the loop is closed.
    """
    loop.call_soon_threadsafe(answer)


async def in_thread_to_its_end(
    threads: Executor | None, work: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Run `work` in a thread, as `in_thread` does. If the caller is cancelled, wait nevertheless until the thread has
    ended.

    This is for work that reads memory of the caller: the caller frees the memory, or uses it again, when this call has
    ended.
    """
    done = asyncio.get_running_loop().run_in_executor(threads, _with_freed_frames, work, *arguments)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        await asyncio.wait([done])
        if not done.cancelled():
            # The caller was cancelled, so no task waits for the result. Without this call asyncio would log an
            # exception of the thread as never retrieved.
            done.exception()
        raise
    finally:
        # The future refers to the exception, its traceback to this frame, and this frame to the future. Without this
        # cycle the exception is freed at once, and not by the next garbage collection.
        del done


async def in_thread(
    threads: Executor | None, work: Callable[[*Arguments], Result], *arguments: *Arguments
) -> Result:
    """Run `work` in a thread, and return its result or raise its exception.

    Args:
        threads: the thread pool; None for the default thread pool of the event loop.
        work: called in the thread.
        *arguments: passed to `work`.
    """
    return await asyncio.get_running_loop().run_in_executor(threads, _with_freed_frames, work, *arguments)


def _with_freed_frames(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Call `work`, and return its result. An exception of `work` is raised again, after the local variables to which
    its traceback refers were freed (see `free_frames`).
    """
    try:
        return work(*arguments)
    except BaseException as error:
        free_frames(error)
        raise


def free_frames(error: BaseException) -> None:
    """Free the local variables to which the tracebacks of an exception and of its causes refer: they may be large
    buffers.

    The tracebacks keep their lines. Functions that are still running keep their variables.
    """
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            waiting += (one.__cause__, one.__context__)


async def next_in_thread(threads: Executor, pieces: Iterator[Item]) -> Item | EndOfWork:
    """Compute the next item of an iterator in a thread, and return it; END if there is none."""
    return await in_thread(threads, next, pieces, END)


async def each_in_threads(
    threads: Executor,
    thread_count_max: int,
    work: Callable[[Item], Result],
    items: Iterable[Item],
    thread_s: Callable[[], float] = time.thread_time,
) -> AsyncGenerator[tuple[Item, Result | Exception]]:
    """Run `work` on each item in several threads; yield each item with its result or exception as soon as it is
    complete.

    The work begins in one thread. Every ADD_INTERVAL_S seconds another thread is added if the threads seem to wait for
    the disk: no item was completed in this time, or the completed items used at most the share BUSY_SHARE of it as
    processor time. If the caller is cancelled, no more items are started.

    One wake-up of the event loop handles all items that have been completed so far. `in_thread` would wake the loop for
    each item, which costs more than a short piece of work.

    Args:
        threads: the thread pool that runs `work`.
        thread_count_max: how many items are processed at a time, at most.
        work: called with an item.
        items: the items, in the order in which work on them starts.
        thread_s: returns the processor time of the calling thread, in seconds. Tests pass a function of their own.

    Raises:
        BaseException: raised by `work`, if it is not an Exception.
    """
    loop = asyncio.get_running_loop()
    waiting = deque(items)
    left = len(waiting)
    outcomes: deque[tuple[Item, Result | BaseException]] = deque()
    woken = asyncio.Event()
    is_waking = False
    # The processor time of each item that was completed since the last call of `add_thread`.
    spent_s: deque[float] = deque()

    def run() -> None:
        nonlocal is_waking
        while (item := _pop_first(waiting)) is not END:
            begun_s = thread_s()
            outcome = _run_caught(work, item)
            spent_s.append(thread_s() - begun_s)
            outcomes.append((item, outcome))
            del outcome  # The traceback of an exception refers to this frame: together they would be a cycle.
            # This thread stores the outcome first, and reads `is_waking` then. The caller clears `is_waking` first, and
            # takes the outcomes then. So no outcome is missed: either this thread wakes the caller, or the caller is
            # awake and finds the outcome.
            if not is_waking:
                is_waking = True
                loop.call_soon_threadsafe(woken.set)

    running = [loop.run_in_executor(threads, run)] if left else []
    measured_s = loop.time()
    adding: asyncio.TimerHandle

    def add_thread() -> None:
        nonlocal adding, measured_s
        now_s = loop.time()
        is_busy = bool(spent_s) and sum(spent_s) > BUSY_SHARE * (now_s - measured_s)
        spent_s.clear()
        measured_s = now_s
        if not waiting or len(running) == thread_count_max:
            return
        if not is_busy:
            try:
                running.append(loop.run_in_executor(threads, run))
            except RuntimeError as error:  # The process may have no more threads. The others go on.
                log.warning(
                    "the broker cannot start another thread, so the running threads do all the work: %s",
                    error,
                )
                return
        adding = loop.call_later(ADD_INTERVAL_S, add_thread)

    adding = loop.call_later(ADD_INTERVAL_S, add_thread)
    try:
        while left:
            await woken.wait()
            woken.clear()
            is_waking = False
            while outcomes:
                left -= 1
                item, outcome = outcomes.popleft()
                if isinstance(outcome, BaseException) and not isinstance(outcome, Exception):
                    raise outcome
                yield item, outcome
        await asyncio.gather(*running)
    finally:
        adding.cancel()
        waiting.clear()


def _run_caught(work: Callable[[Item], Result], item: Item) -> Result | BaseException:
    """Return the result of `work`, or the exception that it raises, with the variables of its traceback freed."""
    try:
        return work(item)
    except BaseException as error:  # noqa: BLE001 - the caller gets the exception
        free_frames(error)
        return error


def _pop_first(waiting: deque[Item]) -> Item | EndOfWork:
    """Remove and return the first waiting item; END if none is left. Several threads may call this at the same time."""
    try:
        return waiting.popleft()
    except IndexError:
        return END
