"""A model of Apache Kafka's transaction coordinator: what it writes, in which order, and in which bytes.

It stops between any two writes, as a `kill -9` does: the operating system keeps what was written. Each operation is a
generator that makes one write a step, so that operations of several transactional ids can take turns.

Source: KIP-98, KIP-890; Kafka's TransactionLogValue, version 1.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.records import transaction_key
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.types import TopicPartition

TRANSACTION_VERSION_TAG = 2


def kafka_value(
    producer_id: int,
    producer_epoch: int,
    state: TransactionState,
    partitions: Iterable[TopicPartition] = (),
    *,
    transaction_version: int,
    timeout_ms: int = 60_000,
    update_ms: int = 0,
    start_ms: int = -1,
) -> bytes:
    """The value of a transactional id as Kafka 4 writes it, without any tag of stablelog's."""
    out = bytearray(struct.pack(">hqhib", 1, producer_id, producer_epoch, timeout_ms, state))
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    out.append(0 if state is TransactionState.EMPTY else len(topics) + 1)
    for topic, indexes in topics.items():
        out += bytes([len(topic) + 1]) + topic.encode()
        out += bytes([len(indexes) + 1]) + struct.pack(f">{len(indexes)}i", *indexes) + b"\0"
    out += struct.pack(">qq", update_ms, start_ms)
    if transaction_version == 0:
        return bytes(out) + b"\0"
    return bytes(out) + bytes([1, TRANSACTION_VERSION_TAG, 2]) + struct.pack(">h", transaction_version)


@dataclass
class KafkaId:
    """A transactional id in Kafka's memory."""

    producer_id: int
    epoch: int
    version: int  # TV1 or TV2
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)


class KafkaCoordinator:
    """What Kafka writes for each request.

    Args:
        write_record: puts a record into `__transaction_state`.
        write_marker: puts a marker into a partition: producer id, epoch, type, partition.
        now_ms: the broker's clock.
        timeout_ms: of every transaction.
    """

    def __init__(
        self,
        write_record: Callable[[tuple[bytes, bytes | None]], None],
        write_marker: Callable[[int, int, MarkerType, TopicPartition], None],
        now_ms: Callable[[], int],
        timeout_ms: int,
    ) -> None:
        self.ids: dict[str, KafkaId] = {}
        self._write_record = write_record
        self._write_marker = write_marker
        self._now_ms = now_ms
        self._timeout_ms = timeout_ms

    def _put(self, transactional_id: str, state: TransactionState) -> None:
        known = self.ids[transactional_id]
        known.state = state
        value = kafka_value(
            known.producer_id,
            known.epoch,
            state,
            known.partitions,
            transaction_version=known.version,
            timeout_ms=self._timeout_ms,
            update_ms=self._now_ms(),
            start_ms=self._now_ms(),
        )
        self._write_record((transaction_key(transactional_id), value))

    def init(self, transactional_id: str, version: int) -> Iterator[None]:
        """InitProducerId of a new producer: a transaction that is open is fenced and aborted first."""
        known = self.ids.setdefault(transactional_id, KafkaId(len(self.ids), -1, version))
        if known.state is TransactionState.ONGOING:
            yield from self._fence(transactional_id)
        known.epoch += 1
        known.version = version
        self._put(transactional_id, TransactionState.EMPTY)
        yield

    def time_out(self, transactional_id: str) -> Iterator[None]:
        """The transaction was open for too long: it is aborted with an epoch that no producer has."""
        if self.ids[transactional_id].state is TransactionState.ONGOING:
            yield from self._fence(transactional_id)

    def _fence(self, transactional_id: str) -> Iterator[None]:
        self.ids[transactional_id].epoch += 1
        yield from self._decide(transactional_id, commit=False)

    def add(self, transactional_id: str, target: TopicPartition) -> Iterator[None]:
        """A partition becomes part of the transaction; its record comes before any batch."""
        known = self.ids[transactional_id]
        if known.state is TransactionState.ONGOING and target in known.partitions:
            return
        known.partitions.add(target)
        self._put(transactional_id, TransactionState.ONGOING)
        yield

    def end(self, transactional_id: str, *, commit: bool, answer: Callable[[], None]) -> Iterator[None]:
        """EndTxn: the answer is given when the decision is written; the markers follow, and then the completion."""
        known = self.ids[transactional_id]
        if known.version >= 2:
            known.epoch += 1
        yield from self._decide(transactional_id, commit=commit, answer=answer)

    def _decide(
        self, transactional_id: str, *, commit: bool, answer: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        known = self.ids[transactional_id]
        self._put(
            transactional_id, TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT
        )
        answer()
        yield
        marker = MarkerType.COMMIT if commit else MarkerType.ABORT
        for target in sorted(known.partitions):
            self._write_marker(known.producer_id, known.epoch, marker, target)
            yield
        known.partitions.clear()
        self._put(
            transactional_id, TransactionState.COMPLETE_COMMIT if commit else TransactionState.COMPLETE_ABORT
        )
        yield
