"""Requests that ask for much with little, and batches that lie: answered, bounded, and in nobody's way."""

import asyncio
import gc
import os
import resource
import struct
import threading
import time
import zlib
from datetime import timedelta

import cramjam
import pytest
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from stablelog.batch.header import CRC_START, HEADER, LENGTH_AND_OFFSET_SIZE, MAGIC
from stablelog.broker.loop import turns
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import batch, frame, opened, part, read_answer

NONE = ErrorCode.none
BOMBS = int(os.environ.get("STABLELOG_BOMBS", "5"))


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


def forged(body, count, *, codec=0, timestamp=0):
    """A batch with a right CRC around whatever body."""
    data = bytearray(HEADER.size)
    size = HEADER.size + len(body) - LENGTH_AND_OFFSET_SIZE
    HEADER.pack_into(
        data, 0, 0, size, -1, MAGIC, 0, codec, count - 1, timestamp, timestamp, -1, -1, -1, count
    )
    data += body
    data[CRC_START - 4 : CRC_START] = crc32c(memoryview(data)[CRC_START:]).to_bytes(4, "big")
    return bytes(data)


async def offset_at(desk, timestamp, version=4):
    asked = part(2, version, "request", "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    topic = part(2, version, "request", "ListOffsetsTopic", name="t", partitions=(asked,))
    answer = await desk.ask(2, version, replica_id=-1, isolation_level=0, topics=(topic,))
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


def bomb():
    """A batch of four million records in four kilobytes."""
    plain = zlib.compressobj(9, wbits=31)
    one = bytes([12, 0, 0, 0, 1, 1, 0])  # a record of no key, no value and no headers
    packed = b"".join(plain.compress(one * 100_000) for _ in range(40)) + plain.flush()
    return forged(packed, 4_000_000, codec=1, timestamp=50)


LIES = {
    "garbage": forged(b"this is no record, nor three", 3, timestamp=50),
    "no gzip": forged(b"neither is this gzip", 3, codec=1, timestamp=50),
    "an offset far away": forged(bytes([14, 0, 0, 0x80, 0x80, 0x40, 1, 1, 0]), 1, timestamp=50),
    "a count that is impossible": forged(
        bytes(cramjam.zstd.compress(bytes([12, *bytes(6)]))), 2**31 - 1, codec=4
    ),
    "a bomb": bomb(),
}
READABLE_HEADERS = {name: lie for name, lie in LIES.items() if name != "a count that is impossible"}


@pytest.mark.parametrize("records", LIES.values(), ids=LIES)
def test_a_batch_that_lies_is_refused_and_says_why(records):
    async def conversation():
        async with opened() as desk:
            refused = await desk.produce(records)
            assert refused.error_code is ErrorCode.invalid_record
            assert "the batch is refused: " in refused.error_message
            assert (await desk.produce(batch(b"after"))).base_offset == 0

    run(conversation)


@pytest.mark.parametrize("records", READABLE_HEADERS.values(), ids=READABLE_HEADERS)
def test_a_broker_that_trusts_its_producers_passes_a_batch_on_and_looks_it_up_by_its_header(records):
    """What is inside a batch is its producer's affair; asking for a time neither fails nor takes memory."""

    async def conversation():
        async with opened(stablelog_produce_proof="header") as desk:
            assert (await desk.produce(batch(b"before"))).error_code is NONE
            written = await desk.produce(records)
            assert written.error_code is NONE
            assert (await desk.produce(batch(b"after"))).error_code is NONE
            began = time.thread_time()
            assert await offset_at(desk, 40) == (NONE, 1)
            assert time.thread_time() - began < 2
            if desk.broker.partitions.require("t", 0).end_offset < 100:
                assert await offset_at(desk, -3, version=7) == (NONE, 1)

    run(conversation)


def resident_mib():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20


@pytest.mark.extended
@pytest.mark.parametrize("compression_type", ["producer", "gzip"])
def test_refused_bombs_leave_no_memory_behind(compression_type):
    """The garbage collector may come late, and passes over what it has frozen. Each bomb takes 64 MiB."""
    packed = bytes(cramjam.zstd.compress(bytes(65 << 20)))
    assert len(packed) < 10_000

    async def conversation():
        async with opened(compression_type=compression_type) as desk:
            before = resident_mib()
            for _ in range(BOMBS):
                refused = await desk.produce(forged(packed, 1, codec=4, timestamp=50))
                assert refused.error_code is ErrorCode.message_too_large
            assert resident_mib() < before + 150
            # Records that are decompressed and then refused are as large.
            for _ in range(BOMBS):
                refused = await desk.produce(
                    forged(bytes(cramjam.zstd.compress(bytes(60 << 20))), 1, codec=4)
                )
                assert refused.error_code is ErrorCode.invalid_record
            assert resident_mib() < before + 150

    gc.collect()
    gc.disable()
    try:
        run(conversation)
    finally:
        gc.enable()


async def raw(desk, data):
    return b"".join(await desk.router.respond(desk.stranger, data))


def test_what_is_asked_for_many_times_is_answered_once():
    async def conversation():
        async with opened(partitions=50) as desk:
            topics = tuple(part(3, 4, "request", "MetadataRequestTopic", name="t") for _ in range(2000))
            answer = await desk.ask(3, 4, topics=topics, allow_auto_topic_creation=False)
            assert len(answer.topics) == 1
            resources = tuple(
                part(
                    32,
                    1,
                    "request",
                    "DescribeConfigsResource",
                    resource_type=4,
                    resource_name="1",
                    configuration_keys=None,
                )
                for _ in range(2000)
            )
            answer = await desk.ask(32, 1, resources=resources, include_synonyms=False)
            assert len(answer.results) == 1
            assert len((await desk.ask(15, 0, groups=("g",) * 2000)).groups) == 1
            assert len(await raw(desk, frame(65, 0, transactional_ids=("a",) * 2000))) < 100
            described = tuple(
                part(61, 0, "request", "TopicRequest", name="t", partition_indexes=(0,) * 2000)
                for _ in range(10)
            )
            asked = await desk.ask(61, 0, topics=described)
            assert [len(topic.partitions) for topic in asked.topics] == [1]
            desk.broker.topic_files.create("ordered", 50, {"stablelog.order": "commit"})
            cut = await desk.ask(ApiKey.DESCRIBE_CUT, 0, commit_sequence=-1, topics=("ordered",) * 2000)
            assert [len(topic.partitions) for topic in cut.topics] == [50]

    run(conversation)


async def commit_offset(desk, group):
    partition = part(
        8,
        8,
        "request",
        "OffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=1,
        committed_metadata="",
    )
    topic = part(8, 8, "request", "OffsetCommitRequestTopic", name="t", partitions=(partition,))
    await desk.ask(8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=(topic,))


def of_group(group, *indexes):
    topic = part(9, 8, "request", "OffsetFetchRequestTopics", name="t", partition_indexes=indexes)
    return part(
        9, 8, "request", "OffsetFetchRequestGroup", group_id=group, topics=(topic,) if indexes else None
    )


def test_the_offsets_of_a_group_that_is_asked_for_many_times_are_sent_once():
    async def conversation():
        async with opened() as desk:
            await commit_offset(desk, "g")
            asked = (of_group("h", 0), *[of_group("g")] * 400, of_group("h", 1, 1, 0), of_group("g", 1))
            answer = await desk.ask(9, 8, groups=asked, require_stable=True)
            assert [
                (group.group_id, [(p.partition_index, p.committed_offset) for p in topic.partitions])
                for group in answer.groups
                for topic in group.topics
            ] == [("h", [(0, -1), (1, -1)]), ("g", [(0, 1)])]

    run(conversation)


def test_others_are_served_between_the_groups_of_a_request_and_between_their_offsets(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)
    served = 0

    async def others():
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    async def conversation():
        async with opened(partitions=1) as desk:
            beside = asyncio.create_task(others())
            await desk.ask(9, 8, groups=tuple(of_group(f"g{n}") for n in range(40)), require_stable=True)
            assert served >= 40
            before = served
            await desk.ask(9, 8, groups=(of_group("g", *range(40)),), require_stable=True)
            assert served - before >= 40
            beside.cancel()

    run(conversation)


def creatable(name, partitions):
    return part(
        19,
        2,
        "request",
        "CreatableTopic",
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        assignments=(),
        configs=(),
    )


async def create(desk, *topics):
    answer = await desk.ask(19, 2, topics=topics, timeout=timedelta(seconds=30), validate_only=False)
    return [topic.error_code for topic in answer.topics]


def test_partitions_are_made_while_others_are_served_and_only_so_many(monkeypatch):
    is_served, make_partitions = threading.Event(), TopicFiles.make_partitions

    def slowly(*args):
        assert is_served.wait(60), "nobody is served meanwhile"
        return make_partitions(*args)

    async def conversation():
        async with opened(stablelog_max_partitions=90) as desk:
            monkeypatch.setattr(TopicFiles, "make_partitions", slowly)
            making = asyncio.create_task(create(desk, creatable("many", 70)))
            for _ in range(10):
                assert (await desk.produce(batch(b"x"))).error_code is NONE
            assert not making.done()
            is_served.set()
            while not making.done():
                assert (await desk.produce(batch(b"x"))).error_code is NONE
            assert await making == [NONE]
            assert desk.broker.topics.get("many").partition_count == 70
            assert await create(desk, creatable("too-many", 20)) == [ErrorCode.invalid_partitions]
            assert await create(desk, creatable("few", 3), creatable("few.too", 2)) == [NONE, NONE]
            more = part(37, 0, "request", "CreatePartitionsTopic", name="few", count=200, assignments=None)
            answer = await desk.ask(37, 0, topics=(more,), timeout=timedelta(0), validate_only=False)
            assert answer.results[0].error_code is ErrorCode.invalid_partitions

    run(conversation)


def test_a_name_is_taken_while_its_topic_is_being_made():
    async def conversation():
        async with opened() as desk:
            first, second = (asyncio.create_task(create(desk, creatable("twice", 20))) for _ in range(2))
            metadata = asyncio.create_task(
                desk.ask(
                    3,
                    4,
                    topics=(part(3, 4, "request", "MetadataRequestTopic", name="twice"),),
                    allow_auto_topic_creation=True,
                )
            )
            assert {*(await first), *(await second)} == {NONE, ErrorCode.topic_already_exists}
            assert (await metadata).topics[0].error_code in (NONE, ErrorCode.leader_not_available)
            assert desk.broker.topics.get("twice").partition_count == 20
            assert await create(desk, creatable("twice", 20)) == [ErrorCode.topic_already_exists]

    run(conversation)


def test_who_asked_for_a_topic_may_go_and_it_is_made_whole():
    async def conversation():
        async with opened() as desk:
            asked = asyncio.create_task(create(desk, creatable("left", 20)))
            for _ in range(3):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
            await desk.broker.tasks.finish_request_work()
            assert len(desk.broker.partitions.of_topic(desk.broker.topics.named("left"))) == 20

    run(conversation)


def test_partitions_are_added_and_not_twice_at_once():
    async def conversation():
        async with opened() as desk:

            async def add(count):
                more = part(
                    37, 0, "request", "CreatePartitionsTopic", name="t", count=count, assignments=None
                )
                answer = await desk.ask(37, 0, topics=(more,), timeout=timedelta(0), validate_only=False)
                return answer.results[0].error_code

            codes = await asyncio.gather(add(30), add(40))
            assert codes == [NONE, ErrorCode.reassignment_in_progress]
            assert await add(40) is NONE
            assert await add(40) is ErrorCode.invalid_partitions
            assert sorted(desk.broker.partitions.of_topic(desk.broker.topics.named("t"))) == list(range(40))

    run(conversation)


@pytest.mark.extended
def test_many_names_do_not_take_long():
    async def conversation():
        async with opened() as desk:
            names = [b"%07d" % n for n in range(20_000)]
            topics = b"".join(struct.pack(">h7sih", 7, name, -5, 1) + bytes(8) for name in names)
            data = frame(19, 2, topics=(), timeout=timedelta(0), validate_only=False)
            data = data[: -len(struct.pack(">iib", 0, 0, 0))] + struct.pack(">i", len(names)) + topics
            data += struct.pack(">ib", 0, 0)
            began = time.process_time()
            answer, _ = read_answer(19, 2, await raw(desk, data))
            assert {topic.error_code for topic in answer.topics} == {ErrorCode.invalid_partitions}
            assert time.process_time() - began < 10

    run(conversation)


@pytest.mark.parametrize("made_up", [2**63 - 1, 2**62, 2**62 - 1])
def test_a_producer_id_that_was_made_up_leaves_others_to_be_given(made_up):
    async def conversation():
        disk = SimDisk()
        async with opened(disk) as desk:
            records = batch(b"v", producer=(made_up, 0), sequence=0, transactional=False)
            assert (await desk.produce(records)).error_code is NONE
        async with opened(disk) as desk:
            given = [await desk.init(name) for name in ("a", "payments/a", "b", "payments/b")]
            assert len(set(given)) == len(given)
            assert (made_up, 0) not in given

    run(conversation)
