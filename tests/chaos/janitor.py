"""Threads that delete records and topics while the broker is killed."""

import contextlib
import time
from itertools import count

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from stablelog.batch.header import headers_in
from stablelog.batch.records import decode_records
from stablelog.client.blocking.cluster import EARLIEST, LATEST, BlockingCluster
from stablelog.errors import RefusedError, UnavailableError
from tests.chaos.writers import PATIENCE_S, QUIET, Worker, is_retriable

ANSWER_S = 10


def administered(ask, done_by=(), renew=lambda: None):
    """Repeat an administrator's request until the broker answers it.

    Args:
        ask: makes the request, and returns its future.
        done_by: error codes that mean that the request was carried out before.
        renew: called after a request without an answer. librdkafka's admin client may go on waiting for a connection
            that it has given up, and tells its next requests so.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask().result(ANSWER_S)
        except TimeoutError:
            renew()
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() in done_by:
                return None
            if error.code() == KafkaError._DESTROY_BROKER:
                renew()
            elif not is_retriable(error):
                raise
        assert time.monotonic() < deadline, "the broker does not answer the administrator"
        time.sleep(0.05)


class Administrator(Worker):
    """A worker with an admin client."""

    def begin(self):
        self.admin = AdminClient(
            {"bootstrap.servers": self.address, "reconnect.backoff.max.ms": 200, **QUIET}
        )

    def pause_s(self):
        return self.chance.random()


class Deleter(Administrator):
    """Deletes the first records of partitions.

    Attributes:
        deleted: by place, the start that was acknowledged.
    """

    def __init__(self, name, scene, places):
        super().__init__(name, scene)
        self.places = places
        self.deleted = dict.fromkeys(places, 0)

    def step(self):
        place = self.chance.choice(self.places)
        try:
            with BlockingCluster(self.address, deadline_s=ANSWER_S) as cluster:
                start = cluster.list_offsets({place: EARLIEST})[place].offset
                end = cluster.list_offsets({place: LATEST}, "read_uncommitted")[place].offset
        except (UnavailableError, RefusedError):
            return
        before = start + int((end - start) * self.chance.uniform(0, 0.7))
        asked = TopicPartition(*place, before)
        told = administered(
            lambda: next(iter(self.admin.delete_records([asked]).values())),
            done_by=(KafkaError.OFFSET_OUT_OF_RANGE,),
            renew=self.begin,
        )
        if told is not None:
            self.deleted[place] = max(self.deleted[place], told.low_watermark)


class TopicChanger(Administrator):
    """Creates a topic, writes to it, reads it and deletes it; the same two names are used again.

    A topic holds every record that was acknowledged, and no record of an earlier topic of its name.
    """

    NAMES = ("temporary-0", "temporary-1")
    PARTITIONS = 2

    def __init__(self, name, scene):
        super().__init__(name, scene)
        self.incarnations = count()
        self.made = 0

    def step(self):
        name = self.chance.choice(self.NAMES)
        config = {"stablelog.order": self.chance.choice(("commit", "offset"))}
        topic = NewTopic(name, self.PARTITIONS, 1, config=config)
        administered(
            lambda: self.admin.create_topics([topic])[name],
            done_by=(KafkaError.TOPIC_ALREADY_EXISTS,),
            renew=self.begin,
        )
        self.made += 1
        written, told = self.write(name)
        with contextlib.suppress(UnavailableError):
            found = self.read(name)
            self.check(name, written, told, found)
        administered(
            lambda: self.admin.delete_topics([name], operation_timeout=ANSWER_S)[name],
            done_by=(KafkaError.UNKNOWN_TOPIC_OR_PART,),
            renew=self.begin,
        )

    def check(self, name, written, told, found):
        lost = {value: place for value, place in told.items() if found.get(place) != value}
        if lost:
            self.findings.append(f"{name}: acknowledged and lost: {lost}; there is {found}")
        values = list(found.values())
        if len(values) != len(set(values)) or not set(values) <= set(written):
            self.findings.append(f"{name}: was written {written}, and holds {found}")

    def write(self, name):
        """Values of this incarnation, and where the acknowledged ones are."""
        producer = Producer(
            {"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 0, **QUIET}
        )
        incarnation, told = next(self.incarnations), {}

        def delivered(error, message):
            if error is None:
                told[message.value()] = (message.partition(), message.offset())

        written = [f"{name}.{incarnation}.{number}".encode() for number in range(self.chance.randint(1, 20))]
        for value in written:
            producer.produce(
                name, value, partition=self.chance.randrange(self.PARTITIONS), on_delivery=delivered
            )
        producer.flush(PATIENCE_S)
        return written, told

    def read(self, name):
        """By (partition, offset), what is there."""
        found = {}
        with BlockingCluster(self.address, deadline_s=PATIENCE_S) as cluster:
            for partition in range(self.PARTITIONS):
                found |= {
                    (partition, offset): value for offset, _, value in everything(cluster, (name, partition))
                }
        return found


def everything(cluster, place, isolation="read_uncommitted"):
    """(offset, key, value) of every record of a place, from its start, whatever became of its transaction."""
    offset = cluster.list_offsets({place: EARLIEST})[place].offset
    end = cluster.list_offsets({place: LATEST}, isolation)[place].offset
    found, deadline = [], time.monotonic() + PATIENCE_S
    while offset < end:
        fetched = cluster.fetch(*place, offset, isolation=isolation, wait_ms=100)
        before = offset
        for at, header in headers_in(fetched.records):
            offset = header.next_offset
            if not header.is_control:
                found += [(one.offset, one.key, one.value) for one in decode_records(fetched.records, at)]
        # A broker that has just started may answer a fetch without a record.
        assert offset > before or time.monotonic() < deadline, (
            f"{place}: nothing is handed out at offset {before} of {end}"
        )
    return found
