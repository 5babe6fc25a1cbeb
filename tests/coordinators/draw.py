"""Draw long conversations with the coordinators: commands for `test_drawn_conversations`.

`python -m tests.coordinators.draw` writes `tests/coordinators/drawn/*.txt` with commands that seeds choose. Clients mostly
do what a client does next. Some show a former identity, come late or repeat themselves, and times are often those at which
something becomes due. The test runs the commands of the files, so that a conversation stays the same when this module changes.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tests.coordinators import test_drawn_conversations as told

DRAWN = Path(__file__).parent / "drawn"
TRANSACTIONS, GROUPS = range(12), range(12)
COMMANDS = 300
PATTERNS = (
    "(",
    "a{1,2}",
    "(a)*",
    "(?:a)",
    r"\d",
    "a*b*",
    "a*b*c*",
    "a+b{2,}c*",
    "a" * 255,
    "a" * 256,
    "[*]+",
)


class Transactions:
    """Chooses what is asked of a transaction coordinator."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.conversation = told.Transactions()
        self.seed = seed
        self.names = 0
        self.former: dict[str, list[tuple[int, int]]] = {}
        self.keys = ["k", "l/m"]
        self.planned: list[Callable[[], str]] = []
        self.versions = dict.fromkeys(self.keys, 0)

    def first(self) -> list[str]:
        """The settings."""
        strict = " strict" if self.seed % 6 == 5 else ""
        two_phase = " two-phase=off" if self.seed % 6 == 4 else ""
        block = (2, 3, 1000)[self.seed % 3]
        return [f"config{strict}{two_phase} block={block} expiration=20s timeout-max=90s"]

    def next(self) -> str:
        """The next command."""
        conversation, chance = self.conversation, self.chance
        if self.planned and chance.random() < 0.8:
            return self.planned.pop(0)()
        weighted: list[tuple[float, Callable[[], str]]] = [
            (6, self.init),
            (0.5, lambda: f"init I{self.seed} id= version={chance.choice((0, 4, 6))}"),
            (0.6, lambda: f"durable {chance.choice(('yes', 'yes', 'no', 'never'))}"),
            (2.5, self.odd),
            (1, self.has_open),
            (10, self.write),
            (3, self.add),
            (10, self.end),
            (5, self.time),
            (1, lambda: f"force-abort {self.an_id()}"),
            (1.6, self.crash),
            (0.4, lambda: "checkpoint"),
            (1, lambda: f"close t-{chance.randrange(4)}"),
            (4 if conversation.closed else 0, self.open),
            (0.6, lambda: f"describe {self.an_id()}"),
            (1.5, self.listing),
            (1, lambda: "watermarks"),
            (0.5, self.exhaust),
            (1.5, self.turn_away),
            (0.6, self.sequences),
            (
                0.5,
                lambda: (
                    f"met-sequence {conversation.coordinator.table.sequences.last + chance.randint(-1, 3)}"
                ),
            ),
            (1, self.knows),
            (3.5, self.child),
            (2, self.begin_joint),
            (3, self.commit_joint),
            (1.5, self.abort_joint),
            (0.6, self.offsets),
            (0.6, self.kafka),
        ]
        _, choices = zip(*weighted, strict=True)
        return chance.choices(choices, [weight for weight, _ in weighted])[0]()

    # -- whom, and as whom -------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        return sorted({producer.transactional_id for producer in self.conversation.producers.values()})

    def an_id(self) -> str:
        return self.chance.choice([*self.ids(), "nobody"]) or "nobody"

    def a_producer(self) -> str | None:
        names = list(self.conversation.producers)[-8:]
        return self.chance.choice(names) if names else None

    def shown(self, name: str) -> str:
        """Now and then another identity than the producer's own."""
        conversation, chance = self.conversation, self.chance
        mine = conversation.producers[name].identity
        former = self.former.setdefault(name, [])
        if mine not in former:
            former.append(mine)
        if chance.random() > 0.15:
            return ""
        producer_id, epoch = chance.choice(former[-3:])
        epoch += chance.choice((-1, 0, 0, 0, 1))
        return f" as={producer_id + chance.choice((0, 0, 0, 1))}/{epoch}"

    def partitions(self) -> str:
        count = self.chance.choice((1, 1, 2))
        return " ".join(sorted(self.chance.sample([f"t-{at}" for at in range(4)], count)))

    # -- commands ----------------------------------------------------------------------------------------------

    def init(self) -> str:
        chance = self.chance
        name = self.a_producer()
        flags = chance.choice(("", "", "", " 2pc", " keep", " 2pc keep"))
        timeout = f" timeout={chance.choice(('0s', '1ms', '1s', '5s', '5s', '30s', '90s', '91s'))}"
        if name is not None and chance.random() < 0.6:
            own = chance.choice((" own", " own", ""))
            return f"init {name}{own}{'' if own else self.shown(name)}{flags}{timeout}{self.version((3, 4, 5, 6, 6))}"
        self.names += 1
        dialect = chance.choice((" v1", ""))
        return f"init P{self.names} id={chance.choice('abc')}{dialect}{flags}{timeout}{self.version((3, 4, 5, 6, 6))}"

    def version(self, known: tuple[int, ...]) -> str:
        return f" version={self.chance.choice(known)}" if self.chance.random() < 0.4 else ""

    def add(self) -> str:
        name = self.a_producer()
        return self.init() if name is None else self.add_of(name)

    def add_of(self, name: str) -> str:
        return f"add {name} {self.partitions()}{self.shown(name)}{self.version((0, 1, 2, 3, 4))}"

    def write(self) -> str:
        name = self.a_producer()
        return self.init() if name is None else self.write_of(name)

    def write_of(self, name: str) -> str:
        return f"write {name} {self.partitions()}{self.shown(name)}{self.version((9, 10, 11, 12))}"

    def end(self) -> str:
        name = self.a_producer()
        return self.init() if name is None else self.end_of(name)

    def end_of(self, name: str) -> str:
        chance = self.chance
        verb = chance.choice(("commit", "commit", "abort"))
        return f"{verb} {name}{self.shown(name)}{self.version((1, 2, 3, 4, 5, 5))}{' open-only' * (chance.random() < 0.15)}"

    def time(self) -> str:
        """Often when something becomes due, or just before."""
        conversation, chance = self.conversation, self.chance
        due = []
        for transactional_id in self.ids():
            found = conversation.coordinator.table.get(transactional_id)
            if found is not None:
                due += [found.start_ms + found.timeout_ms, found.update_ms + 20_000]
        due = [ms - less for ms in due for less in (0, 1) if ms - less >= conversation.now_ms]
        most = f" most={chance.choice((0, 1, 1, 2))}" if chance.random() < 0.3 else ""
        if due and chance.random() < 0.5:
            return f"at {min(due) if chance.random() < 0.7 else chance.choice(due)}ms{most}"
        return f"at {conversation.now_ms + chance.choice((1, 1, 10, 999, 1000, 4000, 20_000))}ms{most}"

    def crash(self) -> str:
        """The broker starts again, now and then with a clock that was set back; its clients go on, and partitions open."""
        chance, conversation = self.chance, self.conversation
        lost = min(chance.choice((0, 0, 1, 2, 3)), len(conversation.log))
        some = [self.write, self.end, self.add, self.init, self.knows, self.time, self.commit_joint]
        for at in range(4):
            self.planned += chance.choices(some, k=chance.choice((0, 0, 1, 2)))
            self.planned.append(partial(self.open, at))
        self.planned += [lambda: "opened"] * (chance.random() < 0.5)
        if chance.random() < 0.2:
            self.planned.insert(0, lambda: f"crash lose={lost}")
            return f"clock {max(conversation.now_ms - chance.choice((1, 1000, 10_000)), 0)}ms"
        return f"crash lose={lost}"

    def open(self, at: int | None = None) -> str:
        conversation, chance = self.conversation, self.chance
        topic, index = ("t", at) if at is not None else chance.choice(sorted(conversation.closed))
        found = set()
        for _ in range(chance.choice((0, 0, 1, 1, 2))):
            name = self.a_producer()
            if name is None:
                break
            described = conversation.coordinator.table.get(conversation.producers[name].transactional_id)
            identities = [conversation.producers[name].identity, *self.former.get(name, ())]
            if described is not None:
                identities += [(described.producer_id, described.producer_epoch - less) for less in (0, 1)]
                identities.append(described.client)
            producer_id, epoch = chance.choice(identities)
            if producer_id < 0:
                continue
            end = conversation.ends.get((topic, index), 0)
            place = f"@{max(end + chance.choice((-2, -1, 0, 1)), 0)}/{chance.randint(0, conversation.leader_epoch)}"
            found.add((producer_id, f"{producer_id}/{max(epoch, 0)}{place if chance.random() < 0.9 else ''}"))
        words = dict(sorted(found))
        return " ".join([f"open {topic}-{index}", *words.values()])

    def listing(self) -> str:
        conversation, chance = self.conversation, self.chance
        words = ["list"]
        if chance.random() < 0.4:
            words.append(
                "states="
                + chance.choice(
                    ("Ongoing", "Empty", "CompleteCommit,Ongoing", "PrepareAbort,Dead", "Nothing")
                )
            )
        if chance.random() < 0.3:
            words.append(f"pids={chance.randrange(4)},{chance.randrange(9)}")
        if chance.random() < 0.4:
            ages = [0, 1000]
            for transactional_id in self.ids():
                found = conversation.coordinator.table.get(transactional_id)
                if found is not None and found.start_ms >= 0:
                    ages += [max(conversation.now_ms - found.start_ms - less, 0) for less in (0, 1)]
            words.append(f"longer={chance.choice(ages)}ms")
        if chance.random() < 0.3:
            words.append(f"ids={chance.choice(('a', '[ab]', '.*', 'c|a', 'nobody'))}")
        return " ".join(words)

    def exhaust(self) -> str:
        described = {one: self.conversation.coordinator.table.get(one) for one in self.ids()}
        known = [
            one
            for one, d in described.items()
            if d is not None and (d.producer_id, d.producer_epoch) == d.client
        ]
        logged = {key for records in self.conversation.log for key, _ in records}
        known = [one for one in known if told.transaction_key(one) in logged]
        if not known:
            return "watermarks"
        return f"exhaust {self.chance.choice(known)} {self.chance.choice((32764, 32765, 32766))}"

    def turn_away(self) -> str:
        name = self.a_producer()
        if name is None:
            return "watermarks"
        asks = (self.write_of, self.end_of, self.add_of)
        self.planned += [
            partial(self.chance.choice(asks), name) for _ in range(self.chance.choice((1, 2, 3)))
        ]
        return f"turn-away {name}{self.shown(name)}"

    def odd(self) -> str:
        """What no client asks, or only a broken one."""
        name = self.a_producer()
        known = f"init {name or 'Odd'}"
        return self.chance.choice(
            (
                f"{known} as=-1/0",
                f"{known} as=0/-1",
                f"{known} as=-2/-1",
                f"{known} as=-7/3",
                f"{known} as=-2/-2",
                "abort-joint k -1",
                f"abort-joint {'k' * 256} 0 run=r1",
                f"commit-joint l/m {self.versions['l/m']} group=!",
                "begin-joint k -1",
                f"begin-joint k {2**63 - 1}",
                f"begin-joint k {2**63}",
                f"begin-joint {'k' * 255} 0",
                f"begin-joint {'k' * 256} 0",
                f"begin-joint l/m {self.versions['l/m']} {'r' * 100}",
                f"begin-joint l/m {self.versions['l/m']} {'r' * 101}",
                f"commit-joint l/m {self.versions['l/m']} digest={'d' * 1000}",
                f"commit-joint l/m {self.versions['l/m']} digest={'d' * 1001}",
                f"commit-joint l/m {self.versions['l/m']} group=other",
                f"commit-joint l/m {self.versions['l/m']} group=-",
                f"commit-joint l/m {self.versions['l/m']} {name or ''}",
                f"list ids={self.chance.choice(PATTERNS)}",
            )
        )

    def has_open(self) -> str:
        key, version = self.place()
        if self.chance.random() < 0.5:
            return f"has-open {key} {version} run={self.a_run()}"
        return " ".join([f"has-open {key} {version}", *self.children(key, version)])

    def sequences(self) -> str:
        return self.chance.choice(("await-sequences", "sequences-met", "sequences-met"))

    def knows(self) -> str:
        return f"knows t-{self.chance.randrange(4)} {self.chance.randrange(8)}"

    # -- joint commits -----------------------------------------------------------------------------------------

    def place(self) -> tuple[str, int]:
        key = self.chance.choice(self.keys)
        if self.chance.random() < 0.25:
            self.versions[key] += 1
        return key, max(self.versions[key] + self.chance.choice((-1, 0, 0, 0, 0, 1)), 0)

    def a_run(self) -> str:
        return self.chance.choice(("r1", "r1", "r2"))

    def child(self) -> str:
        key, version = self.place()
        self.names += 1
        dialect = self.chance.choice((" v1", "", ""))
        return f"child C{self.names} {key} {version} run={self.a_run()}{dialect} timeout={self.chance.choice(('5s', '30s'))}"

    def begin_joint(self) -> str:
        key, version = self.place()
        run = self.chance.choice(("", " r1", " r1", " r2"))
        order = f" order={self.chance.randrange(3)}" if run and self.chance.random() < 0.6 else ""
        return f"begin-joint {key} {version}{run}{order}"

    def children(self, key: str, version: int) -> list[str]:
        mine = [
            name
            for name, producer in self.conversation.producers.items()
            if (child := told.child_of(producer.transactional_id)) is not None
            and child.name.key == key
            and (child.version == version or self.chance.random() < 0.1)
            and producer.identity[0] >= 0
        ][-4:]
        return [name for name in mine if self.chance.random() < 0.7]

    def commit_joint(self) -> str:
        key, version = self.place()
        words = [f"commit-joint {key} {version}"]
        for name in self.children(key, version):
            as_ = self.shown(name)
            words.append(name + (as_.replace(" as", "") if as_ and self.chance.random() < 0.5 else ""))
        if self.chance.random() < 0.5:
            words.append(f"run={self.a_run()}")
        if self.chance.random() < 0.3:
            words.append(f"keep={self.chance.choice(('0s', '1s', '10s'))}")
        if self.chance.random() < 0.3:
            words.append("digest=d")
        return " ".join(words)

    def abort_joint(self) -> str:
        key, version = self.place()
        run = f" run={self.a_run()}" if self.chance.random() < 0.6 else ""
        return " ".join([f"abort-joint {key} {version}", *self.children(key, version)]) + run

    def offsets(self) -> str:
        key, version = self.place()
        return f"offsets {key} {version}"

    def kafka(self) -> str:
        self.names += 1
        self.planned.append(self.crash)
        label = self.chance.choice(("Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit"))
        shown = f"{self.chance.randint(50, 60)}/{self.chance.randrange(3)}"
        return f"kafka K{self.names} {label} {self.partitions()} as={shown} id={self.chance.choice('abk')} version={self.chance.choice((1, 2))}"


