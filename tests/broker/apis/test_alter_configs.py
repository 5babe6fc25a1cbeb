"""AlterConfigs and ListConfigResources: replacement of all settings of a resource, and which resources there are."""

import asyncio
import uuid
from dataclasses import fields

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.broker.apis import config_changes
from stablelog.testing.sim_disk import SimDisk
from tests.broker.apis.test_consumer_protocol_apis import a_heartbeat
from tests.broker.apis.test_incremental_alter_configs import alter as alter_single
from tests.broker.desk import opened
from tests.clients.drivers import unique
from tests.declared_apis import APIS

DESCRIBE, ALTER, LIST = 32, 33, 74
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE = 0, 1
OF_TOPIC, DYNAMIC, DYNAMIC_OF_ALL, STATIC, DEFAULT = 1, 2, 3, 4, 5
VERSIONS = APIS[ALTER].served_versions
NONE = ErrorCode.none


def at_desk(conversation, disk=None, **settings):
    async def work():
        async with opened(disk, **settings) as desk:
            await conversation(desk)
            return desk.broker.disk

    return asyncio.run(asyncio.wait_for(work(), 100))


async def replace_all(desk, *resources, version=2, validate_only=False):
    """Ask for (type, name, settings) of each resource; the answers without their text."""
    asked = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": setting, "value": value} for setting, value in settings],
        }
        for kind, name, settings in resources
    ]
    answer = await desk.ask_with(ALTER, version, {"resources": asked, "validate_only": validate_only})
    assert [(one.resource_type, one.resource_name) for one in answer.responses] == [r[:2] for r in resources]
    assert all((one.error_code is NONE) == (one.error_message is None) for one in answer.responses)
    return [one.error_code for one in answer.responses]


