"""Which topics a directory holds, and what Apache Kafka has left beside them."""

import errno
import random
import threading
from pathlib import Path

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.config import BrokerConfig
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.topics import side_by_side
from stablelog.broker.topics.topics import Topics
from stablelog.data_directory.checkpoints import RECOVERY_POINT_CHECKPOINT, read_offset_checkpoint
from stablelog.errors import DamageError, DiskError, RefusedError
from stablelog.testing.sim_disk import SimDisk, SimFile, SimulatedCrash
from tests.broker.desk import delete_topic

HERE = Path("/data")


def adopt(files):
    """The topics that are found in a directory without a list, which holds these files."""
    disk = SimDisk()
    disk.make_dir(HERE)
    for name, content in files.items():
        disk.make_dir((HERE / name).parent)
        disk.write_atomic(HERE / name, content)
    topics = Topics(disk, HERE, BrokerConfig({}), lambda: 0)
    topics.load(clean=True)
    return topics


def test_the_log_of_kafkas_controllers_is_no_topic():
    topics = adopt(
        {"__cluster_metadata-0/00000000000000000000.log": b"", "mine-0/00000000000000000000.log": b""}
    )
    assert [topic.name for topic in topics] == ["mine"]


def test_nothing_is_deleted_of_a_topic_whose_settings_are_not_known():
    """Its broker's defaults are not in its directory, and ours, seven days, would be taken for its owner's will."""
    (topic,) = adopt({"mine-0/00000000000000000000.log": b""})
    assert topic.configs == {"retention.ms": "-1", "retention.bytes": "-1"}


def test_a_topic_keeps_the_settings_that_kafkas_controllers_have_of_it():
    log = controllers_log(
        [topic_record("mine"), config_record("mine", "cleanup.policy", "compact")],
        [config_record("mine", "retention.ms", "1000"), config_record("mine", "retention.ms", "2000")],
        [config_record("mine", "max.message.bytes", "9"), config_record("mine", "max.message.bytes", None)],
        [config_record("mine", "no.such.setting", "1"), config_record("other", "retention.ms", "5")],
    )
    mine, other = adopt(
        {
            "__cluster_metadata-0/00000000000000000000.log": log + b"torn",
            "mine-0/00000000000000000000.log": b"",
            "other-0/00000000000000000000.log": b"",
        }
    )
    assert mine.configs == {"cleanup.policy": "compact", "retention.ms": "2000", "retention.bytes": "-1"}
    assert other.configs["retention.ms"] == "5"


def test_a_snapshot_of_the_controllers_goes_before_their_log():
    old = controllers_log([config_record("mine", "retention.ms", "1")], [topic_record("mine")])
    new = controllers_log([config_record("mine", "retention.ms", "3")], base_offset=2)
    snapshot = controllers_log([topic_record("mine"), config_record("mine", "retention.ms", "2")])
    files = {
        "__cluster_metadata-0/00000000000000000000.log": old + new,
        "mine-0/00000000000000000000.log": b"",
    }
    assert adopt(files).get("mine").configs["retention.ms"] == "3"
    files["__cluster_metadata-0/00000000000000000002-0000000001.checkpoint"] = snapshot
    assert adopt(files).get("mine").configs["retention.ms"] == "3"
    files["__cluster_metadata-0/00000000000000000003-0000000001.checkpoint"] = snapshot
    assert adopt(files).get("mine").configs["retention.ms"] == "2"


def controllers_log(*batches, base_offset=0):
    """Batches of records, one offset after the other."""
    content = b""
    for batch in batches:
        records = [Record(0, 0, None, value, ()) for value in batch]
        content += encode_batch(records, base_offset=base_offset)
        base_offset += len(batch)
    return content


def compact(text):
    return b"\0" if text is None else bytes([len(text) + 1]) + text.encode()


def topic_record(name):
    return bytes([1, 2, 0]) + compact(name) + bytes(16) + b"\0"


def config_record(topic, setting, value):
    return bytes([1, 4, 0, 2]) + compact(topic) + compact(setting) + compact(value) + b"\0"


def open_all(disk, *, clean):
    """What a broker does when it starts: (topics, those that could not be opened)."""
    topics = Topics(disk, HERE, BrokerConfig({}), lambda: 0)
    topics.load(clean=clean)
    refused = []
    for topic in topics:
        try:
            topics.open_partition(topic, 0)
        except DamageError:
            refused.append(topic.name)
    topics.checkpoints.make_recovery_points_durable()
    return topics, refused


def test_what_was_durable_stays_so_until_its_partition_is_opened():
    disk = SimDisk()
    disk.make_dir(HERE)
    topics, _ = open_all(disk, clean=True)
    for name in ("whole", "damaged", "deleted"):
        partition = topics.create(name, 1, {}).partitions[0]
        partition.append(encode_batch([Record(0, 0, None, b"value", ())]), now_ms=0)
    assert topics.close()
    ends = {("whole", 0): 1, ("damaged", 0): 1, ("deleted", 0): 1}
    assert read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT) == ends

    for name in ("damaged", "deleted"):
        for suffix in (".snapshot", ".producers"):  # so that the log is read, and not only its end
            disk.remove(HERE / f"{name}-0" / f"{1:020d}{suffix}")
        path = HERE / f"{name}-0" / f"{0:020d}.log"
        content = disk.read_bytes(path)
        disk.write_atomic(path, content[:-1] + b"?")
    for clean in (True, False, False):
        topics, refused = open_all(disk, clean=clean)
        assert refused == ["damaged", "deleted"]
        left = read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT)
        assert left == {("damaged", 0): 1, ("deleted", 0): 1, ("whole", 0): 1}
        assert disk.size(HERE / "damaged-0" / f"{0:020d}.log") == len(content)
    delete_topic(topics, "deleted")
    left = read_offset_checkpoint(disk, HERE / RECOVERY_POINT_CHECKPOINT)
    assert left == {("damaged", 0): 1, ("whole", 0): 1}
    assert topics.close()
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
    topics = Topics(disk, HERE, BrokerConfig({}), lambda: 0, reserve)
    topics.load(clean=True)
    for number in range(count):
        partition = topics.create(f"t{number}", 1, {}).partitions[0]
        batch = encode_batch(
            [Record(0, 0, None, b"value", ())], producer_id=7, producer_epoch=0, base_sequence=0
        )
        partition.append(batch, now_ms=0)
        work = partition.unsynced()
        work.run()
        partition.synced(work)
    reserve.threads.clear()
    return topics, reserve


