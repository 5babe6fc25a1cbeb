"""The same transactions in a commit-ordered topic and in an ordinary one: many writers, each in turn, as they interleave.

They are appended to the partitions while no broker runs, so that what lies where is known to the batch: writer after
writer adds a batch to its transaction, and the commits are spread over time. Both topics hold the same bytes.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from bench.contestants import OURS
from bench.loads import QUIET, Topic
from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.commit_order.opening import CommitOrdered
from stablelog.embedded import EmbeddedBroker
from stablelog.env.local_disk import LocalDisk
from stablelog.log.opening import open_partition
from stablelog.log.partition import LogConfig, MarkerWrite

ORDINARY = "ordinary topic"
ORDERS = {OURS: "commit", ORDINARY: "offset"}
FIRST_PRODUCER_ID = 1_000_000
NOW_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """How the transactions look.

    Attributes:
        writers: how many are open at any time.
        batches: of each transaction.
        records: of each batch.
        record_size: bytes of a value.
        size: bytes of all values, about.
    """

    writers: int
    batches: int
    records: int
    record_size: int
    size: int

    @property
    def batch_count(self) -> int:
        """Batches in all: whole transactions of every writer."""
        round_size = self.writers * self.batches * self.records * self.record_size
        return max(self.size // round_size, 1) * self.writers * self.batches

    @property
    def record_count(self) -> int:
        """Records in all."""
        return self.batch_count * self.records

    @property
    def transaction_count(self) -> int:
        """Transactions in all."""
        return self.batch_count // self.batches

    def topic(self, contestant: str) -> Topic:
        """The topic that holds them in this order."""
        name = f"{ORDERS[contestant]}-{self.writers}-{self.batches}-{self.records}-{self.record_size}"
        return Topic(name, self.record_size, self.record_count)


def steps(shape: Shape) -> Iterator[tuple[int, bool]]:
    """What the writers do, in order: (writer, whether it commits instead of appending a batch)."""
    # Writers begin one after the other, so that they do not commit all at once.
    left = [1 + writer * shape.batches // shape.writers for writer in range(shape.writers)]
    to_write = shape.batch_count
    while to_write:
        for writer in range(min(shape.writers, to_write)):
            yield writer, False
            to_write -= 1
            left[writer] -= 1
            if left[writer] == 0:
                yield writer, True
                left[writer] = shape.batches
    for writer in range(shape.writers):
        if left[writer] != shape.batches:
            yield writer, True


def fill(directory: Path, shape: Shape, contestant: str) -> None:
    """Append the transactions to an empty partition that no broker has open."""
    disk = LocalDisk()
    partition = open_partition(
        disk,
        directory,
        LogConfig(order=ORDERS[contestant]),
        topic=shape.topic(contestant).name,
        partition=0,
        clean=True,
        now_ms=NOW_MS,
        order=CommitOrdered(disk) if contestant == OURS else None,
    )
    value = os.urandom(shape.record_size)
    sequences = [0] * shape.writers
    commit_sequence = 0
    for writer, is_commit in steps(shape):
        if not is_commit:
            partition.append(
                encode_batch(
                    [Record(0, NOW_MS, None, value)] * shape.records,
                    producer_id=FIRST_PRODUCER_ID + writer,
                    producer_epoch=0,
                    base_sequence=sequences[writer],
                    transactional=True,
                ),
                now_ms=NOW_MS,
            )
            sequences[writer] += shape.records
            continue
        commit_sequence += 1
        marker = Marker(MarkerType.COMMIT, 0, "", commit_sequence)
        done = partition.append_markers(
            [MarkerWrite(FIRST_PRODUCER_ID + writer, 0, marker)], now_ms=NOW_MS + commit_sequence
        )
        assert not isinstance(done[0], Exception), done[0]
    partition.assume_synced()
    partition.roll(NOW_MS + commit_sequence + 1)
    partition.assume_synced()
    partition.close()


@contextlib.contextmanager
def served(directory: Path, shapes: Sequence[Shape]) -> Iterator[EmbeddedBroker]:
    """A broker whose topics hold the transactions of every shape, in both orders."""
    with stablelog.serve(directory) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, **QUIET})
        topics = [
            NewTopic(shape.topic(contestant).name, 1, config={"stablelog.order": order})
            for shape in shapes
            for contestant, order in ORDERS.items()
        ]
        for made in admin.create_topics(topics).values():
            made.result()
        del admin
        broker.stop()
        for shape in shapes:
            for contestant in ORDERS:
                fill(directory / f"{shape.topic(contestant).name}-0", shape, contestant)
        os.sync()
        start(broker, shapes)
        yield broker


def start(broker: EmbeddedBroker, shapes: Sequence[Shape]) -> None:
    """Start a broker that was stopped, and wait until the topics of every shape can be read."""
    broker.start()
    with BlockingCluster(broker.bootstrap) as cluster:
        cluster.list_offsets({(shape.topic(order).name, 0): LATEST for shape in shapes for order in ORDERS})
