"""Transaction groups: each with its own commit log, numbers and cuts, through crashes and restarts."""

import asyncio
import itertools
import logging
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.errors import DamageError, RefusedError
from stablelog.log.partition import Isolation, Origin
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.transaction_groups import group_of
from tests.broker.desk import ABORT, COMMIT, batch, end_fields, opened, part
from tests.scale import examples

NONE = ErrorCode.none
REFUSED = ErrorCode.topic_authorization_failed
GROUPS = ("", "a", "b")
PARTITIONS = 2


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 120))


def topic_of(group):
    return f"t{group}"


def create(desk):
    for group in GROUPS:
        if desk.broker.topics.get(topic_of(group)) is None:
            configs = {"stablelog.order": "commit", "stablelog.group": group}
            desk.broker.topic_files.create(topic_of(group), PARTITIONS, configs)


def named(group, word):
    return f"{group}/{word}" if group else word


async def cut(desk, group):
    answer = await desk.ask(ApiKey.DESCRIBE_CUT, 0, group=None, commit_sequence=-1, topics=(topic_of(group),))
    assert (answer.error_code, answer.group) == (NONE, group), answer.error_message
    return answer


# -- any history ---------------------------------------------------------------------------------------------


class World:
    """Writers of several groups on one broker after the other, and what may be expected of them.

    A transaction writes its own number to each of its partitions.
    """

    def __init__(self):
        self.disk = SimDisk()
        self.desk = None
        self.producers = {}  # transactional id -> (producer id and epoch, sequences by target)
        self.targets = {}  # transaction -> its partitions
        self.committed = defaultdict(list)  # group -> transactions whose commit was answered, in order
        self.aborted = set()
        self.numbers = itertools.count()
        self.ids_told = {}  # producer id -> whose
        self.outlives = None  # a transaction that is to end after the restart

    async def live(self, steps):
        """Take the steps; brokers come and go as they say."""
        steps = list(steps)
        while True:
            async with opened(self.disk, topics=()) as self.desk:
                create(self.desk)
                await self.desk.durable()
                await self.check()
                if self.outlives is not None:
                    outlives, self.outlives = self.outlives, None
                    await self.hold_back(*outlives)
                after = None
                while steps and after is None:
                    kind, *how = steps.pop(0)
                    after = await getattr(self, kind)(*how)
                await self.desk.durable()
                await self.check()
                if after is None:
                    return
            if isinstance(after, SimDisk):
                self.disk = after
            self.producers.clear()

    async def begun(self, group, writer):
        name = named(group, f"w{writer}")
        if name not in self.producers:
            for _ in range(50):
                answer = await self.desk.ask(22, 4, **_init(name))
                if answer.error_code is not ErrorCode.concurrent_transactions:
                    break
            assert answer.error_code is NONE
            assert self.ids_told.setdefault(answer.producer_id, name) == name, "an id was told twice"
            self.producers[name] = ((answer.producer_id, answer.producer_epoch), defaultdict(int))
        return name, *self.producers[name]

    async def write(self, group, writer, indexes):
        name, producer, sequences = await self.begun(group, writer)
        txn = b"%d" % next(self.numbers)
        targets = [(topic_of(group), index) for index in indexes]
        self.targets[txn] = set(targets)
        assert set(await self.desk.add(name, producer, *targets)) == {NONE}
        for target in targets:
            records = batch(txn, producer=producer, sequence=sequences[target])
            answer = await self.desk.produce(
                records, topic=target[0], partition=target[1], transactional_id=name
            )
            assert answer.error_code is NONE
            sequences[target] += 1
        return name, producer, txn

    async def transaction(self, group, writer, indexes, outcome):
        name, producer, txn = await self.write(group, writer, indexes)
        if outcome == "open":
            self.aborted.add(txn)  # the next producer of the id, or the end of time, aborts it
            del self.producers[name]
            return
        assert (await self.desk.end(name, producer, outcome == "commit")).error_code is NONE
        self.committed[group].append(txn) if outcome == "commit" else self.aborted.add(txn)

    async def marker_held_back(self, group, other):
        """A transaction outlives a restart, after which one of its partitions does not open."""
        self.outlives = (group, other, *await self.write(group, 0, (0, 1)))
        return "in order"

    async def hold_back(self, group, other, name, producer, txn):
        """Its marker is due and cannot be written: only its own group waits."""
        topic = self.desk.broker.topics.get(topic_of(group))
        opened_logs = self.desk.broker.partitions.of_topic(topic)
        closed = opened_logs.pop(0)
        assert (await self.desk.end(name, producer, COMMIT)).error_code is NONE
        self.committed[group].append(txn)
        if other != group:
            await self.transaction(other, 1, (0,), "commit")
        await asyncio.gather(self.desk.durable(), *self._durable([closed]))
        held = await self.desk.ask(ApiKey.DESCRIBE_CUT, 0, group=group, commit_sequence=-1, topics=())
        assert held.commit_sequence < held.last_commit_sequence
        assert {(h.topic, h.partition_index) for h in held.holders} == {(topic_of(group), 0)}
        for free in set(GROUPS) - {group}:
            answer = await cut(self.desk, free)
            assert (answer.commit_sequence, answer.holders) == (answer.last_commit_sequence, ())
        opened_logs[0] = closed
        self.desk.broker.partition_repair.partition_opened(closed)

    def _durable(self, partitions):
        waits = [self.desk.broker.flush.durable_future(p, p.end_offset) for p in partitions]
        return [wait for wait in waits if wait is not None]

    async def restart(self):
        return "in order"

    async def crash(self, seed):
        return self.disk.crash(random.Random(seed))

    async def crash_while_deciding(self, group, turns, commit, seed):
        """Nobody learns whether it was decided."""
        name, producer, _ = await self.write(group, 2, (0, 1))
        ending = asyncio.ensure_future(self.desk.end(name, producer, commit))
        for _ in range(turns):
            await asyncio.sleep(0)
        left = self.disk.crash(random.Random(seed))
        await ending
        return left

    async def trim(self, group):
        transactions = self.desk.broker.transactions.get(group)
        if transactions is not None:
            await self.desk.durable()
            before = transactions.journal.partition.end_offset
            transactions.journal.append(transactions.coordinator.table.checkpoint())
            await self.desk.durable()
            transactions.journal.trim(before)

    async def check(self):
        for group in GROUPS:
            found = self.seen(group)
            last = (await cut(self.desk, group)).last_commit_sequence
            assert sorted(found) == list(range(1, last + 1)), f"{group!r}: numbers have no gaps"
            order = []
            for g in sorted(found):
                ((txn, targets),) = found[g].items()
                assert targets == self.targets[txn], "whole, and in its own group"
                assert txn not in self.aborted
                order.append(txn)
            answered = self.committed[group]
            assert [txn for txn in order if txn in answered] == answered, f"{group!r}: in order, and kept"

    def seen(self, group):
        """By number of the commit: its transactions, and where each stands."""
        found = defaultdict(lambda: defaultdict(set))
        for index in range(PARTITIONS):
            target = (topic_of(group), index)
            partition = self.desk.broker.partitions.require(*target)
            data = b"".join(partition.read(0, 1 << 30, Isolation.LOG_END).buffers)
            wrote = {}
            for at, header in headers_in(data):
                marker = read_marker(data, at) if header.is_control else None
                if not header.is_control:
                    wrote[header.producer_id] = [r.value for r in decode_records(data, at)]
                elif marker is not None and marker.type is MarkerType.COMMIT:
                    assert marker.group == group
                    for txn in wrote.pop(header.producer_id):
                        found[marker.commit_sequence][txn].add(target)
                else:
                    wrote.pop(header.producer_id, None)
        return found


