"""A broker without a socket: requests go in as bytes and answers come out as bytes, on a simulated disk.

What reaches the disk is in the test's hand: `held_disk` keeps every sync back, so that a test can look at what lies between
a decision and its durability.
"""

import asyncio
import contextlib
import dataclasses
import importlib
import io
import math
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from stablelog.batch.header import headers_in
from stablelog.batch.records import Record, decode_records, encode_batch
from stablelog.broker.broker import Broker
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.network.long_messages import RequestDecoder
from stablelog.broker.network.session import Session
from stablelog.broker.requests.router import Router
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.errors import DamageError, DiskError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_clock import SimClock
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.message_classes import EXTENSION_MODULES
from stablelog.wire.messages import PREFIX, message_class
from stablelog.wire.versions import entity_in
from tests.declared_apis import APIS

DATA = Path("/data")
COMMIT, ABORT = True, False
# A reserve would be most of a simulated disk, and a scrub would prove what a test wants to find unproven.
SIMULATED = {"stablelog.disk.reserve.bytes": "0", "stablelog.scrub.bytes.per.second": "0"}
NO_RESERVE = DiskReserve(SimDisk(), DATA, 0)
# A simulated disk takes no time, however long the machine stands still in a sync: each is made in place, and what
# happens in so many turns of the loop does so every time.
IN_PLACE = partial(GroupFlush, in_place_s=math.inf)
ROUND_TRIP_TURNS = 3  # of the loop, until a client's next request: markers become durable meanwhile


def frame(api_key, version, /, correlation_id=1, **fields):
    """A request without its length. Nested messages are given as dicts, whole ones."""
    message = message_class(api_key, version, "request")
    body = io.BytesIO()
    entity_writer(message)(body, message(**fields))
    header = (
        PREFIX.pack(api_key, version, correlation_id) + b"\0\2me" + (b"\0" if message.__flexible__ else b"")
    )
    return header + body.getvalue()


def read_answer(api_key, version, data):
    """The answer that these bytes are, and its correlation id."""
    message = message_class(api_key, version, "response")
    at = 5 if message.__flexible__ and api_key != 18 else 4
    answer, size = entity_reader(message)(data, at)
    assert at + size == len(data)
    return answer, int.from_bytes(data[:4], "big")


def part(api_key, version, kind, name, /, **fields):
    """A nested message of a version."""
    module = importlib.import_module(message_class(api_key, version, kind).__module__)
    return getattr(module, name)(**fields)


def filled(message, values):
    """A message with these values, nested ones as dicts; those that its version does not have are left out."""
    fields = {}
    for field in dataclasses.fields(message):
        if field.name in values:
            value, nested = values[field.name], entity_in(field.type)
            if nested is not None and value is not None:
                value = tuple(filled(nested, item) for item in value)
            fields[field.name] = value
    return message(**fields)


def batch(*values, producer=(-1, -1), sequence=-1, transactional=None):
    """A record batch as a client sends it."""
    if transactional is None:
        transactional = producer[0] >= 0
    return encode_batch(
        [Record(0, 0, None, value) for value in values],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=sequence,
        transactional=transactional,
    )


def produce_fields(version, topic, partition, records, *, transactional_id=None, acks=-1):
    data = part(0, version, "request", "PartitionProduceData", index=partition, records=records)
    topic_data = part(0, version, "request", "TopicProduceData", name=topic, partition_data=(data,))
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timedelta(seconds=30),
        "topic_data": (topic_data,),
    }


def init_fields(version, transactional_id, **more):
    return {"transactional_id": transactional_id, "transaction_timeout": timedelta(minutes=1), **more}


def add_partitions_fields(version, transactional_id, producer, targets):
    assert version <= 3
    topics = tuple(
        part(24, version, "request", "AddPartitionsToTxnTopic", name=name, partitions=(index,))
        for name, index in targets
    )
    return {
        "v3_and_below_transactional_id": transactional_id,
        "v3_and_below_producer_id": producer[0],
        "v3_and_below_producer_epoch": producer[1],
        "v3_and_below_topics": topics,
    }


def end_fields(transactional_id, producer, committed):
    return {
        "transactional_id": transactional_id,
        "producer_id": producer[0],
        "producer_epoch": producer[1],
        "committed": committed,
    }


