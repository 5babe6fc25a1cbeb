"""Random lives of a group: members come, go, fall silent and start twice; offsets are committed, in transactions and
outside; the broker crashes and trims its log. After every step the coordinator agrees with simple models.

- A token is answered once, and every one is answered in the end.
- Only members of the newest generation commit as members.
- In a generation everybody gets what its leader assigned, and it assigns once.
- The offset of a partition is that of the latest record, among plain commits and committed transactions, since the
  last tombstone. (The model looks at the whole history; it keeps no state.)
- What is read from the log is what is in memory, also after a checkpoint and a trim.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
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
from stablelog.coordinators.consumer_groups.classic_group import ClassicGroupState, Due
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.coordinators.consumer_groups.records import (
    OffsetKey,
    read_group_value,
    read_key,
    read_offset_value,
)
from stablelog.coordinators.live_state import OwnedRecord
from tests.scale import examples

CONFIG = GroupConfig(initial_rebalance_delay_ms=1_000, group_size_max=5, offsets_retention_ms=10**12)
NO_DELAY = GroupConfig(initial_rebalance_delay_ms=0, group_size_max=5, offsets_retention_ms=10**12)
GROUPS = ("g", "simple")
OFTEN_G = st.sampled_from(("g", "g", "g", "simple"))
OFTEN_T = st.sampled_from([("t", 0), ("t", 0), ("u", 0)])
OFTEN_1 = st.sampled_from((1, 1, 2, 3))
PARTITIONS = [("t", 0), ("u", 0)]
PRODUCERS = (1, 2, 3)


@dataclass(slots=True)
class Client:
    """What a client remembers. It may be late with everything."""

    name: str
    version: int
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    members: tuple[str, ...] = ()
    next: str = "join"
    is_deaf: bool = False  # its connection breaks before an answer comes


@dataclass(frozen=True, slots=True)
class Entry:
    """A record or marker in the log. `producer_id` of a transaction; `outcome` for markers only."""

    offset: int
    key: bytes = b""
    value: bytes | None = None
    producer_id: int | None = None
    outcome: bool | None = None


class Life(RuleBasedStateMachine):
    """What both lives have: time, failures, and what must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.config = CONFIG
        self.now_ms = 0
        self.clients = [
            Client("A", 9),
            Client("B", 9),
            Client("C", 3),
            Client("D", 9, "static"),
            Client("E", 8, "static"),
            Client("F", 9, "other"),
        ]
        self.log: list[Entry] = []
        self.history: list[Entry] = []  # what was ever logged and not lost, but for checkpoints
        self.end = 0
        self.durable = 0
        self.count = 0
        self.waiting: dict[int, tuple[Client, SyncRequest | None]] = {}
        self.newest_generation = 0
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.places: dict[str, str] = {}  # who is which static member in the newest generation
        self.former: dict[str, str] = {}  # whose place a member took within a generation
        self.slices: tuple[int, Iterator[list[OwnedRecord]]] | None = None  # of a checkpoint
        self.coordinator = GroupCoordinator(self.config)

    # -- the broker --------------------------------------------------------------------------------------------

    def append(self, key: bytes, value: bytes | None, producer_id: int | None = None) -> None:
        entry = Entry(self.end, key, value, producer_id)
        self.log.append(entry)
        self.history.append(entry)
        self.end += 1

    def carry_out(self, decision: GroupDecision[Any]) -> Any:
        for key, value in decision.records:
            self.append(key, value)
        # Generations are told before they are assigned, also within one decision.
        for token, answer in decision.answers:
            client, request = self.waiting.pop(token)  # type: ignore[call-overload]
            if isinstance(answer, JoinAnswer):
                self.joined(client, answer)
            else:
                assert request is not None
                self.synced(client, request, answer)
        return decision.answer

    def joined(self, client: Client, answer: JoinAnswer) -> None:
        if not client.is_deaf:
            self.hear(client, answer)
        if answer.code is not ErrorCode.none:
            return
        assert answer.generation >= self.newest_generation
        if answer.generation > self.newest_generation:
            self.newest_generation = answer.generation
            self.places.clear()
        # Work is also for static members who have not joined this time: whoever takes their place gets it.
        for member in answer.members:
            if member.group_instance_id is not None:
                self.places.setdefault(member.group_instance_id, member.member_id)
        if client.instance_id is not None:
            former = self.places.get(client.instance_id)
            if former is not None and former != answer.member_id:
                self.former[answer.member_id] = former
            self.places[client.instance_id] = answer.member_id
        if answer.members:
            assert answer.leader_id == answer.member_id
            assert answer.member_id in {member.member_id for member in answer.members}

    def hear(self, client: Client, answer: JoinAnswer) -> None:
        client.next = "sync" if answer.code is ErrorCode.none else "join"
        if answer.code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id = ""
        elif answer.code is ErrorCode.member_id_required:
            client.member_id = answer.member_id
        elif answer.code is ErrorCode.none:
            client.member_id, client.generation = answer.member_id, answer.generation
            client.members = () if answer.skip_assignment else tuple(m.member_id for m in answer.members)

    def synced(self, client: Client, request: SyncRequest, answer: SyncAnswer) -> None:
        client.next = "heartbeat" if answer.code is ErrorCode.none else "join"
        if answer.code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id = ""
        if answer.code is not ErrorCode.none:
            return
        # Work names the generation and the attempt of the leader that made it.
        if answer.assignment:
            generation, _, name = answer.assignment.decode().split("/")
            assert int(generation) == request.generation
            whose = request.member_id
            while whose != name and whose in self.former:
                whose = self.former[whose]
            assert whose == name
        work = self.assigned.setdefault(request.generation, {})
        attempts = {one.split(b"/")[1] for one in (*work.values(), answer.assignment) if one}
        assert len(attempts) <= 1, "a generation was assigned twice"
        assert work.setdefault(request.member_id, answer.assignment) == answer.assignment

    def rebuilt(self, log: list[Entry]) -> GroupCoordinator:
        coordinator = GroupCoordinator(self.config)
        for entry in log:
            if entry.outcome is not None:
                assert entry.producer_id is not None
                coordinator.txn_ended(entry.producer_id, commit=entry.outcome)
            else:
                coordinator.table.replay(entry.key, entry.value, entry.producer_id)
        return coordinator

    def checkpointed(self) -> tuple[list[Entry], int]:
        """The log with the live state written again, and how far it may be trimmed."""
        items = itertools.chain(*checkpoint_of(self.coordinator))
        again = [Entry(self.end + n, key, value, owner) for n, (owner, (key, value)) in enumerate(items)]
        return [*self.log, *again], self.end

    # -- time and failure --------------------------------------------------------------------------------------

    @rule(step_ms=st.sampled_from([1, 500, 2_000, 6_000, 11_000]))
    def time_passes(self, step_ms: int) -> None:
        self.advance(step_ms)

    def advance(self, step_ms: int) -> None:
        end_ms = self.now_ms + step_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.carry_out(self.coordinator.tick(self.now_ms))
        self.now_ms = end_ms

    @rule()
    def fsync(self) -> None:
        self.durable = self.end

    @rule(config=st.sampled_from([CONFIG, NO_DELAY]))
    def crash(self, config: GroupConfig) -> None:
        self.config = config
        self.log = [entry for entry in self.log if entry.offset < self.durable]
        self.history = [entry for entry in self.history if entry.offset < self.durable]
        self.end = self.durable
        self.waiting.clear()
        self.slices = None
        self.coordinator = self.rebuilt(self.log)
        self.newest_generation = 0
        for entry in self.log:
            key = read_key(entry.key) if entry.outcome is None else None
            if key is not None and not isinstance(key, OffsetKey) and key.group_id == "g":
                value = None if entry.value is None else read_group_value(entry.value)
                self.newest_generation = 0 if value is None else value.generation
                members = () if value is None else value.members
                self.places = {m.group_instance_id: m.member_id for m in members if m.group_instance_id}
        self.assigned = {g: work for g, work in self.assigned.items() if g <= self.newest_generation}
        for client in self.clients:
            if client.generation > self.newest_generation:
                client.generation = -1
        self.carry_out(self.coordinator.finish_replay(self.now_ms))

    @rule(trimmed=st.booleans(), lost=st.integers(0, 5))
    def checkpoint(self, trimmed: bool, lost: int) -> None:
        """Write a checkpoint as a whole, of which a crash may lose the last records unless the log is trimmed."""
        self.slices = None  # only one is written at a time
        begin = self.end
        self.log, trim_before = self.checkpointed()
        self.end = self.log[-1].offset + 1 if self.log else self.end
        if trimmed:
            self.durable = self.end
            self.log = [entry for entry in self.log if entry.offset >= trim_before]
        elif self.durable == begin:
            self.durable = max(begin, self.end - lost)

    @rule(count=st.integers(1, 4))
    def checkpoint_slice(self, count: int) -> None:
        """Begin a checkpoint, or write its next slice; other records come between. At its end the log is trimmed."""
        if self.slices is None:
            self.slices = self.end, checkpoint_of(self.coordinator)
        trim_before, items = self.slices
        taken = list(itertools.islice(items, count))
        for owner, (key, value) in itertools.chain(*taken):
            self.log.append(Entry(self.end, key, value, owner))
            self.end += 1
        if len(taken) < count:
            self.slices = None
            self.durable = self.end
            self.log = [entry for entry in self.log if entry.offset >= trim_before]

    # -- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def offsets_are_those_of_the_history(self) -> None:
        for group in GROUPS:
            fetched = self.coordinator.fetch_offsets(group, PARTITIONS).answer
            stable = self.coordinator.fetch_offsets(group, PARTITIONS, require_stable=True).answer
            for partition in PARTITIONS:
                offset, is_pending = offset_in(self.history, group, partition)
                assert fetched[partition].offset == offset
                assert (stable[partition].code is ErrorCode.unstable_offset_commit) == is_pending

    @invariant()
    def the_log_says_what_is_in_memory(self) -> None:
        """As it is, and as it would be if it were trimmed now; also of what open transactions would come to."""
        log, trim_before = self.checkpointed()
        trimmed = [entry for entry in log if entry.offset >= trim_before]
        rebuilt = [self.rebuilt(self.log), self.rebuilt(log), self.rebuilt(trimmed)]
        for coordinator in rebuilt:
            assert live(coordinator) == live(self.coordinator)
            assert pending_values(coordinator) == pending_values(self.coordinator)
        for producer_id in PRODUCERS:
            for coordinator in rebuilt:
                coordinator.txn_ended(producer_id, commit=True)
            assert live(rebuilt[0]) == live(rebuilt[1]) == live(rebuilt[2])

    @invariant()
    def groups_are_consistent(self) -> None:
        for group in self.coordinator.table.groups.values():
            members = group.members
            assert group.joined_count <= self.config.group_size_max
            assert (group.leader_id is None) == (not members)
            assert group.leader_id is None or group.leader_id in members
            instances = {
                m.group_instance_id: m.member_id for m in members.values() if m.group_instance_id is not None
            }
            assert group.static_ids == instances
            assert group.pending_syncs <= set(members)
            assert not set(group.pending_joins) & set(members)
            preparing, completing = (
                ClassicGroupState.PREPARING_REBALANCE,
                ClassicGroupState.COMPLETING_REBALANCE,
            )
            if group.state is ClassicGroupState.EMPTY:
                assert not members
            if group.state is not preparing:
                assert all(member.join_token is None for member in members.values())
            if group.state is not completing:
                assert all(member.sync_token is None for member in members.values())
            deadlines = self.coordinator.table.deadlines
            assert (deadlines.get(group.alarm(Due.JOIN)) is not None) == (group.state is preparing)
            assert (deadlines.get(group.alarm(Due.SYNC)) is not None) == bool(group.pending_syncs)
            for member in members.values():
                session = group.alarm(Due.SESSION, member.member_id)
                assert deadlines.get(session) is not None or not member.can_time_out
            assert deadlines.get(group.alarm(Due.OFFSETS)) is not None

    @invariant()
    def every_waiting_request_is_known_to_its_group(self) -> None:
        tokens = [
            token
            for group in self.coordinator.table.groups.values()
            for member in group.members.values()
            for token in (member.join_token, member.sync_token)
            if token is not None
        ]
        assert sorted(tokens) == sorted(self.waiting)  # type: ignore[type-var]

    def teardown(self) -> None:
        self.advance(3_600_000)
        assert not self.waiting


