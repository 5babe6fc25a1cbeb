"""Damage that a request meets is named in the log, once."""

import asyncio

from kio.schema.errors import ErrorCode

from stablelog.broker.monitoring.damage_log import MESSAGES_MAX, DamageLog
from stablelog.errors import DamageError, RefusedError
from stablelog.testing.sim_disk import SimDisk
from tests.broker.desk import DATA, batch, opened, part

EPOCHS = DATA / "t-0" / "leader-epoch-checkpoint"
END = 23  # OffsetForLeaderEpoch


async def end_of_epoch(desk):
    asked = part(
        END, 3, "request", "OffsetForLeaderPartition", partition=0, current_leader_epoch=-1, leader_epoch=0
    )
    topic = part(END, 3, "request", "OffsetForLeaderTopic", topic="t", partitions=(asked,))
    return (await desk.ask(END, 3, replica_id=-2, topics=(topic,))).topics[0].partitions[0]


def test_a_changed_leader_epoch_checkpoint_is_refused_and_named(caplog):
    disk = SimDisk()

    async def conversation():
        for _ in range(2):
            async with opened(disk) as desk:
                for _ in range(3):
                    assert (await desk.produce(batch(b"a"))).error_code is ErrorCode.none
        assert disk.read_bytes(EPOCHS).endswith(b"1 3\n")
        disk.damage(EPOCHS, disk.read_bytes(EPOCHS)[:-2] + b"2\n")
        async with opened(disk) as desk:
            for _ in range(2):
                assert (await end_of_epoch(desk)).error_code is ErrorCode.kafka_storage_error

    asyncio.run(conversation())
    assert len([line for line in caplog.messages if str(EPOCHS) in line]) == 1


def _of_damage(caplog):
    """The messages of the damage log. asyncio may log the end of a loop of another test meanwhile."""
    return [record for record in caplog.records if record.name == "stablelog.broker.monitoring.damage_log"]


def test_each_damage_is_logged_once_and_refusals_are_not(caplog):
    damage_log = DamageLog()
    for number in range(MESSAGES_MAX + 1):
        for _ in range(2):
            damage_log.log_once(DamageError(f"/x: {number}"))
    damage_log.log_once(RefusedError(ErrorCode.invalid_request, "/x: refused"))
    assert len(_of_damage(caplog)) == MESSAGES_MAX + 1
    damage_log.log_once(DamageError("/x: 0"))
    assert len(_of_damage(caplog)) == MESSAGES_MAX + 2
