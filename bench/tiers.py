"""Tiered storage: reads from an object store, copies to it, and what both do to the broker and its other clients.

python -m bench --only tiers
"""

import contextlib
import os
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import loads, tier_load, tier_outage
from bench.contestants import KAFKA, OURS
from bench.limits import Limits
from bench.loads import PATIENCE_S, Topic, fetch_request, receive
from bench.many_partitions import processor_s
from bench.report import Section, Wanted
from bench.tier_stores import (
    CHUNK_SIZE,
    MIB,
    TIERED,
    Copy,
    Store,
    bare_copy,
    bare_reads,
    chunks_of,
    copied,
    create,
    directory_store,
    empty_cache,
    fill_partitions,
    filled,
    reachable,
    remote_part,
    s3_store,
    serve,
    wait_until_remote,
    warm,
)
from peers import apache_kafka, backfill, tiered_kafka
from peers.tiered_kafka import Kind
from stablelog.embedded import EmbeddedBroker
from stablelog.testing.s3 import S3, serve_s3

LOCAL = "local disk"
DELAY_MS = 30
RECORD_SIZE, RECORD_COUNT = 1_000, 600_000
SEGMENT_SIZE = 64 * MIB
COLD_COUNT = 9  # cold partitions; the first is not counted
RECORDS_SIZE_MIN = 64 << 10  # of a response with records
COLD_MS_MAX = 10.0  # of the first records of a cold fetch, beyond one request
REMOTE_MB_S_MIN = 200.0
READ_MS_MAX, COPY_MS_MAX = 1.5, 1.0  # processor time for each MiB
BACKFILL_SEGMENTS, ABORTED_COUNT = 100, 3
MANIFESTS_MAX = 2
LOADS = (("", loads.fetch), (", not decoded", loads.fetch_undecoded))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        topic: the records of the topics that are read.
        segment_size: the value of `segment.bytes` of these topics.
    """

    topic: Topic
    segment_size: int


def sizes_for(divisor: int) -> Sizes:
    """Return the sizes for a divisor of the full ones. A topic has at least nine sealed segments."""
    topic = Topic("backfill", RECORD_SIZE, max(RECORD_COUNT // divisor, 12_000))
    return Sizes(topic, max(SEGMENT_SIZE // divisor, MIB))


@dataclass(frozen=True, slots=True)
class Tables:
    """The sections of this part."""

    remote: Section
    local: Section
    kafka: Section
    processor: Section
    others: Section
    outage: Section
    memory: Section
    requests: Section

    def all(self) -> list[Section]:
        """Return them in the order of the document."""
        beside = [self.local, self.kafka]
        return [self.remote, *beside, self.processor, self.others, self.outage, self.memory, self.requests]


def tables() -> Tables:
    """Return empty sections."""
    return Tables(
        Section(f"Reads from an object store with {DELAY_MS} ms of latency", beside=""),
        Section("Reads from an object store, beside reads of the local disk", beside=LOCAL),
        Section("Reads from an object store in a local directory, beside Apache Kafka's"),
        Section("Processor time of the broker for tiered storage", beside=""),
        Section("Producers while segments are copied at 100 MB/s", beside=tier_load.ALONE),
        Section("Clients of the local disk while the object store is away", beside=tier_outage.ANSWERS),
        Section("Memory and disk while many partitions are read from the store", beside=""),
        Section("Requests of a backfill from the store"),
    )


def run(
    run_count: int, divisor: int, best: Limits, tell: Callable[[str], object], *, with_kafka: bool
) -> list[Section]:
    """Measure all of it.

    Args:
        run_count: runs that are counted.
        divisor: of every count and size.
        best: the limits of the machine.
        tell: told what is being done.
        with_kafka: whether Apache Kafka takes part.
    """
    found, sizes = tables(), sizes_for(divisor)
    tell(f"tiers: reads from S3 at {DELAY_MS} ms")
    remote_reads(found.remote, sizes, run_count, best)
    tell("tiers: first records of cold fetches")
    first_records(found.remote, run_count, max(COLD_COUNT // divisor, 3))
    tell("tiers: reads from S3 without latency")
    with s3_store(0) as store, serve(store.url) as broker:
        copy = copied(broker, sizes.topic, sizes.segment_size)
        reads_beside_local(found, store, broker, sizes, run_count, best)
        copy_row(found.processor, store, broker, sizes.topic, copy)
    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(tiered_kafka.serve()) if with_kafka else None
        tell("tiers: reads from a directory")
        with directory_store() as store, serve(store.url) as broker:
            copy = copied(broker, sizes.topic, sizes.segment_size)
            reads_beside_local(found, store, broker, sizes, run_count, best, kafka)
            copy_row(found.processor, store, broker, sizes.topic, copy)
        tell("tiers: requests of a backfill")
        count_requests(found.requests, max(BACKFILL_SEGMENTS // divisor, ABORTED_COUNT), kafka)
    tell("tiers: producers while segments are copied")
    tier_load.producers_while_copying(found.others, run_count, max(tier_load.SECONDS / divisor, 1), best)
    tell("tiers: clients of the local disk while the store is away")
    tier_outage.local_clients_while_away(found.outage, max(tier_outage.SECONDS / divisor, 1), best)
    tell("tiers: many partitions")
    tier_load.many_partitions(found.memory, run_count, tier_load.partition_count_for(divisor))
    return found.all()


def why_no_tiered_kafka() -> str | None:
    """Return what is missing for Apache Kafka with tiered storage; None if nothing is. Fetches it if necessary."""
    try:
        jars = tiered_kafka.jars()
        apache_kafka.compiled(tiered_kafka.SOURCE, jars, apache_kafka.jars())
    except apache_kafka.NotAvailableError as missing:
        return str(missing)
    return None


# -- reads ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a topic from a store.

    Attributes:
        megabytes: the values that were read.
        seconds: by the clock.
        store_s: processor time of the store's process.
        broker_s: processor time of the broker.
    """

    megabytes: float
    seconds: float
    store_s: float
    broker_s: float

    @property
    def by_clock_mb_s(self) -> float:
        """The rate by the clock."""
        return self.megabytes / self.seconds

    @property
    def mb_s(self) -> float:
        """The rate without the time that the store's process has taken from the others.

        That time is the store's processor time divided by the number of processors, as if all were busy. The store's process
        cannot take more from a read.
        """
        taken_s = self.store_s / (os.cpu_count() or 1)
        return self.megabytes / max(self.seconds - taken_s, self.seconds / 2)

    @property
    def ms_per_mib(self) -> float:
        """Processor time of the broker for each MiB, in ms."""
        return self.broker_s * 1000 / (self.megabytes * 1e6 / MIB)


