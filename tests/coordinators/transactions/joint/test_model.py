"""Random histories of joint commits: drivers and tasks that fail, repeat themselves and come too late, and crashes.

The world is that of `test_transactions_model`, with its plain producers; here drivers are added, whose tasks write
children. Drivers of one key know nothing of each other: they write the same version twice, or an old one. What must
hold at any time: all children of a (key, version) that a commit has named are committed, with its one number, or none
of them; and nothing else of that version ever is. And whoever asks for the last version learns what it was made of, and
no driver loses a version to one that has started earlier.

In some worlds one decision ends one or two children, so that most joint commits are decided by several decisions, with
other requests, crashes and checkpoints in between.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import MarkerType
from stablelog.coordinators.transactions import ending as transaction_ending
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.coordinator import TransactionCoordinator
from stablelog.coordinators.transactions.ending import EPOCH_MAX
from stablelog.coordinators.transactions.joint.accepted_children import ENDED_AT_ONCE
from stablelog.coordinators.transactions.joint.answers import ChildShown, JointAnswer
from stablelog.coordinators.transactions.joint.coordinator import OFFSETS_TIMEOUT_MS
from stablelog.coordinators.transactions.joint.records import decode_joint
from stablelog.coordinators.transactions.marker_orders import MarkerOrder
from stablelog.coordinators.transactions.records import JointKey, TransactionKey, decode_transaction, read_key
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.wire.extension.children import JointName, child_id, child_of
from tests.coordinators.transactions.test_model import (
    PARTITIONS,
    Copied,
    Entry,
    Producer,
    Sent,
    Txn,
    World,
)
from tests.scale import examples

KEYS = (JointName("", "k"), JointName("g", "l"))
OFFSETS = PARTITIONS[2]
Truth = tuple[int, frozenset[str]]
AT_ONCE = (1, 2, ENDED_AT_ONCE)


@dataclass(eq=False)
class Task:
    """One attempt at one part of a driver's version."""

    driver: "Driver"
    version: int
    part: int
    producer: Producer
    begun: bool = False
    skipped: bool = False  # it was told that the version is committed
    shown: ChildShown | None = None  # reported to the driver

    @property
    def failed(self) -> bool:
        return self.producer.dead and self.shown is None


@dataclass(eq=False)
class Driver:
    """Commits one version after the other, until something goes wrong."""

    name: JointName
    run: str | None
    version: int
    tasks: list[Task] = field(default_factory=list)
    order: int = -1
    offsets: tuple[ChildShown, Txn] | None = None
    dead: bool = False
    waiting: bool = False

    def digest(self, version: int) -> str:
        """What a version of this driver is made of; not all drivers say."""
        return f"{version} of {self.run}" if self.run and version % 3 else ""


