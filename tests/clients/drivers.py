"""One small language over four clients, so that a scenario is told once and every client has to live through it.

produce, transactions   write to partition 0
read, committed         from an offset to the end; what a group has committed
consume                 as a member of a group: so many values, which are committed; the broker may hold fetches back
end, at_time            for a committed reader: behind the last position; the first one at or after a time
"""

import asyncio
import contextlib
import itertools

from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from tests.clients.reading import read_to_end
from tests.java.client import Java

TIMEOUT_S = 60
LONG_S = 60  # how long a broker may hold a fetch of `consume` back
SESSION_S = (
    2 * LONG_S
)  # how long a member may be silent: one that leaves says so, and a machine may stand still
EVERY_ACL = AclBindingFilter(
    ResourceType.ANY,
    None,
    ResourcePatternType.ANY,
    None,
    None,
    AclOperation.ANY,
    AclPermissionType.ANY,
)
_names = itertools.count()

# The transactions of each driver: `run(topic, values, commit=..., offsets=...)` is one, begun and ended. `topic` may be
# several, written one after the other. What fails is aborted, as an application does it, and raised.


def unique(word):
    """A name that no other test has."""
    return f"{word}-{next(_names)}"


def topics_of(topic):
    return (topic,) if isinstance(topic, str) else topic


@contextlib.contextmanager
def aborted_if_failed(abort):
    try:
        yield
    except Exception:
        with contextlib.suppress(Exception):  # who was fenced has nothing to abort
            abort()
        raise


class Confluent:
    name = "confluent-kafka"

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap

    def settings(self, **more):
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "error_cb": lambda _e: None, **more}

    def produce(self, topic, values, *, idempotent=True, compression="none"):
        from confluent_kafka import Producer

        producer = Producer(
            self.settings(**{"enable.idempotence": idempotent, "compression.type": compression})
        )
        for value in values:
            producer.produce(topic, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    @contextlib.contextmanager
    def transactions(self, transactional_id):
        from confluent_kafka import Producer

        producer = Producer(self.settings(**{"transactional.id": transactional_id}))
        producer.init_transactions(TIMEOUT_S)

        def work(topic, values, commit, offsets):
            for name in topics_of(topic):
                for value in values:
                    producer.produce(name, value, partition=0)
                producer.flush(TIMEOUT_S)
            if offsets is not None:
                from confluent_kafka import Consumer, TopicPartition

                group, source, position = offsets
                consumer = Consumer(self.settings(**{"group.id": group}))
                at = [TopicPartition(source, 0, position)]
                producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), TIMEOUT_S)
                consumer.close()
            (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)

        def run(topic, values, *, commit, offsets=None):
            producer.begin_transaction()
            with aborted_if_failed(lambda: producer.abort_transaction(TIMEOUT_S)):
                work(topic, values, commit, offsets)

        yield run

    def read(self, topic, *, start=0, committed=True):
        from confluent_kafka import Consumer

        consumer = Consumer(
            self.settings(
                **{
                    "group.id": unique("reader"),
                    "isolation.level": "read_committed" if committed else "read_uncommitted",
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 50,
                }
            )
        )
        found = [(message.offset(), message.value()) for message in read_to_end(consumer, topic, start=start)]
        consumer.close()
        return found

    def committed(self, group, topic):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self.settings(**{"group.id": group}))
        offset = consumer.committed([TopicPartition(topic, 0)], timeout=TIMEOUT_S)[0].offset
        consumer.close()
        return offset if offset >= 0 else None

    def consume(self, group, topic, count):
        from confluent_kafka import Consumer

        settings = {
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "session.timeout.ms": SESSION_S * 1000,
            "fetch.wait.max.ms": LONG_S * 1000,
            "socket.timeout.ms": 2 * LONG_S * 1000,
        }
        consumer = Consumer(self.settings(**settings))
        consumer.subscribe([topic])
        found = []
        while len(found) < count:
            message = consumer.poll(LONG_S)
            assert message is not None
            assert message.error() is None
            found.append(message.value())
            consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
        consumer.close()
        return found

    def end(self, topic):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self.settings(**{"group.id": unique("end")}))
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT_S)[1]
        consumer.close()
        return end

    def at_time(self, topic, time_ms):
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(self.settings(**{"group.id": unique("time")}))
        at = [TopicPartition(topic, 0, time_ms)]
        offset = consumer.offsets_for_times(at, timeout=TIMEOUT_S)[0].offset
        consumer.close()
        return offset if offset >= 0 else None


