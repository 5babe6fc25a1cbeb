"""Data directories that have a file of each kind: stopped, killed, after a power cut, and killed in compaction.

Their topics are ordinary (`plain`), compacted (`keys`), and in commit order (`ordered`, and `ledger` of the transaction
group `pay`). Each has several segments, several leader epochs, a moved log start, and transactions that were committed,
aborted, are open and are prepared (KIP-939). Every value says what becomes of it.
"""

import asyncio
import random
from datetime import timedelta

from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, encode_batch
from stablelog.log.model import LogConfig
from stablelog.log.opening import open_partition
from stablelog.log.segments.replacement import SWAP
from stablelog.testing.sim_disk import SimDisk
from stablelog.testing.sim_faults import SimulatedCrash
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import child_id
from stablelog.wire.extension.joint import JointChild
from tests.broker.apis.test_incremental_alter_configs import changed
from tests.broker.desk import ABORT, COMMIT, DATA, opened, part

SMALL = {"segment.bytes": "1100", "index.interval.bytes": "200", "retention.ms": "-1"}
TOPICS = {  # with how many partitions
    "plain": (2, {**SMALL, "retention.bytes": "5000"}),
    "keys": (1, {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}),
    "ordered": (2, {**SMALL, "stablelog.order": "commit"}),
    "ledger": (1, {**SMALL, "stablelog.order": "commit", "stablelog.group": "pay"}),
}
BROKER = {
    "stablelog_snapshot_bytes": 4096,
    "log_cleaner_backoff_ms": 10**12,
    "log_retention_check_interval_ms": 10**12,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 2**31 - 1,
    "stablelog_scrub_bytes_per_second": 0,
    "log_segment_delete_delay_ms": 10**9,
    "stablelog_disk_reserve_bytes": 65536,
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}
DYNAMIC = {"log.index.size.max.bytes": "20000", "log.retention.ms": "-1"}
INIT, OFFSET_COMMIT, TXN_OFFSET_COMMIT, ADD_OFFSETS, DELETE_RECORDS = 22, 8, 28, 25, 21
# A user, a quota and an ACL, by API key and version of the requests.
SECURITY = (
    (
        51,
        0,
        {
            "deletions": (),
            "upsertions": [
                {
                    "name": "alice",
                    "mechanism": 1,
                    "iterations": 4096,
                    "salt": b"0123456789abcdef",
                    "salted_password": bytes(32),
                }
            ],
        },
    ),
    (
        49,
        1,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "alice"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e12, "remove": False}],
                }
            ],
            "validate_only": False,
        },
    ),
    (
        30,
        3,
        {
            "creations": [
                {
                    "resource_type": 2,
                    "resource_name": "plain",
                    "resource_pattern_type": 3,
                    "principal": "User:alice",
                    "host": "*",
                    "operation": 3,
                    "permission_type": 3,
                }
            ]
        },
    ),
)
LONG = timedelta(minutes=15)
GROUP = "readers"
NONE = ErrorCode.none


def copied(disk):
    """A disk with the same files, all of them durable: what kill -9 of a broker leaves."""
    copy = SimDisk()

    def copy_directory(path):
        copy.make_dir(path)
        for name in disk.list_dir(path):
            if disk.is_dir(path / name):
                copy_directory(path / name)
            else:
                copy.write_atomic(path / name, disk.read_bytes(path / name))

    copy_directory(DATA)
    return copy


def run(conversation):
    """Run one life of a broker."""
    return asyncio.run(asyncio.wait_for(conversation, 30))


# -- writers --------------------------------------------------------------------------------------------------------


