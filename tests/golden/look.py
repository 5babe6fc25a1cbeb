"""What a broker serves of its partitions and transactions, asked by plain requests: of Apache Kafka, and of stablelog.

Both are asked the same. `RawClient` asks over a connection; a `tests.broker.desk.Desk` asks without one.
"""

import functools
import socket
import struct
from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.batch.records import decode_records
from tests.broker.desk import frame, part, read_answer

UNCOMMITTED, COMMITTED = 0, 1
EARLIEST = -2
SIZES = (1, 300)  # of a fetch, in bytes: one batch, and some
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a reader gets it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """What a partition's readers get.

    Attributes:
        start_offset: of the first record that can be read.
        stable_offset: the last stable offset.
        end_offset: the high watermark.
        committed: the records that a read-committed reader gets from the start on.
        all_records: those that any other reader gets.
        producers: (producer id, epoch, last sequence, coordinator epoch, first offset of the open transaction) of each.
    """

    start_offset: int
    stable_offset: int
    end_offset: int
    committed: list[Record] = field(repr=False)
    all_records: list[Record] = field(repr=False)
    producers: list[tuple[int, int, int, int, int]] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TransactionSeen:
    """What DescribeTransactions says: state, producer id and epoch, and partitions as (topic, index)."""

    state: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[tuple[str, int]]


class RawClient:
    """A connection to a broker, for single requests."""

    def __init__(self, bootstrap):
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._file = self._socket.makefile("rb")

    async def ask(self, api_key, version, /, **fields):
        """The answer to one request."""
        request = frame(api_key, version, **fields)
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._file.read(4))
        return read_answer(api_key, version, self._file.read(size))[0]

    def close(self):
        """End the connection."""
        self._file.close()
        self._socket.close()


async def look_at_partition(client, topic, index, *, everywhere=True):
    """What readers get of a partition, and whether they get the rest of it from every offset on.

    A reader goes on from where an answer ends, with nothing kept of it. So one fetch from each offset tells what
    readers get that begin there.

    Raises:
        AssertionError: from some offset on they get something else than the rest of what they get from the start.
    """
    start = await offset_at(client, topic, index, EARLIEST, UNCOMMITTED)
    first = await fetch(client, topic, index, start, COMMITTED, 1)
    records = {}
    for isolation, end in ((COMMITTED, first.last_stable_offset), (UNCOMMITTED, first.high_watermark)):
        found, position = records.setdefault(isolation, []), start
        while position < end:
            rest, following = await read(client, topic, index, position, isolation, 1 << 20)
            found += rest
            if following == position:
                break  # the rest of the log was compacted away
            position = following
        for offset in range(start, end) if everywhere else ():
            for size in SIZES:
                rest, following = await read(client, topic, index, offset, isolation, size)
                wanted = [record for record in found if offset <= record.offset < following]
                where = f"{topic}-{index} from {offset}, isolation {isolation}, {size} bytes"
                assert rest == wanted, f"{where}: {rest} instead of {wanted}"
                assert following > offset or not [r for r in found if r.offset >= offset], f"{where}: nothing"
    return PartitionSeen(
        start,
        first.last_stable_offset,
        first.high_watermark,
        records[COMMITTED],
        records[UNCOMMITTED],
        await producers_of(client, topic, index),
    )


async def check_times(client, topic, index, seen, *, by_kafka=False):
    """Look up the time of each record, and later ones.

    A look-up by time finds the first record of that time or later, or a marker before it: Kafka counts markers. Kafka
    looks in one segment only, the first whose greatest time is late enough. It finds nothing if that is the time of a
    batch which compaction has emptied, or if the segment holds no records: then it is the file's.

    Args:
        client: of the broker.
        topic: the topic.
        index: of the partition.
        seen: what readers get.
        by_kafka: whether it is Kafka that looks.

    Raises:
        AssertionError: it finds something else.
    """
    headers = await headers_of(client, topic, index, seen.start_offset, seen.end_offset)
    markers = {header.base_offset for header in headers if header.is_control}
    emptied = [header.base_offset for header in headers if not header.record_count] if by_kafka else []
    times = sorted({record.timestamp_ms for record in seen.all_records})
    for timestamp_ms in [*times, *(time_ms + 1 for time_ms in times)]:
        for isolation, end in ((COMMITTED, seen.stable_offset), (UNCOMMITTED, seen.end_offset)):
            later = [r.offset for r in seen.all_records if r.timestamp_ms >= timestamp_ms and r.offset < end]
            wanted = later[0] if later else -1
            found = await offset_at(client, topic, index, timestamp_ms, isolation)
            is_marker = found in markers and (found < wanted or wanted < 0)
            is_missed = found < 0 and any(offset < wanted for offset in emptied)
            where = f"{topic}-{index} at time {timestamp_ms}, isolation {isolation}"
            assert found == wanted or is_marker or is_missed, f"{where}: {found} instead of {wanted}"


