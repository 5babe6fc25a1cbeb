"""What a reader is told of where a partition ends."""

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.loop import turns
from stablelog.log.partition import Isolation
from stablelog.log.search import times as lookups
from stablelog.security.principal import Principal
from tests.broker.desk import COMMIT, batch, opened, part
from tests.declared_apis import APIS

LATEST, NEWEST = -1, -3
VERSION = 7
SPECIAL_SINCE = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9, -6: 11, -7: 99, -(2**63): 99}


async def found_at(desk, isolation, timestamp, *indexes):
    asked = tuple(
        part(
            2,
            VERSION,
            "request",
            "ListOffsetsPartition",
            partition_index=index,
            current_leader_epoch=-1,
            timestamp=timestamp,
        )
        for index in indexes
    )
    topic = part(2, VERSION, "request", "ListOffsetsTopic", name="t", partitions=asked)
    answer = await desk.ask(2, VERSION, replica_id=-1, isolation_level=isolation.value, topics=(topic,))
    return answer.topics[0].partitions


@pytest.mark.parametrize("version", APIS[2].served_versions)
def test_a_special_timestamp_is_refused_before_the_version_that_has_it(version):
    async def conversation():
        async with opened() as desk:
            for timestamp, since in SPECIAL_SINCE.items():
                asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
                answer = await desk.ask_with(
                    2,
                    version,
                    {
                        "replica_id": -1,
                        "isolation_level": 0,
                        "timeout": timedelta(seconds=1),
                        "topics": [{"name": "t", "partitions": [asked]}],
                    },
                )
                (found,) = answer.topics[0].partitions
                known = version >= since
                assert found.error_code is (ErrorCode.none if known else ErrorCode.unsupported_version)
                # The partition is empty, and has no remote tier.
                assert found.offset == (0 if known and timestamp in (-1, -2, -4) else -1)

    asyncio.run(conversation())


async def ends_of(desk, isolation, *indexes):
    found = await found_at(desk, isolation, LATEST, *indexes)
    assert all(end.error_code is ErrorCode.none for end in found)
    return [end.offset for end in found]


async def end_of(desk, isolation):
    (found,) = await ends_of(desk, isolation, 0)
    return found


def test_who_asks_after_a_commit_was_answered_finds_what_it_committed():
    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            await desk.add("a", producer, ("t", 0))
            await desk.produce(batch(b"v", producer=producer, sequence=0), transactional_id="a")
            await desk.end("a", producer, COMMIT)
            partition = desk.broker.partitions.require("t", 0)
            assert await end_of(desk, Isolation.READ_COMMITTED) == partition.end_offset == 2

    asyncio.run(conversation())


def test_the_end_is_told_when_what_was_written_before_is_durable():
    async def conversation():
        async with opened() as desk:
            with desk.held_disk():
                desk.broker.partitions.require("t", 0).append(batch(b"v"), now_ms=1)
                asked = asyncio.ensure_future(end_of(desk, Isolation.READ_COMMITTED))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert not asked.done()
            assert await asked == 1

    asyncio.run(conversation())


def test_ends_that_are_asked_for_together_have_all_of_a_transaction_or_nothing(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)  # as if the machine stood still between any two partitions

    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            found = set()

            async def look():
                while not ended.done():
                    found.add(tuple(await ends_of(desk, Isolation.READ_COMMITTED, 0, 1)))

            async def write():
                for sequence in range(20):
                    await desk.add("a", producer, ("t", 0), ("t", 1))
                    for index in (0, 1):
                        records = batch(b"v", producer=producer, sequence=sequence)
                        await desk.produce(records, partition=index, transactional_id="a")
                    await desk.end("a", producer, COMMIT)

            ended = asyncio.ensure_future(write())
            await look()
            assert len(found) > 1
            assert all(first == second for first, second in found), found

    asyncio.run(conversation())


async def write_transactions(desk, count):
    """Transactions of one record with the time 0; their markers have the broker's time."""
    producer = await desk.init("a")
    for sequence in range(count):
        await desk.add("a", producer, ("t", 0))
        await desk.produce(batch(b"v", producer=producer, sequence=sequence), transactional_id="a")
        await desk.end("a", producer, COMMIT)
    return producer


def test_a_lookup_by_time_passes_markers_over_and_lets_others_go_on_meanwhile(monkeypatch):
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 4)

    async def conversation():
        async with opened() as desk:
            await write_transactions(desk, 20)
            for timestamp, wanted in ((0, (0, 0)), (1, (-1, -1)), (NEWEST, (0, 0))):
                asked = asyncio.ensure_future(found_at(desk, Isolation.READ_COMMITTED, timestamp, 0))
                turns = 0
                while not asked.done():
                    await asyncio.sleep(0)
                    turns += 1
                (found,) = await asked
                assert (found.offset, found.timestamp) == wanted
                assert timestamp != 1 or turns > 9

    asyncio.run(conversation())


def test_a_topic_that_is_created_again_while_a_time_is_looked_up_is_not_taken_for_the_old_one(monkeypatch):
    monkeypatch.setattr(lookups, "STEP_COUNT_MAX", 1)

    async def conversation():
        async with opened() as desk:
            await write_transactions(desk, 20)
            asked = asyncio.ensure_future(found_at(desk, Isolation.READ_COMMITTED, 1, 0))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not asked.done()
            await desk.broker.topic_changes.delete_topic("t")
            desk.broker.topic_files.create("t", 1, {})
            (found,) = await asked
            assert found.error_code is ErrorCode.unknown_topic_or_partition

    asyncio.run(conversation())


def test_a_client_without_rights_does_not_wait_for_writes():
    """How long it waits would tell it of the writes of others."""

    async def conversation():
        authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        async with opened(authorizer_class_name=authorizer, super_users="User:root") as desk:
            desk.stranger.session.principal = Principal("User", "eve")
            with desk.held_disk():
                desk.broker.partitions.require("t", 0).append(batch(b"v"), now_ms=1)
                asked = asyncio.ensure_future(found_at(desk, Isolation.READ_COMMITTED, LATEST, 0))
                for _ in range(10):
                    await asyncio.sleep(0)
                assert asked.done()
            (found,) = await asked
            assert found.error_code is ErrorCode.topic_authorization_failed

    asyncio.run(conversation())
