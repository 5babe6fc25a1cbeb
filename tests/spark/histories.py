"""Random histories: transactions that overlap, some of them aborted, and records outside of any."""

import random

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from tests.clients.drivers import unique

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OPEN_MS = 900_000  # what a test leaves open is not to end by itself while a slow machine looks at it


class Writers:
    """Producers that write into one topic, in turns: one without transactions, and some with."""

    def __init__(self, bootstrap, topic, partitions, seed):
        self.topic, self.partitions = topic, partitions
        self.random = random.Random(seed)
        self.count = 0
        self.open = set()
        settings = {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0}
        self.plain = Producer({**settings, "compression.type": self.random.choice(CODECS)})
        self.transactional = []
        for _ in range(3):
            codec = {"compression.type": self.random.choice(CODECS)}
            given = {**settings, **codec, "transactional.id": unique("writer")}
            producer = Producer({**given, "transaction.timeout.ms": OPEN_MS})
            producer.init_transactions(30)
            self.transactional.append(producer)

    def write(self, producer):
        for _ in range(self.random.randint(1, 4)):
            value = b"%d" % self.count + b"x" * self.random.choice((0, 5, 200))
            self.count += 1
            producer.produce(self.topic, value, partition=self.random.randrange(self.partitions))
        assert producer.flush(30) == 0

    def step(self):
        producer = self.random.choice([self.plain, *self.transactional])
        if producer is self.plain:
            self.write(producer)
        elif producer not in self.open:
            producer.begin_transaction()
            self.open.add(producer)
            self.write(producer)
        elif self.random.random() < 0.5:
            self.write(producer)
        else:
            self.end(producer)

    def end(self, producer):
        self.open.discard(producer)
        if self.random.random() < 0.5:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)

    def end_all(self):
        for producer in list(self.open):
            self.end(producer)


def truth(bootstrap, topic, partitions, isolation="read_committed"):
    """What confluent-kafka reads: (partition, offset, value) of every record up to the end as it is now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": unique("truth"),
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.assign([TopicPartition(topic, index, -2) for index in range(partitions)])
    found, ended = [], set()
    while len(ended) < partitions:
        message = consumer.poll(30)
        assert message is not None
        if message.error() is None:
            found.append((message.partition(), message.offset(), message.value()))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended.add(message.partition())
    consumer.close()
    return sorted(found)
