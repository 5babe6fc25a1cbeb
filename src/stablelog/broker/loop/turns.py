"""Turns: long work on the event loop is done in slices, one in each turn, and other tasks run between two turns.

The first AT_ONCE_MAX items of some work are processed in one turn, however long it takes. This matters for
transactions: the markers of a transaction in at most AT_ONCE_MAX partitions are written in one turn, and become durable
in one turn. A ListOffsets request for these partitions therefore sees the end of the transaction in all of them or in
none, unless many other partitions become durable at the same time. For the markers of a joint commit, which commits the
transactions of several producers together, the limit is `marker_queue.MARKERS_AT_ONCE_MAX`.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, MutableMapping
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

TURN_S = 0.0025
# The number of partitions that are always processed in one turn of the event loop; this takes a few milliseconds at
# most.
AT_ONCE_MAX = 100

Item = TypeVar("Item")


# Held by the one task of a loop that waits for its next turn. Other long work waits for the lock, in order: in each
# iteration of the loop one turn begins at most. Short requests therefore wait for one turn, however many long ones there
# are.
_next_turns: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]" = WeakKeyDictionary()


class Turn:
    """The present turn of some long work on the event loop: the slice that is done before other tasks run. A turn has a
    time limit. The first turn begins when this object is made.

    Attributes:
        number: the number of turns that have ended.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + TURN_S
        self._next = _next_turns.setdefault(self._loop, asyncio.Lock())
        self.number = 0

    async def end(self) -> None:
        """End this turn: let other tasks run, and then begin the next turn."""
        async with self._next:
            await asyncio.sleep(0)
        self.number += 1
        self._end_s = self._loop.time() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether the time limit of this turn has passed, so that the work should call `end` to let other tasks run."""
        return self._loop.time() > self._end_s


async def in_turns(
    items: Iterable[Item], *, at_once: int = 1, turn: Turn | None = None
) -> AsyncGenerator[Item]:
    """Yield the items one by one. If the caller's work on the items takes long, it is divided into turns: other tasks
    run between two items.

    If other tasks ran between two items, they also run after the last item. Otherwise the last slice and the caller's
    next work would block the event loop as one long piece.

    Args:
        items: the items to process.
        at_once: this many of the first items are processed in one turn, however long it takes. It has no effect with
            `turn`.
        turn: the turn that the caller has begun. It is needed for a loop within another loop, such as the loop over the
            partitions of each topic: both loops then share one time limit. If the inner loop began a new turn for each
            topic, short inner loops would never reach their time limits, however long the outer loop takes. None to
            begin a new turn.
    """
    if turn is not None:
        at_once = 0
    else:
        turn = Turn()
    first = turn.number
    for number, item in enumerate(items):
        if number >= at_once and turn.is_over:
            await turn.end()
        yield item
    if turn.number != first:
        await turn.end()


async def free_in_turns(*containers: MutableMapping[Any, Any] | list[Any]) -> None:
    """Remove the items of dicts and lists one after another, in several turns of the event loop, so that their memory
    is freed step by step.

    Python frees an object when its last reference goes. If 10,000 partitions, or the entries of a response about them,
    were freed in one turn, the event loop would be blocked for 10 ms and more.
    """
    removals = (
        container.pop if isinstance(container, list) else container.popitem
        for container in containers
        for _ in range(len(container))
    )
    async for remove in in_turns(removals):
        remove()
