"""Errors that reach the user of Spark as one line, without the traceback of a worker process."""

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

# Spark sets the first variable in the Python processes that plan, read and write, unless the session has
# `spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled=false`. With the second variable, Spark's function that
# reports the exception of a process leaves the traceback out.
_IS_SHORT = "SPARK_SIMPLIFIED_TRACEBACK"
_IS_HIDDEN = "SPARK_HIDE_TRACEBACK"
# The process that asks a stream for its offsets. Spark passes it none of the session's settings.
STREAM_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"
_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_Item = TypeVar("_Item")


def one_line(method: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Decorate a method that Spark calls. The user sees a `StablelogError` of the method as one line without a
    traceback, because its message says what is wrong.

    A Python process of Spark ends after it has reported an exception. To leave out the traceback, this function sets an
    environment variable of PySpark. As the process ends, the variable affects no other exception. Nothing is set
    outside of Spark's processes, or if the user asks for full tracebacks. Any other exception is a bug or a missing
    library, and keeps its traceback.
    """

    @functools.wraps(method)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            _hide_traceback(error)
            raise

    return called


def one_line_each(method: Callable[_Given, Iterator[_Item]]) -> Callable[_Given, Iterator[_Item]]:
    """Decorate a generator method in the same way as `one_line`. Its errors are raised while Spark iterates over the
    items.
    """

    @functools.wraps(method)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> Iterator[_Item]:
        try:
            yield from method(*args, **kwargs)
        except Exception as error:
            _hide_traceback(error)
            raise

    return called


def _hide_traceback(error: Exception) -> None:
    from stablelog.errors import StablelogError  # not at the top: Spark imports this module in every process

    if not isinstance(error, StablelogError):
        return
    if os.environ.get(_IS_SHORT) or started_as() == STREAM_PROCESS:
        os.environ[_IS_HIDDEN] = "1"


def started_as() -> str:
    """Return the name of the module as which this process was started by `python -m`; an empty text if it was started
    in another way. By this name, Spark's own processes are recognized.
    """
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "")