class JointWorld(World):
    """Drivers and tasks beside the plain producers."""

    def __init__(self, numbers: Iterator[int], at_once: int = ENDED_AT_ONCE) -> None:
        self.at_once = at_once  # how many children one decision ends
        self.given: dict[tuple[int, ...], str] = {}  # producer id and epoch to the id that has got them
        super().__init__(numbers)
        self.accepting: Callable[[], None] | None = (
            None  # answers the long joint commit that is being decided
        )
        self.to_dismiss: list[JointName] = []
        self.long_count = self.torn_count = self.waited_count = 0
        self.drivers: list[Driver] = []
        self.tasks: list[Task] = []
        self.attempts = 0
        self.truth: dict[tuple[JointName, int], Truth] = {}  # what is durable
        self.made_of: dict[tuple[JointName, int], str] = {}
        # Of each key the version that was begun last, and the greatest order of its runs.
        self.open: dict[JointName, tuple[int, int]] = {}
        # Producer id and epoch of its marker to the id that it has committed under.
        self.committed_ids: dict[tuple[int, int], str] = {}
        self.reused = 0
        self.late_commits: list[tuple[JointName, int, list[ChildShown], str | None]] = []
        self.told_already = self.told_refused = self.zombies_refused = self.told_digest = self.too_old = 0

    def new_coordinator(self) -> TransactionCoordinator:
        coordinator = super().new_coordinator()
        coordinator.joint.at_once = self.at_once
        return coordinator

    def loaded(self, decision: Decision[bool]) -> None:
        """Only the ends of accepted children are written again, and nobody has to wait for that."""
        assert not decision.answer
        self.torn_count += bool(decision.records)
        self.append(decision)

    def carry_out(self, decision: Decision[object], answer: Callable[[], None] = lambda: None) -> None:
        code = getattr(decision.answer, "error", None)
        self.waited_count += code is ErrorCode.coordinator_load_in_progress
        super().carry_out(decision, answer)

    def handed_out(self, transactional_id: str, shown: tuple[int, int]) -> None:
        """A producer id passes from a forgotten child to another child, and nothing of it is open or can be."""
        producer_id, _ = shown
        self.given[tuple(shown)] = transactional_id
        former = self.holders.get(producer_id, transactional_id)
        self.holders[producer_id] = transactional_id
        if former == transactional_id:
            return
        self.reused += 1
        child = child_of(former)
        assert child is not None, f"{former} is no child, and may come back"
        assert child_of(transactional_id) is not None
        assert self.coordinator.table.joints.is_over(former), f"{former} may come back"
        assert self.coordinator.table.get(former) is None
        for target, partition in self.partitions.items():
            assert producer_id not in partition.open(), f"{former} is open in {target}"
            ends = [offset for offset, entry in enumerate(partition.log) if entry.producer_id == producer_id]
            assert not ends or ends[-1] < partition.synced, f"a crash can open {former} in {target} again"

    # -- what is durable -----------------------------------------------------------------------------------------

    def note_decided(self) -> None:
        for records in self.commit_log[self.commit_log_noted : self.commit_log_synced]:
            if isinstance(records, Copied):
                continue
            committed: dict[str, tuple[int, tuple[int, int, int]]] = {}
            joint: tuple[JointName, int, int] | None = None
            accepted: set[str] = set()
            for key, value in records:
                subject = read_key(key)
                if value is None:
                    continue
                if isinstance(subject, JointKey):
                    state = decode_joint(value)
                    if state.last_version >= 0 and (subject.name, state.last_version) not in self.truth:
                        joint = (subject.name, state.last_version, state.commit_sequence)
                        self.made_of[subject.name, state.last_version] = state.digest
                        accepted = {self.given[identity] for identity in state.accepted}
                elif isinstance(subject, TransactionKey):
                    txn = decode_transaction(value)
                    if txn.state is TransactionState.PREPARE_COMMIT:
                        shown = (txn.producer_id, txn.producer_epoch, txn.update_ms)
                        committed[subject.transactional_id] = (txn.commit_sequence, shown)
            self.note_commit(joint, committed, accepted)
        self.commit_log_noted = self.commit_log_synced

    def note_commit(
        self,
        joint: tuple[JointName, int, int] | None,
        committed: dict[str, tuple[int, tuple[int, int, int]]],
        accepted: set[str],
    ) -> None:
        children = {i for i in committed if child_of(i) is not None}
        if joint is not None:
            name, version, g = joint
            assert all(v < version for n, v in self.truth if n == name), "a version went back"
            assert not (children and accepted), "children of a long joint commit were decided with it"
            self.truth[name, version] = (g, frozenset(children | accepted))
            for transactional_id in children:
                child = child_of(transactional_id)
                assert child is not None
                assert (child.name, child.version, committed[transactional_id][0]) == joint
            assert self.decided.setdefault(g, (-1, -1, g)) == (-1, -1, g), "a number was given twice"
        for transactional_id in children if joint is None else ():
            child = child_of(transactional_id)
            assert child is not None
            g, together = self.truth[child.name, child.version]
            assert transactional_id in together, f"a child was committed alone: {transactional_id}"
            assert committed[transactional_id][0] == g
        for transactional_id, (g, shown) in committed.items():
            self.committed_ids[shown[:2]] = transactional_id
            if transactional_id not in children:
                assert self.decided.setdefault(g, shown) == shown, "a number was given twice"

    def in_order(self, last_sequence: int, order: MarkerOrder) -> bool:
        is_child = child_of(order.transactional_id) is not None or order.transactional_id == ""
        return order.commit_sequence > last_sequence or (is_child and order.commit_sequence == last_sequence)

    def may_forget(self, producer: Producer) -> bool:
        return child_of(producer.transactional_id) is not None  # its key remembers what counts

    def crash(self) -> None:
        super().crash()
        self.open.clear()  # what was not durable has not been
        self.accepting = None
        self.to_dismiss.clear()
        for driver in self.drivers:
            driver.waiting = False
            driver.offsets = None  # the broker that worked on the request is gone
        self.check_markers()

    # -- tasks ---------------------------------------------------------------------------------------------------

    def new_task(self, driver: Driver, part: int) -> None:
        self.attempts += 1
        run = driver.run or f"anonymous {self.attempts}"
        transactional_id = child_id(
            driver.name.key, driver.version, run, part, self.attempts, group=driver.name.group
        )
        task = Task(driver, driver.version, part, Producer(transactional_id, dialect=1 + self.choose(2)))
        driver.tasks.append(task)
        self.tasks.append(task)

    def task_step(self, task: Task) -> None:
        producer = task.producer
        if producer.waiting and self.choose(6) > 0:
            return
        if task.shown is not None:
            self.zombie_step(task)
        elif not task.begun:
            self.task_begins(task)
        elif producer.identity is None:
            self.init(producer, keep=False)
        elif self.choose(3) == 0 or producer.txn is None:
            if producer.txn is None and self.choose(5) == 0:
                task.shown = ChildShown(
                    producer.transactional_id, *producer.identity
                )  # it had nothing to write
            else:
                self.produce(producer, PARTITIONS[self.choose(2)])
        elif unacked := [sent for sent in producer.txn.sent if not sent.acked]:
            self.send(producer, unacked[0])
        elif producer.txn.sent:
            task.shown = ChildShown(producer.transactional_id, *producer.txn.shown)

    def task_begins(self, task: Task) -> None:
        name, order = task.driver.name, task.driver.order
        decision = self.coordinator.joint.begin_version(
            name, task.version, task.driver.run, order=order, now_ms=self.now_ms
        )
        answer = decision.answer
        lost = self.choose(8) == 0
        version, reached = self.open.get(name, (-1, -1))
        if version != task.version:
            reached = -1  # another version was begun meanwhile: that is what is remembered
        if answer.error is ErrorCode.none and not answer.committed and task.driver.run is not None:
            assert order == -1 or order >= reached, "an earlier start has taken the version"
            self.open[name] = (task.version, max(order, reached))

        def answered() -> None:
            if answer.error is not ErrorCode.none:
                task.producer.dead = True
                self.too_old += -1 < order < reached
            elif answer.committed:
                assert any(n == name and v >= task.version for n, v in self.truth)
                self.check_digest(name, task.version, answer)
                task.skipped = True
            elif not lost:
                task.begun = True

        self.carry_out(decision, answered)
        if decision.records:
            self.to_dismiss.append(name)

    def zombie_step(self, task: Task) -> None:
        """It has reported, and does not stop."""
        producer = task.producer
        action = self.choose(12)
        if action == 0 and producer.txn is not None:
            txn, count = producer.txn, len(producer.txn.sent)
            before = producer.dead
            self.produce(producer, PARTITIONS[self.choose(2)])
            self.zombies_refused += producer.dead and not before
            for sent in txn.sent[count:]:
                sent.stray = True
        elif action == 1 and producer.txn is not None:
            self.end(producer, producer.txn, commit=False)
        elif action == 2 and producer.txn is not None:
            requested = set(producer.txn.requested)
            self.end(producer, producer.txn, commit=True)
            producer.txn.requested = requested  # that is no request which may be heeded
        elif action == 3:
            self.init(producer, keep=False)

    # -- drivers -------------------------------------------------------------------------------------------------

    def new_driver(self) -> None:
        name = KEYS[self.choose(len(KEYS))]
        if any(d.name == name and not d.dead for d in self.drivers) and self.choose(4) > 0:
            return
        last = max((v for n, v in self.truth if n == name), default=-1)
        version = max(0, last + (1, 1, 2, 0, -1)[self.choose(5)])
        run = f"run {len(self.drivers)}" if self.choose(3) > 0 else None
        order = len(self.drivers) if run is not None and self.choose(3) > 0 else -1
        driver = Driver(name, run, version, order=order)
        self.drivers.append(driver)
        self.plan(driver)

    def plan(self, driver: Driver) -> None:
        driver.tasks = []
        for part in range((0, 1, 2, 2, 3, 3)[self.choose(6)]):
            self.new_task(driver, part)

    def driver_step(self, driver: Driver) -> None:
        if driver.waiting and self.choose(6) > 0:
            return
        parts = {task.part for task in driver.tasks}
        ready = {task.part for task in driver.tasks if task.shown is not None}
        if any(task.skipped for task in driver.tasks):
            driver.version += 1
            self.plan(driver)
        elif ready == parts:
            if self.choose(12) == 0:
                self.driver_aborts(driver)
            elif driver.offsets is None and self.choose(3) == 0:
                self.write_offsets(driver)
            else:
                self.driver_commits(driver)
        elif sum(task.failed for task in driver.tasks) > 3:
            self.driver_aborts(driver)  # Spark gives up as well
        elif self.choose(59) == 0 and self.choose(4) == 0:
            driver.dead = True  # its tasks go on
        elif self.choose(59) == 0 and self.choose(4) == 0:
            self.driver_aborts(driver)
        else:
            for part in sorted(parts - ready):
                if all(task.failed for task in driver.tasks if task.part == part) or self.choose(40) == 0:
                    self.new_task(driver, part)

    def children_of(self, driver: Driver) -> list[Task]:
        """For each part one attempt that has succeeded: not always the first."""
        chosen: dict[int, Task] = {}
        for task in driver.tasks:
            if task.shown is not None and (task.part not in chosen or self.choose(2) == 0):
                chosen[task.part] = task
        return list(chosen.values())

    def write_offsets(self, driver: Driver) -> None:
        """What the broker does with the offsets of a CommitJoint, before it decides."""
        partition = self.partitions[OFFSETS]
        if not partition.online:
            return
        decision = self.coordinator.joint.open_offsets(
            driver.name, driver.version, OFFSETS, now_ms=self.now_ms
        )
        self.append(decision)
        self.handed_out(*decision.answer[:1], decision.answer[1:])
        if self.choose(4) == 0:
            return  # it dies before anything of it is durable
        self.sync_commit_log()  # nobody writes with a producer id that a crash could give to another
        shown = decision.answer
        txn = Txn(shown[1:])
        self.txns.append(txn)
        for _ in range(2):
            sent = Sent(txn, OFFSETS)
            txn.sent.append(sent)
            partition.log.append(Entry(*shown[1:], self.leader_epoch, record=sent))
        if self.choose(4) == 0:
            return  # it dies before they are durable
        partition.synced = len(partition.log)
        self.sync_commit_log()
        for sent in txn.sent:
            sent.acked = True
        driver.offsets = (shown, txn)

    def driver_commits(self, driver: Driver) -> None:
        tasks = self.children_of(driver)
        children = [task.shown for task in tasks if task.shown is not None]
        txns = [txn for task in tasks if (txn := task.producer.txn) is not None]
        if driver.offsets is not None:
            shown, txn = driver.offsets
            driver.offsets = None
            children.append(shown)
            txns.append(txn)
        for txn in txns:
            txn.requested.add(True)
        if self.choose(4) == 0:
            self.late_commits.append((driver.name, driver.version, children, driver.run))
        self.commit(driver, driver.name, driver.version, children, driver.run, txns)

    def check_digest(self, name: JointName, version: int, answer: JointAnswer) -> None:
        was_last = answer.commit_sequence != -1
        assert answer.digest == (self.made_of[name, version] if was_last else "")
        self.told_digest += bool(answer.digest)

    def commit(
        self,
        driver: Driver | None,
        name: JointName,
        version: int,
        children: list[ChildShown],
        run: str | None,
        txns: list[Txn],
    ) -> None:
        decision = self.coordinator.joint.commit(
            name,
            version,
            children,
            run=run,
            digest=None if driver is None else driver.digest(version),
            now_ms=self.now_ms,
        )
        answer = decision.answer
        if answer.error is ErrorCode.none and not answer.committed:
            self.open.pop(name, None)
        lost = self.choose(5) == 0
        if driver is not None:
            driver.waiting = True

        def answered() -> None:
            if answer.error is ErrorCode.coordinator_load_in_progress:
                if driver is not None:
                    driver.waiting = False
                return
            if answer.error is not ErrorCode.none:
                assert (name, version) not in self.truth or answer.error is not ErrorCode.none
                self.told_refused += 1
            elif answer.committed:
                is_last = all(v <= version for n, v in self.truth if n == name)
                if is_last or answer.commit_sequence != -1:
                    g = self.truth[name, version][0]
                    assert answer.commit_sequence == g, "asked again, the answer was another"
                self.told_already += 1
            else:
                g, committed = self.truth[name, version]
                assert g == answer.commit_sequence
                assert answer.run == (run or "")
                assert answer.digest == self.made_of[name, version]
                assert committed <= {shown.transactional_id for shown in children}
            if driver is None:
                return
            driver.waiting = False
            if lost:
                return
            if answer.error is not ErrorCode.none:
                driver.dead = True
                return
            if not answer.committed:
                for txn in txns:
                    txn.answered = True
            if driver.version == version:
                driver.version += 1 + (self.choose(8) == 0)
                self.plan(driver)

        if decision.records:
            self.to_dismiss.append(name)
        if decision.records and self.coordinator.joint.accepted_children.is_pending:
            self.long_count += 1
            self.carry_out(decision)
            self.accepting = answered
        else:
            self.carry_out(decision, answered)

    def end_accepted(self) -> None:
        """The next decision of a long joint commit; its answer is given after the last one."""
        g = self.coordinator.table.sequences.last
        assert self.coordinator.table.resolved_sequence < g, "a part of a commit is in a cut"
        decision = self.coordinator.joint.end_accepted(now_ms=self.now_ms)
        if self.coordinator.joint.accepted_children.is_pending or self.accepting is None:
            self.carry_out(decision)
        else:
            answered, self.accepting = self.accepting, None
            self.carry_out(decision, answered)

    def dismiss_some(self) -> None:
        """Abort children that a decision has left, a few at a time."""
        name = self.to_dismiss[-1]
        joint = self.coordinator.joint
        left = [
            transactional_id
            for transactional_id, child in joint.children(name)
            if joint.checks.is_late(child) and joint.may_be_dismissed(transactional_id)
        ]
        if not left:
            self.to_dismiss.pop()
        self.carry_out(joint.dismiss_children(left[: self.at_once], now_ms=self.now_ms))

    def driver_aborts(self, driver: Driver) -> None:
        """As Spark does it, also for a commit whose answer was lost."""
        children = [task.shown for task in self.children_of(driver) if task.shown is not None]
        run = driver.run if self.choose(2) == 0 else None
        decision = self.coordinator.joint.abort(
            driver.name, driver.version, children, run=run, now_ms=self.now_ms
        )
        answer, name, version = decision.answer, driver.name, driver.version

        def answered() -> None:
            if answer.committed:
                assert any(n == name and v >= version for n, v in self.truth)

        self.carry_out(decision, answered)
        driver.dead = True

    # -- what happens ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.coordinator.joint.accepted_children.is_pending:
            kind = self.choose(12)
            if kind < 2:
                self.end_accepted()
                return
            if kind == 2:
                self.sync_commit_log()
            elif kind == 3:
                self.crash()
        if self.to_dismiss and self.at_once < ENDED_AT_ONCE and self.choose(4) == 0:
            self.dismiss_some()
            return
        kind = self.choose(20)
        drivers = [d for d in self.drivers if not d.dead]
        tasks = self.tasks[-12:] if self.choose(6) == 0 else [t for d in drivers for t in d.tasks]
        tasks = [t for t in tasks if not t.producer.dead and not t.skipped]
        if kind < 8 and tasks:
            self.now_ms += 1
            self.task_step(tasks[self.choose(len(tasks))])
        elif kind < 12 and drivers:
            self.now_ms += 1
            self.driver_step(drivers[self.choose(len(drivers))])
        elif kind < 13:
            self.sync_commit_log()
        elif kind < 14 and (closed := [t for t in PARTITIONS if not self.partitions[t].online]):
            self.open_partition(closed[self.choose(len(closed))])
        elif kind < 15 and len(drivers) < 3:
            self.new_driver()
        elif kind < 16 and self.late_commits and self.choose(2) == 0:
            self.commit(None, *self.late_commits.pop(self.choose(len(self.late_commits))), [])
        else:
            super().step()

    # -- what must hold -------------------------------------------------------------------------------------------

    def check_markers(self) -> None:
        """At any time: a child is committed where it is in truth, with that number, and aborted anywhere else."""
        for target, partition in self.partitions.items():
            for entry in partition.log:
                order = entry.marker
                if order is None or order.type is not MarkerType.COMMIT:
                    continue
                transactional_id = self.committed_ids[order.producer_id, order.producer_epoch]
                child = child_of(transactional_id)
                if child is None:
                    continue
                g, committed = self.truth[child.name, child.version]
                assert transactional_id in committed, f"committed in {target}, and not by the decision"
                assert order.commit_sequence == g, f"committed in {target} with another number"

    def settle(self) -> None:
        while self.coordinator.joint.accepted_children.is_pending:
            self.end_accepted()
        self.sync_commit_log()
        while self.to_dismiss:
            self.dismiss_some()
        self.now_ms += OFFSETS_TIMEOUT_MS
        super().settle()
        for task in self.tasks:
            last = max((v for n, v in self.truth if n == task.driver.name), default=-1)
            if task.version <= last:
                assert self.coordinator.table.get(task.producer.transactional_id) is None, (
                    "a child is remembered whose version is committed"
                )
        for (name, version), (g, _) in self.truth.items():
            last = max(v for n, v in self.truth if n == name)
            answer = self.coordinator.joint.commit(name, version, [], now_ms=self.now_ms).answer
            assert answer.committed
            assert answer.commit_sequence == (g if version == last else -1)
            self.check_digest(name, version, answer)


