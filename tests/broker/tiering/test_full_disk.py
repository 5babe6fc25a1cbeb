"""A full disk with a remote tier: all that free space depends on is written, with no byte free and only the last quarter
of the disk reserve left. docs/decisions/0013-disk-reserve.md has the list of these writes.
"""

import errno
import json
import re
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.markers import Marker, MarkerType
from stablelog.broker.durability import journal as journals
from stablelog.commit_order.first_sequence import FirstSequence, decode_first_sequences
from stablelog.data_directory.catalog import CATALOG_FILE
from stablelog.data_directory.names import RESERVE_FILE
from stablelog.log.files.log_start import LOG_START_FILE, read_log_start
from stablelog.log.files.names import (
    FIRST_SEQUENCE_FILE,
    REMOTE_LOG_START_FILE,
    REMOTE_MANIFEST_FILE,
    REMOTE_PART_PREFIX,
    VIEW_START_FILE,
)
from stablelog.log.model import MarkerWrite
from stablelog.tier.local_state import LocalState
from tests.broker.desk import DATA, batch
from tests.broker.test_full_disk import NoRoom, run, tend, until
from tests.broker.tiering.desk import HOURS_MS, LOCAL_NOTHING, log_of, write_segments

NONE = ErrorCode.none
SIZE = 256 << 10
FLOOR = SIZE // 4  # of the reserve: what is left is kept for work that frees space
DOCUMENT = Path(__file__).parents[3] / "docs" / "decisions" / "0013-disk-reserve.md"
SELDOM = {
    "remote_log_manager_task_interval_ms": HOURS_MS,
    "stablelog_remote_coordinator_copy_interval_ms": HOURS_MS,
    "log_retention_check_interval_ms": HOURS_MS,
    "log_segment_delete_delay_ms": 0,
    "stablelog_remote_delete_delay_ms": 0,
}
BY_SIZE = {"retention_bytes": "0"}


class Case:
    """A broker on a disk that can be filled.

    Attributes:
        desk: the broker.
        disk: its disk.
    """

    def __init__(self, desk, disk, monkeypatch):
        self.desk = desk
        self.disk = disk
        self.monkeypatch = monkeypatch

    def create(self, name, **configs):
        self.desk.broker.topic_files.create(
            name, 1, {key.replace("_", "."): value for key, value in configs.items()}
        )
        return log_of(self.desk, name)

    def fill(self):
        """Leave no free byte, and only the last quarter of the reserve."""
        reserve = self.desk.broker.reserve
        self.disk.fill()
        reserve.log_full()
        while reserve.release():
            pass
        self.disk.fill()
        assert (self.disk.free_size(DATA), self.disk.size(DATA / RESERVE_FILE)) == (0, FLOOR)

    def refuse_once(self, what, name):
        """Let one call of a kind fail for lack of space, of those on a path with this name in it."""

        def fault(called, path):
            if called == what and name in str(path):
                self.disk.fault = None
                return errno.ENOSPC
            return None

        self.disk.fault = fault

    async def flush(self):
        """Make everything durable, and write what a sealed segment needs."""
        await self.desk.broker.flush.wait_for_next_round(self.desk.broker.partitions)

    async def retain(self):
        await self.flush()
        await self.desk.broker.maintenance.apply_retention()
        await self.desk.broker.maintenance.remove_deleted()

    async def delete_before(self, topic, offset):
        partition = {"partition_index": 0, "offset": offset}
        fields = {"topics": [{"name": topic, "partitions": [partition]}], "timeout": timedelta(seconds=5)}
        answer = await self.desk.ask_with(21, 2, fields)
        assert answer.topics[0].partitions[0].error_code is NONE

    def listed(self):
        """The names of the deleted topics in the list of topics."""
        content = json.loads(self.disk.read_bytes(DATA / CATALOG_FILE))
        return [topic["name"] for topic in content.get("deleted_topics", {}).values()]


async def list_of_topics(case):
    case.create("gone")
    yield
    await case.desk.broker.topic_changes.delete_topic("gone")
    assert b"gone" not in case.disk.read_bytes(DATA / CATALOG_FILE)


async def deleted_directory(case):
    case.create("gone")
    yield
    case.refuse_once("renaming", "gone-0")
    await case.desk.broker.topic_changes.delete_topic("gone")
    await case.desk.broker.maintenance.remove_deleted()
    assert not [path for path in case.disk.files(DATA) if path.parent.name.startswith("gone-0")]


