"""A broker takes over small directories of Apache Kafka, byte for byte as Kafka leaves them, on a simulated disk."""

import asyncio
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import Marker, MarkerType, encode_marker, read_marker
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.broker.broker import Broker
from stablelog.broker.settings.config import BrokerConfig
from stablelog.coordinators.transactions.log_ends import LogEnd
from stablelog.coordinators.transactions.records import decode_transaction, transaction_key
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.log.partition import Isolation
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import ABORT, COMMIT, DATA, batch, opened
from tests.coordinators.transactions.kafka_coordinator import kafka_value

NOW_MS = SimClock().now_ms()
PRODUCER = (7, 3)
NONE = ErrorCode.none
TV1 = 1


class KafkaDirectory:
    """Writes what Kafka writes for one TV1 producer, and keeps it in the operating system: nothing of it is lost later."""

    def __init__(self, partitions=("t-0", "t-1")):
        self.disk = SimDisk()
        self.ends = dict.fromkeys((*partitions, "__transaction_state-0"), 0)
        for name in self.ends:
            self.disk.make_dir(DATA / name)
            self.disk.write_atomic(DATA / name / "leader-epoch-checkpoint", b"0\n1\n2 0\n")
            self.disk.write_atomic(DATA / name / f"{0:020d}.log", b"")

    def append(self, name, content, count):
        path = DATA / name / f"{0:020d}.log"
        self.disk.write_atomic(path, self.disk.read_bytes(path) + content)
        self.ends[name] += count

    def state(self, state, *targets):
        """A record of `__transaction_state`."""
        value = kafka_value(
            *PRODUCER,
            state,
            [(target.rpartition("-")[0], int(target[-1])) for target in targets],
            transaction_version=TV1,
            timeout_ms=600_000,
            update_ms=NOW_MS,
            start_ms=NOW_MS,
        )
        record = Record(0, NOW_MS, transaction_key("id"), value, ())
        name = "__transaction_state-0"
        self.append(name, encode_batch([record], base_offset=self.ends[name], leader_epoch=2), 1)

    def data(self, name, *values, sequence):
        """A batch of the producer's transaction."""
        records = [Record(0, NOW_MS, None, value, ()) for value in values]
        content = encode_batch(
            records,
            base_offset=self.ends[name],
            leader_epoch=2,
            producer_id=PRODUCER[0],
            producer_epoch=PRODUCER[1],
            base_sequence=sequence,
            transactional=True,
        )
        self.append(name, content, len(values))

    def marker(self, name, kind):
        """The marker of the producer's transaction."""
        content = encode_marker(
            Marker(kind, coordinator_epoch=2),
            base_offset=self.ends[name],
            leader_epoch=2,
            producer_id=PRODUCER[0],
            producer_epoch=PRODUCER[1],
            timestamp_ms=NOW_MS,
        )
        self.append(name, content, 1)

    def transaction(self, kind):
        """A whole transaction over both partitions: offsets 0 and 1 of each."""
        self.state(TransactionState.ONGOING, "t-0", "t-1")
        for name in ("t-0", "t-1"):
            self.data(name, b"before", sequence=0)
        self.state(
            TransactionState.PREPARE_COMMIT if kind is MarkerType.COMMIT else TransactionState.PREPARE_ABORT,
            "t-0",
            "t-1",
        )
        for name in ("t-0", "t-1"):
            self.marker(name, kind)
        self.state(
            TransactionState.COMPLETE_COMMIT if kind is MarkerType.COMMIT else TransactionState.COMPLETE_ABORT
        )

    def begin_another(self):
        """The next transaction, open in both partitions from offset 2 on."""
        self.state(TransactionState.ONGOING, "t-0", "t-1")
        for name in ("t-0", "t-1"):
            self.data(name, b"open", sequence=1)


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation, 120))


def markers_in(desk, partition):
    """(offset, type) of each marker of a partition."""
    log = desk.broker.partitions.require("t", partition)
    data = b"".join(log.read(0, 1 << 20, Isolation.LOG_END).buffers)
    return [
        (header.base_offset, read_marker(data, at).type)
        for at, header in headers_in(data)
        if header.is_control
    ]


def state_of(desk):
    return desk.broker.transactions.describe("id").state.label


