"""No periodic work of the coordinators holds the event loop for more than 20 ms of its thread's processor time."""

import asyncio

import pytest

from stablelog.broker.durability import journal as journal_module
from stablelog.coordinators.transactions.answers import Decision
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.coordinators.transactions.transaction import TransactionMetadata
from stablelog.wire.extension.children import JointName, child_id
from tests.broker.holding import HOLD_S_MAX, longest
from tests.broker.upkeep.test_maintenance import until, working

ID_COUNT = 100_000


def with_idle_ids(broker, count):
    """Transactional ids that have had a transaction, and their records in the commit log."""
    group = broker.transactions.default
    table, records = group.coordinator.table, []
    for number in range(count):
        txn = TransactionMetadata(
            1_000_000 + number,
            1,
            60_000,
            TransactionState.COMPLETE_COMMIT,
            update_ms=broker.now_ms(),
            start_ms=broker.now_ms(),
            transaction_version=2,
            commit_sequence=1,
        )
        table.put(f"app-{number:06d}", txn, records)
    for begin in range(0, count, 1000):
        group.apply(Decision(None, records[begin : begin + 1000]))


@pytest.mark.extended
def test_a_checkpoint_of_100_000_ids_is_written_between_requests(monkeypatch, holds):
    monkeypatch.setattr(journal_module, "CHECKPOINT_SIZE_MIN", 1 << 20)
    settings = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 3_600_000}

    async def conversation():
        async with working(**settings) as (desk, _):
            broker = desk.broker
            group = broker.transactions.default
            with_idle_ids(desk.broker, ID_COUNT)
            await group.journal.wait_until_durable()
            await asyncio.sleep(0.01)
            end = group.journal.partition.end_offset
            holds.clear()
            trimming = asyncio.ensure_future(broker.maintenance.trim_logs())
            meanwhile = asyncio.ensure_future(desk.init("served meanwhile"))
            turn_count = 0
            while not trimming.done():
                await asyncio.sleep(0)
                turn_count += 1
            await trimming
            await meanwhile
            assert group.journal.partition.start_offset >= end
            assert group.journal.partition.end_offset - end > ID_COUNT
            assert turn_count > ID_COUNT // journal_module.CHECKPOINT_SLICE_COUNT
            found = longest(holds)
            assert found[0] < HOLD_S_MAX, found

    asyncio.run(asyncio.wait_for(conversation(), 300))


@pytest.mark.extended
def test_ids_expire_between_requests(holds):
    settings = {
        "transactional_id_expiration_ms": 1000,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 3_600_000,
    }

    async def conversation():
        async with working(**settings) as (desk, clock):
            group = desk.broker.transactions.default
            with_idle_ids(desk.broker, 20_000)
            await group.journal.wait_until_durable()
            clock.advance(2000)
            holds.clear()
            await desk.broker.maintenance.forget_expired()
            assert len(group.coordinator.table) == 0
            found = longest(holds)
            assert found[0] < HOLD_S_MAX, found

    asyncio.run(asyncio.wait_for(conversation(), 300))


def test_the_expiry_of_ids_ends_where_keys_are_held_by_their_children():
    """Such a key is due again at each later time. The clock goes on while others are served."""

    async def conversation():
        async with working() as (desk, clock):
            group = desk.broker.transactions.default
            now_ms = desk.broker.now_ms()
            for number in range(300):
                name = JointName("", f"k{number}")
                group.apply(group.coordinator.joint.commit(name, 0, [], retention_ms=1, now_ms=now_ms))
                child = child_id(name.key, 1, "1", 0, 0)
                group.apply(
                    group.coordinator.producers.init_producer_id(child, 60_000, api_version=5, now_ms=now_ms)
                )
            plain = clock.now_ms

            def later():
                clock.advance(5)
                return plain()

            clock.now_ms = later
            clock.advance(1000)
            await desk.broker.maintenance.forget_expired()

    asyncio.run(asyncio.wait_for(conversation(), 60))


@pytest.mark.extended
def test_transactions_time_out_between_requests(holds):
    settings = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 3_600_000}

    async def conversation():
        async with working(**settings) as (desk, clock):
            for number in range(1500):
                name = f"open-{number}"
                who = await desk.init(name)
                await desk.add(name, who, ("t", 0))
            clock.advance(70_000)
            holds.clear()
            await desk.broker.maintenance.abort_overdue()
            group = desk.broker.transactions.default
            await until(lambda: not group.coordinator.table.decided_ids())
            found = longest(holds)
            assert found[0] < HOLD_S_MAX, found
            slices, _ = group.coordinator.table.list_transactions(now_ms=desk.broker.now_ms())
            assert [txn.state for some in slices for txn in some] == ["CompleteAbort"] * 1500

    asyncio.run(asyncio.wait_for(conversation(), 300))
