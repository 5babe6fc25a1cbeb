"""What a Python worker of Spark does once, so that its tasks cost less."""

import gc

_is_tuned = False


def tune_worker() -> None:
    """Called by each task that reads or writes, and by each planning; does something once in a process only.

    Spark's worker, also the one that plans, runs `gc.collect()` after every task. It walks everything that the imports have made, which stays
    for ever: tens of milliseconds per task, for nothing. Frozen, those objects are not walked. Only once per process:
    frozen at each task, cycles of garbage that are alive just then would stay as well.
    """
    global _is_tuned  # noqa: PLW0603 -- it is the process that is tuned
    if _is_tuned:
        return
    _is_tuned = True
    gc.collect()
    gc.freeze()
