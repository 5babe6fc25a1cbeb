"""A Spark session for the scenes, two cores and no word of its own; and what a scene tells its Spark job."""

import argparse
import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from demo.busy import COULD_NOT_CONNECT, LateError
from stablelog.spark import session

TRIES = 3
T = TypeVar("T")


def quiet_session(name: str) -> Any:
    """A session for two cores that says nothing of its own.

    Raises:
        LateError: Spark could not connect, each time.
    """
    return in_time("the Spark session", lambda: _new_session(name), _forget_gateway)


def in_time(name: str, work: Callable[[], T], clear: Callable[[], None] = lambda: None) -> T:
    """Do something with Spark; again if Spark's processes could not connect to each other in time.

    Spark gives a new Python process seconds to connect, some of which no setting changes.

    Args:
        name: what it is, for a sentence.
        work: may be done several times.
        clear: removes what a failed attempt has left.

    Raises:
        LateError: it could not connect in TRIES attempts.
    """
    number = 1
    while True:
        try:
            return work()
        except Exception as error:
            if not could_not_connect(error):
                raise
            clear()
            if number == TRIES:
                raise LateError(f"{name} could not connect in {TRIES} attempts: {_line_of(error)}") from error
            number += 1
            sys.stderr.write(f"  {name} could not connect: attempt {number} of {TRIES}\n")
            sys.stderr.flush()


def could_not_connect(error: BaseException) -> bool:
    """Return whether two of Spark's processes, or Spark and this process, could not connect to each other."""
    return isinstance(error, ConnectionError) or any(words in str(error) for words in COULD_NOT_CONNECT)


def _line_of(error: BaseException) -> str:
    """Return the line of an error that says why, of what may be pages."""
    lines = str(error).splitlines() or [type(error).__name__]
    return next(
        (each for each in lines if any(words in each for words in COULD_NOT_CONNECT)), lines[0]
    ).strip()


def _forget_gateway() -> None:
    """End the Java process of a session that has failed, so that the next session starts another."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context  # noqa: SLF001 - there is no other way
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001
    if context is not None:
        with contextlib.suppress(Exception):
            context.stop()
    if gateway is not None:
        with contextlib.suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.kill()
            process.wait()


def _new_session(name: str) -> Any:
    warnings.simplefilter("ignore")
    settings = {
        "spark_ui_enabled": "false",
        "spark_ui_showConsoleProgress": "false",
        "spark_sql_shuffle_partitions": "2",
        "spark_sql_pyspark_jvmStacktrace_enabled": "true",  # the text of an error names its causes in Java
        "spark_python_authenticate_socketTimeout": "60s",  # two cores may be busy with all the rest
    }
    with _quiet_errors():
        spark = session(name, master="local[2]", **settings)
        spark.sparkContext.setLogLevel("OFF")
    return spark


@contextlib.contextmanager
def _quiet_errors() -> Iterator[None]:
    """Give the processes that are started in this block another standard error: Java greets with warnings. What they
    have written is printed if the block fails.
    """
    sys.stderr.flush()
    ours = os.dup(2)
    with tempfile.TemporaryFile() as theirs:
        os.dup2(theirs.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(ours, 2)
            theirs.seek(0)
            sys.stderr.write(theirs.read().decode(errors="replace"))
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def job_arguments(limit: str) -> argparse.Namespace:
    """Where the log is, where the checkpoint goes, and how much a micro-batch holds, under this name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(limit, type=int)
    return parser.parse_args()
