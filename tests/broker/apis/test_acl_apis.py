"""CreateAcls, DescribeAcls and DeleteAcls in a whole broker, and the file of the ACLs."""

import asyncio
import logging

import pytest
from kio.schema.errors import ErrorCode

from stablelog.broker.monitoring.limited_log import LINES_MAX, PERIOD_MS
from stablelog.broker.security.access import DenialLog
from stablelog.data_directory.acl_file import acl_file, decode_acls, encode_acls
from stablelog.errors import DamageError, UsageError
from stablelog.ops.verify import verify_data_directory
from stablelog.security.principal import Principal
from stablelog.testing.sim_disk import SimDisk
from stablelog.wire.acls import AclBinding, Operation, Pattern, PatternType, Permission, ResourceType
from tests.broker.desk import DATA, batch, opened

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ROOT, ALICE = Principal("User", "root"), Principal("User", "alice")
SECURED = {"authorizer_class_name": AUTHORIZER, "super_users": "User:root"}
RULE = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:alice",
    "host": "*",
    "operation": 4,
    "permission_type": 3,
}
EVERY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
BINDING = AclBinding(Pattern(ResourceType.TOPIC, "t"), "User:alice", "*", Operation.WRITE, Permission.ALLOW)


def run(conversation):
    asyncio.run(asyncio.wait_for(conversation(), 60))


async def create(desk, *rules, version=3):
    return (await desk.ask_with(30, version, {"creations": list(rules)})).results


async def describe(desk, version=3, **more):
    answer = await desk.ask_with(29, version, {**EVERY, **more})
    assert answer.error_code is ErrorCode.none, answer
    return [
        (each.resource_type, each.resource_name, each.pattern_type, acl.principal, acl.host, acl.operation)
        for each in answer.resources
        for acl in each.acls
    ]


async def delete(desk, *filters, version=3):
    return (await desk.ask_with(31, version, {"filters": list(filters)})).filter_results


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_rule_is_created_described_and_deleted_and_outlives_a_restart(version):
    async def conversation():
        disk = SimDisk()
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ALICE
            assert (await desk.produce(batch(b"1"))).error_code is ErrorCode.topic_authorization_failed
            desk.stranger.session.principal = ROOT
            for _ in range(2):  # A rule that is there already is a success.
                (created,) = await create(desk, RULE, version=version)
                assert created.error_code is ErrorCode.none, created
            desk.stranger.session.principal = ALICE
            assert (await desk.produce(batch(b"1"))).error_code is ErrorCode.none
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ALICE
            assert (await desk.produce(batch(b"2"))).error_code is ErrorCode.none
            desk.stranger.session.principal = ROOT
            assert await describe(desk, version) == [(2, "t", 3, "User:alice", "*", 4)]
            results = await delete(desk, {**EVERY, "principal_filter": "User:alice"}, EVERY, version=version)
            assert [len(each.matching_acls) for each in results] == [1, 1]
            desk.stranger.session.principal = ALICE
            assert (await desk.produce(batch(b"3"))).error_code is ErrorCode.topic_authorization_failed
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ROOT
            assert await describe(desk) == []
        # Without an authorizer nobody is asked for rights.
        async with opened(disk) as desk:
            assert (await desk.produce(batch(b"4"))).error_code is ErrorCode.none

    run(conversation)


INVALID = [
    ("resource_type", 1),
    ("resource_type", 99),
    ("resource_name", ""),
    ("resource_pattern_type", 2),
    ("resource_pattern_type", 1),
    ("principal", "alice"),
    ("host", ""),
    ("operation", 1),
    ("operation", 0),
    ("permission_type", 1),
    ("resource_type", 4),  # The cluster has another name.
]


def test_an_entry_that_is_not_valid_is_refused_and_the_others_are_created():
    async def conversation():
        async with opened(**SECURED) as desk:
            desk.stranger.session.principal = ROOT
            wrong = [{**RULE, field: value} for field, value in INVALID]
            *refused, created = await create(desk, *wrong, RULE)
            assert [each.error_code for each in refused] == [ErrorCode.invalid_request] * len(INVALID)
            assert all(each.error_message for each in refused)
            assert created.error_code is ErrorCode.none
            assert len(await describe(desk)) == 1
            bad, good = await delete(desk, {**EVERY, "operation": 99}, EVERY)
            assert bad.error_code is ErrorCode.invalid_request
            assert len(good.matching_acls) == 1

    run(conversation)


def test_a_filter_with_match_finds_every_rule_that_applies_to_a_resource():
    async def conversation():
        async with opened(**SECURED) as desk:
            desk.stranger.session.principal = ROOT
            names = [("t", 3), ("*", 3), ("t", 4), ("to", 4), ("x", 3)]
            await create(
                desk,
                *({**RULE, "resource_name": name, "resource_pattern_type": kind} for name, kind in names),
            )
            asked = {"resource_name_filter": "topic", "pattern_type_filter": 2, "resource_type_filter": 2}
            found = {(rule[1], rule[2]) for rule in await describe(desk, **asked)}
            assert found == {("*", 3), ("t", 4), ("to", 4)}

    run(conversation)