def test_many_partitions_are_made_by_threads_and_none_is_left_open_where_one_cannot_be_made(monkeypatch):
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", 2)
    disk = SimDisk()
    disk.make_dir(HERE)
    topics = Topics(disk, HERE, BrokerConfig({}), lambda: 0)
    topics.load(clean=True)
    makers, number = set(), errno.ENOSPC

    def fault(what, path):
        makers.add(threading.current_thread().name.partition("_")[0])
        return number if what == "writing" and path.parent.name == "wide-7" else None

    disk.fault = fault
    with pytest.raises(RefusedError, match="topic wide cannot be created"):
        topics.create("wide", 20, {})
    assert "making" in makers
    assert disk.open_files == []
    assert topics.get("wide") is None
    disk.fault = None
    wide = topics.create("wide", 20, {})
    assert sorted(wide.partitions) == list(range(20))
    after = Topics(disk.crash(random.Random(1)), HERE, BrokerConfig({}), lambda: 0)
    after.load(clean=False)
    for index in range(20):
        after.open_partition(after.get("wide"), index)


def snapshot_names(disk, topic):
    return [name for name in disk.list_dir(HERE / f"{topic}-0") if name.startswith(f"{1:020d}")]


def test_many_partitions_are_closed_by_threads_and_one_that_fails_is_none_of_the_others_affair(monkeypatch):
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", 2)
    disk = SimDisk()
    topics, _ = written(disk, 6)
    disk.fault = lambda what, path: errno.EIO if what == "syncing" and path.parent.name == "t3-0" else None
    calls = set()
    plain = disk.call
    monkeypatch.setattr(disk, "call", lambda what, path: (calls.add(what), plain(what, path)))
    assert not topics.close()
    disk.fault = None
    for number in range(6):
        assert len(snapshot_names(disk, f"t{number}")) == (0 if number == 3 else 2), calls
    again, refused = open_all(disk, clean=False)
    assert not refused
    assert all(topic.partitions[0].end_offset == 1 for topic in again)


def test_a_partition_without_room_among_many_is_closed_with_the_room_of_the_reserve(monkeypatch):
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", 2)
    disk = SimDisk()
    topics, reserve = written(disk, 6)
    full = ["t2-0", "t4-0"]

    def fault(_what, path):
        if path.parent.name in full and path.suffix == ".index":
            full.remove(path.parent.name)
            return errno.ENOSPC
        return None

    disk.fault = fault
    assert topics.close()
    assert not full
    for number in range(6):
        assert len(snapshot_names(disk, f"t{number}")) == 2
    assert set(reserve.threads) == {threading.main_thread()}


@pytest.mark.parametrize("in_turn_max", [2, 100])
def test_a_sync_that_failed_at_a_stop_is_not_made_good_by_one_that_succeeds(monkeypatch, in_turn_max):
    """The system tells of a lost write once: the next sync of the file succeeds, and the record is gone all the same."""
    monkeypatch.setattr(side_by_side, "IN_TURN_MAX", in_turn_max)
    disk = SimDisk()
    topics, _ = written(disk, 6)
    topics.get("t3").partitions[0].append(encode_batch([Record(0, 0, None, b"lost", ())]), now_ms=0)
    failed = []
    plain = SimFile.sync

    def sync(file):
        if not failed and file.path.parent.name == "t3-0" and file.path.suffix == ".log":
            failed.append(file)
            raise DiskError("syncing", errno.EIO, undone=False)
        plain(file)

    monkeypatch.setattr(SimFile, "sync", sync)
    assert not topics.close()
    assert failed


# -- the list --------------------------------------------------------------------------------------------------


def loaded(disk, *, clean=True):
    made = Topics(disk, HERE, BrokerConfig({}), lambda: 0)
    made.load(clean=clean)
    return made


def disk_with_root():
    disk = SimDisk()
    disk.make_dir(HERE)
    return disk


def test_a_topic_is_there_after_a_restart_with_its_settings():
    disk = disk_with_root()
    first = loaded(disk)
    topic_id = first.create("orders", 3, {"retention.ms": "5"}).topic_id
    again = loaded(disk)
    found = again.get("orders")
    assert (found.topic_id, found.partition_count, found.configs) == (topic_id, 3, {"retention.ms": "5"})
    assert again.leader_epoch == first.leader_epoch + 1


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
        found = loaded(disk).get("orders")
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
    topics = Topics(disk, HERE, config, lambda: 0)
    topics.load(clean=True)
    for number in range(10):
        topics.create(f"t{number}", 1, {"retention.ms": "5000"} if number == 3 else {})
    made, log_config = [], config.log_config
    monkeypatch.setattr(config, "log_config", lambda configs: made.append(configs) or log_config(configs))
    config.set_dynamic({"log.retention.ms": "7000"})
    topics.reconfigure()
    assert len(made) == 2
    found = {topic.name: topic.partitions[0].config.retention_ms for topic in topics}
    assert found == {f"t{number}": 5000 if number == 3 else 7000 for number in range(10)}
