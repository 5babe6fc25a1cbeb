"""Cuts: whole transactions over any number of partitions, at any moment, through crashes."""

import asyncio
import random
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.broker.broker import Broker
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.transactions import marker_writer
from stablelog.broker.transactions.marker_durability import MarkerDurability
from stablelog.errors import DamageError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import Desk, Gate, batch, opened

SEEDS = 10  # histories without the wire, many more of them: tests/cuts
TOPICS, PARTITIONS, WRITERS, TRANSACTIONS = ("t", "u"), 2, 4, 12
COMMIT_ORDER = {"stablelog.order": "commit"}


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 120))


def create(desk):
    for name in TOPICS:
        if desk.broker.topics.get(name) is None:
            desk.broker.topic_files.create(name, PARTITIONS, COMMIT_ORDER)


async def ask(desk, commit_sequence=-1, topics=TOPICS, group=None):
    return await desk.ask(ApiKey.DESCRIBE_CUT, 0, group=group, commit_sequence=commit_sequence, topics=topics)


def read_to(desk, answer):
    """The values below the cut: {partition: [values]}."""
    found = {}
    for topic in answer.topics:
        for cut in topic.partitions:
            partition = desk.broker.partitions.require(topic.name, cut.partition_index)
            start = partition.visible_start(Isolation.READ_COMMITTED)
            read = partition.read(start, 1 << 30, Isolation.READ_COMMITTED)
            data = b"".join(read.buffers)
            found[topic.name, cut.partition_index] = [
                record.value
                for at, _ in headers_in(data)
                for record in decode_records(data, at)
                if record.offset < cut.offset
            ]
    return found


