"""The other direction: Apache Kafka opens partitions that stablelog has written, and serves the same.

Ordinary and compacted topics, with and without DeleteRecords, in TV1 and TV2, with the times of producers and of the
broker; stablelog was stopped, or killed.
"""

import asyncio
import contextlib
import functools
import shutil
from pathlib import Path

import stablelog
from peers import apache_kafka
from tests.golden.cells import KILLED, Cell
from tests.golden.checks import Failures
from tests.golden.kafka_writer import (
    BROKER_SETTINGS,
    COMPACTED_SETTINGS,
    CellSeen,
    CellWriter,
)
from tests.golden.look import (
    COMMITTED,
    EARLIEST,
    PartitionSeen,
    RawClient,
    check_times,
    described_producers,
    last_times,
    look_at_partition,
    offset_at,
)
from tests.java.dump import SHORT_LIVED
from tests.java.load import create_topic
from tests.waiting import until

ROUNDS = 8  # so many that a segment of 1 KiB, our least, is full
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
CHECKPOINTS = (
    "log-start-offset-checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)


def our_settings(cell: Cell) -> dict[str, str]:
    """Of a topic of ours."""
    found = {"segment.bytes": "1024", "index.interval.bytes": "100", "retention.ms": "-1"}
    if cell.compacted:
        found |= COMPACTED_SETTINGS | {"cleanup.policy": "compact,delete" if cell.deleted else "compact"}
    if cell.partition_count > 1:
        found["message.timestamp.type"] = "LogAppendTime"
    return found


def run_back(cells: list[Cell], folder: Path, failures: Failures, progress) -> None:
    """Have stablelog write the cells, all of one version and end, and Kafka open its partitions.

    Raises:
        NotAvailableError: Kafka cannot be run here.
    """
    ((version, end),) = {(cell.version, cell.end) for cell in cells}
    kafka = apache_kafka.KafkaBroker(folder / "kafka", BROKER_SETTINGS, SHORT_LIVED, version=version)
    try:
        progress("starting Kafka")
        kafka.start()
        for cell in cells:
            create_topic(kafka.bootstrap, cell.topic, {"retention.ms": "-1"}, cell.partition_count)
        kafka.stop()
        with stablelog.serve(folder / "ours", log_cleaner_backoff_ms=100) as ours:
            writer = CellWriter(ours, cells, our_settings, rounds=ROUNDS, progress=progress)
            try:
                seen = writer.write()
                (ours.kill if end == KILLED else ours.stop)()
            finally:
                writer.close()
        progress("handing the partitions over")
        hand_over(folder / "ours", kafka.data, cells)
        if end == KILLED:
            (kafka.data / CLEAN_SHUTDOWN).unlink()
        kafka.start()
        wait_for_leaders(kafka.bootstrap, cells)
        progress("reading what Kafka serves")
        asyncio.run(_compare(kafka.bootstrap, seen, failures))
    finally:
        kafka.stop()


def hand_over(ours: Path, kafkas: Path, cells: list[Cell]) -> None:
    """Put our partitions in the place of Kafka's empty ones, as docs/guides/deploy.md says."""
    names = [f"{cell.topic}-{index}" for cell in cells for index in range(cell.partition_count)]
    for name in names:
        metadata = (kafkas / name / "partition.metadata").read_bytes()
        shutil.rmtree(kafkas / name)
        shutil.copytree(ours / name, kafkas / name)
        (kafkas / name / "partition.metadata").write_bytes(metadata)
    of_these = {tuple(name.rsplit("-", 1)) for name in names}
    for checkpoint in CHECKPOINTS:
        rows = [row for row in _rows(kafkas / checkpoint) if tuple(row.split()[:2]) not in of_these]
        rows += [row for row in _rows(ours / checkpoint) if tuple(row.split()[:2]) in of_these]
        (kafkas / checkpoint).write_text("\n".join(["0", str(len(rows)), *rows, ""]))


def wait_for_leaders(bootstrap: str, cells: list[Cell]) -> None:
    """Wait until the broker leads every partition of the cells: it answers before that."""
    client = RawClient(bootstrap)

    def leads(cell: Cell, index: int) -> bool:
        with contextlib.suppress(AssertionError):
            asyncio.run(offset_at(client, cell.topic, index, EARLIEST, COMMITTED))
            return True
        return False

    for cell in cells:
        for index in range(cell.partition_count):
            until(functools.partial(leads, cell, index), f"{cell.topic}-{index} has no leader")
    client.close()


def _rows(path: Path) -> list[str]:
    return path.read_text().splitlines()[2:] if path.exists() else []


def _knows(kafkas: PartitionSeen, ours: PartitionSeen, cell: Cell) -> bool:
    """Whether Kafka knows the producers that we know.

    Where it has to recover the log it removes snapshots up to the log's start, also in its own directories. Of what
    stands before that it may then know neither a coordinator's epoch nor where an open transaction begins.
    """
    if cell.end != KILLED or not cell.deleted:
        return kafkas.producers == ours.producers
    if len(kafkas.producers) != len(ours.producers):
        return False
    return all(
        there[:3] == wanted[:3]
        and there[3] in (wanted[3], -1)
        and (there[4] == wanted[4] or there[4] == ours.start_offset > wanted[4] >= 0)
        for there, wanted in zip(kafkas.producers, ours.producers, strict=True)
    )


async def _compare(bootstrap, seen: dict[Cell, CellSeen], failures: Failures):
    client = RawClient(bootstrap)
    for cell, cell_seen in seen.items():
        for index, ours in enumerate(cell_seen.partitions):
            where = f"Kafka on our partition {index}"
            try:
                kafkas = await look_at_partition(client, cell.topic, index)
                await check_times(client, cell.topic, index, ours, by_kafka=True)
                producers = await described_producers(client, cell.topic, index)
                times = await last_times(client, cell.topic, index, ours.start_offset, ours.end_offset)
            except AssertionError as error:
                failures.add(cell, where, str(error))
                continue
            for name in ("start_offset", "stable_offset", "end_offset", "committed", "all_records"):
                there, wanted = getattr(kafkas, name), getattr(ours, name)
                if there != wanted:
                    failures.add(cell, where, f"{name} is {there}, with stablelog {wanted}")
            if not _knows(kafkas, ours, cell):
                line = f"producers are {kafkas.producers}, with stablelog {ours.producers}"
                failures.add(cell, where, line)
            for producer in producers:
                wanted = times.get(producer.producer_id, producer.last_timestamp)
                if producer.last_timestamp != wanted:
                    failures.add(cell, where, f"{producer} had its last event at {wanted}")
    client.close()