class OffsetsLife(Life):
    """Offsets of groups without members."""

    @rule(group=OFTEN_G, offset=st.integers(0, 999), which=OFTEN_T)
    def commit(self, group: str, offset: int, which: tuple[str, int]) -> None:
        decision = self.coordinator.commit_offsets(group, {which: OffsetCommit(offset)}, now_ms=self.now_ms)
        self.carry_out(decision)

    @rule(
        who=st.none() | st.integers(0, 5),
        group=OFTEN_G,
        producer_id=OFTEN_1,
        offset=st.integers(0, 999),
        which=st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True),
    )
    def commit_in_transaction(
        self, who: int | None, group: str, producer_id: int, offset: int, which: list[tuple[str, int]]
    ) -> None:
        membership = CommittingMember()
        if who is not None:
            client = self.clients[who]
            membership = CommittingMember(client.member_id, client.generation, client.instance_id)
        decision = self.coordinator.txn_commit_offsets(
            group, {partition: OffsetCommit(offset) for partition in which}, membership, now_ms=self.now_ms
        )
        for key, value in decision.records:
            self.append(key, value, producer_id)
        self.coordinator.txn_offsets_appended(producer_id, decision.records, now_ms=self.now_ms)

    @rule(producer_id=OFTEN_1, outcome=st.booleans())
    def end_transaction(self, producer_id: int, outcome: bool) -> None:
        entry = Entry(self.end, producer_id=producer_id, outcome=outcome)
        self.log.append(entry)
        self.history.append(entry)
        self.end += 1
        self.coordinator.txn_ended(producer_id, commit=outcome)

    @rule(group=OFTEN_G, which=OFTEN_T)
    def delete_offset(self, group: str, which: tuple[str, int]) -> None:
        self.carry_out(self.coordinator.delete_offsets(group, [which], now_ms=self.now_ms))

    @rule(topic=st.sampled_from(["t", "u"]))
    def delete_topic(self, topic: str) -> None:
        for decision in self.coordinator.topic_deleted(topic, now_ms=self.now_ms):
            self.carry_out(decision)

    @rule()
    def delete_groups(self) -> None:
        codes = self.carry_out(self.coordinator.delete_groups(GROUPS, now_ms=self.now_ms))
        if codes["g"] is ErrorCode.none:
            self.newest_generation = 0
            self.assigned.clear()


