"""Fetches that wait: for what their isolation can see, and with what they have to say."""

import asyncio
import contextlib
import errno
import threading
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import fetch as fetch_api
from stablelog.broker.loop import turns
from stablelog.env import pages
from stablelog.log import read as log_read
from tests.broker.desk import ABORT, batch, opened, part

COMMITTED, UNCOMMITTED = 1, 0


def fetch(desk, *, isolation, offset=0, min_bytes=1, wait=timedelta(seconds=60)):
    asked = part(
        1, 12, "request", "FetchPartition", partition=0, fetch_offset=offset, partition_max_bytes=1 << 20
    )
    topic = part(1, 12, "request", "FetchTopic", topic="t", partitions=(asked,))
    return desk.ask(
        1,
        12,
        max_wait=wait,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
        rack_id="",
    )


async def looked(task):
    """Give a fetch every chance to answer."""
    for _ in range(20):
        await asyncio.sleep(0)
    return task.done()


def test_a_long_poll_waits_for_what_its_isolation_can_see_and_carries_the_aborts_when_it_is_woken():
    """Scenario 32: data below the last stable offset wakes it, an undecided record does not."""

    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            await desk.add("a", producer, ("t", 0))
            committed = asyncio.create_task(fetch(desk, isolation=COMMITTED))
            uncommitted = asyncio.create_task(fetch(desk, isolation=UNCOMMITTED))
            await looked(committed)
            await desk.produce(batch(b"x", producer=producer, sequence=0), transactional_id="a")
            seen = (await uncommitted).responses[0].partitions[0]
            assert seen.aborted_transactions is None
            assert seen.high_watermark == 1
            assert not await looked(committed)
            await desk.end("a", producer, ABORT)
            answer = (await committed).responses[0].partitions[0]
            assert answer.last_stable_offset == 2
            assert [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions] == [
                (producer[0], 0)
            ]

    asyncio.run(asyncio.wait_for(conversation(), 100))


@pytest.mark.parametrize("wait_ms", [0, 30])
def test_a_long_poll_that_runs_out_of_time_carries_the_aborts_too(wait_ms):
    """Scenario 32: however little there is, what is handed out comes with its aborted transactions."""

    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            await desk.add("a", producer, ("t", 0))
            await desk.produce(batch(b"x", producer=producer, sequence=0), transactional_id="a")
            await desk.end("a", producer, ABORT)
            found = await fetch(
                desk, isolation=COMMITTED, min_bytes=1 << 20, wait=timedelta(milliseconds=wait_ms)
            )
            answer = found.responses[0].partitions[0]
            assert answer.error_code is ErrorCode.none
            assert answer.records
            assert [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions] == [
                (producer[0], 0)
            ]

    asyncio.run(asyncio.wait_for(conversation(), 100))


@contextlib.asynccontextmanager
async def cold(monkeypatch, populate):
    """A broker with a large record whose pages are not in memory, and what brings them in."""
    monkeypatch.setattr(fetch_api, "is_in_memory", lambda _view: False)
    monkeypatch.setattr(fetch_api, "populate", populate)
    async with opened() as desk:
        await desk.produce(batch(bytes(fetch_api.COLD_SIZE_MIN)))
        await desk.durable()
        yield desk


def test_others_are_served_while_a_fetch_waits_for_pages_of_the_disk(monkeypatch):
    served = threading.Event()

    def populate(view):
        assert served.wait(60), "nobody is served while pages are read"
        return pages.populate(view)

    async def conversation():
        async with cold(monkeypatch, populate) as desk:
            large = asyncio.create_task(fetch(desk, isolation=COMMITTED))
            assert not await looked(large)
            assert (await desk.produce(batch(b"x"))).error_code is ErrorCode.none
            served.set()
            assert len((await large).responses[0].partitions[0].records) >= fetch_api.COLD_SIZE_MIN

    asyncio.run(conversation())


def test_records_whose_pages_cannot_be_read_are_refused_and_told_once(monkeypatch, caplog):
    def populate(_view):
        raise OSError(errno.EIO, "broken")

    async def conversation():
        async with cold(monkeypatch, populate) as desk:
            for _ in range(3):
                answer = (await fetch(desk, isolation=COMMITTED)).responses[0].partitions[0]
                assert answer.error_code is ErrorCode.kafka_storage_error
                assert not answer.records
            monkeypatch.undo()
            answer = (await fetch(desk, isolation=COMMITTED)).responses[0].partitions[0]
            assert answer.error_code is ErrorCode.none

    asyncio.run(conversation())
    assert [record.getMessage() for record in caplog.records].count(
        "a request cannot be served: reading t-0 failed: Input/output error (EIO)"
    ) == 1


def test_a_fetch_that_ends_at_the_number_of_aborts_does_not_wait_for_more_bytes(monkeypatch):
    """More records are there, so the client fetches them with its next request. The response is encoded in a thread."""
    for module in (log_read, fetch_api):
        monkeypatch.setattr(module, "ABORTED_COUNT_MAX", 2)
    monkeypatch.setattr(fetch_api, "ENTRY_COUNT_MAX", 2)
    encode, encoded_in = fetch_api.encode_fetch_response, []

    def noted(*values):
        encoded_in.append(threading.current_thread())
        return encode(*values)

    monkeypatch.setattr(fetch_api, "encode_fetch_response", noted)

    async def conversation():
        async with opened() as desk:
            producer = await desk.init("a")
            for sequence in range(3):
                await desk.add("a", producer, ("t", 0))
                await desk.produce(batch(b"x", producer=producer, sequence=sequence), transactional_id="a")
                await desk.end("a", producer, ABORT)
            await desk.durable()
            lengths, offset = [], 0
            for _ in range(2):
                asked = fetch(desk, isolation=COMMITTED, offset=offset, min_bytes=1 if offset else 1 << 20)
                found = (await asyncio.wait_for(asked, 30)).responses[0].partitions[0]
                lengths.append(len(found.aborted_transactions))
                offset += 2 * lengths[-1]
            assert lengths == [2, 1]

    asyncio.run(conversation())
    assert [thread is threading.main_thread() for thread in encoded_in] == [False, True]


def test_others_are_served_between_the_partitions_of_a_fetch(monkeypatch):
    """However many partitions a request names, it gives way when its turn is over."""
    monkeypatch.setattr(turns, "TURN_S", -1)
    served, count = 0, 10

    async def others():
        nonlocal served
        while True:
            served += 1
            await asyncio.sleep(0)

    async def conversation():
        async with opened(partitions=count) as desk:
            for index in range(count):
                await desk.produce(batch(b"x"), partition=index)
            asked = tuple(
                part(
                    1,
                    12,
                    "request",
                    "FetchPartition",
                    partition=index,
                    fetch_offset=0,
                    partition_max_bytes=1 << 20,
                )
                for index in range(count)
            )
            topic = part(1, 12, "request", "FetchTopic", topic="t", partitions=asked)
            beside = asyncio.create_task(others())
            answer = await desk.ask(
                1,
                12,
                max_wait=timedelta(seconds=60),
                min_bytes=1,
                max_bytes=1 << 20,
                isolation_level=UNCOMMITTED,
                session_epoch=-1,
                topics=(topic,),
                forgotten_topics_data=(),
                rack_id="",
            )
            beside.cancel()
            found = answer.responses[0].partitions
            assert [each.high_watermark for each in found] == [1] * count
            assert all(each.records for each in found)
            assert served >= count - 1

    asyncio.run(asyncio.wait_for(conversation(), 100))
