"""Long conversations that seeds have drawn: everything that a coordinator said is kept, and has to stay.

The models prove that promises are kept; these files prove that nothing else has changed: each answer, each byte of each
record, each marker and each deadline. `REWRITE=1` writes what came instead of comparing; the diff is for reading. After a
line of words stands a digest of what the line does not say.
"""

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stablelog.coordinators import deadline_queue
from stablelog.coordinators.consumer_groups import coordinator as group_coordinator
from stablelog.coordinators.consumer_groups import expiry as group_expiry
from stablelog.coordinators.consumer_groups.answers import JoinAnswer, SyncAnswer
from stablelog.coordinators.transactions import idle_ids, spare_ids, table
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.joint.answers import ChildShown
from stablelog.coordinators.transactions.joint.name_checks import is_of_run
from stablelog.coordinators.transactions.marker_orders import MarkerOrder
from stablelog.coordinators.transactions.producer_ids import ProducerIds
from stablelog.coordinators.transactions.records import transaction_key
from stablelog.errors import RefusedError
from stablelog.wire.extension.children import JointName, child_of
from tests.coordinators.consumer_groups import test_scripts as test_group_scripts
from tests.coordinators.transactions import test_scripts as test_transaction_scripts

__all__ = ["Transactions", "child_of", "transaction_key", "write"]

DRAWN = Path(__file__).parent / "drawn"


def digest(*contents: Any) -> str:
    """A word for everything that is given."""
    told = repr([sorted(one) if isinstance(one, frozenset | set) else one for one in contents])
    return "#" + hashlib.sha256(told.encode()).hexdigest()[:6]


class Identity(NamedTuple):
    """A producer id and epoch, under the name that the digests of the recorded conversations contain."""

    producer_id: int
    producer_epoch: int


class Transactions(test_transaction_scripts.Conversation):
    """A conversation with the transaction coordinator, with more to ask and more told."""

    def __init__(self) -> None:
        self.is_durable: bool | None = None
        self.counted = ""
        super().__init__()

    def new_coordinator(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            TransactionConfig(**self.settings),
            coordinator_epoch=self.leader_epoch,
            producer_ids=ProducerIds(self.block),
            end_offsets=lambda targets: [self.ends.get(target, 0) for target in targets],
            marker_barrier=lambda: lambda: self.is_durable,
        )

    def show_record(self, key: bytes, value: bytes | None) -> None:
        super().show_record(key, value)
        self.lines[-1] += f" {digest(key, value)}"

    def show_marker(self, order: MarkerOrder, partitions: Any) -> None:
        count = len(self.lines)
        super().show_marker(order, partitions)
        if len(self.lines) > count:
            told = [*order._replace(partitions=frozenset(), ends={}), sorted(order.ends.items())]
            self.lines[-1] += f" {digest(told)}"

    def turn_away(self, name: str, **given: str) -> None:
        """`turn-away A as=0/1`: a partition was refused to A's transaction."""
        producer = self.producers[name]
        self.coordinator.mark_abort_only(producer.transactional_id, *self.identity(producer, given))

    def await_sequences(self) -> None:
        """`await-sequences`: no commit is decided."""
        self.coordinator.table.sequences.are_known = False

    def sequences_met(self) -> None:
        """`sequences-met`: commits are decided again."""
        self.coordinator.table.sequences.are_known = True

    def met_sequence(self, sequence: str) -> None:
        """`met-sequence 7`: a partition has it in a marker."""
        self.lines.append(f"is new: {self.coordinator.table.sequences.observe_marker(int(sequence))}")

    def durable(self, answer: str) -> None:
        """`durable yes`, `durable no`, `durable never`: whether all markers are, for whoever asks from now on."""
        self.is_durable = {"yes": True, "no": False, "never": None}[answer]

    def clock(self, when: str) -> None:
        """`clock 5s`: the clock was set, and the coordinator does not look at it."""
        self.now_ms = test_transaction_scripts.milliseconds(when)

    def opened(self) -> None:
        """`opened`: all partitions that can be opened have been."""
        self.coordinator.table.partitions_opened()

    def has_open(self, key: str, version: str, *names: str, run: str | None = None) -> None:
        """`has-open k 1 A B run=r1`: whether one of the children is open."""
        children = [
            ChildShown(self.producers[n].transactional_id, *self.producers[n].identity) for n in names
        ]
        joint = self.coordinator.joint
        found = any(map(joint.is_open, children)) or any(
            is_of_run(child, int(version), run or "-") and joint.is_ongoing(transactional_id)
            for transactional_id, child in joint.children(JointName("", key))
        )
        self.lines.append(f"has open: {found}")

    def knows(self, text: str, producer_id: str) -> None:
        """`knows t-0 4`: whether an open transaction of the producer id may be one of this group."""
        target = test_transaction_scripts.partition(text)
        self.lines.append(f"knows: {self.coordinator.table.may_own_transaction(target, int(producer_id))}")

    def told(self, command: str) -> list[str]:
        """What comes of a command, and what can be counted afterwards."""
        self.lines = []
        self.run(command)
        c = self.coordinator
        counts = (
            c.table.sequences.last,
            c.table.resolved_sequence,
            c.table.item_count,
            c.table.change_count,
            len(c.table),
        )
        counted = f"= {' '.join(map(str, counts))} {digest(sorted(c.table.history.partitions().items()), *self.kept())}"
        if counted != self.counted:
            self.counted = counted
            self.lines.append(counted)
        return self.lines

    def kept(self) -> Iterator[Any]:
        """What takes memory, and what is done because of it."""
        known = self.coordinator.table
        yield sorted((name, Identity(*producer)) for name, producer in known.abort_only.items())
        yield len(known.history)
        yield known.live_state() is None

    def at(self, when: str, most: str = "100") -> None:
        """`at 10s most=1`: at most so much is done at once."""
        self.now_ms = test_transaction_scripts.milliseconds(when)
        for work in (self.coordinator.abort_overdue, self.coordinator.forget_expired):
            decision = work(self.now_ms, int(most))
            self.carry_out(decision, "more" if decision.answer else "")

    def last(self) -> list[str]:
        """What is known at the end."""
        c, self.lines = self.coordinator, []
        self.lines += [f"{digest(key, value)}" for key, value in c.table.checkpoint()]
        return self.lines

    def list(self, **given: str) -> None:
        super().list(**given)
        with contextlib.suppress(RefusedError):
            slices, _ = self.coordinator.table.list_transactions(
                id_pattern=given.get("ids"), now_ms=self.now_ms
            )
            count = len([*slices])
            states = given["states"].split(",") if "states" in given else ()
            duration_ms = test_transaction_scripts.milliseconds(given["longer"]) if "longer" in given else -1
            slices, _ = self.coordinator.table.list_transactions(
                states=states, duration_ms=duration_ms, now_ms=self.now_ms
            )
            self.lines.append(f"looked at {len([*slices])} slices of {count}")


