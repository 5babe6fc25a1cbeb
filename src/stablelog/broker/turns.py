"""Long work on the event loop is done in turns, and others are served in between.

The markers of a transaction in few partitions are written in one turn, whatever the clock says, and few partitions become
durable in one. So a ListOffsets request for these partitions shows the end of the transaction in all of them or in none,
unless many other partitions become durable at the same time.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from typing import TypeVar

TURN_S = 0.005
AT_ONCE_MAX = (
    100  # partitions that are worked on in one turn, whatever the clock says: a millisecond or a few
)

Item = TypeVar("Item")


class Turn:
    """Says when work that began now has held the event loop for long enough."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end_s = self._loop.time() + TURN_S

    @property
    def is_over(self) -> bool:
        """Whether the work should go on in a later turn of the loop."""
        return self._loop.time() > self._end_s


async def in_turns(items: Iterable[Item], *, at_once: int = 1) -> AsyncGenerator[Item]:
    """The items one by one; when that takes long, others are served in between.

    Args:
        items: what is worked on.
        at_once: so many items are not divided.
    """
    turn = Turn()
    for number, item in enumerate(items):
        if number and number % at_once == 0 and turn.is_over:
            await asyncio.sleep(0)
            turn = Turn()
        yield item
