"""Kafka's checkpoints of offsets, and the synced ends that a broker records in one."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from stablelog.broker.topics.topic_checkpoints import TopicCheckpoints
from stablelog.data_directory.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    encode_offset_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stablelog.errors import DamageError
from stablelog.testing.sim_disk import SimDisk

HERE = Path("/data")
PATH = HERE / RECOVERY_POINT_CHECKPOINT
ROWS = {("a", 0): 5, ("a b", 1): 12, ("c.d-e", 10): 0}


@pytest.fixture
def disk():
    made = SimDisk()
    made.make_dir(HERE)
    return made


def test_a_checkpoint_is_kafkas_text(disk):
    write_offset_checkpoint(disk, PATH, ROWS)
    assert disk.read_bytes(PATH) == b"0\n3\na 0 5\na b 1 12\nc.d-e 10 0\n"
    assert read_offset_checkpoint(disk, PATH) == ROWS


@pytest.mark.parametrize("content", [None, b"", b"0\n0\n"])
def test_a_checkpoint_that_kafka_has_not_written_yet_says_nothing(disk, content):
    if content is not None:
        disk.write_atomic(PATH, content)
    assert read_offset_checkpoint(disk, PATH) == {}


@pytest.mark.parametrize("size", range(1, len(encode_offset_checkpoint(ROWS))))
def test_a_checkpoint_that_is_cut_short_is_not_taken_for_a_whole_one(disk, size):
    disk.write_atomic(PATH, encode_offset_checkpoint(ROWS)[:size])
    with pytest.raises(DamageError, match=str(PATH)):
        read_offset_checkpoint(disk, PATH)


class Points:
    """The recovery points of a directory, whose open partitions are synced up to `ends`."""

    def __init__(self, disk, *partitions, is_recorded=True):
        self.ends = {}
        self.checkpoints = TopicCheckpoints(disk, HERE, disk, self._open_partitions)
        self.checkpoints.load_recovery_points(partitions, is_recorded=is_recorded)

    def _open_partitions(self):
        return [
            SimpleNamespace(topic=t, index=i, log=SimpleNamespace(synced_offset=end))
            for (t, i), end in self.ends.items()
        ]

    def of(self, at):
        return self.checkpoints.recovery_point(at)

    def opened(self, at):
        self.checkpoints.remove_recovery_point(at)

    def changed_offsets(self, ends):
        self.ends = ends
        return self.checkpoints.recovery_points.changed_offsets()

    def write(self, points):
        self.checkpoints.recovery_points.write(points)

    def record(self, ends, *, durable):
        self.ends = ends
        if durable:
            self.checkpoints.make_recovery_points_durable()
        else:
            self.checkpoints.recovery_points.write_if_changed()

    def forget(self, topic):
        self.checkpoints.remove_topic(topic, ())


def test_an_end_is_kept_until_its_partition_is_opened_however_often_it_cannot_be(disk):
    write_offset_checkpoint(disk, PATH, {("a", 0): 5, ("a", 1): 7})
    for _ in range(3):
        points = Points(disk, ("a", 0), ("a", 1))
        assert (points.of(("a", 0)), points.of(("a", 1))) == (5, 7)
        points.opened(("a", 1))
        points.record({("a", 1): 7}, durable=True)
    points.record({("a", 1): 9}, durable=False)
    assert read_offset_checkpoint(disk, PATH) == {("a", 0): 5, ("a", 1): 9}


def test_ends_that_were_encoded_meanwhile_are_not_recorded_over_newer_ones(disk):
    points = Points(disk, ("a", 0), ("gone", 0))
    points.opened(("a", 0))
    first = points.changed_offsets({("a", 0): 5})
    points.write(first)
    assert read_offset_checkpoint(disk, PATH) == {("a", 0): 5, ("gone", 0): -1}
    assert points.changed_offsets({("a", 0): 5}) is None
    stale = points.changed_offsets({("a", 0): 7})
    points.ends = {("a", 0): 6}
    points.forget("gone")
    points.write(stale)
    assert read_offset_checkpoint(disk, PATH) == {("a", 0): 6}
    stale = points.changed_offsets({("a", 0): 7})
    points.record({("a", 0): 8}, durable=True)
    points.write(stale)
    assert read_offset_checkpoint(disk, PATH) == {("a", 0): 8}


def test_a_partition_without_a_row_was_made_after_the_file_and_had_nothing_synced(disk):
    write_offset_checkpoint(disk, PATH, {("a", 0): 5})
    assert Points(disk, ("a", 0), ("new", 0)).of(("new", 0)) == 0


def test_of_a_partition_that_another_program_has_written_no_row_says_nothing(disk):
    write_offset_checkpoint(disk, PATH, {("a", 0): 5})
    points = Points(disk, ("a", 0), ("b", 0), is_recorded=False)
    assert (points.of(("a", 0)), points.of(("b", 0))) == (5, None)


@pytest.mark.parametrize("content", [None, b"", b"0\n1\na 0", b"\0\0\0\0\0\0"])
def test_where_the_file_is_lost_no_end_is_known_and_that_is_remembered(disk, content):
    if content is not None:
        disk.write_atomic(PATH, content)
    for _ in range(2):
        points = Points(disk, ("a", 0), ("b", 0))
        assert (points.of(("a", 0)), points.of(("b", 0))) == (None, None)
        points.record({}, durable=True)
    points.opened(("b", 0))
    points.record({("b", 0): 4}, durable=True)
    points = Points(disk, ("a", 0), ("b", 0))
    assert (points.of(("a", 0)), points.of(("b", 0))) == (None, 4)


def test_a_deleted_topic_leaves_no_end_to_the_next_of_its_name(disk):
    write_offset_checkpoint(disk, PATH, {("a", 0): 5, ("b", 0): 6})
    points = Points(disk, ("a", 0), ("b", 0))
    points.forget("a")
    points.record({}, durable=True)
    assert read_offset_checkpoint(disk, PATH) == {("b", 0): 6}


def test_ends_that_have_not_changed_are_not_written_again(disk):
    points = Points(disk)
    points.record({("a", 0): 1}, durable=False)
    steps = disk.steps
    points.record({("a", 0): 1}, durable=False)
    assert disk.steps == steps
    points.record({("a", 0): 2}, durable=False)
    assert disk.steps == steps + 1
