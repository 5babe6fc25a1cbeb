"""What tiered storage does to others: the latency of producers while segments are copied, and the broker's memory and
disk while many partitions are read from the store.
"""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka import Producer

from bench.contestants import OURS, memory_mb
from bench.limits import Limits
from bench.loads import (
    MB,
    PATIENCE_S,
    QUIET,
    READ_SIZE_MAX,
    end_of_records,
    fetch_request,
    percentile,
)
from bench.report import Section, Wanted
from bench.tier_stores import (
    CACHE_SIZE,
    CHUNK_SIZE,
    LOADS_MAX,
    MIB,
    TIERED,
    configure,
    create,
    delete,
    directory_store,
    empty_cache,
    fill_partitions,
    loaded_size,
    local_logs,
    serve,
    wait_until,
    wait_until_remote,
    warm,
)
from stablelog.embedded import EmbeddedBroker

ALONE = "without copies"
COPY_RATE = 100_000_000  # bytes a second
SECONDS = 10.0  # of each measurement of producers
STEADY = "steady"  # the topic of the producer at a steady pace
RECORDS_PER_S = 200
P99_RATIO_MAX = 1.5
COPY_SEGMENT_SIZE = 16 * MIB
COPY_PARTITIONS = 4
PARTITION_COUNT = 1_000
QUICK_PARTITION_COUNT = 200
MEMORY_MIB_MAX = 64.0  # beside the bounded caches
DISK_CACHE_SIZE = 256 * MIB
SAMPLE_S = 0.02


# -- producers -----------------------------------------------------------------------------------------------------


def producers_while_copying(section: Section, run_count: int, seconds: float, best: Limits) -> None:
    """Measure a producer at a steady pace without copies, and while sealed segments are copied to a directory."""
    latency, rate = "produce at 200 records/s, p99 ms", "copied meanwhile, MB/s"
    limit = best.sync_ms + best.round_trip_ms
    row = section.row(latency, wanted=Wanted(P99_RATIO_MAX, at_most=True), limit=limit)
    copied = section.row(rate, limit=COPY_RATE / MB)
    size = int(COPY_RATE * (seconds + 2)) // COPY_PARTITIONS
    limited = {"remote_log_manager_copy_max_bytes_per_second": COPY_RATE}
    with directory_store() as store, serve(store.url, **limited) as broker:
        remote = Path(urlsplit(store.url).path)
        create(broker.bootstrap, STEADY, {})
        steady_latencies_ms(broker, 0.5)  # warms up, and is not counted
        for number in range(run_count):
            name = f"waiting-{number}"
            waiting = {"remote.storage.enable": "true", "remote.log.copy.disable": "true"}
            config = waiting | {"segment.bytes": str(COPY_SEGMENT_SIZE)}
            create(broker.bootstrap, name, config, COPY_PARTITIONS)
            fill_partitions(broker.bootstrap, name, COPY_PARTITIONS, size + COPY_SEGMENT_SIZE)
            os.sync()
            row.add(ALONE, percentile(steady_latencies_ms(broker, seconds), 99))
            os.sync()
            configure(broker.bootstrap, name, {"remote.log.copy.disable": "false"})
            before = stored_size(remote)
            wait_until(lambda at=before: stored_size(remote) > at, f"copies of {name} have begun")
            begun_s, begun_size = time.perf_counter(), stored_size(remote)
            latencies = steady_latencies_ms(broker, seconds)
            row.add(OURS, percentile(latencies, 99))
            copied_size = stored_size(remote) - begun_size
            copied.add(OURS, copied_size / (time.perf_counter() - begun_s) / MB)
            sealed = sum(
                log.stat().st_size
                for partition in range(COPY_PARTITIONS)
                for log in local_logs(broker.data, name, partition)[:-1]
            )
            assert stored_size(remote) - before < sealed, "the copies ended before the producer"
            delete(broker.bootstrap, name)


def steady_latencies_ms(
    broker: EmbeddedBroker, seconds: float, value_at: Callable[[float], bytes] = lambda _due_s: bytes(100)
) -> list[float]:
    """Produce records of 100 B at a steady pace, acks=all.

    Args:
        broker: the broker.
        seconds: for how long.
        value_at: returns the value of the record that is due at a time.

    Returns:
        The time from when each record was due to be sent to its acknowledgement, in ms.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 0, **QUIET})
    found: list[float] = []

    def acknowledged(due_s: float) -> Callable[[object, object], None]:
        def note(error: object, _: object) -> None:
            assert error is None, error
            found.append((time.perf_counter() - due_s) * 1000)

        return note

    producer.produce(STEADY, value_at(0))  # the first one finds the way
    producer.flush(PATIENCE_S)
    is_over = threading.Event()

    def poll() -> None:
        while not is_over.is_set():
            producer.poll(0.1)

    thread = threading.Thread(target=poll)
    thread.start()
    begun_s = time.perf_counter() + 0.1
    count = int(seconds * RECORDS_PER_S)
    for number in range(count):
        due_s = begun_s + number / RECORDS_PER_S
        time.sleep(max(due_s - time.perf_counter(), 0))
        producer.produce(STEADY, value_at(due_s), on_delivery=acknowledged(due_s))
    producer.flush(PATIENCE_S)
    is_over.set()
    thread.join()
    assert len(found) == count, f"{len(found)} of {count} records were acknowledged"
    return found


def stored_size(directory: Path) -> int:
    """Return the size of all files in a directory and below, also of unfinished ones."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += (Path(parent) / name).stat().st_size
    return size


