"""A full disk: clients' writes are refused, all else goes on, and nothing is said to be done that is not."""

import asyncio
import contextlib
import errno
import os
import random
from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import describe_log_dirs
from stablelog.broker.broker import Broker
from stablelog.broker.durability import journal
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.upkeep import maintenance
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.data_directory.names import RESERVE_FILE
from stablelog.errors import DiskError, RefusedError, UnavailableError
from stablelog.log.partition import Isolation, Partition
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker import full_disk_life
from tests.broker.apis.test_txn_offset_commit import add_offsets
from tests.broker.apis.test_txn_offset_commit import commit as commit_offsets
from tests.broker.desk import ABORT, COMMIT, DATA, SIMULATED, Desk, batch, init_fields, part
from tests.declared_apis import REFUSED_WHILE_FULL

NONE = ErrorCode.none
SIZE = 64 << 10
MANY = 300  # transactions
NEVER_S = 1e6
UNTIMED = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": str(int(NEVER_S * 1000))}


class FullDisk(SimDisk):
    """A disk on which one operation fails, of those whose name holds a word."""

    word = None
    code = errno.ENOSPC

    def step(self, what, torn=None, path=None):
        if self.word is not None and self.word in what:
            self.word = None
            raise DiskError(what, self.code)
        super().step(what, torn, path)


class NoRoom(FullDisk):
    """A disk on which an operation fails again and again."""

    def step(self, what, torn=None, path=None):
        if self.word is not None and self.word in what:
            raise DiskError(what, self.code)
        super().step(what, torn, path)

    def fill(self):
        """Leave no free byte."""
        self.capacity = size = 1 << 40
        self.capacity = size - self.free_size(DATA)

    def grow(self):
        """There is room again."""
        self.capacity = self.word = None


def run(disk, conversation, *, clock=None, size=0, **settings):
    """A broker on the disk, for one conversation. Returns how it failed.

    No task does anything by the clock of the machine: on a slow one, it would write in the middle of a conversation, and
    take that from the reserve. What is done while the disk is full is done by `tend`.
    """
    given = SIMULATED | UNTIMED | {name.replace("_", "."): str(value) for name, value in settings.items()}
    given["stablelog.disk.reserve.bytes"] = str(size)

    async def life():
        failures = []
        broker = Broker(
            BrokerConfig(given), DATA, disk=disk, clock=clock or SimClock(), on_failure=failures.append
        )
        await broker.start()
        await next(task for task in asyncio.all_tasks() if task.get_name() == "recovery")
        if broker.topics.get("t") is None:
            broker.topic_files.create("t", 1, {})
        try:
            await conversation(Desk(broker))
        finally:
            await broker.stop()
        return failures

    with pytest.MonkeyPatch.context() as patched:
        for interval in ("RESERVE_S", "RECOVERY_POINT_S", "CHECKPOINT_S", "REMOVAL_S"):
            patched.setattr(maintenance, interval, NEVER_S)
        return asyncio.run(asyncio.wait_for(life(), 100))


async def tend(desk):
    """Do what is done every second while the disk is full."""
    await desk.broker.maintenance.tend_reserve()