async def headers_of(client, topic, index, start, end):
    """The headers of a partition's batches."""
    found = []
    while start < end:
        answer = await fetch(client, topic, index, start, UNCOMMITTED, 1 << 20)
        headers = [header for _, header in headers_in(bytes(answer.records or b""))]
        if not headers:
            break
        found += headers
        start = headers[-1].next_offset
    return found


async def last_times(client, topic, index, start, end):
    """The timestamp of each producer's last batch or marker that is in the log: {producer id: ms}."""
    headers = await headers_of(client, topic, index, start, end)
    return {header.producer_id: header.max_timestamp for header in headers if header.has_producer}


async def offset_at(client, topic, index, timestamp_ms, isolation):
    """ListOffsets: the offset for a time, or for EARLIEST; -1 if there is none."""
    asked = part(
        2,
        5,
        "request",
        "ListOffsetsPartition",
        partition_index=index,
        current_leader_epoch=-1,
        timestamp=timestamp_ms,
    )
    topics = (part(2, 5, "request", "ListOffsetsTopic", name=topic, partitions=(asked,)),)
    answer = await client.ask(2, 5, replica_id=-1, isolation_level=isolation, topics=topics)
    found = answer.topics[0].partitions[0]
    assert found.error_code is ErrorCode.none, (
        f"{topic}-{index} at time {timestamp_ms}: {found.error_code.name}"
    )
    return found.offset


async def fetch(client, topic, index, offset, isolation, size):
    """One fetch: what is said of the partition."""
    asked = part(
        1,
        11,
        "request",
        "FetchPartition",
        partition=index,
        current_leader_epoch=-1,
        fetch_offset=offset,
        log_start_offset=-1,
        partition_max_bytes=size,
    )
    answer = await client.ask(
        1,
        11,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=0,
        max_bytes=size,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=(part(1, 11, "request", "FetchTopic", topic=topic, partitions=(asked,)),),
        forgotten_topics_data=(),
        rack_id="",
    )
    found = answer.responses[0].partitions[0]
    assert found.error_code is ErrorCode.none, f"{topic}-{index} at {offset}: {found.error_code.name}"
    return found


async def read(client, topic, index, start, isolation, size):
    """The records that a client makes of one fetch, leaving out what it says was aborted, and where it goes on."""
    answer = await fetch(client, topic, index, start, isolation, size)
    content = bytes(answer.records or b"")
    pending = sorted(answer.aborted_transactions or (), key=lambda txn: txn.first_offset, reverse=True)
    aborting = set()
    found = []
    position = start
    for at, header in headers_in(content):
        while pending and pending[-1].first_offset <= header.last_offset:
            aborting.add(pending.pop().producer_id)
        batch = content[at : at + header.size]
        position = header.next_offset
        if header.is_control:
            if _type_of(batch) is MarkerType.ABORT:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            found += [record for record in _records_of(batch) if record.offset >= start]
    return found, position


@functools.cache
def _records_of(batch):
    return [Record(r.offset, r.timestamp_ms, r.key, r.value) for r in decode_records(batch)]


@functools.cache
def _type_of(batch):
    marker = read_marker(batch)
    return None if marker is None else marker.type


async def described_producers(client, topic, index):
    """What DescribeProducers says of a partition."""
    asked = part(61, 0, "request", "TopicRequest", name=topic, partition_indexes=(index,))
    answer = await client.ask(61, 0, topics=(asked,))
    found = answer.topics[0].partitions[0]
    assert found.error_code is ErrorCode.none, found.error_code.name
    return found.active_producers


async def producers_of(client, topic, index):
    """The same without timestamps: ours are by the broker's clock."""
    return sorted(
        (
            producer.producer_id,
            producer.producer_epoch,
            producer.last_sequence,
            producer.coordinator_epoch,
            producer.current_txn_start_offset,
        )
        for producer in await described_producers(client, topic, index)
    )


async def look_at_transaction(client, transactional_id):
    """What DescribeTransactions says of an id."""
    answer = await client.ask(65, 0, transactional_ids=(transactional_id,))
    found = answer.transaction_states[0]
    assert found.error_code is ErrorCode.none, f"{transactional_id}: {found.error_code.name}"
    partitions = frozenset((topic.topic, index) for topic in found.topics for index in topic.partitions)
    return TransactionSeen(found.transaction_state, found.producer_id, found.producer_epoch, partitions)


async def group_offset(client, group, topic):
    """The offset that a group has committed for partition 0; -1 if none."""
    asked = part(9, 5, "request", "OffsetFetchRequestTopic", name=topic, partition_indexes=(0,))
    answer = await client.ask(9, 5, group_id=group, topics=(asked,))
    assert answer.error_code is ErrorCode.none, f"{group}: {answer.error_code.name}"
    found = answer.topics[0].partitions[0]
    assert found.error_code is ErrorCode.none, f"{group}: {found.error_code.name}"
    return found.committed_offset


async def end_transaction(client, transactional_id, producer_id, producer_epoch, *, commit, version):
    """EndTxn; the error."""
    answer = await client.ask(
        26,
        version,
        transactional_id=transactional_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        committed=commit,
    )
    return answer.error_code
