"""What the broker does when the machine's wall clock is set: the table "Uses of the clocks" of decision 32 names these tests."""

import asyncio
import random
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, encode_batch
from stablelog.broker.directory.broker_time import BROKER_TIME_FILE
from stablelog.broker.upkeep.clock_watch import RECORD_EVERY, ClockWatch
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import COMMIT, DATA, batch, opened, part

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EPOCH_1970_MS = 5_000  # a board without a clock chip, 5 s after its start
STEPS = pytest.mark.parametrize("step_ms", [3 * HOUR_MS, -3 * HOUR_MS, 30 * DAY_MS], ids=["3h", "-3h", "30d"])


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation, 60))


def stamped(time_ms, value=b"v"):
    return encode_batch([Record(0, time_ms, None, value)])


async def commit_offset(desk, group="g"):
    where = part(
        8,
        2,
        "request",
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=1,
        committed_metadata="",
    )
    topic = part(8, 2, "request", "OffsetCommitRequestTopic", name="t", partitions=(where,))
    answer = await desk.ask(
        8, 2, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,)
    )
    assert answer.topics[0].partitions[0].error_code is ErrorCode.none


def offsets_of(desk, group="g"):
    return dict(desk.broker.groups.coordinator.table.offsets.committed(group))


@STEPS
def test_the_limits_of_timestamps_follow_the_wall_clock(step_ms):
    async def conversation():
        async with opened(log_message_timestamp_before_max_ms=HOUR_MS) as desk:
            clock = desk.broker.clock
            assert (await desk.produce(stamped(clock.wall_ms()))).error_code is ErrorCode.none
            clock.set_wall_clock(step_ms)
            right, wrong = clock.wall_ms(), clock.now_ms()
            assert (await desk.produce(stamped(right))).error_code is ErrorCode.none
            assert (await desk.produce(stamped(wrong))).error_code is ErrorCode.invalid_timestamp

    run(conversation())


@STEPS
def test_log_append_time_and_markers_have_the_wall_clocks_time(step_ms):
    async def conversation():
        async with opened(log_message_timestamp_type="LogAppendTime") as desk:
            clock = desk.broker.clock
            clock.set_wall_clock(step_ms)
            clock.advance(7)
            answer = await desk.produce(stamped(0))
            assert answer.log_append_time.timestamp() * 1000 == clock.wall_ms()
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"x", producer=who, sequence=0), transactional_id="a")
            await desk.end("a", who, COMMIT)
            await desk.durable()
            partition = desk.broker.partitions.require("t", 0)
            read = b"".join(partition.read(0, 1 << 20, Isolation.READ_COMMITTED).buffers)
            assert [header.max_timestamp for _, header in headers_in(read)] == [clock.wall_ms()] * 3

    run(conversation())


def test_the_commit_times_of_a_partition_never_go_back():
    """A lookup by time finds the first commit after a step back by its time in the order of the commits."""

    async def conversation():
        async with opened(topics=()) as desk:
            clock = desk.broker.clock
            desk.broker.topic_files.create("t", 1, {"stablelog.order": "commit"})
            who = await desk.init("a")
            for step_ms in (0, -HOUR_MS, 2 * HOUR_MS):
                clock.set_wall_clock(step_ms)
                await desk.add("a", who, ("t", 0))
                sequence = len(desk.values())
                await desk.produce(batch(b"x", producer=who, sequence=sequence), transactional_id="a")
                await desk.end("a", who, COMMIT)
                await desk.durable()
            first, third = NOW_MS, NOW_MS + HOUR_MS
            assert (await desk.offset_at("t", 0, first - HOUR_MS)).offset == 2
            assert (await desk.offset_at("t", 0, first)).offset == 2
            assert (await desk.offset_at("t", 0, first + 1)).offset == 8
            assert (await desk.offset_at("t", 0, third + 1)).offset == -1

    run(conversation())


@STEPS
def test_transactions_time_out_by_broker_time(step_ms):
    async def conversation():
        async with opened() as desk:
            clock, maintenance = desk.broker.clock, desk.broker.maintenance
            who = await desk.init("a", transaction_timeout=timedelta(minutes=1))
            await desk.add("a", who, ("t", 0))
            clock.set_wall_clock(step_ms)
            clock.advance(59_000)
            await maintenance.abort_overdue()
            table = desk.broker.transactions.default.coordinator.table
            assert table.require_state("a").state is TransactionState.ONGOING
            described = await desk.ask(65, 0, transactional_ids=("a",))
            began = described.transaction_states[0].transaction_start_time
            assert began.timestamp() * 1000 == clock.wall_ms() - 59_000
            clock.advance(1_001)
            await maintenance.abort_overdue()
            assert table.require_state("a").state is not TransactionState.ONGOING

    run(conversation())


