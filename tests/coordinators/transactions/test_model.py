"""Random histories of producers, lost and late messages and crashes, against partitions that remember everything.

The world below is what surrounds the coordinator: a commit log and partitions whose unsynced ends a crash may cut
anywhere, a broker that carries decisions out, and clients of both dialects that lose answers, repeat requests and
leave old requests in the network. A history is a list of numbers; each step takes from it what it needs, so that a
failing history shrinks to a short one.
"""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.live_state import LiveState
from stablelog.coordinators.transactions import ending as transaction_ending
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.ending import EPOCH_MAX
from stablelog.coordinators.transactions.marker_orders import MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import TransactionKey, decode_transaction, read_key
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import NO_SEQUENCE
from stablelog.types import TopicPartition
from tests.scale import examples

PARTITIONS: tuple[TopicPartition, ...] = (("t", 0), ("t", 1), ("__consumer_offsets", 0))
IDS = ("a", "b")
TIMEOUT_MS = 1_000
SHORT_WAIT = (
    ErrorCode.concurrent_transactions,
    ErrorCode.not_enough_replicas,
    ErrorCode.coordinator_load_in_progress,
)
COMMIT_LOG_BLOCK = 3  # producer ids in a block: small, so that blocks run out


@dataclass
class Entry:
    """One offset of a partition: a record of a transaction, or a marker."""

    producer_id: int
    producer_epoch: int
    leader_epoch: int
    record: "Sent | None" = None
    marker: MarkerOrder | None = None


class Copied(list[tuple[bytes, bytes | None]]):
    """A batch of the commit log that a checkpoint has written: it says again what the log says."""


