"""Registration of `format("stablelog")` in one session, with the interpreter and the parallelism of that session.

Spark finds the source by itself with the Python program that its JVM knows: PYSPARK_DRIVER_PYTHON, PYSPARK_PYTHON, or
the first `python3` of the PATH. They are read once, when the JVM starts. `register` makes the source known without them
in a session with a local master.
"""

import os
import sys
from typing import Any

from stablelog.errors import UnavailableError
from stablelog.spark.data_source import StablelogDataSource
from stablelog.spark.pyspark_version import check_pyspark


def register(session: Any = None) -> None:
    """Register `format("stablelog")` in a Spark session, whose workers then use the Python interpreter of this program.

    A session needs this call if Spark does not find the source (DATA_SOURCE_NOT_FOUND), for example because the virtual
    environment of this program is not activated. The call changes no setting of the session. In this session, reads of
    the source also get the session's parallelism as the default of the option `parallelism`.

    In a session with a local master, for which PYSPARK_PYTHON was not set, the source runs in the interpreter that runs
    this program. On a cluster it runs in the interpreter that the session's other Python code runs in: PYSPARK_PYTHON,
    or the first `python3` of the PATH, because the path of this program's interpreter may not exist there. With Spark
    Connect it runs in the interpreter of the server. The package must be installed for that interpreter.

    Args:
        session: a session; the active one if it is not given.

    Raises:
        UnavailableError: there is no active session, or PySpark is too old.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    found = session or SparkSession.getActiveSession()
    if found is None:
        raise UnavailableError("there is no active Spark session: make one, or pass one to register()")
    if not hasattr(found, "_jsparkSession"):  # a session of Spark Connect
        found.dataSource.register(StablelogDataSource)
        return
    context = found.sparkContext
    # A class that is in no module is pickled with its attributes, which reach the processes that plan reads.
    source = type(StablelogDataSource.__name__, (StablelogDataSource,), {"parallelism": parallelism(found)})
    usual = context.pythonExec
    if "PYSPARK_PYTHON" not in os.environ and (context.master or "").startswith("local"):
        # `register` of PySpark takes the interpreter of a source from here.
        context.pythonExec = sys.executable
    try:
        found.dataSource.register(source)
    finally:
        context.pythonExec = usual


def parallelism(session: Any) -> int:
    """Return how many tasks the cluster of a session can run at a time: Spark's default parallelism.

    Executors that have not started yet count if the session asks for a fixed number of them.
    """
    settings = session.sparkContext.getConf()
    executors = int(settings.get("spark.executor.instances", "0"))
    cores = int(settings.get("spark.executor.cores", "1"))
    return max(int(session.sparkContext.defaultParallelism), executors * cores, 1)
