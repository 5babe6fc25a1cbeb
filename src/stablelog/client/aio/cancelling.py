"""Calls that end in order although their task is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stablelog.client.core.steps import Result


async def to_the_end(work: Coroutine[Any, Any, Result], cancel: Callable[[], None]) -> Result:
    """Wait for the end of `work`. If this task is cancelled meanwhile, call `cancel`, so that `work` ends soon, and
    still wait for its end.

    Raises:
        asyncio.CancelledError: this task was cancelled. `work` has ended, with a result or an error.
    """
    working = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
            cancel()
    if cancelled is not None:
        if not working.cancelled():
            working.exception()  # mark the exception as retrieved, so that asyncio does not log it
        raise cancelled
    return working.result()
