"""The Spark settings that the user has made outside of the program: of spark-submit, PYSPARK_SUBMIT_ARGS and
spark-defaults.conf.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

# Arguments of spark-submit that are settings under another name.
_ARGUMENTS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}


def users_settings() -> dict[str, str]:
    """Return the user's Spark settings, by name. Call this only in a process without a session.

    If spark-submit has started this program, they are requested from the JVM of spark-submit. Otherwise no JVM runs
    yet, and the settings are read from the same places from which spark-submit would read them.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.find_spark_home import _find_spark_home

    if "PYSPARK_GATEWAY_PORT" in os.environ:
        SparkContext._ensure_initialized()  # noqa: SLF001 - a SparkConf reads the JVM's settings only after this call
        # The Java options of a running JVM cannot change, so they count as set.
        return {"spark.driver.extraJavaOptions": "", **dict(SparkConf().getAll())}
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    given = dict(submitted(arguments))
    directory = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home()) / "conf")
    file = Path(given.pop("--properties-file", directory / "spark-defaults.conf"))
    master = {"spark.master": os.environ["MASTER"]} if os.environ.get("MASTER") else {}
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return {**dict(properties(text)), **master, **given}


def submitted(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the Spark settings in the arguments of spark-submit (`--conf` and the options that stand for a setting),
    each as a pair of name and value.
    """
    words = iter(
        [part for one in arguments for part in (one.split("=", 1) if one.startswith("--") else [one])]
    )
    for word in words:
        if word in ("--conf", "-c"):
            name, _, value = next(words, "").partition("=")
            yield name, value
        elif word in _ARGUMENTS:
            yield _ARGUMENTS[word], next(words, "")
        elif word == "--properties-file":
            yield word, next(words, "")


def properties(text: str) -> Iterator[tuple[str, str]]:
    """Yield the settings in the text of a spark-defaults.conf: name, then a space, `=` or `:`, then the value."""
    for line in text.splitlines():
        match = re.fullmatch(r"\s*(spark\.[^\s=:]+)(?:\s*[=:]\s*|\s+)(.*?)\s*", line)
        if match:
            yield match[1], match[2]