def _init(name):
    from tests.broker.desk import init_fields

    return init_fields(4, name)


groups = st.sampled_from(GROUPS)
indexes = st.sampled_from([(0,), (1,), (0, 1)])
seeds = st.integers(0, 2**32)
steps = st.one_of(
    st.tuples(
        st.just("transaction"),
        groups,
        st.integers(0, 1),
        indexes,
        st.sampled_from(["commit", "commit", "abort", "open"]),
    ),
    st.tuples(st.just("marker_held_back"), groups, groups),
    st.tuples(st.just("restart")),
    st.tuples(st.just("crash"), seeds),
    st.tuples(st.just("crash_while_deciding"), groups, st.integers(0, 12), st.booleans(), seeds),
    st.tuples(st.just("trim"), groups),
)


@pytest.mark.extended
@settings(max_examples=examples(20), deadline=None)
@given(st.lists(steps, max_size=12))
def test_every_group_keeps_its_own_numbers_through_any_history(history):
    run(lambda: World().live(history))


@pytest.mark.extended
def test_the_groups_of_a_long_history_stay_apart():
    """As above, and surely with all that can happen."""
    chance = random.Random(7)

    def step():
        group, other = chance.choice(GROUPS), chance.choice(GROUPS)
        indexes = chance.choice([(0,), (1,), (0, 1)])
        outcome = chance.choice(["commit", "commit", "abort", "open"])
        often = ("transaction", group, chance.randint(0, 1), indexes, outcome)
        rare = [
            ("marker_held_back", group, other),
            ("restart",),
            ("crash", chance.random()),
            ("crash_while_deciding", group, chance.randint(0, 12), chance.random() < 0.5, chance.random()),
            ("trim", group),
        ]
        return often if chance.random() < 0.6 else chance.choice(rare)

    world = World()
    run(lambda: world.live([step() for _ in range(150)]))
    assert min(len(world.committed[group]) for group in GROUPS) > 10


# -- crossing ------------------------------------------------------------------------------------------------