def delete_topic(topic_files, name):
    """Delete a topic at once."""
    topic = topic_files.unlist(name)
    for partition in topic_files.partitions.remove_topic(topic).values():
        partition.close(clean=False)
    topic_files.set_aside(topic)
    topic_files.forget_files(topic)
    topic_files.topics.end_reservation(topic)


LOADING = ErrorCode.coordinator_load_in_progress


class Gate:
    """Keeps one partition from being opened, as a long recovery does, until `open` is called."""

    def __init__(self, topic, index=0):
        self.held = topic, index
        self._opened = threading.Event()

    def guard(self, topic_files):
        """Hold back the recovery of a broker that has not started."""
        recover = topic_files.recover_partition

        def recover_partition(topic, index, progress=None):
            partition = recover(topic, index, progress)
            if (topic.name, index) == self.held:
                assert self._opened.wait(60)
            return partition

        topic_files.recover_partition = recover_partition

    def open(self):
        """Let the recovery go on."""
        self._opened.set()


class Desk:
    """A running broker, and the few requests of a transaction in words."""

    def __init__(self, broker):
        self.broker = broker
        self.router = Router(broker)
        self.muted_ms = []  # for how long the client was muted, each time
        self.stranger = SimpleNamespace(
            host="nowhere",
            appending=asyncio.Lock(),
            decoding=RequestDecoder(),
            session=Session(host="nowhere"),
            mute=self.muted_ms.append,
        )

    def create(self, name, configs=MappingProxyType({})):
        """Create a topic with one partition. Returns the partition."""
        self.broker.topic_files.create(name, 1, configs)
        return self.broker.partitions.require(name, 0)

    async def ask(self, api_key, version, /, **fields):
        """Ask as a client that has used the API before: the request is begun at once.

        A request that later ones of its connection wait for comes on a connection of its own.
        """
        self.router.prepare_api(APIS[api_key], version)
        connection = self.stranger
        if APIS[api_key].is_alone or EXTENSION_MODULES.get(api_key) == "joint":
            connection = SimpleNamespace(**vars(connection) | {"appending": asyncio.Lock()})
        buffers = await self.router.respond(connection, frame(api_key, version, **fields))
        for _ in range(ROUND_TRIP_TURNS):
            await asyncio.sleep(0)
        return None if buffers is None else read_answer(api_key, version, b"".join(buffers))[0]

    async def ask_with(self, api_key, version, values):
        """Ask with values by name, nested messages as dicts; what the version does not have is left out."""
        message = filled(message_class(api_key, version, "request"), values)
        named = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
        return await self.ask(api_key, version, **named)

    async def init(self, transactional_id, *, version=4, **more):
        answer = await self.ask(22, version, **init_fields(version, transactional_id, **more))
        assert answer.error_code is ErrorCode.none, answer.error_code
        return answer.producer_id, answer.producer_epoch

    async def add(self, transactional_id, producer, *targets, version=3):
        answer = await self.ask(
            24, version, **add_partitions_fields(version, transactional_id, producer, targets)
        )
        return [
            p.partition_error_code
            for t in answer.results_by_topic_v3_and_below
            for p in t.results_by_partition
        ]

    async def produce(self, records, *, topic="t", partition=0, transactional_id=None, version=9):
        answer = await self.ask(
            0,
            version,
            **produce_fields(version, topic, partition, records, transactional_id=transactional_id),
        )
        return answer.responses[0].partition_responses[0]

    async def fetch(self, topic, partition, offset, *, isolation=1, max_wait_ms=10_000, size_max=1 << 20):
        """The answer for one partition, at version 11: at least a byte, or after `max_wait_ms`."""
        asked = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": size_max}
        answer = await self.ask_with(
            1,
            11,
            {
                "max_wait": timedelta(milliseconds=max_wait_ms),
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "session_epoch": -1,
                "rack_id": "",
                "forgotten_topics_data": (),
                "isolation_level": isolation,
                "topics": [{"topic": topic, "partitions": [asked]}],
            },
        )
        return answer.responses[0].partitions[0]

    async def offset_at(self, topic, partition, timestamp, *, isolation=1):
        """ListOffsets of one partition, at version 5."""
        asked = {"partition_index": partition, "timestamp": timestamp}
        answer = await self.ask_with(
            2,
            5,
            {
                "replica_id": -1,
                "isolation_level": isolation,
                "topics": [{"name": topic, "partitions": [asked]}],
            },
        )
        return answer.topics[0].partitions[0]

    async def end(self, transactional_id, producer, committed, *, version=3):
        return await self.ask(26, version, **end_fields(transactional_id, producer, committed))

    async def commit(self, transactional_id, producer):
        """Commit, and ask again while the last commits of partitions are being read after a start."""
        while (answer := await self.end(transactional_id, producer, True)).error_code is LOADING:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return answer

    async def opened(self, topic, index=0):
        """Wait until a partition is open."""
        while self.broker.partitions.state(topic, index) is not PartitionState.OPEN:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def durable(self):
        """Wait until all that has been appended is durable, markers too: readers see it then."""
        flush = self.broker.flush
        waits = [
            flush.durable_future(partition, partition.end_offset)
            for partition in self.broker.partitions
            if partition.failure is None
        ]
        await asyncio.gather(*(wait for wait in waits if wait is not None))

    def values(self, topic="t", partition=0, *, isolation=Isolation.READ_COMMITTED):
        """What a reader of this isolation gets, as it would filter it."""
        log = self.broker.partitions.require(topic, partition)
        log.log.prove_segments()
        read = log.read(log.start_offset, 1 << 30, isolation)
        data, found, at = b"".join(read.buffers), [], 0
        for at, header in headers_in(data):
            aborted = any(
                txn.producer_id == header.producer_id
                and txn.first_offset <= header.base_offset <= txn.last_offset
                for txn in read.aborted or ()
            )
            if not header.is_control and not (aborted and header.is_transactional):
                found += [record.value for record in decode_records(data, at)]
        return found

    @contextlib.contextmanager
    def held_log(self, partition):
        """While the block runs, nothing of this partition becomes durable."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partition, "sync_work", lambda: None)
            yield
        self.broker.flush.mark_dirty(partition)

    @contextlib.contextmanager
    def held_disk(self):
        """While the block runs, nothing becomes durable."""
        flush = self.broker.flush
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "flush"]
        task.cancel()
        try:
            yield
        finally:
            self.broker.tasks.start("flush", flush.run)


@contextlib.asynccontextmanager
async def opened(disk=None, *, topics=("t",), partitions=2, gate=None, now_ms=None, prove=True, **settings):
    """A broker with these topics. All partitions are open or offline, but for the one that a gate holds back.

    Args:
        disk: where its data lies; a fresh one if none is given.
        topics: are made if they are not there.
        partitions: of each of them.
        gate: holds a partition back.
        now_ms: what time it is; that of a `SimClock` if it is not given.
        prove: whether the logs are proven, so that a test may read them directly.
        settings: the broker's, with `_` for each `.`.
    """
    given = SIMULATED | {name.replace("_", "."): str(value) for name, value in settings.items()}
    failures = []
    clock = SimClock() if now_ms is None else SimClock(now_ms)
    broker = Broker(
        BrokerConfig(given),
        DATA,
        disk=disk or SimDisk(),
        clock=clock,
        on_failure=failures.append,
        make_flush=IN_PLACE,
    )
    if gate is not None:
        gate.guard(broker.topic_files)
    await broker.start()
    recovery = next(task for task in asyncio.all_tasks() if task.get_name() == "recovery")
    if gate is None:
        await recovery
    else:
        await _all_but(gate.held, broker)
    for partition in broker.partitions if prove else ():
        with contextlib.suppress(DamageError, DiskError):
            partition.log.prove_segments()
    for name in topics:
        if broker.topics.get(name) is None:
            broker.topic_files.create(name, partitions, {})
    try:
        yield Desk(broker)
    finally:
        if gate is not None:
            gate.open()
            await recovery
        await broker.stop()
    assert not failures


async def _all_but(held, broker):
    """Wait until no other partition is opening."""
    rest = [(topic.name, index) for topic in broker.topics for index in range(topic.partition_count)]
    while any(broker.partitions.state(*at) is PartitionState.OPENING for at in rest if at != held):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
