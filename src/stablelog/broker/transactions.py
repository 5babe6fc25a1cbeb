"""Carries out what the transaction coordinator decides.

A decision's record goes into the commit log; once it is durable, its markers are appended to the partitions, in
the order of the decisions and all of one partition in one write; then the client is answered. So the producer's
next transaction never meets the last one's markers on their way.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from stablelog.batch.markers import Marker, MarkerType
from stablelog.batch.records import decode_records
from stablelog.broker.flush import GroupFlush
from stablelog.broker.groups import Groups
from stablelog.broker.journal import Journal
from stablelog.broker.topics import CONSUMER_OFFSETS_TOPIC, Topics
from stablelog.coordinators.transactions import Decision, MarkerOrder, TransactionCoordinator
from stablelog.errors import Refused
from stablelog.log.partition import MarkerWrite, Partition

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
TopicPartition = tuple[str, int]


class Transactions:
    """The transactions of one group: its coordinator, its commit log, and its markers on their way."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        journal: Journal,
        *,
        topics: Topics,
        groups: Groups,
        flush: GroupFlush,
        now_ms: Callable[[], int],
    ) -> None:
        self.coordinator = coordinator
        self.journal = journal
        self._topics = topics
        self._groups = groups
        self._flush = flush
        self._now_ms = now_ms
        self._decided: list[tuple[Decision[Any], asyncio.Future[None] | None]] = []
        self._held_back: dict[TopicPartition, list[MarkerOrder]] = {}

    def load(self) -> None:
        """Rebuild the coordinator's state from the commit log, and write the markers that a crash kept back."""
        for batch, header in self.journal.replay():
            if not header.is_control:
                for record in decode_records(batch):
                    if record.key is not None:
                        self.coordinator.replay(record.key, record.value)
        self.apply(self.coordinator.loaded(self._now_ms()))

    def apply(self, decision: Decision[Answer]) -> Answer:
        """Append the decision's records and answer at once; its markers follow when the records are durable."""
        self.journal.append(decision.records)
        if decision.markers:
            self._when_durable(decision, None)
        return decision.answer

    async def carry_out(self, decision: Decision[Answer]) -> Answer:
        """Append the decision's records, wait until they are durable and its markers are written, and answer."""
        self.journal.append(decision.records)
        if decision.markers:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._when_durable(decision, done)
            await done
        else:
            await self.journal.settled()
        return decision.answer

    def _when_durable(self, decision: Decision[Any], done: "asyncio.Future[None] | None") -> None:
        self.journal.after(lambda: self._decided.append((decision, done)))
        self.write_decided()  # there is something only if nothing had to be waited for

    def write_decided(self) -> None:
        """Write the markers of all decisions that became durable: one append for each partition."""
        if not self._decided:
            return
        decided, self._decided = self._decided, []
        by_partition: dict[TopicPartition, list[MarkerOrder]] = {}
        for decision, _ in decided:
            for order in decision.markers:
                for target in order.partitions:
                    by_partition.setdefault(target, []).append(order)
        for target, orders in by_partition.items():
            self._write_markers(target, orders)
        for decision, done in decided:
            for order in decision.markers:
                self._complete_if_written(order)
            if done is not None and not done.done():
                done.set_result(None)

    def _write_markers(self, target: TopicPartition, orders: list[MarkerOrder]) -> None:
        topic = self._topics.get(target[0])
        if topic is None or target[1] >= topic.partition_count:
            return  # the topic was deleted, and the transaction's records with it
        partition = topic.partitions.get(target[1])
        if partition is None:
            self._held_back.setdefault(target, []).extend(orders)
            return
        outcomes = partition.append_markers([_marker_write(order) for order in orders], now_ms=self._now_ms())
        self._flush.dirty(partition)
        for order, outcome in zip(orders, outcomes, strict=True):
            if isinstance(outcome, Refused):
                log.warning(
                    "marker of %s for %s-%d was refused, a later one stands: %s", order.transactional_id, *target, outcome
                )
            if target[0] == CONSUMER_OFFSETS_TOPIC:
                self._groups.transaction_ended(order.producer_id, commit=order.type is MarkerType.COMMIT)

    def _complete_if_written(self, order: MarkerOrder) -> None:
        if not any(order in orders for orders in self._held_back.values()):
            self.apply(
                self.coordinator.markers_done(
                    order.transactional_id, order.producer_id, order.producer_epoch, now_ms=self._now_ms()
                )
            )

    def partition_opened(self, partition: Partition) -> None:
        """A partition can be written: send what was held back, and end what no coordinator knows of."""
        target = (partition.topic, partition.index)
        orders = self._held_back.pop(target, [])
        if orders:
            self._write_markers(target, orders)
            for order in orders:
                self._complete_if_written(order)
        found = [(txn.producer_id, txn.producer_epoch) for txn in partition.open_transactions()]
        if found:
            self.apply(self.coordinator.reconcile(target, found, now_ms=self._now_ms()))


def _marker_write(order: MarkerOrder) -> MarkerWrite:
    marker = Marker(
        type=order.type,
        coordinator_epoch=order.coordinator_epoch,
        group=order.group if order.type is MarkerType.COMMIT else None,
        commit_sequence=order.commit_sequence,
        low_watermark=order.low_watermark,
    )
    return MarkerWrite(order.producer_id, order.producer_epoch, marker, order.transaction_version)
