"""A fetch that waits has the rights that its client has when records come, and only for topics that it may read."""

import asyncio
from datetime import timedelta

from kio.schema.errors import ErrorCode

from stablelog.security.principal import Principal
from stablelog.wire.acls import Operation, PatternType, Permission, ResourceType
from tests.broker.desk import Desk, batch, opened

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
CREATE_ACLS, DELETE_ACLS, FETCH = 30, 31, 1
DENIED = ErrorCode.topic_authorization_failed
RULE = {
    "principal": "User:eve",
    "host": "*",
    "operation": Operation.READ,
    "permission_type": Permission.ALLOW,
}


def fetch(desk, topics, session_id, epoch, wait_ms):
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return desk.ask_with(
        FETCH,
        11,
        {
            "max_wait": timedelta(milliseconds=wait_ms),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_id": session_id,
            "session_epoch": epoch,
            "rack_id": "",
            "forgotten_topics_data": (),
            "isolation_level": 0,
            "topics": [{"topic": topic, "partitions": [partition]} for topic in topics],
        },
    )


def found(answer):
    return {one.topic: one.partitions[0] for one in answer.responses}


def run(conversation):
    async def work():
        async with opened(
            topics=("public", "secret"), authorizer_class_name=AUTHORIZER, super_users="User:root"
        ) as root:
            root.stranger.session.principal = Principal("User", "root")
            rule = {
                **RULE,
                "resource_type": ResourceType.TOPIC,
                "resource_name": "public",
                "resource_pattern_type": PatternType.LITERAL,
            }
            await root.ask_with(CREATE_ACLS, 3, {"creations": [rule]})
            await root.produce(batch(b"top secret"), topic="secret")
            await root.durable()
            eve = Desk(root.broker)
            eve.stranger.session.principal = Principal("User", "eve")
            await conversation(root, eve)

    asyncio.run(asyncio.wait_for(work(), 60))


async def waits(desk):
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_topic_that_another_request_adds_to_the_session_is_not_read():
    async def conversation(root, eve):
        begun = await fetch(eve, ["public"], 0, 0, 0)
        waiting = asyncio.create_task(fetch(eve, [], begun.session_id, 1, 200))
        await waits(eve)
        other = Desk(root.broker)
        other.stranger.session.principal = Principal("User", "eve")
        added = found(await fetch(other, ["secret"], begun.session_id, 2, 0))
        assert added["secret"].error_code is DENIED
        for partition in found(await waiting).values():
            assert not partition.records
            assert partition.error_code is DENIED

    run(conversation)


def test_a_removed_rule_holds_for_a_fetch_that_waits():
    async def conversation(root, eve):
        begun = await fetch(eve, ["public"], 0, 0, 0)
        waiting = asyncio.create_task(fetch(eve, [], begun.session_id, 1, 60_000))
        await waits(eve)
        rule = {
            "resource_type_filter": ResourceType.TOPIC,
            "resource_name_filter": "public",
            "pattern_type_filter": PatternType.LITERAL,
            "principal_filter": None,
            "host_filter": None,
            "operation": Operation.ANY,
            "permission_type": Permission.ANY,
        }
        await root.ask_with(DELETE_ACLS, 3, {"filters": [rule]})
        await root.produce(batch(b"later"), topic="public")
        await root.durable()
        partition = found(await waiting)["public"]
        assert (partition.error_code, bool(partition.records)) == (DENIED, False)

    run(conversation)


def test_a_session_is_for_the_principal_that_has_begun_it():
    async def conversation(root, eve):
        begun = await fetch(root, ["secret"], 0, 0, 0)
        for epoch in (1, 0, -1):
            answer = await fetch(eve, [], begun.session_id, epoch, 0)
            expected = ErrorCode.fetch_session_id_not_found if epoch == 1 else ErrorCode.none
            assert (answer.error_code, answer.responses) == (expected, ())
        assert (await fetch(root, [], begun.session_id, 1, 0)).error_code is ErrorCode.none

    run(conversation)
