"""Has a broker write the cells of the matrix into one data directory, and records what it served.

A directory holds a topic and a transactional id for each cell. Kafka is then killed or stopped. Prepared transactions
are made in a copy: Kafka's own completion and markers are removed.
"""

import asyncio
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from peers import apache_kafka
from tests.golden.cells import ABORT, COMMIT, KILLED, NOTHING, OPEN, TV1, Cell
from tests.golden.look import (
    PartitionSeen,
    RawClient,
    TransactionSeen,
    group_offset,
    look_at_partition,
    look_at_transaction,
)
from tests.java.client import JavaProcess, encoded
from tests.java.dump import SHORT_LIVED
from tests.java.load import TIMEOUT_S, settings
from tests.waiting import until

SMALL_INDEXES = "1020"  # Kafka makes them as large as this beforehand
BROKER_SETTINGS = {
    "log.cleaner.backoff.ms": "100",
    "log.index.size.max.bytes": SMALL_INDEXES,
    "log.initial.task.delay.ms": "100",
    "offsets.topic.num.partitions": "3",
    # By default a minute: what DeleteRecords has removed since is there again after a kill, with Kafka too.
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "transaction.state.log.segment.bytes": str(1 << 20),
}
TOPIC_SETTINGS = {
    "internal.segment.bytes": "300",
    "index.interval.bytes": "100",
    "segment.index.bytes": SMALL_INDEXES,
    "retention.ms": "-1",
}
COMPACTED_SETTINGS = {"min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0"}
TRANSACTION_TIMEOUT_MS = 900_000
NEVER_MS = str(2**62)
ROUNDS = 3
BEFORE_OFFSET, LAST_OFFSET = 3, 7  # that the transactions commit for a group


@dataclass
class CellSeen:
    """What Kafka said of a cell before it ended; of a prepared one, when its decision had been carried out.

    Attributes:
        transaction: of the cell's id.
        partitions: of its topic.
        group_offset: what its group has committed for partition 0; -1 if nothing.
    """

    transaction: TransactionSeen
    partitions: list[PartitionSeen]
    group_offset: int = -1


