"""Tuning of Spark's Python workers, once in each process, so that their tasks cost less."""

import gc
from functools import cache


@cache
def tune_worker() -> None:
    """Freeze the imported objects for the garbage collector. Only the first call in a process does something.

    Each task that reads or writes, and each planning, calls this. Spark's worker, also the one that plans, runs
    `gc.collect()` after every task. The collector visits all objects that the imports have made and that stay for ever,
    which costs tens of milliseconds for each task. It does not visit frozen objects. If every task froze objects,
    garbage cycles that exist at that time would stay as well.
    """
    gc.collect()
    gc.freeze()
