"""A life of a broker, for a disk that has no room at any moment of it; and what must be there afterwards.

Its client does what real ones do: it tries again what it is refused with a code for that, and counts only what was
acknowledged. `python -m tests.broker.full_disk_life` lives it with a fault at every call of every kind.
"""

import asyncio
import contextlib
import errno
import sys
import time
from datetime import timedelta
from functools import partial

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.broker.broker import Broker
from stablelog.broker.durability import journal
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.upkeep import maintenance
from stablelog.commit_order.verify import verify_view
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from stablelog.log.partition import Isolation
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from tests.broker.apis.test_joint_apis import begin, child, commit, committed_offset, offset
from tests.broker.apis.test_txn_offset_commit import add_offsets
from tests.broker.apis.test_txn_offset_commit import commit as commit_offsets
from tests.broker.desk import ABORT, COMMIT, DATA, IN_PLACE, Desk, batch, init_fields, part

NONE = ErrorCode.none
TIMEOUT = timedelta(seconds=30)
AGAIN = {
    ErrorCode.kafka_storage_error,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_leader_or_follower,
    ErrorCode.operation_not_attempted,
}
SETTINGS = {
    "stablelog.scrub.bytes.per.second": "0",
    "log.segment.bytes": "1500",
    "log.segment.delete.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.cleaner.min.cleanable.ratio": "0",
    "log.cleaner.backoff.ms": str(10**9),
    "stablelog.snapshot.bytes": "4096",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "20",
}
RESERVE_SIZE = 64 << 10
FIRST_START = 30  # calls that take room until a new data directory is open
TARGETS = (("t", 0), ("t", 1), ("c", 0))


class FullDisk(SimDisk):
    """A disk on which calls that take room fail: from one of them on, for so many calls.

    Attributes:
        count: calls that took room.
        begin: the first call that fails; None for none.
        length: how many fail.
        at_capacity: from `begin` on nothing fits instead, but for what is removed, until `make_room`.
        late: what a failed append has written of a topic's log stays there.
    """

    def __init__(self, begin=None, length=1, *, at_capacity=False, late=False):
        super().__init__()
        self.late = late
        self.count = 0
        self.begin = begin
        self.length = length
        self.at_capacity = at_capacity
        self.fault = self.count_call

    def count_call(self, what, path):
        if what == "opening":
            takes_room = not self.exists(path) and self.exists(path.parent)
        elif what == "making":
            takes_room = not self.exists(path)
        else:
            takes_room = what in ("writing", "renaming", "allocating")
        if not takes_room:
            return None
        self.count += 1
        if self.begin is None or self.count < self.begin:
            return None
        if self.at_capacity:
            if self.count == self.begin:
                self.capacity = size = 1 << 40
                self.capacity = size - self.free_size(DATA)  # all of it is taken
            return None
        self.fails_late = self.late and not path.parent.name.startswith("__")
        return errno.ENOSPC if self.count < self.begin + self.length else None

    def make_room(self):
        """The disk grows."""
        self.capacity = None


def committed_values(partition):
    """What a committed reader gets, fetch after fetch."""
    partition.log.prove_segments()
    found, position = [], partition.visible_start(Isolation.READ_COMMITTED)
    while position < partition.last_stable_offset:
        read = partition.read(position, 1 << 20, Isolation.READ_COMMITTED)
        data = b"".join(read.buffers)
        for at, header in headers_in(data):
            position = header.next_offset
            if not header.is_control and not is_aborted(header, read.aborted):
                found += [record.value for record in decode_records(data, at)]
        if not data:
            break
    return found


def is_aborted(header, aborted):
    """Whether a batch is one of a transaction in this list."""
    return header.is_transactional and any(
        txn.producer_id == header.producer_id and txn.first_offset <= header.base_offset <= txn.last_offset
        for txn in aborted or ()
    )


