"""A commit log that is older than the partitions: no commit sequence is given out twice, whatever is open."""

import asyncio
import contextlib
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import read_marker
from stablelog.broker.topics.partition_directories import PartitionDirectories
from stablelog.data_directory.checkpoints import RECOVERY_POINT_CHECKPOINT
from stablelog.data_directory.clean_shutdown import CLEAN_SHUTDOWN_FILE
from stablelog.log.files.log_start import LOG_START_FILE
from stablelog.log.files.names import LOG
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import DATA, LOADING, Gate, batch, opened

COMMIT_ORDER = {"stablelog.order": "commit"}
COMMIT_LOG = DATA / "__transaction_state-0"


def run(conversation):
    return asyncio.run(asyncio.wait_for(conversation(), 120))


async def transact(desk, topic, count, *, name="me"):
    """Commit transactions of one record each."""
    producer = await desk.init(name)
    for sequence in range(count):
        assert await desk.add(name, producer, (topic, 0)) == [ErrorCode.none]
        records = batch(b"x", producer=producer, sequence=sequence)
        assert (await desk.produce(records, topic=topic, transactional_id=name)).error_code is ErrorCode.none
        assert (await desk.commit(name, producer)).error_code is ErrorCode.none
    await desk.durable()


def sequences(disk, topic):
    """The commit sequences in the markers of a partition."""
    content = disk.read_bytes(DATA / f"{topic}-0" / f"{0:020d}{LOG}")
    found = [
        (header, read_marker(content[at : at + header.size]))
        for at, header in headers_in(content)
        if header.is_control
    ]
    return [marker.commit_sequence for _, marker in found]


@pytest.fixture
def disk():
    """Commits 1 and 2 are in o-0, 3 to 10 in q-0, and the commit log is from a backup that knows 1 and 2."""
    disk = SimDisk()

    async def older():
        async with opened(disk, topics=()) as desk:
            for topic in ("o", "q"):
                desk.broker.topic_files.create(topic, 1, COMMIT_ORDER)
            await transact(desk, "o", 2)

    async def later():
        async with opened(disk, topics=()) as desk:
            await transact(desk, "q", 8)

    run(older)
    backup = {path: disk.read_bytes(path) for path in disk.files(COMMIT_LOG)}
    run(later)
    for path in list(disk.files(COMMIT_LOG)):
        disk.lose(path)
    for path, content in backup.items():
        disk.write_atomic(path, content)
    disk.lose(DATA / RECOVERY_POINT_CHECKPOINT)
    assert sequences(disk, "q") == list(range(3, 11))
    return disk


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_partition_that_is_opening_has_no_commit_sequence_given_out_again(disk, clean, caplog):
    if not clean:
        disk.lose(DATA / CLEAN_SHUTDOWN_FILE)

    async def conversation():
        gate = Gate("q")
        async with opened(disk, topics=(), gate=gate) as desk:
            await transact(desk, "o", 3)
            gate.open()
            await desk.opened("q")
            await transact(desk, "q", 1)

    run(conversation)
    assert sequences(disk, "o") == [1, 2, 11, 12, 13]
    assert sequences(disk, "q") == [*range(3, 11), 14]
    told = [record.message for record in caplog.records if "is from an older backup" in record.message]
    assert len(told) == 1
    assert "q-0 has a marker of commit 10" in told[0]
    assert "ends at commit 2" in told[0]


def test_a_partition_that_cannot_be_opened_has_no_commit_sequence_given_out_again(disk, caplog):
    disk.lose(DATA / "q-0" / LOG_START_FILE)

    async def conversation():
        async with opened(disk, topics=()) as desk:
            await transact(desk, "o", 3)

    run(conversation)
    assert sequences(disk, "o") == [1, 2, 11, 12, 13]
    assert "q-0 has a marker of commit 10" in caplog.text


