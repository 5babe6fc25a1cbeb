"""The consumer group protocol (KIP-848), `group.protocol=consumer`, with librdkafka."""

import json
import signal
import subprocess
import sys

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

import stablelog
from tests.clients.drivers import unique
from tests.waiting import until

TIMEOUT_S = 30
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 3_000,
    "group.initial.rebalance.delay.ms": 0,
}
PARTITIONS = [0, 1, 2, 3]

# A member in a process of its own. It says so when it has partitions.
MEMBER = """
import json, sys
from confluent_kafka import Consumer
settings, topic = json.loads(sys.argv[1]), sys.argv[2]
member = Consumer(settings)
member.subscribe([topic])
while True:
    member.poll(0.05)
    if member.assignment():
        print("has partitions", flush=True)
"""


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve(settings=SETTINGS) as running:
        yield running


@pytest.fixture
def room(broker):
    with_room = Room(broker)
    yield with_room
    for member in list(with_room.members):
        with_room.leave(member)


class Room:
    """A topic and a group, with the members that a test adds."""

    def __init__(self, broker):
        self.broker = broker
        self.topic, self.group = unique("topic"), unique("group")
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        self.admin.create_topics([NewTopic(self.topic, len(PARTITIONS), 1)])[self.topic].result(TIMEOUT_S)
        self.members = []
        self.revoked = []
        self.read = []

    def settings(self, **more):
        quiet = {"bootstrap.servers": self.broker.bootstrap, "log_level": 0, "error_cb": lambda _error: None}
        member = {"group.id": self.group, "group.protocol": "consumer", "auto.offset.reset": "earliest"}
        return quiet | member | more

    def commit_start(self):
        """Commit offset 0 of each partition for the group, which has no members yet.

        Its members then send no ListOffsets. A member of librdkafka whose partitions change while it waits for the
        response to ListOffsets sends the request again 500 ms later. If the broker is down at that time, the member
        reads from the start, whatever it has committed (docs/reference/protocol.md).
        """
        start = [TopicPartition(self.topic, index, 0) for index in PARTITIONS]
        of_group = ConsumerGroupTopicPartitions(self.group, start)
        self.admin.alter_consumer_group_offsets([of_group])[self.group].result(TIMEOUT_S)

    def join(self, *, subscription=None, **settings):
        member = Consumer(self.settings(**settings))
        member.subscribe(
            [subscription or self.topic],
            on_revoke=lambda _member, at: self.revoked.append(at),
            on_lost=lambda _member, at: self.revoked.append(at),
        )
        self.members.append(member)
        return member

    def leave(self, member):
        self.members.remove(member)
        member.close()

    def poll(self):
        for member in self.members:
            message = member.poll(0.02)
            if message is not None and message.error() is None:
                self.read.append(message.value())

    def shares(self):
        self.poll()
        return [sorted(at.partition for at in member.assignment()) for member in self.members]

    def until_shared(self, *sizes, partitions=PARTITIONS):
        def is_shared():
            shares = self.shares()
            is_complete = sorted(index for share in shares for index in share) == partitions
            return is_complete and sorted(map(len, shares)) == sorted(sizes)

        until(is_shared, lambda: f"still {self.shares()}")

    def produce(self, values):
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "log_level": 0})
        for number, value in enumerate(values):
            producer.produce(self.topic, value, partition=number % len(PARTITIONS))
        assert producer.flush(TIMEOUT_S) == 0

    def described(self):
        return self.admin.describe_consumer_groups([self.group])[self.group].result(TIMEOUT_S)


