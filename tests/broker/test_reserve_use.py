"""What may use the disk reserve: requests that end nothing open leave it alone, and its last quarter is for what frees room."""

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.durability import journal as journal_module
from stablelog.data_directory.names import RESERVE_FILE
from stablelog.wire.api import ApiKey
from tests.broker.apis.test_joint_apis import begin, child, commit, committed_offset, offset
from tests.broker.desk import ABORT, COMMIT, DATA, batch
from tests.broker.test_full_disk import NoRoom, opened_transaction, run, tend, until

NONE = ErrorCode.none
REFUSED = ErrorCode.coordinator_load_in_progress
SIZE = 256 << 10
FLOOR = SIZE // 4  # kept for what frees room
TRIES = 300


async def filled(desk, disk):
    """Fill the disk, and have the broker see it. Returns the size of the reserve then."""
    disk.fill()
    assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error
    return disk.size(DATA / RESERVE_FILE)


def marker(producer_id, *, commit=False, topic="t"):
    return {
        "producer_id": producer_id,
        "producer_epoch": 0,
        "transaction_result": commit,
        "coordinator_epoch": 0,
        "transaction_version": 0,
        "topics": [{"name": topic, "partition_indexes": [0]}],
    }


async def write_marker(desk, producer_id):
    answer = await desk.ask_with(27, 1, {"markers": [marker(producer_id)]})
    return answer.markers[0].topics[0].partitions[0].error_code


async def abort_joint(desk, key, *, children=(), group=""):
    shown = tuple(one.shown for one in children)
    return await desk.ask(ApiKey.ABORT_JOINT, 0, group=group, key=key, version=0, run="r1", children=shown)


# -- requests that end nothing open -------------------------------------------------------------------------------


@pytest.mark.parametrize("api", ["AbortJoint", "CommitJoint", "EndTxn", "WriteTxnMarkers"])
def test_what_ends_nothing_open_is_refused_and_takes_nothing_from_the_reserve(api):
    disk = NoRoom()

    async def conversation(desk):
        who = await desk.init("a")
        held = await filled(desk, disk)
        log = desk.broker.transactions.default.journal.partition
        end = log.end_offset
        for n in range(TRIES):
            if api == "AbortJoint":
                code = (await abort_joint(desk, f"k{n}")).error_code
            elif api == "CommitJoint":
                code = (await commit(desk, [], key=f"k{n}")).error_code
            elif api == "EndTxn":
                code = (await desk.end("a", who, ABORT, version=5)).error_code
            else:
                code = await write_marker(desk, 10_000 + n)
            assert code is (ErrorCode.kafka_storage_error if api == "WriteTxnMarkers" else REFUSED)
        assert (disk.size(DATA / RESERVE_FILE), log.end_offset) == (held, end)
        disk.grow()
        await tend(desk)
        assert (await desk.end("a", who, ABORT, version=5)).error_code is NONE
        assert (await abort_joint(desk, "k")).error_code is NONE
        assert (await commit(desk, [], key="other")).error_code is NONE
        assert await write_marker(desk, 10_000) is NONE

    assert run(disk, conversation, size=SIZE) == []


def test_what_ends_an_open_transaction_is_served_and_so_is_its_repetition():
    disk = NoRoom()

    async def conversation(desk):
        own = await opened_transaction(desk, "own", b"own")
        hanging = await opened_transaction(desk, "hanging", b"hanging")
        children = {}
        for key in ("committed", "aborted"):
            await begin(desk, key=key)
            children[key] = await child(desk, key)
            assert await children[key].write(key.encode()) is NONE
        await filled(desk, disk)
        for _ in range(2):
            assert (await desk.end("own", own, COMMIT)).error_code is NONE
            assert (await commit(desk, [children["committed"]], key="committed")).error_code is NONE
        assert (await abort_joint(desk, "aborted", children=[children["aborted"]])).error_code is NONE
        assert (await abort_joint(desk, "committed")).committed
        assert await write_marker(desk, hanging[0]) is NONE
        await desk.durable()
        assert not desk.broker.partitions.require("t", 0).log.open_transactions()
        assert desk.values() == [b"own", b"committed"]

    assert run(disk, conversation, size=SIZE) == []


