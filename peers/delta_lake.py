"""The JARs of Delta Lake, for the test of a program of docs/guides/spark.md that writes a Delta table."""

from pathlib import Path
from typing import Final

from peers import apache_kafka

VERSION: Final = "4.4.0"
SPARK: Final = "4.2"  # A release of Delta Lake has a JAR for each version of Spark that it supports.
FOLDER: Final = Path(__file__).parents[1] / "target" / "delta-lake"
ARTIFACT: Final = apache_kafka.Artifact("io.delta", f"delta-spark_{SPARK}_2.13", VERSION)


def coordinates() -> str:
    """The name of the JAR at Maven Central, as `spark.jars.packages` takes it."""
    return f"{ARTIFACT.group}:{ARTIFACT.name}:{ARTIFACT.version}"


def jars(spark_version: str, folder: Path = FOLDER) -> list[Path]:
    """The JARs of Delta Lake and of what it needs beside Spark; fetched with Maven if they are not there yet.

    Args:
        spark_version: the version of Spark that is to load them.
        folder: where they are kept.

    Raises:
        NotAvailableError: they are for another version of Spark, or Maven could not fetch them.
    """
    if not spark_version.startswith(f"{SPARK}."):
        raise apache_kafka.NotAvailableError(
            f"Delta Lake {VERSION} is for Spark {SPARK}, and Spark {spark_version} is installed"
        )
    ready = apache_kafka.fetched(folder, f"jars-{VERSION}", f"Delta Lake {VERSION}", (ARTIFACT,))
    return sorted(ready.glob("*.jar"))
