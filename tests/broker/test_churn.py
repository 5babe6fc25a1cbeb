"""Months of use: what a broker makes and drops leaves nothing, however many there were.

Each kind of thing is made and dropped in numbers, then in ten times these numbers. What a broker has in memory and on its
disk, and what its next start takes, is then at most 5 % greater. STABLELOG_CHURN is the factor of the numbers.
"""

import asyncio
import functools
import gc
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import repeated
from tests.broker.apis.test_acl_apis import RULE, SECURED
from tests.broker.apis.test_acl_apis import create as create_acls
from tests.broker.apis.test_acl_apis import delete as delete_acls
from tests.broker.apis.test_joint_apis import begin, child
from tests.broker.desk import ABORT, COMMIT, DATA, batch, opened
from tests.broker.test_cycles import KINDS, fill, tidy
from tests.broker.test_unexpected_errors import API_VERSIONS_KEY, any_request, ask, serving
from tests.commands import ROOT

pytestmark = pytest.mark.extended

FACTOR = int(os.environ.get("STABLELOG_CHURN", "1"))
IS_LONG = FACTOR > 1
TIMES = 10
GROWTH_MAX = 1.05
# Per dead thing; a group, an id or a partition has dozens. Caches that reach their bounds in the test have some.
BLOCKS_MAX = 2.0
SLACK = 500  # blocks of the interpreter itself
PASSES = 3  # of a remote tier, in which the objects of a deleted topic are deleted, and then its events
LRU_CACHE = type(functools.lru_cache(len))
LAST = 1_000_000  # the number of an id that none of the dead ones has
DAY_MS = 24 * 3_600_000
LINES = 25  # of the output of a process that failed


def alone(test):
    """Run a test in a process of its own if pytest-xdist runs it: threads of clients and of Spark, which other tests leave in
    its worker, make and free blocks meanwhile.
    """

    @functools.wraps(test)
    def run(*arguments, **keywords):
        if "PYTEST_XDIST_WORKER" not in os.environ:
            test(*arguments, **keywords)
            return
        name = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("@")[0]
        others = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        short = ["--tb=short", "--show-capture=no"]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *short, name]
        done = subprocess.run(command, cwd=ROOT, env=others, capture_output=True, text=True, check=False)
        end = (done.stdout + done.stderr).splitlines()[-LINES:]
        assert done.returncode == 0, "\n".join(["the process of the test ends with:", *end])

    return run


async def partitions(desk, number, kind):
    desk.broker.topic_files.create("t", 1, KINDS[kind])
    await fill(desk, rounds=2)
    await tidy(desk)
    await desk.broker.topic_changes.delete_topic("t")
    await expire(desk, 1)


async def groups(desk, number):
    where = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
    fields = {"group_id": f"g{number}", "member_id": "", "topics": [{"name": "kept", "partitions": [where]}]}
    await desk.ask_with(8, 6, fields)
    await desk.ask_with(42, 1, {"groups_names": [f"g{number}"]})


async def members(desk, number):
    protocol = {"name": "range", "metadata": b"m" * 50}
    await desk.ask_with(
        11,
        2,
        {
            "group_id": f"g{number}",
            "session_timeout": timedelta(seconds=30),
            "rebalance_timeout": timedelta(seconds=30),
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [protocol],
        },
    )
    coordinator, clock = desk.broker.groups.coordinator, desk.broker.clock
    clock.advance(61_000)
    desk.broker.groups.apply_decision(coordinator.tick(clock.now_ms()))
    clock.advance(700_000)
    desk.broker.groups.apply_decision(coordinator.tick(clock.now_ms()))


async def ids(desk, number):
    who = await desk.init(f"id{number}")
    await desk.add(f"id{number}", who, ("kept", 0))
    await desk.produce(batch(b"v", producer=who, sequence=0), topic="kept", transactional_id=f"id{number}")
    await desk.end(f"id{number}", who, ABORT if number % 2 else COMMIT)


async def prepared(desk, number):
    name = f"id{number}"
    who = await desk.init(name, version=6, enable2_pc=True, keep_prepared_txn=False)
    await desk.add(name, who, ("kept", 0))
    await desk.produce(batch(b"v", producer=who, sequence=0), topic="kept", transactional_id=name)
    await desk.end(name, who, COMMIT)


