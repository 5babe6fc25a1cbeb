"""The open partitions: in which state each partition is, and what a request gets that needs one."""

import errno
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.topics.partition_state import COMMON, PartitionState
from stablelog.errors import DiskError, RefusedError
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import delete_topic
from tests.broker.topics.files import create, topic_files

HERE = Path("/data")


@pytest.fixture
def files():
    """A start after which topic `t` has a partition in each state: open, opening, offline, failed."""
    disk = SimDisk()
    disk.make_dir(HERE)
    before = topic_files(disk, HERE)
    before.create("t", 4, {})
    assert before.close()
    after = topic_files(disk, HERE)
    topic = after.topics.named("t")
    for index in (0, 3):
        after.open_partition(topic, index)
    after.partitions.set_offline(topic, 2, "its disk is gone")
    after.partitions.require("t", 3).availability.mark_failed(DiskError("writing failed", errno.EIO))
    return after


STATES = [PartitionState.OPEN, PartitionState.OPENING, PartitionState.OFFLINE, PartitionState.OFFLINE]


def test_each_partition_has_a_state(files):
    partitions = files.partitions
    assert [partitions.state("t", index) for index in range(4)] == STATES
    unknown = [("t", -1), ("t", 4), ("u", 0)]
    assert {partitions.state(*at) for at in unknown} == {PartitionState.UNKNOWN}
    assert (partitions.offline_count, partitions.opening_count, partitions.are_complete) == (2, 1, False)


def test_a_request_gets_an_open_partition_or_the_code_and_the_reason(files):
    assert files.partitions.require("t", 0).index == 0
    for index, code, why in (
        (1, COMMON.opening, "is being recovered"),
        (2, COMMON.offline, "its disk is gone"),
        (3, COMMON.offline, "writing failed"),
        (4, COMMON.unknown, "partitions 0 to 3, not 4"),
    ):
        with pytest.raises(RefusedError, match=why) as refused:
            files.partitions.require("t", index)
        assert refused.value.code == code
    with pytest.raises(RefusedError) as refused:
        files.partitions.require("u", 0)
    assert refused.value.code == ErrorCode.unknown_topic_or_partition


def test_a_partition_that_was_offline_is_open_when_it_was_recovered(files):
    files.open_partition(files.topics.named("t"), 2)
    assert files.partitions.state("t", 2) is PartitionState.OPEN
    assert files.partitions.offline_in(files.topics.named("t")) == {}
    files.open_partition(files.topics.named("t"), 1)
    assert (files.partitions.opening_count, files.partitions.are_complete) == (0, True)


def test_those_that_are_deleted_or_replaced_during_a_walk_are_passed_over(files):
    topic = files.topics.named("t")
    walk = iter(files.partitions)
    first = next(walk)
    failed = files.partitions.of_topic(topic)[3]
    failed.close(clean=False)
    files.open_partition(topic, 3)
    assert not files.partitions.is_in_use(failed)
    assert [one.index for one in walk] == []
    assert files.partitions.is_in_use(first)
    delete_topic(files, "t")
    assert not files.partitions.is_in_use(first)
    assert list(files.partitions) == []


def test_a_topic_of_the_same_name_has_none_of_the_partitions_of_the_deleted_one(files):
    old = files.topics.named("t")
    delete_topic(files, "t")
    new = create(files, "t")
    assert files.partitions.state_in(old, 0) is PartitionState.UNKNOWN
    assert files.partitions.of_topic(old) == files.partitions.offline_in(old) == {}
    assert files.partitions.get("t", 0) is new


def test_a_failure_is_reported_once_with_its_partition():
    disk = SimDisk()
    disk.make_dir(HERE)
    failures = []
    files = topic_files(disk, HERE, on_failure=lambda partition, why: failures.append((partition, str(why))))
    partition = create(files, "t")
    for why in ("first", "second"):
        partition.availability.mark_failed(DiskError(why, errno.EIO))
    assert [one for one, _ in failures] == [partition]
    assert "first" in failures[0][1]