async def until(condition):
    """Wait for what a task does."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.002)


async def opened_transaction(desk, name, *values, partition=0):
    """A transaction of the first dialect that is open."""
    who = await desk.init(name)
    assert await desk.add(name, who, ("t", partition)) == [NONE]
    for sequence, value in enumerate(values):
        written = await desk.produce(
            batch(value, producer=who, sequence=sequence), partition=partition, transactional_id=name
        )
        assert written.error_code is NONE
    return who


# -- while no byte is free -----------------------------------------------------------------------------------------


async def codes_of_ends(desk, idle):
    """What each API says that ends transactions, and finds nothing open."""
    marker = {
        "producer_id": 77,
        "producer_epoch": 0,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    marked = await desk.ask_with(27, 1, {"markers": [marker]})
    joint = {"key": "k", "version": 0, "run": "r", "children": ()}
    return {
        "EndTxn": (await desk.end("idle", idle, ABORT, version=5)).error_code,
        "WriteTxnMarkers": marked.markers[0].topics[0].partitions[0].error_code,
        "CommitJoint": (await desk.ask(ApiKey.COMMIT_JOINT, 0, **joint, group_offsets=())).error_code,
        "AbortJoint": (await desk.ask(ApiKey.ABORT_JOINT, 0, **joint)).error_code,
    }


async def codes_of_writes(desk, who):
    """What each API says that writes for a client, by its name."""
    commit = part(
        8,
        2,
        "request",
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=1,
        committed_metadata="",
    )
    committed = await desk.ask(
        8,
        2,
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        topics=(part(8, 2, "request", "OffsetCommitRequestTopic", name="t", partitions=(commit,)),),
    )
    protocol = part(11, 2, "request", "JoinGroupRequestProtocol", name="range", metadata=b"")
    joined = await desk.ask(
        11,
        2,
        group_id="g",
        session_timeout=full_disk_life.TIMEOUT,
        rebalance_timeout=full_disk_life.TIMEOUT,
        member_id="",
        protocol_type="consumer",
        protocols=(protocol,),
    )
    beaten = await desk.ask(
        68,
        1,
        group_id="consumers",
        member_id="m",
        member_epoch=0,
        rebalance_timeout=full_disk_life.TIMEOUT,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    synced = await desk.ask(14, 2, group_id="g", generation_id=1, member_id="m", assignments=())
    topic = part(
        19,
        4,
        "request",
        "CreatableTopic",
        name="new",
        num_partitions=1,
        replication_factor=1,
        assignments=(),
        configs=(),
    )
    made = await desk.ask(19, 4, topics=(topic,), timeout=full_disk_life.TIMEOUT, validate_only=False)
    more = part(37, 1, "request", "CreatePartitionsTopic", name="t", count=5, assignments=None)
    grown = await desk.ask(37, 1, topics=(more,), timeout=full_disk_life.TIMEOUT, validate_only=False)
    return {
        "Produce": (await desk.produce(batch(b"no"))).error_code,
        "CreateTopics": made.topics[0].error_code,
        "CreatePartitions": grown.results[0].error_code,
        "InitProducerId": (await desk.ask(22, 4, **init_fields(4, "new"))).error_code,
        "AddPartitionsToTxn": (await desk.add("a", who, ("t", 0)))[0],
        "AddOffsetsToTxn": await add_offsets(desk, who),
        "TxnOffsetCommit": await commit_offsets(desk, 3, who),
        "BeginJoint": (await desk.ask(ApiKey.BEGIN_JOINT, 0, key="k", version=0, run="r")).error_code,
        "OffsetCommit": committed.topics[0].partitions[0].error_code,
        "JoinGroup": joined.error_code,
        "ConsumerGroupHeartbeat": beaten.error_code,
        "SyncGroup": synced.error_code,
    }


def test_writes_of_clients_are_refused_with_codes_that_they_retry_and_taken_when_there_is_room():
    disk = NoRoom()

    async def conversation(desk):
        who, idle = await opened_transaction(desk, "a", b"x"), await desk.init("idle")
        disk.fill()
        assert (await desk.produce(batch(b"first"))).error_code is ErrorCode.kafka_storage_error
        codes = await codes_of_writes(desk, who) | await codes_of_ends(desk, idle)
        assert codes == REFUSED_WHILE_FULL
        refused = await desk.produce(batch(b"second"))
        assert "the disk of /data is full" in refused.error_message
        await tend(desk)
        assert desk.broker.reserve.is_full
        disk.grow()
        await tend(desk)
        assert (await desk.produce(batch(b"third"))).error_code is NONE
        assert (await desk.end("a", who, COMMIT)).error_code is NONE
        await desk.durable()
        assert desk.values() == [b"x", b"third"]

    assert run(disk, conversation) == []


def test_old_versions_of_produce_are_told_what_they_know():
    disk = NoRoom()

    async def conversation(desk):
        desk.broker.reserve.record_failure(DiskError("writing", errno.ENOSPC))
        for version, code in ((3, ErrorCode.not_leader_or_follower), (4, ErrorCode.kafka_storage_error)):
            assert (await desk.produce(batch(b"x"), version=version)).error_code is code

    assert run(disk, conversation) == []


@pytest.mark.extended
def test_readers_are_served_and_transactions_end_by_their_producers_and_by_time():
    disk, clock = NoRoom(), SimClock()

    async def conversation(desk):
        await desk.produce(batch(b"outside"))
        one = await opened_transaction(desk, "one", b"1")
        for n in range(MANY):
            await opened_transaction(desk, f"late-{n}", b"no")
        partition = desk.broker.partitions.require("t", 0)
        disk.fill()
        assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error
        assert desk.values() == [b"outside"]
        assert len(desk.values(isolation=Isolation.READ_UNCOMMITTED)) == MANY + 2
        assert (await desk.end("one", one, COMMIT)).error_code is NONE
        clock.advance(61_000)
        await desk.broker.maintenance.abort_overdue()
        await until(lambda: not partition.log.open_transactions())
        await desk.durable()
        assert partition.last_stable_offset == partition.end_offset
        assert desk.values() == [b"outside", b"1"]
        assert not desk.broker.groups.journal.is_waiting
        assert disk.size(DATA / RESERVE_FILE) < 4 * SIZE

    assert run(disk, conversation, clock=clock, size=4 * SIZE) == []

    async def after(desk):
        disk.grow()
        await tend(desk)
        assert desk.values() == [b"outside", b"1"]
        assert (await desk.produce(batch(b"more"))).error_code is NONE

    assert run(disk, after, clock=clock, size=4 * SIZE) == []


@pytest.mark.extended
def test_retention_and_deletions_make_room_and_all_goes_on_by_itself():
    disk = NoRoom()

    async def conversation(desk):
        partitions, retention = (
            desk.broker.partitions,
            {"retention.bytes": "2000", "file.delete.delay.ms": "0"},
        )
        for name in ("kept", "shrunk", "gone", "cut"):
            await desk.broker.topic_changes.create_topic(
                name, 1, {"segment.bytes": "2000", "retention.ms": "-1"}
            )
            for _ in range(150):
                assert (await desk.produce(batch(bytes(1500)), topic=name)).error_code is NONE
        disk.fill()
        assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error
        desk.broker.topic_files.configure(desk.broker.topics.get("shrunk"), retention)
        await tend(desk)
        assert partitions.require("shrunk", 0).size < 4000
        assert partitions.require("cut", 0).deletion.delete_records(140) == 140
        await desk.broker.topic_changes.delete_topic("gone")
        await desk.broker.maintenance.remove_deleted()
        await tend(desk)
        assert not any(path.parent.name.startswith("gone") for path in disk.files(DATA))
        assert not desk.broker.reserve.is_full
        assert disk.size(DATA / RESERVE_FILE) == SIZE
        assert (await desk.produce(batch(b"yes"))).error_code is NONE
        assert len(partitions.require("kept", 0).segments()) > 100

    assert run(disk, conversation, size=SIZE, log_segment_delete_delay_ms=0) == []


def test_the_log_says_once_that_the_disk_is_full_and_once_that_it_has_room(caplog):
    caplog.set_level("INFO")
    disk = NoRoom()

    async def conversation(desk):
        disk.fill()
        for _ in range(5):
            refused = await desk.produce(batch(b"x"))
            assert refused.error_code is ErrorCode.kafka_storage_error
            await tend(desk)
        disk.grow()
        for _ in range(3):
            await tend(desk)
        assert (await desk.produce(batch(b"x"))).error_code is NONE

    assert run(disk, conversation, size=SIZE) == []
    assert caplog.text.count("the disk of /data is full") == 1
    assert caplog.text.count("the disk of /data has space again") == 1


def test_room_is_not_declared_before_the_write_that_failed_would_fit(caplog):
    caplog.set_level("INFO")
    disk = NoRoom()
    large = batch(bytes(1_000_000))

    async def conversation(desk):
        disk.fill()
        disk.capacity += 480_000  # more than the margin, and less than the write
        for _ in range(5):
            assert (await desk.produce(large)).error_code is ErrorCode.kafka_storage_error
            await tend(desk)
            assert desk.broker.reserve.is_full
        disk.capacity += 1_000_000
        await tend(desk)
        assert (await desk.produce(large)).error_code is NONE

    assert run(disk, conversation, size=SIZE) == []
    assert caplog.text.count("the disk of /data is full") == 1
    assert caplog.text.count("the disk of /data has space again") == 1


def test_a_quota_is_a_full_disk():
    disk = NoRoom()
    disk.code = errno.EDQUOT

    async def conversation(desk):
        disk.word = "append"
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.kafka_storage_error
        await tend(desk)
        assert desk.broker.reserve.is_full, "nothing can be written, whatever the disk says is free"
        disk.grow()
        await tend(desk)
        assert (await desk.produce(batch(b"x"))).error_code is NONE

    assert run(disk, conversation) == []


def test_nothing_is_compacted_on_a_full_disk():
    disk = NoRoom()

    async def conversation(desk):
        await desk.broker.topic_changes.create_topic(
            "k", 1, {"cleanup.policy": "compact", "segment.bytes": "1024"}
        )
        for _ in range(20):
            records = full_disk_life.encode_batch([full_disk_life.Record(0, 0, b"key", bytes(300))])
            assert (await desk.produce(records, topic="k")).error_code is NONE
        partition = desk.broker.partitions.require("k", 0)
        size = partition.size
        desk.broker.reserve.record_failure(DiskError("writing", errno.ENOSPC))
        await desk.broker.compactor.compact_all()
        assert partition.size == size
        await tend(desk)
        await desk.broker.compactor.compact_all()
        assert partition.size < size

    assert run(disk, conversation, log_cleaner_min_cleanable_ratio=0) == []


def test_the_usable_bytes_of_a_full_disk_are_none(monkeypatch):
    disk = NoRoom()

    volume = SimpleNamespace(f_blocks=1000, f_bavail=500, f_frsize=1)
    monkeypatch.setattr(describe_log_dirs.os, "statvfs", lambda _directory: volume)

    async def conversation(desk):
        async def usable():
            return (await desk.ask(35, 4, topics=None)).results[0].usable_bytes

        assert await usable() == 500
        desk.broker.reserve.record_failure(DiskError("writing", errno.ENOSPC))
        assert await usable() == 0
        await tend(desk)
        assert await usable() == 500

    assert run(disk, conversation) == []


# -- without any reserve left --------------------------------------------------------------------------------------


def test_a_commit_that_finds_no_room_is_acknowledged_when_it_is_written_and_never_before():
    disk = NoRoom()

    async def conversation(desk):
        await desk.broker.topic_changes.grow_topic("t", 2)
        producers = [await opened_transaction(desk, f"id-{n}", b"%d" % n, partition=n % 2) for n in range(4)]
        disk.fill()
        ends = [asyncio.create_task(desk.end(f"id-{n}", who, COMMIT)) for n, who in enumerate(producers)]
        again = asyncio.create_task(desk.end("id-0", producers[0], COMMIT))  # the first answer was lost
        for _ in range(3):
            await asyncio.sleep(0.01)
            await tend(desk)
        group = desk.broker.transactions.default
        assert not any(end.done() for end in (*ends, again))
        assert group.journal.is_waiting
        assert group.resolved_commit_sequence == 0
        assert (desk.values(partition=0), desk.values(partition=1)) == ([], [])
        disk.grow()
        await tend(desk)
        assert [end.error_code for end in await asyncio.gather(*ends, again)] == [NONE] * 5
        await desk.durable()
        assert group.resolved_commit_sequence == 4
        assert (desk.values(partition=0), desk.values(partition=1)) == ([b"0", b"2"], [b"1", b"3"])

    assert run(disk, conversation) == []


def test_a_commit_that_was_not_written_before_a_kill_is_not_there_after_it():
    disk = NoRoom()

    async def conversation(desk):
        who = await opened_transaction(desk, "a", b"x")
        disk.fill()
        end = asyncio.create_task(desk.end("a", who, COMMIT))
        await asyncio.sleep(0.01)
        assert not end.done()
        end.cancel()

    assert run(disk, conversation) == []
    disk.grow()

    async def after(desk):
        assert desk.values() == []
        assert desk.broker.transactions.default.coordinator.table.sequences.last == 0
        assert len(desk.broker.partitions.require("t", 0).log.open_transactions()) == 1

    assert run(disk, after) == []


def test_markers_that_find_no_room_are_written_in_the_order_of_the_commits_and_others_are_not_held_up(
    monkeypatch,
):
    disk, written = NoRoom(), []
    full = []
    append_markers = Partition.append_markers

    def append(partition, markers, **times):
        if (partition.topic, partition.index) in full:
            raise DiskError("writing markers failed", errno.ENOSPC)
        outcomes = append_markers(partition, markers, **times)
        written.append((partition.index, [write.marker.commit_sequence for write in markers]))
        return outcomes

    monkeypatch.setattr(Partition, "append_markers", append)

    async def conversation(desk):
        await desk.broker.topic_changes.grow_topic("t", 2)
        producers = [await opened_transaction(desk, f"id-{n}", b"%d" % n, partition=n % 2) for n in range(6)]
        full.append(("t", 0))
        for n in range(6):
            ended = await desk.end(f"id-{n}", producers[n], COMMIT)
            assert ended.error_code is NONE, "the decision is durable"
        await desk.durable()
        group = desk.broker.transactions.default
        assert (desk.values(partition=0), desk.values(partition=1)) == ([], [b"1", b"3", b"5"])
        assert [held[0] for held in group.missing_commit_markers()] == [1, 3, 5]
        assert group.resolved_commit_sequence == 0
        full.clear()
        await tend(desk)
        await desk.durable()
        assert [sequences for index, sequences in written if index == 0] == [[1, 3, 5]]
        assert desk.values(partition=0) == [b"0", b"2", b"4"]
        assert group.resolved_commit_sequence == 6
        assert await desk.add("id-0", producers[0], ("t", 0)) == [NONE], "its last transaction is complete"

    assert run(disk, conversation) == []


def committed(desk):
    """What a committed reader gets of the first partition, from all its segments."""
    return full_disk_life.committed_values(desk.broker.partitions.require("t", 0))


async def commit_x(desk):
    """Commit a record b"x" of a transaction of "a"."""
    who = await opened_transaction(desk, "a", b"x")
    assert (await desk.end("a", who, COMMIT)).error_code is NONE


def lose_markers(monkeypatch, disk, conversation):
    """Have a broker write no markers in a conversation, as if a crash had taken them."""
    with monkeypatch.context() as patched:
        patched.setattr(
            Partition, "append_markers", lambda partition, markers, **times: [None] * len(markers)
        )
        assert run(disk, conversation) == []


def refuse_markers(monkeypatch, *targets):
    """Let markers find no room in these partitions. Returns the list of them, which the test may change."""
    full = list(targets)
    append_markers = Partition.append_markers

    def append(partition, markers, **times):
        if (partition.topic, partition.index) in full:
            raise DiskError("writing markers failed", errno.ENOSPC)
        return append_markers(partition, markers, **times)

    monkeypatch.setattr(Partition, "append_markers", append)
    return full


def test_markers_that_a_start_has_to_write_again_wait_for_room_too(monkeypatch):
    """A crash took them; the partition is settled, and its next transactions are not taken for the last ones."""
    disk = NoRoom()

    lose_markers(monkeypatch, disk, commit_x)
    full = refuse_markers(monkeypatch, ("t", 0))

    async def after(desk):
        assert desk.values() == []
        assert desk.broker.transactions.default.resolved_commit_sequence == 0
        full.clear()
        await tend(desk)
        await desk.durable()
        assert desk.values() == [b"x"]
        assert desk.broker.transactions.default.resolved_commit_sequence == 1

    assert run(disk, after) == []


def test_the_commit_log_keeps_a_decision_whose_marker_waits_for_room(monkeypatch):
    """A crash before the marker is written: the next start finds the decision, and the commit is seen."""
    disk = NoRoom()
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 1)

    lose_markers(monkeypatch, disk, commit_x)

    async def full_disk(desk):
        group = desk.broker.transactions.default
        assert group.missing_commit_markers() == [(1, "", "t", 0)]
        for _ in range(3):
            await desk.broker.maintenance.trim_logs()
        assert group.journal.partition.start_offset == 0

    with monkeypatch.context() as patched:
        refuse_markers(patched, ("t", 0))
        assert run(disk, full_disk) == []

    async def after(desk):
        await desk.durable()
        assert desk.values() == [b"x"]
        await desk.broker.maintenance.trim_logs()
        assert desk.broker.transactions.default.journal.partition.start_offset > 0

    assert run(disk, after) == []


def test_a_deleted_topic_whose_markers_wait_keeps_no_log_from_being_trimmed(monkeypatch):
    disk = NoRoom()
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 1)

    lose_markers(monkeypatch, disk, commit_x)
    refuse_markers(monkeypatch, ("t", 0))

    async def after(desk):
        group = desk.broker.transactions.default
        await desk.broker.topic_changes.delete_topic("t")
        assert group.missing_commit_markers() == []
        await desk.broker.maintenance.trim_logs()
        assert group.journal.partition.start_offset > 0

    assert run(disk, after) == []


# Versions of EndTxn and Produce of TV1 and TV2.
DIALECTS = [(3, 9), (5, 12)]


@pytest.mark.parametrize("decided", [COMMIT, ABORT])
@pytest.mark.parametrize(("end_version", "produce_version"), DIALECTS)
def test_no_batch_stands_in_front_of_a_marker_that_waits_for_room(
    monkeypatch, end_version, produce_version, decided
):
    """Also not one that arrives in the turn of the loop in which the disk has room again."""
    disk, producers = NoRoom(), []

    async def before(desk):
        who = await desk.init("a", version=5)
        if produce_version < 12:
            assert await desk.add("a", who, ("t", 0)) == [NONE]
        written = await desk.produce(
            batch(b"x", producer=who, sequence=0), transactional_id="a", version=produce_version
        )
        assert written.error_code is NONE
        answer = await desk.end("a", who, decided, version=end_version)
        assert answer.error_code is NONE
        producers.append((answer.producer_id, answer.producer_epoch) if end_version >= 5 else who)

    lose_markers(monkeypatch, disk, before)
    full = refuse_markers(monkeypatch, ("t", 0))

    async def after(desk):
        (who,), reserve = producers, desk.broker.reserve
        first = 0 if end_version >= 5 else 1  # the epoch is another one, or the sequences go on
        if produce_version < 12:
            with let_in(monkeypatch):
                assert await desk.add("a", who, ("t", 0)) == [NONE]

        async def write():
            return await desk.produce(
                batch(b"new", producer=who, sequence=first), transactional_id="a", version=produce_version
            )

        # Whatever the reserve says: the partition itself takes nothing.
        with let_in(monkeypatch):
            assert (await write()).error_code is ErrorCode.kafka_storage_error
            assert (await write_abort(desk, who)) is ErrorCode.kafka_storage_error

        assert reserve.is_full
        step, arrived = disk.step, []

        def step_and_write(what, torn=None, path=None):
            step(what, torn, path)
            if (
                what == f"truncate {RESERVE_FILE}" and not arrived
            ):  # the last step before the reserve is whole
                full.clear()
                arrived.append(asyncio.create_task(write()))

        disk.step = step_and_write
        await tend(desk)
        assert (await arrived[0]).error_code is NONE
        await desk.durable()
        assert committed(desk) == ([b"x"] if decided is COMMIT else [])
        assert len(desk.broker.partitions.require("t", 0).log.open_transactions()) == 1
        assert (await desk.end("a", who, not decided, version=end_version)).error_code is NONE
        await desk.durable()
        assert committed(desk) == ([b"x"] if decided is COMMIT else [b"new"])

    assert run(disk, after) == []


@contextlib.contextmanager
def let_in(monkeypatch):
    """While the block runs, the disk counts as one with room, whatever waits."""
    with monkeypatch.context() as patched:
        patched.setattr(DiskReserve, "is_full", False)
        yield


async def write_abort(desk, who):
    """The answer to WriteTxnMarkers that aborts a producer's transaction in partition 0."""
    topic = {"name": "t", "partition_indexes": [0]}
    marker = {
        "producer_id": who[0],
        "producer_epoch": who[1],
        "transaction_result": False,
        "coordinator_epoch": 0,
        "transaction_version": 0,
        "topics": [topic],
    }
    answer = await desk.ask_with(27, 1, {"markers": [marker]})
    return answer.markers[0].topics[0].partitions[0].error_code