class Writer:
    """A transactional producer of the first dialect.

    Args:
        desk: of the broker.
        name: the transactional id.
    """

    def __init__(self, desk, name):
        self._desk = desk
        self.name = name
        self.producer = (-1, -1)
        self._sequences = {}
        self._added = set()

    async def begin(self, *, two_phase=False):
        more = {"enable2_pc": True, "keep_prepared_txn": False} if two_phase else {}
        answer = await self._desk.ask(
            INIT, 6, transactional_id=self.name, transaction_timeout=LONG, **{**NO_TWO_PHASE, **more}
        )
        assert answer.error_code is NONE, answer
        self.producer = answer.producer_id, answer.producer_epoch
        return self

    async def write(self, fate, *targets, count=2):
        """Write a batch to each target, of records that say what becomes of them."""
        for target in targets:
            if target not in self._added:
                assert await self._desk.add(self.name, self.producer, target) == [NONE]
                self._added.add(target)
            sequence = self._sequences.get(target, 0)
            content = records(f"{fate} {self.name}", sequence, count)
            batch = encode_batch(
                content,
                producer_id=self.producer[0],
                producer_epoch=self.producer[1],
                base_sequence=sequence,
                transactional=True,
            )
            answer = await self._desk.produce(
                batch, topic=target[0], partition=target[1], transactional_id=self.name
            )
            assert answer.error_code is NONE, (self.name, target, answer)
            self._sequences[target] = sequence + count
        return self

    async def commit_offset(self, group, target, offset):
        answer = await self._desk.ask(
            ADD_OFFSETS,
            3,
            transactional_id=self.name,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            group_id=group,
        )
        assert answer.error_code is NONE
        committed = part(
            TXN_OFFSET_COMMIT,
            2,
            "request",
            "TxnOffsetCommitRequestPartition",
            partition_index=target[1],
            committed_offset=offset,
            committed_leader_epoch=-1,
            committed_metadata=None,
        )
        topic = part(
            TXN_OFFSET_COMMIT,
            2,
            "request",
            "TxnOffsetCommitRequestTopic",
            name=target[0],
            partitions=(committed,),
        )
        answer = await self._desk.ask(
            TXN_OFFSET_COMMIT,
            2,
            transactional_id=self.name,
            group_id=group,
            producer_id=self.producer[0],
            producer_epoch=self.producer[1],
            topics=(topic,),
        )
        assert answer.topics[0].partitions[0].error_code is NONE, answer
        return self

    async def end(self, committed):
        answer = await self._desk.end(self.name, self.producer, committed)
        assert answer.error_code is NONE, answer
        self._added.clear()
        return self


NO_TWO_PHASE = {"enable2_pc": False, "keep_prepared_txn": False, "producer_id": -1, "producer_epoch": -1}


def records(words, first, count):
    """Records with keys that come back; each value says what becomes of it."""
    return [
        Record(
            0, 1_700_000_000_000 + place, b"key %d" % (place % 5), f"{words} {place} ".encode() + b"x" * 30
        )
        for place in range(first, first + count)
    ]


async def write_plainly(desk, topic, index, words, count=1):
    """Write a batch outside transactions."""
    answer = await desk.produce(
        encode_batch(records(f"plain {words}", 0, count)), topic=topic, partition=index
    )
    assert answer.error_code is NONE, answer


async def commit_offset(desk, group, target, offset):
    """Commit an offset of a consumer group outside transactions."""
    committed = part(
        OFFSET_COMMIT,
        7,
        "request",
        "OffsetCommitRequestPartition",
        partition_index=target[1],
        committed_offset=offset,
        committed_leader_epoch=-1,
        committed_metadata="m",
    )
    topic = part(
        OFFSET_COMMIT, 7, "request", "OffsetCommitRequestTopic", name=target[0], partitions=(committed,)
    )
    answer = await desk.ask(
        OFFSET_COMMIT,
        7,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=(topic,),
    )
    assert answer.topics[0].partitions[0].error_code is NONE, answer


async def delete_records(desk, topic, index, offset):
    """DeleteRecords."""
    asked = part(DELETE_RECORDS, 2, "request", "DeleteRecordsPartition", partition_index=index, offset=offset)
    in_topic = part(DELETE_RECORDS, 2, "request", "DeleteRecordsTopic", name=topic, partitions=(asked,))
    answer = await desk.ask(DELETE_RECORDS, 2, topics=(in_topic,), timeout=LONG)
    assert answer.topics[0].partitions[0].error_code is NONE, answer


# -- lives ----------------------------------------------------------------------------------------------------------

DEFAULT_TARGETS = (("plain", 0), ("keys", 0), ("ordered", 0))
PAY_TARGETS = (("ledger", 0),)


