"""Long polls: Fetch requests that wait for more records of a partition, or until a partition is open.

A fetch reads up to an end offset that depends on its isolation level: the high watermark or the last stable offset. A
long poll wakes when this end offset of one of its partitions moves, or when a partition is deleted or fails. It then
checks its partitions, and waits again if they have too few bytes. For a partition that is not open yet, the long poll
is registered under the name of the topic and the index of the partition, and wakes when the partition opens.

A fetch of many partitions reads them in several turns of the event loop, between which other tasks run. It registers
the name of a partition that is not open as soon as it has tried to read this partition. If the partition opens in a
later turn, before the fetch waits, the wait ends at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.log.partition import Isolation, Partition
from stablelog.types import TopicPartition

Key = Partition | TopicPartition


class LongPolls:
    """All long polls (Fetch requests that wait for more records), by the partition that they wait for: an open
    partition, or the name of one that is not open.

    Args:
        tasks: starts the timers of the long polls.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: dict[Key, set[LongPoll]] = {}
        self._has_ended = False  # Whether the broker stops, so that no long poll waits any more.

    def __len__(self) -> int:
        """The sum, over all long polls, of the number of partitions that the long poll waits for."""
        return sum(map(len, self._waiting.values()))

    @contextlib.contextmanager
    def begin_poll(self) -> Iterator["LongPoll"]:
        """Context with a long poll as its value. The long poll ends with the `with` block."""
        poll = LongPoll(self._tasks, self._register)
        try:
            yield poll
        finally:
            self._remove_poll(poll, poll.names)

    async def wait_for_more(
        self, poll: "LongPoll", seen: Iterable[tuple[Partition, int]], isolation: Isolation, timeout_s: float
    ) -> bool:
        """Wait until a partition has more records to read, has failed or was deleted, or until one that was not open
        may be open.

        Args:
            poll: the long poll. It contains the names of the partitions that were not open.
            seen: (open partition, end offset) for each open partition. The caller could read up to the end offset,
                which is exclusive.
            isolation: the isolation level of the reader. Up to which offset the reader can read depends on it: the high
                watermark or the last stable offset.
            timeout_s: the longest wait, in seconds.

        Returns:
            True if the caller should read again. False if the timeout has passed, or if the broker stops.
        """
        if self._has_ended:
            return False
        deadline = asyncio.get_running_loop().time() + timeout_s
        ends = dict(seen)
        try:
            return await self._wait(poll, ends, isolation, deadline)
        finally:
            self._remove_poll(poll, ends)
            if len(ends) > AT_ONCE_MAX:
                # Next, the caller reads all partitions of the fetch. Let other tasks of the event loop run before that.
                await asyncio.sleep(0)

    async def _wait(
        self, poll: "LongPoll", ends: Mapping[Partition, int], isolation: Isolation, deadline: float
    ) -> bool:
        async with contextlib.aclosing(in_turns(ends.items())) as looked_at:
            async for partition, end in looked_at:
                self._register(partition, poll)
                if partition.visible_end(isolation) > end or partition.failure is not None:
                    return True
        while True:
            async with contextlib.aclosing(in_turns(poll.take_woken_keys())) as looked_at:
                async for key in looked_at:
                    # A key that is a name stands for a partition that was not open. Only the caller can check whether
                    # the partition is open now.
                    if isinstance(key, tuple) or key.visible_end(isolation) > ends[key]:
                        return True
                    if key.failure is not None:  # It has failed, or was deleted.
                        return True
            if self._has_ended or not await poll.wait_until_woken(deadline):
                return False

    def _register(self, key: Key, poll: "LongPoll") -> None:
        self._waiting.setdefault(key, set()).add(poll)

    def _remove_poll(self, poll: "LongPoll", keys: Iterable[Key]) -> None:
        for key in keys:
            polls = self._waiting.get(key)
            if polls is not None:
                polls.discard(poll)
                if not polls:
                    del self._waiting[key]

    def end_all(self) -> None:
        """End all long polls, and let no later one wait, because the broker stops."""
        self._has_ended = True
        for polls in self._waiting.values():
            for poll in polls:
                poll.end_wait()

    def wake(self, partition: Partition) -> None:
        """Wake the long polls that wait for a partition: it has more records to read, was opened, has failed, or was
        deleted.
        """
        if not self._waiting:
            return
        for key in (partition, (partition.topic, partition.index)):
            for poll in self._waiting.get(key, ()):
                poll.wake(key)


class LongPoll:
    """One long poll: a Fetch request that waits for more records of its partitions.

    Attributes:
        names: the partitions that were not open when the caller tried to read them.
        moved: the partitions that have woken the long poll since the last call of `take_woken_keys`. Only these have to
            be checked.
    """

    def __init__(self, tasks: Tasks, register: "Callable[[Key, LongPoll], None]") -> None:
        self.names: list[TopicPartition] = []
        self.moved: dict[Key, None] = {}
        self._tasks = tasks
        self._register = register
        self._woken: asyncio.Future[bool] | None = None

    def wait_for_partition(self, name: TopicPartition) -> None:
        """Register the long poll for a partition that is not open: from now on, the opening of the partition wakes it."""
        self.names.append(name)
        self._register(name, self)

    def take_woken_keys(self) -> list[Key]:
        """Return the keys of the partitions that have woken the long poll since the last call, and clear `moved`. A key
        is an open partition, or the name of a partition that was not open.
        """
        moved = list(self.moved)
        self.moved.clear()
        return moved

    async def wait_until_woken(self, deadline: float) -> bool:
        """Wait until a partition wakes the long poll.

        Args:
            deadline: the end of the wait, in seconds of the event loop.

        Returns:
            True if a partition has woken the long poll; False if the deadline has passed before that.
        """
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time()
        if left_s <= 0:
            return False
        if self.moved:
            return True
        self._woken = loop.create_future()
        timer = self._tasks.later("long poll", left_s, _set_result, self._woken, False)
        try:
            return await self._woken
        finally:
            timer.cancel()

    def wake(self, key: Key) -> None:
        """Wake the long poll, and add the partition that has woken it to `moved`."""
        self.moved[key] = None
        if self._woken is not None:
            _set_result(self._woken, True)

    def end_wait(self) -> None:
        """End the wait of the long poll, as if its timeout had passed: the fetch is then answered with the records that
        there are.
        """
        if self._woken is not None:
            _set_result(self._woken, False)


def _set_result(future: "asyncio.Future[bool]", is_woken: bool) -> None:
    if not future.done():
        future.set_result(is_woken)