def read(load: Callable[[str, Topic], float], broker: EmbeddedBroker, topic: Topic, store: Store) -> Read:
    """Read a topic whose records are only in the store."""
    store_s, broker_s = store.used_s, processor_s(broker.pid)
    rate = load(broker.bootstrap, topic)
    return Read(
        topic.megabytes,
        topic.megabytes / rate,
        store.used_s - store_s,
        processor_s(broker.pid) - broker_s,
    )


def remote_reads(section: Section, sizes: Sizes, run_count: int, best: Limits) -> None:
    """Read one partition from a store that answers each request after DELAY_MS."""
    wanted = Wanted(REMOTE_MB_S_MIN, of_figure=True)
    with s3_store(DELAY_MS) as store, serve(store.url) as broker:
        copied(broker, sizes.topic, sizes.segment_size)
        topic = remote_part(broker.data, sizes.topic)
        limit = min(bare_reads(store, topic.name).mb_s, best.loopback_mb_s)
        warm(broker)
        for _ in range(run_count):
            for suffix, load in LOADS:
                empty_cache(broker)
                warm(broker)
                found = read(load, broker, topic, store)
                section.row(f"one partition{suffix}, MB/s", wanted=wanted, limit=limit).add(OURS, found.mb_s)
                section.row(f"the same by the clock{suffix}, MB/s", limit=limit).add(
                    OURS, found.by_clock_mb_s
                )


