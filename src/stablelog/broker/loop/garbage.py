"""Settings of Python's garbage collector that keep each collection short, because it blocks the event loop.

Reference counts free almost everything: partitions, connections and requests leave no cycles behind. The collector is
needed only for cycles that rare errors leave. A full collection visits all objects that are not frozen, at about 0.3
microseconds each, and 10,000 partitions are a million objects. The broker therefore collects often, and freezes the
objects that survive a long collection, so that no later collection visits them. A reference count still frees a frozen
object; a frozen cycle is never freed.
"""

import gc
import time

FULL_COLLECTION = 2  # The generation of a full collection.
COLLECTION_S_MAX = 0.001
# Collections of the young generation before one of the middle, and of the middle before a full one. With CPython's
# defaults of 10 and 10, about 70,000 new objects accumulate before a full collection; with these numbers about 6,000.
YOUNG_COLLECTIONS_MAX = 4
MIDDLE_COLLECTIONS_MAX = 1


def collect_often() -> None:
    """Freeze all live objects, and make the collector visit few objects at a time from now on."""
    gc.collect()
    gc.freeze()
    # CPython skips a full collection until there are a quarter more objects than after the last one: collect while
    # there are few.
    gc.collect()
    young, _, _ = gc.get_threshold()
    gc.set_threshold(young, YOUNG_COLLECTIONS_MAX, MIDDLE_COLLECTIONS_MAX)
    gc.callbacks.append(FreezeAfterLongCollection())


class FreezeAfterLongCollection:
    """Callback of the collector: freezes the objects that survive a long full collection."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector at the beginning and the end of a collection."""
        if info["generation"] < FULL_COLLECTION:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > COLLECTION_S_MAX:
            gc.freeze()