@STEPS
def test_sessions_of_groups_end_by_broker_time(step_ms):
    async def conversation():
        async with opened(group_initial_rebalance_delay_ms=0) as desk:
            clock, coordinator = desk.broker.clock, desk.broker.groups.coordinator
            protocol = part(11, 2, "request", "JoinGroupRequestProtocol", name="range", metadata=b"")
            joined = await desk.ask(
                11,
                2,
                group_id="g",
                session_timeout=timedelta(seconds=30),
                rebalance_timeout=timedelta(seconds=30),
                member_id="",
                protocol_type="consumer",
                protocols=(protocol,),
            )
            assert joined.error_code is ErrorCode.none
            clock.set_wall_clock(step_ms)
            clock.advance(29_000)
            desk.broker.groups.apply_decision(coordinator.tick(clock.now_ms()))
            assert len(coordinator.table.groups["g"].members) == 1
            clock.advance(31_002)
            desk.broker.groups.apply_decision(coordinator.tick(clock.now_ms()))
            assert not coordinator.table.groups["g"].members

    run(conversation())


@pytest.mark.parametrize(("step_ms", "start_offset"), [(0, 1), (-2 * HOUR_MS, 0), (2 * HOUR_MS, 3)])
def test_retention_by_time_follows_the_wall_clock(step_ms, start_offset):
    async def conversation():
        async with opened(log_retention_ms=HOUR_MS) as desk:
            clock, partition = desk.broker.clock, desk.broker.partitions.require("t", 0)
            for age_ms in (HOUR_MS + 1, HOUR_MS // 2, 0):
                await desk.produce(stamped(NOW_MS - age_ms))
                partition.roll(clock.now_ms())
            await desk.produce(stamped(NOW_MS))
            await desk.durable()
            clock.set_wall_clock(step_ms)
            await desk.broker.maintenance.apply_retention()
            assert partition.start_offset == start_offset

    run(conversation())


@pytest.mark.parametrize(("step_ms", "first_dirty_offset"), [(0, 0), (-HOUR_MS, 0), (2 * HOUR_MS, 1)])
def test_the_lag_of_compaction_follows_the_wall_clock(step_ms, first_dirty_offset):
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}

    async def conversation():
        async with opened(topics=()) as desk:
            clock, broker = desk.broker.clock, desk.broker
            partition = desk.create("t", settings | {"min.compaction.lag.ms": str(HOUR_MS)})
            await desk.produce(encode_batch([Record(0, NOW_MS, b"k", b"v")]))
            partition.roll(clock.now_ms())
            await desk.produce(encode_batch([Record(0, NOW_MS, b"k", b"v")]))
            await desk.durable()
            clock.set_wall_clock(step_ms)
            await broker.compactor.compact_all()
            assert partition.compaction.first_dirty_offset == first_dirty_offset

    run(conversation())


@pytest.mark.parametrize("late_ms", [NOW_MS - EPOCH_1970_MS, 3 * HOUR_MS, DAY_MS])
def test_nothing_expires_after_a_late_start_whose_clock_was_set_right(late_ms):
    """Offsets, producers, transactional ids and open transactions of the time before the step, and after it, are as old
    after a restart as the broker has seen.
    """
    disk = SimDisk()

    async def conversation():
        async with opened(disk, now_ms=NOW_MS - late_ms, log_message_timestamp_after_max_ms=2**62) as desk:
            clock = desk.broker.clock
            await commit_offset(desk, "early")
            await desk.produce(batch(b"x", producer=await desk.init(None), sequence=0, transactional=False))
            open_one = await desk.init("open", transaction_timeout=timedelta(minutes=15))
            await desk.add("open", open_one, ("t", 0))
            await desk.init("idle")
            clock.set_wall_clock(late_ms)
            clock.advance(60_000)
            await commit_offset(desk, "late")
        async with opened(disk, now_ms=NOW_MS + 2 * 60_000) as desk:
            clock, maintenance = desk.broker.clock, desk.broker.maintenance
            coordinator = desk.broker.groups.coordinator
            clock.advance(11 * 60_000)  # the first check of offsets after a start
            desk.broker.groups.apply_decision(coordinator.tick(clock.now_ms()))
            assert offsets_of(desk, "early")
            assert offsets_of(desk, "late")
            await maintenance.expire_producers()
            assert len(desk.broker.partitions.require("t", 0).log.producers) == 1
            await maintenance.forget_expired()
            await maintenance.abort_overdue()
            table = desk.broker.transactions.default.coordinator.table
            assert table.require_state("idle")
            assert table.require_state("open").state is TransactionState.ONGOING
            clock.advance(2 * 60_000)
            await maintenance.abort_overdue()
            assert table.require_state("open").state is not TransactionState.ONGOING
            clock.advance(7 * DAY_MS)
            desk.broker.groups.apply_decision(coordinator.tick(clock.now_ms()))
            assert not offsets_of(desk, "early")

    run(conversation())