class Groups:
    """Chooses what is asked of a group coordinator."""

    CLIENTS: ClassVar = {
        "A": "",
        "B": "",
        "C": " version=3",
        "D": " instance=i",
        "E": " instance=i version=8",
        "F": " instance=j",
        "G": "",
        "H": " version=8",
    }

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.conversation = told.Groups()
        self.seed = seed
        self.kinds = dict.fromkeys(self.CLIENTS, " protocols=range")
        self.planned: list[Callable[[], str]] = []

    def first(self) -> list[str]:
        """The settings."""
        delay = ("0", "3s", "1s", "0", "2s", "1s")[self.seed % 6]
        size = ("100", "3", "4")[self.seed % 3]
        small = " group_metadata_size_max=250" if self.seed % 5 == 4 else ""
        settings = (
            f"initial_rebalance_delay_ms={delay} group_size_max={size} offsets_retention_ms=40s "
            f"offsets_check_interval_ms=7s offset_metadata_size_max=10 new_member_join_timeout_ms=20s{small}"
        )
        return [f"set {settings}"]

    def next(self) -> str:
        """The next command."""
        chance = self.chance
        if self.planned and chance.random() < 0.85:
            return self.planned.pop(0)()
        weighted: list[tuple[float, Callable[[], str]]] = [
            (4, self.agree),
            (2, self.join),
            (2, self.sync),
            (1.5, self.heartbeat),
            (1.2, self.leave),
            (4, self.time),
            (2.5, self.commit),
            (1.5, self.txn_commit),
            (1.5, lambda: f"end {chance.choice(('commit', 'abort'))} pid={chance.choice((7, 8))}"),
            (1.5, self.fetch),
            (0.4, lambda: f"delete-offsets {self.a_group()} t-0 {chance.choice(('t-1', 'u-0'))}"),
            (0.7, lambda: f"delete-topic {chance.choice('tu')}"),
            (0.9, lambda: f"delete {self.a_group()} {chance.choice(('h', 'nobody'))}"),
            (1, lambda: f"describe {chance.choice(('g', 'g', 's', 'h'))}"),
            (0.6, self.listing),
            (0.7, lambda: "crash"),
            (0.5, lambda: "trim"),
        ]
        _, choices = zip(*weighted, strict=True)
        return chance.choices(choices, [weight for weight, _ in weighted])[0]()

    def a_group(self) -> str:
        return self.chance.choice("ggggs")

    def a_client(self) -> str:
        return self.chance.choice(list(self.CLIENTS))

    def instance(self, client: str) -> str:
        known = [word for word in self.CLIENTS[client].split() if word.startswith("instance")]
        if self.chance.random() < 0.05:
            known = [self.chance.choice(("instance=i", "instance=j", "instance=none"))]
        return "".join(f" {word}" for word in known)

    def late(self, client: str) -> str:
        """Now and then a former generation, or another member's id."""
        chance, conversation = self.chance, self.conversation
        words = ""
        if chance.random() < 0.08:
            words += f" generation={chance.choice((conversation.generations.get(client, 0) + chance.choice((-1, 1)), 0))}"
        if chance.random() < 0.06:
            words += f" id={conversation.member_ids.get(self.a_client(), 'nobody')}"
        return words

    def agree(self) -> str:
        """Some clients do, in several rounds, what a client does next, until they have their work."""
        some = self.chance.sample(list(self.CLIENTS), self.chance.choice((1, 2, 2, 3, 4)))
        for _ in range(4):
            self.planned += [partial(self.behave, client) for client in some]
            self.planned += [self.time] * (self.chance.random() < 0.4)
        return self.behave(some[0])

    def behave(self, client: str) -> str:
        """What a client does next; it lets time pass while it waits."""
        conversation = self.conversation
        (described,) = conversation.coordinator.describe(["g"]).answer
        if client in {name for name, _ in conversation.waiting.values()}:
            return self.due()
        member_id = conversation.member_ids.get(client, "")
        if member_id in {member.member_id for member in described.members}:
            if described.state == "CompletingRebalance":
                return self.sync(client)
            if described.state == "Stable" and conversation.generations.get(client) is not None:
                return f"heartbeat g {client}{self.instance(client)}"
        group = conversation.coordinator.table.groups.get("g")
        is_known = group is not None and member_id in {*group.members, *group.pending_joins}
        return self.join(client, anew=not is_known)

    def due(self) -> str:
        due_ms = self.conversation.coordinator.next_deadline_ms()
        return self.time() if due_ms is None else f"at {max(due_ms, self.conversation.now_ms)}ms"

    def join(self, client: str = "", *, anew: bool | None = None) -> str:
        chance = self.chance
        group = "g" if client or chance.random() < 0.9 else "h"
        client = client or self.a_client()
        is_anew = chance.random() < 0.1 if anew is None else anew
        if chance.random() < 0.1:
            self.kinds[client] = chance.choice(
                (
                    " protocols=range,sticky",
                    " protocols=sticky,range",
                    " protocols=range",
                    " protocols=range topics=u",
                )
            )
        odd = ""
        if anew is None and chance.random() < 0.2:
            odd = chance.choice(
                (
                    " type=connect",
                    " session=5999ms",
                    " session=1800001ms",
                    " protocols=none",
                    " id=nobody",
                    " instance=j",
                )
            )
        session = chance.choice(("10s", "10s", "6s", "30s"))
        rebalance = chance.choice(("60s", "5s", "5s", "3s", "1s", "0s"))
        times = f" session={session} rebalance={rebalance}"
        words = f"join {group} {client}{' anew' * is_anew}{self.CLIENTS[client]}"
        return words + self.kinds[client] * ("protocols" not in odd) + times * ("session" not in odd) + odd

    def sync(self, client: str = "") -> str:
        chance, client = self.chance, client or self.a_client()
        known = self.conversation.member_ids
        work = [
            f"{name}=w{chance.randrange(99)}"
            for name in self.CLIENTS
            if name in known and chance.random() < 0.8
        ]
        protocol = " protocol=sticky" if chance.random() < 0.05 else ""
        late = self.late(client)
        return f"sync g {client} {' '.join(work)}{protocol}{late}{self.instance(client)}"

    def heartbeat(self) -> str:
        client = self.a_client()
        return f"heartbeat {'g' if self.chance.random() < 0.95 else 'nobody'} {client}{self.late(client)}{self.instance(client)}"

    def leave(self) -> str:
        chance = self.chance
        known = [name for name in self.CLIENTS if name in self.conversation.member_ids]
        names = chance.sample(known, min(len(known), chance.choice((1, 1, 2))))
        by_hand = chance.choice(("", "", " instance=i", " instance=none,j", " member=nobody"))
        return f"leave g {' '.join(names)}{by_hand}"

    def time(self) -> str:
        chance, now_ms = self.chance, self.conversation.now_ms
        due_ms = self.conversation.coordinator.next_deadline_ms()
        if due_ms is not None and chance.random() < 0.4:
            return f"at {max(due_ms - chance.choice((0, 1)), now_ms)}ms"
        return f"at {now_ms + chance.choice((1, 10, 100, 1000, 1000, 3000, 5000) + (20_000,) * (chance.random() < 0.2))}ms"

    def commit(self) -> str:
        chance = self.chance
        offsets = f" t-{chance.randrange(2)}={chance.randrange(99)}"
        if chance.random() < 0.3:
            offsets += f" u-0={chance.randrange(99)}"
        if chance.random() < 0.15:
            offsets += f" metadata={chance.choice((1, 10, 11))}"
        if chance.random() < 0.2:
            offsets += f" retention={chance.choice(('0s', '1s', '10s'))}"
        if chance.random() < 0.2:
            offsets += " version=8"
        if chance.random() < 0.4:
            return f"commit {self.a_group()}{offsets}"
        client = self.a_client()
        return f"commit g as {client}{offsets}{self.late(client)}{self.instance(client)}"

    def txn_commit(self) -> str:
        chance = self.chance
        words = f" pid={chance.choice((7, 8))} {chance.choice(('t-0', 't-1', 'u-0'))}={chance.randrange(99)}"
        if chance.random() < 0.4:
            return f"txn-commit {self.a_group()}{words}"
        client = self.a_client()
        return f"txn-commit g as {client}{words}{self.late(client)}{self.instance(client)}"

    def fetch(self) -> str:
        return f"fetch {self.a_group()}{self.chance.choice(('', ' stable', ' t-0 u-1', ' stable t-0 t-1'))}"

    def listing(self) -> str:
        states = self.chance.choice(
            ("", " states=stable", " states=empty,preparingrebalance", " states=Dead")
        )
        return f"list{states}{self.chance.choice(('', '', ' types=classic', ' types=consumer'))}"


def drawn(asker: Any, count: int) -> str:
    """A conversation: what was asked, without what came of it.

    A command that cannot be carried out ends it: a crash has taken away what the clients were told.
    """
    commands = asker.first()
    with told.small_limits():
        for command in commands:
            asker.conversation.told(command)
        while len(commands) < count:
            command = asker.next()
            try:
                asker.conversation.told(command)
            except Exception as error:
                print(f"{type(asker).__name__} {asker.seed} ends after {len(commands)}: {command}: {error!r}")
                break
            commands.append(command)
    return "".join(f"> {command}\n" for command in commands)


def main() -> None:
    """Write every conversation."""
    DRAWN.mkdir(exist_ok=True)
    for seed in TRANSACTIONS:
        told.write(DRAWN / f"transactions_{seed}.txt", drawn(Transactions(seed), COMMANDS))
    for seed in GROUPS:
        told.write(DRAWN / f"groups_{seed}.txt", drawn(Groups(seed), COMMANDS))


if __name__ == "__main__":
    main()
