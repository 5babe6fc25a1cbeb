"""Object stores and brokers with tiered storage, for the part `tiers`.

An S3 server runs in a process of its own, so that its processor time can be told from that of the broker.
"""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import stablelog
from bench import loads
from bench.loads import MB, PATIENCE_S, QUIET, Topic, fill, producer_of
from bench.many_partitions import processor_s
from stablelog.embedded import EmbeddedBroker
from stablelog.env.objects.opening import open_store
from stablelog.env.objects.retrying_store import ObjectStore
from stablelog.types import ObjectRange

MIB = 1 << 20
CHUNK_SIZE = 4 * MIB  # stablelog.remote.chunk.bytes
CACHE_SIZE = 64 * MIB  # stablelog.remote.cache.memory.bytes
LOADS_MAX = 16  # The number of chunks that the broker loads at a time.
COPY_S_MAX = 600.0
# Segments are copied, and local copies deleted, as soon as possible.
SETTINGS: Mapping[str, object] = {
    "remote_log_manager_task_interval_ms": 100,
    "log_retention_check_interval_ms": 100,
    "log_segment_delete_delay_ms": 0,
    "stablelog_metrics_port": 0,
}
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
METRICS = re.compile(r"metrics are served at (\S+)")
READ_BYTES = re.compile(r"^stablelog_remote_read_bytes_total (\S+)$", re.MULTILINE)
COPIED = re.compile(r"copied (\d+) segments of (\S+)-\d+ to ")


@dataclass(frozen=True, slots=True)
class Store:
    """An object store.

    Attributes:
        name: its name in rows.
        url: the value of `stablelog.remote.url`.
        pid: the id of the store's process; None if the store has none.
    """

    name: str
    url: str
    pid: int | None = None

    @property
    def used_s(self) -> float:
        """Processor time of the store's process up to now."""
        return 0.0 if self.pid is None else processor_s(self.pid)

    def opened(self) -> ObjectStore:
        """Return a client of this store in this process."""
        return open_store(self.url, allow_http=True)


@contextlib.contextmanager
def directory_store() -> Iterator[Store]:
    """A store in a temporary local directory."""
    with tempfile.TemporaryDirectory(prefix="tiers-") as directory:
        yield Store("a directory", Path(directory).as_uri())


