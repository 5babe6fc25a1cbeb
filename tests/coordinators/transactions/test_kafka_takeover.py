"""Random histories of Apache Kafka's coordinator, killed at any write, and what ours makes of them afterwards.

The first half of a history is Kafka's (`kafka_coordinator`); it is killed, its log of transactions may have been
compacted, and from then on the world of `test_transactions_model` goes on with the same producers, crashes included.
"""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.marker_orders import MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.partition_set import PartitionSet
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.types import TopicPartition
from tests.coordinators.transactions.kafka_coordinator import KafkaCoordinator
from tests.coordinators.transactions.test_model import (
    IDS,
    PARTITIONS,
    TIMEOUT_MS,
    Entry,
    Partition,
    Producer,
    Sent,
    Txn,
    World,
)
from tests.scale import examples

KAFKA_LEADER_EPOCHS = 4
DECIDED = {
    TransactionState.PREPARE_COMMIT: MarkerType.COMMIT,
    TransactionState.PREPARE_ABORT: MarkerType.ABORT,
}


class KafkasPartition(Partition):
    """A partition whose first leader epochs may be unknown, as after DeleteRecords."""

    def __init__(self) -> None:
        super().__init__()
        self.forgotten_below = 0

    def open(self) -> dict[int, TransactionInPartition]:
        return {
            producer_id: txn if txn.leader_epoch >= self.forgotten_below else txn._replace(leader_epoch=-1)
            for producer_id, txn in super().open().items()
        }


class TakenOver(World):
    """The world after Kafka was killed in it."""

    def __init__(self, numbers: Iterator[int], kafka_steps: int) -> None:
        super().__init__(numbers)
        self.partitions = {target: KafkasPartition() for target in PARTITIONS}
        self.kafka = KafkaCoordinator(
            lambda record: self.commit_log.append([record]), self.kafka_marks, lambda: self.now_ms, TIMEOUT_MS
        )
        self.epochs = {target: self.choose(KAFKA_LEADER_EPOCHS) for target in PARTITIONS}
        self.busy: dict[str, Iterator[None]] = {}
        for _ in range(kafka_steps):
            self.kafka_step()
        self.truth = {name: (known.state, set(known.partitions)) for name, known in self.kafka.ids.items()}
        self.compact()
        self.decisions = list(self.commit_log)
        for partition in self.partitions.values():
            partition.synced = len(partition.log)
            partition.online = False
            if self.choose(4) == 0:
                partition.forgotten_below = KAFKA_LEADER_EPOCHS
        self.commit_log_noted = len(self.commit_log)
        self.leader_epoch = KAFKA_LEADER_EPOCHS - 1
        self.start()

    # -- Kafka -------------------------------------------------------------------------------------------------

    def kafka_marks(self, producer_id: int, epoch: int, marker: MarkerType, target: TopicPartition) -> None:
        order = MarkerOrder("", producer_id, epoch, marker, "", -1, 0, PartitionSet({target}), 1, 0, epoch)
        self.partitions[target].log.append(Entry(producer_id, epoch, self.epochs[target], marker=order))

    def kafka_step(self) -> None:
        """One write of Kafka's: the next one of an operation, or the first one of another."""
        self.now_ms += 1
        name = IDS[self.choose(len(IDS))]
        if name not in self.busy:
            self.busy[name] = self.kafka_operation(name)
        if next(self.busy[name], "over") == "over":
            del self.busy[name]

    def kafka_operation(self, name: str) -> Iterator[None]:
        producer = next((p for p in self.producers if p.transactional_id == name and not p.dead), None)
        action = self.choose(12)
        if producer is None or action == 0:
            for predecessor in self.producers:
                predecessor.dead = predecessor.dead or predecessor.transactional_id == name
            producer = Producer(name, dialect=1 + self.choose(2))
            self.producers.append(producer)
            yield from self.kafka.init(name, producer.dialect)
            self.learns(producer)
        elif action == 1 and producer.txn is not None:
            producer.dead = True
            yield from self.kafka.time_out(name)
        elif action < 8 or producer.txn is None:
            yield from self.kafka_takes_a_record(producer, PARTITIONS[self.choose(len(PARTITIONS))])
        else:
            yield from self.kafka_ends(producer, producer.txn, commit=self.choose(3) > 0)

    def learns(self, producer: Producer) -> None:
        known = self.kafka.ids[producer.transactional_id]
        self.learn(producer, (known.producer_id, known.epoch))

    def kafka_takes_a_record(self, producer: Producer, target: TopicPartition) -> Iterator[None]:
        assert producer.identity is not None
        yield from self.kafka.add(producer.transactional_id, target)
        if producer.txn is None:
            producer.txn = Txn(producer.identity)
            self.txns.append(producer.txn)
        producer.txn.added.add(target)
        sent = Sent(producer.txn, target, acked=True)
        producer.txn.sent.append(sent)
        self.partitions[target].log.append(Entry(*producer.identity, self.epochs[target], record=sent))
        yield

    def kafka_ends(self, producer: Producer, txn: Txn, *, commit: bool) -> Iterator[None]:
        txn.requested.add(commit)

        def answer() -> None:
            txn.answered = txn.promised = commit
            producer.txn = None
            self.learns(producer)

        yield from self.kafka.end(producer.transactional_id, commit=commit, answer=answer)

    def compact(self) -> None:
        """Kafka's cleaner may have left only the last record of each id, up to some place."""
        end = self.choose(len(self.commit_log) + 1)
        latest = {record[0][0]: place for place, record in enumerate(self.commit_log[:end])}
        self.commit_log = [
            record
            for place, record in enumerate(self.commit_log)
            if place >= end or latest[record[0][0]] == place
        ]

    # -- ours --------------------------------------------------------------------------------------------------

    def loaded(self, decision: Decision[None]) -> None:
        self.append(decision)
        self.sync_commit_log()

    def in_order(self, last_sequence: int, order: MarkerOrder) -> bool:
        return order.commit_sequence == -1 or super().in_order(last_sequence, order)

    def check_takeover(self) -> None:
        """Every partition is opened: Kafka's decisions are carried out, and all else is as Kafka left it."""
        before = {target: len(partition.log) for target, partition in self.partitions.items()}
        were_open = {target: partition.open() for target, partition in self.partitions.items()}
        for target in PARTITIONS:
            self.open_partition(target)
        for name, known in self.kafka.ids.items():
            state, partitions = self.truth[name]
            for target, partition in self.partitions.items():
                written = [
                    entry.marker.type
                    for entry in partition.log[before[target] :]
                    if entry.producer_id == known.producer_id and entry.marker is not None
                ]
                is_open = known.producer_id in partition.open()
                if state in DECIDED and target in partitions and known.producer_id in were_open[target]:
                    assert (written, is_open) == ([DECIDED[state]], False), f"{state.label} in {target}"
                else:
                    assert written == [], f"a marker in {target} for {name}, whose state was {state.label}"
                    assert is_open == (known.producer_id in were_open[target])
            description = self.coordinator.table.get(name)
            assert description is not None
            ended = {
                TransactionState.PREPARE_COMMIT: "CompleteCommit",
                TransactionState.PREPARE_ABORT: "CompleteAbort",
            }
            assert description.state.label == ended.get(state, state.label)
            if state is TransactionState.ONGOING:
                assert description.partitions == partitions


