"""A load that leaves something of everything in a partition, and what clients see of it afterwards.

It is the same for stablelog and for Apache Kafka, so that the files of one can be held against the other.
"""

from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients.reading import bounds, read_to_end
from tests.waiting import until

TIMEOUT_S = 60
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a client gets it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def settings(bootstrap, **more):
    """Those of a client that says nothing of what goes wrong for a moment."""
    return {"bootstrap.servers": bootstrap, "log_level": 0, "error_cb": lambda _e: None, **more}


def create_topic(bootstrap, name, configs, partitions=1):
    """Make a topic."""
    admin = AdminClient(settings(bootstrap))
    admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(TIMEOUT_S)


def producer(bootstrap, **more):
    """A producer that sends a batch at once; with a transactional id, ready to begin."""
    made = Producer(settings(bootstrap, **{"linger.ms": 0, **more}))
    if "transactional.id" in more:
        made.init_transactions(TIMEOUT_S)
    return made


def send(by, topic, values, *, key=None, headers=None):
    """Produce values, in one batch if the producer is quick enough, and wait until they are acknowledged."""
    for number, value in enumerate(values):
        by.produce(topic, value, partition=0, key=key(number) if key else None, headers=headers)
    assert by.flush(TIMEOUT_S) == 0


def write_everything(bootstrap, topic, *, rounds=1, leave_open=True):
    """All codecs, plain and idempotent, headers, null keys and values, transactions that commit, abort and overlap.

    Args:
        bootstrap: of the broker.
        topic: it is there, and partition 0 is written to.
        rounds: how many times; more of them fill more segments.
        leave_open: whether the last transaction stays open: its producer is returned, to be kept.
    """
    plain = producer(bootstrap)
    for round_number in range(rounds):
        for codec in CODECS:
            word = f"{codec}-{round_number}".encode()
            by = producer(bootstrap, **{"compression.type": codec, "enable.idempotence": codec != "gzip"})
            send(by, topic, [word + b"-%d " % n + b"x" * 40 for n in range(12)], headers=[("codec", word)])
            send(
                by, topic, [None, b""], key=lambda n: b"key-%d" % n, headers=[("empty", b""), ("null", None)]
            )
        one = producer(bootstrap, **{"transactional.id": f"{topic}-one"})
        two = producer(bootstrap, **{"transactional.id": f"{topic}-two", "compression.type": "lz4"})
        for number in range(4):
            one.begin_transaction()
            two.begin_transaction()
            send(one, topic, [b"one-%d-%d" % (round_number, number)] * 3)
            send(two, topic, [b"two-%d-%d" % (round_number, number)] * 2)
            send(one, topic, [b"one-more"])
            (two.commit_transaction if number % 2 else two.abort_transaction)(TIMEOUT_S)
            send(plain, topic, [b"between-%d-%d" % (round_number, number)])
            (one.abort_transaction if number % 4 < 3 else one.commit_transaction)(TIMEOUT_S)
    if not leave_open:
        wait_until_settled(bootstrap, topic)
        return None
    undecided = producer(  # aborts what its predecessor left open
        bootstrap, **{"transactional.id": f"{topic}-undecided", "transaction.timeout.ms": 600_000}
    )
    wait_until_settled(bootstrap, topic)
    undecided.begin_transaction()
    send(undecided, topic, [b"undecided"] * 2)
    group = Consumer(settings(bootstrap, **{"group.id": "undecided"}))
    at = [TopicPartition(topic, 0, 9)]
    undecided.send_offsets_to_transaction(at, group.consumer_group_metadata(), TIMEOUT_S)
    group.close()
    send(plain, topic, [b"behind the undecided"])
    return undecided


WORKED_EXAMPLE = "P1 P1 P2 P1c P2 P2a P1 P2 P1 P1a P2c"  # of the abort index's design; a word for each offset


