"""Long requests and responses go through a thread, and nothing about them changes."""

import asyncio
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import add_partitions_to_txn, offset_commit
from stablelog.broker.loop import turns
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.network import long_messages
from stablelog.broker.network.long_messages import REQUEST_SIZE_MAX
from stablelog.errors import RefusedError
from stablelog.wire.produce import STEP_COUNT
from tests.broker.desk import COMMIT, batch, frame, opened, part, produce_fields, read_answer
from tests.declared_apis import APIS

METADATA, OFFSET_COMMIT, ADD_OFFSETS_TO_TXN, TXN_OFFSET_COMMIT = 3, 8, 25, 28


def metadata_of(names, correlation_id=1):
    topics = tuple(part(METADATA, 9, "request", "MetadataRequestTopic", name=name) for name in names)
    fields = {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    return frame(METADATA, 9, correlation_id, topics=topics, **fields)


def unknown(count):
    return [f"unknown-topic-{number}" for number in range(count)]


@pytest.fixture
def in_threads(monkeypatch):
    """What was done in threads."""
    done = []

    def noted(threads, work, *arguments):
        done.append(work.__name__)
        return in_thread(threads, work, *arguments)

    monkeypatch.setattr(long_messages, "in_thread", noted)
    monkeypatch.setattr(long_messages, "in_thread_to_its_end", noted)
    return done


@pytest.mark.parametrize(
    ("count", "expected"), [(1, []), (2_000, ["prepare_api", "decode_request", "encode_response"])]
)
def test_long_messages_are_decoded_and_encoded_in_a_thread(in_threads, count, expected):
    async def conversation():
        async with opened() as desk:
            data = metadata_of(unknown(count))
            desk.router.prepare_api(APIS[METADATA], 9)
            answer, _ = read_answer(METADATA, 9, b"".join(await desk.router.respond(desk.stranger, data)))
            assert [topic.name for topic in answer.topics] == unknown(count)
            assert in_threads == expected

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_short_request_for_many_things_is_answered_through_a_thread(in_threads):
    async def conversation():
        async with opened(partitions=400) as desk:
            answer = await desk.ask(
                METADATA,
                9,
                topics=None,
                include_cluster_authorized_operations=False,
                include_topic_authorized_operations=False,
                allow_auto_topic_creation=False,
            )
            assert sorted(len(topic.partitions) for topic in answer.topics)[-1] == 400
            assert in_threads == ["encode_response"]

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_the_requests_of_a_connection_are_begun_in_their_order(monkeypatch):
    """A short one behind a long one waits until that has been decoded: a commit of offsets must not pass another."""
    gate = asyncio.Event()

    async def gated(threads, work, *arguments):
        await gate.wait()
        return await in_thread(threads, work, *arguments)

    monkeypatch.setattr(long_messages, "in_thread_to_its_end", gated)

    async def conversation():
        async with opened() as desk:
            begun = []

            async def begin(_broker, _request, context):
                begun.append(context.correlation_id)

            desk.router.handlers |= {METADATA: begin, 0: begin}
            desk.router.prepare_api(APIS[METADATA], 9)
            desk.router.prepare_api(APIS[0], 9)
            long, short = unknown(2_000), unknown(1)
            assert len(metadata_of(long)) > REQUEST_SIZE_MAX
            write = produce_fields(9, "t", 0, batch(b"v"))
            frames = [
                metadata_of(short, 1),
                metadata_of(long, 2),
                metadata_of(short, 3),
                frame(0, 9, 4, **write),
                metadata_of(long, 5),
                metadata_of(short, 6),
            ]
            asked = [asyncio.ensure_future(desk.router.respond(desk.stranger, data)) for data in frames]
            for _ in range(10):
                await asyncio.sleep(0)
            assert begun == [1]
            gate.set()
            while len(begun) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0)
            # One that comes when the long one before it is done, and others wait, does not pass these.
            asked.append(asyncio.ensure_future(desk.router.respond(desk.stranger, metadata_of(short, 7))))
            await asyncio.gather(*asked)
            assert begun == [1, 2, 3, 4, 5, 6, 7]

    asyncio.run(asyncio.wait_for(conversation(), 60))


def produce_to(names, correlation_id=1, version=9):
    topics = tuple(
        part(
            0,
            version,
            "request",
            "TopicProduceData",
            name=name,
            partition_data=produce_fields(version, name, 0, batch(b"v"))["topic_data"][0].partition_data,
        )
        for name in names
    )
    fields = produce_fields(version, "t", 0, batch(b"v")) | {"topic_data": topics}
    return frame(0, version, correlation_id, **fields)


