"""Which partitions a directory of Apache Kafka has, and which of them are gone."""

import uuid

import pytest

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.data_directory.catalog import read_catalog
from stablelog.data_directory.kafka_import import find_topics
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError
from stablelog.log.files.log_start import LOG_START_FILE
from stablelog.ops.verify import verify_data_directory
from tests.broker.topics.files import topic_files
from tests.data_directory.kafka_controllers import (
    config_record,
    controllers_log,
    partition_record,
    removal_record,
    topic_record,
)

LOG = f"{0:020d}.log"
DISK = LocalDisk()


TOPIC = [topic_record("t", 7), *(partition_record(7, index) for index in range(3))]


@pytest.fixture
def make(tmp_path):
    """Makes a data directory of Kafka's with empty partitions, and what its controllers' log holds."""

    def made(*partitions, records=(), epochs=b"0\n1\n2 0\n"):
        if records:
            partitions = (*partitions, "__cluster_metadata-0")
        for name in partitions:
            (tmp_path / name).mkdir()
            (tmp_path / name / LOG).write_bytes(controllers_log(list(records)) if name[:2] == "__" else b"")
            (tmp_path / name / "leader-epoch-checkpoint").write_bytes(epochs)
        (tmp_path / "meta.properties").write_text("#\nversion=1\ncluster.id=x\nnode.id=1\ndirectory.id=y\n")
        return tmp_path

    return made


def counts(directory):
    return {topic.name: topic.partition_count for topic in find_topics(DISK, directory)}


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_partition_that_the_controllers_know_and_that_is_gone_is_offline_and_named(make, gone, caplog):
    directory = make(*(f"t-{index}" for index in range(3) if index != gone), records=TOPIC)
    findings = [str(finding) for finding in verify_data_directory(DISK, directory)]
    assert len(findings) == 1
    assert str(directory / f"t-{gone}") in findings[0]
    caplog.clear()
    for _ in range(2):
        files = started(directory)
        states = [files.partitions.state("t", index) for index in range(3)]
        assert states.count(PartitionState.OPEN) == 2
        assert states[gone] is PartitionState.OFFLINE
        assert (
            f"{directory / f't-{gone}'} is missing"
            in files.partitions.offline_in(files.topics.named("t"))[gone]
        )
        assert files.close()
    assert caplog.text.count(f"{directory / f't-{gone}'} is missing") == 1
    # Restored as Kafka left it, it is taken over.
    (directory / f"t-{gone}").mkdir()
    (directory / f"t-{gone}" / LOG).write_bytes(b"")
    files = started(directory)
    assert files.partitions.state("t", gone) is PartitionState.OPEN
    assert files.close()
    assert (directory / f"t-{gone}" / LOG_START_FILE).exists()
    assert read_catalog(DISK, directory).established_epoch == 3 + 2


def started(directory):
    """What a broker does when it starts."""
    files = topic_files(DISK, directory)
    for topic in files.topics:
        for index in range(topic.partition_count):
            try:
                files.open_partition(topic, index)
            except DamageError as error:
                files.partitions.set_offline(topic, index, str(error))
    if files.is_taking_over:
        files.taken_over()
    return files


def test_a_topic_that_the_controllers_know_and_of_which_nothing_is_there_is_offline(make, caplog):
    directory = make("other-0", records=TOPIC)
    assert counts(directory) == {"other": 1, "t": 3}
    assert all(f"{directory / f't-{index}'} is missing" in caplog.text for index in range(3))


def test_topics_of_other_brokers_and_deleted_ones_are_no_topics_here(make):
    records = [
        *TOPIC,
        topic_record("elsewhere", 8),
        partition_record(8, 0, nodes=(2, 3)),
        topic_record("both", 9),
        partition_record(9, 0, nodes=(2, 1)),
        config_record("settings", "retention.ms", "5"),
        removal_record(7),
    ]
    assert counts(make("mine-0", records=records)) == {"both": 1, "mine": 1}


def test_a_topic_that_was_made_again_has_the_partitions_of_its_last_life(make):
    records = [*TOPIC, removal_record(7), topic_record("t", 8), partition_record(8, 0)]
    directory = make("t-0", records=records)
    (topic,) = find_topics(DISK, directory)
    assert (topic.partition_count, topic.topic_id) == (1, uuid.UUID(int=8))


def test_without_the_controllers_log_a_hole_is_refused_by_name(make):
    directory = make("t-0", "t-2", "t-7")
    with pytest.raises(
        DamageError,
        match=f"topic t are missing: {directory}/t-1, {directory}/t-3, {directory}/t-4 and 2 more",
    ):
        find_topics(DISK, directory)
    assert not (directory / "cluster.json").exists()


def test_behind_what_the_controllers_know_a_hole_is_refused_by_name(make):
    directory = make("t-0", "t-1", "t-4", records=TOPIC)
    with pytest.raises(DamageError, match=f"topic t are missing: {directory}/t-3. t-4 exists"):
        find_topics(DISK, directory)


def test_a_directory_with_a_great_number_is_refused_at_once(make):
    directory = make("backup-2026010826")
    with pytest.raises(DamageError, match=r"topic backup are missing: .*backup-2 and 2026010823 more"):
        find_topics(DISK, directory)


@pytest.mark.parametrize("file", [None, "x", "notes.log", "²" * 20 + ".log"])
def test_a_directory_without_a_file_of_kafkas_is_no_partition(make, file, caplog):
    directory = make("t-0")
    for name in ("backup-2026", "backup-2026010", "backup-99999999999999999999", "t-01", "t-1"):
        (directory / name).mkdir()
        if file is not None:
            (directory / name / file).write_bytes(b"x")
    assert counts(directory) == {"t": 1}
    assert f"{directory / 'backup-2026'} is ignored" in caplog.text
    files = started(directory)
    assert files.close()
    assert (directory / "backup-2026").is_dir()


@pytest.mark.parametrize("records", [(), TOPIC])
def test_a_link_to_nothing_in_the_place_of_a_partition_is_refused_by_name(make, records):
    directory = make("other-0", records=records)
    (directory / "t-0").symlink_to(directory / "nowhere")
    with pytest.raises(DamageError, match=f"{directory}/t-0 is a symbolic link to nothing"):
        find_topics(DISK, directory)


@pytest.mark.parametrize("content", [b"0\n", b"", b"x", b"0\n1\n2 x\n"])
def test_a_damaged_leader_epoch_checkpoint_is_rebuilt(make, content):
    directory = make("t-0", "u-0", epochs=content)
    (directory / "t-0" / LOG).write_bytes(encode_batch([Record(0, 0, None, b"value", ())], leader_epoch=5))
    files = started(directory)
    assert files.topics.leader_epoch == 6
    assert files.close()
    assert (directory / "t-0" / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n5 0\n"
