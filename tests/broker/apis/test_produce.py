"""A batch whose keys are checked in a thread keeps its place among those of its client, and holds up nobody else."""

import asyncio
import gc
import threading

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import Codec, read_header
from stablelog.batch.proof import PORTION
from stablelog.batch.records import (
    QUICK_SIZE_MAX,
    Record,
    encode_batch,
    is_decoded_quickly,
)
from stablelog.broker.apis import preparation
from stablelog.log.record_checks import SOON_PORTIONS, check_records
from tests.broker import desk
from tests.broker.desk import Desk, delete_topic

MANY = (SOON_PORTIONS + 1) * PORTION  # a thread proves so many records of different sizes
COMPACTED = {"cleanup.policy": "compact"}


def records(count, key=b"key", value=b"value"):
    return [Record(0, 0, key, value + b"v" * (number % 5)) for number in range(count)]


async def together(desk_, batches):
    """Send Produce requests without waiting for answers. Returns the answers, in their order."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(desk_.produce(batch, topic="compacted")) for batch in batches]
    return [task.result() for task in tasks]


def in_order(codec):
    one = {"producer_id": 5, "producer_epoch": 0}
    return [
        encode_batch(records(MANY), codec=codec, base_sequence=0, **one),
        encode_batch(records(1), base_sequence=MANY, **one),
        encode_batch(records(MANY), codec=codec, base_sequence=MANY + 1, **one),
        encode_batch(records(1), base_sequence=2 * MANY + 1, **one),
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_batches_of_a_client_are_appended_in_the_order_in_which_it_sent_them(codec):
    async def scenario():
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, COMPACTED)
            answers = await together(one, in_order(codec))
            assert [answer.error_code for answer in answers] == [ErrorCode.none] * 4
            assert [answer.base_offset for answer in answers] == [0, MANY, MANY + 1, 2 * MANY + 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_missing_key_among_many_is_refused(codec):
    async def scenario():
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, COMPACTED)
            lacking = encode_batch([*records(MANY), *records(1, key=None)], codec=codec)
            refused, taken = await together(one, [lacking, encode_batch(records(1))])
            assert refused.error_code is ErrorCode.invalid_record
            assert taken.base_offset == 0

    asyncio.run(scenario())


def test_a_batch_of_few_bytes_that_becomes_many_is_not_unpacked_by_the_event_loop(monkeypatch):
    bomb = encode_batch(records(1, value=bytes(16 << 20)), codec=Codec.GZIP)
    assert len(bomb) < 1 << 20
    threads = []

    def noted(*arguments):
        threads.append(threading.current_thread())
        check_records(*arguments)

    monkeypatch.setattr(preparation, "check_records", noted)

    async def scenario():
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, COMPACTED)
            assert (await one.produce(bomb, topic="compacted")).error_code is ErrorCode.none

    asyncio.run(scenario())
    assert threads
    assert threading.main_thread() not in threads


def test_others_are_served_while_the_keys_of_a_batch_are_checked(monkeypatch):
    served = threading.Event()

    def late(*arguments):
        assert served.wait(60), "nobody is served while keys are checked"
        check_records(*arguments)

    monkeypatch.setattr(preparation, "check_records", late)

    async def scenario():
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, COMPACTED)
            checked = asyncio.create_task(one.produce(encode_batch(records(MANY)), topic="compacted"))
            await asyncio.sleep(0)
            other = Desk(one.broker)
            assert (await other.produce(encode_batch(records(1)), topic="compacted")).base_offset == 0
            served.set()
            assert (await checked).base_offset == 1

    asyncio.run(scenario())


def test_a_request_keeps_its_memory_until_the_thread_is_done_with_it(monkeypatch):
    """Its connection is lost. What waits for the thread holds no memory of a request that is over."""
    begun, go_on, seen = threading.Event(), threading.Event(), []

    def late(_header, records, *_more):
        begun.set()
        assert go_on.wait(60)
        seen.append(bytes(records))

    monkeypatch.setattr(preparation, "check_records", late)

    async def scenario():
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, COMPACTED)
            batch = encode_batch(records(MANY))
            first = asyncio.create_task(one.produce(batch, topic="compacted"))
            others = [
                asyncio.create_task(Desk(one.broker).produce(batch, topic="compacted")) for _ in range(3)
            ]
            assert await asyncio.to_thread(begun.wait, 60)
            for task in (first, *others):
                task.cancel()
            await asyncio.wait(others)
            assert not first.done(), "the thread reads its records"
            go_on.set()
            await asyncio.wait([first])
            assert first.cancelled()
            assert seen == [batch], "what was cancelled is not looked at"

    asyncio.run(scenario())


@pytest.mark.extended
def test_what_a_thread_finds_for_a_request_that_is_over_is_no_fault_of_the_broker(monkeypatch):
    begun, go_on, told = threading.Event(), threading.Event(), []

    def late(*arguments):
        begun.set()
        assert go_on.wait(60)
        check_records(*arguments)

    monkeypatch.setattr(preparation, "check_records", late)

    async def scenario():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, COMPACTED)
            lacking = encode_batch(records(MANY, key=None))
            asked = asyncio.create_task(one.produce(lacking, topic="compacted"))
            assert await asyncio.to_thread(begun.wait, 60)
            asked.cancel()
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.wait([asked])
            assert asked.cancelled()
            del asked
            gc.collect()

    asyncio.run(scenario())
    assert not told, "what was refused was counted as an unexpected error"


@pytest.mark.parametrize("refused_for", ["size", "crc"])
def test_a_batch_that_may_not_be_written_is_not_unpacked(monkeypatch, refused_for):
    monkeypatch.setattr(preparation, "check_records", lambda *_arguments: pytest.fail("it is looked into"))
    batch = bytearray(encode_batch(records(MANY, key=None), codec=Codec.ZSTD))
    if refused_for == "crc":
        batch[-1] ^= 1
    configs = {**COMPACTED, "max.message.bytes": "100"} if refused_for == "size" else COMPACTED
    code = ErrorCode.message_too_large if refused_for == "size" else ErrorCode.corrupt_message

    async def scenario():
        async with desk.opened() as one:
            one.broker.topic_files.create("compacted", 1, configs)
            assert (await one.produce(bytes(batch), topic="compacted")).error_code is code

    asyncio.run(scenario())


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_nothing_is_unpacked_on_the_event_loop_to_be_decoded(codec):
    assert not is_decoded_quickly(read_header(encode_batch(records(1), codec=codec)))


def test_a_batch_that_is_decoded_on_the_event_loop_has_few_bytes():
    """A record may have a header in each two bytes."""
    many = Record(0, 0, None, None, (("", None),) * (QUICK_SIZE_MAX // 2))
    assert not is_decoded_quickly(read_header(encode_batch([many])))
    assert is_decoded_quickly(read_header(encode_batch([many._replace(headers=many.headers[:-100])])))


def test_a_topic_that_is_compacted_from_now_on_is_not_given_what_was_checked_for_another(monkeypatch):
    """The batch was checked for a topic that is deleted meanwhile; the new one of the name checks it again."""
    deleted, lacking = threading.Event(), encode_batch(records(MANY, key=None))

    def late(*arguments):
        if deleted.is_set():
            check_records(*arguments)
        assert deleted.wait(60)  # and finds every key there

    monkeypatch.setattr(preparation, "check_records", late)

    async def scenario():
        async with desk.opened() as one:
            topic_files = one.broker.topic_files
            topic_files.create("compacted", 1, COMPACTED)
            checked = asyncio.create_task(one.produce(lacking, topic="compacted"))
            await asyncio.sleep(0)
            delete_topic(topic_files, "compacted")
            topic_files.create("compacted", 1, COMPACTED)
            deleted.set()
            assert (await checked).error_code is ErrorCode.invalid_record

    asyncio.run(scenario())


def test_a_batch_of_a_transaction_is_acknowledged_when_the_commit_log_is_durable_too():
    """Otherwise a crash could leave an acknowledged batch of a transaction that the coordinator does not know."""

    async def scenario():
        async with desk.opened() as one:
            me = await one.init("me")
            await one.durable()
            journal = one.broker.transactions.default.journal
            durable = asyncio.get_running_loop().create_future()
            journal.durable_future = lambda: durable
            sent = desk.batch(b"x", producer=me, sequence=0)
            waiting = asyncio.create_task(one.produce(sent, transactional_id="me", version=12))
            while one.broker.partitions.require("t", 0).high_watermark == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            durable.set_result(None)
            assert (await waiting).error_code is ErrorCode.none

    asyncio.run(asyncio.wait_for(scenario(), 100))
