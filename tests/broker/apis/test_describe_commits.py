"""The bounds of transactions, as a read-committed fetch has them."""

import asyncio
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.commits import COUNT_MAX
from tests.broker.desk import batch, opened

COMMIT_ORDER = {"stablelog.order": "commit"}


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 100))


async def ask(desk, topic="t", partition_index=0, **fields):
    return await desk.ask(ApiKey.DESCRIBE_COMMITS, 0, topic=topic, partition_index=partition_index, **fields)


async def listed(desk, **fields):
    answer = await ask(desk, **fields)
    assert answer.error_code is ErrorCode.none, answer.error_message
    return [(one.commit_sequence, one.start_offset, one.end_offset) for one in answer.commits]


def create(desk):
    if desk.broker.topics.get("t") is None:
        desk.broker.topic_files.create("t", 1, COMMIT_ORDER)


async def write_history(desk, seed):
    """Interleaved transactions, some aborted, and records outside. Returns the values of each commit, in order."""
    chance = random.Random(seed)
    opened_ones, committed = {}, []
    for number in range(60):
        name = f"w{chance.randrange(4)}"
        if name not in opened_ones:
            producer = await desk.init(name)
            await desk.add(name, producer, ("t", 0))
            opened_ones[name] = producer, []
        producer, values = opened_ones[name]
        match chance.randrange(4):
            case 0 | 1:
                value = b"%d" % number
                records = batch(value, value, producer=producer, sequence=len(values))
                await desk.produce(records, topic="t", partition=0, transactional_id=name)
                values += [value, value]
            case 2:
                commit = chance.random() < 0.7
                assert (await desk.end(name, producer, commit)).error_code is ErrorCode.none
                del opened_ones[name]
                if commit and values:
                    committed.append(values)
            case _:
                await desk.produce(batch(b"outside"), topic="t", partition=0)
    await desk.durable()
    return committed


def slices(desk, commits):
    """The values between the bounds."""
    partition = desk.broker.partitions.require("t", 0)
    read = partition.read(partition.view.start_offset, 1 << 30, Isolation.READ_COMMITTED)
    data = b"".join(read.buffers)
    records = [record for at, _ in headers_in(data) for record in decode_records(data, at)]
    return [[record.value for record in records if start <= record.offset < end] for _, start, end in commits]


@pytest.mark.parametrize("seed", range(5))
def test_the_bounds_are_those_of_what_is_read_also_after_a_crash(seed):
    disk = SimDisk()
    expected = []

    async def live():
        async with opened(disk, topics=()) as desk:
            create(desk)
            expected.extend(await write_history(desk, seed))
            commits = await listed(desk)
            assert slices(desk, commits) == expected
            for place, (sequence, start, end) in enumerate(commits):
                assert await listed(desk, commit_sequence=sequence) == commits[place:]
                assert await listed(desk, commit_sequence=sequence + 1) == commits[place + 1 :]
                assert await listed(desk, offset=start) == commits[place:]
                assert await listed(desk, offset=end - 1) == commits[place:]
                assert await listed(desk, offset=end) == commits[place + 1 :]
                assert await listed(desk, offset=start, count_max=1) == [commits[place]]
            assert await listed(desk, count_max=0) == await listed(desk, count_max=-7) == []
            assert await listed(desk, count_max=COUNT_MAX + 1) == commits
            every = await listed(desk, with_outside=True)
            assert [one for one in every if one[0] >= 0] == commits
            (all_values,) = slices(desk, [(0, 0, 1 << 30)])
            assert [value for part in slices(desk, every) for value in part] == all_values
            answer = await ask(desk)
            partition = desk.broker.partitions.require("t", 0)
            assert (answer.log_start_offset, answer.end_offset) == (0, partition.view.end_offset)
            assert all(one.time_ms > 0 for one in answer.commits)
            return commits, disk.crash(random.Random(seed))

    commits, left = run(live)

    async def afterwards():
        async with opened(left, topics=()) as desk:
            await desk.durable()
            assert await listed(desk) == commits

    run(afterwards)


def test_what_is_not_durable_is_not_listed():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            producer = await desk.init("me")
            await desk.add("me", producer, ("t", 0))
            records = batch(b"v", producer=producer, sequence=0)
            await desk.produce(records, topic="t", partition=0, transactional_id="me")
            with desk.held_disk():
                ending = asyncio.ensure_future(desk.end("me", producer, True))
                for _ in range(20):  # turns of the loop, until it is decided
                    await asyncio.sleep(0)
                assert await listed(desk) == []
            await ending
            await desk.durable()
            assert await listed(desk) == [(1, 2, 3)]

    run(conversation)


def test_what_has_no_commits_says_why():
    async def conversation():
        async with opened(topics=("ordinary",)) as desk:
            create(desk)
            assert await listed(desk) == []
            ordinary = await ask(desk, "ordinary")
            assert ordinary.error_code is ErrorCode.invalid_request
            assert "stablelog.order=commit" in ordinary.error_message
            assert (await ask(desk, "none")).error_code is ErrorCode.unknown_topic_or_partition
            assert (await ask(desk, "t", 1)).error_code is ErrorCode.unknown_topic_or_partition
            assert (await ask(desk, "t", -1)).error_code is ErrorCode.unknown_topic_or_partition

    run(conversation)


def test_a_request_waits_for_a_transaction_to_list():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            waiting = asyncio.ensure_future(listed(desk, commit_sequence=2, count_max=1, max_wait_ms=90_000))
            for number in range(2):
                await desk.produce(batch(b"outside"), topic="t", partition=0)
                producer = await desk.init("me")
                await desk.add("me", producer, ("t", 0))
                records = batch(b"v", producer=producer, sequence=0)
                await desk.produce(records, topic="t", partition=0, transactional_id="me")
                await desk.durable()
                assert not waiting.done(), number
                await desk.end("me", producer, True)
                await desk.durable()
            assert await waiting == (await listed(desk))[1:]
            assert len(desk.broker.long_polls) == 0

    run(conversation)


def test_a_request_that_waits_ends_with_its_time_or_its_topic():
    async def conversation():
        async with opened(topics=()) as desk:
            create(desk)
            for max_wait_ms in (-5, 0, 1):
                assert await listed(desk, max_wait_ms=max_wait_ms) == []
            waiting = asyncio.ensure_future(ask(desk, max_wait_ms=90_000))
            for _ in range(20):  # turns of the loop, until it waits
                await asyncio.sleep(0)
            assert len(desk.broker.long_polls) == 1
            await desk.broker.topic_changes.delete_topic("t")
            assert (await waiting).error_code is ErrorCode.unknown_topic_or_partition

    run(conversation)
