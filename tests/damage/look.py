"""What clients are told of a data directory, asked by plain requests, and how it differs from what they should be told.

Partitions are read by fetches. A fetch is decoded here, and not by the message classes, because a walk makes many.
"""

import asyncio
import struct
from dataclasses import dataclass, field
from datetime import timedelta

from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.data_directory.topic_settings import order_of
from stablelog.wire.api import ApiKey
from tests.broker.desk import frame, part

FETCH, METADATA, OFFSET_FETCH, LIST_GROUPS, EPOCH_END, CONFIGS = 1, 3, 9, 16, 23, 32
DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66
TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4
ISOLATIONS = (0, 1)
EARLIEST = -2
EVERYTHING = 1 << 20
NO_NAME = "§"  # stands for the topic in the template of a fetch
REFUSED_MAX = 1000  # offsets; no partition has more
ASKED = 0x1122334455667788
SIZE = 0x12345678


@dataclass(frozen=True)
class Batch:
    """A batch as a fetch hands it out."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    content: bytes  # without base offset and leader epoch, over which no CRC lies
    is_shown: bool  # whether a client of this isolation shows its records


@dataclass
class Fetched:
    """The answer to a fetch of one partition."""

    error: int
    high_watermark: int
    stable_offset: int
    start_offset: int
    batches: list[Batch]


@dataclass
class PartitionSeen:
    """What readers of both isolations get of a partition.

    Attributes:
        starts: by isolation.
        stable_offset: the last stable offset.
        high_watermark: the first offset that is not durable.
        batches: by isolation, in the order in which a reader gets them.
        refused: by isolation, the offsets from which a read is refused.
        producers: as DescribeProducers tells of them.
        epochs: by leader epoch, what OffsetForLeaderEpoch answers; an error for -1.
    """

    starts: list[int] = field(default_factory=list)
    stable_offset: int = -1
    high_watermark: int = -1
    batches: list[list[Batch]] = field(default_factory=list)
    refused: list[list[int]] = field(default_factory=list)
    producers: list[tuple] = field(default_factory=list)
    epochs: dict[int, tuple] = field(default_factory=dict)


@dataclass
class Seen:
    """Everything that clients are told.

    Attributes:
        partitions: the open ones.
        offline: why the others are not open.
        group_offsets: committed offsets by (topic, index).
        transactions: by transactional id.
        configs: own settings of each topic, and the broker's dynamic ones.
        cuts: of each transaction group, offsets by commit sequence, or why there are none.
        identity: the cluster's id and the node's.
    """

    partitions: dict[tuple[str, int], PartitionSeen] = field(default_factory=dict)
    offline: dict[tuple[str, int], str] = field(default_factory=dict)
    group_offsets: dict = field(default_factory=dict)
    transactions: dict = field(default_factory=dict)
    configs: dict = field(default_factory=dict)
    cuts: dict = field(default_factory=dict)
    identity: tuple = ()


# -- fetch ----------------------------------------------------------------------------------------------------------


def _template(isolation):
    asked = part(
        FETCH,
        11,
        "request",
        "FetchPartition",
        partition=0x01020304,
        current_leader_epoch=-1,
        fetch_offset=ASKED,
        log_start_offset=-1,
        partition_max_bytes=SIZE,
    )
    topic = part(FETCH, 11, "request", "FetchTopic", topic=NO_NAME, partitions=(asked,))
    return frame(
        FETCH,
        11,
        replica_id=-1,
        max_wait=timedelta(0),
        min_bytes=1,
        max_bytes=EVERYTHING,
        isolation_level=isolation,
        session_id=0,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id="",
    )


TEMPLATES = [_template(isolation) for isolation in ISOLATIONS]


def _named(name):
    return struct.pack(">h", len(name.encode())) + name.encode()


def fetch_request(topic, index, offset, isolation, size):
    """The bytes of a fetch of one partition, version 11."""
    return (
        TEMPLATES[isolation]
        .replace(_named(NO_NAME), _named(topic))
        .replace(struct.pack(">iiq", 0x01020304, -1, ASKED), struct.pack(">iiq", index, -1, offset))
        .replace(struct.pack(">i", SIZE), struct.pack(">i", size))
    )


def read_fetched(data):
    """The answer of one partition, version 11."""
    at = 4 + 4 + 2 + 4 + 4  # correlation id, throttle time, error, session, one topic
    at += 2 + struct.unpack_from(">h", data, at)[0] + 4
    _, error, high_watermark, stable_offset, start_offset = struct.unpack_from(">ihqqq", data, at)
    at += 30
    (count,) = struct.unpack_from(">i", data, at)
    at += 4
    aborted = [struct.unpack_from(">qq", data, at + 16 * place) for place in range(max(count, 0))]
    at += 16 * max(count, 0) + 4
    (size,) = struct.unpack_from(">i", data, at)
    records = data[at + 4 : at + 4 + max(size, 0)]
    return Fetched(error, high_watermark, stable_offset, start_offset, read_batches(records, aborted))


def read_batches(content, aborted):
    """The batches of an answer, filtered as a client does."""
    pending = sorted(aborted, key=lambda txn: txn[1], reverse=True)
    leaving_out = set()
    found = []
    for at, header in headers_in(content):
        while pending and pending[-1][1] <= header.last_offset:
            leaving_out.add(pending.pop()[0])
        batch = bytes(content[at : at + header.size])
        is_shown = not header.is_control
        if header.is_control:
            marker = read_marker(batch)
            if marker is not None and marker.type is MarkerType.ABORT:
                leaving_out.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in leaving_out:
            is_shown = False
        rest = batch[8:12] + batch[16:]
        found.append(Batch(header.base_offset, header.last_offset, header.leader_epoch, rest, is_shown))
    return found


async def fetch(desk, topic, index, offset, isolation, size=EVERYTHING):
    """One fetch. Where a log file has to be proven first, it waits for the proof and asks again."""
    request = fetch_request(topic, index, offset, isolation, size)
    while True:
        answer = read_fetched(b"".join(await desk.router.respond(desk.stranger, request)))
        proofs = [proof.done for proof in desk.broker.proofs._proofs.values()]
        if answer.error != ErrorCode.not_leader_or_follower.value or not proofs:
            return answer
        await asyncio.gather(*proofs, return_exceptions=True)


async def read_partition(desk, topic, index, isolation, start):
    """All that a reader gets from the start on: (the last answer, batches, offsets from which a read is refused)."""
    batches, refused, offset = [], [], start
    while True:
        answer = await fetch(desk, topic, index, offset, isolation)
        if answer.error == ErrorCode.kafka_storage_error.value:
            refused.append(offset)
            offset += 1
            assert len(refused) < REFUSED_MAX, f"{topic}-{index} is offline since it was opened"
            continue
        if answer.error == ErrorCode.offset_out_of_range.value and refused:
            answer = await fetch(desk, topic, index, refused[-1], isolation)
            return answer, batches, refused
        assert not answer.error, f"{topic}-{index} from {offset}, isolation {isolation}: {answer.error}"
        if not answer.batches:
            return answer, batches, refused
        batches += answer.batches
        offset = answer.batches[-1].last_offset + 1


# -- everything -----------------------------------------------------------------------------------------------------


async def look(desk):
    """Everything that clients are told, but for reads from the middle: see `check_every_offset`."""
    seen = Seen(identity=await identity(desk))
    topics = desk.broker.topics
    for topic in topics:
        for index in range(topic.partition_count):
            at = (topic.name, index)
            if desk.broker.partitions.state(*at) is not PartitionState.OPEN:
                code = (await fetch(desk, *at, 0, 1)).error
                assert code == ErrorCode.kafka_storage_error.value, (at, code)
                seen.offline[at] = desk.broker.partitions.offline_in(topic)[index]
            elif not topic.is_internal:
                seen.partitions[at] = await look_at_partition(desk, *at)
    seen.group_offsets = await group_offsets(desk)
    seen.transactions = await transactions(desk)
    seen.configs = await configs(desk)
    seen.cuts = await cuts(desk)
    return seen


async def look_at_partition(desk, topic, index):
    """What readers get of a partition from the start on, who has written, and the leader epochs."""
    seen = PartitionSeen()
    for isolation in ISOLATIONS:
        start = await desk.offset_at(topic, index, EARLIEST, isolation=isolation)
        assert start.error_code is ErrorCode.none, start
        seen.starts.append(start.offset)
        answer, batches, refused = await read_partition(desk, topic, index, isolation, start.offset)
        seen.batches.append(batches)
        seen.refused.append(refused)
        seen.high_watermark, seen.stable_offset = answer.high_watermark, answer.stable_offset
    seen.producers = await producers(desk, topic, index)
    for epoch in range(desk.broker.topics.leader_epoch + 1):
        seen.epochs[epoch] = await epoch_end(desk, topic, index, epoch)
    return seen


async def check_every_offset(desk, at, seen):
    """From every offset, readers of both isolations get what they get there from the start on, or are refused."""
    for isolation in ISOLATIONS:
        batches, place = seen.batches[isolation], 0
        end = seen.stable_offset if isolation else seen.high_watermark
        for offset in range(seen.starts[isolation], end):
            while place < len(batches) and batches[place].last_offset < offset:
                place += 1
            answer = await fetch(desk, *at, offset, isolation, 1)
            where = f"{at} from {offset}, isolation {isolation}"
            if answer.error:
                assert answer.error == ErrorCode.kafka_storage_error.value, f"{where}: error {answer.error}"
                assert offset in seen.refused[isolation], (
                    f"{where}: is refused, and was not from the start on"
                )
            else:
                wanted = batches[place : place + 1]
                assert answer.batches == wanted, f"{where}: {answer.batches} instead of {wanted}"


async def identity(desk):
    """The cluster's id and the node's."""
    answer = await desk.ask(METADATA, 4, topics=(), allow_auto_topic_creation=False)
    return answer.cluster_id, answer.controller_id, answer.brokers[0].node_id


async def producers(desk, topic, index):
    """(producer id, epoch, last sequence, coordinator epoch, first offset of the open transaction) of each."""
    asked = part(DESCRIBE_PRODUCERS, 0, "request", "TopicRequest", name=topic, partition_indexes=(index,))
    found = (await desk.ask(DESCRIBE_PRODUCERS, 0, topics=(asked,))).topics[0].partitions[0]
    assert found.error_code is ErrorCode.none, found
    return sorted(
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        )
        for one in found.active_producers
    )


async def epoch_end(desk, topic, index, epoch):
    """OffsetForLeaderEpoch: (error, epoch, end offset)."""
    asked = part(
        EPOCH_END,
        3,
        "request",
        "OffsetForLeaderPartition",
        partition=index,
        current_leader_epoch=-1,
        leader_epoch=epoch,
    )
    in_topic = part(EPOCH_END, 3, "request", "OffsetForLeaderTopic", topic=topic, partitions=(asked,))
    answer = (await desk.ask(EPOCH_END, 3, replica_id=-2, topics=(in_topic,))).topics[0].partitions[0]
    return answer.error_code.name, answer.leader_epoch, answer.end_offset


async def group_offsets(desk):
    """What consumer groups have committed."""
    listed = await desk.ask(LIST_GROUPS, 0)
    found = {}
    for group in sorted(one.group_id for one in listed.groups):
        answer = await desk.ask(OFFSET_FETCH, 5, group_id=group, topics=None)
        for topic in answer.topics:
            for one in topic.partitions:
                found[group, topic.name, one.partition_index] = one.committed_offset, one.metadata
    return found


async def transactions(desk):
    """State, producer and partitions of each transactional id."""
    listed = await desk.ask(LIST_TRANSACTIONS, 0, state_filters=(), producer_id_filters=())
    ids = tuple(sorted(one.transactional_id for one in listed.transaction_states))
    answer = await desk.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=ids)
    return {
        one.transactional_id: (
            one.transaction_state,
            one.producer_id,
            one.producer_epoch,
            sorted((topic.topic, index) for topic in one.topics for index in topic.partitions),
        )
        for one in answer.transaction_states
    }


async def configs(desk):
    """The own settings of each topic, and the broker's dynamic ones."""
    names = [(TOPIC_RESOURCE, topic.name) for topic in desk.broker.topics if not topic.is_internal]
    asked = tuple(
        part(
            CONFIGS,
            4,
            "request",
            "DescribeConfigsResource",
            resource_type=kind,
            resource_name=name,
            configuration_keys=None,
        )
        for kind, name in (*names, (BROKER_RESOURCE, str(desk.broker.node_id)))
    )
    fields = {"include_synonyms": False, "include_documentation": False}
    answer = await desk.ask(CONFIGS, 4, resources=asked, **fields)
    own = {TOPIC_RESOURCE: 1, BROKER_RESOURCE: 2}  # the source of what was set
    return {
        (result.resource_type, result.resource_name): {
            one.name: one.value for one in result.configs if one.config_source == own[result.resource_type]
        }
        for result in answer.results
    }


async def cuts(desk):
    """By transaction group: the error, or the offsets of the cut at each commit sequence from the last one down."""
    groups = {}
    for topic in desk.broker.topics:
        if order_of(topic.configs) == "commit":
            groups.setdefault(topic.group, []).append(topic.name)
    found = {}
    for group, names in sorted(groups.items()):
        names = tuple(sorted(names))
        last = await desk.ask(ApiKey.DESCRIBE_CUT, 0, group=group, commit_sequence=-1, topics=names)
        found[group] = (last.error_code.name, last.error_message or "", last.commit_sequence, {})
        for sequence in range(last.commit_sequence + 1):
            answer = await desk.ask(
                ApiKey.DESCRIBE_CUT, 0, group=group, commit_sequence=sequence, topics=names
            )
            found[group][3][sequence] = (
                answer.error_code.name,
                [
                    (
                        topic.name,
                        one.partition_index,
                        one.offset,
                        one.removed_commit_sequence,
                        one.torn_commit_sequence,
                    )
                    for topic in answer.topics
                    for one in topic.partitions
                ],
            )
    return found