def test_the_disk_is_full_again_when_what_waits_finds_no_room(monkeypatch):
    disk = NoRoom()

    lose_markers(monkeypatch, disk, commit_x)
    full = refuse_markers(monkeypatch, ("t", 0))

    async def after(desk):
        await tend(desk)
        assert desk.broker.reserve.is_full
        assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error
        full.clear()
        await tend(desk)
        assert (await desk.produce(batch(b"y"))).error_code is NONE
        assert committed(desk) == [b"x", b"y"]

    assert run(disk, after) == []


def test_offsets_of_a_transaction_wait_for_the_markers_of_the_last_one(monkeypatch):
    """They would be committed or aborted by the marker of the last one."""
    disk, producers = NoRoom(), []

    async def before(desk):
        who = await desk.init("a")
        assert await add_offsets(desk, who) is NONE
        assert await commit_offsets(desk, 3, who, offset=5) is NONE
        assert (await desk.end("a", who, COMMIT)).error_code is NONE
        await desk.durable()
        producers.append(who)

    lose_markers(monkeypatch, disk, before)
    full = refuse_markers(monkeypatch, ("__consumer_offsets", 0))

    async def after(desk):
        with let_in(monkeypatch):
            assert await add_offsets(desk, producers[0]) is NONE
            refused = await commit_offsets(desk, 3, producers[0], offset=9)
        assert refused is ErrorCode.coordinator_load_in_progress
        full.clear()
        await tend(desk)
        assert await commit_offsets(desk, 3, producers[0], offset=9) is NONE
        assert (await desk.end("a", producers[0], ABORT)).error_code is NONE
        fetched = desk.broker.groups.coordinator.fetch_offsets("g", [("t", 0)]).answer
        assert fetched["t", 0].offset == 5

    assert run(disk, after) == []


