"""Long polls: fetches that wait for a partition to show more, or to be opened.

A fetch waits on what its own isolation can see: the high watermark, or the last stable offset. It is woken when
that moves, looks again, and waits on if it is not enough. On a partition that is not open it waits by name.
"""

import asyncio
from collections.abc import Iterable, Sequence

from stablelog.broker.tasks import Tasks
from stablelog.log.partition import Isolation, Partition

TopicPartition = tuple[str, int]


class Waiters:
    """Long polls by what they wait on: open partitions, and the names of others.

    Args:
        tasks: starts their timers.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting: dict[Partition | TopicPartition, set[asyncio.Future[bool]]] = {}

    async def wait_for_more(
        self,
        seen: Iterable[tuple[Partition, int]],
        isolation: Isolation,
        timeout_s: float,
        *,
        closed: Sequence[TopicPartition] = (),
    ) -> bool:
        """Wait until a partition can show an offset past the one that was seen, or one that was not open may be.

        Args:
            seen: each open partition with its visible end when the caller looked.
            isolation: which end that was.
            timeout_s: how long to wait at most.
            closed: partitions that were not open when the caller looked.

        Returns:
            False if the time ran out.
        """
        seen = list(seen)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not any(partition.visible_end(isolation) > end for partition, end in seen):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._woken([*(partition for partition, _ in seen), *closed], left):
                return False
            if closed:
                return True  # only the caller can tell which are open now
        return True

    async def _woken(self, keys: list[Partition | TopicPartition], timeout_s: float) -> bool:
        """Whether it was woken; False when the time ran out before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = self._tasks.later("long poll", timeout_s, _finish, future, False)
        for key in keys:
            self._waiting.setdefault(key, set()).add(future)
        try:
            return await future
        finally:
            timer.cancel()
            for key in keys:
                waiting = self._waiting.get(key)
                if waiting is not None:
                    waiting.discard(future)
                    if not waiting:
                        del self._waiting[key]

    def wake(self, partition: Partition) -> None:
        """Let the waiters of a partition look again: it shows more, was opened, or is gone."""
        for key in (partition, (partition.topic, partition.index)):
            for future in self._waiting.pop(key, ()):
                _finish(future, True)


def _finish(future: "asyncio.Future[bool]", is_woken: bool) -> None:
    if not future.done():
        future.set_result(is_woken)
