"""The APIs of administrators to which a broker that has one node, no authorizer and no quotas gives fixed answers.

The error codes are those that a node of Kafka 4.2.1 with the same topics returned.
"""

import asyncio
from datetime import timedelta

import pytest
from confluent_kafka import (
    ElectionType,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kio.schema.errors import ErrorCode

import stablelog
from stablelog.errors import UnavailableError
from stablelog.wire.api import ApiKey
from tests.broker.desk import DATA, opened
from tests.clients.drivers import EVERY_ACL, unique
from tests.declared_apis import APIS

NONE = ErrorCode.none
MANY = 40_000


def at_desk(conversation, **more):
    async def work():
        async with opened(**more) as desk:
            await conversation(desk)

    asyncio.run(asyncio.wait_for(work(), 100))


def in_versions(api_key, first=0):
    versions = [version for version in APIS[api_key].served_versions if version >= first]
    return pytest.mark.parametrize("version", versions)


async def answered_in_turns(desk, *question):
    """The answer, and how often other work ran meanwhile."""
    asked = asyncio.ensure_future(desk.ask_with(*question))
    turns = 0
    while not asked.done():
        await asyncio.sleep(0)
        turns += 1
    return await asked, turns


# -- elections -------------------------------------------------------------------------------------------------------


async def elect(desk, version, wanted, election_type=0):
    topics = wanted and [{"topic": name, "partitions": indexes} for name, indexes in wanted]
    values = {"election_type": election_type, "topic_partitions": topics, "timeout": timedelta(seconds=1)}
    answer = await desk.ask_with(ApiKey.ELECT_LEADERS, version, values)
    results = [
        (topic.topic, [(one.partition_id, one.error_code.name) for one in topic.partition_result])
        for topic in answer.replica_election_results
    ]
    return getattr(answer, "error_code", NONE).name, results


@in_versions(ApiKey.ELECT_LEADERS)
def test_an_open_partition_needs_no_election(version):
    async def conversation(desk):
        assert await elect(desk, version, [("t", (0, 7)), ("nope", (0,))]) == (
            "none",
            [
                ("t", [(0, "election_not_needed"), (7, "unknown_topic_or_partition")]),
                ("nope", [(0, "unknown_topic_or_partition")]),
            ],
        )
        assert await elect(desk, version, None) == ("none", [])
        assert await elect(desk, version, []) == ("none", [])

    at_desk(conversation)


@in_versions(ApiKey.ELECT_LEADERS, first=1)
def test_a_partition_that_is_offline_gets_the_code_of_the_type_of_election(version):
    async def conversation(desk):
        desk.broker.fail_partition(desk.broker.partitions.require("t", 1), UnavailableError("the disk fails"))
        for kind, code in ((0, "preferred_leader_not_available"), (1, "eligible_leaders_not_available")):
            assert await elect(desk, version, None, kind) == ("none", [("t", [(1, code)])])
            found = [(0, "election_not_needed"), (1, code)]
            assert await elect(desk, version, [("t", (0, 1))], kind) == ("none", [("t", found)])
        for kind in (2, -1, 127):
            refused = ("invalid_request", [("t", [(0, "invalid_request")])])
            assert await elect(desk, version, [("t", (0,))], kind) == refused

    at_desk(conversation)


# -- assignments of replicas -----------------------------------------------------------------------------------------


@in_versions(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
@pytest.mark.parametrize(
    ("name", "index", "replicas", "code"),
    [
        ("t", 0, (1,), "none"),
        ("t", 9, (1,), "unknown_topic_or_partition"),
        ("nope", 0, (1,), "unknown_topic_or_partition"),
        ("t", 0, (2,), "invalid_replica_assignment"),
        ("t", 0, (1, 2), "invalid_replica_assignment"),
        ("t", 0, (1, 1), "invalid_replica_assignment"),
        ("t", 0, (-1,), "invalid_replica_assignment"),
        ("t", 0, (), "invalid_replica_assignment"),
        ("t", 0, None, "no_reassignment_in_progress"),
        ("t", 9, None, "unknown_topic_or_partition"),
        ("nope", 0, None, "unknown_topic_or_partition"),
    ],
)
def test_a_partition_can_be_assigned_to_this_broker_alone(version, name, index, replicas, code):
    async def conversation(desk):
        partition = {"partition_index": index, "replicas": replicas}
        values = {
            "timeout": timedelta(seconds=1),
            "allow_replication_factor_change": False,
            "topics": [{"name": name, "partitions": [partition]}],
        }
        answer = await desk.ask_with(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, values)
        assert answer.error_code is NONE
        assert not getattr(answer, "allow_replication_factor_change", False)
        [topic] = answer.responses
        [result] = topic.partitions
        assert (topic.name, result.partition_index, result.error_code.name) == (name, index, code)

    at_desk(conversation)


@pytest.mark.extended
def test_a_reassignment_of_many_partitions_lets_others_go_on():
    async def conversation(desk):
        partitions = [{"partition_index": index, "replicas": None} for index in range(MANY)]
        values = {
            "timeout": timedelta(seconds=1),
            "allow_replication_factor_change": True,
            "topics": [{"name": "t", "partitions": partitions}],
        }
        answer, turns = await answered_in_turns(desk, ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, values)
        assert len(answer.responses[0].partitions) == MANY
        assert turns > 10

    at_desk(conversation)


@pytest.mark.parametrize("topics", [None, [], [{"name": "t", "partition_indexes": (0, 9)}]])
def test_no_reassignment_is_listed(topics):
    async def conversation(desk):
        values = {"timeout": timedelta(seconds=1), "topics": topics}
        answer = await desk.ask_with(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, values)
        assert (answer.error_code, answer.error_message, answer.topics) == (NONE, None, ())

    at_desk(conversation)


@in_versions(ApiKey.ALTER_REPLICA_LOG_DIRS)
def test_a_replica_stays_in_the_data_directory(version):
    async def conversation(desk):
        other = {"path": "/elsewhere", "topics": [{"name": "t", "partitions": (0, 9)}]}
        own_topics = [{"name": "t", "partitions": (1,)}, {"name": "nope", "partitions": (0,)}]
        own = {"path": str(DATA), "topics": own_topics}
        answer = await desk.ask_with(ApiKey.ALTER_REPLICA_LOG_DIRS, version, {"dirs": [other, own]})
        found = {
            (topic.topic_name, one.partition_index): one.error_code.name
            for topic in answer.results
            for one in topic.partitions
        }
        assert found == {
            ("t", 0): "log_dir_not_found",
            ("t", 9): "log_dir_not_found",
            ("t", 1): "none",
            ("nope", 0): "unknown_topic_or_partition",
        }
        assert len(answer.results) == 2

    at_desk(conversation)


# -- authorization, users and quotas ---------------------------------------------------------------------------------

ANY_ACL = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
ACL = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": 3,
    "principal": "User:x",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}


@pytest.mark.extended
@in_versions(ApiKey.DESCRIBE_ACLS)
def test_there_is_no_authorizer(version):
    async def conversation(desk):
        refused = ErrorCode.security_disabled
        answer = await desk.ask_with(ApiKey.DESCRIBE_ACLS, version, ANY_ACL)
        assert (answer.error_code, answer.resources) == (refused, ())
        assert "no authorizer" in answer.error_message
        for count in (0, 1, 3, MANY):
            answer = await desk.ask_with(ApiKey.CREATE_ACLS, version, {"creations": [ACL] * count})
            assert [one.error_code for one in answer.results] == [refused] * count
            answer = await desk.ask_with(ApiKey.DELETE_ACLS, version, {"filters": [ANY_ACL] * count})
            assert [one.error_code for one in answer.filter_results] == [refused] * count
            assert all(one.matching_acls == () for one in answer.filter_results)

    at_desk(conversation)


@pytest.mark.extended
@in_versions(ApiKey.DESCRIBE_CLIENT_QUOTAS)
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], "none"),
        ([("user", 2, None)], "none"),
        ([("client-id", 0, "x"), ("user", 1, None)], "none"),
        ([("ip", 0, "x")], "none"),
        ([("foo", 2, None)], "unsupported_version"),
        ([("", 0, "x")], "invalid_request"),
        ([("user", 9, None)], "invalid_request"),
        ([("user", -1, "x")], "invalid_request"),
        ([("user", 2, None), ("user", 2, None)], "invalid_request"),
        ([("user", 2, None)] * MANY, "invalid_request"),
        ([("user", 0, None)], "invalid_request"),
        ([("user", 1, "x")], "invalid_request"),
        ([("user", 2, "x")], "invalid_request"),
        ([("user", 2, None), ("ip", 2, None)], "invalid_request"),
    ],
)
def test_a_filter_of_quotas_is_checked_and_finds_nothing(version, components, code):
    async def conversation(desk):
        fields = ("entity_type", "match_type", "match")
        asked = [dict(zip(fields, component, strict=True)) for component in components]
        values = {"components": asked, "strict": False}
        answer = await desk.ask_with(ApiKey.DESCRIBE_CLIENT_QUOTAS, version, values)
        assert (answer.error_code.name, answer.entries) == (code, () if code == "none" else None)

    at_desk(conversation)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, []),
        ([], []),
        (["x"], [("x", "resource_not_found")]),
        (
            ["x", "x", "", "y"],
            [("x", "duplicate_resource"), ("", "resource_not_found"), ("y", "resource_not_found")],
        ),
    ],
)
def test_no_user_has_credentials(names, found):
    async def conversation(desk):
        users = names if names is None else [{"name": name} for name in names]
        answer = await desk.ask_with(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": users})
        assert answer.error_code is NONE
        assert [(one.user, one.error_code.name) for one in answer.results] == found

    at_desk(conversation)


def test_the_operations_of_a_topic_and_of_the_cluster_are_told_if_they_are_asked_for():
    async def conversation(desk):
        for is_asked, of_topic, of_cluster in ((True, 3576, 8096), (False, -(2**31), -(2**31))):
            values = {
                "topics": [{"name": "t", "topic_id": None}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": is_asked,
                "include_topic_authorized_operations": is_asked,
                "endpoint_type": 1,
                "include_fenced_brokers": True,
            }
            for version in (8, 9, 10, 11, 12, 13):
                answer = await desk.ask_with(ApiKey.METADATA, version, values)
                assert [topic.topic_authorized_operations for topic in answer.topics] == [of_topic]
                if version <= 10:
                    assert answer.cluster_authorized_operations == of_cluster
            for version in APIS[ApiKey.DESCRIBE_CLUSTER].served_versions:
                answer = await desk.ask_with(ApiKey.DESCRIBE_CLUSTER, version, values)
                assert answer.cluster_authorized_operations == of_cluster

    at_desk(conversation)


# -- the cluster and its features ------------------------------------------------------------------------------------


@in_versions(ApiKey.DESCRIBE_CLUSTER, first=1)
@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (1, "none"),
        (2, "mismatched_endpoint_type"),
        (0, "unsupported_endpoint_type"),
        (9, "unsupported_endpoint_type"),
    ],
)
def test_only_the_endpoints_of_brokers_are_told(version, endpoint_type, code):
    async def conversation(desk):
        values = {
            "include_cluster_authorized_operations": False,
            "endpoint_type": endpoint_type,
            "include_fenced_brokers": True,
        }
        answer = await desk.ask_with(ApiKey.DESCRIBE_CLUSTER, version, values)
        assert (answer.error_code.name, answer.endpoint_type) == (code, 1)
        assert [(one.broker_id, getattr(one, "is_fenced", False)) for one in answer.brokers] == [
            (1, False)
        ] * (code == "none")
        assert answer.controller_id == (1 if code == "none" else -1)

    at_desk(conversation)


