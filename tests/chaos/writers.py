"""Threads that write while the broker is killed, and record the answer to each write.

A value is written once: `writer.transaction.number`.
"""

import contextlib
import random
import sys
import threading
import time
import traceback
from dataclasses import dataclass, field
from itertools import count

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

import stablelog
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking import joint
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer as BatchProducer
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from stablelog.testing.history import Fate
from tests.chaos.confluent import WAIT_S, patiently, producer_of

PATIENCE_S = 240  # a broker that is killed every few seconds on a busy machine answers late
TIMEOUT_MS = 30_000
ABANDONED_MS = 3_000  # timeout of transactions that are left open
NEVER = float("inf")
QUIET = {"log_level": 0, "error_cb": lambda _error: None}


@dataclass(eq=False, slots=True)
class Attempt:
    """A transaction, or writes outside of one, as its writer knows it.

    Attributes:
        writer: name; the attempts of one writer stand in the order in which they were made.
        records: (place, key, value) in the order of writing; a place is (topic, partition).
        fate: what the writer was told.
        asked_s: when the commit was first asked for; infinity if it never was, None for writes outside a transaction.
        appended: by value, the (place, offset) that an acknowledgement gave it.
        placed: by value, the (place, position) that the commit gave it.
        sequence: the commit sequence that the commit was answered with.
    """

    writer: str
    records: list = field(default_factory=list)
    fate: Fate = Fate.UNKNOWN
    asked_s: float | None = NEVER
    appended: dict = field(default_factory=dict)
    placed: dict = field(default_factory=dict)
    sequence: int | None = None

    @property
    def values(self):
        return [value for _, _, value in self.records]


class Worker(threading.Thread):
    """A thread that does one step after another until all are stopped.

    Args:
        name: of the worker; its random choices depend on it and on the seed.
        scene: has the address, the seed and the event that stops all workers.

    Attributes:
        steps: done so far.
        failure: the traceback that ended it, if one did.
        findings: violations that it has seen.
    """

    def __init__(self, name, scene):
        super().__init__(name=name, daemon=True)
        self.address, self.stopping = scene.address, scene.stopping
        self.chance = random.Random(f"{scene.seed} {name}")
        self.steps = 0
        self.failure = None
        self.findings = []

    def run(self):
        try:
            self.begin()
            while not self.stopping.is_set():
                self.step()
                self.steps += 1
                self.stopping.wait(self.pause_s())  # the pace of the load, not a wait for something
            self.end()
        except BaseException:
            self.failure = f"{self.name}: {traceback.format_exc()}"

    def where(self):
        """Its name, steps and stack, for the message of a wait that failed."""
        stack = traceback.format_stack(sys._current_frames()[self.ident]) if self.is_alive() else ["ended"]
        return f"{self.name} does not go on after {self.steps} steps:\n{''.join(stack[-4:])}"

    def begin(self):
        """Before the first step."""

    def step(self):
        raise NotImplementedError

    def end(self):
        """After the last step."""

    def pause_s(self):
        return self.chance.random() * 0.02


class Writer(Worker):
    """Writes transactions.

    Args:
        places: where to; each record goes to one of them.
        keys: of the records; one without keys writes none.
        witness: a place to which each transaction writes one record, whatever else it writes.
    """

    def __init__(self, name, scene, places, *, keys=(), witness=None):
        super().__init__(name, scene)
        self.places, self.keys, self.witness = places, keys, witness
        self.attempts = []
        self.numbers = count()

    def next(self):
        """The next transaction. Some keys get a tombstone: no value, where a key is all that tells it apart."""
        name = f"{self.name}.{next(self.numbers)}"
        places = [self.chance.choice(self.places) for _ in range(self.chance.randint(1, 8))]
        records = []
        for number, place in enumerate(places):
            key = self.chance.choice(self.keys) if self.keys else None
            is_tombstone = key is not None and self.chance.random() < 0.1
            records.append((place, key, None if is_tombstone else f"{name}.{number}".encode()))
        if self.witness is not None:
            records.append((self.witness, None, f"{name}.w".encode()))
        attempt = Attempt(self.name, records)
        self.attempts.append(attempt)
        return attempt