async def added(desk, name, producer, *targets):
    return dict(zip(targets, await desk.add(name, producer, *targets), strict=True))


def test_a_topic_of_another_group_is_refused_and_nothing_is_added(caplog):
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("a/me")
            with caplog.at_level(logging.WARNING, "stablelog"):
                for _ in range(3):
                    assert await added(desk, "a/me", who, ("ta", 0), ("tb", 0)) == {
                        ("ta", 0): ErrorCode.operation_not_attempted,
                        ("tb", 0): REFUSED,
                    }
            (told,) = [r.getMessage() for r in caplog.records if "belongs to" in r.getMessage()]
            assert "'a/me' belongs to transaction group 'a'" in told
            assert "topic 'tb' to transaction group 'b'" in told
            assert "id that begins with 'b/'" in told
            assert "stablelog.group=a" in told
            described = desk.broker.transactions.describe("a/me")
            assert (described.state.label, described.partitions) == ("Empty", frozenset())
            assert await added(desk, "a/me", who, ("ta", 0)) == {("ta", 0): NONE}

    run(conversation)


@pytest.mark.parametrize("version", [9, 12])
def test_a_batch_for_a_topic_of_another_group_is_refused_with_a_sentence(version):
    """In both dialects, whatever its sequence is."""

    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("a/me")
            for sequence in (0, 3):
                records = batch(b"never", producer=who, sequence=sequence)
                answer = await desk.produce(records, topic="t", transactional_id="a/me", version=version)
                assert answer.error_code is REFUSED
                assert "'t' to the default transaction group" in answer.error_message
                assert "an id without a slash" in answer.error_message
            assert desk.values("t", isolation=Isolation.READ_UNCOMMITTED) == []
            outside = batch(b"plain", producer=(-1, -1))
            assert (await desk.produce(outside, topic="t")).error_code is NONE

    run(conversation)


async def write(desk, name, who, value, topic, sequence=0, *, adds=True):
    if adds:
        for _ in range(20):  # what was left of the last transaction is being aborted
            (code,) = await desk.add(name, who, (topic, 0))
            if code is not ErrorCode.concurrent_transactions:
                break
        assert code is NONE
    records = batch(value, producer=who, sequence=sequence)
    assert (await desk.produce(records, topic=topic, transactional_id=name)).error_code is NONE


@pytest.mark.parametrize("before", ["nothing", COMMIT, ABORT])
def test_a_transaction_that_was_refused_its_first_partition_can_be_aborted(before):
    """librdkafka aborts it though nothing has begun, and takes a refusal for the end of its producer."""

    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("me")
            if before != "nothing":
                await write(desk, "me", who, b"before", "t")
                await desk.end("me", who, before)
            assert await desk.add("me", who, ("ta", 0)) == [REFUSED]
            assert (await desk.end("me", who, ABORT)).error_code is NONE
            assert (await desk.end("me", who, ABORT)).error_code is NONE  # asked again
            await write(desk, "me", who, b"next", "t", 0 if before == "nothing" else 1)
            assert (await desk.end("me", who, COMMIT)).error_code is NONE
            await desk.durable()
            assert desk.values("t") == ([b"before"] if before is COMMIT else []) + [b"next"]
            # An abort that nobody was turned away for is what it was.
            assert (await desk.end("me", who, ABORT)).error_code is ErrorCode.invalid_txn_state

    run(conversation)


def test_what_was_written_before_a_refusal_is_never_committed():
    """aiokafka does not abort it, and goes on with its next transaction."""

    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("me")
            await write(desk, "me", who, b"torn", "t")
            assert await desk.add("me", who, ("ta", 0)) == [REFUSED]
            assert (await desk.end("me", who, COMMIT)).error_code is ErrorCode.invalid_txn_state
            await write(desk, "me", who, b"next", "t", 1)
            assert (await desk.end("me", who, COMMIT)).error_code is NONE
            await desk.durable()
            assert desk.values("t") == [b"next"]

    run(conversation)


def test_the_commit_of_a_transaction_that_was_refused_its_first_partition_is_not_that_of_the_one_before():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("me")
            await write(desk, "me", who, b"before", "t")
            await desk.end("me", who, COMMIT)
            assert await desk.add("me", who, ("ta", 0)) == [REFUSED]
            assert (await desk.end("me", who, COMMIT)).error_code is ErrorCode.invalid_txn_state
            assert (await desk.end("me", who, ABORT)).error_code is NONE

    run(conversation)


