"""Fetches of several partitions, and what other requests do between their turns."""

import asyncio
from datetime import timedelta

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import fetch as fetch_api
from stablelog.broker.loop import turns
from tests.broker.desk import batch, opened, part

COUNT = 8
COMMITTED = 1
NONE = ErrorCode.none
ANSWERED_S = 30  # Until then, whoever is not woken is given up; a client would wait for an hour.


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), ANSWERED_S))


def fetch(desk, indexes=(), *, offsets=None, forgotten=(), session=(0, -1), isolation=0):
    asked = tuple(
        part(
            1,
            12,
            "request",
            "FetchPartition",
            partition=index,
            fetch_offset=(offsets or {}).get(index, 0),
            partition_max_bytes=1 << 20,
        )
        for index in indexes
    )
    return desk.ask(
        1,
        12,
        max_wait=timedelta(hours=1),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=(part(1, 12, "request", "FetchTopic", topic="t", partitions=asked),) if asked else (),
        forgotten_topics_data=(part(1, 12, "request", "ForgottenTopic", topic="t", partitions=forgotten),)
        if forgotten
        else (),
        rack_id="",
    )


def partitions_of(answer):
    assert answer.error_code is NONE
    return [partition for topic in answer.responses for partition in topic.partitions]


async def fill(desk, count):
    for index in range(count):
        await desk.produce(batch(b"x"), partition=index)


async def waits(desk):
    """Until a fetch waits."""
    while not len(desk.broker.long_polls):  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_a_partition_that_opens_between_the_turns_of_a_fetch_is_not_missed(monkeypatch):
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with opened(partitions=COUNT) as desk:
            await fill(desk, COUNT)
            partitions = desk.broker.partitions
            logs = partitions.of_topic(desk.broker.topics.get("t"))
            late = logs.pop(0)
            real = partitions.require

            def require(name, index, codes):
                if index == COUNT - 1 and 0 not in logs:
                    logs[0] = late
                    desk.broker.long_polls.wake(late)
                return real(name, index, codes)

            monkeypatch.setattr(partitions, "require", require)
            answer = await fetch(desk, range(COUNT), offsets=dict.fromkeys(range(1, COUNT), 1))
            assert [bool(one.records) for one in partitions_of(answer)] == [True] + [False] * (COUNT - 1)
            assert len(desk.broker.long_polls) == 0

    run(conversation)


def test_a_fetch_that_waits_for_a_topic_is_told_that_it_is_deleted():
    async def conversation():
        async with opened(topics=("t", "u")) as desk:
            asked = asyncio.create_task(fetch(desk, (0, 1)))
            await waits(desk)
            await desk.ask(20, 4, topic_names=("t",), timeout=timedelta(seconds=30))
            assert {one.error_code for one in partitions_of(await asked)} == {
                ErrorCode.unknown_topic_or_partition
            }

    run(conversation)


def test_a_fetch_whose_partitions_another_request_forgets_meanwhile_returns_the_others(monkeypatch):
    """The two requests of one session are interleaved in every way."""
    monkeypatch.setattr(turns, "TURN_S", -1)

    async def conversation():
        async with opened(partitions=COUNT) as desk:
            await fill(desk, COUNT)
            forgotten = tuple(range(COUNT // 2, COUNT))
            sizes = set()
            for turn in range(1, 4 * COUNT):
                session = (await fetch(desk, range(COUNT), session=(0, 0))).session_id
                first = asyncio.create_task(fetch(desk, session=(session, 1)))
                for _ in range(turn):
                    await asyncio.sleep(0)
                second = await fetch(desk, forgotten=forgotten, session=(session, 2))
                assert sorted(one.partition_index for one in partitions_of(second)) == [0, 1, 2, 3]
                found = [one.partition_index for one in partitions_of(await first)]
                assert set(found) >= {0, 1, 2, 3}
                sizes.add(len(found))
            assert sizes == set(range(COUNT // 2, COUNT + 1)), "in every way"

    run(conversation)


def test_a_session_is_kept_after_a_long_response(monkeypatch):
    monkeypatch.setattr(fetch_api, "ENTRY_COUNT_MAX", 1)

    async def conversation():
        async with opened(partitions=COUNT) as desk:
            await fill(desk, COUNT)
            begun = await fetch(desk, range(COUNT), session=(0, 0))
            assert len(partitions_of(begun)) == COUNT
            resumed = await fetch(desk, session=(begun.session_id, 1))
            assert len(partitions_of(resumed)) == COUNT

    run(conversation)


def test_a_fetch_whose_time_is_over_tells_the_offsets_of_that_moment(monkeypatch):
    """The high watermark has moved while a committed reader waited for the last stable offset."""

    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            await desk.add("a", producer, ("t", 0))

            async def write_and_end(*_arguments):
                await desk.produce(batch(b"x", producer=producer, sequence=0), transactional_id="a")
                return False

            monkeypatch.setattr(desk.broker.long_polls, "wait_for_more", write_and_end)
            [found] = partitions_of(await fetch(desk, (0,), isolation=COMMITTED))
            assert (found.high_watermark, found.last_stable_offset) == (1, 0)

    run(conversation)
