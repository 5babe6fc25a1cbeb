"""Who waits for a partition to show more: long polls.

A fetch waits on what its own isolation can see: the high watermark, or the last stable offset. It is woken when
that moves, looks again, and waits on if it is not enough.
"""

import asyncio
from collections.abc import Iterable

from stablelog.log.partition import Isolation, Partition


class Waiters:
    """Long polls by partition."""

    def __init__(self) -> None:
        self._waiting: dict[Partition, set[asyncio.Future[bool]]] = {}

    async def wait_for_more(
        self, seen: Iterable[tuple[Partition, int]], isolation: Isolation, timeout_s: float
    ) -> bool:
        """Wait until one of the partitions can show an offset past the one that was seen.

        Args:
            seen: each partition with its visible end when the caller looked.
            isolation: which end that was.
            timeout_s: how long to wait at most.

        Returns:
            False if the time ran out.
        """
        seen = list(seen)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not any(partition.visible_end(isolation) > end for partition, end in seen):
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or not await self._woken([partition for partition, _ in seen], left):
                return False
        return True

    async def _woken(self, partitions: list[Partition], timeout_s: float) -> bool:
        """Whether it was woken; False when the time ran out before."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(timeout_s, _finish, future, False)
        for partition in partitions:
            self._waiting.setdefault(partition, set()).add(future)
        try:
            return await future
        finally:
            timer.cancel()
            for partition in partitions:
                waiting = self._waiting.get(partition)
                if waiting is not None:
                    waiting.discard(future)
                    if not waiting:
                        del self._waiting[partition]

    def wake(self, partition: Partition) -> None:
        """The partition shows more, or is gone: let its waiters look again."""
        for future in self._waiting.pop(partition, ()):
            _finish(future, True)


def _finish(future: "asyncio.Future[bool]", is_woken: bool) -> None:
    if not future.done():
        future.set_result(is_woken)
