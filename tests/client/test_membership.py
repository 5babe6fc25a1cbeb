"""Members of a consumer group: they share the partitions, give them up in order, and read each record once."""

import time

import pytest
from confluent_kafka import Producer

import stablelog
from stablelog.client.blocking.cluster import EARLIEST, BlockingCluster
from stablelog.client.core.membership import GroupMember
from stablelog.client.core.record_reader import RecordReader
from stablelog.client.internals import reading_of
from stablelog.errors import RefusedError
from tests.client.transactions import flush
from tests.clients.drivers import unique
from tests.waiting import until

SESSION_S = 1.5
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": int(1000 * SESSION_S),
}
PARTITIONS = 4


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve(settings=SETTINGS) as running:
        yield running


class Reading:
    """A member that reads, and commits what it has read when it has to give a partition up."""

    def __init__(self, broker, group, topic, values):
        self.cluster = BlockingCluster(broker.bootstrap, deadline_s=20)
        self.member = GroupMember(self.cluster.core, group, [topic])
        self.reader = RecordReader(self.cluster.core, {}, "read_committed")
        self.values = values
        self.lost = []

    def step(self):
        change = self.cluster.run(self.member.follow_assignment())
        held = {target: self.reader.positions[target] for target in change.revoked}
        if held:
            self.cluster.run(
                self.member.commit_offsets({at: offset for at, offset in held.items() if offset >= 0})
            )
        self.lost += change.lost
        for target in (*change.revoked, *change.lost):
            self.reader.remove_partition(target)
        for target, committed in change.assigned.items():
            self.reader.seek(target, EARLIEST if committed is None else committed.offset)
        found = self.cluster.run(self.reader.read_round(0.02))
        for batch in found.batches:
            self.values.extend(range(batch.header.record_count))

    def leave(self):
        positions = {at: offset for at, offset in self.reader.positions.items() if offset >= 0}
        self.cluster.run(self.member.commit_offsets(positions))
        self.cluster.run(self.member.leave_group())
        self.cluster.close()


class Room:
    """A topic, a group, and its members."""

    def __init__(self, broker):
        self.broker, self.topic, self.group = broker, unique("topic"), unique("group")
        self.values = []
        self.members = []
        with stablelog.connect(broker.bootstrap) as client:
            client.admin.topics.create(self.topic, partitions=PARTITIONS)

    def join(self):
        self.members.append(Reading(self.broker, self.group, self.topic, self.values))
        return self.members[-1]

    def step(self):
        for one in self.members:
            one.step()

    def shares(self):
        return sorted(len(one.member.owned) for one in self.members)

    def until_shared(self, *sizes):
        until(lambda: self.step() or self.shares() == sorted(sizes), lambda: f"still {self.shares()}")
        owned = [target for one in self.members for target in one.member.owned]
        assert len(owned) == len(set(owned)), "a partition has two readers"

    def produce(self, count):
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for number in range(count):
            producer.produce(self.topic, b"v", partition=number % PARTITIONS)
        assert producer.flush(30) == 0


@pytest.fixture
def room(broker):
    made = Room(broker)
    yield made
    for one in made.members:
        one.leave()


def test_members_share_the_partitions_and_each_record_is_read_once(room):
    room.join()
    room.until_shared(4)
    room.produce(40)
    until(lambda: room.step() or len(room.values) >= 20, "nothing is read")
    room.join()
    room.until_shared(2, 2)
    room.join()
    room.until_shared(1, 1, 2)
    room.produce(20)
    until(lambda: room.step() or len(room.values) >= 60, lambda: f"read {len(room.values)}")
    room.members.pop(0).leave()
    room.until_shared(2, 2)
    room.step()
    assert len(room.values) == 60


@pytest.mark.extended
def test_a_member_that_was_silent_has_lost_its_partitions_and_joins_again(room):
    silent = room.join()
    room.until_shared(4)
    room.members.remove(silent)
    other = room.join()
    room.until_shared(4)
    room.members.insert(0, silent)
    with pytest.raises(RefusedError) as refused:
        silent.cluster.run(silent.member.commit_offsets({(room.topic, 0): 0}))
    assert refused.value.code_name in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH")
    room.until_shared(2, 2)
    assert len(silent.lost) == 4
    assert other.lost == []


@pytest.mark.extended
def test_members_go_on_after_the_broker_was_killed(tmp_path):
    with stablelog.serve(tmp_path / "data", settings=SETTINGS) as broker:
        room = Room(broker)
        room.join()
        room.join()
        room.until_shared(2, 2)
        room.produce(40)
        until(lambda: room.step() or len(room.values) == 40, lambda: f"read {len(room.values)}")
        for one in room.members:
            one.cluster.run(one.member.commit_offsets(one.reader.positions))
        broker.kill()
        broker.start()
        room.produce(8)
        until(lambda: room.step() or len(room.values) >= 48, lambda: f"read {len(room.values)}")
        room.until_shared(2, 2)
        assert len(room.values) == 48
        assert [one.lost for one in room.members] == [[], []]
        for one in room.members:
            one.leave()


def test_a_broker_without_these_groups_is_named(broker, monkeypatch):
    with BlockingCluster(broker.bootstrap) as cluster:
        connection = cluster.any_connection()
        monkeypatch.setattr(type(connection), "supports_api", lambda *_arguments: False)
        with pytest.raises(RefusedError, match="has no consumer groups of KIP-848") as refused:
            cluster.run(GroupMember(cluster.core, "g", ["t"]).follow_assignment())
    assert refused.value.code_name == "UNSUPPORTED_VERSION"


@pytest.mark.extended
def test_heartbeats_go_on_while_the_offsets_of_a_partition_are_pending(broker):
    """A transaction with such offsets is open for longer than the session timeout."""
    with stablelog.connect(broker.bootstrap) as client:
        source, group = unique("topic"), unique("group")
        client.admin.topics.create(source, partitions=1)
        with client.transaction() as txn:
            txn.write(source, b"v", key=b"k")
        with client.subscribe(source, group=group) as first:
            next(first)
            pending = client.transaction(offsets_of=first)
            flush(pending)
        with client.subscribe(source, group=group, wait=0.1) as second:
            member = reading_of(second).member
            until(lambda: list(second) or member.epoch > 0, "the member does not join")
            epoch, end = member.epoch, time.monotonic() + 2 * SESSION_S
            until(lambda: list(second) or time.monotonic() > end, "the time does not pass")
            assert (member.epoch, member.owned) == (epoch, set())
            pending.abort()
            until(lambda: [record.value for record in second] == [b"v"], "the record is not read")
