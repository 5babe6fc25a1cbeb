"""What is read of the log that Apache Kafka's controllers leave beside the partitions."""

import uuid
from pathlib import Path

import pytest

from stablelog.batch.header import CONTROL
from stablelog.batch.records import Record, encode_batch
from stablelog.data_directory.kafka_metadata import ControllerTopic, read_topics
from stablelog.testing.sim_disk import SimDisk
from tests.data_directory.kafka_controllers import (
    compact,
    config_record,
    controllers_log,
    partition_record,
    removal_record,
    topic_record,
)

DATA = Path("/data")
LOG = f"{0:020d}.log"


def topics_in(**files):
    """The topics in a directory whose controllers' log has these files."""
    disk = SimDisk()
    disk.make_dir(DATA / "__cluster_metadata-0")
    for name, content in files.items():
        disk.write_atomic(DATA / "__cluster_metadata-0" / name, content)
    return read_topics(disk, DATA)


def of_log(*records):
    return topics_in(**{LOG: controllers_log(list(records))})


def snapshot_at(offset):
    return f"{offset:020d}-0000000001.checkpoint"


def test_without_the_controllers_log_no_topic_is_known():
    disk = SimDisk()
    disk.make_dir(DATA)
    assert read_topics(disk, DATA) == {}
    assert topics_in() == {}


def test_a_topic_has_its_id_its_partitions_their_brokers_and_its_settings():
    found = of_log(
        topic_record("t", 7),
        partition_record(7, 0, nodes=(1, 2)),
        partition_record(7, 3, nodes=(2, 5)),
        config_record("t", "retention.ms", "5"),
    )
    assert found == {"t": ControllerTopic(uuid.UUID(int=7), {"retention.ms": "5"}, {0, 3}, {1, 2, 5})}


def test_the_last_value_of_a_setting_holds_and_null_removes_it():
    found = of_log(
        config_record("t", "retention.ms", "5"),
        config_record("t", "segment.ms", "6"),
        config_record("t", "retention.ms", "7"),
        config_record("t", "segment.ms", None),
    )
    assert found == {"t": ControllerTopic(configs={"retention.ms": "7"})}


def test_settings_of_a_broker_are_no_settings_of_a_topic():
    assert of_log(config_record("1", "retention.ms", "5", resource=4)) == {}


def test_a_topic_that_was_deleted_is_gone_and_one_that_was_made_again_begins_anew():
    deleted = [topic_record("t", 7), partition_record(7, 2), config_record("t", "a", "1"), removal_record(7)]
    assert of_log(*deleted) == {}
    again = of_log(*deleted, topic_record("t", 8), partition_record(8, 0))
    assert again == {"t": ControllerTopic(uuid.UUID(int=8), {}, {0}, {1})}


def test_the_removal_of_an_earlier_topic_of_the_name_does_not_remove_the_later_one():
    found = of_log(topic_record("t", 7), topic_record("t", 8), removal_record(7))
    assert found["t"].topic_id == uuid.UUID(int=8)


def test_partitions_and_removals_of_unknown_topics_are_passed_over():
    assert of_log(partition_record(9, 0), removal_record(9)) == {}


@pytest.mark.parametrize(
    "record",
    [
        b"\1",
        bytes([1, 2, 0]) + compact("u") + bytes(3),
        bytes([1, 3, 0]) + bytes(3),
        bytes([1, 4, 0]),
        bytes([1, 200, 1, 0]) + b"a later kind",
    ],
    ids=["no kind", "half an id", "half a partition", "no resource", "a kind of a later release"],
)
def test_a_record_that_cannot_be_read_is_passed_over(record):
    assert of_log(record, topic_record("t", 7)).keys() == {"t"}


def test_control_batches_and_records_without_a_value_are_passed_over():
    control = bytearray(encode_batch([Record(0, 0, None, topic_record("control", 1))]))
    control[22] |= CONTROL
    nothing = encode_batch([Record(0, 0, b"key", None)], base_offset=1)
    log = bytes(control) + nothing + controllers_log([topic_record("t", 7)], base_offset=2)
    assert topics_in(**{LOG: log}).keys() == {"t"}


def test_a_file_is_read_up_to_its_damage_and_the_next_file_is_read():
    whole = controllers_log([topic_record("a", 1)], [topic_record("b", 2)])
    damaged = whole[: len(whole) // 2] + bytes(100)
    behind = controllers_log([topic_record("c", 3)], base_offset=2)
    assert topics_in(**{LOG: damaged, f"{2:020d}.log": behind}).keys() == {"a", "c"}


def test_the_last_snapshot_takes_the_place_of_the_records_before_its_offset():
    old = controllers_log([topic_record("t", 7), config_record("t", "a", "1"), config_record("t", "a", "3")])
    first = controllers_log([topic_record("never", 9)])
    last = controllers_log([topic_record("t", 7), config_record("t", "a", "2")])
    files = {LOG: old, snapshot_at(1): first}
    assert topics_in(**files, **{snapshot_at(2): last})["t"].configs == {"a": "3"}
    found = topics_in(**files, **{snapshot_at(3): last})
    assert found["t"].configs == {"a": "2"}
    assert found.keys() == {"t"}, "an earlier snapshot is not read"


def test_files_of_other_names_are_not_read():
    content = controllers_log([topic_record("t", 7)])
    names = ("0.log", "x.checkpoint", snapshot_at(1) + ".part", f"{0:020d}.log.deleted")
    assert topics_in(**dict.fromkeys(names, content)) == {}