async def checkpoint(case):
    case.create("r", **BY_SIZE)
    await write_segments(case.desk, 4, topic="r")
    yield
    await case.delete_before("r", 2)
    case.desk.broker.topic_files.checkpoints.log_starts.write_if_changed()
    assert b"r 0 2" in case.disk.read_bytes(DATA / "log-start-offset-checkpoint")


async def log_start(case):
    log = case.create("r", **BY_SIZE)
    await write_segments(case.desk, 4, topic="r")
    yield
    await case.retain()
    assert 0 < log.start_offset == read_log_start(case.disk, log.directory / LOG_START_FILE)


async def view_start(case):
    log = case.create("c", stablelog_order="commit")
    await write_segments(case.desk, 4, topic="c")
    yield
    await case.delete_before("c", 5)
    assert read_log_start(case.disk, log.directory / VIEW_START_FILE) == 5


async def first_sequence(case):
    log = case.create("c", stablelog_order="commit")
    now_ms = case.desk.broker.now_ms()
    for number in range(2):
        log.append(batch(bytes(100), producer=(7, 0), sequence=number), now_ms=now_ms)
        marker = Marker(MarkerType.COMMIT, 0, "", 5 + number)
        log.append_markers([MarkerWrite(7, 0, marker)], now_ms=now_ms)
        log.roll(now_ms)
    await case.flush()
    yield
    await case.delete_before("c", 3)
    content = case.disk.read_bytes(log.directory / FIRST_SEQUENCE_FILE)
    assert decode_first_sequences(content) == (FirstSequence(3, 5),)


async def sealed_by_time(case):
    log = case.create("r", retention_ms="1000")
    await case.desk.produce(batch(bytes(500)), topic="r")
    yield
    case.desk.broker.clock.advance(3_600_000)
    await case.desk.broker.maintenance.apply_retention()
    await until(lambda: log.segments()[0].durable)
    await case.desk.broker.maintenance.apply_retention()
    assert log.start_offset == log.end_offset


async def files_of_sealed_segment(case):
    log = case.create("r", **BY_SIZE)
    for _ in range(4):
        await case.desk.produce(batch(bytes(200)), topic="r")
        log.roll(case.desk.broker.now_ms())
    yield
    await case.retain()
    assert log.start_offset == 4


async def commit_index(case):
    log = case.create("c", stablelog_order="commit", **LOCAL_NOTHING)
    for _ in range(4):
        await case.desk.produce(batch(bytes(200)), topic="c")
        log.roll(case.desk.broker.now_ms())
    yield
    case.refuse_once("writing", ".commitindex")
    await case.flush()
    assert (log.view.failure, case.disk.fault) == (None, None)
    await case.desk.broker.tiering.copy_all()
    await case.retain()
    assert log.start_offset == 4


async def manifest(case):
    log = case.create("o", **LOCAL_NOTHING)
    await write_segments(case.desk, 4, topic="o")
    yield
    await case.desk.broker.tiering.copy_all()
    assert len(LocalState(case.disk, log.directory).read_manifest().segments) == 4
    await case.retain()
    assert log.start_offset >= 8


async def part_of_manifest(case):
    log = case.create("o", **LOCAL_NOTHING)
    await write_segments(case.desk, 4, topic="o")
    yield
    await case.desk.broker.tiering.copy_all()
    names = [path.name for path in case.disk.files(log.directory)]
    assert [name for name in names if name.startswith(REMOTE_PART_PREFIX)]
    assert len(LocalState(case.disk, log.directory).read_manifest().segments) == 4


async def remote_log_start(case):
    log = case.create("o", **LOCAL_NOTHING)
    await write_segments(case.desk, 4, topic="o")
    await case.desk.broker.tiering.copy_all()
    yield
    await case.delete_before("o", 5)
    assert read_log_start(case.disk, log.directory / REMOTE_LOG_START_FILE) == 5


async def first_manifest(case):
    log = case.create("o", **{**LOCAL_NOTHING, "remote.storage.enable": "false"})
    await write_segments(case.desk, 4, topic="o")
    yield
    case.desk.broker.topic_files.configure(case.desk.broker.topics.get("o"), LOCAL_NOTHING)
    await case.desk.broker.tiering.copy_all()
    assert case.disk.exists(log.directory / REMOTE_MANIFEST_FILE)


async def roll_of_coordinators_log(case):
    log = case.desk.broker.transactions.default.journal.partition
    await case.desk.init("a")
    await case.desk.durable()
    yield
    await case.desk.broker.tiering.copy_coordinator_logs()
    assert LocalState(case.disk, log.directory).read_manifest().end_offset == log.end_offset > 0