async def write_round(desk, number):
    """Transactions of each fate, those of several producers between each other, and records outside of any."""
    one = await Writer(desk, f"one-{number}").begin()
    two = await Writer(desk, f"two-{number}").begin()
    pay = await Writer(desk, f"pay/one-{number}").begin()
    for turn in range(2):
        await one.write("commit", *DEFAULT_TARGETS)
        await two.write("abort" if turn % 2 else "commit", *DEFAULT_TARGETS, count=3)
        await write_plainly(desk, "plain", 0, f"{number} {turn}")
        await write_plainly(desk, "keys", 0, f"{number} {turn}", 3)
        await write_plainly(desk, "ordered", 0, f"{number} {turn}", 2)
        await pay.write("abort" if turn == 1 else "commit", *PAY_TARGETS, count=3)
        await pay.end(turn != 1)
        await two.end(turn % 2 == 0)
        await write_plainly(desk, "ledger", 0, f"{number} {turn}")
        await one.write("commit", *DEFAULT_TARGETS, ("ordered", 1))
        await one.end(COMMIT)
    await commit_offset(desk, GROUP, ("plain", 0), 3 * number + 1)
    await one.write("commit", ("plain", 0), ("ordered", 1))
    await (await one.commit_offset(GROUP, ("ordered", 0), 2 * number + 1)).end(COMMIT)
    await two.write("abort", ("plain", 0))
    await (await two.commit_offset(GROUP, ("keys", 0), 10 * number)).end(ABORT)


async def joint_commit(desk, version):
    """A joint commit of two children."""
    begun = await desk.ask(ApiKey.BEGIN_JOINT, 0, key="query", version=version, run="r")
    assert begun.error_code is NONE, begun
    children = []
    for place in range(2):
        child = await Writer(desk, child_id("query", version, "r", place, 0)).begin()
        await child.write("commit", ("ordered", 0), ("plain", 0))
        children.append(
            JointChild(
                transactional_id=child.name,
                producer_id=child.producer[0],
                producer_epoch=child.producer[1],
            )
        )
    answer = await desk.ask(
        ApiKey.COMMIT_JOINT,
        0,
        key="query",
        version=version,
        run="r",
        children=tuple(children),
        group_offsets=(),
    )
    assert answer.error_code is NONE, answer


async def first_life(disk):
    async with opened(disk, topics=(), **BROKER) as desk:
        for name, (count, configs) in TOPICS.items():
            desk.broker.topic_files.create(name, count, configs)
        desk.broker.topic_files.create("gone", 1, SMALL)
        await write_plainly(desk, "gone", 0, "deleted")
        await changed(desk, *((0, name, value) for name, value in DYNAMIC.items()))
        for api_key, version, values in SECURITY:
            await desk.ask_with(api_key, version, values)
        await write_round(desk, 0)
        await desk.durable()
        await desk.broker.compactor.compact_all()
        assert desk.broker.partitions.require("keys", 0).compaction.first_dirty_offset > 0


async def second_life(disk):
    async with opened(disk, topics=(), **BROKER) as desk:
        desk.broker.topic_files.create("back", 1, SMALL)  # in the place of a directory with records
        await write_round(desk, 1)
        await delete_records(desk, "plain", 0, 9)
        await delete_records(desk, "ordered", 0, 25)
        await joint_commit(desk, 1)
        await desk.broker.maintenance.apply_retention()
        for journal in (desk.broker.groups.journal, *(group.journal for group in desk.broker.transactions)):
            journal.partition.roll(
                desk.broker.now_ms()
            )  # so that the broker's own logs have several segments, too
            desk.broker.flush.mark_dirty(journal.partition)
        await desk.durable()
        return copied(disk)  # killed