# -- many partitions -----------------------------------------------------------------------------------------------


def partition_count_for(divisor: int) -> int:
    """Return the number of partitions for a divisor of the full size; 200 for a tenth of it."""
    return PARTITION_COUNT if divisor == 1 else max(QUICK_PARTITION_COUNT * 10 // divisor, 2)


def many_partitions(section: Section, run_count: int, count: int) -> None:
    """Read many partitions at once from a directory, each over a connection of its own.

    Each partition has one sealed segment of the size of a chunk. All of them together are larger than the cache on the
    disk, unless there are few partitions.
    """
    name = "many"
    settings = {
        "stablelog_remote_cache_bytes": DISK_CACHE_SIZE,
        "stablelog_max_partitions": count + 200,
    }
    loaded_mib = (CACHE_SIZE + LOADS_MAX * CHUNK_SIZE) / MIB
    readers = min(count, LOADS_MAX)
    disk_mib_max = (DISK_CACHE_SIZE + readers * CHUNK_SIZE) / MIB
    with directory_store() as store, serve(store.url, **settings) as broker:
        create(broker.bootstrap, name, TIERED | {"segment.bytes": str(CHUNK_SIZE)}, count)
        fill_partitions(broker.bootstrap, name, count, CHUNK_SIZE + (256 << 10))
        wait_until_remote(broker.data, name, count)
        ends = [int(local_logs(broker.data, name, partition)[0].stem) for partition in range(count)]
        for _ in range(run_count):
            empty_cache(broker)
            warm(broker)
            before_mb, before_size = memory_mb(broker.pid), loaded_size(broker)
            begun_s = time.perf_counter()
            with sampled(broker) as greatest:
                size = asyncio.run(backfill(broker, name, ends))
            seconds = time.perf_counter() - begun_s
            prefix = f"{count:,} partitions at once"
            wanted = Wanted(MEMORY_MIB_MAX + loaded_mib, at_most=True, of_figure=True)
            row = section.row(f"{prefix}: growth of memory, MiB", wanted=wanted, limit=loaded_mib)
            row.add(OURS, greatest["memory"] - before_mb)
            wanted = Wanted(disk_mib_max, at_most=True, of_figure=True)
            row = section.row(f"{prefix}: cache on the disk, MiB", wanted=wanted, limit=DISK_CACHE_SIZE / MIB)
            row.add(OURS, greatest["disk"])
            row = section.row(f"{prefix}: bytes from the store for each byte of a response", limit=1)
            row.add(OURS, (loaded_size(broker) - before_size) / size)
            section.row(f"{prefix}: read, MB/s").add(OURS, size / seconds / MB)


@contextlib.contextmanager
def sampled(broker: EmbeddedBroker) -> Iterator[dict[str, float]]:
    """Note the greatest memory of the broker and the greatest size of its cache on the disk, while the block runs.

    The last samples are taken when the block has ended. So a short block has samples, too.
    """
    greatest = {"memory": 0.0, "disk": 0.0}
    is_over = threading.Event()

    def sample() -> None:
        greatest["memory"] = max(greatest["memory"], memory_mb(broker.pid))
        cached = stored_size(broker.data / "remote-log-index-cache") / MIB
        greatest["disk"] = max(greatest["disk"], cached)

    def sample_until_over() -> None:
        while not is_over.wait(SAMPLE_S):
            sample()

    thread = threading.Thread(target=sample_until_over)
    thread.start()
    try:
        yield greatest
    finally:
        is_over.set()
        thread.join()
        sample()


async def backfill(broker: EmbeddedBroker, topic: str, ends: list[int]) -> int:
    """Read each partition up to an offset, all at once. Return the bytes of the responses."""
    sizes = await asyncio.gather(*(backfill_one(broker, topic, *one) for one in enumerate(ends)))
    return sum(sizes)


async def backfill_one(broker: EmbeddedBroker, topic: str, partition: int, end: int) -> int:
    """Read one partition over a connection of its own, without decoding its records."""
    name = topic.encode()
    reader, writer = await asyncio.open_connection(broker.host, broker.port, limit=READ_SIZE_MAX)
    offset = received = 0
    while offset < end:
        writer.write(fetch_request(name, offset, partition=partition))
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = await reader.readexactly(size)
        offset = end_of_records(memoryview(answer), len(name), offset)
        received += size
    writer.close()
    await writer.wait_closed()
    return received