def test_acls_that_are_damaged_or_lost_are_refused_by_name_at_the_start():
    async def conversation():
        disk = SimDisk()
        path = DATA / "acls.json"
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ROOT
            await create(desk, RULE)
        content = disk.read_bytes(path)
        assert decode_acls(content) == [BINDING]
        for damaged in (content.replace(b"alice", b"alicf"), b"", None):
            disk.remove(path)
            if damaged is not None:
                disk.write_atomic(path, damaged)
            with pytest.raises(DamageError, match=r"acls\.json, which holds the ACLs, cannot be read"):
                async with opened(disk, **SECURED):
                    pass
            found = [str(each.path) for each in verify_data_directory(disk, DATA)]
            assert str(path) in found, found
        disk.write_atomic(path, content)
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ROOT
            assert len(await describe(desk)) == 1

    run(conversation)


def test_acls_without_an_authorizer_refuse_the_start():
    async def conversation():
        disk = SimDisk()
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ROOT
            await create(desk, RULE)
        with pytest.raises(UsageError, match=r"acls\.json has ACLs, and authorizer\.class\.name is not set"):
            async with opened(disk):
                pass
        async with opened(disk, **SECURED) as desk:
            desk.stranger.session.principal = ROOT
            await delete(desk, EVERY)
        async with opened(disk):
            pass

    run(conversation)


def test_a_host_has_one_form_and_a_deny_for_no_address_is_refused():
    async def conversation():
        async with opened(**SECURED) as desk:
            desk.stranger.session.principal = ROOT
            await create(desk, {**RULE, "host": "2001:DB8:0:0:0:0:0:1"})
            assert [rule[4] for rule in await describe(desk)] == ["2001:db8::1"]
            asked = {"host_filter": "2001:0db8::1", "resource_type_filter": 2}
            assert len(await describe(desk, **asked)) == 1
            denies = {**RULE, "host": "host.example.org", "permission_type": Permission.DENY}
            answer = await desk.ask_with(30, 3, {"creations": [denies]})
            assert answer.results[0].error_code is ErrorCode.invalid_request
            assert "is not an IP address" in answer.results[0].error_message

    run(conversation)


def test_a_lost_file_is_noticed_although_no_rule_was_ever_created():
    async def conversation():
        disk = SimDisk()
        async with opened(disk, **SECURED):
            pass
        disk.remove(DATA / "acls.json")
        for settings in (SECURED, {}):  # without an authorizer, too
            with pytest.raises(DamageError, match="the file is missing"):
                async with opened(disk, **settings):
                    pass

    run(conversation)


def test_every_operation_type_and_permission_outlives_the_file():
    bindings = [
        AclBinding(
            Pattern(
                kind,
                "kafka-cluster" if kind is ResourceType.CLUSTER else "ä\n",
                pattern_type if kind is not ResourceType.CLUSTER else PatternType.LITERAL,
            ),
            "User:CN=a,O=b",
            "::1",
            operation,
            permission,
        )
        for kind in ResourceType
        if kind >= ResourceType.TOPIC
        for pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
        for operation in Operation
        if operation >= Operation.ALL
        for permission in (Permission.DENY, Permission.ALLOW)
    ]
    assert decode_acls(encode_acls(bindings)) == bindings
    disk = SimDisk()
    disk.make_dir(DATA)
    assert acl_file(disk, DATA).load() == []


@pytest.mark.parametrize("name", ["kafka.security.auth.SimpleAclAuthorizer", "StandardAuthorizer"])
def test_another_authorizer_is_refused_with_the_possible_values(name):
    async def conversation():
        with pytest.raises(UsageError, match=r"empty or org\.apache\.kafka\.metadata"):
            async with opened(authorizer_class_name=name):
                pass
        with pytest.raises(UsageError, match=r"super\.users"):
            async with opened(super_users="root"):
                pass

    run(conversation)


def test_changes_and_denied_requests_are_logged_and_a_client_cannot_fill_the_log(caplog):
    async def conversation():
        async with opened(**SECURED) as desk:
            desk.stranger.session.principal = ROOT
            await create(desk, RULE)
            await delete(desk, EVERY)
            desk.stranger.session.principal = ALICE
            for _ in range(3 * LINES_MAX):
                await desk.produce(batch(b"1"), topic="t\nfalse line")
            assert desk.broker.acls.denials.count == 3 * LINES_MAX

    with caplog.at_level(logging.INFO, logger="stablelog.authorizer"):
        run(conversation)
    lines = [record.getMessage() for record in caplog.records if record.name == "stablelog.authorizer"]
    who = "by 'User:root' from host nowhere: 'ALLOW User:alice from host * WRITE on TOPIC:LITERAL:t'"
    assert lines[:2] == [f"an ACL was created {who}", f"an ACL was deleted {who}"]
    denied = [line for line in lines if line.startswith("denied")]
    assert len(denied) == LINES_MAX
    assert denied[0] == (r"denied: 'User:alice' from host nowhere, Produce: WRITE on TOPIC 't\nfalse line'")


def test_the_denials_that_were_not_logged_are_counted_in_the_log(caplog):
    now = [0]
    denials = DenialLog(lambda: now[0])
    with caplog.at_level(logging.INFO, logger="stablelog.authorizer"):
        for _ in range(LINES_MAX + 5):
            denials.log_denial("User:a", "h", "Fetch", Operation.READ, ResourceType.TOPIC, "x" * 1000)
        now[0] = PERIOD_MS
        denials.log_denial("User:a", "h", "Fetch", Operation.READ, ResourceType.TOPIC, "x")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_MAX + 2
    assert lines[-2] == "5 denied requests were not logged"
    assert max(map(len, lines)) < 400