def test_what_waits_is_written_also_when_the_reserve_was_made_whole_by_the_start(monkeypatch):
    """Room came between the writes of the start that found none and the check of the reserve."""
    disk = NoRoom()

    async def before(desk):
        who = await desk.init("a")
        assert await add_offsets(desk, who) is NONE
        assert await commit_offsets(desk, 3, who, offset=5) is NONE
        assert (await desk.end("a", who, COMMIT)).error_code is NONE
        await desk.durable()

    lose_markers(monkeypatch, disk, before)
    full = refuse_markers(monkeypatch, ("__consumer_offsets", 0))
    restore = DiskReserve.restore

    async def with_room(reserve):
        full.clear()
        return await restore(reserve)

    monkeypatch.setattr(DiskReserve, "restore", with_room)

    async def after(desk):
        assert not desk.broker.reserve.is_full
        assert desk.broker.groups.journal.partition.log.open_transactions() == []

    assert run(disk, after) == []


def test_what_waits_is_written_also_while_the_disk_does_not_count_as_full(monkeypatch):
    disk = NoRoom()

    lose_markers(monkeypatch, disk, commit_x)
    full = refuse_markers(monkeypatch, ("t", 0))

    async def after(desk):
        full.clear()
        with let_in(monkeypatch):
            await tend(desk)
        await desk.durable()
        assert desk.values() == [b"x"]

    assert run(disk, after) == []