class History:
    """Writers whose transactions span partitions; every value names its transaction."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.wrote = {}  # transaction -> partitions
        self.decided = {}  # transaction -> committed?
        self.cuts = []

    async def write(self, desk, writer):
        name = f"w{writer}-{self.random.random()}"
        producer = await desk.init(name)
        sequences = {}
        for number in range(TRANSACTIONS // WRITERS):
            txn = b"%d.%d" % (writer, number)
            everywhere = [(topic, index) for topic in TOPICS for index in range(PARTITIONS)]
            targets = self.random.sample(everywhere, self.random.randint(1, len(everywhere)))
            self.wrote[txn] = set(targets)
            await desk.add(name, producer, *targets)
            for target in targets:
                records = batch(txn, txn, producer=producer, sequence=sequences.get(target, 0))
                answer = await desk.produce(
                    records, topic=target[0], partition=target[1], transactional_id=name
                )
                assert answer.error_code is ErrorCode.none
                sequences[target] = sequences.get(target, 0) + 2
                await self.pause()
            committed = self.random.random() < 0.8
            self.decided[txn] = committed
            assert (await desk.end(name, producer, committed)).error_code is ErrorCode.none

    async def pause(self):
        for _ in range(self.random.randint(0, 3)):
            await asyncio.sleep(0)

    async def look(self, desk):
        for _ in range(15):
            await self.pause()
            answer = await ask(desk)
            assert answer.error_code is ErrorCode.none, answer.error_message
            self.check_whole(desk, answer)
            self.cuts.append(answer)

    def check_whole(self, desk, answer):
        """No transaction is in the cut in part."""
        found = read_to(desk, answer)
        for txn, targets in self.wrote.items():
            there = {target for target, values in found.items() if txn in values}
            assert there in (set(), targets), (txn, answer.commit_sequence)
            assert not there or self.decided.get(txn), "what was not committed is in no cut"
            assert all(found[target].count(txn) == 2 for target in there)
        return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_cut_shows_a_part_of_a_transaction(seed):
    history = History(seed)
    disk = SimDisk()

    async def live():
        async with opened(disk, topics=()) as desk:
            create(desk)
            await asyncio.gather(
                history.look(desk), *(history.write(desk, writer) for writer in range(WRITERS))
            )
            await desk.durable()
            answer = await ask(desk)
            assert answer.commit_sequence == answer.last_commit_sequence == sum(history.decided.values())
            found = history.check_whole(desk, answer)
            whole = {txn for txn, committed in history.decided.items() if committed}
            assert {txn for values in found.values() for txn in values} == whole
            assert answer.holders == ()
            # A cut that is asked for again, by its number, is the same but for what it had not seen end yet.
            for cut in history.cuts:
                again = await ask(desk, cut.commit_sequence)
                for before, after in zip(cut.topics, again.topics, strict=True):
                    for first, second in zip(before.partitions, after.partitions, strict=True):
                        assert first.offset <= second.offset
                assert read_to(desk, again) == read_to(desk, cut)
            history.left = disk.crash(history.random)

    async def afterwards():
        async with opened(history.left, topics=()) as desk:
            await desk.durable()
            answer = await ask(desk)
            history.check_whole(desk, answer)
            for cut in history.cuts:
                assert read_to(desk, await ask(desk, cut.commit_sequence)) == read_to(desk, cut)

    run(live)
    run(afterwards)


def test_the_group_of_a_cut_is_that_of_its_topics():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            for group in (None, ""):
                answer = await ask(desk, group=group)
                assert (answer.error_code, answer.group) == (ErrorCode.none, "")
            answer = await ask(desk, group="payments")
            assert answer.error_code is ErrorCode.invalid_request
            assert "'t' belongs to the default transaction group" in answer.error_message
            assert "transaction group 'payments'" in answer.error_message

    run(conversation)


def test_an_ordinary_topic_has_no_cut():
    async def conversation():
        async with opened(topics=("t",)) as desk:
            assert (await ask(desk, topics=("t",))).error_code is ErrorCode.invalid_request
            assert (await ask(desk, topics=("none",))).error_code is ErrorCode.unknown_topic_or_partition

    run(conversation)


async def write_one(desk, name="me"):
    producer = await desk.init(name)
    await desk.add(name, producer, ("t", 0), ("u", 1))
    for topic, index in (("t", 0), ("u", 1)):
        records = batch(b"v", producer=producer, sequence=0)
        await desk.produce(records, topic=topic, partition=index, transactional_id=name)
    return producer


def test_a_decision_that_is_not_durable_is_in_no_cut():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            producer = await write_one(desk)
            with desk.held_disk():
                ending = asyncio.ensure_future(desk.end("me", producer, True))
                for _ in range(20):  # turns of the loop, until it is decided
                    await asyncio.sleep(0)
                answer = await ask(desk)
                assert (answer.commit_sequence, answer.last_commit_sequence) == (0, 1)
                assert (await ask(desk, 1)).error_code is ErrorCode.invalid_request
            assert (await ending).error_code is ErrorCode.none
            await desk.durable()
            assert (await ask(desk)).commit_sequence == 1

    run(conversation)


def test_a_cut_says_which_marker_it_waits_for():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            producer = await write_one(desk)
            closed = desk.broker.partitions.of_topic(desk.broker.topics.named("t")).pop(
                0
            )  # as while it is being recovered
            await desk.end("me", producer, True)
            answer = await ask(desk, topics=("u",))
            assert (answer.commit_sequence, answer.last_commit_sequence) == (0, 1)
            (holder,) = answer.holders
            assert (holder.commit_sequence, holder.transactional_id) == (1, "me")
            assert (holder.topic, holder.partition_index) == ("t", 0)
            assert read_to(desk, answer) == {("u", 0): [], ("u", 1): []}
            desk.broker.partitions.of_topic(desk.broker.topics.named("t"))[0] = closed
            desk.broker.partition_repair.partition_opened(closed)
            await desk.durable()
            answer = await ask(desk)
            assert (answer.commit_sequence, answer.holders) == (1, ())

    run(conversation)


def test_after_a_start_a_cut_waits_for_a_partition_that_is_offline_and_names_it(monkeypatch):
    disk = SimDisk()

    async def written():
        async with opened(disk, topics=()) as desk:
            create(desk)
            await desk.end("me", await write_one(desk), True)
            await desk.durable()
            assert (await ask(desk)).commit_sequence == 1

    async def with_one_closed():
        async with opened(disk, topics=()) as desk:
            for commit_sequence in (-1, 1):
                answer = await ask(desk, commit_sequence, topics=("u",))
                assert answer.error_code is ErrorCode.kafka_storage_error
                assert "t-0 may lack a commit marker, and cannot be opened" in answer.error_message
            assert (await ask(desk, 2, topics=("u",))).error_code is ErrorCode.invalid_request
            assert (await ask(desk, 0, topics=("u",))).error_code is ErrorCode.none

    recover_partition = TopicFiles.recover_partition

    def all_but_one(self, topic, index, progress=None):
        if (topic.name, index) == ("t", 0):
            raise DamageError("as if it were damaged")
        return recover_partition(self, topic, index, progress)

    run(written)
    with monkeypatch.context() as patch:
        patch.setattr(TopicFiles, "recover_partition", all_but_one)
        run(with_one_closed)


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(4))
def test_the_last_cut_never_goes_back_over_restarts(seed):
    """Right after a start, and for as long as a partition is opening, it is not known."""
    chance = random.Random(seed)
    waiting = {ErrorCode.coordinator_load_in_progress, ErrorCode.not_leader_or_follower}
    disks, told, refused = [SimDisk()], [0], []

    async def look(desk):
        for topics in (TOPICS, ("t",), ("u",)):
            answer = await ask(desk, topics=topics)
            if answer.error_code is ErrorCode.none:
                told.append(answer.commit_sequence)
            else:
                refused.append(answer.error_code)
                assert answer.error_code in waiting, answer.error_message

    async def life(gate):
        async with opened(disks[-1], topics=(), gate=gate) as desk:
            await look(desk)
            gate.open()
            await desk.opened(*gate.held)
            await look(desk)
            producer = await write_one(desk)
            assert (await desk.end("me", producer, True)).error_code is ErrorCode.none
            await look(desk)
            await desk.durable()
            await look(desk)
            disks.append(disks[-1].crash(chance))

    async def first():
        async with opened(disks[-1], topics=()) as desk:
            create(desk)

    run(first)
    for number in range(6):
        run(lambda: life(Gate(chance.choice(TOPICS), chance.randrange(PARTITIONS))))
        assert told == sorted(told)
        assert told[-1] == number + 1
    assert set(refused) <= waiting
    assert refused


@pytest.mark.parametrize(
    ("topics", "code"), [(("u",), "coordinator_load_in_progress"), (TOPICS, "not_leader_or_follower")]
)
def test_while_a_partition_is_opening_the_last_cut_is_not_known(topics, code):
    disk, gate = SimDisk(), Gate("t")

    async def written():
        async with opened(disk, topics=()) as desk:
            create(desk)
            await desk.end("me", await write_one(desk), True)
            await desk.durable()
            assert (await ask(desk)).commit_sequence == 1

    async def restarted():
        async with opened(disk, topics=(), gate=gate) as desk:
            for commit_sequence in (-1, 1):
                assert (await ask(desk, commit_sequence, topics)).error_code is ErrorCode[code]
            assert (await ask(desk, 2, ("u",))).error_code is ErrorCode.invalid_request
            gate.open()
            await desk.opened("t")
            assert (await ask(desk, -1, topics)).commit_sequence == 1

    run(written)
    run(restarted)


def test_after_a_start_nobody_sees_a_partition_before_the_markers_that_wait_for_it_are_written(monkeypatch):
    """A thread recovers it. A marker of who came after that, and before they are, would stand before theirs."""
    disk, who = SimDisk(), {}
    is_asked, is_recovered, may_go_on = threading.Event(), threading.Event(), threading.Event()
    recover_partition, start = TopicFiles.recover_partition, Broker.start
    meanwhile = []

    async def written():
        async with opened(disk, topics=()) as desk:
            create(desk)
            for name in ("first", "second"):
                who[name] = await desk.init(name)
                assert await desk.add(name, who[name], ("t", 0)) == [ErrorCode.none]
                await desk.produce(
                    batch(name.encode(), producer=who[name], sequence=0), transactional_id=name
                )

    def slowly(self, topic, index, progress=None):
        if (topic.name, index) != ("t", 0):
            return recover_partition(self, topic, index, progress)
        assert is_asked.wait(60)
        partition = recover_partition(self, topic, index, progress)
        is_recovered.set()
        assert may_go_on.wait(60)
        return partition

    async def commit_both(desk):
        codes = [(await desk.commit("first", who["first"])).error_code]
        is_asked.set()
        assert await asyncio.to_thread(is_recovered.wait, 60)
        codes.append((await desk.end("second", who["second"], True)).error_code)
        may_go_on.set()
        return codes

    async def started(broker):
        await start(broker)
        meanwhile.append(asyncio.create_task(commit_both(Desk(broker))))

    async def read():
        async with opened(disk, topics=()) as desk:
            assert await meanwhile[0] == [ErrorCode.none, ErrorCode.none]
            await desk.durable()
            assert read_to(desk, await ask(desk, 1))["t", 0] == [b"first"]
            assert read_to(desk, await ask(desk, 2))["t", 0] == [b"first", b"second"]

    run(written)
    monkeypatch.setattr(TopicFiles, "recover_partition", slowly)
    monkeypatch.setattr(Broker, "start", started)
    run(read)


def test_who_asks_for_a_cut_does_not_pay_for_all_commits_before(monkeypatch):
    made = []

    class Kept(MarkerDurability):
        def __init__(self, topics):
            super().__init__(topics)
            made.append(self)

    monkeypatch.setattr(marker_writer, "MarkerDurability", Kept)

    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            who = await desk.init("a")
            for sequence in range(200):
                assert await desk.add("a", who, ("t", 0)) == [ErrorCode.none]
                await desk.produce(batch(b"v", producer=who, sequence=sequence), transactional_id="a")
                assert (await desk.end("a", who, True)).error_code is ErrorCode.none
                await desk.durable()
            assert (await ask(desk)).commit_sequence == 200
            [durability] = made
            assert len(durability) <= 2

    run(conversation)
