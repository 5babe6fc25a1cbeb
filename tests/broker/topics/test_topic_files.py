"""The files of topics: what a start, a creation, a deletion and a stop read and write."""

import errno
import random
import threading
from pathlib import Path

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.topics import side_by_side
from stablelog.data_directory.checkpoints import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
from stablelog.errors import DamageError, DiskError, RefusedError
from stablelog.testing.sim_disk import SimDisk, SimFile
from stablelog.testing.sim_faults import SimulatedCrash
from tests.broker.desk import delete_topic
from tests.broker.topics.files import create, topic_files

HERE = Path("/data")


def open_all(disk, *, clean):
    """What a broker does when it starts: (files, topics that could not be opened)."""
    files = topic_files(disk, HERE, clean=clean)
    refused = []
    for topic in files.topics:
        try:
            files.open_partition(topic, 0)
        except DamageError:
            refused.append(topic.name)
    files.checkpoints.make_recovery_points_durable()
    return files, refused


def test_what_was_durable_stays_so_until_its_partition_is_opened():
    disk = SimDisk()
    disk.make_dir(HERE)
    files, _ = open_all(disk, clean=True)
    for name in ("whole", "damaged", "deleted"):
        partition = create(files, name)
        partition.append(encode_batch([Record(0, 0, None, b"value", ())]), now_ms=0)
    assert files.close()
    ends = {("whole", 0): 1, ("damaged", 0): 1, ("deleted", 0): 1}
    assert read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT) == ends

    for name in ("damaged", "deleted"):
        for suffix in (".snapshot", ".producers"):  # so that the log is read, and not only its end
            disk.remove(HERE / f"{name}-0" / f"{1:020d}{suffix}")
        path = HERE / f"{name}-0" / f"{0:020d}.log"
        content = disk.read_bytes(path)
        disk.write_atomic(path, content[:-1] + b"?")
    for clean in (True, False, False):
        files, refused = open_all(disk, clean=clean)
        assert refused == ["damaged", "deleted"]
        left = read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT)
        assert left == {("damaged", 0): 1, ("deleted", 0): 1, ("whole", 0): 1}
        assert disk.size(HERE / "damaged-0" / f"{0:020d}.log") == len(content)
    delete_topic(files, "deleted")
    left = read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT)
    assert left == {("damaged", 0): 1, ("whole", 0): 1}
    assert files.close()
    left = read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT)
    assert left == {("damaged", 0): 1, ("whole", 0): 1}


class CountedReserve(DiskReserve):
    """A reserve that has room, and notes which threads ask for it."""

    def __init__(self, disk):
        super().__init__(disk, HERE, 0)
        self.threads = []

    def make_room(self, error, *, frees=False):
        self.threads.append(threading.current_thread())
        return error.is_full and frees


def written(disk, count):
    """Topics of one partition each, with one synced record of a producer each."""
    disk.make_dir(HERE)
    reserve = CountedReserve(disk)
    files = topic_files(disk, HERE, reserve=reserve)
    for number in range(count):
        partition = create(files, f"t{number}")
        batch = encode_batch(
            [Record(0, 0, None, b"value", ())], producer_id=7, producer_epoch=0, base_sequence=0
        )
        partition.append(batch, now_ms=0)
        work = partition.sync_work()
        work.run()
        partition.finish_sync(work)
    reserve.threads.clear()
    return files, reserve


def test_many_partitions_are_made_by_threads_and_none_is_left_open_where_one_cannot_be_made(monkeypatch):
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", 2)
    disk = SimDisk()
    disk.make_dir(HERE)
    files = topic_files(disk, HERE)
    makers, number = set(), errno.ENOSPC

    def fault(what, path):
        makers.add(threading.current_thread().name.partition("_")[0])
        return number if what == "writing" and path.parent.name == "wide-7" else None

    disk.fault = fault
    with pytest.raises(RefusedError, match="the broker cannot create topic wide"):
        files.create("wide", 20, {})
    assert "making" in makers
    assert disk.open_files == []
    assert files.topics.get("wide") is None
    disk.fault = None
    wide = files.create("wide", 20, {})
    assert sorted(files.partitions.of_topic(wide)) == list(range(20))
    after = topic_files(disk.crash(random.Random(1)), HERE, clean=False)
    for index in range(20):
        after.open_partition(after.topics.named("wide"), index)


def snapshot_names(disk, topic):
    return [name for name in disk.list_dir(HERE / f"{topic}-0") if name.startswith(f"{1:020d}")]


