"""How long each step of the event loop takes.

A step is one callback of the loop. Its time is the processor time of the loop's thread, so other programs do not count.
"""

import contextlib
import gc
import time
from asyncio.events import Handle
from collections.abc import Iterator

import pytest

HOLD_S_MAX = 0.020  # No step of the event loop takes longer.
Hold = tuple[float, str]


@contextlib.contextmanager
def timed_steps() -> Iterator[list[Hold]]:
    """Record the steps of all event loops while the block runs: the processor time in seconds, and what ran.

    The garbage collector does not look at what was made before. `collected_again` ends that.
    """
    found: list[Hold] = []
    original = Handle._run

    def timed(handle: Handle) -> None:
        begun = time.thread_time()
        original(handle)
        found.append((time.thread_time() - begun, repr(handle)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handle, "_run", timed)
        gc.collect()
        gc.freeze()  # what other tests have left is no work of this broker
        yield found


@contextlib.contextmanager
def collected_again() -> Iterator[None]:
    """After the block, collect what `timed_steps` has kept from the collector."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as at the start of the tests


def longest(holds: list[Hold]) -> Hold:
    """The longest step."""
    return max(holds, default=(0.0, ""))