def kafka_steps_of(numbers: list[int]) -> int:
    return len(numbers) // 4


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(1, 60), st.randoms(use_true_random=False))
def test_a_takeover_carries_out_what_kafka_had_decided_and_nothing_else(
    steps: int, chance: random.Random
) -> None:
    """A TV1 producer's open transaction is not taken for the one before it, which has the same id and epoch."""
    TakenOver(iter([chance.randrange(60) for _ in range(8 * steps)]), steps).check_takeover()


@pytest.mark.extended
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.integers(0, 59), min_size=10, max_size=300))
def test_what_kafka_promised_is_kept_through_every_later_history(numbers: list[int]) -> None:
    """Kafka's producers go on: with what they had open, through crashes of ours, before partitions are open, and after."""
    live(numbers)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(10))
def test_long_histories_after_a_takeover(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        live([chance.randrange(60) for _ in range(600)])


def live(numbers: list[int]) -> TakenOver:
    world = TakenOver(iter(numbers), kafka_steps_of(numbers))
    while world.numbers.__length_hint__():
        world.step()
    world.settle()
    world.check()
    return world


@pytest.mark.extended
def test_histories_are_not_trivial() -> None:
    chance = random.Random(3)
    worlds = [live([chance.randrange(60) for _ in range(600)]) for _ in range(60)]
    states = [
        (state, p.dialect)
        for w in worlds
        for n, (state, _) in w.truth.items()
        for p in w.producers
        if p.transactional_id == n
    ]
    for dialect in (1, 2):
        for state in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_COMMIT,
            TransactionState.PREPARE_ABORT,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        ):
            assert (state, dialect) in states
    assert sum(world.leader_epoch - KAFKA_LEADER_EPOCHS for world in worlds) > 60, "too few crashes"