class CellWriter:
    """Writes cells to a running broker.

    Args:
        broker: has `bootstrap` and `data`, its data directory.
        cells: those that are to be in its directory.
        settings_of: the settings of a cell's topic.
        rounds: how much is written before the first and before the last transaction.
        progress: called with what is being done.
    """

    def __init__(
        self, broker, cells: Iterable[Cell], settings_of, *, rounds=ROUNDS, progress=lambda _what: None
    ):
        self.broker = broker
        self.cells = list(cells)
        self._settings_of = settings_of
        self._rounds = rounds
        self._progress = progress
        self._admin = AdminClient(settings(broker.bootstrap))
        self._plain = Producer(settings(broker.bootstrap, **{"linger.ms": 0}))
        self._java = JavaProcess()
        self._librdkafka: dict[Cell, Producer] = {}

    def write(self) -> dict[Cell, CellSeen]:
        """Write all, and look at what is there."""
        self._progress("creating topics")
        self._create_topics()
        self._progress("starting producers")
        for cell in self.cells:
            self._start_producer(cell)
        self._progress("writing records and first transactions")
        for number in range(self._rounds):
            self._write_plain(b"plain-%d" % number)
        for cell in self.cells:
            if cell.before != NOTHING:
                self._transact(cell, b"before", BEFORE_OFFSET)
                self._end(cell, cell.before)
        self._wait_until_settled([cell for cell in self.cells if cell.before != NOTHING])
        for number in range(self._rounds):
            self._write_plain(b"between-%d" % number)
        self._progress("waiting for the cleaner")
        self._clean()
        self._progress("writing last transactions")
        for cell in self.cells:
            self._transact(cell, b"last", LAST_OFFSET)
            if cell.decision is not None:
                self._end(cell, cell.decision)
        self._wait_until_settled([cell for cell in self.cells if cell.decision is not None])
        self._write_plain(b"behind", [cell for cell in self.cells if cell.state == OPEN])
        return asyncio.run(self._delete_and_look())

    def close(self) -> None:
        """End the producers, without a word to the broker."""
        self._java.close()
        self._librdkafka.clear()

    # -- topics ------------------------------------------------------------------------------------------------

    def _create_topics(self) -> None:
        topics = [
            NewTopic(cell.topic, cell.partition_count, 1, config=self._settings_of(cell))
            for cell in self.cells
        ]
        for future in self._admin.create_topics(topics).values():
            future.result(TIMEOUT_S)

    def _clean(self) -> None:
        """Wait until Kafka has compacted all that it can; then it is to compact nothing more."""
        compacted = [cell for cell in self.cells if cell.compacted]
        if not compacted:
            return
        until(lambda: all(map(self._is_cleaned, compacted)), "the cleaner does not end", patience_s=300)
        lag = ConfigEntry("min.compaction.lag.ms", NEVER_MS, incremental_operation=AlterConfigOpType.SET)
        resources = [
            ConfigResource(ResourceType.TOPIC, cell.topic, incremental_configs=[lag]) for cell in compacted
        ]
        for future in self._admin.incremental_alter_configs(resources).values():
            future.result(TIMEOUT_S)

    def _is_cleaned(self, cell: Cell) -> bool:
        checkpoint = self.broker.data / "cleaner-offset-checkpoint"
        rows = checkpoint.read_text().splitlines() if checkpoint.exists() else []
        for index in range(cell.partition_count):
            bases = [int(path.stem) for path in (self.broker.data / f"{cell.topic}-{index}").glob("*.log")]
            if f"{cell.topic} {index} {max(bases)}" not in rows:
                return False
        return True

    async def _delete_records(self, client: RawClient) -> None:
        """Remove the beginning of a transaction: of the first one, or of the only one."""
        offsets = []
        for cell in self.cells:
            for index in range(cell.partition_count) if cell.deleted else ():
                seen = await look_at_partition(client, cell.topic, index, everywhere=False)
                begin = min(r.offset for r in seen.all_records if r.value.startswith((b"before", b"last")))
                offsets.append(TopicPartition(cell.topic, index, begin + 1))
        for future in self._admin.delete_records(offsets).values() if offsets else ():
            future.result(TIMEOUT_S)
        until(lambda: all(map(self._is_deleted, offsets)), "the new log starts are not on disk")

    def _is_deleted(self, at: TopicPartition) -> bool:
        """Whether a kill leaves the log's start where it is: by the checkpoint, or by the first segment that is left."""
        directory = self.broker.data / f"{at.topic}-{at.partition}"
        rows = (self.broker.data / "log-start-offset-checkpoint").read_text().splitlines()
        first = min(int(path.stem) for path in directory.glob("*.log"))
        return f"{at.topic} {at.partition} {at.offset}" in rows or first >= at.offset

    # -- records -----------------------------------------------------------------------------------------------

    def _write_plain(self, value: bytes, cells: Iterable[Cell] | None = None) -> None:
        for cell in self.cells if cells is None else cells:
            for index in range(cell.partition_count):
                for number in range(2):
                    self._plain.produce(
                        cell.topic, value + b"-%d" % number, key=b"k%d" % number, partition=index
                    )
        assert self._plain.flush(TIMEOUT_S) == 0

    def _start_producer(self, cell: Cell) -> None:
        more = {"transactional.id": cell.transactional_id, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        more["linger.ms"] = 0
        if cell.dialect == TV1:
            made = Producer(settings(self.broker.bootstrap, **more))
            made.init_transactions(TIMEOUT_S)
            self._librdkafka[cell] = made
        else:
            self._java.ask(self.broker.bootstrap, "producer", more, name=cell.topic)

    def _transact(self, cell: Cell, value: bytes, group_offset: int) -> None:
        """Begin a transaction, write two batches to each partition, and commit an offset of the cell's group."""
        if cell.dialect == TV1:
            self._librdkafka[cell].begin_transaction()
        else:
            self._java.ask(self.broker.bootstrap, "begin", name=cell.topic)
        for number in range(2):
            for index in range(cell.partition_count):
                key, text = b"k%d" % (number + 1), value + b"-%d" % number
                if cell.dialect == TV1:
                    self._librdkafka[cell].produce(cell.topic, text, key=key, partition=index)
                else:
                    self._java.ask(
                        self.broker.bootstrap,
                        "send",
                        name=cell.topic,
                        topic=cell.topic,
                        partition=index,
                        key=encoded(key),
                        values=[encoded(text)],
                    )
            if cell.dialect == TV1:
                assert self._librdkafka[cell].flush(TIMEOUT_S) == 0

        if cell.group is not None:
            self._send_offset(cell, group_offset)

    def _send_offset(self, cell: Cell, offset: int) -> None:
        if cell.dialect == TV1:
            group = Consumer(settings(self.broker.bootstrap, **{"group.id": cell.group}))
            self._librdkafka[cell].send_offsets_to_transaction(
                [TopicPartition(cell.topic, 0, offset)], group.consumer_group_metadata(), TIMEOUT_S
            )
            group.close()
        else:
            self._java.ask(
                self.broker.bootstrap,
                "offsets",
                name=cell.topic,
                group=cell.group,
                offsets=[[cell.topic, 0, offset]],
            )

    def _end(self, cell: Cell, how: str) -> None:
        assert how in (COMMIT, ABORT)
        if cell.dialect == TV1:
            by = self._librdkafka[cell]
            (by.commit_transaction if how == COMMIT else by.abort_transaction)(TIMEOUT_S)
        else:
            self._java.ask(self.broker.bootstrap, how, name=cell.topic)

    def _wait_until_settled(self, cells: Iterable[Cell]) -> None:
        """Wait for the markers and the completion: Kafka answers before it writes them."""
        client = RawClient(self.broker.bootstrap)
        for cell in cells:
            until(
                lambda cell=cell: asyncio.run(
                    look_at_transaction(client, cell.transactional_id)
                ).state.startswith("Complete"),
                f"the transaction of {cell} is not completed",
            )
        client.close()

    async def _delete_and_look(self) -> dict[Cell, CellSeen]:
        client = RawClient(self.broker.bootstrap)
        await self._delete_records(client)
        seen = {}
        for number, cell in enumerate(self.cells):
            self._progress(f"reading what Kafka serves: {number + 1} of {len(self.cells)}")
            seen[cell] = CellSeen(
                await look_at_transaction(client, cell.transactional_id),
                [await look_at_partition(client, cell.topic, index) for index in range(cell.partition_count)],
                -1 if cell.group is None else await group_offset(client, cell.group, cell.topic),
            )
        client.close()
        return seen


def kafkas_settings(cell: Cell) -> dict[str, str]:
    """Of a topic of Kafka's: segments so small that there are several."""
    if not cell.compacted:
        return TOPIC_SETTINGS
    # Kafka deletes records of a compacted topic only if it may delete for other reasons, too.
    policy = "compact,delete" if cell.deleted else "compact"
    return TOPIC_SETTINGS | COMPACTED_SETTINGS | {"cleanup.policy": policy}


def write_directory(
    folder: Path, cells: list[Cell], *, state_partitions: int = 50, progress=lambda _what: None
) -> dict[Cell, CellSeen]:
    """Have Kafka write a directory, `folder / "data"`, that holds these cells, all of one version and end.

    Args:
        folder: an empty one.
        cells: of one version and end.
        state_partitions: of `__transaction_state`; 50 by Kafka's default.
        progress: called with what is being done.

    Raises:
        NotAvailableError: Kafka cannot be run here.
    """
    ((version, end),) = {(cell.version, cell.end) for cell in cells}
    kafka = apache_kafka.KafkaBroker(
        folder / "data",
        BROKER_SETTINGS | {"transaction.state.log.num.partitions": str(state_partitions)},
        SHORT_LIVED,
        version=version,
    )
    try:
        progress("starting Kafka")
        kafka.start()
        writer = CellWriter(kafka, cells, kafkas_settings, progress=progress)
        try:
            seen = writer.write()
            progress("ending Kafka")
            (kafka.kill if end == KILLED else kafka.stop)()
        finally:
            writer.close()
    finally:
        kafka.stop()
    for path in (folder / "data").rglob("*.deleted"):
        path.unlink()
    shutil.rmtree(folder / "data" / "__cluster_metadata-0" / "none", ignore_errors=True)
    return seen