@pytest.mark.parametrize("kind", list(MarkerType))
@pytest.mark.parametrize("decision", [COMMIT, ABORT])
@pytest.mark.parametrize("when", ["at once", "after a restart", "after a power cut"])
def test_an_open_transaction_stays_open_and_its_producer_decides_it(kind, decision, when):
    """Also behind a decided transaction of the same producer and epoch, over two partitions."""
    directory = KafkaDirectory()
    directory.transaction(kind)
    directory.begin_another()
    before = [b"before"] if kind is MarkerType.COMMIT else []

    async def conversation():
        disk = directory.disk
        async with opened(disk, topics=()) as desk:
            assert state_of(desk) == "Ongoing"
            for partition in (0, 1):
                assert desk.broker.partitions.require("t", partition).last_stable_offset == 2
                assert markers_in(desk, partition) == [(1, kind)]
                assert desk.values(partition=partition) == before
            if when == "at once":
                await decide(desk)
            elif when == "after a power cut":
                disk = disk.crash(random.Random(1))
        if when != "at once":
            async with opened(disk, topics=()) as desk:
                assert state_of(desk) == "Ongoing"
                await decide(desk)
        async with opened(disk, topics=()) as desk:
            check(desk)

    async def decide(desk):
        assert (await desk.end("id", PRODUCER, decision)).error_code is NONE
        await desk.durable()
        check(desk)

    def check(desk):
        for partition in (0, 1):
            assert desk.values(partition=partition) == before + ([b"open"] if decision else [])

    run(conversation())


@pytest.mark.parametrize("kind", list(MarkerType))
@pytest.mark.parametrize("marked", [(), ("t-0",), ("t-0", "t-1")])
def test_a_pending_decision_is_carried_out_where_its_marker_is_missing(kind, marked):
    """And it is not the decision before it that is carried out."""
    directory = KafkaDirectory()
    directory.transaction(MarkerType(1 - kind))
    directory.begin_another()
    directory.state(
        TransactionState.PREPARE_COMMIT if kind is MarkerType.COMMIT else TransactionState.PREPARE_ABORT,
        "t-0",
        "t-1",
    )
    for name in marked:
        directory.marker(name, kind)

    async def conversation():
        async with opened(directory.disk, topics=()) as desk:
            for partition in (0, 1):
                assert markers_in(desk, partition) == [(1, 1 - kind), (3, kind)]
            assert state_of(desk) == ("CompleteCommit" if kind is MarkerType.COMMIT else "CompleteAbort")

    run(conversation())


@pytest.mark.parametrize("seed", range(12))
def test_the_next_transaction_is_not_taken_for_what_kafka_had_decided(seed):
    """Power cuts: before what the takeover adds to the commit log is durable, and under the producer's next transaction."""
    chance = random.Random(seed)
    directory = KafkaDirectory()
    directory.begin_another()  # with sequence 1: nothing checks it
    directory.state(TransactionState.PREPARE_COMMIT, "t-0", "t-1")

    async def conversation():
        disk = directory.disk
        for _ in range(chance.randrange(3)):
            async with opened(disk, topics=()) as desk:
                after = disk.crash(chance)
            disk = after
        async with opened(disk, topics=()) as desk:
            for partition in (0, 1):
                assert await desk.add("id", PRODUCER, ("t", partition)) == [NONE]
                answer = await desk.produce(
                    batch(b"next", producer=PRODUCER, sequence=2), partition=partition, transactional_id="id"
                )
                assert answer.error_code is NONE
            after = disk.crash(chance)
        async with opened(after, topics=()) as desk:
            for partition in (0, 1):
                assert desk.values(partition=partition) == [b"open"], "an open transaction is visible"
            assert state_of(desk) == "Ongoing"
            assert (await desk.end("id", PRODUCER, ABORT)).error_code is NONE
            await desk.durable()
            for partition in (0, 1):
                assert desk.values(partition=partition) == [b"open"]

    run(conversation())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
def test_what_a_takeover_adds_is_durable_before_anyone_can_write(seed):
    """A pending decision of Kafka's is written again with the place where its partitions ended."""
    directory = KafkaDirectory()
    directory.begin_another()
    directory.state(TransactionState.PREPARE_COMMIT, "t-0", "t-1")

    async def take_over():
        broker = Broker(BrokerConfig({}), DATA, disk=directory.disk, clock=SimClock(), on_failure=pytest.fail)
        disk = directory.disk.crash(random.Random(seed))
        await broker.stop()
        return disk

    log = run(take_over()).read_bytes(DATA / "__transaction_state-0" / f"{0:020d}.log")
    values = [record.value for at, _ in headers_in(log) for record in decode_records(log, at)]
    written = [decode_transaction(value) for value in values]
    assert [txn.state for txn in written] == [
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_COMMIT,
    ]
    assert written[2].ends == {("t", 0): LogEnd(3, 0), ("t", 1): LogEnd(3, 0)}
