"""The admin client of kafka-python: which broker it takes stablelog for, and the requests that it then sends."""

import warnings

import pytest

import stablelog
from tests.clients.drivers import unique
from tests.declared_apis import APIS

with warnings.catch_warnings():  # of a deprecated function that kafka-python calls when it is imported
    warnings.simplefilter("ignore")
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka import errors as kafka_errors
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ConfigResource,
        ConfigResourceType,
        NewTopic,
        ResourcePattern,
        ResourceType,
        UpdateFeatureType,
    )

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.extended]


@pytest.fixture(scope="module")
def broker():
    with stablelog.serve() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker):
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


@pytest.fixture
def topic(admin):
    name = unique("kafka-python")
    admin.create_topics([NewTopic(name, 3, 1)])
    return name


def test_it_takes_the_broker_for_one_of_kafka_4_2(broker, admin):
    """It looks for the newest known (API, version) that ApiVersions names: ListOffsets 11 stands for Kafka 4.2."""
    assert admin.get_broker_version_data(1).broker_version == (4, 2)
    for client in (KafkaProducer, KafkaConsumer):
        opened = client(bootstrap_servers=broker.bootstrap)
        assert opened.config["api_version"] is None or opened.config["api_version"] >= (4, 0)
        opened.close()
    told = admin.get_broker_version_data(1).api_versions
    assert {key: tuple(versions) for key, versions in told.items()} == {
        int(key): (api.first_version, api.last_version) for key, api in APIS.items()
    }


@pytest.mark.parametrize("incremental", [True, False])
def test_settings_are_altered_and_reset(admin, topic, incremental):
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "5000"})
    admin.alter_configs([changed], incremental=incremental)
    asked = ConfigResource(ConfigResourceType.TOPIC, topic)
    told = admin.describe_configs([asked])["topic"][topic]
    assert told["retention.ms"]["value"] == "5000"
    reset = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": None})
    admin.reset_configs([reset], incremental=incremental)
    assert "retention.ms" not in admin.describe_configs([asked])["topic"][topic]


def test_resources_and_pages_of_topics_are_listed(admin, topic):
    listed = admin.list_config_resources()
    assert topic in str(listed)
    cursor = None
    for indexes in ([0, 1], [2]):
        told = admin.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
        assert [one["partition_index"] for one in told["topics"][0]["partitions"]] == indexes
        cursor = told["next_cursor"]
    assert cursor is None


def test_one_node_is_administered(admin, topic):
    place, unknown = TopicPartition(topic, 0), TopicPartition("no", 0)
    admin.elect_leaders(0, {topic: [0, 1, 2]})
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        admin.elect_leaders(0, {"no": [0]})
    assert admin.alter_partition_reassignments({place: [1]}) == {place: None}
    assert admin.alter_partition_reassignments({place: [2], unknown: [1]}) == {
        place: kafka_errors.InvalidReplicationAssignmentError,
        unknown: kafka_errors.UnknownTopicOrPartitionError,
    }
    assert admin.list_partition_reassignments() == {}
    moved = admin.alter_replica_log_dirs({(topic, 0, 1): "/elsewhere"})
    assert list(moved.values()) == [kafka_errors.LogDirNotFoundError]
    assert admin.describe_user_scram_credentials() == {}
    pattern = ResourcePattern(ResourceType.TOPIC, topic)
    allowed = ACLPermissionType.ALLOW
    acls = ACLFilter("User:x", "*", ACLOperation.READ, allowed, resource_pattern=pattern)
    with pytest.raises(kafka_errors.SecurityDisabledError):
        admin.describe_acls(acls)
    present = {"transaction.version": (UpdateFeatureType.UPGRADE, 2)}
    assert admin.update_features(present, validate_only=True) == {"transaction.version": "OK"}