def test_a_start_with_an_earlier_clock_goes_on_in_broker_time_and_says_so(caplog):
    disk = SimDisk()

    async def conversation():
        async with opened(disk, now_ms=NOW_MS) as desk:
            desk.broker.clock.advance(HOUR_MS)
            await commit_offset(desk)
        async with opened(disk, now_ms=NOW_MS - DAY_MS) as desk:
            clock = desk.broker.clock
            assert (clock.now_ms(), clock.wall_ms()) == (NOW_MS + HOUR_MS, NOW_MS - DAY_MS)
            await commit_offset(desk, "h")
            (offset,) = offsets_of(desk, "h").values()
            assert offset.value.commit_ms == NOW_MS + HOUR_MS
            # Records get the wall clock's time, and their limits follow it.
            assert (await desk.produce(stamped(clock.wall_ms()))).error_code is ErrorCode.none

    run(conversation())
    assert "clock is 90000.0 s before the time at which a broker last used /data" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"", b"0\n5\n", b"1\n5\n6\n", b"0\n5\n6\nx", b"0\n-5\n6\n", b"\xff\n5\n6\n", b"0\n\xc2\xb2\n6\n"],
    ids=["empty", "short", "newer", "long", "negative", "bytes", "digit"],
)
def test_broker_time_begins_at_the_wall_clock_if_its_file_is_not_whole(content):
    disk = SimDisk()

    async def conversation():
        async with opened(disk):
            pass
        disk.write_atomic(DATA / BROKER_TIME_FILE, content)
        async with opened(disk, now_ms=NOW_MS - DAY_MS) as desk:
            assert desk.broker.clock.now_ms() == NOW_MS - DAY_MS

    run(conversation())


@pytest.mark.parametrize("step_ms", [0, NOW_MS - EPOCH_1970_MS], ids=["start", "step"])
def test_a_power_loss_does_not_lose_broker_time(step_ms):
    """Soon after the first start with a clock that is late, and soon after the clock was set right."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk, now_ms=EPOCH_1970_MS) as desk:
            clock, watch = desk.broker.clock, ClockWatch(desk.broker.clock, desk.broker.directory.time)
            for _ in range(RECORD_EVERY + 1):
                clock.advance(1000)
                await watch.check_clock()
            clock.set_wall_clock(step_ms)
            await watch.check_clock()
            wall_ms = clock.wall_ms()
            crashed = [disk.crash(random.Random(seed)) for seed in range(8)]
        for one in crashed:
            async with opened(one, now_ms=wall_ms + HOUR_MS) as desk:
                assert EPOCH_1970_MS + HOUR_MS <= desk.broker.clock.now_ms() < EPOCH_1970_MS + 2 * HOUR_MS

    run(conversation())


def test_broker_time_is_recorded_at_a_start():
    disk = SimDisk()

    async def conversation():
        async with opened(disk, now_ms=EPOCH_1970_MS):
            crashed = disk.crash(random.Random(0))
        assert (
            crashed.read_bytes(DATA / BROKER_TIME_FILE) == f"0\n{EPOCH_1970_MS}\n{EPOCH_1970_MS}\n".encode()
        )

    run(conversation())


def test_a_start_whose_clock_was_never_set_right_is_no_long_time_without_a_broker():
    disk = SimDisk()

    async def conversation():
        async with opened(disk, now_ms=NOW_MS) as desk:
            await commit_offset(desk)
        for _ in range(2):
            async with opened(disk, now_ms=EPOCH_1970_MS) as desk:
                desk.broker.clock.advance(HOUR_MS)
        async with opened(disk, now_ms=NOW_MS + 5 * HOUR_MS) as desk:
            assert desk.broker.clock.now_ms() == NOW_MS + 5 * HOUR_MS
            assert offsets_of(desk)

    run(conversation())


def test_a_clock_that_is_set_counts_although_it_was_later_once():
    """A clock that was years ahead, and is right now: later starts add the time that has passed by the right clock."""
    disk, ahead_ms = SimDisk(), 3_650 * DAY_MS

    async def conversation():
        async with opened(disk, now_ms=NOW_MS + ahead_ms):
            pass
        async with opened(disk, now_ms=NOW_MS - HOUR_MS) as desk:
            watch = ClockWatch(desk.broker.clock, desk.broker.directory.time)
            desk.broker.clock.set_wall_clock(HOUR_MS)
            await watch.check_clock()
        async with opened(disk, now_ms=NOW_MS + HOUR_MS) as desk:
            assert desk.broker.clock.now_ms() == NOW_MS + ahead_ms + HOUR_MS

    run(conversation())
