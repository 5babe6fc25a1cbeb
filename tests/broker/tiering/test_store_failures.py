"""What the broker logs if its object store fails: one line, however many partitions and retries there are."""

import asyncio
import random

import pytest

from stablelog.broker.tiering.store_failures import StoreFailures
from stablelog.errors import DamageError, StoreError
from stablelog.testing.s3 import S3Fault, serve_s3
from stablelog.testing.sim_disk import SimDisk
from tests.broker.tiering.desk import LOCAL_NOTHING, copy, log_of, tiered, write_segments
from tests.broker.tiering.life import URL, reach
from tests.broker.tiering.world import lines

TOPICS = ("t", "u", "v")
UPLOADS = ("put", "begin")
EVER = 10**9


async def write(desk, *topics):
    for topic in topics or TOPICS:
        if desk.broker.topics.get(topic) is None:
            desk.broker.topic_files.create(topic, 1, LOCAL_NOTHING)
        await desk.opened(topic)
        await write_segments(desk, 1, topic=topic)


def forbid(s3, key=""):
    for kind in UPLOADS:
        s3.fail(S3Fault(kind, key, status=403, count=EVER))


def failed_count(desk):
    (count,) = (
        one.value for one in desk.broker.tiering.samples() if one.name == "stablelog_remote_failed_partitions"
    )
    return count


def run(conversation, monkeypatch):
    with serve_s3() as s3:
        reach(s3, monkeypatch)
        asyncio.run(asyncio.wait_for(conversation(s3), 60))


def test_a_failure_is_new_once_until_a_success():
    failures = StoreFailures()
    silent, rejected = StoreError("one"), StoreError("two", is_rejected=True)
    for _ in range(2):
        assert [
            failures.is_new(one) for one in (silent, StoreError("other key"), rejected, DamageError("a"))
        ] == [
            True,
            False,
            True,
            True,
        ]
        assert [failures.is_new(one) for one in (rejected, DamageError("a"), DamageError("b"))] == [
            False,
            False,
            True,
        ]
        failures.clear_logged()


def test_a_store_that_fails_is_one_line_for_all_partitions_until_a_copy_succeeds(monkeypatch, caplog):
    async def conversation(s3):
        async with tiered(URL, stablelog_remote_allow_http=True) as desk:
            await write(desk)
            await copy(desk)
            for outages in (1, 2):
                forbid(s3)
                await write(desk)
                for _ in range(3):
                    await copy(desk)
                assert failed_count(desk) == len(TOPICS)
                assert len(lines(caplog)) == outages
                assert URL in lines(caplog)[-1]
                s3.clear_faults()
                await copy(desk)
                assert failed_count(desk) == 0
                assert all(len(log_of(desk, topic).segments()) == 1 for topic in TOPICS)

    run(conversation, monkeypatch)


def test_a_partition_whose_own_copies_fail_is_one_line_while_others_are_copied(monkeypatch, caplog):
    """The store fails for all, and then only for one, which was not named in the first line."""

    async def conversation(s3):
        async with tiered(URL, stablelog_remote_allow_http=True) as desk:
            await write(desk)
            await copy(desk)
            forbid(s3)
            await write(desk)
            await copy(desk)
            (line,) = lines(caplog)
            last = max(TOPICS, key=lambda topic: f"{topic}-0 cannot" not in line)
            s3.clear_faults()
            forbid(s3, rf"t\.{last}/")
            for _ in range(3):
                await copy(desk)
                await write(desk, *(topic for topic in TOPICS if topic != last))
            _, second = lines(caplog)
            assert f"{last}-0 cannot be copied" in second
            assert failed_count(desk) == 1

    run(conversation, monkeypatch)


@pytest.mark.extended
def test_a_fenced_broker_says_it_once_for_all_partitions(monkeypatch, caplog):
    disk = SimDisk()

    async def conversation(_s3):
        async with tiered(URL, disk, stablelog_remote_allow_http=True) as first:
            await write(first)
            await copy(first)
            await first.durable()
            copied_disk = disk.crash(random.Random(0))
            async with tiered(URL, copied_disk, stablelog_remote_allow_http=True) as second:
                await write(second)
                await copy(second)
            await write(first)
            for _ in range(2):
                await copy(first)
            assert all(len(log_of(first, topic).segments()) > 1 for topic in TOPICS), "nothing is deleted"

    run(conversation, monkeypatch)
    (line,) = lines(caplog)
    assert "has taken over the manifests" in line
    assert URL in line
    assert "/manifest/0000000001-" in line