def test_a_directory_that_cannot_be_removed_does_not_keep_the_disk_full():
    disk = NoRoom()

    async def conversation(desk):
        for name in ("gone", "other"):
            await desk.broker.topic_changes.create_topic(name, 1, {})
        disk.fill()
        assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error
        await desk.broker.topic_changes.delete_topic("gone")
        await desk.broker.topic_changes.delete_topic("other")
        disk.fault = lambda what, path: (
            errno.EIO if path.name.startswith("gone") and what == "removing" else None
        )
        disk.grow()
        await tend(desk)
        assert not desk.broker.reserve.is_full
        assert (await desk.produce(batch(b"x"))).error_code is NONE
        left = [name for name in disk.list_dir(DATA) if name.endswith("-delete")]
        assert len(left) == 1
        with pytest.raises(DiskError):
            await desk.broker.maintenance.remove_deleted()

    assert run(disk, conversation, size=SIZE) == []


def test_records_of_groups_wait_in_front_of_the_markers_of_offsets():
    """Else the log would tell of another order than the coordinator has decided."""
    disk = NoRoom()

    async def conversation(desk):
        who = await desk.init("a")
        assert await add_offsets(desk, who) is NONE
        assert await commit_offsets(desk, 3, who, offset=5) is NONE
        offsets = desk.broker.groups.journal
        disk.word = "append"
        offsets.append([(b"\0\0\0\0", b"x")])
        assert offsets.is_waiting
        end = asyncio.create_task(desk.end("a", who, COMMIT))
        await asyncio.sleep(0.01)
        log_end = offsets.partition.end_offset
        disk.word = None
        desk.broker.transactions.default.journal.retry()
        await until(end.done)
        assert offsets.partition.end_offset == log_end, "the marker waits behind the record"
        await tend(desk)
        await desk.durable()
        assert offsets.partition.end_offset == log_end + 2
        assert not offsets.partition.log.open_transactions()

    assert run(disk, conversation) == []