def test_to_ask_whether_a_partition_of_another_group_is_part_of_a_transaction_changes_nothing():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("me")
            await write(desk, "me", who, b"whole", "t")
            topic = part(24, 4, "request", "AddPartitionsToTxnTopic", name="ta", partitions=(0,))
            asked = part(
                24,
                4,
                "request",
                "AddPartitionsToTxnTransaction",
                transactional_id="me",
                producer_id=who[0],
                producer_epoch=who[1],
                verify_only=True,
                topics=(topic,),
            )
            answer = await desk.ask(24, 4, transactions=(asked,))
            (result,) = answer.results_by_transaction[0].topic_results[0].results_by_partition
            assert result.partition_error_code is REFUSED
            assert (await desk.end("me", who, COMMIT)).error_code is NONE

    run(conversation)


def test_offsets_are_committed_in_transactions_of_any_group():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            for name, source in (("a/me", "tb"), ("me", "ta")):
                who = await desk.init(name)
                fields = {"transactional_id": name, "producer_id": who[0], "producer_epoch": who[1]}
                answer = await desk.ask(25, 3, group_id=f"readers of {source}", **fields)
                assert answer.error_code is NONE
                at = part(
                    28,
                    3,
                    "request",
                    "TxnOffsetCommitRequestPartition",
                    partition_index=0,
                    committed_offset=7,
                    committed_leader_epoch=-1,
                    committed_metadata="",
                )
                topic = part(28, 3, "request", "TxnOffsetCommitRequestTopic", name=source, partitions=(at,))
                answer = await desk.ask(28, 3, group_id=f"readers of {source}", topics=(topic,), **fields)
                assert answer.topics[0].partitions[0].error_code is NONE
                assert (await desk.end(name, who, COMMIT)).error_code is NONE
                await desk.durable()
                told = desk.broker.groups.coordinator.fetch_offsets(f"readers of {source}", [(source, 0)])
                assert told.answer[source, 0].offset == 7

    run(conversation)


# -- which groups there are ----------------------------------------------------------------------------------


def names_of_groups(desk):
    return sorted(group.name for group in desk.broker.transactions)


async def begin(desk, name, *, version=3):
    """Begin a transaction in a topic of the id's group. Return its producer."""
    topic = topic_of(group_of(name))
    if desk.broker.topics.get(topic) is None:
        desk.broker.topic_files.create(topic, 1, {"stablelog.group": group_of(name)})
    who = await desk.init(name)
    assert await desk.add(name, who, (topic, 0), version=version) == [NONE]
    return who


def test_a_group_is_made_by_whoever_begins_something_in_it_and_not_by_others():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            assert (
                await desk.end("a/me", (0, 0), COMMIT)
            ).error_code is ErrorCode.invalid_producer_id_mapping
            assert await desk.add("a/me", (0, 0), ("ta", 0)) == [ErrorCode.invalid_producer_id_mapping]
            records = batch(b"v", producer=(0, 0), sequence=0)
            answer = await desk.produce(records, topic="ta", transactional_id="a/me")
            assert answer.error_code is ErrorCode.invalid_producer_id_mapping
            assert (await cut(desk, "a")).commit_sequence == 0
            who = await desk.init("a/me")
            assert names_of_groups(desk) == [""]
            assert await desk.add("a/me", who, ("ta", 0)) == [NONE]
            await desk.ask(ApiKey.BEGIN_JOINT, 0, group="b", key="k", version=0, run="r")
            assert names_of_groups(desk) == ["", "a", "b"]
            assert desk.broker.topics.get("__transaction_state.a").is_internal

    run(conversation)


@pytest.mark.parametrize("name", ["tyop/x", "a/me"])
def test_a_producer_that_begins_no_transaction_leaves_no_group(name):
    """Requests that begin none are answered as for a known id, and a refused topic begins none either."""

    async def conversation():
        async with opened(topics=("t",)) as desk:
            create(desk)
            who = await desk.init(name)
            assert await desk.add(name, who, ("t", 0)) == [REFUSED]
            # librdkafka then ends a transaction that has not begun.
            assert (await desk.end(name, who, ABORT)).error_code is NONE
            assert (await desk.end(name, who, COMMIT, version=5)).error_code is ErrorCode.invalid_txn_state
            records = batch(b"v", producer=who, sequence=0)
            for version in (9, 12):
                answer = await desk.produce(records, transactional_id=name, version=version)
                assert answer.error_code is REFUSED
            again = await desk.init(name)
            assert again == (who[0], who[1] + 1)
            stale = await desk.ask(26, 3, **end_fields(name, who, ABORT))
            assert stale.error_code is not NONE
            assert desk.broker.transactions.describe(name).client == again
            answer = await desk.ask(ApiKey.BEGIN_JOINT, 0, group="tyop", key="k", version=0, run="r")
            assert answer.error_code is ErrorCode.invalid_request
            assert "no topic belongs to transaction group 'tyop'" in answer.error_message
            assert names_of_groups(desk) == [""]

    run(conversation)