def test_a_partition_that_cannot_be_read_keeps_no_commit_waiting_and_is_named(disk, caplog):
    directory = DATA / "q-0"

    async def conversation():
        async with opened(disk, topics=()) as desk:
            await transact(desk, "o", 1)

    number = 5
    disk.fault = lambda what, path: number if directory in path.parents and path.suffix == LOG else None
    run(conversation)
    assert sequences(disk, "o") == [1, 2, 3]
    assert "the last commit of q-0 cannot be read" in caplog.text


def test_an_unexpected_error_keeps_no_commit_waiting(monkeypatch, caplog):
    disk = SimDisk()

    async def written():
        async with opened(disk, topics=()) as desk:
            desk.broker.topic_files.create("o", 1, COMMIT_ORDER)
            await transact(desk, "o", 1)

    async def restarted():
        async with opened(disk, topics=()) as desk:
            await transact(desk, "o", 1)
            assert desk.broker.tasks.error_counts["recovery of a partition"] == 1

    run(written)
    monkeypatch.setattr(PartitionDirectories, "last_commit_sequence", lambda *_: 1 // 0)
    run(restarted)
    assert sequences(disk, "o") == [1, 2]
    assert "the last commit of o-0 is not known" in caplog.text


@contextlib.asynccontextmanager
async def reading(disk, monkeypatch):
    """A broker that reads the last commits of its partitions until the event is set: (desk, event)."""
    may_go_on = threading.Event()
    last_commit_sequence = PartitionDirectories.last_commit_sequence

    def slowly(self, name, index):
        assert may_go_on.wait(60)
        return last_commit_sequence(self, name, index)

    monkeypatch.setattr(PartitionDirectories, "last_commit_sequence", slowly)
    monkeypatch.setattr("tests.broker.desk._all_but", lambda *_: asyncio.sleep(0))
    try:
        async with opened(disk, topics=(), gate=Gate("none")) as desk:
            try:
                yield desk, may_go_on
            finally:
                may_go_on.set()
    finally:
        may_go_on.set()


def test_until_the_last_commits_are_read_commits_wait_and_nothing_else_does(disk, monkeypatch):
    async def conversation():
        async with reading(disk, monkeypatch) as (desk, may_go_on):
            desk.broker.topic_files.create("plain", 1, {})
            producer = await desk.init("one")
            for committed in (True, False):
                assert await desk.add("one", producer, ("plain", 0)) == [ErrorCode.none]
                records = batch(b"x", producer=producer, sequence=0 if committed else 1)
                produced = await desk.produce(records, topic="plain", transactional_id="one")
                assert produced.error_code is ErrorCode.none
                for _ in range(2):
                    answer = await desk.end("one", producer, committed)
                    assert answer.error_code is (LOADING if committed else ErrorCode.none)
            joint = await desk.ask(
                ApiKey.COMMIT_JOINT,
                0,
                group="",
                key="k",
                version=1,
                run="r",
                children=(),
                group_offsets=(),
                retention_ms=-1,
                digest=None,
            )
            assert joint.error_code is LOADING
            assert (
                "transactions of the default transaction group cannot be committed yet" in joint.error_message
            )
            # A group without commit-ordered partitions has nothing to wait for.
            desk.broker.topic_files.create("other", 1, {"stablelog.group": "other"})
            await transact_at_once(desk, "other/one", "other")
            may_go_on.set()
            await desk.opened("o")
            await transact(desk, "o", 1, name="two")

    run(conversation)
    assert sequences(disk, "o") == [1, 2, 11]


async def transact_at_once(desk, name, topic):
    producer = await desk.init(name)
    assert await desk.add(name, producer, (topic, 0)) == [ErrorCode.none]
    assert (await desk.end(name, producer, True)).error_code is ErrorCode.none


def test_a_topic_that_is_deleted_while_its_last_commit_is_read_is_no_damage(disk, monkeypatch, caplog):
    async def conversation():
        async with reading(disk, monkeypatch) as (desk, may_go_on):
            await desk.broker.topic_changes.delete_topic("q")
            may_go_on.set()
            await desk.opened("o")
            await transact(desk, "o", 1)

    run(conversation)
    assert "cannot be read" not in caplog.text
