"""A limit of the memory of a process that runs tests.

Without it the system kills a process when the machine has no memory left, and nobody learns which test took the memory.
"""

import faulthandler
import os
import sys
import threading
from pathlib import Path

MIB_MAX = 6 << 10  # several times what all tests together leave in a process
PERIOD_S = 2
EXIT_CODE = 70


def resident_mib(statm="/proc/self/statm"):
    """The memory of this process that is in RAM; 0 where the system has no such file."""
    path = Path(statm)
    if not path.exists():
        return 0
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def watch(show, *, mib_max=MIB_MAX, period_s=PERIOD_S, ended=None):
    """Watch this process from a thread. If it takes more memory, show where each of its threads is, and end it.

    Args:
        show: called first: lets the standard error of this process be seen.
        mib_max: the limit.
        period_s: time between two looks.
        ended: an event that ends the thread; None if only the end of the process does.
    """
    over = ended or threading.Event()

    def look():
        while not over.wait(period_s):
            mib = resident_mib()
            if mib > mib_max:
                show()
                test = os.environ.get("PYTEST_CURRENT_TEST", "no test")
                print(
                    f"\n{test} takes {mib} MiB of memory, and {mib_max} are allowed",
                    file=sys.__stderr__,
                    flush=True,
                )
                faulthandler.dump_traceback(file=sys.__stderr__)
                os._exit(EXIT_CODE)

    threading.Thread(target=look, name="memory", daemon=True).start()
