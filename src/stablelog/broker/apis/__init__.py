"""One module per Kafka API: what is done with a request.

Each has `async def handle(broker, request, context)`, with request and answer in the newest shape of the API;
`stablelog.wire.messages` takes care of older ones. Which versions are spoken: docs/protocol.md.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import TypeVar

NO_THROTTLE = timedelta(0)
TURN_S = 0.01

Item = TypeVar("Item")


async def in_turns(items: Iterable[Item]) -> AsyncIterator[Item]:
    """The items of a request one by one; when that takes long, others are served in between."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for item in items:
        if loop.time() - began_s > TURN_S:
            await asyncio.sleep(0)
            began_s = loop.time()
        yield item