class KafkaPython:
    name = "kafka-python"

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap

    def produce(self, topic, values, *, idempotent=True, compression="none"):
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=idempotent,
            compression_type=None if compression == "none" else compression,
        )
        futures = [producer.send(topic, value, partition=0) for value in values]
        for future in futures:
            future.get(TIMEOUT_S)
        producer.close()

    @contextlib.contextmanager
    def transactions(self, transactional_id):
        from kafka import KafkaProducer, TopicPartition
        from kafka.structs import OffsetAndMetadata

        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, transactional_id=transactional_id, acks="all"
        )
        producer.init_transactions()

        def work(topic, values, commit, offsets):
            for name in topics_of(topic):
                futures = [producer.send(name, value, partition=0) for value in values]
                producer.flush()
                for future in futures:
                    future.get(TIMEOUT_S)
            if offsets is not None:
                group, source, position = offsets
                at = {TopicPartition(source, 0): OffsetAndMetadata(position, "", -1)}
                producer.send_offsets_to_transaction(at, group)
            (producer.commit_transaction if commit else producer.abort_transaction)()

        def run(topic, values, *, commit, offsets=None):
            producer.begin_transaction()
            with aborted_if_failed(producer.abort_transaction):
                work(topic, values, commit, offsets)

        yield run
        producer.close()

    def read(self, topic, *, start=0, committed=True):
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            isolation_level="read_committed" if committed else "read_uncommitted",
            group_id=None,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=50,
        )
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        end = consumer.end_offsets([at])[at]
        consumer.seek(at, start)
        found = []
        while consumer.position(at) < end:
            for messages in consumer.poll(500).values():
                found += [(message.offset, message.value) for message in messages]
        consumer.close()
        return found

    def committed(self, group, topic):
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, group_id=group)
        offset = consumer.committed(TopicPartition(topic, 0))
        consumer.close()
        return offset

    def _reader(self, *topics, **settings):
        from kafka import KafkaConsumer

        given = {"isolation_level": "read_committed", "group_id": None, **settings}
        return KafkaConsumer(*topics, bootstrap_servers=self.bootstrap, **given)

    def consume(self, group, topic, count):
        consumer = self._reader(
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_S * 1000,
            fetch_max_wait_ms=LONG_S * 1000,
            request_timeout_ms=2 * LONG_S * 1000,
            connections_max_idle_ms=4 * LONG_S * 1000,
        )
        found = []
        while len(found) < count:
            for messages in consumer.poll(LONG_S * 1000, max_records=count - len(found)).values():
                found += [message.value for message in messages]
        consumer.commit()
        consumer.close()
        return found

    def end(self, topic):
        from kafka import TopicPartition

        consumer = self._reader()
        end = consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        consumer.close()
        return end

    def at_time(self, topic, time_ms):
        from kafka import TopicPartition

        consumer = self._reader()
        found = consumer.offsets_for_times({TopicPartition(topic, 0): time_ms})[TopicPartition(topic, 0)]
        consumer.close()
        return found.offset if found else None


class Aiokafka:
    name = "aiokafka"

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self._loop = asyncio.new_event_loop()

    def _run(self, coroutine):
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 2 * TIMEOUT_S))

    def produce(self, topic, values, *, idempotent=True, compression="none"):
        from aiokafka import AIOKafkaProducer

        async def work():
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                acks="all",
                enable_idempotence=idempotent,
                compression_type=None if compression == "none" else compression,
            )
            await producer.start()
            futures = [await producer.send(topic, value, partition=0) for value in values]
            await asyncio.gather(*futures)
            await producer.stop()

        self._run(work())

    @contextlib.contextmanager
    def transactions(self, transactional_id):
        from aiokafka import AIOKafkaProducer
        from aiokafka.structs import OffsetAndMetadata, TopicPartition

        async def start():
            made = AIOKafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=transactional_id)
            await made.start()
            return made

        producer = self._run(start())

        async def work(topic, values, commit, offsets):
            for name in topics_of(topic):
                futures = [await producer.send(name, value, partition=0) for value in values]
                await asyncio.gather(*futures)
            if offsets is not None:
                group, source, position = offsets
                at = {TopicPartition(source, 0): OffsetAndMetadata(position, "")}
                await producer.send_offsets_to_transaction(at, group)
            await (producer.commit_transaction() if commit else producer.abort_transaction())

        def run(topic, values, *, commit, offsets=None):
            self._run(producer.begin_transaction())
            with aborted_if_failed(lambda: self._run(producer.abort_transaction())):
                self._run(work(topic, values, commit, offsets))

        yield run
        self._run(producer.stop())

    def read(self, topic, *, start=0, committed=True):
        from aiokafka import AIOKafkaConsumer
        from aiokafka.structs import TopicPartition

        async def work():
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap,
                isolation_level="read_committed" if committed else "read_uncommitted",
                auto_offset_reset="earliest",
                fetch_max_wait_ms=50,
            )
            await consumer.start()
            at = TopicPartition(topic, 0)
            consumer.assign([at])
            end = (await consumer.end_offsets([at]))[at]
            consumer.seek(at, start)
            found = []
            while await consumer.position(at) < end:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    found += [(message.offset, message.value) for message in messages]
            await consumer.stop()
            return found

        return self._run(work())

    def committed(self, group, topic):
        from aiokafka import AIOKafkaConsumer
        from aiokafka.structs import TopicPartition

        async def work():
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, group_id=group, enable_auto_commit=False
            )
            await consumer.start()
            offset = await consumer.committed(TopicPartition(topic, 0))
            await consumer.stop()
            return offset

        return self._run(work())

    def _reading(self, work, *topics, **settings):
        """Start a consumer, have `work(consumer)` done with it, and stop it."""
        from aiokafka import AIOKafkaConsumer

        async def all_of_it():
            consumer = AIOKafkaConsumer(
                *topics, bootstrap_servers=self.bootstrap, isolation_level="read_committed", **settings
            )
            await consumer.start()
            try:
                return await work(consumer)
            finally:
                await consumer.stop()

        return self._run(all_of_it())

    def consume(self, group, topic, count):
        async def work(consumer):
            found = []
            while len(found) < count:
                found.append((await consumer.getone()).value)
            await consumer.commit()
            return found

        return self._reading(
            work,
            topic,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_S * 1000,
            fetch_max_wait_ms=LONG_S * 1000,
            request_timeout_ms=2 * LONG_S * 1000,
        )

    def end(self, topic):
        from aiokafka.structs import TopicPartition

        async def work(consumer):
            return (await consumer.end_offsets([TopicPartition(topic, 0)]))[TopicPartition(topic, 0)]

        return self._reading(work)

    def at_time(self, topic, time_ms):
        from aiokafka.structs import TopicPartition

        async def work(consumer):
            found = await consumer.offsets_for_times({TopicPartition(topic, 0): time_ms})
            return found[TopicPartition(topic, 0)]

        found = self._reading(work)
        return found.offset if found else None


DRIVERS = (Confluent, KafkaPython, Aiokafka, Java)