# -- starts and stops ----------------------------------------------------------------------------------------------


def test_a_broker_starts_on_a_full_disk_with_what_was_kept_for_it():
    disk, clock = NoRoom(), SimClock()

    async def fill(desk):
        await opened_transaction(desk, "a", b"no")
        await desk.produce(batch(b"x"))

    assert run(disk, fill, clock=clock, size=SIZE) == []
    survivor = disk.crash(random.Random(0))
    survivor.__class__ = NoRoom
    assert survivor.size(DATA / "disk-reserve") == SIZE, "this power loss leaves the reserve whole"
    survivor.fill()

    async def work(desk):
        assert desk.broker.reserve.is_full
        clock.advance(61_000)
        await desk.broker.maintenance.abort_overdue()
        await until(lambda: not desk.broker.partitions.require("t", 0).log.open_transactions())
        await desk.durable()
        assert desk.values() == [b"x"]
        assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error

    assert run(survivor, work, clock=clock, size=SIZE) == []
    assert survivor.exists(DATA / CLEAN_SHUTDOWN_FILE), "it stops in order, too"

    async def after(desk):
        survivor.grow()
        await tend(desk)
        assert (await desk.produce(batch(b"y"))).error_code is NONE
        assert desk.values() == [b"x", b"y"]

    assert run(survivor, after, clock=clock, size=SIZE) == []