def write_worked_example(bootstrap, topic):
    """Write it with two transactional producers, a batch for each record."""
    writers = {name: producer(bootstrap, **{"transactional.id": f"{topic}-{name}"}) for name in ("P1", "P2")}
    reader = Reader(bootstrap, committed=False)
    is_open = dict.fromkeys(writers, False)
    for number, word in enumerate(WORKED_EXAMPLE.split()):
        name, end = word[:2], word[2:]
        if end:
            (writers[name].commit_transaction if end == "c" else writers[name].abort_transaction)(TIMEOUT_S)
            is_open[name] = False
        else:
            if not is_open[name]:
                writers[name].begin_transaction()
                is_open[name] = True
            send(writers[name], topic, [b"%s@%d" % (name.encode(), number)])
        reader.wait_for_end(topic, number + 1)
    reader.close()


def commit_offsets(bootstrap, topic):
    """Offsets of the group "readers": 3, then 5 in a transaction that commits, then 7 in one that does not."""
    consumer = Consumer(
        settings(
            bootstrap, **{"group.id": "readers", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
    )
    consumer.subscribe([topic])
    assert consumer.poll(TIMEOUT_S) is not None
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    by = producer(bootstrap, **{"transactional.id": "offsets"})
    for offset, end in ((5, by.commit_transaction), (7, by.abort_transaction)):
        by.begin_transaction()
        at = [TopicPartition(topic, 0, offset)]
        by.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), TIMEOUT_S)
        end(TIMEOUT_S)
    consumer.close()


def committed_offset(bootstrap, group, topic, *, timeout_s=TIMEOUT_S):
    """What a group has committed for partition 0."""
    consumer = Consumer(settings(bootstrap, **{"group.id": group}))
    offset = consumer.committed([TopicPartition(topic, 0)], timeout=timeout_s)[0].offset
    consumer.close()
    return offset


class Reader:
    """Reads a partition from any offset, as often as wanted."""

    def __init__(self, bootstrap, *, committed):
        self._consumer = Consumer(
            settings(
                bootstrap,
                **{
                    "group.id": "reader",
                    "isolation.level": "read_committed" if committed else "read_uncommitted",
                    "enable.partition.eof": True,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "check.crcs": True,
                    "fetch.wait.max.ms": 5,
                },
            )
        )

    def read(self, topic, start):
        """Every record from an offset up to where this reader sees."""
        return [
            Seen(
                message.offset(),
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple((name, value) for name, value in message.headers() or ()),
            )
            for message in read_to_end(self._consumer, topic, start=start)
        ]

    def bounds(self, topic):
        """The first offset, and the one after the last that this reader sees."""
        return bounds(self._consumer, topic)

    def wait_for_end(self, topic, end):
        """Wait until all before this offset is there: Kafka answers the end of a transaction before it writes the marker."""
        until(lambda: self.bounds(topic)[1] >= end, f"{topic} does not reach {end}")
        assert self.bounds(topic)[1] == end

    def topics(self):
        """The names of all topics."""
        return sorted(self._consumer.list_topics(timeout=TIMEOUT_S).topics)

    def close(self):
        """Leave."""
        self._consumer.close()


def wait_until_settled(bootstrap, topic):
    """Wait until nothing is open, and who reads committed records sees all: Kafka answers before it writes the markers."""
    stable, high = Reader(bootstrap, committed=True), Reader(bootstrap, committed=False)
    until(lambda: stable.bounds(topic) == high.bounds(topic), f"a transaction stays open in {topic}")
    stable.close()
    high.close()


def read_from_everywhere(bootstrap, topic, *, step=1):
    """What readers of both isolations get from every offset, or every so many: {(committed, start): records}."""
    seen = {}
    for committed in (True, False):
        reader = Reader(bootstrap, committed=committed)
        first, end = reader.bounds(topic)
        for start in range(first, end + 1, step):
            seen[committed, start] = reader.read(topic, start)
        reader.close()
    return seen
