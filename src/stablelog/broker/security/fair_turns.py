"""Fair turns: a few places for work that takes much processor time, given to the addresses of clients in turn.

A client can begin any number of logins, and each takes milliseconds of processor time. With one queue for all clients,
the logins of other clients would wait behind all of these. Here each address has a queue of its own, and a free place
is given to the next address that waits.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator


class FairTurns:
    """Places for work that takes much processor time.

    Args:
        count: the number of places.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        # The waiting requests by address; the address whose turn is next comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, address: str) -> AsyncGenerator[None]:
        """Wait for a place, and hold it during the `async with` block. Free places go to the waiting addresses in turn.

        Args:
            address: the client's address.
        """
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_place(address)
        try:
            yield
        finally:
            self._pass_place_on()

    async def _wait_for_place(self, address: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self._pass_place_on()  # The place was given at the moment of the cancellation.
            raise

    def _pass_place_on(self) -> None:
        """Give a free place to the next address that waits. Requests that were cancelled while they waited are skipped."""
        while self._waiting:
            address = next(iter(self._waiting))
            queue = self._waiting.pop(address)
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                continue
            place = queue.popleft()
            if queue:
                self._waiting[address] = queue  # behind all other addresses
            place.set_result(None)
            return
        self._free += 1