class GroupLife(Life):
    """Members, and their commits."""

    # -- members -----------------------------------------------------------------------------------------------

    clients_ = st.integers(0, 5)

    @rule(
        who=clients_, protocols=st.sampled_from(["range", "range,sticky", "sticky,range"]), anew=st.booleans()
    )
    def join(self, who: int, protocols: str, anew: bool) -> None:
        client = self.clients[who]
        if anew and client.instance_id is not None:
            client.member_id = ""
        self.count += 1
        token = self.count
        self.waiting[token] = (client, None)
        request = JoinRequest(
            group_id="g",
            member_id=client.member_id,
            fresh_id=str(self.count),
            protocol_type="consumer",
            protocols=tuple((name, b"") for name in protocols.split(",")),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=5_000 + 1_000 * who,
            group_instance_id=client.instance_id,
            client_id=client.name,
            knows_member_id_required=client.version >= 4,
            knows_skip_assignment=client.version >= 9,
        )
        self.carry_out(self.coordinator.join(request, token, now_ms=self.now_ms))

    @rule(who=clients_, forgetful=st.booleans())
    def sync(self, who: int, forgetful: bool) -> None:
        client = self.clients[who]
        self.count += 1
        token = self.count
        members = client.members[1:] if forgetful else client.members
        request = SyncRequest(
            group_id="g",
            member_id=client.member_id,
            generation=client.generation,
            group_instance_id=client.instance_id,
            assignments={m: f"{client.generation}/{self.count}/{m}".encode() for m in members},
        )
        self.waiting[token] = (client, request)
        self.carry_out(self.coordinator.sync(request, token, now_ms=self.now_ms))

    @rule(who=clients_)
    def heartbeat(self, who: int) -> None:
        client = self.clients[who]
        code = self.carry_out(
            self.coordinator.heartbeat(
                "g",
                client.member_id,
                client.generation,
                group_instance_id=client.instance_id,
                now_ms=self.now_ms,
            )
        )
        if code is ErrorCode.none:
            assert client.generation == self.newest_generation
            return
        client.next = "join"
        if code in (ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id):
            client.member_id = ""

    @rule(
        who=st.sets(clients_, min_size=1),
        rounds=st.integers(1, 6),
        step_ms=st.sampled_from([0, 0, 1_000, 3_000]),
    )
    def behave(self, who: set[int], rounds: int, step_ms: int) -> None:
        """Some clients do, several times over, what a client does next; nobody asks twice at once."""
        for _ in range(rounds):
            for one in sorted(who):
                client = self.clients[one]
                if any(client is waiting for waiting, _ in self.waiting.values()):
                    continue
                if client.next == "join":
                    self.join(one, "range", anew=False)
                elif client.next == "sync":
                    self.sync(one, forgetful=False)
                else:
                    self.heartbeat(one)
            self.advance(step_ms)

    @rule(who=st.integers(3, 5))
    def start_anew(self, who: int) -> None:
        """A static member has forgotten its id; its former self may still be waiting."""
        self.clients[who].member_id = ""
        self.join(who, "range", anew=True)

    @rule(who=clients_)
    def lose_or_find_connection(self, who: int) -> None:
        self.clients[who].is_deaf = not self.clients[who].is_deaf

    @rule(who=clients_, as_operator=st.booleans())
    def leave(self, who: int, as_operator: bool) -> None:
        client = self.clients[who]
        member_id = "" if as_operator else client.member_id
        leaving = LeavingMember(member_id, client.instance_id)
        self.carry_out(self.coordinator.leave("g", [leaving, leaving], now_ms=self.now_ms))

    @rule(who=clients_, offset=st.integers(0, 999), which=OFTEN_T, retention=st.booleans())
    def commit_as_member(self, who: int, offset: int, which: tuple[str, int], retention: bool) -> None:
        client = self.clients[who]
        membership = CommittingMember(client.member_id, client.generation, client.instance_id)
        codes = self.carry_out(
            self.coordinator.commit_offsets(
                "g",
                {which: OffsetCommit(offset, 3)},
                membership,
                retention_ms=10**12 if retention else -1,
                now_ms=self.now_ms,
            )
        )
        if codes[which] is ErrorCode.none and client.generation >= 0:
            assert client.generation == self.newest_generation


