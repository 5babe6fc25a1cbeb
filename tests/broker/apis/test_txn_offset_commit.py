"""With which code is a commit of offsets in a transaction refused, in each version?"""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.desk import COMMIT, add_partitions_fields, batch, opened, part

NONE = ErrorCode.none
ALL = range(6)
FIRST = range(5)


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


async def commit(desk, version, who, *, name="a", offset=5):
    partition = part(
        28,
        version,
        "request",
        "TxnOffsetCommitRequestPartition",
        partition_index=0,
        committed_offset=offset,
        committed_metadata=None,
    )
    topic = part(28, version, "request", "TxnOffsetCommitRequestTopic", name="t", partitions=(partition,))
    answer = await desk.ask(
        28,
        version,
        transactional_id=name,
        group_id="g",
        producer_id=who[0],
        producer_epoch=who[1],
        topics=(topic,),
    )
    return answer.topics[0].partitions[0].error_code


async def add_offsets(desk, who, name="a"):
    answer = await desk.ask(
        25, 3, transactional_id=name, producer_id=who[0], producer_epoch=who[1], group_id="g"
    )
    return answer.error_code


@pytest.mark.parametrize("version", ALL)
def test_offsets_are_committed_with_the_transaction(version):
    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            if version < 5:
                assert await add_offsets(desk, who) is NONE
            assert await commit(desk, version, who) is NONE
            offsets = desk.broker.groups.coordinator
            assert offsets.fetch_offsets("g", [("t", 0)]).answer["t", 0].offset == -1
            assert (await desk.end("a", who, COMMIT, version=3 if version < 5 else 5)).error_code is NONE
            assert offsets.fetch_offsets("g", [("t", 0)]).answer["t", 0].offset == 5

    run(conversation)


@pytest.mark.parametrize("version", FIRST)
def test_without_a_transaction_that_has_the_offsets_log_it_is_refused(version):
    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            await desk.ask(24, 3, **add_partitions_fields(3, "a", who, [("t", 0)]))
            refused = ErrorCode.transaction_abortable if version >= 4 else ErrorCode.invalid_txn_state
            assert await commit(desk, version, who) is refused
            assert await add_offsets(desk, who) is NONE
            assert await commit(desk, version, who) is NONE

    run(conversation)


@pytest.mark.parametrize("version", ALL)
def test_while_the_last_transaction_is_being_completed_the_client_is_to_come_again(version):
    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"1", producer=who, sequence=0), transactional_id="a")
            with desk.held_disk():
                end = asyncio.create_task(desk.end("a", who, COMMIT))
                await asyncio.sleep(0)
                early = asyncio.create_task(commit(desk, version, who))
                await asyncio.sleep(0)
            assert (await end).error_code is NONE
            assert await early is ErrorCode.coordinator_not_available

    run(conversation)


@pytest.mark.parametrize("version", ALL)
def test_a_producer_that_was_fenced_and_one_that_never_was_are_told_so(version):
    async def conversation():
        async with opened() as desk:
            old = await desk.init("a")
            new = await desk.init("a")
            assert new[1] > old[1]
            assert await commit(desk, version, old) is ErrorCode.invalid_producer_epoch
            for who, name in ((new, "nobody"), ((new[0] + 1, 0), "a")):
                assert await commit(desk, version, who, name=name) is ErrorCode.invalid_producer_id_mapping

    run(conversation)
