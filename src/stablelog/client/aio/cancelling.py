"""Calls that are cancelled but still end in order."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from stablelog.client.core.steps import Result
from stablelog.errors import OutcomeUnknownError


async def to_the_end(work: Coroutine[Any, Any, Result], cancel: Callable[[], None]) -> Result:
    """Wait until `work` has ended, even if this task is cancelled, and return its result.

    Args:
        work: the work.
        cancel: called when this task is cancelled, to make `work` end soon.

    Raises:
        asyncio.CancelledError: this task was cancelled. `work` has ended, with a result or an error. Its cause is an
            OutcomeUnknownError if the outcome of a commit is unknown.
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