async def described(desk, kind, name, *settings, synonyms=False):
    """(value, source) by setting of those that are asked for, or that were set."""
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": settings or None}
    values = {"resources": [asked], "include_synonyms": synonyms, "include_documentation": False}
    answer = await desk.ask(DESCRIBE, 4, **{**values, "resources": (DescribeConfigsResource(**asked),)})
    [result] = answer.results
    assert result.error_code is NONE, result.error_message
    if synonyms:
        return {c.name: [(s.name, s.value, s.source) for s in c.synonyms] for c in result.configs}
    return {
        c.name: (c.value, c.config_source) for c in result.configs if settings or c.config_source < STATIC
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_settings_of_a_topic_that_the_request_does_not_name_lose_their_value(version):
    async def conversation(desk):
        first = [("retention.ms", "5000"), ("max.message.bytes", "17")]
        assert await replace_all(desk, (TOPIC, "t", first), version=version) == [NONE]
        assert await described(desk, TOPIC, "t") == {
            "retention.ms": ("5000", OF_TOPIC),
            "max.message.bytes": ("17", OF_TOPIC),
        }
        assert await replace_all(desk, (TOPIC, "t", [("retention.bytes", "7")]), version=version) == [NONE]
        assert await described(desk, TOPIC, "t") == {"retention.bytes": ("7", OF_TOPIC)}
        assert desk.broker.partitions.require("t", 0).config.retention_ms == 604_800_000
        assert await replace_all(desk, (TOPIC, "t", []), version=version) == [NONE]
        assert await described(desk, TOPIC, "t") == {}

    at_desk(conversation)


@pytest.mark.parametrize("version", VERSIONS)
def test_settings_of_the_broker_and_of_all_brokers_are_replaced_apart_and_outlive_a_restart(version):
    async def conversation(desk):
        of_all = (BROKER, "", [("log.retention.ms", "6000"), ("message.max.bytes", "2000")])
        assert await replace_all(desk, of_all, version=version) == [NONE]
        assert await described(desk, BROKER, "1") == {
            "log.retention.ms": ("6000", DYNAMIC_OF_ALL),
            "message.max.bytes": ("2000", DYNAMIC_OF_ALL),
        }
        own = (BROKER, "1", [("log.retention.ms", "7000")])
        assert await replace_all(desk, own, version=version) == [NONE]
        await check(desk)

    async def check(desk):
        assert await described(desk, BROKER, "1") == {
            "log.retention.ms": ("7000", DYNAMIC),
            "message.max.bytes": ("2000", DYNAMIC_OF_ALL),
        }
        assert await described(desk, BROKER, "") == {
            "log.retention.ms": ("6000", DYNAMIC_OF_ALL),
            "message.max.bytes": ("2000", DYNAMIC_OF_ALL),
        }
        assert desk.broker.partitions.require("t", 0).config.retention_ms == 7000

    async def after(desk):
        await check(desk)
        assert await replace_all(desk, (BROKER, "1", []), version=version) == [NONE]
        assert desk.broker.partitions.require("t", 0).config.retention_ms == 6000
        assert await replace_all(desk, (BROKER, "", []), version=version) == [NONE]
        assert await described(desk, BROKER, "") == {}
        assert desk.broker.partitions.require("t", 0).config.retention_ms == 9000

    at_desk(after, at_desk(conversation, log_retention_ms=9000), log_retention_ms=9000)


def test_synonyms_are_the_values_of_all_sources():
    async def conversation(desk):
        await replace_all(desk, (BROKER, "", [("log.retention.ms", "6000")]))
        await replace_all(desk, (BROKER, "1", [("log.retention.ms", "7000")]))
        await replace_all(desk, (TOPIC, "t", [("retention.ms", "8000")]))
        of_broker = [
            ("log.retention.ms", "7000", DYNAMIC),
            ("log.retention.ms", "6000", DYNAMIC_OF_ALL),
            ("log.retention.ms", "9000", STATIC),
            ("log.retention.ms", "604800000", DEFAULT),
        ]
        name = "log.retention.ms"
        assert await described(desk, BROKER, "1", name, synonyms=True) == {name: of_broker}
        assert await described(desk, BROKER, "", name, synonyms=True) == {name: of_broker[1:2]}
        assert await described(desk, TOPIC, "t", "retention.ms", synonyms=True) == {
            "retention.ms": [("retention.ms", "8000", OF_TOPIC), *of_broker]
        }
        order = "stablelog.order"
        assert await described(desk, TOPIC, "t", order, synonyms=True) == {
            order: [(order, "offset", DEFAULT)]
        }

    at_desk(conversation, log_retention_ms=9000)


def test_single_settings_of_all_brokers_are_changed_too():
    async def conversation(desk):
        assert (await alter_single(desk, (SET, "message.max.bytes", "17"), resource=(BROKER, "")))[0] is NONE
        assert await described(desk, BROKER, "1") == {"message.max.bytes": ("17", DYNAMIC_OF_ALL)}
        deleted = (DELETE, "message.max.bytes", None)
        assert (await alter_single(desk, deleted, resource=(BROKER, "1")))[0] is NONE
        assert await described(desk, BROKER, "1") == {"message.max.bytes": ("17", DYNAMIC_OF_ALL)}
        assert (await alter_single(desk, deleted, resource=(BROKER, "")))[0] is NONE
        assert await described(desk, BROKER, "1") == {}

    at_desk(conversation)


@pytest.mark.parametrize(
    ("kind", "name", "settings", "code"),
    [
        (TOPIC, "nobody", [], "unknown_topic_or_partition"),
        (TOPIC, "", [], "invalid_request"),
        (TOPIC, "a b", [], "invalid_topic_exception"),
        (TOPIC, "t", [("retention.ms", None)], "invalid_request"),
        (TOPIC, "t", [("retention.ms", "soon")], "invalid_config"),
        (TOPIC, "t", [("no.such", "1")], "invalid_config"),
        (TOPIC, "t", [("log.retention.ms", "1")], "invalid_config"),
        (TOPIC, "t", [("retention.ms", "1"), ("retention.ms", "2")], "invalid_request"),
        (TOPIC, "t", [("retention.ms", "1" * 1025)], "invalid_config"),
        (BROKER, "2", [], "invalid_request"),
        (BROKER, "x", [], "invalid_request"),
        (BROKER, "1", [("log.retention.ms", "soon")], "invalid_request"),
        (BROKER, "", [("log.retention.ms", "soon")], "invalid_request"),
        (BROKER, "1", [("num.partitions", "3")], "invalid_request"),
        (BROKER, "", [("num.partitions", "3")], "invalid_request"),
        (BROKER, "1", [("node.id", "3")], "invalid_request"),
        (BROKER, "1", [("log.retention.ms", None)], "invalid_request"),
        (LOGGER, "1", [], "invalid_request"),
        (METRICS, "m", [], "invalid_request"),
        (GROUP, "", [], "invalid_request"),
        (GROUP, "g", [("consumer.session.timeout.ms", "soon")], "invalid_config"),
        (GROUP, "g", [("consumer.session.timeout.ms", "5000")], "invalid_config"),
        (GROUP, "g", [("consumer.heartbeat.interval.ms", "45000")], "invalid_config"),
        (GROUP, "g", [("retention.ms", "5")], "invalid_config"),
        *[(kind, "x", [], "invalid_request") for kind in (-128, -1, 0, 1, 3, 5, 6, 64, 127)],
    ],
)
def test_what_apache_kafka_refuses_is_refused_with_its_code_and_changes_nothing(kind, name, settings, code):
    async def conversation(desk):
        await replace_all(desk, (TOPIC, "t", [("retention.ms", "5000")]))
        await replace_all(desk, (BROKER, "1", [("log.retention.bytes", "5")]))
        assert await replace_all(desk, (kind, name, settings)) == [ErrorCode[code]]
        assert await described(desk, TOPIC, "t") == {
            "retention.ms": ("5000", OF_TOPIC),
            "retention.bytes": ("5", DYNAMIC),
        }
        assert await described(desk, BROKER, "1") == {"log.retention.bytes": ("5", DYNAMIC)}

    at_desk(conversation)


@pytest.mark.parametrize("single", [False, True])
def test_a_resource_that_is_named_twice_is_not_changed_and_others_are(single):
    async def conversation(desk):
        desk.broker.topic_files.create("u", 1, {})
        change = [("retention.ms", "5000")]
        resources = [(TOPIC, "t", change), (TOPIC, "u", change), (TOPIC, "t", change)]
        refused = ErrorCode.invalid_request
        if single:
            asked = [
                {
                    "resource_type": kind,
                    "resource_name": name,
                    "configs": [{"name": "retention.ms", "config_operation": SET, "value": "5000"}],
                }
                for kind, name, _ in resources
            ]
            answer = await desk.ask_with(44, 1, {"resources": asked, "validate_only": False})
            codes = [one.error_code for one in answer.responses]
        else:
            codes = await replace_all(desk, *resources)
        assert codes == [refused, NONE, refused]
        assert await described(desk, TOPIC, "t") == {}
        assert await described(desk, TOPIC, "u") == {"retention.ms": ("5000", OF_TOPIC)}

    at_desk(conversation)


def test_what_is_only_to_be_checked_is_not_changed():
    async def conversation(desk):
        assert await replace_all(
            desk,
            (TOPIC, "t", [("retention.ms", "5000")]),
            (BROKER, "1", [("log.retention.ms", "1")]),
            (BROKER, "", [("log.retention.ms", "1")]),
            validate_only=True,
        ) == [NONE, NONE, NONE]
        assert await described(desk, TOPIC, "t") == {}
        assert await described(desk, BROKER, "1") == {}
        asked = (TOPIC, "t", [("retention.ms", "soon")])
        assert await replace_all(desk, asked, validate_only=True) == [ErrorCode.invalid_config]

    at_desk(conversation)


def test_what_a_topic_was_created_with_for_ever_stays_unless_the_request_says_otherwise():
    async def conversation(desk):
        fixed = {"stablelog.order": "commit", "stablelog.group": "payments"}
        topic = desk.broker.topic_files.create("o", 1, {**fixed, "retention.ms": "1"})
        assert await replace_all(desk, (TOPIC, "o", [("retention.bytes", "7")])) == [NONE]
        assert topic.configs == {**fixed, "retention.bytes": "7"}
        for name, value in (("stablelog.order", "offset"), ("stablelog.group", "")):
            assert await replace_all(desk, (TOPIC, "o", [(name, value)])) == [ErrorCode.invalid_config]
        assert await replace_all(desk, (TOPIC, "o", list(fixed.items()))) == [NONE]
        assert topic.configs == fixed

    at_desk(conversation)


def test_settings_that_cannot_be_stored_do_not_count():
    async def conversation(desk):
        desk.broker.disk.capacity = 0
        resources = [(TOPIC, "t", [("retention.ms", "1")]), (BROKER, "", [("log.retention.ms", "1")])]
        assert await replace_all(desk, *resources) == [ErrorCode.kafka_storage_error] * 2
        desk.broker.disk.capacity = None
        assert await described(desk, TOPIC, "t") == {}
        assert await described(desk, BROKER, "") == {}

    at_desk(conversation)


# -- settings of groups ----------------------------------------------------------------------------------------------

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_settings_of_a_group_count_for_its_members_and_outlive_a_restart():
    disk = SimDisk()

    async def heartbeat(desk, group):
        """The interval that a new member is told, in seconds."""
        joining = a_heartbeat(str(uuid.uuid4()), group_id=group)
        answer = await desk.ask(68, 1, **{one.name: getattr(joining, one.name) for one in fields(joining)})
        assert answer.error_code is NONE, answer.error_message
        return answer.heartbeat_interval.total_seconds()

    async def conversation():
        async with opened(disk) as desk:
            await replace_all(desk, (GROUP, "own", [(SESSION, "50000"), (HEARTBEAT, "7000")]))
            assert await described(desk, GROUP, "own", SESSION, HEARTBEAT) == {
                SESSION: ("50000", 8),
                HEARTBEAT: ("7000", 8),
            }
            assert await described(desk, GROUP, "other", SESSION, HEARTBEAT) == {
                SESSION: ("45000", 5),
                HEARTBEAT: ("5000", 5),
            }
            assert [await heartbeat(desk, group) for group in ("own", "other")] == [7, 5]
        async with opened(disk, topics=()) as desk:
            assert desk.broker.config.groups.times == {"own": (50_000, 7_000)}
            assert await heartbeat(desk, "own") == 7
            await replace_all(desk, (GROUP, "own", []))
            assert await heartbeat(desk, "own") == 5
            assert desk.broker.config.groups.own == {}

    asyncio.run(asyncio.wait_for(conversation(), 100))


@pytest.mark.parametrize(
    ("own", "given", "words", "times"),
    [
        (
            {HEARTBEAT: "7000"},
            {"group_consumer_session_timeout_ms": 6000, "group_consumer_heartbeat_interval_ms": 1000},
            "consumer.heartbeat.interval.ms=7000 must be smaller than group.consumer.session.timeout.ms=6000",
            (6000, 2000),
        ),
        (
            {SESSION: "5001"},
            {"group_consumer_heartbeat_interval_ms": 8000},
            "group.consumer.heartbeat.interval.ms=8000 must be smaller than consumer.session.timeout.ms=5001",
            (5001, 1667),
        ),
        (
            {HEARTBEAT: "44999"},
            {"group_consumer_session_timeout_ms": 2, "group_consumer_heartbeat_interval_ms": 1},
            "consumer.heartbeat.interval.ms=44999 must be smaller than group.consumer.session.timeout.ms=2",
            (2, 1),
        ),
    ],
    ids=["interval", "timeout", "least"],
)
def test_a_start_that_contradicts_the_settings_of_a_group_is_a_warning_and_the_group_works(
    own, given, words, times, caplog
):
    """Apache Kafka starts, too, and logs a warning."""
    disk = SimDisk()

    async def conversation():
        async with opened(disk) as desk:
            await replace_all(desk, (GROUP, "billing", list(own.items())))
        async with opened(disk, topics=(), **given) as desk:
            (warning,) = [line.getMessage() for line in caplog.records if "contradict" in line.getMessage()]
            assert f"group 'billing': {words}, so its members get {times[1]} ms" in warning
            assert desk.broker.config.groups.times == {"billing": times}
            # Settings of others change as always. Those of the group have to be right, or deleted.
            await replace_all(desk, (GROUP, "other", [(SESSION, "50000")]))
            assert await replace_all(desk, (BROKER, "1", [("log.retention.ms", "5")])) == [NONE]
            assert await replace_all(desk, (GROUP, "billing", list(own.items()))) == [
                ErrorCode.invalid_config
            ]
            assert desk.broker.config.groups.own["billing"] == own
            assert await replace_all(desk, (GROUP, "billing", [])) == [NONE]
            assert "billing" not in desk.broker.config.groups.own

    asyncio.run(asyncio.wait_for(conversation(), 100))


def test_the_number_of_groups_with_settings_is_limited(monkeypatch):
    monkeypatch.setattr(config_changes, "GROUPS_MAX", 1)

    async def conversation(desk):
        await replace_all(desk, (GROUP, "a", [(HEARTBEAT, "7000")]))
        assert await replace_all(desk, (GROUP, "b", [(HEARTBEAT, "7000")])) == [ErrorCode.policy_violation]
        assert await replace_all(desk, (GROUP, "a", [(HEARTBEAT, "8000")])) == [ErrorCode.none]
        assert desk.broker.config.groups.own == {"a": {HEARTBEAT: "8000"}}

    at_desk(conversation)


# -- the list of resources -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("types", "found"),
    [
        ((), [(BROKER, "1"), (TOPIC, "t"), (TOPIC, "u")]),
        ((TOPIC,), [(TOPIC, "t"), (TOPIC, "u")]),
        ((BROKER, BROKER), [(BROKER, "1")]),
        ((LOGGER,), []),
        ((METRICS,), []),
        ((GROUP,), []),
        ((TOPIC,) * 40_000, [(TOPIC, "t"), (TOPIC, "u")]),
        ((GROUP, METRICS, BROKER, TOPIC), [(BROKER, "1"), (TOPIC, "t"), (TOPIC, "u")]),
    ],
)
def test_resources_of_the_types_that_are_asked_for_are_listed(types, found):
    async def conversation(desk):
        desk.broker.topic_files.create("u", 1, {})
        answer = await desk.ask(LIST, 1, resource_types=types)
        assert answer.error_code is NONE
        listed = [(one.resource_type, one.resource_name) for one in answer.config_resources]
        own = [
            (TOPIC, name) for name in ("__consumer_offsets", "__transaction_state") if (TOPIC, "t") in found
        ]
        assert sorted(listed) == sorted(found + own)

    at_desk(conversation)


