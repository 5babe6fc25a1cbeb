"""Tuning of the Python processes in which Spark runs tasks, so that tasks take less time. It is done once in each
process.
"""

import gc
from functools import cache


@cache
def tune_worker() -> None:
    """Exclude the imported objects from garbage collection (`gc.freeze`). Only the first call in a process has an
    effect.

    Each planning of a read, and each task that reads or writes, calls this function. Spark's worker runs `gc.collect()`
    after every task. The collector visits all objects that the imports have made, which are never freed; that takes
    tens of milliseconds for each task. It does not visit frozen objects. Later calls do nothing, because they would
    also freeze cycles of garbage, which would then never be freed.
    """
    gc.collect()
    gc.freeze()
