"""Which single callback holds the broker's event loop for longest, under loads that were made to hold it?

While a callback runs, nobody else is served. None may take more than 20 ms of the loop thread's processor time, whatever one
client or one step of housekeeping does. The time by the clock is told beside it: it also has what the thread waits for, as
pages of a cold file, other threads of the broker, and other processes.

The first request of an API in a version makes the broker import what reads and answers it, up to 25 ms once in the life of the
process. That is not measured: each load is put on a broker that has answered such requests.

    python -m bench --only loop
"""

import os
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from crc32c import crc32c
from kio.schema.add_partitions_to_txn.v3.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from kio.schema.create_topics.v5.request import CreatableTopic, CreateTopicsRequest
from kio.schema.delete_records.v2.request import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from kio.schema.end_txn.v3.request import EndTxnRequest
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v11.request import FetchPartition, FetchRequest, FetchTopic
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v8.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.produce.v8.request import PartitionProduceData, ProduceRequest, TopicProduceData

from bench import loop_watch
from bench.commit_fetch import drop_pages
from bench.contestants import OURS
from bench.loads import PATIENCE_S, QUIET, Topic, fetch_request, fill, receive
from bench.loop_watch import LoopWatch
from bench.report import Section, Wanted
from stablelog.batch.header import CRC_START, Codec
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import LATEST, MAX_TIMESTAMP, BlockingCluster
from stablelog.client.blocking.connection import SocketConnection
from stablelog.client.blocking.joint import ChildId, abort, begin, commit
from stablelog.wire.extension.children import child_id

HOLD_MS_MAX = 20.0
BY_THE_CLOCK = "by the clock"
INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN = 22, 24
FETCH_SIZE = 50 << 20
SEGMENT_SIZE = 1 << 30
RECORD_SIZE = 100_000
BOMB_SIZE = 1 << 30  # bytes of records that a gzip bomb becomes
IN_FLIGHT = 50
MANY_S = 280  # at the most, for what is done to 10,000 partitions

Held = Callable[[str, Callable[[], object]], None]


def run(run_count: int, divisor: int, tell: Callable[[str], object]) -> list[Section]:
    """All figures.

    Args:
        run_count: runs that are counted.
        divisor: of every count and size.
        tell: told what is being done.
    """
    section = Section("The longest hold of the event loop by one callback", beside=BY_THE_CLOCK)
    for number in range(run_count):
        for load in (records, producers, ids, children, segments, partitions, topics):
            tell(f"{load.__name__}, run {number + 1} of {run_count}")
            with tempfile.TemporaryDirectory(prefix="loop-") as directory:
                load(Path(directory) / "data", divisor, section)
    return [section]


def noted(watch: LoopWatch, section: Section) -> Held:
    """A function that runs a load and notes the longest hold meanwhile."""

    def held(what: str, work: Callable[[], object]) -> None:
        holds = watch.during(work)
        processor_ms = max((hold.processor_ms for hold in holds), default=0.0)
        wall_ms = max((hold.wall_ms for hold in holds), default=0.0)
        longest = max(holds, key=lambda hold: hold.processor_ms, default=None)
        callback = f", in {longest.callback}" if longest and longest.processor_ms > HOLD_MS_MAX else ""
        row = section.row(f"{what}, ms", wanted=Wanted(HOLD_MS_MAX, at_most=True, of_figure=True))
        row.add(OURS, processor_ms)
        row.add(BY_THE_CLOCK, wall_ms)
        if callback:
            print(f"{what}: {processor_ms:.0f} ms{callback}", file=sys.stderr)

    return held


# -- what one batch holds ------------------------------------------------------------------------------------------