def test_a_stale_producer_does_not_begin_a_group():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            old = await desk.init("a/me")
            new = await desk.init("a/me")
            assert await desk.add("a/me", old, ("ta", 0)) == [ErrorCode.producer_fenced]
            records = batch(b"v", producer=old, sequence=0)
            answer = await desk.produce(records, topic="ta", transactional_id="a/me", version=12)
            assert answer.error_code is ErrorCode.invalid_producer_epoch
            assert names_of_groups(desk) == [""]
            assert await desk.add("a/me", new, ("ta", 0)) == [NONE]
            assert names_of_groups(desk) == ["", "a"]

    run(conversation)


async def begin_by_add(desk, who):
    assert await desk.add("a/me", who, ("ta", 0)) == [NONE]


async def begin_by_produce(desk, who):
    records = batch(b"v", producer=who, sequence=0)
    answer = await desk.produce(records, topic="ta", transactional_id="a/me", version=12)
    assert answer.error_code is NONE


async def begin_by_offsets(desk, who):
    answer = await desk.ask(
        25, 3, transactional_id="a/me", producer_id=who[0], producer_epoch=who[1], group_id="g"
    )
    assert answer.error_code is NONE


@pytest.mark.parametrize("begin_so", [begin_by_add, begin_by_produce, begin_by_offsets])
@pytest.mark.parametrize("restart", [False, True])
def test_the_producer_of_a_group_that_has_not_begun_outlives_a_restart_and_begins_it(begin_so, restart):
    disk = SimDisk()
    inits = []

    async def before():
        async with opened(disk, topics=()) as desk:
            create(desk)
            inits.extend([await desk.init("a/me"), await desk.init("a/other")])
            if not restart:
                await begins(desk)

    async def afterwards():
        async with opened(disk, topics=()) as desk:
            if restart:
                await begins(desk)
            # The other id follows when it is used, and keeps its producer.
            assert (await desk.end("a/other", inits[1], COMMIT, version=5)).error_code is not (
                ErrorCode.invalid_producer_id_mapping
            )
            table, held = (desk.broker.transactions.get(name).coordinator.table for name in ("a", ""))
            assert table.get("a/other").client == inits[1]
            await desk.durable()
            assert "a/other" not in held
            assert "a/me" not in held
            assert len(held) == 0

    async def begins(desk):
        await begin_so(desk, inits[0])
        assert names_of_groups(desk) == ["", "a"]
        end = await desk.end("a/me", inits[0], COMMIT, version=5 if begin_so is begin_by_produce else 3)
        assert end.error_code is NONE
        listed = await desk.ask_with(66, 1, {"state_filters": (), "producer_id_filters": ()})
        assert sorted(one.transactional_id for one in listed.transaction_states) == ["a/me", "a/other"]

    run(before)
    run(afterwards)


@pytest.mark.parametrize("seed", range(examples(15)))
def test_a_crash_while_a_group_begins_loses_no_producer(seed):
    """Whatever the disk keeps, the producer continues with its id and epoch, and what was acknowledged is there."""
    disk = SimDisk()
    done = []

    async def before():
        async with opened(disk, topics=()) as desk:
            create(desk)
            done.append(await desk.init("a/me"))
            records = batch(b"one", producer=done[0], sequence=0)
            asked = asyncio.ensure_future(
                desk.produce(records, topic="ta", transactional_id="a/me", version=12)
            )
            for _ in range(seed % 12):
                await asyncio.sleep(0)
            done.append(asked.done())
            after = disk.crash(random.Random(seed))
            asked.cancel()
            return after

    async def afterwards(kept):
        async with opened(kept, topics=()) as desk:
            await desk.durable()
            who, is_acknowledged = done
            if not is_acknowledged:
                records = batch(b"one", producer=who, sequence=0)
                again = await desk.produce(records, topic="ta", transactional_id="a/me", version=12)
                assert again.error_code is NONE
            assert (await desk.end("a/me", who, COMMIT, version=5)).error_code is NONE
            await desk.durable()
            assert desk.values("ta") == [b"one"]

    kept = run(before)
    run(lambda: afterwards(kept))


def without_later_bytes(disk, path, size):
    """Cut what a file got after it had this size, as a crash does that loses what was not synced."""
    disk.write_atomic(path, disk.read_bytes(path)[:size])


def commit_log_of(desk, name):
    return desk.broker.transactions.get(name).journal.partition


def test_a_group_takes_an_id_over_before_the_default_group_forgets_it():
    disk = SimDisk()
    kept = {}

    async def before():
        async with opened(disk, topics=()) as desk:
            create(desk)
            kept["me"], kept["other"] = await desk.init("a/me"), await desk.init("a/other")
            assert await desk.add("a/me", kept["me"], ("ta", 0)) == [NONE]
            await desk.durable()
            default = desk.broker.transactions.default.coordinator.table
            desk.broker.transactions.find_group("a/other")  # takes the id over; nothing is durable yet
            assert "a/other" in default
            await desk.durable()
            assert "a/other" not in default

    async def afterwards():
        async with opened(disk, topics=()) as desk:
            default = desk.broker.transactions.default
            # A crash may leave the id in both logs. That of the group counts.
            default.apply(
                default.coordinator.producers.init_producer_id(
                    "a/me", 60_000, api_version=4, now_ms=desk.broker.now_ms()
                )
            )
            await desk.durable()
            assert "a/me" in default.coordinator.table
            assert (await desk.end("a/me", kept["me"], COMMIT)).error_code is NONE

    async def at_last():
        async with opened(disk, topics=()) as desk:
            await desk.durable()
            assert len(desk.broker.transactions.default.coordinator.table) == 0
            assert desk.broker.transactions.describe("a/me").client == kept["me"]

    run(before)
    run(afterwards)
    run(at_last)


