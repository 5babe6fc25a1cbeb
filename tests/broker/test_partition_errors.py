"""A disk error or damage in one partition is answered for that partition, and the others of the request are served."""

import asyncio
import errno
from datetime import timedelta
from functools import partial, reduce

import pytest
from kio.schema.errors import ErrorCode

from stablelog.errors import DamageError, DiskError, UnavailableError
from stablelog.log.partition import Isolation
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.api import ApiKey
from tests.broker.desk import COMMIT, batch, opened, produce_fields
from tests.broker.topics.test_partition_state import COMMIT_ORDER, SECOND, fail, in_topics

NONE, STORAGE = ErrorCode.none, ErrorCode.kafka_storage_error
UNKNOWN = ErrorCode.unknown_topic_or_partition
ERRORS = [
    partial(UnavailableError, "the disk fails"),
    partial(DamageError, "a file is damaged"),
    partial(DiskError, "opening a file of it failed", errno.EMFILE),
    partial(FileNotFoundError, errno.ENOENT, "a file of it is gone"),
]


class OnceFailingDisk(SimDisk):
    """A disk on which one operation fails, the first whose name holds a word."""

    word: str | None = None

    def step(self, what, torn=None, path=None):
        if self.word is not None and self.word in what:
            self.word = None
            raise UnavailableError(f"{what}: the disk fails")
        super().step(what, torn, path)


def run(conversation, disk=None, **options):
    async def life():
        async with opened(disk, topics=(), **options) as desk:
            for name in ("bad", "good"):
                desk.broker.topic_files.create(name, 1, COMMIT_ORDER)
                assert (await desk.produce(batch(b"v"), topic=name)).error_code is NONE
            await conversation(desk)

    asyncio.run(asyncio.wait_for(life(), 100))


def both(fields):
    """The same request for `bad` and `good`, in this order."""
    (bad,), (good,) = (fields(name)["topics"] for name in ("bad", "good"))
    return {**fields("bad"), "topics": (bad, good)}


def marks(name):
    return {"name": name, "partition_indexes": (0,)}


def marker(**more):
    fields = {"producer_id": 77, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0}
    return {**fields, "topics": (marks("bad"), marks("good")), **more}


def firsts(topics):
    return [topic.partitions[0].error_code for topic in topics]


# By API: its key, a version, the method of a partition, or of a part of it, that raises, the request, and the codes of the answer.
REQUESTS = {
    "Fetch": (
        1,
        12,
        "read",
        lambda desk: both(lambda name: in_topics(fetch_offset=0, partition_max_bytes=1 << 20)(desk, name, 0)),
        lambda answer: firsts(answer.responses),
    ),
    "ListOffsets": (
        2,
        8,
        "visible_end",
        lambda desk: both(lambda name: in_topics(timestamp=0)(desk, name, 0)),
        lambda answer: firsts(answer.topics),
    ),
    "DeleteRecords": (
        21,
        2,
        "deletion.delete_records",
        lambda desk: both(lambda name: in_topics(offset=0)(desk, name, 0)),
        lambda answer: firsts(answer.topics),
    ),
    "OffsetForLeaderEpoch": (
        23,
        4,
        "replication.end_offset_for_epoch",
        lambda desk: both(lambda name: in_topics(leader_epoch=0)(desk, name, 0)),
        lambda answer: firsts(answer.topics),
    ),
    "WriteTxnMarkers": (
        27,
        2,
        "append_markers",
        lambda _desk: {"markers": (marker(),)},
        lambda answer: firsts(answer.markers[0].topics),
    ),
    "DescribeProducers": (
        61,
        0,
        "log.producers",
        lambda _desk: {"topics": (marks("bad"), marks("good"))},
        lambda answer: firsts(answer.topics),
    ),
}


def raising(error):
    def raises(*_arguments, **_more):
        raise error()  # another one each time: it takes its traceback with it

    return raises


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.func.__name__)
@pytest.mark.parametrize("api", REQUESTS)
def test_each_api_answers_for_the_partition_and_serves_the_other(api, error):
    key, version, method, values, codes = REQUESTS[api]

    async def conversation(desk):
        *parts, name = method.split(".")
        part = reduce(getattr, parts, desk.broker.partitions.require("bad", 0))
        whole = type(part)
        if not callable(getattr(part, name)):
            part.__class__ = type("Failing", (whole,), {"__slots__": (), name: property(raising(error))})
        else:
            setattr(part, name, raising(error))
        assert codes(await desk.ask_with(key, version, values(desk))) == [STORAGE, NONE]
        part.__class__ = whole  # so that the partition can be closed

    run(conversation)