def test_a_partition_that_could_not_be_opened_for_lack_of_room_is_opened_when_there_is_some(caplog):
    disk = NoRoom()

    async def fill(desk):
        await desk.broker.topic_changes.grow_topic("t", 2)
        for index in (0, 1):
            who = await opened_transaction(desk, f"id-{index}", b"%d" % index, partition=index)
            assert (await desk.end(f"id-{index}", who, COMMIT)).error_code is NONE

    assert run(disk, fill) == []
    metadata = DATA / "t-0" / "partition.metadata"
    disk.remove(metadata)  # recovery writes it again
    disk.fault = lambda what, path: errno.ENOSPC if path == metadata and what == "writing" else None

    async def work(desk):
        logs = desk.broker.partitions.of_topic(desk.broker.topics.get("t"))
        assert set(logs) == {1}
        assert desk.values(partition=1) == [b"1"]
        await tend(desk)
        assert set(logs) == {1}
        disk.fault = None
        await tend(desk)
        assert desk.values(partition=0) == [b"0"]
        assert (await desk.produce(batch(b"more"), partition=0)).error_code is NONE

    assert run(disk, work) == []
    assert "t-0 stays offline until the disk has space" in caplog.text


def test_a_partition_that_has_failed_for_lack_of_room_is_opened_again_when_there_is_some(caplog):
    disk = NoRoom()

    async def conversation(desk):
        await desk.broker.topic_changes.grow_topic("t", 2)
        who = await opened_transaction(desk, "a", b"x")
        disk.fault = lambda what, path: (
            errno.ENOSPC if path.parent.name == "t-0" and what == "writing" else None
        )
        disk.fails_late = True
        refused = await desk.produce(batch(b"no" * 50))
        assert refused.error_code is ErrorCode.kafka_storage_error
        ending = asyncio.create_task(desk.end("a", who, COMMIT))
        await until(ending.done)
        assert ending.result().error_code is NONE, "the decision is durable, and its marker waits"
        with pytest.raises(RefusedError):
            desk.broker.partitions.require("t", 0)
        await tend(desk)
        disk.fault, disk.fails_late = None, False
        await tend(desk)
        await tend(desk)
        await desk.durable()
        assert desk.values() == [b"x"]
        assert desk.broker.transactions.default.resolved_commit_sequence == 1
        assert (await desk.produce(batch(b"y"))).error_code is NONE
        assert desk.values() == [b"x", b"y"]

    assert run(disk, conversation) == []
    assert "is reopened when the disk has space" in caplog.text


# -- what fails all the same ---------------------------------------------------------------------------------------


def test_a_commit_whose_record_the_disk_does_not_take_for_another_reason_stops_the_broker():
    disk = FullDisk()
    disk.code = errno.EIO

    async def conversation(desk):
        me = await desk.init("a")
        await desk.add("a", me, ("t", 0))
        written = await desk.produce(batch(b"x", producer=me, sequence=0), transactional_id="a")
        assert written.error_code is ErrorCode.none
        disk.word = "append"  # of the commit's record
        for _ in range(3):  # as a client does that has lost its connection
            with pytest.raises(UnavailableError):
                await desk.end("a", me, COMMIT)

    failures = run(disk, conversation)
    assert len(failures) == 1, (
        "the broker has to stop: its coordinator has decided what its log does not know"
    )
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_sync_that_failed_is_not_made_good_by_one_that_succeeds_when_the_broker_stops(number):
    disk = FullDisk()
    disk.code = number

    async def conversation(desk):
        disk.word = "sync"
        with pytest.raises(UnavailableError):
            await desk.produce(batch(b"x"))
        with pytest.raises(UnavailableError):
            await desk.produce(batch(b"y"))

    assert len(run(disk, conversation)) == 1
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)


@pytest.mark.parametrize("word", ["create", "write partition.metadata", "write cluster.json"])
def test_a_topic_that_finds_no_room_is_refused_and_made_when_there_is_some(word):
    disk = NoRoom()

    async def conversation(desk):
        disk.word = word
        for _ in range(2):
            with pytest.raises(RefusedError, match=r"No space left|is full") as refused:
                await desk.broker.topic_changes.create_topic("late", 2, {})
            assert refused.value.code is ErrorCode.kafka_storage_error
            assert desk.broker.topics.get("late") is None
        disk.grow()
        await tend(desk)
        await desk.broker.topic_changes.create_topic("late", 2, {})
        assert (await desk.produce(batch(b"x"), topic="late", partition=1)).error_code is ErrorCode.none

    assert run(disk, conversation) == []


@pytest.mark.parametrize("word", ["create", "write partition.metadata", "write cluster.json"])
def test_so_is_a_transaction_group(word):
    disk = NoRoom()

    async def conversation(desk):
        desk.broker.topic_files.create("grouped", 1, {"stablelog.group": "group"})
        who = await desk.init("group/me")
        disk.word = word
        for _ in range(2):
            codes = await desk.add("group/me", who, ("grouped", 0))
            assert codes == [ErrorCode.coordinator_load_in_progress]
        disk.grow()
        await tend(desk)
        assert await desk.add("group/me", who, ("grouped", 0)) == [ErrorCode.none]

    assert run(disk, conversation) == []