class Life:
    """A client of the broker, and what it was told.

    Attributes:
        plain: acknowledged values outside transactions, by partition.
        committed: those of transactions whose commit was acknowledged.
        aborted: those of transactions that must not be seen.
    """

    def __init__(self, desk, clock):
        self.desk = desk
        self.clock = clock
        self.plain = {}
        self.committed = {}
        self.aborted = set()
        self.values = 0

    async def again(self, ask):
        """Ask until the answer is not to ask again. Returns the answer."""
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(
                    UnavailableError
                ):  # the connection is closed, and the client comes again
                    answer = await ask()
                    code = answer if isinstance(answer, ErrorCode) else answer.error_code
                    if code not in AGAIN:
                        assert code is NONE, code
                        return answer
                await asyncio.sleep(0.002)

    async def call(self, work):
        """Ask for something whose refusal is raised."""

        async def ask():
            try:
                await work()
            except RefusedError as refused:
                return refused.code
            return NONE

        await self.again(ask)

    def value(self, size=500):
        self.values += 1
        return b"%d" % self.values + b" " * size

    async def write(self, target):
        value = self.value()
        await self.again(lambda: self.desk.produce(batch(value), topic=target[0], partition=target[1]))
        self.plain.setdefault(target, []).append(value)

    async def begin(self, name):
        answer = await self.again(lambda: self.desk.ask(22, 4, **init_fields(4, name)))
        return answer.producer_id, answer.producer_epoch

    async def transaction(self, name, outcome, *, targets=TARGETS, group=None):
        """Of the first dialect. Returns what was written, by partition."""
        desk, who = self.desk, await self.begin(name)
        written = {target: self.value() for target in targets}

        async def add():
            codes = await desk.add(name, who, *targets)
            return next((code for code in codes if code is not NONE), NONE)

        await self.again(add)
        for target, value in written.items():
            await self.again(
                partial(
                    desk.produce,
                    batch(value, producer=who, sequence=0),
                    topic=target[0],
                    partition=target[1],
                    transactional_id=name,
                )
            )
        if group is not None:
            await self.again(lambda: add_offsets(desk, who, name))
            await self.again(lambda: commit_offsets(desk, 3, who, name=name, offset=group))
        if outcome is None:
            self.aborted.update(written.values())
            return
        await self.again(lambda: desk.end(name, who, outcome))
        self.note(written, outcome)

    def note(self, written, outcome):
        if outcome is COMMIT:
            for target, value in written.items():
                self.committed.setdefault(target, []).append(value)
        else:
            self.aborted.update(written.values())

    async def joint(self, version):
        """Two children of a joint commit, with offsets of a group."""
        desk = self.desk
        await self.again(lambda: begin(desk, version))
        written = {}
        children = []
        for index in (0, 1):
            one = await self.again_child(version, index)
            written["t", index] = self.value()
            await self.again(lambda one=one, index=index: one.write(written["t", index], index))
            children.append(one)
        answer = await self.again(lambda: commit(desk, children, version, offsets=[offset(version + 1)]))
        assert answer.error_code is NONE
        self.note(written, COMMIT)

    async def again_child(self, version, index):
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(AssertionError, UnavailableError):
                    return await child(self.desk, version=version, part=index)
                await asyncio.sleep(0.002)

    async def commit_group_offset(self, at):
        where = part(
            8,
            2,
            "request",
            "OffsetCommitRequestPartition",
            partition_index=0,
            committed_offset=at,
            committed_metadata=None,
        )
        topic = part(8, 2, "request", "OffsetCommitRequestTopic", name="t", partitions=(where,))

        async def ask():
            answer = await self.desk.ask(
                8, 2, group_id="h", generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
            )
            return answer.topics[0].partitions[0].error_code

        await self.again(ask)

    async def keyed(self, key):
        records = encode_batch([Record(0, 0, key, self.value(300))])
        await self.again(lambda: self.desk.produce(records, topic="k"))

    async def delete_before(self, name, before):
        wanted = part(21, 1, "request", "DeleteRecordsPartition", partition_index=0, offset=before)
        topic = part(21, 1, "request", "DeleteRecordsTopic", name=name, partitions=(wanted,))

        async def ask():
            answer = await self.desk.ask(21, 1, topics=(topic,), timeout=TIMEOUT)
            return answer.topics[0].partitions[0].error_code

        await self.again(ask)

    # -- the script --------------------------------------------------------------------------------------------

    async def first(self):
        """Topics, records, transactions of every kind, offsets."""
        broker = self.desk.broker
        for name, count, configs in (
            ("t", 2, {}),
            ("c", 1, {"stablelog.order": "commit"}),
            ("k", 1, {"cleanup.policy": "compact"}),
            ("r", 1, {}),
        ):
            await self.call(partial(broker.topic_changes.create_topic, name, count, configs))
        for _ in range(3):
            await self.write(("t", 0))
            await self.write(("c", 0))
        await self.transaction("a", COMMIT)
        await self.transaction("b", ABORT, group=3)
        await self.begin("group/a")
        await self.transaction("d", COMMIT, group=4)
        await self.joint(0)
        await self.commit_group_offset(7)
        self.clock.advance(1000)
        await self.transaction("z", None)  # it is left open

    async def second(self):
        """Time-outs, compaction, retention, deletion, trimming."""
        broker = self.desk.broker
        self.clock.advance(61_000)
        await self.until(lambda: not any(p.log.open_transactions() for p in broker.partitions))
        for key in (b"a", b"b", b"a", b"c", b"a", b"b", b"a"):
            await self.keyed(key)
        await broker.compactor.compact_all()
        for _ in range(4):
            await self.write(("r", 0))
        topic = broker.topics.get("r")
        await self.call(partial(self.configure, topic, {"retention.bytes": "1000"}))
        await broker.maintenance.apply_retention()
        await broker.maintenance.remove_deleted()
        await self.delete_before("r", 3)
        await self.call(partial(broker.topic_changes.grow_topic, "r", 2))
        await self.write(("r", 1))
        await self.call(partial(broker.topic_changes.delete_topic, "r"))
        await broker.maintenance.remove_deleted()
        await self.call(partial(broker.topic_changes.create_topic, "r", 1, {}))
        for target in (("r", 0), ("r", 1)):
            self.plain.pop(target)
        await self.write(("r", 0))
        for _ in range(4):
            await self.transaction("e", COMMIT)
            with contextlib.suppress(UnavailableError):  # tried again by its task
                await broker.maintenance.trim_logs()
        await self.joint(1)
        await self.transaction("z", COMMIT)

    async def configure(self, topic, configs):
        self.desk.broker.topic_files.configure(topic, configs)

    @staticmethod
    async def until(condition):
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - a task of the broker does it
                await asyncio.sleep(0.002)

    async def check(self):
        """With room again, everything is as the client was told."""
        broker = self.desk.broker
        await self.until(lambda: not broker.reserve.is_full)
        await self.until(lambda: broker.partitions.are_complete)
        await self.until(lambda: not any(p.failure for p in broker.partitions))
        await self.desk.durable()
        await self.until(lambda: all(not group.missing_commit_markers() for group in broker.transactions))
        await self.desk.durable()
        for target in self.plain.keys() | self.committed.keys():
            seen = committed_values(self.desk.broker.partitions.require(*target))
            expected = self.plain.get(target, []) + self.committed.get(target, [])
            assert sorted(seen) == sorted(expected), target
            assert not self.aborted & set(seen)
        if broker.topics.get("k") is not None and self.values > 20:
            assert len(committed_values(broker.partitions.require("k", 0))) >= 3
        assert committed_offset(self.desk, "h") == 7