def test_a_joint_commit_with_offsets_is_refused_and_nothing_of_it_is_written():
    """A loop of such commits, each given up before it is decided, would use up the reserve."""
    disk = NoRoom()

    async def conversation(desk):
        await begin(desk)
        one = await child(desk)
        assert await one.write(b"x") is NONE
        held = await filled(desk, disk)
        logs = [desk.broker.transactions.default.journal.partition, desk.broker.groups.journal.partition]
        ends = [log.end_offset for log in logs]
        for _ in range(TRIES):
            assert (await commit(desk, [one], offsets=[offset(7)])).error_code is REFUSED
        assert [log.end_offset for log in logs] == ends
        assert disk.size(DATA / RESERVE_FILE) == held
        disk.grow()
        await tend(desk)
        assert (await commit(desk, [one], offsets=[offset(7)])).error_code is NONE
        await desk.durable()
        assert (desk.values(), committed_offset(desk)) == ([b"x"], 7)

    assert run(disk, conversation, size=SIZE) == []


@pytest.mark.parametrize("api", ["AbortJoint", "CommitJoint"])
def test_no_transaction_group_is_made_on_a_full_disk(api):
    disk = NoRoom()

    async def conversation(desk):
        for n in range(10):
            desk.broker.topic_files.create(f"of-g{n}", 1, {"stablelog.group": f"g{n}"})
        await filled(desk, disk)
        topics = [topic.name for topic in desk.broker.topics]
        fields = {"key": "k", "version": 0, "run": "r1", "children": ()}
        for n in range(10):
            if api == "AbortJoint":
                answer = await desk.ask(ApiKey.ABORT_JOINT, 0, group=f"g{n}", **fields)
            else:
                answer = await desk.ask(ApiKey.COMMIT_JOINT, 0, group=f"g{n}", group_offsets=(), **fields)
            assert answer.error_code is REFUSED
        assert [topic.name for topic in desk.broker.topics] == topics

    assert run(disk, conversation, size=SIZE) == []


def test_a_leader_brings_no_assignment_when_half_of_the_reserve_is_gone():
    """Its assignment is written, and may be large. The member joins again."""
    disk = NoRoom()

    async def conversation(desk):
        join = {
            "group_id": "g",
            "session_timeout": timedelta(seconds=10),
            "rebalance_timeout": timedelta(seconds=10),
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
        }
        joined = await desk.ask_with(11, 3, join)
        assert joined.error_code is NONE
        await filled(desk, disk)
        while 2 * disk.size(DATA / RESERVE_FILE) > SIZE:
            desk.broker.reserve.release()
        disk.fill()
        held, log = disk.size(DATA / RESERVE_FILE), desk.broker.groups.journal.partition
        end = log.end_offset
        sync = {
            "group_id": "g",
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "assignments": [{"member_id": joined.member_id, "assignment": bytes(SIZE)}],
        }
        assert (await desk.ask_with(14, 3, sync)).error_code is ErrorCode.rebalance_in_progress
        assert (disk.size(DATA / RESERVE_FILE), log.end_offset) == (held, end)
        disk.grow()
        await tend(desk)
        assert (await desk.ask_with(14, 3, sync)).error_code is NONE

    assert run(disk, conversation, size=SIZE, group_initial_rebalance_delay_ms=0) == []


