"""Guarantee 6: a write that arrives after its transaction ended, or was kept for another to decide, is refused."""

import asyncio
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.desk import ABORT, COMMIT, batch, opened

NONE = ErrorCode.none
MINUTE = timedelta(minutes=1)
FENCED = (ErrorCode.invalid_producer_epoch, ErrorCode.producer_fenced)


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 100))


@pytest.mark.parametrize("version", [9, 12], ids=["first dialect", "second dialect"])
@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_a_kept_transaction_takes_nothing_more_from_its_old_producer(version, outcome):
    """The successor decides what was there when it came (KIP-939), though its predecessor still runs."""

    async def conversation():
        async with opened() as desk:
            old = await desk.init("a", version=6, enable2_pc=True)
            if version < 12:
                assert await desk.add("a", old, ("t", 0), ("t", 1)) == [NONE, NONE]
            written = await desk.produce(
                batch(b"voted on", producer=old, sequence=0), transactional_id="a", version=version
            )
            assert written.error_code is NONE
            kept = await desk.ask(
                22,
                6,
                transactional_id="a",
                transaction_timeout=MINUTE,
                enable2_pc=True,
                keep_prepared_txn=True,
            )
            assert (kept.ongoing_txn_producer_id, kept.ongoing_txn_producer_epoch) == old
            new = (kept.producer_id, kept.producer_epoch)
            for who, codes in (
                (old, FENCED),
                (new, (ErrorCode.invalid_txn_state, ErrorCode.transaction_abortable)),
            ):
                for partition in (0, 1):
                    sequence = 1 if who == old and partition == 0 else 0
                    late = await desk.produce(
                        batch(b"late", producer=who, sequence=sequence),
                        partition=partition,
                        transactional_id="a",
                        version=version,
                    )
                    assert late.error_code in codes, (who, partition)
            ended = await desk.end("a", new, outcome, version=3 if version < 12 else 5)
            assert ended.error_code is NONE
            assert desk.values() == ([b"voted on"] if outcome is COMMIT else [])
            assert desk.values(partition=1) == []

    run(conversation)


@pytest.mark.parametrize("version", [9, 12], ids=["first dialect", "second dialect"])
def test_a_kept_transaction_takes_nothing_more_after_a_restart_either(version):
    async def conversation():
        async with opened() as desk:
            old = await desk.init("a", version=6, enable2_pc=True)
            if version < 12:
                await desk.add("a", old, ("t", 0))
            await desk.produce(batch(b"1", producer=old, sequence=0), transactional_id="a", version=version)
            await desk.init("a", version=6, enable2_pc=True, keep_prepared_txn=True)
            disk = desk.broker.disk
        async with opened(disk) as desk:
            late = await desk.produce(
                batch(b"late", producer=old, sequence=1), transactional_id="a", version=version
            )
            assert late.error_code in FENCED

    run(conversation)


@pytest.mark.parametrize("outcome", [COMMIT, ABORT])
def test_a_write_between_the_decision_and_its_marker_is_refused(outcome):
    """The partition does not know yet that the transaction has ended; the coordinator does."""

    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"1", producer=who, sequence=0), transactional_id="a")
            with desk.held_disk():
                end = asyncio.create_task(desk.end("a", who, outcome))
                for _ in range(5):
                    await asyncio.sleep(0)
                assert not end.done()
                late = await desk.produce(batch(b"late", producer=who, sequence=1), transactional_id="a")
                assert late.error_code is ErrorCode.not_enough_replicas, "come again, as Kafka says it"
            assert (await end).error_code is NONE
            await desk.durable()
            assert desk.values() == ([b"1"] if outcome is COMMIT else [])

    run(conversation)


def test_a_batch_of_an_ended_transaction_that_comes_again_changes_nothing():
    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            await desk.add("a", who, ("t", 0))
            first = batch(b"1", producer=who, sequence=0)
            assert (await desk.produce(first, transactional_id="a")).error_code is NONE
            await desk.end("a", who, COMMIT)
            await desk.durable()
            partition = desk.broker.partitions.require("t", 0)
            end = partition.end_offset
            again = await desk.produce(first, transactional_id="a")
            assert again.error_code is ErrorCode.out_of_order_sequence_number
            late = await desk.produce(batch(b"2", producer=who, sequence=1), transactional_id="a")
            assert late.error_code is ErrorCode.invalid_txn_state
            assert partition.end_offset == end
            assert desk.values() == [b"1"]

    run(conversation)


def test_a_transactional_batch_needs_the_id_of_its_transaction():
    async def conversation():
        async with opened() as desk:
            who = await desk.init("a")
            other = await desk.init("b")
            await desk.add("a", who, ("t", 0))
            await desk.produce(batch(b"1", producer=who, sequence=0), transactional_id="a")
            for transactional_id in (None, "b", "nobody"):
                for sequence in (1, 2):
                    refused = await desk.produce(
                        batch(b"2", producer=who, sequence=sequence), transactional_id=transactional_id
                    )
                    assert refused.error_code is not NONE
            assert other != who
            await desk.end("a", who, COMMIT)
            assert desk.values() == [b"1"]

    run(conversation)