@pytest.mark.parametrize("unknown", [-1, 0, 1, 3, 99])
def test_types_that_apache_kafka_does_not_know_are_refused_with_its_code(unknown):
    async def conversation(desk):
        for types in ((unknown,), (TOPIC, unknown)):
            answer = await desk.ask(LIST, 1, resource_types=types)
            assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())

    at_desk(conversation)


def test_the_first_version_lists_client_metrics_of_which_there_are_none():
    async def conversation(desk):
        answer = await desk.ask(LIST, 0)
        assert (answer.error_code, answer.config_resources) == (NONE, ())

    at_desk(conversation)


# -- with a real client ----------------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
def test_librdkafka_replaces_the_settings_of_a_topic_and_of_a_broker():
    topic = unique("replaced")
    with stablelog.serve() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        new = NewTopic(topic, 1, 1, config={"retention.ms": "5000", "segment.bytes": "2000"})
        admin.create_topics([new])[topic].result(60)
        for kind, name, setting in (
            (ResourceType.TOPIC, topic, "retention.bytes"),
            (ResourceType.BROKER, "1", "log.retention.bytes"),
        ):
            resource = ConfigResource(kind, name, set_config={setting: "7"})
            admin.alter_configs([resource])[resource].result(60)
            asked = ConfigResource(kind, name)
            found = admin.describe_configs([asked])[asked].result(60)
            assert found[setting].value == "7"
            # Of the settings of the resource itself, no other has a value.
            sources = {OF_TOPIC} if kind is ResourceType.TOPIC else {DYNAMIC, DYNAMIC_OF_ALL}
            assert [one.name for one in found.values() if one.source in sources] == [setting]
            assert setting in [synonym.name for synonym in found[setting].synonyms.values()]