def test_many_partitions_are_closed_by_threads_and_one_that_fails_is_none_of_the_others_affair(monkeypatch):
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", 2)
    disk = SimDisk()
    files, _ = written(disk, 6)
    disk.fault = lambda what, path: errno.EIO if what == "syncing" and path.parent.name == "t3-0" else None
    calls = set()
    plain = disk.call
    monkeypatch.setattr(disk, "call", lambda what, path: (calls.add(what), plain(what, path)))
    assert not files.close()
    disk.fault = None
    for number in range(6):
        assert len(snapshot_names(disk, f"t{number}")) == (0 if number == 3 else 2), calls
    again, refused = open_all(disk, clean=False)
    assert not refused
    assert [one.end_offset for one in again.partitions] == [1] * 6


def test_a_partition_without_room_among_many_is_closed_with_the_room_of_the_reserve(monkeypatch):
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", 2)
    disk = SimDisk()
    files, reserve = written(disk, 6)
    full = ["t2-0", "t4-0"]

    def fault(_what, path):
        if path.parent.name in full and path.suffix == ".index":
            full.remove(path.parent.name)
            return errno.ENOSPC
        return None

    disk.fault = fault
    assert files.close()
    assert not full
    for number in range(6):
        assert len(snapshot_names(disk, f"t{number}")) == 2
    assert set(reserve.threads) == {threading.main_thread()}


@pytest.mark.parametrize("in_turn_max", [2, 100])
def test_a_sync_that_failed_at_a_stop_is_not_made_good_by_one_that_succeeds(monkeypatch, in_turn_max):
    """The system tells of a lost write once: the next sync of the file succeeds, and the record is gone all the same."""
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", in_turn_max)
    disk = SimDisk()
    files, _ = written(disk, 6)
    files.partitions.require("t3", 0).append(encode_batch([Record(0, 0, None, b"lost", ())]), now_ms=0)
    failed = []
    plain = SimFile.sync

    def sync(file):
        if not failed and file.path.parent.name == "t3-0" and file.path.suffix == ".log":
            failed.append(file)
            raise DiskError("syncing", errno.EIO, undone=False)
        plain(file)

    monkeypatch.setattr(SimFile, "sync", sync)
    assert not files.close()
    assert failed


# -- the list --------------------------------------------------------------------------------------------------


def loaded(disk, *, clean=True):
    return topic_files(disk, HERE, clean=clean)


def disk_with_root():
    disk = SimDisk()
    disk.make_dir(HERE)
    return disk


def test_a_topic_is_there_after_a_restart_with_its_settings():
    disk = disk_with_root()
    first = loaded(disk)
    topic_id = first.create("orders", 3, {"retention.ms": "5"}).topic_id
    again = loaded(disk)
    found = again.topics.get("orders")
    assert (found.topic_id, found.partition_count, found.configs) == (topic_id, 3, {"retention.ms": "5"})
    assert again.topics.leader_epoch == first.topics.leader_epoch + 1


def test_a_topic_is_created_whole_or_not_at_all():
    disk = disk_with_root()
    loaded(disk)
    whole = SimDisk()
    whole.make_dir(HERE)
    made = loaded(whole)
    before = whole.steps
    made.create("orders", 3, {})
    for crash_at in range(before + 1, whole.steps + 1):
        disk = disk_with_root()
        made = loaded(disk)
        disk.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            made.create("orders", 3, {})
        disk.crash_at = None
        found = loaded(disk).topics.get("orders")
        assert found is None or found.partition_count == 3


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 250, "ä"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(RefusedError, match="topic name"):
        loaded(disk_with_root()).create(name, 1, {})


def test_a_damaged_list_of_topics_is_not_taken_for_an_empty_one():
    disk = disk_with_root()
    loaded(disk).create("orders", 1, {})
    disk.write_atomic(HERE / "cluster.json", b'{"version": 1')
    with pytest.raises(DamageError, match=r"cluster\.json"):
        loaded(disk)


def test_topics_with_the_same_settings_share_the_settings_of_their_logs(monkeypatch):
    """A change of the broker's settings is applied to thousands of topics in one turn of the event loop."""
    config = BrokerConfig({})
    disk = SimDisk()
    disk.make_dir(HERE)
    files = topic_files(disk, HERE, config=config)
    for number in range(10):
        files.create(f"t{number}", 1, {"retention.ms": "5000"} if number == 3 else {})
    made, log_config = [], config.log_config
    monkeypatch.setattr(config, "log_config", lambda configs: made.append(configs) or log_config(configs))
    config.set_dynamic({"log.retention.ms": "7000"})
    files.partitions.reconfigure()
    assert len(made) == 2
    found = {one.topic: one.config.retention_ms for one in files.partitions}
    assert found == {f"t{number}": 5000 if number == 3 else 7000 for number in range(10)}
