"""Which topics a directory holds, and what Apache Kafka has left beside them."""

from pathlib import Path

import pytest

from stablelog.broker.config import load_settings
from stablelog.broker.topics import LOG_START_CHECKPOINT, Topics, read_offset_checkpoint
from stablelog.errors import Corrupt
from stablelog.testing.sim_disk import SimDisk

HERE = Path("/data")


def adopt(files):
    """The topics that are found in a directory without a list, which holds these files."""
    disk = SimDisk()
    disk.make_dir(HERE)
    for name, content in files.items():
        disk.make_dir((HERE / name).parent)
        disk.write_atomic(HERE / name, content)
    topics = Topics(disk, HERE, load_settings({}), lambda: 0)
    topics.load(clean=True)
    return topics


def test_the_log_of_kafkas_controllers_is_no_topic():
    topics = adopt(
        {"__cluster_metadata-0/00000000000000000000.log": b"", "mine-0/00000000000000000000.log": b""}
    )
    assert [topic.name for topic in topics] == ["mine"]


@pytest.mark.parametrize("content", [b"", b"0\n0\n"])
def test_a_checkpoint_that_kafka_had_not_come_to_write_says_nothing(content):
    disk = SimDisk()
    disk.make_dir(HERE)
    disk.write_atomic(HERE / LOG_START_CHECKPOINT, content)
    assert read_offset_checkpoint(disk, HERE / LOG_START_CHECKPOINT) == {}


def test_a_checkpoint_that_is_cut_short_is_not_taken_for_a_whole_one():
    disk = SimDisk()
    disk.make_dir(HERE)
    disk.write_atomic(HERE / LOG_START_CHECKPOINT, b"0\n2\na 0 5\n")
    with pytest.raises(Corrupt):
        read_offset_checkpoint(disk, HERE / LOG_START_CHECKPOINT)
