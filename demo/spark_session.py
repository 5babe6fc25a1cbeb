"""A Spark session for the scenes, two cores and no word of its own; and what a scene tells its Spark job."""

import argparse
import contextlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stablelog.spark import session


def quiet_session(name: str) -> Any:
    """A session for two cores that says nothing of its own."""
    warnings.simplefilter("ignore")
    settings = {
        "spark_ui_enabled": "false",
        "spark_ui_showConsoleProgress": "false",
        "spark_sql_shuffle_partitions": "2",
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
