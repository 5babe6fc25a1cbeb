"""Fair turns: only a few pieces of work that take much processor time run at a time, and the addresses of clients get
their turns one after another.

A client can begin any number of logins, and each takes milliseconds of processor time. With one queue for all clients,
the logins of other clients would wait behind all of these. Here each address has a queue of its own. When a piece of
work ends, the next address that waits may begin one.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator


class FairTurns:
    """Limits how many pieces of work that take much processor time run at a time, and gives each client address its
    turn.

    Args:
        count: how many pieces of work run at a time.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        # The waiting requests by address; the address whose turn is next comes first.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, address: str) -> AsyncGenerator[None]:
        """Wait for this address's turn to do a piece of work. The work is done in the `async with` block, and its end
        gives the turn to the next address that waits.

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
        """Pass the place of a piece of work that has ended on to the next client address that waits. Requests that were
        cancelled while they waited are skipped.
        """
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