class Groups(test_group_scripts.Conversation):
    """A conversation with the group coordinator, with more told."""

    def __init__(self) -> None:
        super().__init__()
        self.deadline_ms: int | None = None
        self.deadline_count = 0

    def tell(self, client: str, what: str, answer: JoinAnswer | SyncAnswer) -> str:
        return f"{super().tell(client, what, answer)} {digest(answer)}"

    def describe(self, group: str) -> str:
        return f"{super().describe(group)} {digest(self.coordinator.describe([group]).answer)}"

    def fetch(self, group: str, *asked: str) -> str:
        found = self.coordinator.fetch_offsets(group, None, require_stable="stable" in asked).answer
        return f"{super().fetch(group, *asked)} {digest(found)}".strip()

    def told(self, command: str) -> list[str]:
        """What comes of a command: what is said, what is logged, and when something is due."""
        begin = len(self.log)
        lines = test_group_scripts.run(self, command).splitlines()
        if command.startswith(("crash", "trim")):
            begin = len(self.log)
        lines += [f"log {test_group_scripts.logged(*entry)} {digest(entry)}" for entry in self.log[begin:]]
        if (count := len(self.coordinator.table.deadlines)) != self.deadline_count:
            self.deadline_count = count
            lines.append(f"= deadlines {count}")
        if (deadline_ms := self.coordinator.next_deadline_ms()) != self.deadline_ms:
            self.deadline_ms = deadline_ms
            lines.append(f"= due {deadline_ms}")
        return lines

    def last(self) -> list[str]:
        """What is known at the end."""
        state = self.coordinator.table.live_state()
        assert state.undivided == []
        records = [digest(key, value) for key, value in state.rest]
        return records + [digest(owner, *record) for owner, record in itertools.chain(*state.ordered)]


LIMITS = (
    (idle_ids, "DECODED_MAX", 2),
    (table, "UNDIVIDED_MAX", 2),
    (table, "LISTED_AT_ONCE", 2),
    (spare_ids, "WAITING_MAX", 2),
    (group_coordinator, "TICK_ALARMS_MAX", 2),
    (group_coordinator, "TICK_RECORDS_MAX", 2),
    (group_expiry, "TICK_RECORDS_MAX", 2),
    (deadline_queue, "COMPACT_SIZE_MIN", 2),
)
KINDS = {"transactions": Transactions, "groups": Groups}


@contextlib.contextmanager
def small_limits() -> Iterator[None]:
    """Have every limit of what is kept be met."""
    with pytest.MonkeyPatch.context() as patch:
        for module, name, limit in LIMITS:
            patch.setattr(module, name, limit)
        yield


def came(path: Path, text: str) -> str:
    """The commands of a file with what comes of them now."""
    lines = []
    with small_limits():
        conversation = KINDS[path.stem.partition("_")[0]]()
        for line in text.splitlines():
            if line.startswith("> "):
                lines += [line, *conversation.told(line[2:])]
        lines += conversation.last()
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Write a file with what comes of its commands."""
    path.write_text(came(path, text))


@pytest.mark.parametrize("path", sorted(DRAWN.glob("*.txt")), ids=lambda path: path.stem)
def test_all_that_was_said_is_said_again(path: Path) -> None:
    text = path.read_text()
    said = came(path, text)
    if os.environ.get("REWRITE"):
        path.write_text(said)
    assert said.splitlines() == text.splitlines()


def test_there_are_conversations() -> None:
    assert len(list(DRAWN.glob("*.txt"))) >= 8
