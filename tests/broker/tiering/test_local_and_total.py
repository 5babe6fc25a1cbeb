"""Retention of a tiered topic has two limits: local retention frees the disk, and total retention deletes records."""

import asyncio
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, encode_batch
from stablelog.log.files.names import REMOTE_MANIFEST_FILE
from stablelog.testing.sim_disk import SimDisk
from tests.broker.tiering.desk import LOCAL_NOTHING, copy, log_of, tiered, write_segments
from tests.broker.tiering.test_tiering import EARLIEST, list_offset
from tests.broker.tiering.world import lines

YEAR_MS = 365 * 24 * 3_600_000
FUTURE = {**LOCAL_NOTHING, "local.retention.bytes": "-1", "message.timestamp.after.max.ms": str(2**62)}
NEVER_COPIED = {"remote.storage.enable": "true", "retention.bytes": "300", "local.retention.bytes": "-2"}


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 60))


async def write_future(desk, count):
    """Write segments whose timestamps are a year ahead of the clock."""
    log = log_of(desk)
    for _ in range(count):
        record = Record(0, desk.broker.now_ms() + YEAR_MS, None, b"later")
        assert (await desk.produce(encode_batch([record]))).error_code is ErrorCode.none
        log.roll(desk.broker.now_ms())
    await desk.broker.flush.wait_for_next_round([log])


@pytest.mark.parametrize("is_restarted", [False, True])
def test_copied_segments_with_timestamps_in_the_future_leave_the_disk_and_stay_in_the_store(
    is_restarted, tmp_path
):
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk, configs=FUTURE) as desk:
            await write_future(desk, 4)
            if not is_restarted:
                await check(desk)
        if is_restarted:
            async with tiered(tmp_path.as_uri(), disk, configs=FUTURE) as desk:
                await desk.opened("t")
                await check(desk)

    async def check(desk):
        await copy(desk)
        assert (log_of(desk).start_offset, log_of(desk).remote.start_offset) == (4, 0)
        assert await list_offset(desk, EARLIEST) == 0

    run(conversation)


def test_local_retention_counts_the_age_of_a_segment_whose_timestamps_are_in_the_future(tmp_path):
    configs = {**FUTURE, "local.retention.ms": "5000"}

    async def conversation():
        async with tiered(tmp_path.as_uri(), configs=configs) as desk:
            await write_future(desk, 2)
            log, now_ms = log_of(desk), desk.broker.now_ms()
            await desk.broker.tiering.copy_all()
            log.deletion.apply_retention(now_ms + 4999)
            assert log.start_offset == 0
            log.deletion.apply_retention(now_ms + 5001)
            assert log.start_offset == 2

    run(conversation)


def test_total_retention_keeps_records_with_timestamps_in_the_future(tmp_path):
    configs = {**FUTURE, "retention.ms": "5000", "local.retention.ms": "-2"}

    async def conversation():
        async with tiered(tmp_path.as_uri(), configs=configs) as desk:
            await write_future(desk, 2)
            log_of(desk).deletion.apply_retention(desk.broker.now_ms() + 10_000)
            assert await list_offset(desk, EARLIEST) == 0

    run(conversation)


def test_a_partition_that_retention_has_trimmed_and_that_was_never_copied_needs_no_store(tmp_path, caplog):
    """After a start without the store, only the record of an empty manifest says that nothing was copied."""
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk, configs=NEVER_COPIED) as desk:
            await write_segments(desk, 6)
            await desk.durable()
            await desk.broker.maintenance.apply_retention()
            start = log_of(desk).start_offset
            assert start > 0
            assert disk.exists(log_of(desk).directory / REMOTE_MANIFEST_FILE)
            killed = disk.crash(random.Random(0))
        async with tiered(tmp_path.as_uri(), killed, configs=NEVER_COPIED) as desk:
            await desk.opened("t")
            log = log_of(desk)
            log.log.prove_segments()
            assert await list_offset(desk, EARLIEST) == start
            assert await list_offset(desk, 0) == start
            assert (await desk.fetch("t", 0, start - 1)).error_code is ErrorCode.offset_out_of_range
            assert (await desk.fetch("t", 0, start)).error_code is ErrorCode.none
            await write_segments(desk, 4)
            await desk.durable()
            await desk.broker.maintenance.apply_retention()
            assert log.start_offset > start, "retention goes on"
        assert lines(caplog) == []

    run(conversation)


def test_retention_that_cannot_go_on_is_logged_once(tmp_path, caplog):
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            path = log_of(desk).directory / REMOTE_MANIFEST_FILE
        disk.write_atomic(path, b"x")
        async with tiered(tmp_path.as_uri(), disk) as desk:
            await desk.opened("t")
            for _ in range(3):
                await desk.broker.maintenance.apply_retention()
            await desk.broker.tiering.copy_all()
            await desk.broker.maintenance.apply_retention()
        (line,) = [line for line in lines(caplog) if line.startswith("retention of")]
        assert "not known until the object store answers" in line

    run(conversation)