@pytest.mark.parametrize("error", [ERRORS[0], ERRORS[2]], ids=lambda error: error.func.__name__)
def test_produce_answers_for_the_partition_and_appends_to_the_other(error):
    """(What is damaged is the client's batch there: CORRUPT_MESSAGE.)"""

    async def conversation(desk):
        desk.broker.partitions.require("bad", 0).append = raising(error)
        fields = [produce_fields(9, name, 0, batch(b"w")) for name in ("bad", "good")]
        topics = tuple(one["topic_data"][0] for one in fields)
        answer = await desk.ask(0, 9, **{**fields[0], "topic_data": topics})
        assert [t.partition_responses[0].error_code for t in answer.responses] == [STORAGE, NONE]

    run(conversation)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.func.__name__)
@pytest.mark.parametrize(
    ("key", "method", "values"),
    [
        (ApiKey.DESCRIBE_CUT, "offset_after", {"group": None, "commit_sequence": -1, "topics": ("bad",)}),
        (ApiKey.DESCRIBE_COMMITS, "transactions", {"topic": "bad", "partition_index": 0, "offset": 0}),
    ],
)
def test_views_answer_too(key, method, values, error):
    async def conversation(desk):
        setattr(desk.broker.partitions.require("bad", 0).view, method, raising(error))
        answer = await desk.ask_with(key, 0, values)
        assert (answer.error_code, answer.error_message) == (STORAGE, str(error()))

    run(conversation)


def test_a_disk_that_refuses_one_marker_takes_the_next():
    disk = OnceFailingDisk()

    async def conversation(desk):
        disk.word = "append"
        answer = await desk.ask_with(27, 2, {"markers": (marker(), marker(producer_id=78))})
        assert [firsts(one.topics) for one in answer.markers] == [[STORAGE, NONE], [NONE, NONE]]

    run(conversation, disk)


def test_records_are_deleted_where_the_disk_takes_the_new_start():
    disk = OnceFailingDisk()

    async def conversation(desk):
        values = both(lambda name: in_topics(offset=1)(desk, name, 0))
        disk.word = "write view-start-offset"
        answer = await desk.ask_with(21, 2, values)
        assert disk.word is None
        assert firsts(answer.topics) == [STORAGE, NONE]
        for name, start in (("bad", 0), ("good", 1)):
            partition = desk.broker.partitions.require(name, 0)
            assert partition.visible_start(Isolation.READ_COMMITTED) == start

    run(conversation, disk)


async def pending(desk, *requests):
    """Ask while nothing becomes durable, and return the pending answers once all have been appended."""
    answers = [asyncio.create_task(desk.ask_with(*one)) for one in requests]
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(answer.done() for answer in answers)
    return answers


def appends():
    """A Produce and a WriteTxnMarkers that append to both partitions."""
    data = ({"index": 0, "records": batch(b"w")},)
    topics = tuple({"name": name, "partition_data": data} for name in ("bad", "good"))
    produce = {"transactional_id": None, "acks": -1, "timeout": SECOND, "topic_data": topics}
    return (0, 9, produce), (27, 2, {"markers": (marker(),)})


async def check(answers, code):
    produced, marked = await asyncio.gather(*answers)
    assert [t.partition_responses[0].error_code for t in produced.responses] == [code, NONE]
    assert firsts(marked.markers[0].topics) == [code, NONE]


def test_a_topic_that_is_deleted_before_an_append_is_durable_is_unknown():
    async def conversation(desk):
        with desk.held_disk():
            answers = await pending(desk, *appends())
            await desk.broker.topic_changes.delete_topic("bad")
        await check(answers, UNKNOWN)

    run(conversation)


def test_a_partition_that_fails_before_an_append_is_durable_is_offline_and_the_broker_goes_on():
    disk = SimDisk()

    async def conversation(desk):
        with desk.held_disk():
            answers = await pending(desk, *appends())
            fail(desk.broker.partitions.require("bad", 0))
        await check(answers, STORAGE)
        assert (await desk.produce(batch(b"x"), topic="good")).error_code is NONE
        assert (await desk.produce(batch(b"x"), topic="bad")).error_code is STORAGE

    run(conversation, disk)


