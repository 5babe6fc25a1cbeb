"""Conversations with the transaction coordinator, as text: commands, `----`, what comes of them.

`REWRITE=1` writes what came instead of comparing; the diff is for reading. The commands are methods of
`Conversation`, each with an example. A record of the commit log is shown as `log`, a marker as `mark`.

Producers are told apart by name (A, B, ...) and remember their id and epoch, as real ones do: `0/3` is producer id 0
with epoch 3. A producer speaks the first dialect if it was made with `v1`, the second otherwise.
"""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.joint.records import decode_joint
from stablelog.coordinators.transactions.marker_orders import MarkerOrder, TransactionInPartition
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import (
    JointKey,
    TransactionGroupKey,
    decode_group,
    decode_transaction,
    encode_transaction,
    read_key,
    transaction_key,
)
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.errors import RefusedError
from stablelog.types import TopicPartition
from stablelog.wire.extension.children import JointName, child_id
from tests.coordinators.transactions.kafka_coordinator import kafka_value

SCRIPTS = Path(__file__).parent / "scripts"
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FIRST, SECOND = 1, 2


def milliseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS_MS[unit]


def partition(text: str) -> TopicPartition:
    topic, index = text.rsplit("-", 1)
    return topic, int(index)


def shown(partitions: Any) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in sorted(partitions))


def shown_joint(value: bytes | None) -> str:
    if value is None:
        return "forgotten"
    state = decode_joint(value)
    parts = [f"last {state.last_version} g={state.commit_sequence}" if state.last_version >= 0 else "none"]
    if state.open_version >= 0:
        parts.append(f"open {state.open_version} run {state.run or '-'}")
        parts += [f"not {run}" for run in state.superseded]
    parts += [f"order {state.order}"] if state.order >= 0 else []
    parts += [f"of {state.digest} by {state.committed_run or '-'}"] if state.digest else []
    return " ".join(parts)


def made_of(answer: JointAnswer) -> str:
    return f" of {answer.digest} by {answer.run or '-'}" if answer.digest else ""


def told(message: str | None) -> str:
    return "" if message is None else f": {message}"


class Producer:
    """A client."""

    def __init__(self, transactional_id: str, dialect: int) -> None:
        self.transactional_id = transactional_id
        self.dialect = dialect
        self.identity = (-1, -1)


