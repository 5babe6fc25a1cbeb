"""Retention under clients of a commit-ordered topic: from any position they get every later commit and the end, or an error.

Each history has a topic of its own, whose transactions of three librdkafka producers overlap. One of them commits long after its
first records, when retention by size or DeleteRecords has removed older commits.
"""

import contextlib
import os
import random
from contextlib import closing

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

import stablelog
from stablelog.errors import DataLossError
from tests.clients.drivers import TIMEOUT_S, unique
from tests.scale import seeds
from tests.spark.reading import settled
from tests.waiting import until

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.extended]
COUNT = int(os.environ.get("STABLELOG_RETENTION_TOPICS", "2"))
POSITIONS = 6
SMALL = {
    "stablelog.order": "commit",
    "segment.bytes": "1024",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
SETTINGS = {"log.retention.check.interval.ms": 20, "log.segment.delete.delay.ms": 0}


class Clients:
    """The clients of one broker.

    Attributes:
        admin: changes topics.
        writers: producers with transactions.
    """

    def __init__(self, broker):
        self.broker = broker
        self.settings = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.settings)
        self.writers = []
        for name in "abc":
            producer = Producer(
                self.settings | {"transactional.id": unique(f"retained-{name}"), "linger.ms": 0}
            )
            producer.init_transactions(TIMEOUT_S)
            self.writers.append(producer)

    def create(self, **configs):
        """Create a topic with small segments. Return its name."""
        name = unique("retained")
        self.admin.create_topics([NewTopic(name, 1, 1, config=SMALL | configs)])[name].result(TIMEOUT_S)
        return name

    def bounds(self, topic):
        """Where a committed reader begins and ends.

        A partition has no leader until it is opened. A consumer that has seen it so does not ask again for long.
        """

        def found():
            consumer = Consumer(self.settings | {"group.id": unique("retained")})
            with closing(consumer), contextlib.suppress(KafkaException):
                return consumer.get_watermark_offsets(
                    TopicPartition(topic, 0), timeout=TIMEOUT_S, cached=False
                )

        return until(found, "the partition has no leader")

    def restart(self, *, clean):
        """Start the broker again after a stop or a kill."""
        (self.broker.stop if clean else self.broker.kill)()
        self.broker.start()
        self.admin = AdminClient(
            self.settings
        )  # The old one has the leader epochs of the broker's last start.

    def limit(self, topic, size):
        """Set the size that retention keeps."""
        entry = ConfigEntry("retention.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def retain(self, topic, size):
        """Let one whole pass of retention find this limit: it then finds the limit of another topic, too."""
        self.limit(topic, size)
        last = self.create()
        with closing(Producer(self.settings | {"linger.ms": 0})) as producer:
            for _ in range(3):
                producer.produce(last, bytes(900), partition=0)
                producer.flush(TIMEOUT_S)
        self.limit(last, 0)
        until(lambda: self.bounds(last)[0] > 0, "retention has deleted nothing")
        self.admin.delete_topics([last])[last].result(TIMEOUT_S)

    def read(self, topic, start):
        """What librdkafka reads from a position up to the end: (position, value) of each record, and the event at which it
        ends, with the position of the event.
        """
        ends = []
        consumer = Consumer(
            self.settings
            | {
                "group.id": unique("retained"),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        with closing(consumer):
            consumer.assign([TopicPartition(topic, 0, start)])
            found = []

            def is_over():
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append((message.offset(), message.value()))
                elif message is not None:
                    ends.append((message.offset(), message.error().code()))
                return ends

            until(is_over, lambda: f"no end from {start} on after {len(found)} records", pause_s=0)
        return found, ends[0]


@pytest.fixture(scope="module")
def clients(module_path):
    with stablelog.serve(module_path / "data", settings=SETTINGS) as broker:
        yield Clients(broker)


def write(clients, topic, chance):
    """Write overlapping transactions; one of the last has the first records of all. Return their values in commit order
    when readers see all of them.
    """
    commits, open_values = [], {}
    late, *others = clients.writers

    def add(writer):
        if writer not in open_values:
            writer.begin_transaction()
        values = open_values.setdefault(writer, [])
        for _ in range(chance.choice((1, 1, 3))):
            values.append(b"%d" % chance.getrandbits(60))
            writer.produce(topic, values[-1] + bytes(chance.choice((0, 100, 400))), partition=0)
        assert writer.flush(TIMEOUT_S) == 0

    def end(writer, *, commit):
        values = open_values.pop(writer)
        if commit:
            writer.commit_transaction(TIMEOUT_S)
            commits.append(values)
        else:
            writer.abort_transaction(TIMEOUT_S)

    add(late)
    for _ in range(30):
        writer = chance.choice((*others, *others, *others, late))
        if writer in open_values and writer is not late and chance.random() < 0.7:
            end(writer, commit=chance.random() < 0.8)
        else:
            add(writer)
    writers = [*others, late]
    chance.shuffle(writers)
    for writer in writers:
        if writer in open_values:
            end(writer, commit=chance.random() < 0.8)
    add(writer)
    end(writer, commit=True)
    settled(clients.broker.bootstrap, topic)
    return commits


@pytest.mark.parametrize("seed", seeds(COUNT))
def test_from_any_position_clients_get_every_later_commit_and_reach_the_end(clients, seed):
    chance = random.Random(seed)
    topic = clients.create()
    commits = write(clients, topic, chance)
    _, end = clients.bounds(topic)
    values = [value for one in commits for value in one]
    if chance.random() < 0.3:
        at = TopicPartition(topic, 0, chance.randint(0, end))
        clients.admin.delete_records([at])[at].result(TIMEOUT_S)
    clients.retain(topic, chance.choice((0, 1_500, 4_000)))
    if chance.random() < 0.3:
        clients.restart(clean=chance.random() < 0.5)
    start, same = clients.bounds(topic)
    assert same == end

    read, event = clients.read(topic, start)
    rows = [(offset, value.rstrip(b"\0")) for offset, value in read]
    assert event == (end, KafkaError._PARTITION_EOF)
    left = [value for _, value in rows]
    assert left == values[len(values) - len(left) :], "the commits that are left are the last ones, and whole"
    assert not left or left in [[v for one in commits[at:] for v in one] for at in range(len(commits))]
    for start_at in sorted(chance.sample(range(start, end + 1), min(POSITIONS, end + 1 - start))):
        found, event = clients.read(topic, start_at)
        assert [offset for offset, _ in found] == [offset for offset, _ in rows if offset >= start_at]
        assert event == (end, KafkaError._PARTITION_EOF)
    if start:
        assert clients.read(topic, start - 1)[1][1] == KafkaError._AUTO_OFFSET_RESET

    with stablelog.connect(clients.broker.bootstrap) as native:
        whole = list(native.read(topic, wait=0))
        told = [[record.value.rstrip(b"\0") for record in one.records] for one in whole]
        assert [value for one in told for value in one] == left
        for place, one in enumerate(whole):
            later = list(native.read(topic, after=one.commit_sequence, wait=0))
            assert [other.commit_sequence for other in later] == [
                other.commit_sequence for other in whole[place + 1 :]
            ]
        if whole and len(told) < len(commits) - 1:
            with pytest.raises(DataLossError, match="may have been removed"):
                list(native.read(topic, after=1, wait=0))
