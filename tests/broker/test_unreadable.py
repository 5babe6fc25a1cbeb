"""A sector that cannot be read: an error that names the file, as long as nothing is read through a map.

Reading a map of such a sector ends the process by SIGBUS. A start, compaction and `verify` read copies: a broker would else
die at every start, and at every pass of compaction, without a word.
"""

import asyncio
import errno
import random

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.commit_order.verify import verify_view
from stablelog.errors import DiskError
from stablelog.log.verify import verify_directory
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened

TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"},
    "ordered": {"stablelog.order": "commit"},
}
SMALL = {"segment.bytes": "2000"}


class BusError(BaseException):
    """What the kernel does to a process; no Exception: nothing can handle it."""


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 100))


def spoil(disk, directory, mapped=None):
    """Make every log file of a directory unreadable. In directory `mapped`, they can be read, but not through a map.

    Returns:
        The reads that have failed, as they come.
    """
    failed = []

    def fault(what, path):
        if path.suffix != ".log":
            return None
        if what == "mapping" and path.parent.name in (directory, mapped):
            raise BusError(path)
        if what != "reading" or path.parent.name != directory:
            return None
        failed.append(path)
        return errno.EIO

    disk.fault = fault
    return failed


@pytest.fixture(params=["stopped", "killed"])
def disk(request):
    """Topics of several segments with transactions of all fates."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk, topics=()) as desk:
            for name, configs in TOPICS.items():
                desk.broker.topic_files.create(name, 1, {**SMALL, **configs})
            for name in ("plain", "ordered"):
                for number in range(20):
                    who = await desk.init(name)
                    await desk.add(name, who, (name, 0))
                    for sequence in range(2):
                        records = batch(bytes(100), producer=who, sequence=sequence)
                        await desk.produce(records, topic=name, transactional_id=name)
                    if number < 19:
                        await desk.end(name, who, number % 3 > 0)
                    await desk.durable()
            killed = disk.crash(random.Random(1))
        return killed if request.param == "killed" else disk

    return run(conversation)


def test_nothing_is_mapped_on_the_way_to_a_start_or_by_verify(disk):
    mapped = []
    disk.fault = lambda what, path: mapped.append(path) if what == "mapping" else None

    async def conversation():
        async with opened(disk, topics=()) as desk:
            assert {partition.topic for partition in desk.broker.partitions} >= TOPICS.keys()
            assert mapped == []

    run(conversation)
    mapped.clear()
    for name in TOPICS:
        assert list(verify_directory(disk, DATA / f"{name}-0")) == []
        assert list(verify_view(disk, DATA / f"{name}-0")) == []
    assert mapped == []


def test_a_broker_whose_own_log_cannot_be_read_names_the_file(disk):
    log = "__transaction_state-0"
    spoil(disk, log)

    async def conversation():
        async with opened(disk, topics=()):
            pass

    with pytest.raises(DiskError, match=rf"reading {DATA / log}/0+\.log.*EIO"):
        run(conversation)


@pytest.mark.parametrize("name", ["plain", "ordered"])
@pytest.mark.parametrize("proof", [verify_directory, verify_view])
def test_verify_names_the_file_that_cannot_be_read(disk, name, proof):
    spoil(disk, f"{name}-0")
    if name == "plain" and proof is verify_view:
        assert list(proof(disk, DATA / f"{name}-0")) == [], "it has no view"
        return
    with pytest.raises(DiskError, match=rf"reading {DATA}/{name}-0/0+\.log.*EIO"):
        list(proof(disk, DATA / f"{name}-0"))


@pytest.mark.parametrize("name", ["plain", "ordered"])
def test_a_partition_that_cannot_be_read_at_a_start_is_offline_and_no_other(disk, name, caplog):
    failed = spoil(disk, f"{name}-0")

    async def conversation():
        async with opened(disk, topics=()) as desk:
            return {partition.topic for partition in desk.broker.partitions} & TOPICS.keys()

    online = run(conversation)
    assert failed, "an open transaction's first batch is looked at, also after a stop in order"
    assert online == TOPICS.keys() - {name}
    assert f"{name}-0 cannot be opened and stays offline" in caplog.text


def test_a_partition_that_cannot_be_read_is_not_compacted_and_the_next_one_is(caplog):
    async def conversation():
        async with opened(topics=()) as desk:
            logs = {}
            for name in ("bad", "good"):
                logs[name] = log = desk.create(name, TOPICS["compacted"])
                for _ in range(10):
                    await desk.produce(encode_batch([Record(0, 0, b"key", bytes(100))]), topic=name)
                log.roll(desk.broker.now_ms())
                work = log.sync_work()
                work.run()
                log.finish_sync(work)
            spoil(desk.broker.disk, "bad-0", "good-0")
            await desk.broker.compactor.compact_all()
            assert logs["good"].compaction.first_dirty_offset == 10
            assert logs["bad"].compaction.first_dirty_offset == 0

    run(conversation)
    assert "bad-0 cannot be compacted: reading /data/bad-0" in caplog.text