def test_a_topic_that_clients_make_by_asking_for_it_is_asked_for_again():
    disk = NoRoom()

    async def conversation(desk):
        desk.broker.reserve.record_failure(DiskError("writing", errno.ENOSPC))
        asked = {"topics": (part(3, 4, "request", "MetadataRequestTopic", name="late"),)}
        answer = await desk.ask(3, 4, **asked, allow_auto_topic_creation=True)
        assert answer.topics[0].error_code is ErrorCode.leader_not_available
        await tend(desk)
        answer = await desk.ask(3, 4, **asked, allow_auto_topic_creation=True)
        assert answer.topics[0].error_code is ErrorCode.none

    assert run(disk, conversation) == []


class CountingDisk(NoRoom):
    """A disk that knows which files are open."""

    def __init__(self):
        super().__init__()
        self.held = Counter()

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        self.held[path] += 1
        file.close = partial(self.held.subtract, [path])
        return file


@pytest.mark.parametrize(
    ("word", "times"),
    [
        ("write partition.metadata", 4),
        ("sync directory late-1", 1),
        ("create 00000000000000000000.commitextents", 1),
        ("write cluster.json", 1),
    ],
)
def test_partitions_of_a_topic_that_was_not_made_keep_no_file_open(word, times):
    disk = CountingDisk()

    async def conversation(desk):
        written, held = [], +disk.held

        def step(what, torn=None, path=None):
            written.append(what)
            if written.count(word) == times:
                raise DiskError(what, errno.EMFILE)
            SimDisk.step(disk, what, torn, path)

        disk.step = step
        with pytest.raises(RefusedError, match="Too many open files"):
            await desk.broker.topic_changes.create_topic("late", 5, {"stablelog.order": "commit"})
        del disk.step
        assert +disk.held == held

    assert run(disk, conversation) == []


def test_a_list_of_topics_that_finds_no_room_is_the_one_that_holds():
    disk = NoRoom()

    async def conversation(desk):
        topics = desk.broker.topics
        disk.word = "write cluster.json"
        with pytest.raises(RefusedError, match="No space left"):
            await desk.broker.topic_changes.grow_topic("t", 3)
        with pytest.raises(RefusedError):
            desk.broker.topic_files.configure(topics.get("t"), {"retention.ms": "5000"})
        with pytest.raises(RefusedError):
            await desk.broker.topic_changes.delete_topic("t")
        assert (topics.get("t").partition_count, topics.get("t").configs) == (1, {})
        disk.grow()
        await tend(desk)
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
        await desk.broker.topic_changes.grow_topic("t", 2)
        assert len(desk.broker.partitions.of_topic(topics.get("t"))) == 2

    assert run(disk, conversation) == []


def test_a_broker_that_cannot_write_its_checkpoints_stops_and_is_recovered_at_the_next_start(caplog):
    disk = NoRoom()

    async def fill(desk):
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
        disk.word = "write "

    assert run(disk, fill) == []
    assert "No space left" in caplog.text
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)
    disk.word = None

    async def read(desk):
        assert desk.values() == [b"x"]

    assert run(disk, read) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_broker_that_cannot_say_that_it_stopped_in_order_stops_and_gives_the_directory_back(number, caplog):
    disk = NoRoom()
    disk.code = number
    closed = []

    async def conversation(desk):
        assert (await desk.produce(batch(b"x"))).error_code is NONE
        disk.word = f"write {CLEAN_SHUTDOWN_FILE}"
        desk.broker.reserve.close = partial(closed.append, True)

    assert run(disk, conversation) == []
    assert closed == [True]
    assert "the next start recovers all logs" in caplog.text
    assert not disk.exists(DATA / CLEAN_SHUTDOWN_FILE)
    disk.word = None

    async def read(desk):
        assert desk.values() == [b"x"]

    assert run(disk, read) == []


def test_the_log_says_once_in_a_while_that_nothing_can_be_written_for_another_reason(caplog):
    disk = NoRoom()
    disk.code = errno.EIO

    async def conversation(desk):
        disk.word = "append"
        for _ in range(5):
            refused = await desk.produce(batch(b"x"))
            assert refused.error_code is ErrorCode.kafka_storage_error
        disk.word = None
        assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none

    assert run(disk, conversation) == []
    assert caplog.text.count("and producers retry them") == 1


# -- at every call -------------------------------------------------------------------------------------------------

LIVES = int(os.environ.get("STABLELOG_FULL_DISK_LIVES", "10"))  # of each kind


@pytest.mark.extended
@pytest.mark.parametrize("kind", full_disk_life.KINDS)
def test_a_disk_without_room_at_any_call_loses_tears_and_stops_nothing(kind):
    """`python -m tests.broker.full_disk_life` tries every call."""
    count = full_disk_life.run(None, kind)
    place = list(full_disk_life.KINDS).index(kind)
    step = max(count // LIVES, 1)
    for call in range(1 + place * step // len(full_disk_life.KINDS), count + 1, step):
        try:
            full_disk_life.run(call, kind)
        except Exception as failure:
            raise AssertionError(f"a disk that is full {kind}, at call {call}") from failure
