"""Apache Kafka with tiered storage on a local directory, and the number of its requests to the remote tier.

The storage is Kafka's own `LocalTieredStorage`, from the jar of the tests of `kafka-storage`. A Java class around it
writes one line for each request. If Java, Maven or a jar is missing, `apache_kafka.NotToBeHad` says which.

    with tiered_kafka.serve() as kafka:
        counts = tiered_kafka.count_backfill(kafka, "topic", 10, aborted=(3, 7))
        counts.requests[Kind.TRANSACTION_INDEX]
"""

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from peers import apache_kafka, backfill

SOURCE = Path(__file__).with_name("CountingStorage.java")
TIERING_TIMEOUT_S = 300
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": SOURCE.stem,
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    # Segments are copied, and local copies deleted, as soon as possible.
    "remote.log.manager.task.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "0",
    # Kafka interrupts a remote read after this time, 500 ms by default, and the consumer's next fetch repeats it.
    # The counts must not depend on the speed of the machine.
    "remote.fetch.max.wait.ms": "60000",
}
TOPIC_SETTINGS = {"remote.storage.enable": "true", "local.retention.bytes": "1"}


class Kind(StrEnum):
    """What a request to the remote tier is for, as Kafka's interface `RemoteStorageManager` names it."""

    SEGMENT = "SEGMENT"
    OFFSET_INDEX = "OFFSET"
    TIME_INDEX = "TIMESTAMP"
    TRANSACTION_INDEX = "TRANSACTION"
    PRODUCER_SNAPSHOT = "PRODUCER_SNAPSHOT"
    LEADER_EPOCHS = "LEADER_EPOCH"


@dataclass(frozen=True, slots=True)
class Counts:
    """Read requests to the remote tier.

    Attributes:
        requests: their number by kind.
        missing: the number of those for an object that does not exist, by kind.
    """

    requests: Counter[Kind]
    missing: Counter[Kind]

    def __sub__(self, earlier: "Counts") -> "Counts":
        """The requests since an earlier count."""
        return Counts(self.requests - earlier.requests, self.missing - earlier.missing)


@dataclass(frozen=True, slots=True)
class TieredKafka:
    """A running broker with tiered storage.

    Attributes:
        broker: the broker.
        remote: the directory of the remote tier.
        requests: the file with one line for each read request to the remote tier.
    """

    broker: apache_kafka.KafkaBroker
    remote: Path
    requests: Path

    @property
    def bootstrap(self) -> str:
        """The broker's address."""
        return self.broker.bootstrap

    def create_topic(self, topic: str) -> None:
        """Create a topic with one partition whose sealed segments are only in the remote tier."""
        new = NewTopic(topic, 1, 1, config=TOPIC_SETTINGS | backfill.TOPIC_SETTINGS)
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[topic].result(backfill.TIMEOUT_S)

    def wait_until_remote(self, topic: str, segment_count: int) -> None:
        """Wait until the remote tier has this number of segments of a topic, and the disk only the active one.

        Raises:
            TimeoutError: the wait took longer than TIERING_TIMEOUT_S. The message has both numbers.
        """
        deadline = time.monotonic() + TIERING_TIMEOUT_S
        while True:
            remote = len(list(self.remote.glob(f"*/{topic}-0-*/*.log")))
            local = len(list(self.broker.data.glob(f"{topic}-0/*.log")))
            if (remote, local) == (segment_count, 1):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{topic}: {remote} of {segment_count} segments are remote and {local} segments are local "
                    f"after {TIERING_TIMEOUT_S} s:\n{self.broker.log_tail()}"
                )
            time.sleep(0.05)

    def counts(self, topic: str) -> Counts:
        """The read requests for a topic since it was created."""
        lines = self.requests.read_text().splitlines() if self.requests.exists() else []
        rows = [line.split() for line in lines]
        of_topic = [(Kind(kind), result) for name, _, kind, result in rows if name == topic]
        return Counts(
            Counter(kind for kind, _ in of_topic),
            Counter(kind for kind, result in of_topic if result == "missing"),
        )


@contextlib.contextmanager
def serve(jvm_options: tuple[str, ...] = apache_kafka.JVM_OPTIONS) -> Iterator[TieredKafka]:
    """Run a broker with tiered storage while the block runs. Its directories are temporary.

    Args:
        jvm_options: of the broker's Java.

    Raises:
        NotAvailableError: there is no Java, no compiler, no Maven, no jars, or the broker did not start.
    """
    storage_jars = jars()
    classes = apache_kafka.compiled(SOURCE, storage_jars, apache_kafka.jars())
    with tempfile.TemporaryDirectory(prefix="tiered-kafka-") as directory:
        remote, requests = Path(directory) / "remote", Path(directory) / "requests"
        settings = SETTINGS | {
            "remote.log.storage.manager.class.path": f"{classes}:{storage_jars}/*",
            "rsm.config.dir": str(remote),
            "rsm.config.requests": str(requests),
        }
        broker = apache_kafka.KafkaBroker(Path(directory) / "data", settings, jvm_options)
        broker.start()
        try:
            yield TieredKafka(broker, remote, requests)
        finally:
            broker.stop()


def jars(folder: Path = apache_kafka.FOLDER) -> Path:
    """The folder with the jar of `LocalTieredStorage`; fetched with Maven if it is not there yet.

    Raises:
        NotAvailableError: there is no Maven, or it could not fetch the jar.
    """
    version = apache_kafka.VERSION
    artifact = apache_kafka.Artifact("org.apache.kafka", "kafka-storage", version, classifier="test")
    what = f"the tests of Apache Kafka {version}"
    return apache_kafka.fetched(folder, f"storage-tests-{version}", what, [artifact], with_dependencies=False)


def count_backfill(
    kafka: TieredKafka, topic: str, segment_count: int, aborted: Collection[int] = ()
) -> Counts:
    """Count the requests of one read-committed backfill of a new topic.

    Args:
        kafka: the broker.
        topic: the name of the topic that this function creates.
        segment_count: the number of segments in the remote tier.
        aborted: the numbers of the segments, from 0, with an aborted transaction.

    Returns:
        The requests from the consumer's start to its end.
    """
    kafka.create_topic(topic)
    backfill.fill(kafka.bootstrap, topic, segment_count, aborted)
    kafka.wait_until_remote(topic, segment_count)
    return count_read(kafka, topic, backfill.committed_count(segment_count, aborted))


def count_read(kafka: TieredKafka, topic: str, record_count: int) -> Counts:
    """Count the requests while a read-committed consumer reads a topic from the beginning.

    Args:
        kafka: the broker.
        topic: the topic.
        record_count: the number of committed records in the topic.
    """
    earlier = kafka.counts(topic)
    found = backfill.read(kafka.bootstrap, topic)
    assert found == record_count, f"{topic}: the consumer got {found} of {record_count} records"
    return kafka.counts(topic) - earlier
