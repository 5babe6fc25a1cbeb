"""A directory that is seen as it was: on a mount that keeps names and sizes for a while, nothing aborted is delivered."""

import os
import shutil

import pytest
from confluent_kafka import Producer

from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.spark import count
from stablelog.spark.option_table import BATCH
from stablelog.spark.options import read_options
from stablelog.spark.planning import TaskLimits, plan_tasks
from stablelog.spark.segments import partition_files
from stablelog.spark.source.ranges import Range
from stablelog.spark.source.reader import open_log
from tests.clients.drivers import TIMEOUT_S, unique
from tests.spark.reading import make, rows, tasks
from tests.waiting import until

SMALL = {"segment.bytes": "1500"}


class Topic:
    """A topic of one partition, and producers that write into it, each batch synced."""

    def __init__(self, broker, **configs):
        self.broker, self.name = broker, unique("behind")
        make(broker.bootstrap, self.name, 1, **configs)
        self.directory = broker.data / f"{self.name}-0"
        self.plain = Producer({"bootstrap.servers": broker.bootstrap})

    def begun(self):
        """A producer with an open transaction that has written nothing yet."""
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "transactional.id": unique("txn")})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        return producer

    def write(self, producer, *values):
        for value in values:
            producer.produce(self.name, value, partition=0)
            assert producer.flush(TIMEOUT_S) == 0

    def abort(self, producer):
        producer.abort_transaction(TIMEOUT_S)
        place = (self.name, 0)
        with BlockingCluster(self.broker.bootstrap) as cluster:
            end = cluster.list_offsets({place: LATEST}, "read_uncommitted")[place].offset
            until(lambda: self.stable_offset(cluster) > 0, "the marker is not seen")
        return end

    def stable_offset(self, cluster):
        return cluster.list_offsets({(self.name, 0): LATEST})[self.name, 0].offset

    def given(self, **more):
        return {"bootstrap": self.broker.bootstrap, "subscribe": self.name, **more}


def values(given, **more):
    return [value for (value,) in rows(given, "value", **more)]


@pytest.fixture
def topic(stablelog_broker):
    return Topic(stablelog_broker, **SMALL)


@pytest.mark.parametrize("scan", ["auto", "files"])
def test_an_abort_behind_the_end_of_what_is_seen_is_not_overlooked(topic, tmp_path, scan):
    """Everything that is read is in the files as they are seen, but not the marker that decided it."""
    aborting, undecided = topic.begun(), topic.begun()
    topic.write(aborting, b"aborted")
    topic.write(topic.plain, b"kept")
    topic.write(undecided, b"undecided")
    seen = shutil.copytree(topic.directory, tmp_path / "seen" / topic.directory.name)
    topic.abort(aborting)
    given = topic.given(mount=str(seen.parent), scan=scan)
    planned = tasks(given)
    assert values(given, planned=planned) == [b"kept"]
    assert [piece.extents for pieces in planned for piece in pieces] == [()], "it is fetched"
    assert count(given) == 1
    shutil.copytree(topic.directory, seen, dirs_exist_ok=True)
    planned = tasks(given)
    assert all(piece.extents for pieces in planned for piece in pieces)
    assert values(given, planned=planned) == [b"kept"]
    assert count(given) == 1
    undecided.abort_transaction(TIMEOUT_S)


class Mount:
    """The module `os`, by which segment files are looked at, as on a network mount: `stat` tells for ever what it told first.

    Args:
        close_to_open: whether what is opened is seen as it is. If not, sizes and names stay as they were, too.
    """

    def __init__(self, *, close_to_open):
        self._kept_calls = ("stat",) if close_to_open else ("stat", "fstat", "listdir")
        self._told = {}

    def __getattr__(self, name):
        call = getattr(os, name)
        if name not in self._kept_calls:
            return call

        def kept(of):
            path = os.readlink(f"/proc/self/fd/{of}") if isinstance(of, int) else str(of)
            if (name, path) not in self._told:
                self._told[name, path] = call(of)
            return self._told[name, path]

        return kept


def planned_twice(given, end, between):
    """The tasks of the offsets [0, end), planned by one reader before and after something happens."""
    log = open_log(read_options(given, BATCH))
    ranges = [Range((given["subscribe"], 0), 0, end)]
    try:
        list(log.spans(ranges, {}))  # the directory is looked at
        between()
        return plan_tasks(log.spans(ranges, {}), TaskLimits())
    finally:
        log.close()


def test_an_abort_in_a_new_segment_is_seen_whatever_the_mount_says_of_the_directory(topic, monkeypatch):
    monkeypatch.setattr(
        partition_files, "TICK_NS", -(10**12)
    )  # the directory's time counts, however young it is
    monkeypatch.setattr(partition_files, "os", Mount(close_to_open=True))
    aborting = topic.begun()
    topic.write(aborting, b"aborted")
    topic.write(topic.plain, b"kept")

    def abort_in_a_new_segment():
        topic.write(topic.plain, *[b"later" * 50] * 10)
        assert len(list(topic.directory.glob("*.log"))) > 1
        topic.abort(aborting)

    given = topic.given(scan="files")
    planned = planned_twice(given, 2, abort_in_a_new_segment)
    assert all(piece.extents for pieces in planned for piece in pieces)
    assert values(given, planned=planned) == [b"kept"]


def test_where_names_and_sizes_stay_as_they_were_the_broker_is_asked(topic, monkeypatch):
    aborting = topic.begun()
    topic.write(aborting, b"aborted")
    topic.write(topic.plain, b"kept")

    def abort():
        topic.write(topic.plain, *[b"later" * 50] * 10)
        topic.abort(aborting)

    monkeypatch.setattr(partition_files, "os", Mount(close_to_open=False))
    planned = planned_twice(topic.given(scan="files"), 2, abort)
    assert values(topic.given(), planned=planned) == [b"kept"]
    assert [piece.extents for pieces in planned for piece in pieces] == [()]