async def checkpoint_of_coordinator(case):
    journal = case.desk.broker.transactions.default.journal
    for index in range(40):
        await case.desk.init(f"{index}-".ljust(900, "x"))
    await case.desk.durable()
    case.monkeypatch.setattr(journals, "CHECKPOINT_SIZE_MIN", 1)
    yield
    await case.desk.broker.maintenance.trim_logs()
    assert journal.partition.start_offset > 0


async def deleted_from_store(case):
    case.create("o", **LOCAL_NOTHING)
    await case.desk.broker.topic_changes.delete_topic("o")
    assert case.listed() == ["o"]
    yield
    for _ in range(2):  # the first pass finds what may be deleted
        await case.desk.broker.tiering.copy_all()
    assert case.listed() == []


CASES = {
    "the list of topics": list_of_topics,
    "the names of deleted directories": deleted_directory,
    "checkpoints of offsets": checkpoint,
    "the log start": log_start,
    "the start of the view": view_start,
    "the last commit before the log": first_sequence,
    "the roll of a segment whose records have expired": sealed_by_time,
    "the indexes, the snapshot and the summary of a sealed segment": files_of_sealed_segment,
    "the commit index of a sealed segment": commit_index,
    "the copy of a manifest": manifest,
    "the copy of a part": part_of_manifest,
    "the log start of the remote tier": remote_log_start,
    "the first manifest of a partition": first_manifest,
    "the roll of a coordinator's log": roll_of_coordinators_log,
    "the checkpoint of a coordinator, and the trim of its log": checkpoint_of_coordinator,
    "the end of a deletion from the store": deleted_from_store,
}


@pytest.mark.parametrize("name", CASES)
def test_what_free_space_depends_on_is_written_without_a_free_byte(name, tmp_path, monkeypatch):
    disk = NoRoom()
    monkeypatch.setattr("stablelog.broker.tiering.copy_plans.PART_COUNT", 1)
    monkeypatch.setattr("stablelog.tier.deletion.LATE_S", 0)

    async def conversation(desk):
        case = Case(desk, disk, monkeypatch)
        steps = CASES[name](case)
        await anext(steps)
        case.fill()
        async for _ in steps:
            pytest.fail("a case fills the disk once")
        disk.grow()
        await tend(desk)
        assert not desk.broker.reserve.is_full
        assert (await desk.produce(batch(b"goes on"))).error_code is NONE

    url = tmp_path.as_uri()
    assert run(disk, conversation, size=SIZE, stablelog_remote_url=url, **SELDOM) == []


def test_the_document_lists_each_of_these_writes():
    section = DOCUMENT.read_text().partition("## Writes on which free space depends\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| ([^|]+) \|", section, re.MULTILINE)
    assert rows[0] == "write"
    assert [row for row in rows[1:] if set(row) != {"-"}] == list(CASES)


@pytest.mark.extended
@pytest.mark.parametrize("order", ["offset", "commit"])
def test_a_disk_that_filled_while_the_store_was_away_gets_room_from_the_copies(order, tmp_path):
    """No segment can leave the disk before the copy of a manifest is on it, and the disk has no byte for this copy."""
    disk = NoRoom()

    async def conversation(desk):
        broker = desk.broker
        broker.topic_files.create(
            "o", 1, {**LOCAL_NOTHING, "segment.bytes": "20000", "stablelog.order": order}
        )
        log, written = log_of(desk, "o"), 0
        disk.capacity = 2 << 20
        while (await desk.produce(batch(b"%d" % written + bytes(9000)), topic="o")).error_code is NONE:
            written += 1
        disk.fill()
        assert broker.reserve.is_full
        await broker.tiering.copy_all()
        for _ in range(2):
            await tend(desk)
            await broker.maintenance.apply_retention()
        await tend(desk)
        assert not broker.reserve.is_full
        assert (await desk.produce(batch(b"goes on"), topic="o")).error_code is NONE
        assert log.start_offset > written // 2
        assert log.remote.start_offset == 0

    url = tmp_path.as_uri()
    assert run(disk, conversation, size=SIZE, stablelog_remote_url=url, **SELDOM) == []


def test_without_a_reserve_a_sealed_segment_gets_its_files_when_there_is_room_although_nothing_is_appended():
    disk = NoRoom()

    async def conversation(desk):
        desk.broker.topic_files.create("r", 1, {})
        log = log_of(desk, "r")
        await desk.produce(batch(bytes(200)), topic="r")
        log.roll(desk.broker.now_ms())
        disk.fill()
        await desk.broker.flush.wait_for_next_round([log])
        await tend(desk)
        assert not log.segments()[0].durable
        disk.grow()
        await tend(desk)
        await until(lambda: log.segments()[0].durable)

    assert run(disk, conversation, size=0, **SELDOM) == []
