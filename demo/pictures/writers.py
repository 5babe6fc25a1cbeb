"""The producers of the pictures, and what a broker says and stores of what they wrote."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from confluent_kafka import Consumer, Producer, TopicPartition

import stablelog
from demo.pictures import CONTINUED_S
from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.embedded import EmbeddedBroker

START, END = -2, -1  # Of a partition, in ListOffsets.


@dataclass(slots=True)
class Txn:
    """A transaction in one partition, as the files have it.

    Attributes:
        writer: its transactional id.
        spans: the offsets of its batches, each with its last one.
        marker: the offset of its marker; None while it is open.
        is_committed: whether the marker says so.
    """

    writer: str
    spans: list[tuple[int, int]] = field(default_factory=list)
    marker: int | None = None
    is_committed: bool = False

    @property
    def offsets(self) -> list[int]:
        """The offset of each record."""
        return [offset for first, last in self.spans for offset in range(first, last + 1)]


class Writers:
    """Producers by transactional id. Each call returns when the broker has everything."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.broker = broker
        self.client = stablelog.connect(broker.bootstrap)
        self._producers: dict[str, Producer] = {}
        self._open: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in sorted(self._open):
            self.end(name, is_committed=False)
        self.client.close()

    def create(self, topic: str, **configs: str) -> None:
        """Create a topic with one partition."""
        self.client.admin.topics.create(
            topic, partitions=1, configs={name.replace("_", "."): value for name, value in configs.items()}
        )

    def write(self, name: str, topic: str, values: Iterable[bytes]) -> None:
        """Write one batch. It begins a transaction if the producer has none."""
        if name not in self._producers:
            settings = {
                "bootstrap.servers": self.broker.bootstrap,
                "transactional.id": name,
                "linger.ms": 20,
                "log_level": 0,
            }
            self._producers[name] = Producer(settings)
            self._producers[name].init_transactions(CONTINUED_S)
        producer = self._producers[name]
        if name not in self._open:
            producer.begin_transaction()
            self._open.add(name)
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(CONTINUED_S)

    def end(self, name: str, *, is_committed: bool = True) -> None:
        """Commit or abort."""
        self._open.discard(name)
        if is_committed:
            self._producers[name].commit_transaction(CONTINUED_S)
        else:
            self._producers[name].abort_transaction(CONTINUED_S)

    def bounds(self, topic: str) -> tuple[int, int, int]:
        """Log start, last stable offset and high watermark of the partition, as the broker returns them."""
        partition = topic, 0
        found = [
            self.client.admin.topics.offsets({partition: which}, isolation=isolation)[partition]
            for which, isolation in (
                (START, "read_committed"),
                (END, "read_committed"),
                (END, "read_uncommitted"),
            )
        ]
        start, stable, end = (getattr(each, "offset", each) for each in found)
        return int(start), int(stable), int(end)

    def transactions(self, topic: str) -> list[Txn]:
        """The transactions of the partition, from its files, in the order of their first records."""
        names = self._names()
        found: list[Txn] = []
        still_open: dict[int, Txn] = {}
        for path in sorted((self.broker.data / f"{topic}-0").glob("*.log")):
            content = path.read_bytes()
            for position, header in headers_in(content):
                owner = header.producer_id
                if header.is_control:
                    marker = read_marker(content, position)
                    txn = still_open.pop(owner)
                    txn.marker = header.base_offset
                    txn.is_committed = marker is not None and marker.type is MarkerType.COMMIT
                    continue
                if owner not in still_open:
                    still_open[owner] = Txn(names[owner])
                    found.append(still_open[owner])
                last = header.base_offset + header.last_offset_delta
                still_open[owner].spans.append((header.base_offset, last))
        return found

    def _names(self) -> Mapping[int, str]:
        listed = self.client.admin.transactions.list()
        return {one.producer_id: one.transactional_id for one in listed}

    def read(self, topic: str) -> list[tuple[int, str]]:
        """What a read-committed consumer gets from the start: offsets and values. It stops at the end for such readers."""
        settings = {
            "bootstrap.servers": self.broker.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
        found: list[tuple[int, str]] = []
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(CONTINUED_S)) is not None and message.error() is None:
            found.append((message.offset() or 0, (message.value() or b"").decode()))
        consumer.close()
        return found