def test_a_producer_whose_take_over_a_crash_has_lost_continues_its_transaction():
    disk = SimDisk()
    kept = {}

    async def before():
        async with opened(disk, topics=()) as desk:
            create(desk)
            kept["me"] = await desk.init("a/me")
            first = await desk.init("a/first")
            assert await desk.add("a/first", first, ("ta", 1)) == [NONE]
            await desk.durable()
            log = commit_log_of(desk, "a")
            held = commit_log_of(desk, "")
            kept["logs"] = [
                (one.directory / f"{0:020d}.log", one.log.segments[0].size) for one in (log, held)
            ]
            await write(desk, "a/me", kept["me"], b"one", "ta")
            await desk.durable()
            return disk.crash(random.Random(0))

    async def afterwards(crashed):
        for path, size in kept["logs"]:
            without_later_bytes(crashed, path, size)
        async with opened(crashed, topics=()) as desk:
            (found,) = desk.broker.partitions.require("ta", 0).log.open_transactions()
            assert (found.producer_id, found.producer_epoch) == kept["me"]
            await write(desk, "a/me", kept["me"], b"two", "ta", sequence=1)
            assert (await desk.end("a/me", kept["me"], COMMIT)).error_code is NONE
            await desk.durable()
            assert desk.values("ta") == [b"one", b"two"]

    crashed = run(before)
    run(lambda: afterwards(crashed))


def test_there_are_no_more_groups_than_are_allowed():
    disk = SimDisk()

    async def conversation():
        async with opened(disk, topics=(), **{"stablelog.max.transaction.groups": 2}) as desk:
            if desk.broker.topics.get("tc") is None:
                desk.broker.topic_files.create("tc", 1, {"stablelog.group": "c"})
                held = await desk.init("c/0")
                for name in ("a/1", "b/1", "a/2"):
                    await begin(desk, name)
                # The group could begin when its producer began, and cannot any more.
                assert await desk.add("c/0", held, ("tc", 0)) == [ErrorCode.policy_violation]
            answer = await desk.ask(22, 4, **_init("c/1"))
            assert answer.error_code is ErrorCode.policy_violation
            answer = await desk.ask(ApiKey.BEGIN_JOINT, 0, group="c", key="k", version=0, run="r")
            assert answer.error_code is ErrorCode.policy_violation
            assert "stablelog.max.transaction.groups=2" in answer.error_message
            answer = await desk.ask(ApiKey.BEGIN_JOINT, 0, group="c/d", key="k", version=0, run="r")
            assert answer.error_code is ErrorCode.invalid_request
            assert "1 to 100 characters" in answer.error_message
            assert names_of_groups(desk) == ["", "a", "b"]

    run(conversation)
    run(conversation)  # and those that are found count


def test_groups_whose_names_differ_only_by_dots_are_two():
    disk = SimDisk()
    names = ("a.b", "a_b", "..", "a-0", "x" * 100)

    async def conversation():
        async with opened(disk, topics=()) as desk:
            for index, name in enumerate(names):
                if desk.broker.topics.get(f"t{index}") is None:
                    desk.broker.topic_files.create(f"t{index}", 1, {"stablelog.group": name})
                    who = await desk.init(f"{name}/me")
                    assert await desk.add(f"{name}/me", who, (f"t{index}", 0)) == [NONE]
            assert names_of_groups(desk) == sorted(["", *names])

    run(conversation)
    run(conversation)


def test_a_group_for_which_there_is_no_room_is_refused_with_a_sentence(caplog):
    async def conversation():
        async with opened(topics=(), **{"stablelog.max.partitions": 2}) as desk:
            with caplog.at_level(logging.WARNING, "stablelog"):
                answer = await desk.ask(22, 4, **_init("c/1"))
            assert answer.error_code is ErrorCode.policy_violation
            assert any("group 'c' cannot be created" in r.getMessage() for r in caplog.records)
            assert [group.name for group in desk.broker.transactions] == [""]

    run(conversation)


