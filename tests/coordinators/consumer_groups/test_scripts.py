"""Conversations with the group coordinator, as text: commands, `----`, what comes of them.

`REWRITE=1` writes what came instead of comparing; the diff is for reading. The commands are methods of
`Conversation`, each with an example.
"""

import itertools
import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from stablelog.coordinators.consumer_groups.answers import (
    CommittingMember,
    GroupConfig,
    GroupDecision,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    OffsetCommit,
    SyncAnswer,
    SyncRequest,
)
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.coordinators.consumer_groups.records import (
    GroupMetadataKey,
    read_group_value,
    read_key,
    read_offset_value,
)

SCRIPTS = Path(__file__).parent / "scripts"
UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text).groups()  # type: ignore[union-attr]
    return int(number) * UNITS_MS[unit]


def subscription(topics: str) -> bytes:
    names = [name for name in topics.split(",") if name]
    parts = [struct.pack(">h", len(name)) + name.encode() for name in names]
    return struct.pack(">hi", 0, len(names)) + b"".join(parts) + struct.pack(">i", -1)


def partition(text: str) -> tuple[str, int]:
    topic, index = text.rsplit("-", 1)
    return topic, int(index)


class Conversation:
    """A coordinator, its log, and the clients: each remembers its member id and its generation, as real ones do."""

    def __init__(self) -> None:
        self.config: dict[str, int] = {"initial_rebalance_delay_ms": 0}
        self.now_ms = 0
        self.log: list[
            tuple[str, Any]
        ] = []  # ("record", (key, value)) | ("txn", (pid, key, value)) | ("marker", ..)
        self.shown = 0
        self.fresh = 0
        self.waiting: dict[str, tuple[str, str]] = {}
        self.token_count = 0
        self.member_ids: dict[str, str] = {}
        self.generations: dict[str, int] = {}
        self.pending: list[str] = []
        self.coordinator = GroupCoordinator(GroupConfig(**self.config))

    # -- commands ----------------------------------------------------------------------------------------------

    def set(self, *, _: tuple[str, ...] = (), **settings: str) -> str:
        """`set group_size_max=2 initial_rebalance_delay_ms=3s`: settings, before anything else."""
        self.config |= {name: milliseconds(t) if t[-1].isalpha() else int(t) for name, t in settings.items()}
        self.coordinator = GroupCoordinator(GroupConfig(**self.config))
        return ""

    def at(self, when: str) -> str:
        """`at 10s`: let time pass, stopping at every deadline on the way."""
        end_ms = milliseconds(when)
        lines = []
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            told = self.carry_out(self.coordinator.tick(self.now_ms))
            lines += [f"at {self.now_ms / 1000:g}s: {line}" for line in told]
        self.now_ms = end_ms
        return "\n".join(lines)

    def join(self, group: str, client: str, *anew: str, **options: str) -> str:
        """`join g A protocols=range,sticky topics=t session=10s rebalance=60s instance=i version=9`; `join g A anew`."""
        self.fresh += 1
        version = int(options.get("version", 9))
        data = subscription(options.get("topics", "t"))
        if "data" in options:
            data = b"x" * int(options["data"])
        request = JoinRequest(
            group_id=group,
            member_id=options.get("id", "" if anew else self.member_ids.get(client, "")),
            fresh_id=str(self.fresh),
            protocol_type=options.get("type", "consumer"),
            protocols=tuple((name, data) for name in options.get("protocols", "range").split(",") if name),
            session_timeout_ms=milliseconds(options.get("session", "10s")),
            rebalance_timeout_ms=milliseconds(options.get("rebalance", "60s")),
            group_instance_id=options.get("instance"),
            client_id=client,
            client_host="/host",
            knows_member_id_required=version >= 4,
            knows_skip_assignment=version >= 9,
        )
        decision = self.coordinator.join(request, self.token(client, "joins"), now_ms=self.now_ms)
        return "\n".join(self.carry_out(decision)) or f"{client} waits"

    def sync(self, group: str, client: str, **options: str) -> str:
        """`sync g A A=work-of-A B=work-of-B generation=1 protocol=range`; the leader names the work of each."""
        protocol, instance = options.pop("protocol", None), options.pop("instance", None)
        generation = int(options.pop("generation", self.generations.get(client, -1)))
        request = SyncRequest(
            group_id=group,
            member_id=options.pop("id", self.member_ids.get(client, "")),
            generation=generation,
            group_instance_id=instance,
            protocol_name=protocol,
            assignments={self.member_ids[name]: work.encode() for name, work in options.items()},
        )
        decision = self.coordinator.sync(request, self.token(client, "syncs"), now_ms=self.now_ms)
        return "\n".join(self.carry_out(decision)) or f"{client} waits"

    def heartbeat(self, group: str, *clients: str, **options: str) -> str:
        """`heartbeat g A B`, `heartbeat g A generation=1 instance=i id=former`."""
        lines = []
        for client in clients:
            decision = self.coordinator.heartbeat(
                group,
                options.get("id", self.member_ids.get(client, "")),
                int(options.get("generation", self.generations.get(client, -1))),
                group_instance_id=options.get("instance"),
                now_ms=self.now_ms,
            )
            lines += [f"{client}: {decision.answer.name}", *self.carry_out(decision)]
        return "\n".join(lines)

    def leave(self, group: str, *clients: str, instance: str = "", member: str = "") -> str:
        """`leave g A B`, `leave g instance=i,j`, `leave g member=A-1`."""
        leaving = [LeavingMember(self.member_ids.get(client, "")) for client in clients]
        leaving += [LeavingMember(member)] if member else []
        leaving += [LeavingMember("", one) for one in instance.split(",") if one]
        decision = self.coordinator.leave(group, leaving, now_ms=self.now_ms)
        lines = [
            f"{one.member_id or one.group_instance_id}: {code.name}" for one, code in decision.answer.members
        ]
        return "\n".join([*(lines or [decision.answer.code.name]), *self.carry_out(decision)])

    def membership(self, as_: str | None, options: dict[str, str]) -> CommittingMember:
        if as_ is None:
            return CommittingMember()
        return CommittingMember(
            options.pop("id", self.member_ids.get(as_, "")),
            int(options.pop("generation", self.generations.get(as_, -1))),
            options.pop("instance", None),
        )

    def commit(self, group: str, *as_: str, **options: str) -> str:
        """`commit g t-0=5 t-1=7`; `commit g as A t-0=5 generation=1`; retention=1h, metadata=100, version=8."""
        membership = self.membership(as_[1] if as_ else None, options)
        retention_ms = milliseconds(options.pop("retention")) if "retention" in options else -1
        metadata = "m" * int(options.pop("metadata", "0"))
        version = int(options.pop("version", "9"))
        decision = self.coordinator.commit_offsets(
            group,
            {partition(name): OffsetCommit(int(offset), -1, metadata) for name, offset in options.items()},
            membership,
            retention_ms=retention_ms,
            knows_missing_group=version >= 9,
            now_ms=self.now_ms,
        )
        return "\n".join([codes(decision.answer), *self.carry_out(decision)])

    def txn_commit(self, group: str, *as_: str, pid: str, **options: str) -> str:
        """`txn-commit g pid=7 t-0=5`; `txn-commit g as A pid=7 t-0=5`."""
        membership = self.membership(as_[1] if as_ else None, options)
        decision = self.coordinator.txn_commit_offsets(
            group,
            {partition(name): OffsetCommit(int(offset)) for name, offset in options.items()},
            membership,
            now_ms=self.now_ms,
        )
        assert not decision.answers
        self.coordinator.txn_offsets_appended(int(pid), decision.records, now_ms=self.now_ms)
        self.log += [("txn", (int(pid), key, value)) for key, value in decision.records]
        return codes(decision.answer)

    def end(self, outcome: str, pid: str) -> str:
        """`end commit pid=7`, `end abort pid=7`: the marker of a producer's transaction."""
        self.log.append(("marker", (int(pid), outcome == "commit")))
        self.coordinator.txn_ended(int(pid), commit=outcome == "commit")
        return ""

    def fetch(self, group: str, *asked: str) -> str:
        """`fetch g`, `fetch g t-0 t-1`, `fetch g stable`, `fetch g stable t-0`."""
        names = [name for name in asked if name != "stable"]
        decision = self.coordinator.fetch_offsets(
            group, [partition(name) for name in names] if names else None, require_stable="stable" in asked
        )
        found = sorted(decision.answer.items())
        return "\n".join(
            f"{topic}-{index}: {offset.offset if offset.code.value == 0 else offset.code.name}"
            for (topic, index), offset in found
        )

    def delete_offsets(self, group: str, *names: str) -> str:
        """`delete-offsets g t-0 t-1`."""
        decision = self.coordinator.delete_offsets(group, [partition(n) for n in names], now_ms=self.now_ms)
        return "\n".join(
            [codes(decision.answer.partitions) or decision.answer.code.name, *self.carry_out(decision)]
        )

    def delete_topic(self, topic: str) -> str:
        """`delete-topic t`."""
        decisions = self.coordinator.topic_deleted(topic, now_ms=self.now_ms)
        return "\n".join(line for decision in decisions for line in self.carry_out(decision))

    def delete(self, *groups: str) -> str:
        """`delete g h`."""
        decision = self.coordinator.delete_groups(groups, now_ms=self.now_ms)
        lines = [f"{group}: {code.name}" for group, code in decision.answer.items()]
        return "\n".join([*lines, *self.carry_out(decision)])

    def describe(self, group: str) -> str:
        """`describe g`."""
        (described,) = self.coordinator.describe([group]).answer
        head = f"{described.state} {described.protocol_type or '-'} {described.protocol_name or '-'}"
        lines = [
            f"  {m.member_id} instance={m.group_instance_id} {m.client_id}{m.client_host} work={m.assignment.decode()}"
            for m in described.members
        ]
        return "\n".join([head if described.code.value == 0 else f"{head} ({described.code.name})", *lines])

    def list(self, *, states: str = "", types: str = "") -> str:
        """`list`, `list states=stable,empty types=classic`."""
        listed = self.coordinator.list_groups(
            [s for s in states.split(",") if s], [t for t in types.split(",") if t]
        ).answer
        return "\n".join(f"{g.group_id} {g.state} {g.protocol_type or '-'} {g.group_type}" for g in listed)

    def show(self) -> str:
        """`show`: what was logged since it was last shown."""
        lines = [logged(kind, content) for kind, content in self.log[self.shown :]]
        self.shown = len(self.log)
        return "\n".join(lines)

    def crash(self) -> str:
        """`crash`: all is read from the log again."""
        self.waiting.clear()
        self.coordinator = GroupCoordinator(GroupConfig(**self.config))
        for kind, content in self.log:
            if kind == "record":
                self.coordinator.table.replay(*content)
            elif kind == "txn":
                producer_id, key, value = content
                self.coordinator.table.replay(key, value, producer_id)
            else:
                self.coordinator.txn_ended(content[0], commit=content[1])
        return "\n".join(self.carry_out(self.coordinator.finish_replay(self.now_ms)))

    def trim(self) -> str:
        """`trim`: a checkpoint is appended, and what lies before it is deleted."""
        state = self.coordinator.table.live_state()
        checkpoint: list[tuple[str, Any]] = [("record", entry) for entry in state.rest]
        for producer_id, entry in itertools.chain(*state.ordered):
            checkpoint.append(("record", entry) if producer_id is None else ("txn", (producer_id, *entry)))
        # Offsets stay what they were: deleted records leave an offset behind.
        self.log = [("marker", (-1, False))] * len(self.log) + checkpoint
        self.shown = len(self.log)
        return f"{len(checkpoint)} records"

    # -- help --------------------------------------------------------------------------------------------------

    def token(self, client: str, what: str) -> str:
        self.token_count += 1
        token = f"{what}-{self.token_count}"
        self.waiting[token] = (client, what)
        return token

    def carry_out(self, decision: GroupDecision[Any]) -> "list[str]":
        self.log += [("record", entry) for entry in decision.records]
        return [self.tell(*self.waiting.pop(token), answer) for token, answer in decision.answers]  # type: ignore[index]

    def tell(self, client: str, what: str, answer: JoinAnswer | SyncAnswer) -> str:
        if isinstance(answer, SyncAnswer):
            said = answer.assignment.decode() or "nothing" if answer.code.value == 0 else answer.code.name
            return f"{client} {what}: {said}"
        if answer.code in (ErrorCode.none, ErrorCode.member_id_required):
            self.member_ids[client] = answer.member_id
        if answer.code.value:
            return f"{client} {what}: {answer.code.name}" + (
                f" as {answer.member_id}" if answer.member_id else ""
            )
        self.generations[client] = answer.generation
        skips = ", skips assignment" if answer.skip_assignment else ""
        members = f", of {' '.join(member.member_id for member in answer.members)}" if answer.members else ""
        return (
            f"{client} {what}: generation {answer.generation}, {answer.protocol_name}, as {answer.member_id},"
            f" led by {answer.leader_id}{members}{skips}"
        )


