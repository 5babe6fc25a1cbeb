"""Settings of Python's garbage collector that keep each collection short, because a collection blocks the event loop.

Reference counts free almost everything: partitions, segments that are replaced or removed, connections and requests
leave no reference cycles (`tests/broker/test_cycles.py` checks each kind). The collector is needed only for cycles that
rare errors leave. A full collection visits all objects that are not frozen, at about 0.3 microseconds each, and 10,000
partitions are a million objects. The broker therefore collects often, and freezes the objects that survive a long
collection, so that no later collection visits them. A reference count still frees a frozen object; a frozen cycle is
never freed.
"""

import gc
import time

FULL_COLLECTION = 2  # The number that Python gives to a full garbage collection.
COLLECTION_S_MAX = 0.001
# The number of collections of the young generation before one of the middle generation, and of the middle generation
# before a full collection. With CPython's defaults of 10 and 10, about 70,000 new objects accumulate before a full
# collection; with these numbers about 6,000.
YOUNG_COLLECTIONS_MAX = 4
MIDDLE_COLLECTIONS_MAX = 1


def collect_often() -> None:
    """Freeze all live objects, so that Python's garbage collector does not visit them any more, and let the collector
    run often from now on, with few objects to visit each time.
    """
    gc.collect()
    gc.freeze()
    # CPython skips a full collection until the number of objects that are not frozen has grown by a quarter since the
    # last full collection. Collect now, while there are few such objects, so that a quarter is a small number.
    gc.collect()
    young, _, _ = gc.get_threshold()
    gc.set_threshold(young, YOUNG_COLLECTIONS_MAX, MIDDLE_COLLECTIONS_MAX)
    gc.callbacks.append(FreezeAfterLongCollection())


class FreezeAfterLongCollection:
    """Callback of the garbage collector: freezes the objects that survive a long full collection, so that later
    collections do not visit them and are short.
    """

    def __init__(self) -> None:
        self._began_s = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Measure a full collection, and freeze the objects that have survived it if it took long. Python calls this at
        the beginning and at the end of each collection.
        """
        if info["generation"] < FULL_COLLECTION:
            return
        if phase == "start":
            self._began_s = time.thread_time()
        elif time.thread_time() - self._began_s > COLLECTION_S_MAX:
            gc.freeze()