def test_markers_by_hand_are_not_for_commit_logs_and_commit_nothing_in_commit_order():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("a/me")
            await write(desk, "a/me", who, b"v", "ta")
            logs = ("__transaction_state", "__transaction_state.a")
            ends = [desk.broker.partitions.require(name, 0).end_offset for name in logs]
            told = {}
            for name in (*logs, "ta"):
                for outcome in (COMMIT, ABORT):
                    topic = part(
                        27, 1, "request", "WritableTxnMarkerTopic", name=name, partition_indexes=(0,)
                    )
                    marker = part(
                        27,
                        1,
                        "request",
                        "WritableTxnMarker",
                        producer_id=who[0],
                        producer_epoch=who[1],
                        transaction_result=outcome,
                        topics=(topic,),
                        coordinator_epoch=99,
                    )
                    answer = await desk.ask(27, 1, markers=(marker,))
                    told[name, outcome] = answer.markers[0].topics[0].partitions[0].error_code
            internal = ErrorCode.invalid_topic_exception
            assert told == {
                **{(name, outcome): internal for name in logs for outcome in (COMMIT, ABORT)},
                ("ta", COMMIT): ErrorCode.invalid_request,
                ("ta", ABORT): NONE,
            }
            assert [desk.broker.partitions.require(name, 0).end_offset for name in logs] == ends

    run(conversation)


@pytest.mark.parametrize("at", [7, 70, 130])
def test_a_damaged_commit_log_keeps_the_broker_from_starting_and_is_named(at):
    """Also after an orderly stop, where nothing is recovered: what was decided is not guessed at."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk, topics=()) as desk:
            await begin(desk, "a/me")
            await begin(desk, "a/you")
            return desk.broker.partitions.require("__transaction_state.a", 0).directory

    path = run(conversation) / f"{0:020d}.log"
    content = bytearray(disk.read_bytes(path))
    content[at] ^= 64
    disk.write_atomic(path, bytes(content))
    with pytest.raises(
        DamageError, match=r"__transaction_state\.a-0/0+\.log.*(damaged|not those|lost or changed)"
    ):
        run(conversation)


@pytest.mark.parametrize(
    ("topic", "key"), [("__transaction_state.a", b"\0\0\0\7cut"), ("__consumer_offsets", b"\0\1\0\7cut")]
)
def test_a_record_that_no_coordinator_wrote_is_named_with_its_file(topic, key):
    """Its batch is whole: so a log would be that somebody else has given this name."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk, topics=()) as desk:
            await begin(desk, "a/me")
            log = desk.broker.partitions.require(topic, 0)
            at = log.end_offset
            log.append(encode_batch([Record(0, 0, key, b"v", ())]), now_ms=0, origin=Origin.COORDINATOR)
            return at

    at = run(conversation)
    with pytest.raises(
        DamageError, match=rf"/data/{topic}-0/0+\.log is damaged at offset {at} .*\(.+\).*Restore"
    ):
        run(conversation)


def test_names_of_commit_logs_are_not_for_clients():
    async def conversation():
        async with opened() as desk:
            for name in ("__transaction_state.a", "__transaction_state_a", "__transaction_state.a.b"):
                with pytest.raises(RefusedError, match="broker's internal topics"):
                    desk.broker.topics.reservations.check_new(name, 1, {})
                with pytest.raises(RefusedError, match="broker's internal topics"):
                    await desk.broker.topic_changes.create_topic(name, 1, {})
            await begin(desk, "a/me")
            records = batch(b"v")
            answer = await desk.produce(records, topic="__transaction_state.a")
            assert answer.error_code is ErrorCode.invalid_topic_exception
            with pytest.raises(RefusedError):
                await desk.broker.topic_changes.delete_topic("__transaction_state.a")

    run(conversation)


def open_in_kafka(disk):
    """A transaction of an id with a slash in the default group, as in a directory of Apache Kafka. Returns whose."""

    async def before():
        async with opened(disk) as desk:
            default = desk.broker.transactions.default
            told = default.apply(
                default.coordinator.producers.init_producer_id(
                    "a/me", 60_000, api_version=4, now_ms=desk.broker.now_ms()
                )
            )
            who = (told.producer_id, told.producer_epoch)
            default.apply(
                default.coordinator.add_partitions(
                    "a/me", *who, [("t", 0)], api_version=3, now_ms=desk.broker.now_ms()
                )
            )
            partition = desk.broker.partitions.require("t", 0)
            partition.append(batch(b"open", producer=who, sequence=0), now_ms=desk.broker.now_ms())
            desk.broker.flush.mark_dirty(partition)
            await desk.durable()
            return who

    return run(before)


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_an_id_with_a_slash_had_open_in_kafka_is_ended_by_its_successor(has_begun):
    disk = SimDisk()
    old = open_in_kafka(disk)

    async def afterwards():
        async with opened(disk, stablelog_max_transaction_groups=int(has_begun)) as desk:
            if has_begun:
                create(desk)
                await begin(desk, "a/other")
            partition = desk.broker.partitions.require("t", 0)
            assert len(partition.log.open_transactions()) == 1
            assert desk.broker.transactions.describe("a/me").state.label == "Ongoing"
            # The successor is told to try again, and then gets what a broker without this transaction would give it.
            assert (await desk.ask(22, 4, **_init("a/me"))).error_code is ErrorCode.concurrent_transactions
            await desk.durable()
            assert partition.log.open_transactions() == []
            answer = await desk.ask(22, 4, **_init("a/me"))
            if has_begun:
                assert (answer.producer_id, answer.producer_epoch) != old
                group = desk.broker.transactions.get("a")
                assert "a/me" in group.coordinator.table
            else:
                assert answer.error_code is ErrorCode.policy_violation
            assert desk.values() == []

    run(afterwards)


