"""Which brokers are measured, and how are they made to promise the same?

Both are started as their makers start them: `stablelog.serve()`, and Kafka's own class with the
flags of its start script. A promise is when an append is acknowledged.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

import stablelog
from bench import loads
from peers import apache_kafka
from stablelog.embedded import EmbeddedBroker

OURS, KAFKA = "stablelog", "Apache Kafka"
Broker = EmbeddedBroker | apache_kafka.KafkaBroker


class Promise(Enum):
    """When an append is acknowledged: what has to be true of its bytes."""

    SYNCED = "on disk: stablelog's default, Kafka with log.flush.interval.messages=1"
    LEFT_TO_THE_SYSTEM = "with the operating system: Kafka's default, stablelog with stablelog.flush=os"


@contextlib.contextmanager
def serve_both(promise: Promise, *, with_kafka: bool) -> Iterator[Mapping[str, Broker]]:
    """Run the brokers that there are, side by side, for the block."""
    with contextlib.ExitStack() as stack:
        flush = "fsync" if promise is Promise.SYNCED else "os"
        brokers: dict[str, Broker] = {OURS: stack.enter_context(stablelog.serve(stablelog_flush=flush))}
        if with_kafka:
            settings = apache_kafka.SYNC_BEFORE_ACKNOWLEDGEMENT if promise is Promise.SYNCED else {}
            names = {name.replace(".", "_"): value for name, value in settings.items()}
            brokers[KAFKA] = stack.enter_context(apache_kafka.serve(**names))
        yield brokers


def why_no_kafka() -> str | None:
    """What is missing for Apache Kafka to take part; None if nothing is. Fetches it if it has to."""
    try:
        apache_kafka.java()
        apache_kafka.jars()
    except apache_kafka.NotAvailableError as missing:
        return str(missing)
    return None


def start_to_first_record(contestant: str) -> float:
    """Seconds from starting a process on a new directory to its first acknowledged record.

    Kafka's directory is formatted before, which takes a process of its own; that is not counted. Nor is compiling
    Python, which pip does when it installs: Python may keep what the first run has compiled, also where the environment
    tells it not to.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory(prefix="start-") as directory:
        data = Path(directory) / "data"
        broker: Broker
        if contestant == OURS:
            data.mkdir()
            broker = EmbeddedBroker(data, "127.0.0.1", 0, {})
        else:
            broker = apache_kafka.KafkaBroker(data, apache_kafka.SYNC_BEFORE_ACKNOWLEDGEMENT)
            broker.format()
        began = time.perf_counter()
        broker.start()
        try:
            loads.first_record(broker.bootstrap)
            return time.perf_counter() - began
        finally:
            broker.stop()


def memory_mb(pid: int | str) -> float:
    """Anonymous memory of a process: without the files it has mapped, which are the page cache's."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
