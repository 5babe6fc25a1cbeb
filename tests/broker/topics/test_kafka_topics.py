"""Which topics a directory of Apache Kafka has for the broker that takes it over, and with which settings."""

from pathlib import Path

from stablelog.broker.topics.kafka_topics import adopt_topics
from stablelog.testing.sim_disk import SimDisk
from tests.data_directory.kafka_controllers import config_record, controllers_log, topic_record

HERE = Path("/data")


def adopt(files):
    """The topics that are found in a directory without a list, which holds these files."""
    disk = SimDisk()
    disk.make_dir(HERE)
    for name, content in files.items():
        disk.make_dir((HERE / name).parent)
        disk.write_atomic(HERE / name, content)
    return adopt_topics(disk, HERE)


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
    assert adopt(files)[0].configs["retention.ms"] == "3"
    files["__cluster_metadata-0/00000000000000000002-0000000001.checkpoint"] = snapshot
    assert adopt(files)[0].configs["retention.ms"] == "3"
    files["__cluster_metadata-0/00000000000000000003-0000000001.checkpoint"] = snapshot
    assert adopt(files)[0].configs["retention.ms"] == "2"