def run(numbers: list[int], at_once: int = ENDED_AT_ONCE) -> JointWorld:
    world = JointWorld(iter(numbers), at_once)
    while world.numbers.__length_hint__():
        world.step()
    world.settle()
    world.check()
    world.check_markers()
    return world


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(0, 59), min_size=10, max_size=400), st.sampled_from(AT_ONCE))
def test_all_children_are_committed_with_one_number_or_none(numbers: list[int], at_once: int) -> None:
    run(numbers, at_once)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("epoch_max", [EPOCH_MAX, 4], ids=["many epochs", "few epochs"])
@pytest.mark.parametrize("seed", range(8))
def test_so_they_are_in_long_histories(seed: int, epoch_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_ending, "EPOCH_MAX", epoch_max)
    monkeypatch.setattr(transaction_ending, "CLIENT_EPOCH_MAX", epoch_max - 1)
    chance = random.Random(seed)
    for at_once in (AT_ONCE[seed % 2], ENDED_AT_ONCE):
        run([chance.randrange(60) for _ in range(8000)], at_once)


@pytest.mark.extended
def test_histories_of_joint_commits_are_not_trivial() -> None:
    chance = random.Random(11)
    worlds = [run([chance.randrange(60) for _ in range(12_000)]) for _ in range(5)]
    commits = [children for world in worlds for _, children in world.truth.values()]
    assert len(commits) > 40
    assert sum(len(children) > 1 for children in commits) > 10
    assert sum(not children for children in commits) > 10
    assert sum("offsets" in i for children in commits for i in children) > 2
    assert sum(world.told_already for world in worlds) > 20
    assert sum(world.told_refused for world in worlds) > 20
    assert sum(world.told_digest for world in worlds) > 20
    assert sum(world.too_old for world in worlds) > 0
    assert sum(world.zombies_refused for world in worlds) > 5
    assert sum(world.reused for world in worlds) > 50
    assert sum(world.leader_epoch for world in worlds) > 30


@pytest.mark.extended
def test_histories_of_long_joint_commits_are_not_trivial() -> None:
    chance = random.Random(11)
    worlds = [run([chance.randrange(60) for _ in range(8000)], at_once=1 + i % 2) for i in range(16)]
    assert sum(world.long_count for world in worlds) > 20
    assert sum(world.torn_count for world in worlds) > 5, "a crash was to come before all children were ended"
    assert sum(world.waited_count for world in worlds) > 1, "other commits were to wait"
    assert sum(world.checkpoint_count for world in worlds) > 1