class ConfluentWriter(Writer):
    """By librdkafka, which speaks TV1. Aborts a third, and leaves some open: to its successor or to their timeout.

    Args:
        prefix: of the transactional id: that of a transaction group.
    """

    def __init__(self, name, scene, places, *, prefix="", **more):
        super().__init__(name, scene, places, **more)
        self.id = prefix + name
        self.settings = {}

    def begin(self):
        self.producer = producer_of(self.address, self.id, timeout_ms=TIMEOUT_MS, **self.settings)

    def step(self):
        attempt = self.next()
        kind = self.chance.choices(("commit", "abort", "succeed", "abandon"), (70, 24, 4, 2))[0]
        producer = self.producer
        if kind == "abandon":
            abandoned_id = f"{self.id}-{len(self.attempts)}"
            producer = producer_of(self.address, abandoned_id, timeout_ms=ABANDONED_MS)
        attempt.fate = self.attempt(producer, attempt, kind)
        if kind == "abandon":
            producer.purge()
        elif attempt.fate is Fate.UNKNOWN or kind == "succeed":
            self.begin()  # a successor: what is undecided is aborted

    def attempt(self, producer, attempt, kind):
        deciding = False
        try:
            producer.begin_transaction()
            for (topic, partition), key, value in attempt.records:
                producer.produce(topic, value, key, partition, on_delivery=delivered_to(attempt, value))
            producer.flush(WAIT_S)
            if kind in ("succeed", "abandon"):
                return Fate.ABORTED
            deciding = kind == "commit"
            if deciding:
                attempt.asked_s = time.monotonic()
            return self.decide(producer, commit=deciding)
        except KafkaException:
            if kind in ("succeed", "abandon"):
                return Fate.ABORTED
            return Fate.UNKNOWN if deciding else self.abandon(producer)

    def decide(self, producer, *, commit):
        try:
            patiently(producer.commit_transaction if commit else producer.abort_transaction)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                patiently(producer.abort_transaction)
                return Fate.ABORTED
            raise
        return Fate.COMMITTED if commit else Fate.ABORTED

    @staticmethod
    def abandon(producer):
        with contextlib.suppress(KafkaException):
            patiently(producer.abort_transaction)
            return Fate.ABORTED
        return Fate.UNKNOWN


def delivered_to(attempt, value):
    """Keeps where an acknowledged record is. A tombstone has no value that would tell it apart."""

    def delivered(error, message):
        if error is None and value is not None:
            attempt.appended[value] = ((message.topic(), message.partition()), message.offset())

    return delivered


class NativeWriter(Writer):
    """By the native client: the futures say where the records are."""

    def __init__(self, name, scene, places, *, group=""):
        super().__init__(name, scene, places)
        self.group = group

    def begin(self):
        self.client = stablelog.connect(self.address)

    def end(self):
        self.client.close()

    def step(self):
        attempt = self.next()
        attempt.fate = Fate.ABORTED
        one = self.client.transaction(group=self.group, timeout=TIMEOUT_MS / 1000)
        try:
            futures = [
                one.write(topic, value, key=key, partition=partition)
                for (topic, partition), key, value in attempt.records
            ]
            if self.chance.random() < 0.2:
                one.abort()
                return
        except StablelogError:
            return
        attempt.asked_s = time.monotonic()
        deadline = attempt.asked_s + PATIENCE_S
        while True:
            try:
                done = one.commit()
            except RefusedError:
                attempt.fate = Fate.ABORTED
                if not all(future.exception(0) for future in futures):
                    self.findings.append(f"{attempt.values}: the commit was refused, and a future came true")
                return
            except UnavailableError:
                attempt.fate = Fate.UNKNOWN
                assert time.monotonic() < deadline, (
                    f"{attempt.values}: the broker does not say whether it is committed"
                )
            else:
                attempt.fate, attempt.sequence = Fate.COMMITTED, done.commit_sequence
                for value, future in zip(attempt.values, futures, strict=True):
                    topic, partition, offset = future.result(0)[:3]
                    attempt.placed[value] = ((topic, partition), offset)
                return


