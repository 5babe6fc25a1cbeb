"""What does the proof of sealed segments cost the first readers after a start?

A broker proves the batch headers of a sealed segment before the first fetch from it, and a Spark worker before its first
task that reads the file. The first fetch of a segment of 1 GiB waits for that; a backfill of ten such segments is slower
by it. Batches of 16 KB; records of 1,000 B.

    python -m bench --only after-start --backfill-gb 10
"""

import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

import stablelog
from bench.commit_fetch import drop_pages
from bench.contestants import OURS
from bench.loads import (
    PATIENCE_S,
    QUIET,
    READ_SIZE_MAX,
    Topic,
    end_of_records,
    fetch_request,
    fetch_undecoded,
    fill,
    receive,
)
from bench.report import Section, Wanted
from bench.spark_session import cost, drain
from stablelog.embedded import EmbeddedBroker

AGAIN = "again"
BATCH_SIZE = 16 << 10
RECORD_SIZE = 1_000
SEGMENT_SIZE = 1 << 30
NAME = "backfill"
AT_LEAST = 0.8  # of the rate of the second backfill


def run(spark: Any, run_count: int, size: int, segment_size: int = SEGMENT_SIZE) -> list[Section]:
    """All figures.

    Args:
        spark: a session.
        run_count: runs that are counted.
        size: bytes of the backfill's records.
        segment_size: bytes of a sealed segment, about.
    """
    first = Section("First fetch from a sealed segment after a start", beside="")
    whole = Section("Backfill right after a start, beside the same again", beside=AGAIN)
    topic = Topic(NAME, RECORD_SIZE, size // RECORD_SIZE)
    with (
        tempfile.TemporaryDirectory() as directory,
        stablelog.serve(
            Path(directory) / "data",
            stablelog_flush="os",
            log_segment_bytes=segment_size,
            stablelog_scrub_bytes_per_second=0,  # its first pass would prove segments before the reader does
        ) as broker,
    ):
        written(broker, topic)
        segments = sorted((broker.data / f"{NAME}-0").glob("*.log"))[:-1]
        assert segments, "no segment is sealed"
        drain(from_files(spark, broker, topic))  # the first query of a session starts workers and compiles
        for _ in range(run_count):
            first_fetches(broker, topic, segments[0], first)
            backfills(spark, broker, topic, segments, whole)
    return [first, whole]


def written(broker: EmbeddedBroker, topic: Topic) -> None:
    """Fill the topic, in batches of 16 KB."""
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 5,
            "batch.size": BATCH_SIZE,
            "queue.buffering.max.messages": 1_000_000,
            **QUIET,
        }
    )
    producer.list_topics(topic.name, timeout=PATIENCE_S)
    fill(producer, topic)
    os.sync()


def first_fetches(broker: EmbeddedBroker, topic: Topic, segment: Path, section: Section) -> None:
    """Fetch once from a segment after a start: with the file in the page cache, and without."""
    size = f"{segment.stat().st_size / (1 << 30):.2g} GiB"
    for state, prepare in (("warm", read_whole), ("cold", drop_pages)):
        broker.stop()
        prepare(segment)
        broker.start()
        took_ms = first_fetch_ms(broker, topic)
        section.row(f"first fetch from a {state} segment of {size}, ms").add(OURS, took_ms)
    section.row("the next fetch, ms").add(OURS, first_fetch_ms(broker, topic))


def first_fetch_ms(broker: EmbeddedBroker, topic: Topic) -> float:
    """Milliseconds from asking for the first offset to the first records; empty answers are asked again."""
    answer = memoryview(bytearray(READ_SIZE_MAX * 2))
    with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) as connection:
        began = time.perf_counter()
        offset = 0
        while not offset:
            connection.sendall(fetch_request(topic.name.encode(), 0))
            receive(connection, answer[:4])
            size = int.from_bytes(answer[:4], "big")
            receive(connection, answer[:size])
            offset = end_of_records(answer[:size], len(topic.name), 0)
        return (time.perf_counter() - began) * 1000


def backfills(
    spark: Any, broker: EmbeddedBroker, topic: Topic, segments: list[Path], section: Section
) -> None:
    """Read the topic twice after a start: by a client, and by Spark's tasks from the files. All is in the page cache."""
    broker.stop()
    for segment in segments:
        read_whole(segment)
        os.utime(segment)  # a worker of an earlier run has not proven this file
    broker.start()
    size = f"{topic.megabytes / 1000:.2g} GB"
    by_spark = from_files(spark, broker, topic)
    for contestant in (OURS, AGAIN):
        row = section.row(f"{size} by fetch, not decoded, MB/s", wanted=Wanted(AT_LEAST))
        row.add(contestant, fetch_undecoded(broker.bootstrap, topic))
    for contestant in (OURS, AGAIN):
        took = cost(lambda: drain(by_spark))
        row = section.row(f"{size} by Spark from files, MB/s", wanted=Wanted(AT_LEAST))
        row.add(contestant, topic.megabytes / took.seconds)
        row = section.row(f"{size} by Spark from files, MB per s of processor time", wanted=Wanted(AT_LEAST))
        row.add(contestant, topic.megabytes / max(took.cpu_seconds, 0.01))


def from_files(spark: Any, broker: EmbeddedBroker, topic: Topic) -> Any:
    """The topic as a frame that Spark's tasks read from the segment files."""
    frame = spark.read.format("stablelog")
    return frame.options(bootstrap=broker.bootstrap, subscribe=topic.name, scan="files").load()


def read_whole(path: Path) -> None:
    """Have a file in the page cache."""
    piece = bytearray(1 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(piece):
            pass