def reads_beside_local(
    found: Tables,
    store: Store,
    broker: EmbeddedBroker,
    sizes: Sizes,
    run_count: int,
    best: Limits,
    kafka: tiered_kafka.TieredKafka | None = None,
) -> None:
    """Read a topic from a store without latency, the same records from the local disk, and both from Apache Kafka.

    Apache Kafka's storage is a local directory, so it takes part beside the same kind of store.
    """
    remote = remote_part(broker.data, sizes.topic)
    local = Topic("local", remote.record_size, remote.record_count)
    filled(broker.bootstrap, local, {"segment.bytes": str(sizes.segment_size)})
    bare = bare_reads(store, remote.name)
    limit = min(bare.mb_s, best.loopback_mb_s)
    theirs = None if kafka is None else of_kafka(kafka, sizes)
    for _ in range(run_count):
        for suffix, load in LOADS:
            empty_cache(broker)
            load(broker.bootstrap, local)  # proves the local segments, and is not counted
            done = read(load, broker, remote, store)
            row = found.local.row(f"from {store.name}{suffix}, MB/s", wanted=Wanted(0.5), limit=limit)
            row.add(OURS, done.mb_s)
            local_mb_s = load(broker.bootstrap, local)
            row.add(LOCAL, local_mb_s)
            if store.pid is not None:
                row = found.local.row(f"the same by the clock{suffix}, MB/s", limit=limit)
                row.add(OURS, done.by_clock_mb_s)
                row.add(LOCAL, local_mb_s)
            else:
                wanted = Wanted(1.5 if suffix else 1.0)
                row = found.kafka.row(f"one partition{suffix}, MB/s", wanted=wanted, limit=limit)
                row.add(OURS, done.mb_s)
                if kafka is not None and theirs is not None:
                    row.add(KAFKA, load(kafka.bootstrap, theirs))
            if suffix:
                aim = Wanted(READ_MS_MAX, at_most=True, of_figure=True)
                row = found.processor.row(f"read from {store.name}, ms for each MiB", wanted=aim)
                row.limit = bare.ms_per_mib
                row.add(OURS, done.ms_per_mib)


def of_kafka(kafka: tiered_kafka.TieredKafka, sizes: Sizes) -> Topic:
    """Write the topic to Apache Kafka, wait until its sealed segments are only in the store, and read it once."""
    config = TIERED | {"segment.bytes": str(sizes.segment_size)}
    filled(kafka.bootstrap, sizes.topic, config)
    wait_until_remote(kafka.broker.data, sizes.topic.name)
    topic = remote_part(kafka.broker.data, sizes.topic)
    for _, load in LOADS:
        load(kafka.bootstrap, topic)  # warms Java up, and is not counted
    return topic


def copy_row(section: Section, store: Store, broker: EmbeddedBroker, topic: Topic, copy: Copy) -> None:
    """Note the processor time and the rate of a copy."""
    with tempfile.NamedTemporaryFile() as file:
        size = min(copy.size, SEGMENT_SIZE)
        file.write(os.urandom(size))
        file.flush()
        bare = bare_copy(store, Path(file.name), 4)
    wanted = Wanted(COPY_MS_MAX, at_most=True, of_figure=True)
    section.row(f"copied to {store.name}, ms for each MiB", wanted=wanted, limit=bare.ms_per_mib).add(
        OURS, copy.ms_per_mib
    )
    section.row(f"copied to {store.name}, one partition, MB/s", limit=bare.mb_s).add(OURS, copy.mb_s)


def first_records(section: Section, run_count: int, count: int) -> None:
    """Fetch from cold partitions of one chunk each, and request the same ranges without a broker."""
    with s3_store(DELAY_MS) as store, serve(store.url) as broker:
        name = "cold"
        create(broker.bootstrap, name, TIERED | {"segment.bytes": str(CHUNK_SIZE)}, count)
        fill_partitions(broker.bootstrap, name, count, CHUNK_SIZE + (256 << 10))
        wait_until_remote(broker.data, name, count)
        for _ in range(run_count):
            empty_cache(broker)
            warm(broker)
            cold_ms = statistics.median(list(fetches_ms(broker, name, count))[1:])
            request_ms = statistics.median(list(requests_ms(store, name))[1:])
            section.row("first records of a cold fetch, ms", limit=request_ms).add(OURS, cold_ms)
            wanted = Wanted(COLD_MS_MAX, at_most=True, of_figure=True)
            row = section.row("the same without the time of one range request, ms", wanted=wanted)
            row.add(OURS, cold_ms - request_ms)


