"""A damaged object of the remote tier is one line of the log, however many requests and loads meet it."""

import asyncio

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.tiering.remote_reads import ERROR_S
from stablelog.testing.sim_objects import SimObjects
from tests.broker.tiering.desk import (
    SIMULATED_URL,
    copy,
    run_in_store_time,
    simulate_store,
    tiered,
    write_segments,
)
from tests.broker.tiering.world import lines

RETRIABLE = (ErrorCode.kafka_storage_error, ErrorCode.not_leader_or_follower)


async def refused(desk):
    """Fetch until the load has failed. Return the error code."""
    while True:
        found = await desk.fetch("t", 0, 0, max_wait_ms=50)
        if found.error_code is not ErrorCode.none:
            return found.error_code
        assert not found.records


@pytest.mark.parametrize("damage", ["missing", "other bytes"])
def test_a_damaged_object_is_one_line(damage, monkeypatch, caplog):
    objects = SimObjects()
    simulate_store(monkeypatch, objects)

    async def conversation():
        async with tiered(SIMULATED_URL) as desk:
            await write_segments(desk, 2)
            await copy(desk)
            [key, *_] = sorted(key for key in objects.objects if key.endswith(".log"))
            whole = objects.objects[key]
            if damage == "missing":
                del objects.objects[key]
            else:
                objects.objects[key] = whole[:30] + b"?" + whole[31:]
            for _ in range(3):
                assert await refused(desk) in RETRIABLE
                await asyncio.sleep(ERROR_S)  # The next request loads the object again.
            assert len([line for line in lines(caplog) if key in line]) == 1

    run_in_store_time(objects, conversation())
