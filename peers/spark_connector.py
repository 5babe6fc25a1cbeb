"""How is Spark's own Kafka connector had, for benchmarks that put it beside stablelog's source?

It is of a version before PySpark's: of that one, Maven Central may have nothing or a part only. An older connector
reads with a newer Spark as long as Spark's interfaces for connectors stay as they were; whoever measures with it sees
at the first read. Where Maven or the jars cannot be had, `apache_kafka.NotToBeHad` says which.
"""

from pathlib import Path

from peers import apache_kafka

VERSION = "4.2.0"
FOLDER = Path(__file__).parents[1] / "target" / "spark-connector"

# Each by itself: what they depend on besides is Spark, which is there.
ARTIFACTS = (
    apache_kafka.Artifact("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    apache_kafka.Artifact("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),
    apache_kafka.Artifact("org.apache.kafka", "kafka-clients", "3.9.1"),
    apache_kafka.Artifact("org.apache.commons", "commons-pool2", "2.12.1"),
)


def jars(folder: Path = FOLDER) -> list[Path]:
    """The connector's jars; fetched with Maven if they are not there yet.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch them.
    """
    what = f"Spark's Kafka connector {VERSION}"
    ready = apache_kafka.fetched(folder, f"jars-{VERSION}", what, ARTIFACTS, with_dependencies=False)
    return sorted(ready.glob("*.jar"))