def records(data: Path, divisor: int, section: Section) -> None:
    """One batch into a compacted topic: of many records, and of few bytes that become many."""
    many = encode_batch([Record(0, 1, b"k", None)] * (1_000_000 // divisor), codec=Codec.ZSTD)
    few = encode_batch([Record(0, 1, b"k", bytes(BOMB_SIZE // divisor // 100))] * 100, codec=Codec.GZIP)
    with loop_watch.serve(data, message_max_bytes=100 << 20) as watch, cluster_of(watch) as cluster:
        create(watch, "compacted", 1, {"cleanup.policy": "compact"})
        held = noted(watch, section)
        connection = cluster.any_connection()
        produce(connection, "compacted", encode_batch([Record(0, 1, b"k", None)]))
        held("batch of 1M records into a compacted topic", lambda: produce(connection, "compacted", many))
        held("gzip bomb into a compacted topic", lambda: produce(connection, "compacted", few))


# -- a log of many producers and batches ---------------------------------------------------------------------------


def producers(data: Path, divisor: int, section: Section) -> None:
    """A partition with many producers, each of which has written one batch."""
    count = 1_000_000 // divisor
    with loop_watch.serve(data, log_retention_ms=-1) as watch:
        create(watch, "many", 1, {})
        watch.broker.kill()
        log = data / "many-0" / f"{0:020d}.log"
        with log.open("wb") as file:
            for batch in batches_of_producers(count):
                file.write(batch)
        watch.broker.start()
        with cluster_of(watch) as cluster:
            assert offset_of(cluster, LATEST) == count
            held = noted(watch, section)
            connection = cluster.any_connection()
            configure(watch, "many", {"segment.bytes": "1024"})
            one = encode_batch([Record(0, now_ms(), b"k", b"v")])
            held("snapshot with 1M producers", lambda: snapshot(connection, log, one))
            held("ListOffsets by time", lambda: offset_of(cluster, now_ms()))
            held("ListOffsets of the greatest timestamp", lambda: offset_of(cluster, MAX_TIMESTAMP))
            delete_records(connection, "many", count // 2)
            held(
                "ListOffsets of the greatest timestamp after DeleteRecords",
                lambda: offset_of(cluster, MAX_TIMESTAMP),
            )


def batches_of_producers(count: int) -> Iterator[bytes]:
    """Batches as they stand in a log, each of a producer of its own, from offset 0 on."""
    template = bytearray(
        encode_batch(
            [Record(0, 0, b"k", b"v")], producer_id=0, producer_epoch=0, base_sequence=0, leader_epoch=0
        )
    )
    begun_ms = now_ms()
    for number in range(count):
        struct.pack_into(">q", template, 0, number)
        # Times that fall: the greatest is not that of the last batch.
        struct.pack_into(">qqq", template, 27, begun_ms - number, begun_ms - number, number)
        struct.pack_into(">I", template, CRC_START - 4, crc32c(memoryview(template)[CRC_START:]))
        yield bytes(template)


def snapshot(connection: SocketConnection, log: Path, batch: bytes) -> None:
    """Have the next segment begin, before which the producers are written, and wait for the file."""
    produce(connection, "many", batch)
    wait_until(lambda: any(log.parent.glob("*.producers")))
    produce(connection, "many", batch)


# -- coordinators --------------------------------------------------------------------------------------------------


def ids(data: Path, divisor: int, section: Section) -> None:
    """A commit log of many transactional ids that is trimmed to what they are now."""
    often = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 1_000}
    with loop_watch.serve(data, **often) as watch, cluster_of(watch) as cluster:
        connection = cluster.coordinator("id-0")
        first = data / "__transaction_state-0" / f"{0:020d}.log"

        def work() -> None:
            for _ in range(3):
                init_producer_ids(connection, 100_000 // divisor)
            if divisor == 1:  # a smaller log is not trimmed
                wait_until(lambda: not first.exists())

        noted(watch, section)("checkpoint of a commit log with 100,000 ids", work)


def init_producer_ids(connection: SocketConnection, count: int) -> None:
    """InitProducerId for so many transactional ids."""
    ids = (f"id-{number}" for number in range(count))
    many_requests(connection, INIT_PRODUCER_ID, 4, map(init_producer_id, ids))


def many_requests(
    connection: SocketConnection, api_key: int, version: int, bodies: Iterable[bytes]
) -> list[memoryview]:
    """Send requests of a flexible version, many on their way at a time; the answers."""
    answers, under_way = [], 0
    for body in bodies:
        if under_way == IN_FLIGHT:
            answers.append(connection.receive(flexible=True))
            under_way -= 1
        connection.send(api_key, version, [body], flexible=True)
        under_way += 1
    return answers + [connection.receive(flexible=True) for _ in range(under_way)]


def compact(text: str) -> bytes:
    """A compact string."""
    return bytes((len(text) + 1,)) + text.encode()


def init_producer_id(transactional_id: str) -> bytes:
    """An InitProducerId of version 4."""
    return compact(transactional_id) + struct.pack(">iqhb", 600_000, -1, -1, 0)


# -- joint commits -------------------------------------------------------------------------------------------------


def children(data: Path, divisor: int, section: Section) -> None:
    """Joint commits of 10,000 children that are open in ten partitions: committed, taken over by another run, aborted."""
    count = 10_000 // divisor
    with loop_watch.serve(data) as watch, cluster_of(watch) as cluster:
        create(watch, "t", 10, {})
        held = noted(watch, section)
        commit(cluster, "query", 0, open_children(cluster, 0, "a", 1))
        first = open_children(cluster, 1, "a", count)
        held("joint commit of 10,000 children", lambda: commit(cluster, "query", 1, first))
        open_children(cluster, 2, "a", count)
        held("another run takes over 10,000 children", lambda: begin(cluster, "query", 2, "b"))
        second = open_children(cluster, 2, "b", count)
        held("abort of 10,000 children", lambda: abort(cluster, "query", 2, second))


def open_children(cluster: BlockingCluster, version: int, run: str, count: int) -> list[ChildId]:
    """Begin a version of a joint commit, and as many children, each of which has a partition."""
    begin(cluster, "query", version, run)
    ids = [child_id("query", version, run, number, 0) for number in range(count)]
    connection = cluster.any_connection()
    answers = many_requests(connection, INIT_PRODUCER_ID, 4, map(init_producer_id, ids))
    # Behind the throttle time and the error code.
    shown = [(i, *struct.unpack_from(">qh", answer, 6)) for i, answer in zip(ids, answers, strict=True)]
    many_requests(connection, ADD_PARTITIONS_TO_TXN, 3, map(add_partition, shown))
    return shown


def add_partition(shown: ChildId) -> bytes:
    """An AddPartitionsToTxn of version 3 for one of ten partitions."""
    transactional_id, producer_id, producer_epoch = shown
    identity = struct.pack(">qh", producer_id, producer_epoch)
    partition = struct.pack(">bib", 2, producer_id % 10, 0)
    return compact(transactional_id) + identity + b"\2" + compact("t") + partition + b"\0"


# -- a log of many bytes -------------------------------------------------------------------------------------------


def segments(data: Path, divisor: int, section: Section) -> None:
    """Large fetches from segments that are not in the page cache, and the deletion of all segments."""
    topic = Topic("large", RECORD_SIZE, 10_500_000_000 // divisor // RECORD_SIZE)
    settings = {
        "log_segment_bytes": SEGMENT_SIZE // divisor,
        "log_retention_check_interval_ms": 1_000,
        "log_segment_delete_delay_ms": 1_000,
        "stablelog_flush": "os",
    }
    with loop_watch.serve(data, **settings) as watch:
        create(watch, topic.name, 1, {})
        producer = Producer({"bootstrap.servers": watch.broker.bootstrap, "batch.size": 1_000_000, **QUIET})
        fill(producer, topic)
        os.sync()
        held = noted(watch, section)
        fetch(watch, topic)
        for log in (data / "large-0").glob("*.log"):
            drop_pages(log)
        held("fetch of 50 MiB from a segment outside the page cache", lambda: fetch(watch, topic))
        watch.broker.stop()
        for log in (data / "large-0").glob("*.log"):
            drop_pages(log)
        watch.broker.start()
        configure(watch, topic.name, {"retention.bytes": "-1"})
        held("first fetch of a cold segment after a start", lambda: fetch(watch, topic))
        held("deletion of 10 GB of segments", lambda: delete_all(watch, topic))


def fetch(watch: LoopWatch, topic: Topic) -> None:
    """Fetch 50 MiB from the log's beginning; while the segment is being proven, the answer is empty."""
    answer = memoryview(bytearray(FETCH_SIZE * 2))
    size = 0
    with socket.create_connection((watch.broker.host, watch.broker.port), timeout=PATIENCE_S) as connection:
        while size < RECORD_SIZE:
            connection.sendall(fetch_request(topic.name.encode(), 0, FETCH_SIZE))
            receive(connection, answer[:4])
            size = int.from_bytes(answer[:4], "big")
            receive(connection, answer[:size])


def delete_all(watch: LoopWatch, topic: Topic) -> None:
    """Let retention delete all sealed segments, and wait until the files are gone."""
    configure(watch, topic.name, {"retention.bytes": "1"})
    directory = watch.broker.data / f"{topic.name}-0"
    # A deleted segment is renamed to .log.deleted, and its file goes after log.segment.delete.delay.ms.
    wait_until(lambda: len(list(directory.glob("*.log*"))) == 1)


# -- many partitions -----------------------------------------------------------------------------------------------


def partitions(data: Path, divisor: int, section: Section) -> None:
    """A transaction in many partitions, for whose end a consumer of all of them waits."""
    count = 10_000 // divisor
    with loop_watch.serve(data, stablelog_max_partitions=count + 200) as watch:
        create(watch, "wide", count, {})
        address = {"bootstrap.servers": watch.broker.bootstrap, **QUIET}
        consumer = Consumer({**address, "group.id": "bench", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition("wide", number, 0) for number in range(count)])
        assert consumer.poll(1.0) is None
        producer = Producer({**address, "transactional.id": "wide", "transaction.timeout.ms": 900_000})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        held = noted(watch, section)

        def write() -> None:
            for number in range(count):
                producer.produce("wide", b"value", partition=number)
            producer.flush(MANY_S)

        held("a transaction writes to 10,000 partitions", write)

        def commit() -> None:
            producer.commit_transaction(MANY_S)
            got = 0
            while got < count:
                got += len(consumer.consume(count - got, MANY_S))

        held("commit that releases 10,000 partitions", commit)
        consumer.close()
        admin = AdminClient(address)
        held("Metadata of 10,000 partitions", lambda: admin.list_topics("wide", timeout=PATIENCE_S))

        def delete() -> None:
            admin.delete_topics(["wide"])["wide"].result()

        held("deletion of a topic of 10,000 partitions", delete)


# -- many topics ---------------------------------------------------------------------------------------------------


def topics(data: Path, divisor: int, section: Section) -> None:
    """Requests that name thousands of topics of one partition, and changes of one topic beside them."""
    names = [f"topic-with-a-usual-name-{number:05d}" for number in range(3_500 // divisor)]
    with loop_watch.serve(data) as watch, cluster_of(watch) as cluster:
        connection = cluster.any_connection()
        admin = AdminClient({"bootstrap.servers": watch.broker.bootstrap, **QUIET})

        def change(name: str) -> None:
            create(watch, name, 1, {})
            configure(watch, name, {"retention.ms": "100000000"})
            admin.delete_topics([name])[name].result()

        def write(some: list[str]) -> None:
            for is_committed in (True, False):
                transaction(connection, some, is_committed=is_committed)

        work = {
            "a transaction in 3,500 topics": write,
            "Fetch of 3,500 topics": lambda some: fetch_of(connection, some),
            "OffsetCommit and OffsetFetch of 3,500 topics": lambda some: commit_offsets(connection, some),
        }
        change("first")
        for begin in range(0, len(names), 500):
            create_all(connection, names[begin : begin + 500])
        for do in work.values():
            do(names[:1])
        held = noted(watch, section)
        held("a topic is created, changed and deleted beside 3,500", lambda: change("another"))
        for what, do in work.items():
            held(what, partial(do, names))


def create_all(connection: SocketConnection, names: list[str]) -> None:
    """Create topics of one partition."""
    asked = tuple(
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
        for name in names
    )
    answer = connection.request_unchanged(
        CreateTopicsRequest(topics=asked, timeout=timedelta(seconds=MANY_S), validate_only=False)
    )
    assert all(topic.error_code is ErrorCode.none for topic in answer.topics)


def transaction(connection: SocketConnection, names: list[str], *, is_committed: bool) -> None:
    """Add a partition of each topic to a transaction, and end it."""
    producer = connection.request_unchanged(
        InitProducerIdRequest(
            transactional_id="wide",
            transaction_timeout=timedelta(minutes=10),
            producer_id=-1,
            producer_epoch=-1,
        )
    )
    who = producer.producer_id, producer.producer_epoch
    added = connection.request_unchanged(
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="wide",
            v3_and_below_producer_id=who[0],
            v3_and_below_producer_epoch=who[1],
            v3_and_below_topics=tuple(AddPartitionsToTxnTopic(name=name, partitions=(0,)) for name in names),
        )
    )
    codes = {
        one.partition_error_code
        for topic in added.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    }
    assert codes == {ErrorCode.none}
    ended = connection.request_unchanged(
        EndTxnRequest(
            transactional_id="wide", producer_id=who[0], producer_epoch=who[1], committed=is_committed
        )
    )
    assert ended.error_code is ErrorCode.none


def fetch_of(connection: SocketConnection, names: list[str]) -> None:
    """Begin a fetch session of a partition of each topic, and wait for records that do not come."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=100_000)
    answer = connection.request_unchanged(
        FetchRequest(
            replica_id=-1,
            max_wait=timedelta(milliseconds=100),
            min_bytes=1,
            isolation_level=1,
            session_id=0,
            session_epoch=0,
            topics=tuple(FetchTopic(topic=name, partitions=(wanted,)) for name in names),
            forgotten_topics_data=(),
            rack_id="",
        )
    )
    assert len(answer.responses) == len(names)


def commit_offsets(connection: SocketConnection, names: list[str]) -> None:
    """Commit an offset of a partition of each topic, and ask for all offsets of the group."""
    offset = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_leader_epoch=-1, committed_metadata=""
    )
    connection.request_unchanged(
        OffsetCommitRequest(
            group_id="wide",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=tuple(OffsetCommitRequestTopic(name=name, partitions=(offset,)) for name in names),
        )
    )
    group = OffsetFetchRequestGroup(group_id="wide", topics=None)
    answer = connection.request_unchanged(OffsetFetchRequest(groups=(group,), require_stable=True))
    assert len(answer.groups[0].topics) == len(names)


# -- requests ------------------------------------------------------------------------------------------------------


def now_ms() -> int:
    """The machine's clock."""
    return time.time_ns() // 1_000_000


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait for something in the broker's files."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def cluster_of(watch: LoopWatch) -> BlockingCluster:
    """A client of the broker that is watched."""
    return BlockingCluster(watch.broker.bootstrap, timeout_s=PATIENCE_S, deadline_s=5 * PATIENCE_S)


def create(watch: LoopWatch, name: str, partition_count: int, config: dict[str, str]) -> None:
    """Create a topic."""
    # A partition takes several syncs to make.
    settings = {"bootstrap.servers": watch.broker.bootstrap, "socket.timeout.ms": MANY_S * 1000, **QUIET}
    admin = AdminClient(settings)
    made = admin.create_topics(
        [NewTopic(name, partition_count, 1, config=config)],
        request_timeout=MANY_S,
        operation_timeout=MANY_S,
    )
    made[name].result()


def configure(watch: LoopWatch, name: str, config: dict[str, str]) -> None:
    """Change settings of a topic."""
    admin = AdminClient({"bootstrap.servers": watch.broker.bootstrap, **QUIET})
    entries = [
        ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        for setting, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result()


def offset_of(cluster: BlockingCluster, spec: int) -> int:
    """What ListOffsets answers for the partition of many producers."""
    return cluster.list_offsets({("many", 0): spec}, "read_uncommitted")["many", 0].offset


def produce(connection: SocketConnection, name: str, batch: bytes) -> None:
    """Produce a batch as it is; it may be refused."""
    part = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name=name, partition_data=(part,))
    connection.request_unchanged(
        ProduceRequest(transactional_id=None, acks=-1, timeout=timedelta(seconds=60), topic_data=(topic,))
    )


def delete_records(connection: SocketConnection, name: str, offset: int) -> None:
    """Move a log's start."""
    part = DeleteRecordsPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsTopic(name=name, partitions=(part,))
    connection.request_unchanged(DeleteRecordsRequest(topics=(topic,), timeout=timedelta(seconds=60)))