def fetches_ms(broker: EmbeddedBroker, name: str, count: int) -> Iterator[float]:
    """Yield for each partition the time from a request to the first bytes of the response."""
    with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) as connection:
        for partition in range(count):
            asked_s = time.perf_counter()
            connection.sendall(fetch_request(name.encode(), 0, partition=partition))
            head = memoryview(bytearray(4))
            receive(connection, head)
            yield (time.perf_counter() - asked_s) * 1000
            answer = memoryview(bytearray(int.from_bytes(head, "big")))
            receive(connection, answer)
            assert len(answer) > RECORDS_SIZE_MIN, f"the response has {len(answer)} bytes, and no records"


def requests_ms(store: Store, name: str) -> Iterator[float]:
    """Yield the time of a request for each chunk of a topic."""
    client = store.opened()
    for chunk in chunks_of(client, name):
        asked_s = time.perf_counter()
        client.get_range(chunk.key, chunk.start, chunk.size)
        yield (time.perf_counter() - asked_s) * 1000


# -- requests (KIP-1058) -------------------------------------------------------------------------------------------


def count_requests(section: Section, segment_count: int, kafka: tiered_kafka.TieredKafka | None) -> None:
    """Count the requests of a read-committed backfill: without aborts, and with aborts in a few segments."""
    step = max(segment_count // ABORTED_COUNT, 1)
    aborted = tuple(range(0, segment_count, step))[:ABORTED_COUNT]
    with serve_s3() as s3, reachable(s3.options["aws_endpoint"]), serve("s3://bucket/bench") as broker:
        for name, numbers in (("no aborts", ()), (f"aborts in {len(aborted)}", aborted)):
            topic = name.replace(" ", "-")
            ours = requests_of(broker, s3, topic, segment_count, numbers)
            theirs = None
            if kafka is not None:
                theirs = tiered_kafka.count_backfill(kafka, topic, segment_count, numbers).requests
            prefix = f"{segment_count} segments, {name}"
            row = section.row(f"{prefix}: ranges of log files", limit=segment_count)
            row.add(OURS, ours["log"])
            if theirs is not None:
                row.add(KAFKA, theirs[Kind.SEGMENT])
            wanted = Wanted(len(numbers), at_most=True, of_figure=True)
            row = section.row(f"{prefix}: indexes", wanted=wanted, limit=len(numbers))
            row.add(OURS, ours["indexes"])
            if theirs is not None:
                row.add(KAFKA, theirs.total() - theirs[Kind.SEGMENT])
            wanted = Wanted(MANIFESTS_MAX, at_most=True, of_figure=True)
            section.row(f"{prefix}: manifests", wanted=wanted, limit=0).add(OURS, ours["manifests"])


def requests_of(
    broker: EmbeddedBroker, s3: S3, topic: str, segment_count: int, aborted: Collection[int]
) -> Counter[str]:
    """Write a topic, wait until it is remote, and count the requests of a backfill by the kind of object.

    Every request that is not for a log file or for indexes counts as one for a manifest. Only requests for objects of this
    topic count: the broker may copy the logs of the coordinators meanwhile.
    """
    create(broker.bootstrap, topic, TIERED | backfill.TOPIC_SETTINGS)
    backfill.fill(broker.bootstrap, topic, segment_count, aborted)
    wait_until_remote(broker.data, topic)
    earlier = s3.keys.copy()
    count = backfill.read(broker.bootstrap, topic)
    assert count == backfill.committed_count(segment_count, aborted), f"{topic}: {count} records"
    found: Counter[str] = Counter(log=0, indexes=0, manifests=0)
    of_topic = [(key, number) for (_, key), number in (s3.keys - earlier).items() if f"t.{topic}/" in key]
    for key, number in of_topic:
        kind = key.rpartition(".")[2]
        found[kind if kind in ("log", "indexes") else "manifests"] += number
    return found