@contextlib.contextmanager
def s3_store(delay_ms: float) -> Iterator[Store]:
    """Run an S3 server while the block runs. The environment of this process has the server's address.

    Args:
        delay_ms: the time before the server handles a request.
    """
    command = [sys.executable, "-m", "stablelog.testing.s3", "--delay-ms", str(delay_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            with reachable(process.stdout.readline().strip()):
                yield Store(f"S3 at {delay_ms:g} ms", "s3://bucket/bench", process.pid)
        finally:
            process.terminate()


@contextlib.contextmanager
def reachable(endpoint: str) -> Iterator[None]:
    """Put the address of an S3 server into the environment, which brokers inherit, while the block runs."""
    names = {
        "AWS_ENDPOINT": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_UNSIGNED_PAYLOAD": "true",  # as the broker uploads over TLS
    }
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def serve(store_url: str, **settings: object) -> Iterator[EmbeddedBroker]:
    """Run a broker with tiered storage on a temporary directory while the block runs."""
    with (
        tempfile.TemporaryDirectory(prefix="tiers-") as directory,
        stablelog.serve(
            Path(directory) / "data",
            stablelog_remote_url=store_url,
            stablelog_remote_allow_http=True,
            **{**SETTINGS, **settings},
        ) as broker,
    ):
        yield broker


def empty_cache(broker: EmbeddedBroker) -> None:
    """Restart the broker. Its cache of remote ranges is then empty."""
    broker.stop()
    broker.start()


def loaded_size(broker: EmbeddedBroker) -> float:
    """Return how many bytes the store has returned to reads since the broker's start, by the broker's own metrics."""
    log = broker.log_path.read_text()
    with urllib.request.urlopen(METRICS.findall(log)[-1], timeout=PATIENCE_S) as answer:
        found = READ_BYTES.search(answer.read().decode())
    assert found is not None, "the broker has no metric of this name"
    return float(found[1])


def warm(broker: EmbeddedBroker) -> None:
    """Produce and fetch a few records, so that the broker has imported the code for these requests."""
    with loads.topic_of(broker.bootstrap, 100, 20) as topic:
        loads.produce(broker.bootstrap, topic)
        loads.fetch(broker.bootstrap, topic)
        loads.fetch_undecoded(broker.bootstrap, topic)


# -- topics --------------------------------------------------------------------------------------------------------


def create(bootstrap: str, name: str, config: Mapping[str, str], partition_count: int = 1) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    new = NewTopic(name, partition_count, 1, config=dict(config))
    admin.create_topics([new], request_timeout=PATIENCE_S, operation_timeout=PATIENCE_S)[name].result()


def delete(bootstrap: str, name: str) -> None:
    """Delete a topic."""
    admin = AdminClient(
        {"bootstrap.servers": bootstrap, **QUIET}
    )  # one that nobody holds gives up its requests
    admin.delete_topics([name])[name].result()


def configure(bootstrap: str, name: str, config: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    entries = [
        ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        for setting, value in config.items()
    ]
    resource: Any = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def filled(bootstrap: str, topic: Topic, config: Mapping[str, str]) -> None:
    """Create a topic of one partition, and write its records."""
    create(bootstrap, topic.name, config)
    fill(producer_of(bootstrap, topic), topic)


def fill_partitions(bootstrap: str, name: str, partition_count: int, size: int) -> None:
    """Write so many bytes to each partition, in records of 64 KiB."""
    value = os.urandom(64 << 10)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **QUIET})
    for _ in range(size // len(value)):
        for partition in range(partition_count):
            while True:
                try:
                    producer.produce(name, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
    left = producer.flush(PATIENCE_S)
    assert left == 0, f"{left} records were not acknowledged"


def local_logs(data: Path, name: str, partition: int = 0) -> list[Path]:
    """Return the log files of a partition on the local disk, oldest first. Apache Kafka has the same names."""
    return sorted((data / f"{name}-{partition}").glob("*.log"))


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds.

    Raises:
        TimeoutError: it does not hold after COPY_S_MAX.
    """
    deadline_s = time.monotonic() + COPY_S_MAX
    while not is_so():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not after {COPY_S_MAX:g} s")
        time.sleep(0.02)


def wait_until_remote(data: Path, name: str, partition_count: int = 1) -> None:
    """Wait until each partition of a topic has only its active segment on the local disk."""
    for partition in range(partition_count):
        wait_until(
            lambda at=partition: len(local_logs(data, name, at)) == 1,
            f"the sealed segments of {name}-{partition} are only in the object store",
        )


def remote_part(data: Path, topic: Topic) -> Topic:
    """Return the part of a topic that is not on the local disk, as a topic with fewer records."""
    (active,) = local_logs(data, topic.name)
    count = int(active.stem)
    assert count, f"no segment of {topic.name} is sealed"
    return replace(topic, record_count=count)


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy of a topic's sealed segments.

    Attributes:
        size: bytes of the log files.
        seconds: by the clock.
        processor_s: processor time of the broker.
    """

    size: int
    seconds: float
    processor_s: float

    @property
    def ms_per_mib(self) -> float:
        """Processor time of the broker for each MiB, in ms."""
        return self.processor_s * 1000 / (self.size / MIB)

    @property
    def mb_s(self) -> float:
        """The rate."""
        return self.size / self.seconds / MB


def copied(broker: EmbeddedBroker, topic: Topic, segment_size: int) -> Copy:
    """Write a topic, copy its sealed segments, and wait until they are only in the store."""
    filled(
        broker.bootstrap,
        topic,
        {**TIERED, "segment.bytes": str(segment_size), "remote.log.copy.disable": "true"},
    )
    sealed = local_logs(broker.data, topic.name)[:-1]
    size = sum(log.stat().st_size for log in sealed)
    os.sync()
    log = broker.log_path
    seen, begun_s, used_s = len(log.read_text()), time.perf_counter(), processor_s(broker.pid)
    configure(broker.bootstrap, topic.name, {"remote.log.copy.disable": "false"})

    def is_copied() -> bool:
        found = COPIED.findall(log.read_text()[seen:])
        return sum(int(count) for count, name in found if name == topic.name) == len(sealed)

    wait_until(is_copied, f"the sealed segments of {topic.name} are copied")
    copy = Copy(size, time.perf_counter() - begun_s, processor_s(broker.pid) - used_s)
    wait_until_remote(broker.data, topic.name)
    return copy


# -- the store without a broker ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bare:
    """Requests to a store without a broker.

    Attributes:
        mb_s: the rate.
        ms_per_mib: processor time of this process for each MiB, in ms.
    """

    mb_s: float
    ms_per_mib: float


def chunks_of(store: ObjectStore, name: str) -> list[ObjectRange]:
    """Return the chunks of a topic's log files in a store."""
    logs = [one for one in store.list_after(f"t.{name}") if one.key.endswith(".log")]
    return [
        ObjectRange(log.key, start, min(CHUNK_SIZE, log.size - start))
        for log in logs
        for start in range(0, log.size, CHUNK_SIZE)
    ]


def bare_reads(store: Store, name: str) -> Bare:
    """Read a topic's log files as the broker's threads do: so many chunks at a time."""
    client = store.opened()
    chunks = chunks_of(client, name)

    def read(chunk: ObjectRange) -> int:
        return len(client.get_range(chunk.key, chunk.start, chunk.size))

    with ThreadPoolExecutor(LOADS_MAX) as threads:
        return bare(lambda: sum(threads.map(read, chunks)))


def bare_copy(store: Store, path: Path, times: int) -> Bare:
    """Upload a file several times, one after the other, in pieces as the broker does."""
    client = store.opened()

    def pieces() -> Iterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(MIB):
                yield piece

    def upload() -> int:
        for number in range(times):
            client.upload(f"bare/{number}", pieces, path.stat().st_size)
        return path.stat().st_size * times

    found = bare(upload)
    for number in range(times):
        client.delete(f"bare/{number}")
    return found


def bare(work: Callable[[], int]) -> Bare:
    """Measure work that returns a number of bytes."""
    begun_s, used_s = time.perf_counter(), time.process_time()
    size = work()
    seconds, processor = time.perf_counter() - begun_s, time.process_time() - used_s
    return Bare(size / seconds / MB, processor * 1000 / (size / MIB))