PRESENT = ("transaction.version", 2, 1)


@pytest.mark.extended
@in_versions(ApiKey.UPDATE_FEATURES)
@pytest.mark.parametrize(
    ("updates", "code"),
    [
        ([], "none"),
        ([PRESENT], "none"),
        ([PRESENT, PRESENT], "none"),
        ([("transaction.version", 1, 2)], "invalid_update_version"),
        ([("transaction.version", 3, 1)], "invalid_update_version"),
        ([("transaction.version", -1, 1)], "invalid_update_version"),
        ([("nope", 1, 1)], "invalid_update_version"),
        ([PRESENT, ("nope", 1, 1)], "invalid_update_version"),
        ([PRESENT] * MANY + [("nope", 1, 1)], "invalid_update_version"),
    ],
)
def test_features_keep_their_versions(version, updates, code):
    async def conversation(desk):
        asked = [
            {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind > 1}
            for name, level, kind in updates
        ]
        values = {"timeout": timedelta(seconds=1), "feature_updates": asked, "validate_only": False}
        answer = await desk.ask_with(ApiKey.UPDATE_FEATURES, version, values)
        assert answer.error_code.name == code
        assert (answer.error_message is None) == (code == "none")
        if version < 2:
            found = [(one.feature, one.error_code) for one in answer.results]
            assert found == [(name, NONE) for name, _, _ in updates] * (code == "none")

    at_desk(conversation)