@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_what_an_id_with_a_slash_had_open_in_kafka_is_ended_by_its_producer(outcome):
    disk = SimDisk()
    who = open_in_kafka(disk)

    async def afterwards():
        async with opened(disk) as desk:
            create(desk)
            assert await desk.add("a/me", who, ("ta", 0)) == [ErrorCode.invalid_txn_state]
            assert (await desk.end("a/me", who, outcome)).error_code is NONE
            await desk.durable()
            assert desk.values() == ([b"open"] if outcome is COMMIT else [])
            assert await desk.add("a/me", who, ("ta", 0)) == [NONE]
            assert "a/me" in desk.broker.transactions.get("a").coordinator.table

    run(afterwards)


def test_what_an_id_with_a_slash_had_prepared_in_kafka_is_kept_by_its_successor():
    disk = SimDisk()
    old = open_in_kafka(disk)

    async def afterwards():
        async with opened(disk, transaction_two_phase_commit_enable="true") as desk:
            asked = {**_init("a/me"), "enable2_pc": True, "keep_prepared_txn": True}
            kept = await desk.ask(22, 6, **asked)
            assert (kept.error_code, kept.ongoing_txn_producer_id) == (NONE, old[0])
            who = (kept.producer_id, kept.producer_epoch)
            assert (await desk.end("a/me", who, COMMIT)).error_code is NONE
            await desk.durable()
            assert desk.values() == [b"open"]

    run(afterwards)


def test_topics_of_two_groups_have_no_cut():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            answer = await desk.ask(
                ApiKey.DESCRIBE_CUT, 0, group=None, commit_sequence=-1, topics=("ta", "tb")
            )
            assert answer.error_code is ErrorCode.invalid_request
            assert (
                "'tb' belongs to transaction group 'b', not to transaction group 'a'" in answer.error_message
            )
            answer = await desk.ask(ApiKey.DESCRIBE_CUT, 0, group="", commit_sequence=-1, topics=("ta",))
            assert answer.error_code is ErrorCode.invalid_request

    run(conversation)


def test_a_topic_made_again_in_another_group_begins_anew():
    """What the old one's group has decided for the name is no matter of the new one's."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk, topics=()) as desk:
            create(desk)
            who = await desk.init("a/me")
            await write(desk, "a/me", who, b"old", "ta")
            await desk.end("a/me", who, COMMIT)
            await write(desk, "a/me", who, b"open", "ta", 1)
            await desk.durable()
            await desk.broker.topic_changes.delete_topic("ta")
            desk.broker.topic_files.create("ta", 1, {"stablelog.group": "b", "stablelog.order": "commit"})
            other = await desk.init("b/me")
            await write(desk, "b/me", other, b"new", "ta")
            late = batch(b"late", producer=who, sequence=2)
            assert (await desk.produce(late, topic="ta", transactional_id="a/me")).error_code is REFUSED
            assert (await desk.end("a/me", who, COMMIT)).error_code is NONE  # what is left of it: nothing
            await desk.end("b/me", other, COMMIT)
            await desk.durable()
            partition = desk.broker.partitions.require("ta", 0)
            data = b"".join(partition.read(0, 1 << 30, Isolation.LOG_END).buffers)
            markers = [read_marker(data, at) for at, header in headers_in(data) if header.is_control]
            assert [marker.group for marker in markers] == ["b"]

    async def afterwards():
        async with opened(disk, topics=()) as desk:
            await desk.durable()
            assert desk.values("ta") == [b"new"]
            for name in ("a", "b"):
                group = desk.broker.transactions.get(name)
                last = group.coordinator.table.sequences.last
                assert group.resolved_commit_sequence == last == (2 if name == "a" else 1)

    run(conversation)
    run(afterwards)


def test_metrics_tell_of_each_group():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("a/me")
            await write(desk, "a/me", who, b"v", "ta")
            await desk.end("a/me", who, COMMIT)
            await desk.durable()
            told = {
                labels: value
                for name, labels, value in await desk.broker.metrics.read_samples()
                if name == "stablelog_resolved_commit_sequence"
            }
            assert told == {("",): 0, ("a",): 1}

    run(conversation)