# -- the last quarter ----------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_decisions_leave_a_quarter_for_what_frees_room():
    disk = NoRoom()

    async def conversation(desk):
        topics = desk.broker.topics
        for name in ("gone", "cut", "short"):
            await desk.broker.topic_changes.create_topic(
                name, 1, {"segment.bytes": "20000", "retention.ms": "-1"}
            )
            for _ in range(20):
                assert (await desk.produce(batch(bytes(15_000)), topic=name)).error_code is NONE
        producers = [await opened_transaction(desk, f"{n:0900d}", b"x") for n in range(400)]
        await filled(desk, disk)
        ends = []
        for n, who in enumerate(producers):
            ends.append(asyncio.create_task(desk.end(f"{n:0900d}", who, COMMIT)))
            await asyncio.sleep(0)
        journal = desk.broker.transactions.default.journal
        for _ in range(3):
            await asyncio.sleep(0.01)
            await tend(desk)
        assert journal.is_waiting, "the decisions need more than the reserve has for them"
        assert disk.size(DATA / RESERVE_FILE) == FLOOR
        disk.fill()
        desk.broker.topic_files.configure(
            desk.broker.topics.get("short"), {"retention.bytes": "20000", "file.delete.delay.ms": "0"}
        )
        await desk.broker.maintenance.apply_retention()
        assert len(desk.broker.partitions.require("short", 0).segments()) < 4
        deleted = await desk.ask_with(
            21,
            2,
            {
                "topics": [{"name": "cut", "partitions": [{"partition_index": 0, "offset": 15}]}],
                "timeout": timedelta(seconds=5),
            },
        )
        assert deleted.topics[0].partitions[0].low_watermark == 15
        deleting = asyncio.create_task(desk.broker.topic_changes.delete_topic("gone"))
        await until(lambda: topics.get("gone") is None or deleting.done())
        for _ in range(3):
            await tend(desk)
        await deleting
        assert [end.error_code for end in await asyncio.gather(*ends)] == [NONE] * len(producers)

    assert run(disk, conversation, size=SIZE, log_segment_delete_delay_ms=0) == []


# -- what waits in memory ------------------------------------------------------------------------------------------


def test_repeated_requests_that_wait_for_room_take_no_memory(monkeypatch):
    """Their clients give up, and ask again: nothing of a request outlives it.

    The broker stops when more than a few entries wait.
    """
    disk = NoRoom()
    monkeypatch.setattr(journal_module, "WAITING_PER_ITEM", 2)

    async def conversation(desk):
        who = await opened_transaction(desk, "a", b"x")
        other = await opened_transaction(desk, "b", b"y")
        journal = desk.broker.transactions.default.journal
        disk.fill()
        first = asyncio.create_task(desk.end("a", who, COMMIT))
        await until(lambda: journal.is_waiting)

        async def given_up(ask):
            task = asyncio.create_task(ask)
            for _ in range(3):
                await asyncio.sleep(0)
            task.cancel()

        for n in range(TRIES):
            await given_up(desk.end("a", who, COMMIT))
            await given_up(abort_joint(desk, f"k{n}"))
            await given_up(desk.ask(42, 1, groups_names=(f"g{n}",)))
            if n == TRIES // 2:
                second = asyncio.create_task(desk.end("b", other, ABORT))
        assert not desk.broker.groups.journal.is_waiting
        again = asyncio.create_task(desk.end("a", who, COMMIT))
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in (first, second, again))
        disk.grow()
        await tend(desk)
        answers = await asyncio.gather(first, second, again)
        assert [answer.error_code for answer in answers] == [NONE] * 3
        await desk.durable()
        assert desk.values() == [b"x"]

    assert run(disk, conversation) == []


def test_the_disk_counts_as_full_as_long_as_a_record_waits():
    """Else clients could begin something whose record would wait in memory, too."""
    disk = NoRoom()

    async def conversation(desk):
        who = await opened_transaction(desk, "a", b"x")
        reserve = desk.broker.reserve
        disk.fill()
        end = asyncio.create_task(desk.end("a", who, COMMIT))
        await until(lambda: desk.broker.transactions.default.journal.is_waiting)
        disk.grow()
        await reserve.restore()
        assert reserve.is_full
        assert (await desk.produce(batch(b"no"))).error_code is ErrorCode.kafka_storage_error
        await tend(desk)
        assert not reserve.is_full
        assert (await end).error_code is NONE
        assert (await desk.produce(batch(b"yes"))).error_code is NONE

    assert run(disk, conversation) == []


def test_more_than_can_end_is_never_kept_in_memory():
    disk = NoRoom()

    async def conversation(desk):
        await desk.init("a")
        disk.fill()
        journal = desk.broker.transactions.default.journal
        with pytest.raises(AssertionError, match="entries wait for room in __transaction_state"):
            for _ in range(1000):
                journal.append([(b"key", b"value")])
        disk.grow()

    run(disk, conversation)