@contextlib.asynccontextmanager
async def broker_on(disk, clock, reserve_size):
    failures = []
    given = SETTINGS | {"stablelog.disk.reserve.bytes": str(reserve_size)}
    broker = None
    try:
        broker = Broker(
            BrokerConfig(given),
            DATA,
            disk=disk,
            clock=clock,
            on_failure=failures.append,
            make_flush=IN_PLACE,
        )
        await broker.start()
        yield Desk(broker)
    finally:
        disk.fault, disk.capacity = None, None  # how a stop fares on a full disk is another test's
        if broker is not None:
            await broker.stop()
    assert failures == [], failures


async def relent(disk, desk):
    """The disk grows some time after it was full."""
    while True:
        await asyncio.sleep(0.002)
        if disk.capacity is not None and desk.broker.reserve.is_full:
            await asyncio.sleep(0.015)
            disk.make_room()


async def live(begin, *, reserve_size=0, **disk_arguments):
    """Live with a disk that is full from a call on. Returns how many calls took room."""
    disk, clock = FullDisk(begin, **disk_arguments), SimClock()
    clock_of = partial(broker_on, disk, clock, reserve_size)
    count = 0
    while True:
        try:
            async with clock_of() as desk:
                life = Life(desk, clock)
                growing = asyncio.create_task(relent(disk, desk))
                try:
                    await life.first()
                    await life.second()
                    await life.check()
                finally:
                    growing.cancel()
                count = disk.count
            break
        except (StablelogError, FileNotFoundError):
            assert disk.count < FIRST_START, (
                "only the first start on a full disk may fail: nothing is kept for it yet"
            )
            disk.fault = disk.count_call
    assert disk.exists(DATA / CLEAN_SHUTDOWN_FILE)
    async with clock_of() as desk:
        life.desk = desk
        await life.check()
    for name in disk.list_dir(DATA):
        if disk.is_dir(DATA / name):
            assert list(verify_directory(disk, DATA / name)) == [], name
            if name.startswith("c-"):
                assert list(verify_view(disk, DATA / name)) == [], name
    return count


@contextlib.contextmanager
def hurried():
    """Periodic work is done every few milliseconds, and logs are trimmed when they are small."""
    before = maintenance.RESERVE_S, maintenance.RETENTION_WHILE_FULL_S, journal.CHECKPOINT_SIZE_MIN
    maintenance.RESERVE_S, maintenance.RETENTION_WHILE_FULL_S, journal.CHECKPOINT_SIZE_MIN = (
        0.003,
        0.003,
        2500,
    )
    try:
        yield
    finally:
        maintenance.RESERVE_S, maintenance.RETENTION_WHILE_FULL_S, journal.CHECKPOINT_SIZE_MIN = before


KINDS = {
    "once": {},
    "for a while": {"length": 12},
    "once, with a reserve": {"reserve_size": RESERVE_SIZE},
    "no free byte, with a reserve": {"reserve_size": RESERVE_SIZE, "at_capacity": True},
    "no free byte": {"at_capacity": True},
    "once, and not undone": {"late": True, "reserve_size": RESERVE_SIZE},
}


def run(begin, kind):
    """Live once, with the fault at one call."""
    with hurried():
        return asyncio.run(asyncio.wait_for(live(begin, **KINDS[kind]), 120))


def main():
    """Live with a fault at each call of each kind; prints each that fails."""
    failed = 0
    for kind in KINDS:
        count = run(None, kind)
        began = time.monotonic()
        for call in range(1, count + 1):
            try:
                run(call, kind)
            except Exception as failure:
                failed += 1
                print(f"{kind}, call {call}: {failure!r}")
        print(f"{kind}: {count} calls, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
