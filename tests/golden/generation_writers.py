"""Transactional clients in one small language; what they write says in its value what becomes of it.

<fate> <who> <number of the transaction> <number in it>

plain      outside transactions          commit, abort    of a transaction that was ended so
open       of one that is open           prepared         of one that is prepared (KIP-939), and open
child      of an open child of a joint commit that is not decided
busy       of a writer that a kill has met: whether its last transaction was committed, the value does not know
"""

import asyncio
from datetime import timedelta

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, TopicPartition
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v6.request import InitProducerIdRequest

from stablelog.batch.header import Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from tests.clients.drivers import TIMEOUT_S
from tests.java.load import producer, settings

LONG_MS = (
    20 * 86_400_000
)  # of transactions that are to stay open: the clock of a copy begins where the original's ended
NOW_MS = 1_700_000_000_000  # of records whose time is given


def value(fate, who, number, place):
    """What a record says of itself."""
    return f"{fate} {who} {number} {place}".encode()


class Writer:
    """Writes values that say what becomes of them. Subclasses bring a client."""

    def __init__(self, who):
        self.who = who
        self.number = 0
        self._place = 0
        self._fate = ""

    def begin(self, fate):
        self.number += 1
        self._place, self._fate = 0, fate
        self._begin()
        return self

    def write(self, topic, partition=0, count=2, keys=None):
        values = [value(self._fate, self.who, self.number, self._place + n) for n in range(count)]
        self._place += count
        self._write(topic, partition, values, keys or [None] * count)
        return self

    def end(self):
        self._end(commit=self._fate in ("commit", "busy"))
        return self

    def close(self):
        """Leave. Who has a transaction open is not closed, so that it stays open."""


class Confluent(Writer):
    """librdkafka: keeps its epoch, the first dialect."""

    def __init__(self, bootstrap, who, *, patience_s=TIMEOUT_S, **more):
        super().__init__(who)
        self._bootstrap = bootstrap
        self._patience_s = patience_s
        given = {"transactional.id": who, "transaction.timeout.ms": LONG_MS, **more}
        self._by = producer(bootstrap, **given)

    def _begin(self):
        self._by.begin_transaction()

    def _write(self, topic, partition, values, keys):
        for key, content in zip(keys, values, strict=True):
            self._by.produce(topic, content, key, partition=partition, headers=[("who", self.who.encode())])
        assert self._by.flush(self._patience_s) == 0

    def offsets(self, group, offsets):
        """Commit offsets of a consumer group with the transaction: {(topic, partition): offset}."""
        consumer = Consumer(settings(self._bootstrap, **{"group.id": group}))
        at = [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
        self._by.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), TIMEOUT_S)
        consumer.close()
        return self

    def _end(self, *, commit):
        (self._by.commit_transaction if commit else self._by.abort_transaction)(self._patience_s)


class Aio(Writer):
    """aiokafka: keeps its epoch, too."""

    def __init__(self, bootstrap, who):
        super().__init__(who)
        self._loop = asyncio.new_event_loop()
        self._by = self._run(self._start(bootstrap))

    def _run(self, coroutine):
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 2 * TIMEOUT_S))

    async def _start(self, bootstrap):
        made = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=self.who,
            transaction_timeout_ms=LONG_MS,
            compression_type="zstd",
        )
        await made.start()
        return made

    def _begin(self):
        self._run(self._by.begin_transaction())

    def _write(self, topic, partition, values, keys):
        async def work():
            futures = [
                await self._by.send(topic, content, key, partition=partition)
                for key, content in zip(keys, values, strict=True)
            ]
            await asyncio.gather(*futures)

        self._run(work())

    def _end(self, *, commit):
        self._run(self._by.commit_transaction() if commit else self._by.abort_transaction())

    def close(self):
        self._run(self._by.stop())
        self._loop.close()


class Ours(Writer):
    """The repository's producer of batches: another epoch for each transaction, the second dialect.

    Args:
        bootstrap: of the broker.
        who: the transactional id.
        two_phase: whether what it leaves open is prepared (KIP-939). It speaks the first dialect then.
    """

    def __init__(self, bootstrap, who, *, two_phase=False, codec=Codec.NONE, patience_s=TIMEOUT_S):
        super().__init__(who)
        self._codec = codec
        self._two_phase = two_phase
        self.cluster = BlockingCluster(bootstrap, timeout_s=patience_s, deadline_s=patience_s)
        self.by = BlockingProducer(self.cluster, who, transaction_timeout_ms=LONG_MS, deadline_s=patience_s)

    def _begin(self):
        if self._two_phase:
            answer = init_two_phase(self.cluster, self.who)
            self.by.resume(answer.producer_id, answer.producer_epoch)
        elif self.by.producer_id < 0:
            self.by.begin()

    def _write(self, topic, partition, values, keys):
        records = [
            Record(0, NOW_MS + self.number, key, content) for key, content in zip(keys, values, strict=True)
        ]
        self.by.append(topic, partition, bytearray(encode_batch(records, codec=self._codec)))
        self.by.flush()

    def _end(self, *, commit):
        self.by.end(commit=commit)

    def close(self):
        self.by.close()
        self.cluster.close()


def init_two_phase(cluster, who, *, keep=False):
    """A producer whose transaction may be prepared; with `keep`, the successor that completes it."""

    def ask():
        coordinator = cluster.coordinator(who)
        request = InitProducerIdRequest(
            transactional_id=who,
            transaction_timeout=timedelta(milliseconds=LONG_MS),
            enable2_pc=True,
            keep_prepared_txn=keep,
        )
        answer = coordinator.request(request)
        assert answer.error_code is ErrorCode.none, answer
        return answer

    return cluster.retrying(f"beginning {who}", ask)