class JointWriter(Writer):
    """Several children, decided as one, as Spark's sink does it: by the client's own producer, which speaks TV2.

    A consumer group's offset is committed with each, which is the number of the attempt.
    """

    CHILDREN = 3
    GROUP = "joint-progress"

    def begin(self):
        self.cluster = BlockingCluster(self.address, deadline_s=PATIENCE_S)
        self.run_name, self.order = f"{self.name}-run", joint.next_order(self.cluster)
        self.target = (self.GROUP, self.places[0][0], self.places[0][1])

    def end(self):
        self.cluster.close()

    def pause_s(self):
        return self.chance.random() * 0.1

    def step(self):
        attempt = self.next()
        version = len(self.attempts)
        attempt.fate = Fate.ABORTED
        parts = [attempt.records[child :: self.CHILDREN] for child in range(self.CHILDREN)]
        attempt.records = [record for part in parts for record in part]  # in the order of writing
        producers = []
        try:
            joint.begin(self.cluster, self.name, version, self.run_name, order=self.order)
            for child, part in enumerate(parts):
                producers.append(self.written(child, version, part))
            shown = [(name, one.producer_id, one.producer_epoch) for name, one in producers if one.has_begun]
            if self.chance.random() < 0.2:
                joint.abort(self.cluster, self.name, version, shown, run=self.run_name)
                return
            attempt.asked_s = time.monotonic()
            attempt.fate = Fate.UNKNOWN
            done = joint.commit(
                self.cluster,
                self.name,
                version,
                shown,
                group_offsets={self.target: version},
                run=self.run_name,
            )
        except RefusedError:  # nothing was decided, and what there is of it is aborted with the next version
            attempt.fate = Fate.ABORTED
            return
        finally:
            for _, one in producers:
                one.close()
        attempt.fate, attempt.sequence = Fate.COMMITTED, done.commit_sequence
        again = joint.commit(self.cluster, self.name, version, shown, run=self.run_name)
        if not again.already or again.commit_sequence != done.commit_sequence:
            self.findings.append(f"{attempt.values}: committed as {done}, and asked again {again}")

    def written(self, child, version, records):
        name = joint.child_id(self.name, version, self.run_name, child, 0)
        producer = BatchProducer(self.cluster, name, transaction_timeout_ms=TIMEOUT_MS, deadline_s=PATIENCE_S)
        producer.begin()
        now_ms = time.time_ns() // 1_000_000
        for (topic, partition), key, value in records:
            producer.append(topic, partition, bytearray(encode_batch([Record(0, now_ms, key, value)])))
        producer.flush()
        return name, producer