@pytest.mark.parametrize("kind", [-1, 0, 4, 127])
def test_an_update_of_an_unknown_type_is_refused(kind):
    async def conversation(desk):
        update = {"feature": "transaction.version", "max_version_level": 2, "upgrade_type": kind}
        values = {"timeout": timedelta(seconds=1), "feature_updates": [update], "validate_only": True}
        answer = await desk.ask_with(ApiKey.UPDATE_FEATURES, 2, values)
        assert answer.error_code is ErrorCode.invalid_update_version

    at_desk(conversation)


# -- with a real client ----------------------------------------------------------------------------------------------


@pytest.mark.extended
def test_librdkafka_gets_what_a_node_of_apache_kafka_would_tell_it():
    topic = unique("one-node")
    with stablelog.serve() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)

        elected = admin.elect_leaders(
            ElectionType.PREFERRED, [TopicPartition(topic, 0), TopicPartition("no", 0)]
        )
        codes = {place.topic: error.code() for place, error in elected.result(60).items()}
        assert codes == {topic: KafkaError.ELECTION_NOT_NEEDED, "no": KafkaError.UNKNOWN_TOPIC_OR_PART}

        acl = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            "User:x",
            "*",
            AclOperation.READ,
            AclPermissionType.ALLOW,
        )
        # librdkafka does not report the error of DescribeAcls, whatever broker returns it.
        assert admin.describe_acls(EVERY_ACL).result(60) == []
        for asked in (admin.create_acls([acl])[acl], admin.delete_acls([EVERY_ACL])[EVERY_ACL]):
            with pytest.raises(KafkaException) as refused:
                asked.result(60)
            assert refused.value.args[0].code() == KafkaError.SECURITY_DISABLED

        assert admin.describe_user_scram_credentials().result(60) == {}
        with pytest.raises(KafkaException) as refused:
            admin.describe_user_scram_credentials(["x"])["x"].result(60)
        assert refused.value.args[0].code() == KafkaError.RESOURCE_NOT_FOUND

        asked = admin.describe_topics(TopicCollection([topic]), include_authorized_operations=True)
        assert len(asked[topic].result(60).authorized_operations) == 8
