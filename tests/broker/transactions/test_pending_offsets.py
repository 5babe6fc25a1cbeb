"""A transaction with offsets of a consumer group may stay open for days: the offsets log is trimmed beside it."""

import asyncio
import contextlib
import random

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.durability import journal
from stablelog.broker.durability.journal import Journal
from stablelog.broker.durability.log_replay import batches_of
from stablelog.testing.sim_disk import SimDisk
from tests.broker.apis.test_txn_offset_commit import add_offsets, commit
from tests.broker.desk import ABORT, COMMIT, opened

NONE = ErrorCode.none


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


async def fill(desk, count):
    """Many commits outside transactions, of another group."""
    where = {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m" * 500}
    fields = {"group_id": "other", "member_id": "", "topics": [{"name": "t", "partitions": [where]}]}
    for _ in range(count):
        await desk.ask_with(8, 6, fields)


def fetched(desk, **how):
    return desk.broker.groups.coordinator.fetch_offsets("g", [("t", 0)], **how).answer["t", 0]


async def turns_until(is_so):
    """Give the broker some turns, and see that this has come."""
    for _ in range(50):
        await asyncio.sleep(0)
    assert is_so()


@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_log_is_trimmed_and_a_start_reads_little_beside_an_open_transaction(
    outcome, is_killed, monkeypatch
):
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 10_000)
    disk = SimDisk()
    chance = random.Random(7)

    async def conversation():
        nonlocal disk
        async with opened(disk) as desk:
            who = await desk.init("a")
            assert await add_offsets(desk, who) is NONE
            assert await commit(desk, 3, who) is NONE
        for _ in range(3):
            async with opened(disk) as desk:
                log = desk.broker.groups.journal.partition
                begin = log.end_offset
                assert log.size < 25_000, "a start reads little"
                await fill(desk, 60)
                await desk.broker.maintenance.trim_logs()
                assert log.start_offset >= begin, "nothing of the time before stays"
                assert fetched(desk).offset == -1
                assert fetched(desk, require_stable=True).code is ErrorCode.unstable_offset_commit
                await desk.durable()
                killed = disk.crash(chance)
            disk = killed if is_killed else disk
        async with opened(disk) as desk:
            answer = await desk.end("a", who, outcome)
            assert answer.error_code is NONE
            await desk.durable()
        async with opened(disk) as desk:
            assert fetched(desk, require_stable=True).offset == (5 if outcome is COMMIT else -1)
            log = desk.broker.groups.journal.partition
            assert log.last_stable_offset == log.high_watermark

    run(conversation)


def test_a_reader_of_the_log_finds_the_offsets_before_their_marker(monkeypatch):
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 10_000)
    # The stop writes no checkpoint.
    monkeypatch.setattr(journal, "STOP_SIZE_MIN", 1 << 30)

    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            await add_offsets(desk, who)
            await commit(desk, 3, who)
            await fill(desk, 60)
            await desk.broker.maintenance.trim_logs()
            await desk.end("a", who, COMMIT)
            await desk.durable()
            log = desk.broker.groups.journal.partition
            mine = [header for _, header in batches_of(log) if header.producer_id == who[0]]
            assert [(header.is_transactional, header.is_control) for header in mine] == [
                (True, False),
                (True, True),
            ]
            assert mine[0].base_offset > log.start_offset
            assert len(desk.values("__consumer_offsets", 0)) >= 2

    run(conversation)


@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_the_log_is_not_trimmed_before_the_marker_of_a_decision_is_durable(outcome, monkeypatch):
    """The decision was made before the checkpoint repeated the offsets: a start that found only the repeated records, and
    no marker, would take them for those of the producer's next transaction.
    """
    monkeypatch.setattr(journal, "CHECKPOINT_SIZE_MIN", 10_000)
    disk = SimDisk()
    chance = random.Random(3)
    killed = []
    trim = Journal.trim

    def trimmed(self, before_offset):
        trim(self, before_offset)
        if self.partition.topic == "__consumer_offsets":
            killed.extend(disk.crash(chance) for _ in range(5))

    monkeypatch.setattr(Journal, "trim", trimmed)

    async def conversation():
        async with opened(disk) as desk:
            who = await desk.init("a")
            await add_offsets(desk, who)
            await commit(desk, 3, who)
            await fill(desk, 60)
            broker = desk.broker
            commit_log, log = broker.transactions.default.journal.partition, broker.groups.journal.partition
            with contextlib.ExitStack() as held:
                with desk.held_log(commit_log):
                    end = asyncio.create_task(desk.end("a", who, outcome))
                    await turns_until(lambda: commit_log.high_watermark < commit_log.end_offset)
                    begin = log.end_offset
                    trimming = asyncio.create_task(broker.maintenance.trim_logs())
                    await turns_until(lambda: log.high_watermark == log.end_offset > begin + 1)
                    held.enter_context(desk.held_log(log))
                await turns_until(lambda: log.high_watermark < log.end_offset)
                assert log.start_offset == 0, "the marker is written, and is not durable"
            await trimming
            assert (await end).error_code is NONE
        assert killed
        for one in killed:
            for path in list(one.files()):
                if path.suffix in (".snapshot", ".producers"):
                    one.lose(path)  # then the producers' state comes from the log alone
            async with opened(one) as desk:
                assert fetched(desk, require_stable=True).offset == (5 if outcome is COMMIT else -1)

    run(conversation)