class IdempotentWriter(Writer):
    """By librdkafka without transactions: each record by itself, once."""

    def begin(self):
        self.producer = Producer(
            {
                "bootstrap.servers": self.address,
                "enable.idempotence": True,
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )
        # What the former one has on its way may come between: it has an order of its own.
        self.incarnation = f"{self.name}-{len(self.attempts)}"

    def step(self):
        written = []
        try:
            for place, key, value in self.next_records():
                attempt = Attempt(self.incarnation, [(place, key, value)], asked_s=None)
                self.attempts.append(attempt)
                written.append(attempt)
                self.producer.produce(place[0], value, key, place[1], on_delivery=acknowledged(attempt))
            left = self.producer.flush(PATIENCE_S)
        except KafkaException:
            left = -1
        if left or any(attempt.fate is Fate.UNKNOWN for attempt in written):
            self.producer.purge()
            self.producer.flush(1)
            self.begin()

    def next_records(self):
        name = f"{self.name}.{next(self.numbers)}"
        for number in range(self.chance.randint(1, 8)):
            place = self.chance.choice(self.places)
            key = self.chance.choice(self.keys) if self.keys else None
            yield place, key, f"{name}.{number}".encode()


def acknowledged(attempt):
    """Keeps that a record outside transactions is there, and where."""

    def delivered(error, message):
        if error is None:
            attempt.fate = Fate.COMMITTED
            attempt.appended[attempt.values[0]] = ((message.topic(), message.partition()), message.offset())

    return delivered


class Transformer(ConfluentWriter):
    """Consumes, transforms and produces, with the offsets in the transaction.

    A value says what it is made of: `writer.transaction.number.partition.offset`.
    """

    GROUP = "transformer"
    READ_MAX = 20

    def __init__(self, name, scene, source, target):
        super().__init__(name, scene, [target])
        # librdkafka forgets all brokers when none of them answers, but not the group's coordinator that it has looked
        # up: then send_offsets_to_transaction() never returns (librdkafka's issue 5511).
        self.settings = {"metadata.recovery.strategy": "none"}
        self.source = source
        self.consumer = None
        self.committed_before = {}

    def begin(self):
        super().begin()
        if self.consumer is not None:
            self.consumer.close()
        self.consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": self.GROUP,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200,
                **QUIET,
            }
        )
        committed = patiently_asked(self.consumer, self.source)
        for place, offset in committed.items():
            if offset < self.committed_before.get(place, 0):
                self.findings.append(
                    f"{self.GROUP}: {place} was committed up to {self.committed_before[place]}, now {offset}"
                )
        self.consumer.assign([TopicPartition(*place, offset) for place, offset in committed.items()])
        self.offsets = committed

    def end(self):
        self.consumer.close()

    def step(self):
        read = [message for message in self.consumer.consume(self.READ_MAX, 0.2) if message.error() is None]
        if not read:
            return
        name = f"{self.name}.{next(self.numbers)}"
        target = self.places[0][0]
        offsets = dict(self.offsets)
        attempt = Attempt(self.name)
        for number, message in enumerate(read):
            partition, offset = message.partition(), message.offset()
            value = f"{name}.{number}.{partition}.{offset}".encode()
            attempt.records.append(((target, partition), None, value))
            offsets[message.topic(), partition] = offset + 1
        self.attempts.append(attempt)
        self.next_offsets = offsets
        attempt.fate = self.attempt(
            self.producer, attempt, "commit" if self.chance.random() < 0.8 else "abort"
        )
        if attempt.fate is Fate.COMMITTED:
            self.offsets = self.committed_before = offsets
        else:
            self.begin()

    def decide(self, producer, *, commit):
        places = [TopicPartition(*place, offset) for place, offset in self.next_offsets.items()]
        metadata = self.consumer.consumer_group_metadata()
        patiently(lambda wait_s: producer.send_offsets_to_transaction(places, metadata, wait_s))
        return super().decide(producer, commit=commit)


def patiently_asked(consumer, places):
    """The committed offsets, asked for until they are told; 0 where there is none."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = consumer.committed([TopicPartition(*place) for place in places], timeout=WAIT_S)
        except KafkaException:
            assert time.monotonic() < deadline, "the broker does not say which offsets are committed"
            continue
        errors = [one.error for one in found if one.error]
        if not errors:
            return {(one.topic, one.partition): max(one.offset, 0) for one in found}
        assert time.monotonic() < deadline, errors


class Committer(Worker):
    """Commits offsets of a consumer group outside transactions: what was acknowledged is never taken back."""

    GROUP = "committer"

    def __init__(self, name, scene, place):
        super().__init__(name, scene)
        self.place = place
        self.asked = self.told = 0

    def begin(self):
        settings = {"bootstrap.servers": self.address, "group.id": self.GROUP, "enable.auto.commit": False}
        self.consumer = Consumer({**settings, "reconnect.backoff.max.ms": 200, **QUIET})

    def end(self):
        self.look()
        self.consumer.close()

    def step(self):
        self.asked += 1
        try:
            self.consumer.commit(offsets=[TopicPartition(*self.place, self.asked)], asynchronous=False)
        except KafkaException:
            self.look()
        else:
            self.told = self.asked

    def look(self):
        found = patiently_asked(self.consumer, [self.place])[self.place]
        if not self.told <= found <= self.asked:
            self.findings.append(
                f"{self.GROUP}: {self.told} was committed, {self.asked} asked for, {found} is there"
            )


def is_retriable(error):
    """Whether an administrator's request may be repeated after this."""
    return error.retriable() or error.code() in (
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._NOENT,  # no leader is known
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
