"""The garbage collector looks at few objects at a time, because it holds the event loop meanwhile.

Reference counts free what ends: partitions, connections and requests leave no cycles behind. The collector is there for the
cycles of rare errors. A full collection looks at all objects that are not frozen, for some 0.3 microseconds each; 10,000
partitions are a million objects. So full collections are made often, and what survives one that took long is frozen: no
later collection looks at it. What is frozen is still freed by its reference count, but not if it is in a cycle.
"""

import gc
import time

FULL_COLLECTION = 2  # the generation that such a collection ends
COLLECTION_S_MAX = 0.002
# Of the middle generation before a full collection. CPython's default of 10 lets 70,000 objects come together; after this
# count it is some 14,000.
MIDDLE_COLLECTIONS_MAX = 1


def collect_often() -> None:
    """Freeze what is alive, and have the collector look at little at a time from now on."""
    gc.collect()
    gc.freeze()
    gc.collect()  # CPython skips a full collection until there are a quarter more objects than after the last: now few
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, MIDDLE_COLLECTIONS_MAX)
    gc.callbacks.append(FreezeAfterLongCollection())


class FreezeAfterLongCollection:
    """Called by the collector: freezes what has survived a full collection that took long."""

    def __init__(self) -> None:
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Called by the collector when a collection begins and when it has ended."""
        if info["generation"] < FULL_COLLECTION:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > COLLECTION_S_MAX:
            gc.freeze()
