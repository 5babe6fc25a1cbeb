"""What does TLS cost? librdkafka writes and reads 1 KB records over a plaintext listener and over one with TLS, in turn.

Each broker has both listeners, with the same certificate. TLS takes processor time of broker and client, which share the
machine here; the broker's own part stands beside the rates.
"""

import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import trustme
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

import stablelog
from bench.contestants import KAFKA, OURS
from bench.many_partitions import processor_s
from bench.report import Section, Wanted
from peers import apache_kafka

RECORD_SIZE = 1_000
RECORD_COUNT = 200_000
PATIENCE_S = 120
AT_LEAST = 0.6  # of the rate without TLS, or Apache Kafka's own ratio in the same run if that is lower
KEYSTORE, AUTHORITY = "broker.pem", "authority.pem"


@dataclass(frozen=True, slots=True)
class Addresses:
    """A broker that listens with and without TLS."""

    pid: int
    plain: str
    tls: str


def write_certificates(directory: Path) -> None:
    """Write the key and certificate of a broker, and that of their authority."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    # Java reads keys in PKCS #8 only.
    key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    (directory / KEYSTORE).write_bytes(b"".join([key, *(part.bytes() for part in issued.cert_chain_pems)]))
    (directory / AUTHORITY).write_bytes(authority.cert_pem.bytes())


def _settings(directory: Path, plain_port: int, tls_port: int) -> dict[str, str]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{plain_port},SSL://127.0.0.1:{tls_port}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / KEYSTORE),
    }


class _Kafka(apache_kafka.KafkaBroker):
    """An Apache Kafka broker with a second listener, for TLS."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "kafka", {})
        (self.tls_port,) = apache_kafka.reserve_ports(self, 1)
        text = self._config_path.read_text()
        (before,) = (line for line in text.splitlines() if line.startswith("listeners="))
        given = _settings(directory, self.port, self.tls_port)
        given["listeners"] += before[before.index(",CONTROLLER://") :]
        given["advertised.listeners"] = given["listeners"].partition(",CONTROLLER")[0]
        given["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT"
        # Of a setting that is there twice, Java takes the last value.
        self._config_path.write_text(text + "".join(f"{name}={value}\n" for name, value in given.items()))


@contextlib.contextmanager
def serve(directory: Path, *, with_kafka: bool) -> Iterator[Mapping[str, Addresses]]:
    """Run the brokers side by side for the block. Appends are acknowledged as soon as the system has them."""
    write_certificates(directory)
    with contextlib.ExitStack() as stack:
        plain_port, tls_port = apache_kafka.reserve_ports(stack, 2)
        settings = _settings(directory, plain_port, tls_port) | {"stablelog.flush": "os"}
        ours = stack.enter_context(stablelog.serve(directory / "ours", settings=settings))
        found = {OURS: Addresses(ours.pid, ours.bootstrap, f"localhost:{tls_port}")}
        if with_kafka:
            kafka = _Kafka(directory)
            kafka.start()
            stack.callback(kafka.stop)
            found[KAFKA] = Addresses(kafka.pid, kafka.bootstrap, f"localhost:{kafka.tls_port}")
        yield found


def produce(settings: Mapping[str, object], topic: str, count: int) -> float:
    """Write so many records, and wait until they are acknowledged. Returns seconds."""
    more = {"linger.ms": 5, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000}
    producer, value = Producer({**settings, **more}), os.urandom(RECORD_SIZE)
    began = time.perf_counter()
    for _ in range(count):
        producer.produce(topic, value, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    seconds = time.perf_counter() - began
    producer.close()
    return seconds


def fetch(settings: Mapping[str, object], topic: str, count: int) -> float:
    """Read so many records. Returns seconds, without those of the consumer's end."""
    more = {"group.id": "bench", "fetch.message.max.bytes": 4 << 20, "queued.max.messages.kbytes": 1 << 20}
    consumer = Consumer({**settings, **more})
    consumer.assign([TopicPartition(topic, 0, 0)])
    began = time.perf_counter()
    while count > 0:
        assert time.perf_counter() < began + PATIENCE_S, f"{count} records of {topic} did not come"
        count -= len(consumer.consume(10_000, timeout=1))
    seconds = time.perf_counter() - began
    consumer.close()
    return seconds


LOADS: Mapping[str, Callable[[Mapping[str, object], str, int], float]] = {"produce": produce, "fetch": fetch}


def _clients(broker: Addresses, directory: Path) -> Mapping[str, Mapping[str, object]]:
    authority = str(directory / AUTHORITY)
    return {
        "plain": {"bootstrap.servers": broker.plain, "log_level": 0},
        "TLS": {
            "bootstrap.servers": broker.tls,
            "security.protocol": "ssl",
            "ssl.ca.location": authority,
            "log_level": 0,
        },
    }


def run(run_count: int, divisor: int, tell: Callable[[str], object], *, with_kafka: bool) -> list[Section]:
    """Measure. The first run warms the brokers up, and is not counted.

    Args:
        run_count: runs that are counted.
        divisor: of the number of records.
        tell: is told what is measured now.
        with_kafka: whether Apache Kafka takes part.

    Returns:
        Rates, the broker's processor time, and what is left of the rate with TLS.
    """
    count = max(RECORD_COUNT // divisor, 1000)
    megabytes = count * RECORD_SIZE / 1e6
    section = Section(f"TLS ({ssl.OPENSSL_VERSION.rsplit(' ', 3)[0]} in stablelog), 1 KB records, librdkafka")
    with (
        tempfile.TemporaryDirectory(prefix="tls-") as name,
        serve(Path(name), with_kafka=with_kafka) as brokers,
    ):
        for turn in range(run_count + 1):
            for contestant, broker in brokers.items():
                rates: dict[tuple[str, str], float] = {}
                for kind, settings in _clients(broker, Path(name)).items():
                    tell(f"{contestant}, {kind}, run {turn} of {run_count}")
                    topic = f"{kind}-{turn}"
                    admin = AdminClient({"bootstrap.servers": broker.plain, "log_level": 0})
                    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
                    for load, act in LOADS.items():
                        before_s = processor_s(broker.pid)
                        seconds = act(settings, topic, count)
                        taken_ms = (processor_s(broker.pid) - before_s) * 1000
                        rates[load, kind] = megabytes / seconds
                        if turn:
                            section.row(f"{load}, {kind}, MB/s").add(contestant, megabytes / seconds)
                            section.row(f"{load}, {kind}, broker's processor ms per MB").add(
                                contestant, taken_ms / megabytes
                            )
                if turn:
                    for load in LOADS:
                        wanted = Wanted(AT_LEAST, of_figure=True)
                        section.row(f"{load}, TLS as a share of plain", wanted=wanted).add(
                            contestant, rates[load, "TLS"] / rates[load, "plain"]
                        )
    return [section]
