"""A broker serves a commit-ordered topic over both tiers: fetches, cuts, commits and deletions need the local log no more."""

import asyncio
import dataclasses
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import batch
from tests.broker.tiering.desk import LOCAL_NOTHING, copy, log_of, tiered

ORDERED = {**LOCAL_NOTHING, "stablelog.order": "commit"}
SEGMENTS = 4


async def committed(desk, start):
    """The values of a consumer from a position on, and the position of each."""
    found, position = [], start
    while position < log_of(desk).last_stable_offset:
        answer = await desk.fetch("t", 0, position, max_wait_ms=5_000)
        assert answer.error_code is ErrorCode.none
        rows = [
            (record.offset, record.value)
            for at, _ in headers_in(answer.records)
            for record in decode_records(answer.records, at)
        ]
        found += [row for row in rows if row[0] >= position]
        if not rows:
            break
        position = rows[-1][0] + 1
    return found


async def write(desk):
    """Two producers whose transactions overlap over the ends of segments, and records outside transactions."""
    producers = {name: await desk.init(name) for name in "xy"}
    sequences = dict.fromkeys("xy", 0)
    for number in range(SEGMENTS):
        for name in "xy":
            await desk.add(name, producers[name], ("t", 0))
            value = b"%s%d" % (name.encode(), number)
            record = batch(value, producer=producers[name], sequence=sequences[name])
            await desk.produce(record, transactional_id=name)
            sequences[name] += 1
            log_of(desk).roll(desk.broker.now_ms())
        await desk.produce(batch(b"outside%d" % number))
        for name in "yx":
            await desk.end(name, producers[name], True)
    await desk.durable()
    log_of(desk).roll(desk.broker.now_ms())
    await desk.produce(batch(b"last"))


async def cut_at(desk, commit_sequence):
    answer = await desk.ask(
        ApiKey.DESCRIBE_CUT, 0, group=None, commit_sequence=commit_sequence, topics=("t",)
    )
    assert answer.error_code is ErrorCode.none, answer.error_message
    found = answer.topics[0].partitions[0]
    return found.offset, found.removed_commit_sequence, found.torn_commit_sequence


async def said(desk):
    """All that a broker says about its committed records."""
    commits = await desk.ask(
        ApiKey.DESCRIBE_COMMITS, 0, topic="t", partition_index=0, offset=0, count_max=100
    )
    assert commits.error_code is ErrorCode.none, commits.error_message
    cuts = [await cut_at(desk, number) for number in range(2 * SEGMENTS + 1)]
    return await committed(desk, 0), commits.commits, cuts


def test_all_is_as_before_when_the_local_segments_are_gone(tmp_path):
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk, configs=ORDERED) as desk:
            await write(desk)
            before = await said(desk)
            assert len(before[0]) == 3 * SEGMENTS + 1
            await copy(desk)
            assert log_of(desk).segments()[0].base_offset == log_of(desk).remote.end_offset > 0
            assert await said(desk) == before
        async with tiered(tmp_path.as_uri(), disk, configs=ORDERED) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            assert await said(desk) == before
            middle = before[0][4][0]  # in a transaction of one record
            assert await deleted(desk, middle) == middle
            assert await committed(desk, middle) == [row for row in before[0] if row[0] >= middle]
            assert (await desk.fetch("t", 0, middle - 1)).error_code is ErrorCode.offset_out_of_range
            assert (await cut_at(desk, 0))[0] == middle
            assert (await cut_at(desk, 0))[1] > 0

    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.mark.extended
def test_records_are_deleted_though_the_local_index_of_the_offset_was_lost(tmp_path):
    """The offset is on the local disk, in a segment whose whole commit index only the store has."""
    disk = SimDisk()

    async def conversation():
        async with tiered(tmp_path.as_uri(), disk, configs=ORDERED) as desk:
            log = log_of(desk)
            producer = await desk.init("x")
            await desk.add("x", producer, ("t", 0))
            await desk.produce(batch(b"x0", producer=producer, sequence=0), transactional_id="x")
            log.roll(desk.broker.now_ms())
            await desk.produce(batch(b"x1", producer=producer, sequence=1), transactional_id="x")
            await desk.end("x", producer, True)
            await desk.durable()
            log.roll(desk.broker.now_ms())
            await desk.produce(batch(b"last"))
            await desk.broker.tiering.copy_all()
            kept = log.size - log.segments()[0].size
            kept = dataclasses.replace(log.config, local_retention_ms=-1, local_retention_bytes=kept)
            log.config = kept
            log.deletion.apply_retention(desk.broker.now_ms() + 1)
            assert log.start_offset > 0
            before, directory = await committed(desk, 0), log.directory
            assert [value for _, value in before] == [b"x0", b"x1", b"last"]
        for name in disk.list_dir(directory):
            if ".commit" in name:
                disk.remove(directory / name)
        async with tiered(tmp_path.as_uri(), disk, configs=ORDERED) as desk:
            await desk.opened("t")
            log_of(desk).log.prove_segments()
            assert await deleted(desk, before[1][0]) == before[2][0]
            assert await committed(desk, before[2][0]) == before[2:]

    asyncio.run(asyncio.wait_for(conversation(), 60))


async def deleted(desk, offset):
    """The new log start offset after a deletion of all records before an offset."""
    partition = {"partition_index": 0, "offset": offset}
    answer = await desk.ask_with(
        ApiKey.DELETE_RECORDS,
        2,
        {"timeout": timedelta(seconds=30), "topics": [{"name": "t", "partitions": [partition]}]},
    )
    found = answer.topics[0].partitions[0]
    assert found.error_code is ErrorCode.none
    return found.low_watermark