async def third_life(disk, after):
    """The last one. `after` are called when the broker has written all that it writes."""
    async with opened(disk, topics=(), **BROKER) as desk:
        await write_round(desk, 2)
        await desk.durable()
        await desk.broker.compactor.compact_all()
        spanning = await Writer(desk, "spans").begin()
        await spanning.write("open", *DEFAULT_TARGETS)
        await write_round(desk, 3)
        await desk.broker.maintenance.apply_retention()
        await delete_records(desk, "plain", 0, desk.broker.partitions.require("plain", 0).start_offset + 5)
        await delete_records(desk, "ledger", 0, 14)
        prepared = await Writer(desk, "prepared").begin(two_phase=True)
        await prepared.write("prepared", *DEFAULT_TARGETS)
        pay_open = await Writer(desk, "pay/open").begin()
        await pay_open.write("open", *PAY_TARGETS)
        await write_plainly(desk, "keys", 0, "behind")
        await desk.broker.topic_changes.delete_topic("gone")
        await desk.durable()
        for partition in desk.broker.partitions:
            if (partition.topic, partition.index) in DEFAULT_TARGETS:
                partition.log.take_snapshot()
                desk.broker.flush.mark_dirty(partition)
        await write_plainly(desk, "plain", 0, "behind the snapshot")
        await desk.durable()
        desk.broker.topic_files.checkpoints.log_starts.write_if_changed()
        desk.broker.topic_files.checkpoints.recovery_points.write_if_changed()
        # What follows is not older than a second: no recovery point tells of it.
        for target in (*DEFAULT_TARGETS, *PAY_TARGETS):
            await write_plainly(desk, *target, "late")
        late = await Writer(desk, "late").begin()
        await (await late.write("commit", *DEFAULT_TARGETS)).end(COMMIT)
        await (await late.write("abort", *DEFAULT_TARGETS)).end(ABORT)
        await desk.durable()
        for topic, index in DEFAULT_TARGETS:
            unsynced = encode_batch(records("plain unsynced", 0, 2))
            desk.broker.partitions.require(topic, index).append(unsynced, now_ms=desk.broker.now_ms())
        for take in after:
            take(disk)


def torn(disk):
    """A killed directory whose last write of `plain` is torn: the next start keeps it as `.cut`."""
    path = max(path for path in disk.files(DATA / "plain-0") if path.suffix == ".log")
    disk.damage(path, disk.read_bytes(path) + b"torn")
    return disk


def with_stray(disk):
    """A directory with records where a topic's partition is going to be made."""
    disk.make_dir(DATA / "back-0")
    disk.write_atomic(DATA / "back-0" / f"{0:020d}.log", b"records")
    return disk


def interrupted(disk):
    """Directories of a broker that was killed while compaction put a segment in place, at each step of that."""
    step, found = 0, []
    while True:
        step += 1
        copy = copied(disk)
        partition = open_partition(
            copy,
            DATA / "keys-0",
            LogConfig(
                segment_bytes=1100, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.01
            ),
            topic="keys",
            partition=0,
            clean=False,
            now_ms=1_700_000_000_000,
            recovery_point=0,
        )
        work = partition.compaction.begin_pass(1_700_000_000_000, key_count_max=1000)
        cleaned = next(done for done in work.steps() if done is not None and done.changed)
        copy.crash_at = copy.steps + step
        try:
            partition.compaction.put_in_place(cleaned)
        except SimulatedCrash:
            copy.crash_at = None
            found.append(copied(copy))
        else:
            break
    assert any(path.name.endswith(SWAP) for one in found for path in one.files())
    return found


class Directories:
    """Made once for all tests.

    Attributes:
        by_name: a disk of each end.
    """

    def __init__(self):
        disk = SimDisk()
        run(first_life(disk))
        disk = torn(run(second_life(with_stray(disk))))
        self.by_name = {}

        def killed(at):
            self.by_name["killed"] = copied(at)

        def cut_off(at):
            self.by_name["power cut"] = copied(at.crash(random.Random(3)))

        run(third_life(disk, [killed, cut_off]))
        self.by_name["stopped"] = copied(disk)
        for place, one in enumerate(interrupted(self.by_name["killed"])):
            self.by_name[f"compacting {place}"] = one
        for name in ("killed", "stopped"):
            self.by_name[name].write_atomic(DATA / ".lock", b"")
            self.by_name[name].write_atomic(DATA / "plain-0" / "log-start-offset.tmp", b"1\n9")