@pytest.mark.extended
def test_three_members_share_and_one_leaves(room):
    for _ in range(2):
        room.join()
    room.until_shared(2, 2)
    room.join()
    room.until_shared(1, 1, 2)
    described = room.described()
    assert (described.state.name, described.type.name, len(described.members)) == ("STABLE", "CONSUMER", 3)
    (listed,) = [
        one for one in room.admin.list_consumer_groups().result().valid if one.group_id == room.group
    ]
    assert (listed.type.name, listed.state.name) == ("CONSUMER", "STABLE")
    values = [b"%d" % number for number in range(40)]
    room.produce(values)
    until(lambda: room.poll() or len(room.read) == 40, lambda: f"read {len(room.read)}")
    assert sorted(room.read) == sorted(values), "each record is read once"
    room.leave(room.members[0])
    room.until_shared(2, 2)


@pytest.mark.extended
def test_a_killed_member_expires(room):
    room.join()
    room.until_shared(4)
    settings = {name: value for name, value in room.settings().items() if name != "error_cb"}
    command = [sys.executable, "-c", MEMBER, json.dumps(settings), room.topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        until(lambda: len(room.shares()[0]) == 2, lambda: f"still {room.shares()}")
        assert other.stdout.readline().startswith(b"has partitions")
        other.send_signal(signal.SIGKILL)
    room.until_shared(4)


@pytest.mark.extended
def test_new_partitions_are_shared_too(room):
    room.join()
    room.join()
    room.until_shared(2, 2)
    room.admin.create_partitions([NewPartitions(room.topic, 7)])[room.topic].result(TIMEOUT_S)
    room.until_shared(3, 4, partitions=[*range(7)])


@pytest.mark.extended
def test_a_pattern_selects_topics(room):
    room.join(subscription=f"^{room.topic}.*")
    room.until_shared(4)
    more = f"{room.topic}-more"
    room.admin.create_topics([NewTopic(more, 1, 1)])[more].result(TIMEOUT_S)
    until(
        lambda: room.poll() or (more, 0) in [(at.topic, at.partition) for at in room.members[0].assignment()],
        "the new topic is not assigned",
    )


@pytest.mark.extended
def test_a_pattern_selects_internal_topics_too(room):
    """As in Apache Kafka."""
    room.join(subscription=f"^(__consumer_offsets|{room.topic})")
    until(
        lambda: (
            room.poll()
            or {at.topic for at in room.members[0].assignment()} == {"__consumer_offsets", room.topic}
        ),
        lambda: f"assigned are {room.members[0].assignment()}",
    )


def test_a_static_member_keeps_its_partitions(room):
    static = {"group.instance.id": "one"}
    room.join(**static)
    room.join()
    room.until_shared(2, 2)
    other_share = room.shares()[1]
    room.leave(room.members[0])
    room.revoked.clear()
    room.join(**static)
    room.until_shared(2, 2)
    assert (room.shares()[0], room.revoked) == (other_share, [])


@pytest.mark.extended
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_members_go_on_after_a_restart_of_the_broker(how, tmp_path):
    # Clients that find no broker wait longer and longer before they connect again. No session may end meanwhile.
    settings = SETTINGS | {"group.consumer.session.timeout.ms": 30_000}
    with stablelog.serve(tmp_path / "data", settings=settings) as broker:
        room = Room(broker)
        room.commit_start()
        room.join()
        room.join()
        room.until_shared(2, 2)
        before = room.shares()
        values = [b"%d" % number for number in range(20)]
        room.produce(values)
        until(lambda: room.poll() or len(room.read) == 20, lambda: f"read {len(room.read)}")
        for member in room.members:
            member.commit(asynchronous=False)
        room.revoked.clear()
        getattr(broker, how)()
        broker.start()
        room.produce([b"after"] * 4)
        until(lambda: room.poll() or room.read.count(b"after") == 4, "the members do not read on")
        assert len(room.read) == 24
        assert (room.shares(), room.revoked) == (before, [])
        for member in room.members:
            member.commit(asynchronous=False)
        room.leave(room.members[0])
        room.until_shared(4)
        room.leave(room.members[0])


@pytest.mark.extended
def test_the_two_protocols_do_not_share_a_group(room):
    classic = {"group.protocol": "classic"}
    room.join()
    room.until_shared(4)
    room.produce([b"1"])
    until(lambda: room.poll() or room.read, "nothing is read")
    room.members[0].commit(asynchronous=False)
    other = Consumer(room.settings(**classic))
    other.subscribe([room.topic])

    def refused():
        room.poll()
        message = other.poll(0.05)
        return message is not None and message.error()

    assert until(refused, "the classic member is not refused").name() == "INCONSISTENT_GROUP_PROTOCOL"
    other.close()
    room.leave(room.members[0])
    room.join(**classic)
    room.until_shared(4)
    assert room.described().type.name == "CLASSIC"
    (at,) = room.members[0].committed([TopicPartition(room.topic, 0)], timeout=TIMEOUT_S)
    assert at.offset == 1, "the offsets stay"


@pytest.mark.extended
def test_records_are_copied_exactly_once_though_members_change(room):
    """Two members copy in transactions. One is replaced in the middle."""
    target = unique("copy")
    room.admin.create_topics([NewTopic(target, 1, 1)])[target].result(TIMEOUT_S)
    copier = Copier(room, target)
    copier.add()
    copier.add()
    room.until_shared(2, 2)
    values = [b"%d" % number for number in range(60)]
    room.produce(values)  # after the wait, which reads records and does not copy them
    for _ in range(8):
        copier.step()
    copier.remove(0)
    copier.add()
    until(lambda: copier.step() or copier.lag() == 0, lambda: f"lag {copier.lag()}")
    copied = copier.copied(len(values))
    assert sorted(copied) == sorted(values)


class Copier:
    """Members that copy a room's topic to another one, each record in a transaction."""

    def __init__(self, room, target):
        self.room = room
        self.target = target
        self.producers = []

    def add(self):
        self.room.join(**{"enable.auto.commit": False, "isolation.level": "read_committed"})
        settings = {"bootstrap.servers": self.room.broker.bootstrap, "log_level": 0}
        producer = Producer(settings | {"transactional.id": unique("copier")})
        producer.init_transactions(TIMEOUT_S)
        self.producers.append(producer)

    def remove(self, index):
        self.producers.pop(index)
        self.room.leave(self.room.members[index])

    def step(self):
        """Let each member copy one record. More would have to be committed when their partition is revoked in between."""
        for member, producer in zip(self.room.members, self.producers, strict=True):
            message = member.poll(0.05)
            if message is None or message.error() is not None:
                continue
            at = TopicPartition(message.topic(), message.partition(), message.offset() + 1)
            producer.begin_transaction()
            try:
                producer.produce(self.target, message.value())
                producer.send_offsets_to_transaction([at], member.consumer_group_metadata(), TIMEOUT_S)
                producer.commit_transaction(TIMEOUT_S)
            except KafkaException:
                producer.abort_transaction(TIMEOUT_S)
                member.seek(TopicPartition(message.topic(), message.partition(), message.offset()))

    def lag(self):
        wanted = [TopicPartition(self.room.topic, index) for index in PARTITIONS]
        committed = self.room.members[0].committed(wanted, timeout=TIMEOUT_S)
        return 60 - sum(max(at.offset, 0) for at in committed)

    def copied(self, count):
        reader = Consumer(
            {
                "bootstrap.servers": self.room.broker.bootstrap,
                "group.id": unique("reader"),
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        reader.assign([TopicPartition(self.target, 0, 0)])
        found = []

        def is_at_end():
            message = reader.poll(1)
            if message is not None and message.error() is None:
                found.append(message.value())
            return message is not None and message.error() is not None and len(found) >= count

        def missing():
            at = TopicPartition(self.target, 0)
            return (
                f"{len(found)} of {count} records are copied, the reader is at {reader.position([at])[0].offset} "
                f"of {reader.get_watermark_offsets(at, TIMEOUT_S)}, last: {found[-3:]}"
            )

        until(is_at_end, missing)
        reader.close()
        return found