async def begin(desk, transactional_id):
    """A transaction with a record in both partitions."""
    me = await desk.init(transactional_id)
    assert await desk.add(transactional_id, me, ("bad", 0), ("good", 0)) == [NONE, NONE]
    for name in ("bad", "good"):
        records = batch(transactional_id.encode(), producer=me, sequence=0)
        written = await desk.produce(records, topic=name, transactional_id=transactional_id)
        assert written.error_code is NONE
    return me


def test_a_commit_over_a_partition_that_has_failed_is_answered_and_marked_there_at_the_next_start():
    disk = SimDisk()

    async def conversation(desk):
        me = await begin(desk, "me")
        await desk.durable()
        fail(desk.broker.partitions.require("bad", 0))
        assert (await desk.end("me", me, COMMIT)).error_code is NONE
        await desk.durable()
        assert desk.values("good") == [b"v", b"me"]
        cut = await desk.ask_with(
            ApiKey.DESCRIBE_CUT, 0, {"group": None, "commit_sequence": -1, "topics": ("good",)}
        )
        assert (cut.commit_sequence, cut.last_commit_sequence) == (0, 1)
        assert [(holder.topic, holder.partition_index) for holder in cut.holders] == [("bad", 0)]
        (again,) = await desk.add("me", me, ("good", 0))
        assert again is ErrorCode.concurrent_transactions

    async def restarted():
        async with opened(disk, topics=()) as desk:
            await desk.durable()
            assert desk.values("bad") == desk.values("good") == [b"v", b"me"]

    run(conversation, disk)
    asyncio.run(asyncio.wait_for(restarted(), 100))


def test_a_topic_is_deleted_although_a_directory_of_it_cannot_be_renamed():
    async def conversation(desk):
        desk.broker.disk.rename = raising(partial(DiskError, "renaming failed", errno.EIO))
        answer = await desk.ask_with(
            20, 6, {"topics": ({"name": "bad", "topic_id": None},), "timeout": timedelta(seconds=1)}
        )
        assert answer.responses[0].error_code is NONE
        assert desk.broker.topics.get("bad") is None

    run(conversation)


def offline_lines(caplog):
    return [record.getMessage() for record in caplog.records if "bad-0 has failed" in record.getMessage()]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_partition_that_fails_in_an_administrators_marker_is_named_in_the_log_once(number, caplog):
    """Also where nothing else ever writes there; for lack of room, it is opened again by itself."""
    disk = SimDisk()

    async def conversation(desk):
        disk.fault = lambda what, path: (
            number if path.parent.name == "bad-0" and path.suffix == ".log" and what == "writing" else None
        )
        disk.fails_late = True
        answer = await desk.ask_with(27, 1, {"markers": [marker(topics=(marks("bad"), marks("good")))]})
        codes = [topic.partitions[0].error_code for topic in answer.markers[0].topics]
        # While the disk counts as full, a marker that ends nothing is refused.
        assert codes == [STORAGE, STORAGE if number == errno.ENOSPC else NONE]
        assert len(offline_lines(caplog)) == 1
        disk.fault, disk.fails_late = None, False
        for _ in range(2):
            await desk.broker.maintenance.apply_retention()
            await desk.produce(batch(b"v"), topic="bad")
        assert len(offline_lines(caplog)) == 1
        await desk.broker.maintenance.tend_reserve()
        code = (await desk.produce(batch(b"v"), topic="bad")).error_code
        assert code is (NONE if number == errno.ENOSPC else STORAGE)

    run(conversation, disk)


def test_whatever_fails_a_partition_is_reported_by_the_partition_itself(caplog):
    async def conversation(desk):
        await desk.broker.topic_changes.grow_topic("good", 2)
        for name, index in (("bad", 0), ("good", 1)):
            desk.broker.partitions.require(name, index).availability.mark_failed(
                UnavailableError("on purpose")
            )
            desk.broker.partitions.of_topic(desk.broker.topics.named(name))[index].availability.mark_failed(
                UnavailableError("again")
            )
        assert len(offline_lines(caplog)) == 1
        assert caplog.text.count("good-1 has failed") == 1
        assert "again" not in caplog.text

    run(conversation)
