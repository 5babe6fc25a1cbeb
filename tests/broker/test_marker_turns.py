"""The markers of many partitions are written in several turns of the loop, in the order of the decisions."""

import asyncio
import errno
import itertools

import pytest
from kio.schema.errors import ErrorCode

from stablelog.batch.header import headers_in
from stablelog.broker.loop import turns
from stablelog.broker.transactions import marker_queue, marker_writer
from stablelog.errors import DiskError
from stablelog.log.partition import Isolation, Partition
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.children import child_id
from stablelog.wire.extension.joint import JointChild
from tests.broker.desk import ABORT, COMMIT, batch, opened

COUNT = 7


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Two partitions in a turn, and each turn is over at once."""
    monkeypatch.setattr(marker_queue, "AT_ONCE_MAX", 2)
    monkeypatch.setattr(turns, "TURN_S", -1)


async def write(desk, transactional_id, partitions):
    producer = await desk.init(transactional_id)
    await desk.add(transactional_id, producer, *(("t", index) for index in partitions))
    for index in partitions:
        records = batch(transactional_id.encode(), producer=producer, sequence=0)
        await desk.produce(records, partition=index, transactional_id=transactional_id)
    return producer


def test_a_client_is_answered_when_all_markers_are_written_and_others_are_served_in_between():
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            producer = await write(desk, "a", range(COUNT))
            logs = list(desk.broker.partitions.of_topic(desk.broker.topics.named("t")).values())
            steps = []
            ended = asyncio.create_task(desk.end("a", producer, COMMIT))
            while not ended.done():
                steps.append(sum(bool(log.log.open_transactions()) for log in logs))
                await asyncio.sleep(0)
            assert len(set(steps)) > 2, "it was done in turns"
            await desk.durable()
            assert [desk.values(partition=index) for index in range(COUNT)] == [[b"a"]] * COUNT

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_what_is_decided_meanwhile_is_written_after_it():
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            first = await write(desk, "a", range(COUNT))
            others = {name: await write(desk, name, [0, 6]) for name in ("b", "c")}
            with desk.held_disk():
                ends = [asyncio.create_task(desk.end("a", first, COMMIT))]
                await asyncio.sleep(0)
                ends += [
                    asyncio.create_task(desk.end(name, producer, COMMIT)) for name, producer in others.items()
                ]
                await asyncio.sleep(0)
            await asyncio.gather(*ends)
            await desk.durable()
            for index in (0, 6):
                log = desk.broker.partitions.require("t", index)
                assert log.last_stable_offset == log.end_offset == 6
                log.log.prove_segments()
                data = b"".join(log.read(0, 1 << 20, Isolation.READ_UNCOMMITTED).buffers)
                markers = [header.producer_id for _, header in headers_in(data) if header.is_control]
                assert markers == [first[0], others["b"][0], others["c"][0]]

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_transaction_is_complete_only_when_the_last_turn_has_written_its_markers(monkeypatch):
    """Also if a partition that had no room for its marker has room again between two turns."""

    async def conversation():
        async with opened(partitions=COUNT) as desk:
            producer = await write(desk, "a", range(COUNT))
            group = desk.broker.transactions.default
            logs = list(desk.broker.partitions.of_topic(desk.broker.topics.named("t")).values())
            append_markers, without_room = Partition.append_markers, []

            def append_or_refuse(partition, markers, **times):
                if not without_room:
                    without_room.append((partition.topic, partition.index))
                    raise DiskError("writing markers failed", errno.ENOSPC)
                return append_markers(partition, markers, **times)

            monkeypatch.setattr(Partition, "append_markers", append_or_refuse)
            ended = asyncio.create_task(desk.end("a", producer, COMMIT))
            while all(log.log.open_transactions() for log in logs):  # noqa: ASYNC110
                await asyncio.sleep(0)
            [target] = without_room
            assert group.waits_at(target)
            desk.broker.partition_repair.retry()
            assert not group.waits_at(target)
            assert any(log.log.open_transactions() for log in logs)
            assert group.coordinator.table.get("a").state.label == "PrepareCommit"
            await ended
            await desk.durable()
            assert group.coordinator.table.get("a").state.label == "CompleteCommit"

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_each_small_transaction_ends_in_all_of_its_partitions_in_one_turn(monkeypatch):
    monkeypatch.setattr(marker_queue, "AT_ONCE_MAX", 4)

    async def conversation():
        async with opened(partitions=6) as desk:
            writers = {"a": range(3), "b": range(3, 6)}
            who = {name: await write(desk, name, targets) for name, targets in writers.items()}
            logs = desk.broker.partitions.of_topic(desk.broker.topics.named("t"))
            seen = set()
            with desk.held_disk():
                ends = [asyncio.create_task(desk.end(name, who[name], COMMIT)) for name in writers]
                for _ in range(3):
                    await asyncio.sleep(0)
            while not all(end.done() for end in ends):
                for targets in writers.values():
                    seen.add(tuple(bool(logs[index].log.open_transactions()) for index in targets))
                await asyncio.sleep(0)
            assert seen <= {(True,) * 3, (False,) * 3}, seen

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_the_markers_of_many_transactions_in_one_partition_are_written_in_several_turns(monkeypatch):
    monkeypatch.setattr(marker_queue, "MARKERS_AT_ONCE_MAX", 2)

    async def conversation():
        async with opened(partitions=1) as desk:
            names = [f"p{number}" for number in range(COUNT)]
            who = {name: await write(desk, name, [0]) for name in names}
            log = desk.broker.partitions.require("t", 0)
            append_markers, written, seen = Partition.append_markers, {COUNT}, {COUNT}

            def append(partition, markers, **times):
                appended = append_markers(partition, markers, **times)
                if partition is log:
                    written.add(len(log.log.open_transactions()))
                return appended

            monkeypatch.setattr(Partition, "append_markers", append)
            with desk.held_disk():
                ends = [asyncio.create_task(desk.end(name, who[name], COMMIT)) for name in names]
                for _ in range(3):
                    await asyncio.sleep(0)
            while not all(end.done() for end in ends):
                seen.add(len(log.log.open_transactions()))
                await asyncio.sleep(0)
            assert max(written | seen) == COUNT
            # A sync that ends writes a portion, too, so another task may see two portions at once, and not each of them.
            steps = sorted(written)
            assert all(after - before <= 2 for before, after in itertools.pairwise(steps)), steps
            assert min(steps) == 0
            assert len(seen) > 2, "it was done in turns"
            await desk.durable()
            assert sorted(desk.values()) == sorted(name.encode() for name in names)

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_the_children_of_a_joint_commit_in_one_partition_are_ended_in_several_turns(monkeypatch):
    """Also the reports that they are complete. The client is answered behind the last marker."""
    monkeypatch.setattr(marker_queue, "MARKERS_AT_ONCE_MAX", 2)
    monkeypatch.setattr(marker_queue, "SORTED_AT_ONCE", 2)
    monkeypatch.setattr(marker_writer, "REPORTED_AT_ONCE", 2)

    async def conversation():
        async with opened(partitions=1) as desk:
            names = [child_id("k", 0, "r", number, 0) for number in range(COUNT)]
            who = {name: await write(desk, name, [0]) for name in names}
            table = desk.broker.transactions.default.coordinator.table
            children = tuple(
                JointChild(transactional_id=name, producer_id=producer[0], producer_epoch=producer[1])
                for name, producer in who.items()
            )
            log = desk.broker.partitions.require("t", 0)
            fields = {"key": "k", "version": 0, "run": "r", "children": children, "group_offsets": ()}
            committing = asyncio.create_task(desk.ask(ApiKey.COMMIT_JOINT, 0, **fields))
            open_counts, known_counts = set(), set()
            while not committing.done() or table.decided_ids():
                open_counts.add(len(log.log.open_transactions()))
                known_counts.add(len(table))
                assert not (committing.done() and log.log.open_transactions())
                await asyncio.sleep(0)
            assert (await committing).error_code is ErrorCode.none
            assert open_counts == {7, 5, 3, 1, 0}
            assert {7, 5, 3, 1} <= known_counts
            assert len(table) == 0
            await desk.durable()
            assert len(desk.values()) == COUNT

    asyncio.run(asyncio.wait_for(conversation(), 60))


def test_a_stop_writes_the_markers_that_are_left(caplog):
    async def conversation():
        async with opened(partitions=COUNT) as desk:
            producer = await write(desk, "a", range(COUNT))
            logs = list(desk.broker.partitions.of_topic(desk.broker.topics.named("t")).values())
            ended = asyncio.create_task(desk.end("a", producer, ABORT))
            while all(log.log.open_transactions() for log in logs):  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert any(log.log.open_transactions() for log in logs)
        assert all(not log.log.open_transactions() for log in logs)
        await asyncio.sleep(0)
        assert ended.done() or ended.cancel()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]

    asyncio.run(asyncio.wait_for(conversation(), 60))
