"""Calls of asyncio programs that may be cancelled but still run to their end, so that the caller knows what they have
done.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stablelog.client.core.steps import Result
from stablelog.errors import OutcomeUnknownError


async def to_the_end(work: Coroutine[Any, Any, Result], cancel: Callable[[], None]) -> Result:
    """Wait until `work`, the I/O of a call, has ended, even if this task is cancelled meanwhile. Return its result;
    after a cancellation, raise CancelledError instead.

    Args:
        work: the coroutine to wait for. It runs in a task of its own, so that a cancellation of this task does not end
            it.
        cancel: called when this task is cancelled. It lets `work` end soon.

    Raises:
        asyncio.CancelledError: this task was cancelled. `work` has ended, with a result or an error. If `work` has
            raised an OutcomeUnknownError (it is not known whether a transaction is committed), that is the cause of the
            CancelledError.
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
            failure = working.exception()  # marks the exception as retrieved, so that asyncio does not log it
            if isinstance(failure, OutcomeUnknownError):
                raise cancelled from failure  # it says that a commit is in flight, and what to do
        raise cancelled
    return working.result()