class Conversation:
    """A coordinator, its log, and the clients. Everything is durable at once; markers too, unless held back."""

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {"two_phase_commit_enable": True}
        self.now_ms = 0
        self.block = 1000
        self.leader_epoch = 0
        self.log: list[list[tuple[bytes, bytes | None]]] = []
        self.ends: dict[TopicPartition, int] = {}
        self.closed: set[TopicPartition] = set()
        self.held: list[MarkerOrder] = []
        self.producers: dict[str, Producer] = {}
        self.lines: list[str] = []
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionConfig(**self.settings),
            coordinator_epoch=self.leader_epoch,
            producer_ids=ProducerIds(self.block),
            end_offsets=lambda targets: [self.ends.get(target, 0) for target in targets],
        )

    # -- commands ----------------------------------------------------------------------------------------------

    def config(self, *flags: str, **settings: str) -> None:
        """`config strict block=3 two-phase=off timeout-max=1m`: settings, before anything else."""
        self.block = int(settings.pop("block", self.block))
        for name, value in {**dict.fromkeys(flags, "on"), **settings}.items():
            field = {
                "strict": "strict",
                "two-phase": "two_phase_commit_enable",
                "timeout-max": "transaction_timeout_ms_max",
                "expiration": "transactional_id_expiration_ms",
            }[name]
            self.settings[field] = milliseconds(value) if value[-1:] in "smhd" else value == "on"
        self.coordinator = self.new_coordinator()

    def at(self, when: str) -> None:
        """`at 10s`: it is ten seconds after the beginning, and the coordinator looks at the clock."""
        self.now_ms = milliseconds(when)
        self.carry_out(self.coordinator.abort_overdue(self.now_ms))
        self.carry_out(self.coordinator.forget_expired(self.now_ms))

    def init(self, name: str, *flags: str, **given: str) -> None:
        """`init A id=a v1 own timeout=30s 2pc keep version=3`: A wants the id; `own` shows what A has."""
        if name not in self.producers:
            self.producers[name] = Producer(given.get("id", "a"), FIRST if "v1" in flags else SECOND)
        producer = self.producers[name]
        identity = producer.identity if "own" in flags else (-1, -1)
        if "as" in given:
            identity = self.parse(given["as"])
        decision = self.coordinator.producers.init_producer_id(
            producer.transactional_id or None,
            milliseconds(given.get("timeout", "60s")),
            *identity,
            enable_two_phase="2pc" in flags,
            keep_prepared="keep" in flags,
            api_version=int(given.get("version", 6)),
            now_ms=self.now_ms,
        )
        answer = decision.answer
        line = f"{name}: {answer.error.name}"
        if answer.error is ErrorCode.none:
            producer.identity = (answer.producer_id, answer.producer_epoch)
            line += f" {answer.producer_id}/{answer.producer_epoch}"
            if answer.ongoing_producer_id >= 0:
                line += f" keeps {answer.ongoing_producer_id}/{answer.ongoing_producer_epoch}"
        self.carry_out(decision, line)

    def add(self, name: str, *partitions: str, **given: str) -> None:
        """`add A t-0 t-1 version=3 as=0/1`: AddPartitionsToTxn, as A or with another identity."""
        producer = self.producers[name]
        decision = self.coordinator.add_partitions(
            producer.transactional_id,
            *self.identity(producer, given),
            [partition(p) for p in partitions],
            api_version=int(given.get("version", 3)),
            now_ms=self.now_ms,
        )
        codes = sorted({code.name for code in decision.answer.values()})
        self.carry_out(decision, f"{name}: {' '.join(codes)}")

    def write(self, name: str, *partitions: str, **given: str) -> None:
        """`write A t-0 version=9`: the first batch of A's transaction in each of the partitions."""
        producer = self.producers[name]
        for text in partitions:
            target = partition(text)
            identity = self.identity(producer, given)
            if producer.dialect == FIRST:
                code = self.coordinator.verify_partitions(
                    producer.transactional_id,
                    *identity,
                    [target],
                    produce_version=int(given.get("version", 10)),
                )[target]
                self.lines.append(f"{name}: {code.name}")
            else:
                decision = self.coordinator.add_partitions(
                    producer.transactional_id,
                    *identity,
                    [target],
                    api_version=12,
                    transaction_version=SECOND,
                    now_ms=self.now_ms,
                )
                code = decision.answer[target]
                self.carry_out(decision, f"{name}: {code.name}")
            if code is ErrorCode.none:
                self.ends[target] = self.ends.get(target, 0) + 1

    def commit(self, name: str, *flags: str, **given: str) -> None:
        """`commit A as=0/1 version=1 open-only`: EndTxn, as A or with another identity."""
        self.end(name, flags, given, commit=True)

    def abort(self, name: str, *flags: str, **given: str) -> None:
        """`abort A`: likewise."""
        self.end(name, flags, given, commit=False)

    def end(self, name: str, flags: tuple[str, ...], given: dict[str, str], *, commit: bool) -> None:
        producer = self.producers[name]
        version = int(given.get("version", 3 if producer.dialect == FIRST else 5))
        decision = self.coordinator.end(
            producer.transactional_id,
            *self.identity(producer, given),
            commit,
            api_version=version,
            open_only="open-only" in flags,
            now_ms=self.now_ms,
        )
        answer = decision.answer
        line = f"{name}: {answer.error.name}"
        if answer.producer_id >= 0:
            line += f" {answer.producer_id}/{answer.producer_epoch}"
            if "as" not in given:
                producer.identity = (answer.producer_id, answer.producer_epoch)
        self.carry_out(decision, line)

    def child(self, name: str, key: str, version: str, *flags: str, **given: str) -> None:
        """`child A k 1 run=r1 group=g v1 timeout=30s`: A registers as a child; its partition is its name."""
        transactional_id = child_id(
            key, int(version), given.pop("run", "r1"), name, 0, group=given.pop("group", "")
        )
        self.init(name, *flags, id=transactional_id, **given)

    def begin_joint(self, key: str, version: str, run: str = "", order: str = "-1") -> None:
        """`begin-joint k 1 r1 order=4`: with a run, or without only to ask."""
        decision = self.coordinator.joint.begin_version(
            JointName("", key), int(version), run or None, order=int(order), now_ms=self.now_ms
        )
        answer = decision.answer
        line = answer.error.name if answer.error is not ErrorCode.none else "open"
        if answer.committed:
            line = f"committed g={answer.commit_sequence}" + made_of(answer)
        self.carry_out(decision, f"{line} last {answer.last_version}" + told(answer.message))

    def commit_joint(self, key: str, version: str, *names: str, **given: str) -> None:
        """`commit-joint k 1 A B=0/7 run=r1 group=g keep=1h digest=d offsets`: the children A and B, one with another identity."""
        now = {"now_ms": self.now_ms}
        name = JointName(given.pop("group", ""), key)
        run, keep, digest = (given.pop(word, None) for word in ("run", "keep", "digest"))
        children = [
            ChildShown(self.producers[n].transactional_id, *self.producers[n].identity) for n in names
        ]
        children += [ChildShown(self.producers[n].transactional_id, *self.parse(g)) for n, g in given.items()]
        decision = self.coordinator.joint.commit(
            name,
            int(version),
            children,
            run=run,
            retention_ms=-1 if keep is None else milliseconds(keep),
            digest=digest,
            **now,
        )
        answer = decision.answer
        line = answer.error.name if answer.error is not ErrorCode.none else f"g={answer.commit_sequence}"
        line += " already" if answer.committed else ""
        self.carry_out(decision, line + made_of(answer) + told(answer.message))

    def abort_joint(self, key: str, version: str, *names: str, **given: str) -> None:
        """`abort-joint k 1 A B run=r1`: likewise."""
        children = [
            ChildShown(self.producers[n].transactional_id, *self.producers[n].identity) for n in names
        ]
        decision = self.coordinator.joint.abort(
            JointName("", key), int(version), children, run=given.get("run"), now_ms=self.now_ms
        )
        answer = decision.answer
        line = answer.error.name if not answer.committed else f"committed g={answer.commit_sequence}"
        self.carry_out(decision, line + told(answer.message))

    def offsets(self, key: str, version: str) -> None:
        """`offsets k 1`: a child of the coordinator's own takes offsets; it is known as `offsets` from now on."""
        decision = self.coordinator.joint.open_offsets(
            JointName("", key), int(version), ("__consumer_offsets", 0), now_ms=self.now_ms
        )
        own = self.producers["offsets"] = Producer(decision.answer.transactional_id, SECOND)
        own.identity = decision.answer[1:]
        self.carry_out(decision, f"offsets: {own.identity[0]}/{own.identity[1]}")

    def force_abort(self, transactional_id: str) -> None:
        """`force-abort a`: by hand."""
        decision = self.coordinator.force_abort(transactional_id, now_ms=self.now_ms)
        self.carry_out(decision, decision.answer.error.name)

    def exhaust(self, transactional_id: str, epoch: str = "32766") -> None:
        """`exhaust a 32765`: as if so many transactions had been made. Whoever holds the id has this epoch now."""
        key = transaction_key(transactional_id)
        value = next(v for records in reversed(self.log) for k, v in records if k == key)
        assert value is not None
        txn = decode_transaction(value)._replace(producer_epoch=int(epoch))
        self.log.append([(key, encode_transaction(txn))])
        self.coordinator.table.replay(*self.log[-1][0])
        for producer in self.producers.values():
            if producer.transactional_id == transactional_id:
                producer.identity = txn.client

    def close(self, *partitions: str) -> None:
        """`close t-0`: the partition cannot be written; its markers are held back."""
        self.closed |= {partition(p) for p in partitions}

    def open(self, text: str, *found: str) -> None:
        """`open t-0 0/3 0/3@17 0/3@17/1`: it can be, and holds these open transactions (at offset/leader epoch)."""
        target = partition(text)
        self.closed.discard(target)
        held = [order for order in self.held if target in order.partitions]
        transactions = [self.found(f) for f in found]
        decision = self.coordinator.reconcile(target, transactions, held=held, now_ms=self.now_ms)
        for order in decision.markers:
            self.show_marker(order, {target})
        self.append(decision)
        for order in held:
            self.complete(order)

    def open_all(self) -> None:
        """`open-all`: every partition can be written, and holds no open transaction."""
        for topic, index in sorted(self.closed):
            self.open(f"{topic}-{index}")

    def crash(self, **given: str) -> None:
        """`crash lose=2`: the broker starts again, without the last two decisions. All partitions are closed."""
        lose = int(given.get("lose", 0))
        del self.log[len(self.log) - lose :]
        self.leader_epoch += 1
        self.coordinator = self.new_coordinator()
        for records in self.log:
            for key, value in records:
                self.coordinator.table.replay(key, value)
        self.closed = {("t", i) for i in range(4)}
        self.held = []
        decision = self.coordinator.finish_replay(self.now_ms)
        self.append(decision)
        for order in decision.markers:
            self.lines.append(
                f"held {order.type.name} {order.producer_id}/{order.producer_epoch} {shown(order.partitions)}"
            )
            self.held.append(order)

    def kafka(self, name: str, label: str, *partitions: str, **given: str) -> None:
        """`kafka A PrepareCommit t-0 as=5/3 id=a version=1`: Kafka wrote this for producer A, in TV1; seen after `crash`."""
        transactional_id = given.get("id", "a")
        version = int(given.get("version", FIRST))
        producer = self.producers.setdefault(name, Producer(transactional_id, version))
        producer.identity = self.parse(given["as"])
        state = next(state for state in TransactionState if state.label == label)
        targets = [partition(text) for text in partitions]
        value = kafka_value(*producer.identity, state, targets, transaction_version=version)
        self.log.append([(transaction_key(transactional_id), value)])

    def checkpoint(self) -> None:
        """`checkpoint`: the commit log is trimmed to the live state."""
        self.log = []
        self.append(Decision(None, self.coordinator.table.checkpoint()))

    def describe(self, transactional_id: str) -> None:
        """`describe a`."""
        d = self.coordinator.table.get(transactional_id)
        if d is None:
            self.lines.append(f"{transactional_id}: unknown")
            return
        line = f"{transactional_id}: {d.state.label} {d.producer_id}/{d.producer_epoch}"
        if (*d.client,) != (d.producer_id, d.producer_epoch):
            line += f" client {d.client.producer_id}/{d.client.producer_epoch}"
        line += (
            f" timeout={'never' if d.is_two_phase else d.timeout_ms} start={d.start_ms} {shown(d.partitions)}"
        )
        self.lines.append(line.rstrip())

    def list(self, **given: str) -> None:
        """`list states=Ongoing,Dead pids=0,1 longer=10s ids=a.*`."""
        try:
            slices, unknown = self.coordinator.table.list_transactions(
                states=given["states"].split(",") if "states" in given else (),
                producer_ids=[int(p) for p in given.get("pids", "").split(",") if p],
                duration_ms=milliseconds(given["longer"]) if "longer" in given else -1,
                id_pattern=given.get("ids"),
                now_ms=self.now_ms,
            )
        except RefusedError as refused:
            self.lines.append(f"{refused.code.name}: {refused}")
            return
        self.lines += [f"{d.transactional_id} {d.producer_id} {d.state}" for some in slices for d in some]
        self.lines += [f"unknown state {state}" for state in unknown]

    def watermarks(self) -> None:
        """`watermarks`: the last commit and the last one up to which all have their markers."""
        c = self.coordinator
        self.lines.append(f"last g={c.table.sequences.last} resolved g={c.table.resolved_sequence}")

    # -- behind the commands -----------------------------------------------------------------------------------

    def parse(self, text: str) -> tuple[int, int]:
        producer_id, epoch = text.split("/")
        return int(producer_id), int(epoch)

    def identity(self, producer: Producer, given: dict[str, str]) -> tuple[int, int]:
        return self.parse(given["as"]) if "as" in given else producer.identity

    def found(self, text: str) -> TransactionInPartition:
        identity, _, place = text.partition("@")
        offset, _, leader_epoch = place.partition("/")
        return TransactionInPartition(*self.parse(identity), int(offset or -1), int(leader_epoch or -1))

    def carry_out(self, decision: Decision[Any], answer: str = "") -> None:
        self.append(decision)
        for order in decision.markers:
            self.show_marker(order, order.partitions - self.closed)
            self.held += [order] if order.partitions & self.closed else []
            self.complete(order)
        if answer:
            self.lines.append(answer)

    def append(self, decision: Decision[Any]) -> None:
        if decision.records:
            self.log.append(list(decision.records))
        for key, value in decision.records:
            self.show_record(key, value)

    def complete(self, order: MarkerOrder) -> None:
        if order.partitions & self.closed:
            return
        self.held = [held for held in self.held if held is not order]
        self.append(
            self.coordinator.markers_done(
                order.transactional_id, order.producer_id, order.producer_epoch, now_ms=self.now_ms
            )
        )

    def show_marker(self, order: MarkerOrder, partitions: Any) -> None:
        if not partitions:
            return
        line = f"mark {order.type.name} {order.producer_id}/{order.producer_epoch} {shown(partitions)}"
        self.lines.append(line + (f" g={order.commit_sequence}" if order.commit_sequence >= 0 else ""))

    def show_record(self, key: bytes, value: bytes | None) -> None:
        subject = read_key(key)
        assert subject is not None
        if isinstance(subject, TransactionGroupKey):
            assert value is not None
            state = decode_group(value)
            self.lines.append(
                f"log group: ids below {state.producer_ids_end}, next g={state.commit_sequence_next}"
            )
            return
        if isinstance(subject, JointKey):
            self.lines.append(f"log joint {subject.name.key} " + shown_joint(value))
            return
        if value is None:
            self.lines.append(f"log {subject.transactional_id} forgotten")
            return
        txn = decode_transaction(value)
        line = f"log {subject.transactional_id} {txn.state.label} {txn.producer_id}/{txn.producer_epoch}"
        if txn.next_producer_id >= 0:
            line += f" client {txn.client.producer_id}/{txn.client.producer_epoch}"
        if txn.commit_sequence >= 0:
            line += f" g={txn.commit_sequence}"
        self.lines.append(f"{line} {shown(txn.partitions)}".rstrip())

    def run(self, command: str) -> None:
        words = command.split()
        given = {k: v for k, _, v in (w.partition("=") for w in words[1:] if "=" in w and "@" not in w)}
        plain = [w for w in words[1:] if "=" not in w or "@" in w]
        getattr(self, words[0].replace("-", "_"))(*plain, **given)


def run_script(text: str) -> str:
    """The script with what came of its commands in the place of what was expected."""
    conversation = Conversation()
    out = []
    for block in text.strip().split("\n\n"):
        commands, _, _ = block.partition("----")
        for line in commands.strip().splitlines():
            if not line.startswith("#"):
                conversation.run(line.partition("  #")[0])
        out.append(f"{commands.strip()}\n----\n" + "\n".join(conversation.lines))
        conversation.lines = []
    return "\n\n".join(block.rstrip() for block in out) + "\n"


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_conversation(path: Path) -> None:
    came = run_script(path.read_text())
    if os.environ.get("REWRITE"):
        path.write_text(came)
    assert came == path.read_text()


def test_scripts_exist() -> None:
    assert len(list(SCRIPTS.glob("*.txt"))) >= 10