def test_a_static_member_that_missed_a_generation_gets_its_work_when_it_starts_anew() -> None:
    life = GroupLife()
    dynamic, static = 1, 3
    for _ in range(2):
        life.behave({dynamic, static}, 6, 1_000)
    life.heartbeat(static)
    life.join(dynamic, "range,sticky", anew=False)
    life.advance(9_000)  # the join phase ends without the static member, whose session goes on
    assert life.newest_generation == life.clients[dynamic].generation > life.clients[static].generation
    former = life.clients[static].member_id
    assert former in life.clients[dynamic].members
    life.sync(dynamic, forgetful=False)
    life.start_anew(static)
    life.sync(static, forgetful=False)
    anew = life.clients[static].member_id
    assert life.assigned[life.newest_generation][anew].endswith(former.encode())
    life.the_log_says_what_is_in_memory()
    life.groups_are_consistent()


def checkpoint_of(coordinator: GroupCoordinator) -> Iterator[list[OwnedRecord]]:
    """The items of a checkpoint. Other records may come between two items, and not within one."""
    state = coordinator.table.live_state()
    yield from ([OwnedRecord(None, record)] for record in state.rest)
    yield from state.ordered


def live(coordinator: GroupCoordinator) -> list[list[OwnedRecord]]:
    return sorted(checkpoint_of(coordinator), key=repr)


def offset_in(history: list[Entry], group: str, partition: tuple[str, int]) -> tuple[int, bool]:
    """The committed offset (-1 if none), and whether a transaction that is open may change it."""
    offset, is_pending = -1, False
    for at, entry in enumerate(history):
        if entry.outcome is not None:
            continue
        key = read_key(entry.key)
        if not isinstance(key, OffsetKey) or (key.group_id, (key.topic, key.partition)) != (group, partition):
            continue
        if entry.value is None:
            offset, is_pending = -1, False
            continue
        later = history[at + 1 :]
        ends = (
            other.outcome
            for other in later
            if other.outcome is not None and other.producer_id == entry.producer_id
        )
        outcome = True if entry.producer_id is None else next(ends, None)
        if outcome:
            offset = read_offset_value(entry.value).offset
        is_pending = is_pending or outcome is None
    return offset, is_pending


def pending_values(coordinator: GroupCoordinator) -> Any:
    return {
        (producer_id, group_id, partition): offset.value
        for producer_id in PRODUCERS
        for group_id in GROUPS
        for partition, offset in coordinator.table.offsets.pending(producer_id, group_id).items()
    }


TestOffsetsLife = OffsetsLife.TestCase
TestOffsetsLife.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