def codes(answer: Any) -> str:
    return "\n".join(f"{topic}-{index}: {code.name}" for (topic, index), code in sorted(answer.items()))


def logged(kind: str, content: Any) -> str:
    if kind == "marker":
        return f"marker pid={content[0]} {'commit' if content[1] else 'abort'}"
    *producer, key, value = content
    subject = read_key(key)
    who = f" pid={producer[0]}" if producer else ""
    if isinstance(subject, GroupMetadataKey):
        if value is None:
            return f"group {subject.group_id}{who} gone"
        group = read_group_value(value)
        work = " ".join(f"{member.member_id}={member.assignment.decode()}" for member in group.members)
        return f"group {subject.group_id}{who} generation {group.generation} {group.protocol_name} [{work}]"
    assert subject is not None
    said = "gone" if value is None else read_offset_value(value).offset
    return f"offset {subject.group_id} {subject.topic}-{subject.partition}{who} {said}"


def run(conversation: Conversation, line: str) -> str:
    words = line.split()
    verb, words = words[0].replace("-", "_"), words[1:]
    options = dict(word.split("=", 1) for word in words if "=" in word)
    said: str = getattr(conversation, verb)(*(word for word in words if "=" not in word), **options)
    return said


@pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_the_conversation_goes_as_it_is_written(path: Path) -> None:
    """Blocks are separated by empty lines: comments and commands, `----`, answers."""
    conversation = Conversation()
    written = path.read_text()
    blocks = []
    for block in written.strip().split("\n\n"):
        asked, _, _ = block.partition("\n----")
        commands = [line for line in asked.splitlines() if line and not line.startswith("#")]
        if not commands:
            blocks.append(asked)
            continue
        answers = [answer for line in commands if (answer := run(conversation, line))]
        blocks.append("\n".join([asked, "----", *answers]))
    came = "\n\n".join(blocks) + "\n"
    if os.environ.get("REWRITE"):
        path.write_text(came)
    assert came == written


def test_there_are_conversations() -> None:
    assert len(list(SCRIPTS.glob("*.txt"))) >= 8
