"""How a stream is started on a machine that may stand still."""

import time

from pyspark.errors import StreamingQueryException

TRY_FOR_S = 300


def in_time(work):
    """Do what starts a stream and waits for it; again where a Python process of Spark's came up too late.

    Spark gives the process that asks a source for offsets ten seconds to come up, which no setting changes: in production
    who keeps a query running starts it again, too. No micro-batch has begun by then.
    """
    end = time.monotonic() + TRY_FOR_S
    while True:
        try:
            return work()
        except (StreamingQueryException, AssertionError) as failure:
            if "Python worker failed to connect back" not in str(failure) or time.monotonic() > end:
                raise
