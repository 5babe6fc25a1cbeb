"""Long polls: fetches that wait for more records in a partition, or for its opening.

A fetch waits for the end offset that its isolation level can see: the high watermark or the last stable offset. When
that offset moves, the fetch wakes, checks its partitions, and waits again if they have too few bytes. For a partition
that is not open yet, the fetch waits under the name of the topic and the index of the partition.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence

from stablelog.broker.loop.tasks import Tasks
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.log.partition import Isolation, Partition
from stablelog.types import TopicPartition

Key = Partition | TopicPartition


class Waiters:
    """All long polls, by the partition that they wait for: an open partition, or the name of one that is not open.

    Args:
        tasks: starts the timers of the long polls.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: dict[Key, set[_Poll]] = {}

    def __len__(self) -> int:
        """The sum, over all long polls, of the partitions that each poll waits for."""
        return sum(map(len, self._waiting.values()))

    async def wait_for_more(
        self,
        seen: Iterable[tuple[Partition, int]],
        isolation: Isolation,
        timeout_s: float,
        *,
        closed: Sequence[TopicPartition] = (),
    ) -> bool:
        """Wait until an open partition has more records to read, or a partition that was not open may be open.

        Args:
            seen: each open partition, with the end offset that the reader could see when the caller read the partition.
            isolation: the isolation level of the reader, which determines this end offset.
            timeout_s: the maximum wait.
            closed: the names of partitions that were not open when the caller has tried to read them.

        Returns:
            False if the timeout has passed.
        """
        deadline = asyncio.get_running_loop().time() + timeout_s
        ends = dict(seen)
        poll = _Poll(self._tasks)
        try:
            for name in closed:
                self._register(name, poll)
            return await self._wait(poll, ends, isolation, deadline)
        finally:
            self._forget(poll, (*closed, *ends))
            if len(ends) > AT_ONCE_MAX:
                # Next, the caller reads all partitions of the fetch. Let other tasks of the event loop run before that.
                await asyncio.sleep(0)

    async def _wait(
        self, poll: "_Poll", ends: Mapping[Partition, int], isolation: Isolation, deadline: float
    ) -> bool:
        async with contextlib.aclosing(in_turns(ends.items())) as looked_at:
            async for partition, end in looked_at:
                self._register(partition, poll)
                if partition.visible_end(isolation) > end:
                    return True
        while True:
            async with contextlib.aclosing(in_turns(poll.take_moved())) as looked_at:
                async for key in looked_at:
                    # A key that is a name stands for a partition that was not open. Only the caller can check whether
                    # the partition is open now.
                    if isinstance(key, tuple) or key.visible_end(isolation) > ends[key]:
                        return True
            if not await poll.moves(deadline):
                return False

    def _register(self, key: Key, poll: "_Poll") -> None:
        self._waiting.setdefault(key, set()).add(poll)

    def _forget(self, poll: "_Poll", keys: Iterable[Key]) -> None:
        for key in keys:
            polls = self._waiting.get(key)
            if polls is not None:
                polls.discard(poll)
                if not polls:
                    del self._waiting[key]

    def wake(self, partition: Partition) -> None:
        """Wake the long polls that wait for a partition: it has more records to read, was opened, or was deleted."""
        if not self._waiting:
            return
        for key in (partition, (partition.topic, partition.index)):
            for poll in self._waiting.get(key, ()):
                poll.wake(key)


class _Poll:
    """One long poll.

    Attributes:
        moved: the partitions that have woken the poll since the last call of `take_moved`. The poll checks only these
            partitions.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.moved: dict[Key, None] = {}
        self._tasks = tasks
        self._woken: asyncio.Future[bool] | None = None

    def take_moved(self) -> list[Key]:
        """Return the partitions that have woken the poll since the last call, and clear `moved`."""
        moved = list(self.moved)
        self.moved.clear()
        return moved

    async def moves(self, deadline: float) -> bool:
        """Wait until a partition wakes the long poll. Returns False if the deadline has passed before that."""
        loop = asyncio.get_running_loop()
        left_s = deadline - loop.time()
        if left_s <= 0:
            return False
        if self.moved:
            return True
        self._woken = loop.create_future()
        timer = self._tasks.later("long poll", left_s, _finish, self._woken, False)
        try:
            return await self._woken
        finally:
            timer.cancel()

    def wake(self, key: Key) -> None:
        """Wake the long poll for a partition, and add the partition to `moved`."""
        self.moved[key] = None
        if self._woken is not None:
            _finish(self._woken, True)


def _finish(future: "asyncio.Future[bool]", is_woken: bool) -> None:
    if not future.done():
        future.set_result(is_woken)