class Partition:
    """A partition's log and what it knows of producers, both rebuilt from the log after a crash."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.synced = 0
        self.online = True
        self.held: list[MarkerOrder] = []

    def epoch(self, producer_id: int) -> int:
        return max((e.producer_epoch for e in self.log if e.producer_id == producer_id), default=-1)

    def open(self) -> dict[int, TransactionInPartition]:
        found: dict[int, TransactionInPartition] = {}
        for offset, entry in enumerate(self.log):
            if entry.marker is not None:
                found.pop(entry.producer_id, None)
            elif entry.producer_id not in found:
                found[entry.producer_id] = TransactionInPartition(
                    entry.producer_id, entry.producer_epoch, offset, entry.leader_epoch
                )
        return found

    def write_marker(self, order: MarkerOrder, leader_epoch: int) -> None:
        is_open = order.producer_id in self.open()
        known = self.epoch(order.producer_id)
        refused = order.producer_epoch < known
        if order.transaction_version >= 2 and order.producer_epoch == known:
            refused = True  # idempotent if nothing is open: then there is nothing to write either
        assert not (refused and is_open), f"a marker that ends an open transaction was refused: {order}"
        if not refused:
            self.log.append(Entry(order.producer_id, order.producer_epoch, leader_epoch, marker=order))


@dataclass(eq=False)
class Sent:
    """A record that a client has sent."""

    txn: "Txn"
    partition: TopicPartition
    acked: bool = False
    stray: bool = (
        False  # sent after all was told to whoever decides; unless acknowledged, anything may become of it
    )


@dataclass(eq=False)
class Txn:
    """A transaction, as its client sees it."""

    shown: tuple[int, int]
    added: set[TopicPartition] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    requested: set[bool] = field(default_factory=set)  # True: commit
    prepared: bool = False  # all is acknowledged and nothing more will come: someone else may decide it
    answered: bool | None = None
    promised: bool | None = None  # what the coordinator has answered, heard or not
    promised_at: int = 0  # how many producers had taken over the id by then

    def __repr__(self) -> str:
        return f"Txn({self.shown}, {self.requested}, {self.answered}, {[(s.partition, s.acked) for s in self.sent]})"


@dataclass(eq=False)
class Producer:
    """A client."""

    transactional_id: str
    dialect: int
    identity: tuple[int, int] | None = None
    txn: Txn | None = None
    dead: bool = False
    waiting: bool = False  # for an answer
    kept: tuple[int, int] | None = None  # identity of the transaction it took over, and has to decide


class World:
    """Everything, and one number after another that says what happens."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers
        self.now_ms = 1_000_000
        self.leader_epoch = 0
        self.partitions = {target: Partition() for target in PARTITIONS}
        self.commit_log: list[list[tuple[bytes, bytes | None]]] = []
        self.commit_log_synced = 0
        self.commit_log_noted = 0
        self.decisions: list[list[tuple[bytes, bytes | None]]] = []  # the commit log without any checkpoint
        self.checkpoint: tuple[int, LiveState] | None = None  # one that is being written, and where it begins
        self.checkpoint_count = 0
        self.effects: list[tuple[int, Callable[[], None]]] = []
        self.producers: list[Producer] = []
        self.late: list[tuple[Producer, Txn, bool]] = []
        self.txns: list[Txn] = []
        self.decided: dict[int, tuple[int, int, int]] = {}  # commit sequence to what it was given to
        self.told: dict[tuple[int, int], Producer] = {}
        self.highest: dict[int, int] = {}
        self.ids_of: dict[int, str] = {}
        self.holders: dict[int, str] = {}  # producer id to the transactional id that it was given to last
        self.takeovers: Counter[str] = Counter()
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionConfig(two_phase_commit_enable=True),
            producer_ids=ProducerIds(COMMIT_LOG_BLOCK),
            coordinator_epoch=self.leader_epoch,
            end_offsets=lambda targets: [self.log_end(target) for target in targets],
            marker_barrier=self.marker_barrier,
        )

    def marker_barrier(self) -> Callable[[], bool]:
        ends = {
            target: len(partition.log) for target, partition in self.partitions.items() if partition.online
        }
        return lambda: all(self.partitions[target].synced >= end for target, end in ends.items())

    def log_end(self, target: TopicPartition) -> int:
        partition = self.partitions[target]
        return len(partition.log) if partition.online else 0

    def choose(self, count: int) -> int:
        return next(self.numbers, 0) % count

    # -- the broker: carries decisions out ---------------------------------------------------------------------

    def append(self, decision: Decision[object]) -> None:
        if decision.records:
            self.commit_log.append(list(decision.records))
            self.decisions.append(self.commit_log[-1])

    def when_durable(self, effect: Callable[[], None]) -> None:
        self.effects.append((len(self.commit_log), effect))
        self.run_effects()

    def run_effects(self) -> None:
        while self.effects and self.effects[0][0] <= self.commit_log_synced:
            self.effects.pop(0)[1]()

    def carry_out(self, decision: Decision[object], answer: Callable[[], None] = lambda: None) -> None:
        self.append(decision)

        def effect() -> None:
            for order in decision.markers:
                self.write(order)
            answer()

        self.when_durable(effect)

    def write(self, order: MarkerOrder) -> None:
        assert order.partitions
        assert (order.type is MarkerType.COMMIT) == (order.commit_sequence > 0)
        for target in sorted(order.partitions):
            partition = self.partitions[target]
            if partition.online:
                partition.write_marker(order, self.leader_epoch)
            else:
                partition.held.append(order)
        self.complete(order)

    def complete(self, order: MarkerOrder) -> None:
        if not any(order in partition.held for partition in self.partitions.values()):
            self.append(
                self.coordinator.markers_done(
                    order.transactional_id, order.producer_id, order.producer_epoch, now_ms=self.now_ms
                )
            )

    def open_partition(self, target: TopicPartition) -> None:
        partition = self.partitions[target]
        held, partition.held = partition.held, []
        partition.online = True
        decision = self.coordinator.reconcile(
            target, partition.open().values(), held=held, now_ms=self.now_ms
        )
        self.append(decision)
        for order in decision.markers:
            assert target in order.partitions
            partition.write_marker(order, self.leader_epoch)
        for order in held:
            self.complete(order)

    def sync_commit_log(self) -> None:
        self.commit_log_synced = len(self.commit_log)
        self.note_decided()
        self.run_effects()

    def note_decided(self) -> None:
        """What is durable now stays: a number belongs to one commit for ever."""
        for records in self.commit_log[self.commit_log_noted : self.commit_log_synced]:
            if isinstance(records, Copied):
                continue
            for key, value in records:
                if value is None or not isinstance(read_key(key), TransactionKey):
                    continue
                txn = decode_transaction(value)
                if (
                    txn.state is TransactionState.PREPARE_COMMIT and txn.commit_sequence != NO_SEQUENCE
                ):  # else Kafka's
                    shown = (txn.producer_id, txn.producer_epoch, txn.update_ms)
                    assert self.decided.setdefault(txn.commit_sequence, shown) == shown, (
                        "a number was given twice"
                    )
        self.commit_log_noted = self.commit_log_synced

    def crash(self) -> None:
        keep = self.commit_log_synced + self.choose(len(self.commit_log) - self.commit_log_synced + 1)
        lost = sum(not isinstance(batch, Copied) for batch in self.commit_log[keep:])
        del self.commit_log[keep:]
        del self.decisions[len(self.decisions) - lost :]
        for target in PARTITIONS:
            partition = self.partitions[target]
            if partition.online:  # one that was not opened since the last crash holds nothing new
                del partition.log[partition.synced + self.choose(len(partition.log) - partition.synced + 1) :]
            partition.synced = len(partition.log)
            partition.online = False
            partition.held = []
        self.start()

    def start(self) -> None:
        self.commit_log_synced = len(self.commit_log)
        self.note_decided()
        self.effects = []
        for producer in self.producers:
            producer.waiting = False
        self.leader_epoch += 1
        self.checkpoint = None
        self.coordinator, decision = self.replayed(self.commit_log)
        untrimmed, expected = self.replayed(self.decisions)
        self.holders = {}  # those of whom the log knows: an answer without its record was not given
        for key, value in (record for records in self.decisions for record in records):
            if value is not None and isinstance(subject := read_key(key), TransactionKey):
                self.holders[decode_transaction(value).client.producer_id] = subject.transactional_id
        assert state_of(self.coordinator) == state_of(untrimmed), "a checkpoint has changed the state"
        assert decision.markers == expected.markers, "a checkpoint has changed decisions or their order"
        self.loaded(decision)
        for order in decision.markers:
            for target in sorted(order.partitions):
                self.partitions[target].held.append(order)

    def replayed(
        self, log: list[list[tuple[bytes, bytes | None]]]
    ) -> tuple[TransactionCoordinator, Decision[bool]]:
        """A coordinator that has read a commit log, and what it orders."""
        coordinator = self.new_coordinator()
        for records in log:
            for key, value in records:
                coordinator.table.replay(key, value)
        return coordinator, coordinator.finish_replay(self.now_ms)

    def loaded(self, decision: Decision[bool]) -> None:
        """What was read from our own log needs no records."""
        assert not decision.records

    def trim(self) -> None:
        """Begin a checkpoint, or write its next slice; at its end, everything before it goes as soon as all is durable."""
        if self.checkpoint is None:
            state = self.coordinator.table.live_state()
            assert state is not None
            self.checkpoint = len(self.commit_log), state
            self.commit_log.append(Copied(state.undivided))
            return
        begin, state = self.checkpoint
        if entries := list(itertools.islice(state.rest, 1 + self.choose(2))):
            self.commit_log.append(Copied(entries))
            return
        self.checkpoint = None
        self.checkpoint_count += 1
        self.sync_commit_log()
        for partition in self.partitions.values():
            if partition.online:
                partition.synced = len(partition.log)
        del self.commit_log[:begin]
        self.commit_log_synced = self.commit_log_noted = len(self.commit_log)

    # -- clients -----------------------------------------------------------------------------------------------

    def learn(self, producer: Producer, shown: tuple[int, int]) -> None:
        assert self.told.setdefault(shown, producer) is producer, f"{shown} was given to two producers"
        producer_id, epoch = shown
        if self.ids_of.get(producer_id, producer.transactional_id) != producer.transactional_id:
            assert epoch > self.highest[producer_id], "two holders have the same id and epoch"
        self.ids_of[producer_id] = producer.transactional_id
        assert epoch >= self.highest.get(producer_id, -1), "an epoch went back"
        assert 0 <= epoch <= 32766
        self.highest[producer_id] = epoch
        producer.identity = shown

    def init(self, producer: Producer, *, keep: bool) -> None:
        asked = producer.identity or (-1, -1)
        self.takeovers[producer.transactional_id] += 1
        decision = self.coordinator.producers.init_producer_id(
            producer.transactional_id,
            TIMEOUT_MS,
            *asked,
            enable_two_phase=keep,
            keep_prepared=keep,
            api_version=6,
            now_ms=self.now_ms,
        )
        lost = self.choose(8) == 0
        answer = decision.answer
        producer.waiting = True
        if answer.error is ErrorCode.none:
            self.handed_out(producer.transactional_id, (answer.producer_id, answer.producer_epoch))

        def answered() -> None:
            producer.waiting = False
            if answer.error is ErrorCode.none:
                if answer.ongoing_producer_id >= 0:
                    assert keep
                    self.told_of_kept(producer, answer.ongoing_producer_id, answer.ongoing_producer_epoch)
                if not lost:
                    self.learn(producer, (answer.producer_id, answer.producer_epoch))
                    producer.txn = None
                    producer.kept = None
                    if answer.ongoing_producer_id >= 0:
                        producer.kept = (answer.ongoing_producer_id, answer.ongoing_producer_epoch)
            elif answer.error not in SHORT_WAIT:
                producer.dead = True

        self.carry_out(decision, answered)

    def handed_out(self, transactional_id: str, shown: tuple[int, int]) -> None:
        """An identity was given to a transactional id."""
        self.holders.setdefault(shown[0], transactional_id)
        assert self.holders[shown[0]] == transactional_id, (
            "a producer id was given to a second transactional id"
        )

    def told_of_kept(self, producer: Producer, producer_id: int, epoch: int) -> None:
        """The answer names the open transaction by the identity of its records."""
        writers = {
            s.txn.shown for p in self.partitions.values() for e in p.log if (s := e.record) is not None
        }
        owner = self.ids_of.get(producer_id)
        assert owner == producer.transactional_id
        if any(shown[0] == producer_id for shown in writers):
            assert epoch <= self.highest[producer_id]

    def produce(self, producer: Producer, target: TopicPartition) -> None:
        assert producer.identity is not None
        if producer.txn is None:
            producer.txn = Txn(producer.identity)
            self.txns.append(producer.txn)
        txn = producer.txn
        if producer.dialect == 1 and target not in txn.added:
            decision = self.coordinator.add_partitions(
                producer.transactional_id, *txn.shown, [target], api_version=2, now_ms=self.now_ms
            )
            self.append(decision)
            code = decision.answer[target]
            if code in SHORT_WAIT:
                return
            if code is not ErrorCode.none:
                producer.dead = True
                return
            txn.added.add(target)
        sent = Sent(txn, target)
        txn.sent.append(sent)
        self.send(producer, sent)

    def send(self, producer: Producer, sent: Sent) -> None:
        """Send a record, or send it again: the partition knows it by its sequence."""
        partition = self.partitions[sent.partition]
        if not partition.online:
            return
        offset = next((i for i, e in enumerate(partition.log) if e.record is sent), None)
        if offset is None:
            producer_id, epoch = sent.txn.shown
            if epoch < partition.epoch(producer_id) or not self.may_write(producer, sent):
                if not sent.acked:
                    producer.dead = True
                return
            partition.log.append(Entry(producer_id, epoch, self.leader_epoch, record=sent))
        self.acknowledge(sent)

    def may_write(self, producer: Producer, sent: Sent) -> bool:
        if sent.txn.shown[0] in self.partitions[sent.partition].open():
            return True
        if producer.dialect == 1:
            code = self.coordinator.verify_partitions(
                producer.transactional_id, *sent.txn.shown, [sent.partition], produce_version=9
            )[sent.partition]
        else:
            decision = self.coordinator.add_partitions(
                producer.transactional_id,
                *sent.txn.shown,
                [sent.partition],
                api_version=12,
                transaction_version=2,
                now_ms=self.now_ms,
            )
            self.append(decision)
            code = decision.answer[sent.partition]
        return code is ErrorCode.none

    def acknowledge(self, sent: Sent) -> None:
        """Give the acknowledgement once both logs are durable: here they are synced for it, or it is lost."""
        if self.choose(3) == 0:
            return
        partition = self.partitions[sent.partition]
        partition.synced = len(partition.log)
        self.sync_commit_log()
        sent.acked = True

    def end(self, producer: Producer, txn: Txn, *, commit: bool) -> None:
        txn.requested.add(commit)
        api_version = 3 if producer.dialect == 1 else 5
        decision = self.coordinator.end(
            producer.transactional_id, *txn.shown, commit, api_version=api_version, now_ms=self.now_ms
        )
        answer = decision.answer
        lost = self.choose(8) == 0
        producer.waiting = True
        takeovers = self.takeovers[producer.transactional_id]

        def answered() -> None:
            producer.waiting = False
            if answer.error is ErrorCode.none:
                assert txn.promised in (None, commit), "both commit and abort were answered"
                txn.promised, txn.promised_at = commit, takeovers
                if lost:
                    return
                txn.answered = commit
                if producer.txn is txn:
                    producer.txn = None
                    if producer.dialect == 2:
                        self.learn(producer, (answer.producer_id, answer.producer_epoch))
            elif answer.error not in SHORT_WAIT and producer.txn is txn:
                if txn.promised == commit:
                    assert takeovers > txn.promised_at or self.may_forget(producer), (
                        f"asked again, the answer was {answer.error.name}: {txn}"
                    )
                producer.dead = True

        self.carry_out(decision, answered)

    def may_forget(self, _producer: Producer) -> bool:
        """Whether the coordinator need not remember what the producer did last."""
        return False

    def decide_kept(self, producer: Producer, *, commit: bool) -> None:
        """The successor decides what its predecessor left; the predecessor's client cannot have asked for it."""
        assert producer.identity is not None
        decision = self.coordinator.end(
            producer.transactional_id, *producer.identity, commit, api_version=5, now_ms=self.now_ms
        )
        answer = decision.answer
        for order in decision.markers:
            for txn in self.txns:
                if txn.shown == (order.producer_id, order.transaction_epoch) and txn.answered is None:
                    txn.requested.add(commit)

        producer.waiting = True

        def answered() -> None:
            producer.waiting = False
            producer.kept = None
            if answer.error is ErrorCode.none:
                self.learn(producer, (answer.producer_id, answer.producer_epoch))
            else:
                producer.dead = True

        self.carry_out(decision, answered)

    # -- what happens ------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now_ms += 1
        kind = self.choose(60)
        live = [p for p in self.producers if not p.dead]
        if kind < 36 and live:
            self.client_step(live[self.choose(len(live))])
        elif kind < 44:
            self.sync_commit_log()
        elif kind < 48:
            partition = self.partitions[PARTITIONS[self.choose(len(PARTITIONS))]]
            if partition.online:
                partition.synced = len(partition.log)
        elif kind < 53:
            closed = [target for target, partition in self.partitions.items() if not partition.online]
            if closed:
                self.open_partition(closed[self.choose(len(closed))])
        elif kind < 55 and self.late:
            self.deliver_late(*self.late.pop(self.choose(len(self.late))))
        elif kind == 55:
            self.crash()
        elif kind == 56:
            self.now_ms += self.choose(TIMEOUT_MS // 2)
            self.carry_out(self.coordinator.abort_overdue(self.now_ms))
            self.carry_out(self.coordinator.forget_expired(self.now_ms))
        elif kind == 57 or (self.checkpoint is not None and self.choose(3) == 0):
            if self.checkpoint is not None or self.choose(3) > 0:
                self.trim()
            else:
                self.carry_out(self.coordinator.force_abort(IDS[self.choose(2)], now_ms=self.now_ms))
        elif len(live) < 2 or (kind == 59 and len(live) < 4):
            name = self.choose(len(IDS))
            self.producers.append(Producer(IDS[name], dialect=1 + (name + self.choose(4) // 3) % 2))

    def client_step(self, producer: Producer) -> None:
        if producer.waiting and self.choose(6) > 0:
            return  # else it loses patience and asks again
        if producer.identity is None:
            self.init(producer, keep=producer.dialect == 2 and self.choose(3) == 0)
            return
        if producer.kept is not None:
            prepared = any(txn.prepared for txn in self.txns if txn.shown == producer.kept)
            self.decide_kept(producer, commit=prepared and self.choose(3) > 0)
            return
        action = self.choose(8)
        txn = producer.txn
        if txn is not None and txn.requested:
            commit = True in txn.requested and self.choose(10) > 0  # now and then it gives up and aborts
            self.end(producer, txn, commit=commit)
        elif txn is not None and txn.prepared:
            self.end(producer, txn, commit=True)
        elif action < 4 or txn is None:
            self.produce(producer, PARTITIONS[self.choose(len(PARTITIONS))])
        elif unacked := [sent for sent in txn.sent if not sent.acked]:
            if action == 7:
                self.end(producer, txn, commit=False)
            else:
                self.send(producer, unacked[0])
        elif txn.sent and action == 7 and producer.dialect == 2:
            txn.prepared = True
            producer.waiting = True  # it dies, as often as not
        elif txn.sent:
            commit = self.choose(3) > 0
            if self.choose(3) == 0:
                self.late.append((producer, txn, commit))  # a copy stays in the network
            self.end(producer, txn, commit=commit)

    def deliver_late(self, producer: Producer, txn: Txn, commit: bool) -> None:
        """In the first dialect a late request ends whatever is open: the hole that no broker can close (KIP-890)."""
        if producer.dialect == 2 or producer.txn is txn:
            self.end(producer, txn, commit=commit)

    # -- what must hold ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything come to its end: nothing may hang."""
        for _ in range(2):
            for target, partition in self.partitions.items():
                if not partition.online:
                    self.open_partition(target)
            self.sync_commit_log()
            self.now_ms += 10 * TIMEOUT_MS
            self.carry_out(self.coordinator.abort_overdue(self.now_ms))
            self.carry_out(self.coordinator.forget_expired(self.now_ms))
            for transactional_id in IDS:
                self.carry_out(self.coordinator.force_abort(transactional_id, now_ms=self.now_ms))
            self.sync_commit_log()
        for target, partition in self.partitions.items():
            assert not partition.open(), f"a transaction hangs in {target}"
            assert not partition.held
        slices, _ = self.coordinator.table.list_transactions(now_ms=self.now_ms)
        found = [*itertools.chain.from_iterable(slices)]
        assert all(d.state in ("Empty", "CompleteCommit", "CompleteAbort") for d in found)
        assert self.coordinator.table.resolved_sequence == self.coordinator.table.sequences.last

    def in_order(self, last_sequence: int, order: MarkerOrder) -> bool:
        return order.commit_sequence > last_sequence

    def check(self) -> None:
        outcomes: dict[Txn, set[MarkerType]] = {}
        committed: set[Sent] = set()
        for target, partition in self.partitions.items():
            pending: dict[int, list[Sent]] = {}
            last_sequence = 0
            for entry in partition.log:
                if entry.record is not None:
                    pending.setdefault(entry.producer_id, []).append(entry.record)
                    continue
                assert entry.marker is not None
                ended = pending.pop(entry.producer_id, [])
                assert len({sent.txn for sent in ended}) <= 1, "one marker ended two transactions"
                for sent in (sent for sent in ended if sent.acked or not sent.stray):
                    outcomes.setdefault(sent.txn, set()).add(entry.marker.type)
                    if entry.marker.type is MarkerType.COMMIT:
                        committed.add(sent)
                if entry.marker.type is MarkerType.COMMIT:
                    assert self.in_order(last_sequence, entry.marker), f"commits out of order in {target}"
                    last_sequence = entry.marker.commit_sequence
        for txn, found in outcomes.items():
            assert len(found) == 1, f"committed here and aborted there: {txn}"
            if found == {MarkerType.COMMIT}:
                assert True in txn.requested, f"committed, but nobody asked for it: {txn}"
                assert txn.answered in (None, True), f"committed after abort was answered: {txn}"
                missing = [sent for sent in txn.sent if sent.acked and sent not in committed]
                assert not missing, f"a part of a committed transaction is missing: {txn}"
        for txn in self.txns:
            if txn.answered is True:
                missing = [sent for sent in txn.sent if sent.acked and sent not in committed]
                assert not missing, f"commit was answered, but not all is committed: {txn}"
        assert sorted(self.decided) == list(range(1, len(self.decided) + 1)), "commit sequences have gaps"


def state_of(coordinator: TransactionCoordinator) -> object:
    """What a coordinator knows."""
    slices, _ = coordinator.table.list_transactions(now_ms=0)
    found = [*itertools.chain.from_iterable(slices)]
    joints = sorted(coordinator.table.joints.records())
    described = sorted(str(coordinator.table.get(one.transactional_id)) for one in found)
    return described, joints, coordinator.table.sequences.last


def run(numbers: list[int]) -> World:
    world = World(iter(numbers))
    while world.numbers.__length_hint__():
        world.step()
    world.settle()
    world.check()
    return world


@pytest.fixture(params=[EPOCH_MAX, 4], ids=["many epochs", "few epochs"])
def epoch_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """With few epochs, producers run out of them all the time and get new ids."""
    monkeypatch.setattr(transaction_ending, "EPOCH_MAX", request.param)
    monkeypatch.setattr(transaction_ending, "CLIENT_EPOCH_MAX", request.param - 1)
    return int(request.param)


@pytest.mark.extended
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.integers(0, 59), min_size=10, max_size=300))
def test_every_history_keeps_what_was_promised(numbers: list[int]) -> None:
    """Scenario 41: and 42, 44, 46, 48, by the thousand."""
    run(numbers)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("seed", range(10))
def test_long_histories_keep_what_was_promised(seed: int, epoch_max: int) -> None:
    """Scenario 41: and 42, 44, 46, 48, with and without epochs running out."""
    chance = random.Random(seed * 1000 + epoch_max)
    for _ in range(10):
        run([chance.randrange(60) for _ in range(800)])


@pytest.mark.extended
def test_histories_are_not_trivial() -> None:
    chance = random.Random(7)
    worlds = [run([chance.randrange(60) for _ in range(1000)]) for _ in range(30)]
    commits = sum(txn.answered is True for world in worlds for txn in world.txns)
    aborts = sum(txn.answered is False for world in worlds for txn in world.txns)
    kept = sum(txn.prepared for world in worlds for txn in world.txns)
    crashes = sum(world.leader_epoch for world in worlds)
    assert min(commits, aborts, crashes) > 100
    assert sum(world.checkpoint_count for world in worlds) > 20
    assert kept > 10