def test_a_produce_request_of_many_topics_is_decoded_in_turns_and_not_passed_by_later_ones(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with opened() as desk:
            begun = []

            async def begin(_broker, request, context):
                begun.append((context.correlation_id, len(request.topics)))

            desk.router.handlers |= {METADATA: begin, 0: begin}
            desk.router.prepare_api(APIS[METADATA], 9)
            desk.router.prepare_api(APIS[0], 9)
            many = 3 * STEP_COUNT + 1
            frames = [produce_to(unknown(many), 1), metadata_of(unknown(1), 2), produce_to(unknown(1), 3)]
            asked = [asyncio.ensure_future(desk.router.respond(desk.stranger, data)) for data in frames]
            turn_count = 0
            while not begun:
                await asyncio.sleep(0)
                turn_count += 1
            assert turn_count > 3
            await asyncio.gather(*asked)
            assert begun == [(1, many), (2, 1), (3, 1)]

    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.mark.parametrize("count", [1, STEP_COUNT + 1])
def test_a_produce_request_of_an_old_version_or_with_damage_is_refused_however_long_it_is(count):
    async def conversation():
        async with opened() as desk:
            desk.router.prepare_api(APIS[0], 9)
            data = produce_to(unknown(count))
            old = data[:2] + (2).to_bytes(2, "big") + data[4:]
            with pytest.raises(RefusedError, match="version 2 is not supported"):
                await desk.router.respond(desk.stranger, old)
            with pytest.raises(RefusedError, match="not a produce request of version 9"):
                await desk.router.respond(desk.stranger, data[:-40])

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_what_an_api_needs_is_imported_in_a_thread_when_it_is_asked_for_the_first_time(monkeypatch):
    threads = []

    async def conversation():
        async with opened() as desk:
            prepare = desk.router.prepare_api

            def noted(api, version):
                threads.append(threading.current_thread())
                prepare(api, version)

            monkeypatch.setattr(desk.router, "prepare_api", noted)
            for _ in range(2):
                await desk.router.respond(desk.stranger, metadata_of(unknown(1)))
            assert len(threads) == 1
            assert threads[0] is not threading.main_thread()

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_offsets_of_many_partitions_are_committed_in_the_order_of_the_requests(monkeypatch):
    """A later commit of a few does not pass an earlier one of many, which is carried out in slices."""
    monkeypatch.setattr(offset_commit, "OFFSETS_AT_ONCE", 2)
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with opened(partitions=9) as desk:
            many = asyncio.create_task(desk.ask(OFFSET_COMMIT, 8, **commit_of(dict.fromkeys(range(9), 1))))
            few = asyncio.create_task(desk.ask(OFFSET_COMMIT, 8, **commit_of({8: 2})))
            for answer in await asyncio.gather(many, few):
                codes = [one.error_code for topic in answer.topics for one in topic.partitions]
                assert set(codes) == {ErrorCode.none}
            committed = desk.broker.groups.coordinator.fetch_offsets("g", None).answer
            assert {index: one.offset for (_, index), one in committed.items()} == {
                **dict.fromkeys(range(8), 1),
                8: 2,
            }

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_transaction_ends_behind_what_was_sent_before_it_in_turns(monkeypatch):
    """A client may send all of its requests without waiting for an answer: a connection is served in their order."""
    monkeypatch.setattr(offset_commit, "OFFSETS_AT_ONCE", 2)
    monkeypatch.setattr(add_partitions_to_txn, "AT_ONCE_MAX", 2)
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with opened(partitions=9) as desk:
            producer = await desk.init("a")
            everything = [("t", index) for index in range(9)]
            who = {"transactional_id": "a", "producer_id": producer[0], "producer_epoch": producer[1]}
            committed = {"committed_offset": 5, "committed_metadata": ""}
            partitions = [{"partition_index": index, **committed} for index in range(9)]
            offsets = {"group_id": "g", "topics": [{"name": "t", "partitions": partitions}]}
            answers = await asyncio.gather(
                desk.add("a", producer, *everything),
                desk.produce(batch(b"v", producer=producer, sequence=0), partition=8, transactional_id="a"),
                desk.ask_with(ADD_OFFSETS_TO_TXN, 3, who | {"group_id": "g"}),
                desk.ask_with(TXN_OFFSET_COMMIT, 2, who | offsets),
                desk.end("a", producer, COMMIT),
            )
            assert answers[0] == [ErrorCode.none] * 9
            assert {p.error_code for t in answers[3].topics for p in t.partitions} == {ErrorCode.none}
            assert {answers[at].error_code for at in (1, 2, 4)} == {ErrorCode.none}
            await desk.durable()
            assert desk.values(partition=8) == [b"v"]
            found = desk.broker.groups.coordinator.fetch_offsets("g", None).answer
            assert [one.offset for _, one in sorted(found.items())] == [5] * 9

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_request_does_not_pass_one_that_waits_and_has_not_begun(monkeypatch):
    """The lock is free for a moment while the next one in line is woken."""

    async def conversation():
        async with opened() as desk:
            begun = []

            async def write(_broker, _request, context):
                async with context.appending:
                    begun.append("write")

            async def read(_broker, _request, _context):
                begun.append("read")

            desk.router.handlers |= {0: write, METADATA: read}
            desk.router.prepare_api(APIS[METADATA], 9)
            desk.router.prepare_api(APIS[0], 9)
            lock, respond = desk.stranger.appending, desk.router.respond
            await lock.acquire()
            frames = [frame(0, 9, **produce_fields(9, "t", 0, batch(b"v"))), metadata_of(unknown(1))]
            first = asyncio.ensure_future(respond(desk.stranger, frames[0]))
            for _ in range(5):
                await asyncio.sleep(0)
            second = asyncio.ensure_future(respond(desk.stranger, frames[1]))
            lock.release()  # the second one takes its first step before the first one is woken
            await asyncio.gather(first, second)
            assert begun == ["write", "read"]

    asyncio.run(asyncio.wait_for(conversation(), 60))


def commit_of(offsets):
    partitions = tuple(
        part(
            OFFSET_COMMIT,
            8,
            "request",
            "OffsetCommitRequestPartition",
            partition_index=index,
            committed_offset=offset,
            committed_metadata="",
        )
        for index, offset in offsets.items()
    )
    topic = part(OFFSET_COMMIT, 8, "request", "OffsetCommitRequestTopic", name="t", partitions=partitions)
    return {"group_id": "g", "member_id": "", "topics": (topic,)}