async def producers(desk, number):
    who = await desk.init(None)
    await desk.produce(batch(b"v", producer=who, sequence=0, transactional=False), topic="kept")


async def joint_keys(desk, number):
    key = f"k{number}"
    assert (await begin(desk, key=key)).error_code is ErrorCode.none
    made = await child(desk, key=key)
    await made.write(b"v", topic="kept")
    committed = await desk.ask(
        ApiKey.COMMIT_JOINT,
        0,
        key=key,
        version=0,
        run="r1",
        children=(made.shown,),
        group_offsets=(),
        retention_ms=DAY_MS,
    )
    assert committed.error_code is ErrorCode.none


async def acls(desk, number):
    await create_acls(desk, {**RULE, "resource_name": f"t{number}"})
    of_it = {
        "resource_type_filter": 2,
        "resource_name_filter": f"t{number}",
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    await delete_acls(desk, of_it)


async def segments(desk, number):
    await desk.produce(batch(bytes(600)), topic="kept")
    await desk.produce(batch(bytes(600)), topic="kept", partition=1)
    if number % 10 == 9:
        await expire(desk, 1)


async def expire(desk, days):
    """The time passes, and the broker does what it does from time to time."""
    broker, coordinator = desk.broker, desk.broker.groups.coordinator
    await desk.durable()
    broker.clock.advance(days * DAY_MS)
    await broker.maintenance.apply_retention()
    await desk.durable()
    broker.clock.advance(60_000)
    await broker.maintenance.forget_expired()
    await broker.maintenance.expire_producers()
    broker.groups.apply_decision(coordinator.tick(broker.clock.now_ms()))
    await broker.maintenance.remove_deleted()
    for _ in range(PASSES):
        await broker.tiering.copy_all()
        await broker.tiering.copy_coordinator_logs()
    await desk.durable()


async def complete(desk):
    """Write the summaries and snapshots of sealed segments. The flush of a record that no request waits for writes them
    after a time, so a slow machine has more of them at the end of a life.
    """
    await desk.broker.flush.wait_for_next_round(desk.broker.partitions)
    await desk.broker.maintenance.remove_deleted()


async def fill_kept(desk):
    """Fill the topic that stays, up to its retention, so that each life ends with as many segments."""
    for _ in range(12):
        await desk.produce(batch(bytes(600)), topic="kept")
        await desk.produce(batch(bytes(600)), topic="kept", partition=1)
    await desk.durable()


async def trim(desk):
    """Trim the coordinators' logs to their live state."""
    journals = [group.journal for group in desk.broker.transactions]
    for journal in (*journals, desk.broker.groups.journal):
        journal.demand_checkpoint(at_least=-(1 << 40))
    await desk.broker.maintenance.trim_logs()
    await expire(desk, 1)


KEPT = {"retention.bytes": "3000", "segment.bytes": "1024", "retention.ms": "-1"}
# By name: how many in a round, how one is made and dropped, and the settings of the broker.
CHURN = {
    **{f"partition, {kind}": (3, lambda desk, n, kind=kind: partitions(desk, n, kind), {}) for kind in KINDS},
    "group": (40, groups, {}),
    "group with a member": (20, members, {"group_initial_rebalance_delay_ms": "0"}),
    "transactional id": (40, ids, {}),
    "prepared transaction": (20, prepared, {"transaction_two_phase_commit_enable": "true"}),
    "idempotent producer": (40, producers, {}),
    "joint key": (20, joint_keys, {}),
    "ACL": (20, acls, SECURED | {"super_users": "User:ANONYMOUS"}),
    "segment": (40, segments, {}),
    "segment and commit index": (40, segments, {"stablelog_order": "commit"}),
}
BY_DAY = (
    "partition, commit-ordered, of many segments",
    "group",
    "transactional id",
    "segment and commit index",
)


@dataclass
class Measured:
    """What a broker has after a number of dead things."""

    blocks: int
    objects: int
    size: int
    count: int

    @classmethod
    def of(cls, disk):
        gc.unfreeze()  # the objects of before the tests, among which the caches are
        # Caches of decoded messages have a bound that a short run does not reach.
        for one in gc.get_objects():
            if isinstance(one, LRU_CACHE) and one.cache_info().maxsize is not None:
                one.cache_clear()
        repeated.clear()
        gc.collect()
        files = list(disk.files(DATA))
        return cls(
            sys.getallocatedblocks(),
            len(gc.get_objects()),
            sum(len(disk.read_bytes(one)) for one in files),
            len(files),
        )


def start_s(disk, settings):
    """The processor time of a start and a stop."""

    async def life():
        async with opened(disk, topics=(), **settings):
            pass

    took = []
    for _ in range(3):
        began_s = time.process_time()
        asyncio.run(life())
        took.append(time.process_time() - began_s)
    return statistics.median(took)


@pytest.mark.parametrize("kind", CHURN if IS_LONG else BY_DAY)
@alone
def test_ten_times_as_many_dead_things_leave_no_more(kind, tmp_path, monkeypatch):
    count, work, settings = CHURN[kind]
    settings = {
        "log_segment_delete_delay_ms": 0,
        "remote_log_manager_task_interval_ms": 3_600_000,
        "transactional_id_expiration_ms": DAY_MS,
        **settings,
    }
    if "tiered" in kind:
        settings |= {
            "stablelog_remote_url": (tmp_path / "store").as_uri(),
            "stablelog_remote_delete_delay_ms": 0,
        }
        # The store applies no upload late, few events are many, and the segments of a coordinator's log that a trim has
        # marked are deleted at once instead of 4 with each copy.
        monkeypatch.setattr("stablelog.tier.deletion.LATE_S", 0)
        monkeypatch.setattr("stablelog.broker.tiering.metadata_topic.DEAD_COUNT_MAX", 0)
        monkeypatch.setattr("stablelog.broker.tiering.copy_plans.COORDINATOR_DELETED_AT_ONCE", 1_000)
    disk = SimDisk()
    starts = []

    async def life(first, number, measured):
        async with opened(disk, topics=(), **settings) as desk:
            if desk.broker.topics.get("kept") is None:
                desk.broker.topic_files.create("kept", 2, KEPT)
            for at in range(first, first + number):
                await work(desk, at)
            # Twice: what expires first leaves records, and a trimmed segment leaves when the next one is sealed.
            for again in range(2):
                await expire(desk, 8)
                await groups(desk, f"last{again}")
                await fill_kept(desk)
                await trim(desk)
            # The store learns with the next records of a coordinator's log that the log was trimmed, deletes the objects
            # of trimmed segments after that, and learns with later records that these are gone.
            for again in range(PASSES):
                await ids(desk, LAST + again)
                await expire(desk, 1)
            await complete(desk)
            measured.append(Measured.of(disk))

    measured, first = [], 0
    for number in (count * FACTOR, count * FACTOR, TIMES * count * FACTOR):
        asyncio.run(asyncio.wait_for(life(first, number, measured), 3000))
        starts.append(start_s(disk, settings) if IS_LONG else 0)
        first += number
    _warm_up, few, many = measured
    dead_count = (TIMES - 1) * count * FACTOR
    assert many.blocks <= few.blocks * GROWTH_MAX
    assert many.objects <= few.objects * GROWTH_MAX
    assert many.blocks - few.blocks <= BLOCKS_MAX * dead_count + SLACK
    assert many.count <= few.count * GROWTH_MAX
    assert many.size <= few.size * GROWTH_MAX + 200
    assert starts[2] <= starts[1] * GROWTH_MAX + 0.02


@alone
def test_ten_times_as_many_connections_leave_no_more():
    async def life():
        async with serving() as (server, port):
            measured = []
            for count in (20 * FACTOR, 20 * FACTOR * TIMES):
                for _ in range(count):
                    await ask(port, any_request(API_VERSIONS_KEY))
                while server.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
                gc.collect()
                measured.append(sys.getallocatedblocks())
            few, many = measured
            assert many - few <= BLOCKS_MAX * 20 * FACTOR * (TIMES - 1) + SLACK

    asyncio.run(asyncio.wait_for(life(), 600))
