"""The parts of the broker that stand alone."""

import asyncio
from collections import OrderedDict
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.config import BrokerConfig, check_topic_configs
from stablelog.broker.fetch_sessions import FetchSessions, Wanted
from stablelog.broker.flush import GroupFlush
from stablelog.broker.tasks import Tasks
from stablelog.broker.topics import Topics
from stablelog.errors import Corrupt, InvalidConfig, Refused
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import NO_RESERVE
from tests.log.timeline import Log

DATA = Path("/data")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log.segment.byte": "1"}, "did you mean log.segment.bytes"),
        ({"log.segment.bytes": "12"}, "1024 to"),
        ({"listeners": "SSL://x:1"}, "PLAINTEXT"),
        ({"stablelog.flush": "never"}, "fsync or os"),
    ],
)
def test_a_bad_setting_is_refused_by_name_with_the_valid_range(given, message):
    with pytest.raises(InvalidConfig, match=message):
        BrokerConfig(given)


def test_a_topic_setting_that_cannot_be_had_is_refused():
    check_topic_configs({"min.insync.replicas": "1", "retention.ms": "-1"})
    for configs in ({"min.insync.replicas": "2"}, {"compression.type": "zstd"}, {"retention": "1"}):
        with pytest.raises(InvalidConfig):
            check_topic_configs(configs)


def wanted(*indexes):
    return OrderedDict((("t", index), Wanted(0, 100)) for index in indexes)


def test_a_fetch_session_remembers_and_is_in_step():
    sessions = FetchSessions(2)
    session = sessions.begin(wanted(0, 1), keep=True)
    again = sessions.resume(session.session_id, 1, wanted(2), [("t", 0)])
    assert list(again.partitions) == [("t", 1), ("t", 2)]
    with pytest.raises(Refused) as caught:
        sessions.resume(session.session_id, 1, wanted(), [])
    assert caught.value.code is ErrorCode.invalid_fetch_session_epoch
    for _ in range(3):
        sessions.begin(wanted(0), keep=True)
    assert len(sessions) == 2
    with pytest.raises(Refused) as caught:
        sessions.resume(session.session_id, 2, wanted(), [])
    assert caught.value.code is ErrorCode.fetch_session_id_not_found


def topics(disk, *, clean=True):
    made = Topics(disk, DATA, BrokerConfig({}), SimClock().now_ms)
    made.load(clean=clean)
    return made


def disk_with_root():
    disk = SimDisk()
    disk.make_dir(DATA)
    return disk


def test_a_topic_is_there_after_a_restart_with_its_settings():
    disk = disk_with_root()
    first = topics(disk)
    topic_id = first.create("orders", 3, {"retention.ms": "5"}).topic_id
    again = topics(disk)
    found = again.get("orders")
    assert (found.topic_id, found.partition_count, found.configs) == (topic_id, 3, {"retention.ms": "5"})
    assert again.leader_epoch == first.leader_epoch + 1


def test_a_topic_is_created_whole_or_not_at_all():
    disk = disk_with_root()
    topics(disk)
    whole = SimDisk()
    whole.make_dir(DATA)
    made = topics(whole)
    before = whole.steps
    made.create("orders", 3, {})
    from stablelog.testing.sim_disk import SimulatedCrash

    for crash_at in range(before + 1, whole.steps + 1):
        disk = disk_with_root()
        made = topics(disk)
        disk.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            made.create("orders", 3, {})
        disk.crash_at = None
        found = topics(disk).get("orders")
        assert found is None or found.partition_count == 3


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "ä"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(Refused, match="topic name"):
        topics(disk_with_root()).create(name, 1, {})


def test_a_damaged_list_of_topics_is_not_taken_for_an_empty_one():
    disk = disk_with_root()
    topics(disk).create("orders", 1, {})
    disk.write_atomic(DATA / "cluster.json", b'{"version": 1')
    with pytest.raises(Corrupt, match=r"cluster\.json"):
        topics(disk)


def test_writers_that_wait_share_a_round():
    async def work():
        log = Log()
        moved = []
        flush = GroupFlush(to_disk=True, reserve=NO_RESERVE, tasks=Tasks(pytest.fail))
        flush.subscribe(moved.append)
        task = asyncio.create_task(flush.run())
        waits = []
        for _ in range(10):
            log.write("-", sync=False)
            waits.append(flush.durable(log.partition, log.partition.end_offset))
        assert not any(wait.done() for wait in waits)
        await asyncio.gather(*waits)
        assert log.partition.high_watermark == 10
        assert flush.rounds <= 2
        assert flush.durable(log.partition, 10) is None
        task.cancel()
        flush.close()

    asyncio.run(work())


def test_a_sync_that_fails_stops_the_broker_and_acknowledges_nothing():
    async def work():
        log = Log()
        failures = []
        flush = GroupFlush(to_disk=True, reserve=NO_RESERVE, tasks=Tasks(failures.append))
        task = asyncio.create_task(flush.run())
        log.write("-", sync=False)
        log.disk.fail_at = log.disk.steps + 1
        wait = flush.durable(log.partition, 1)
        with pytest.raises(Exception, match="failed on the simulated disk"):
            await wait
        assert len(failures) == 1
        assert log.partition.high_watermark == 0
        await task
        flush.close()

    asyncio.run(work())
