"""DescribeLogDirs, as the client of the Spark source asks it."""

import pytest

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.wire.api import ApiKey
from stablelog.wire.messages import message_class
from tests.clients.drivers import Confluent, unique
from tests.declared_apis import APIS

pytestmark = pytest.mark.extended


@pytest.fixture
def topic(stablelog_broker):
    topic = unique("sized")
    Confluent(stablelog_broker.bootstrap).produce(topic, [b"x" * 1000] * 10)
    return topic


def test_the_data_directory_is_told(stablelog_broker, topic):
    with BlockingCluster(stablelog_broker.bootstrap, timeout_s=60) as cluster:
        assert cluster.log_directories([(topic, 0)]) == {
            cluster.leader(topic, 0): [str(stablelog_broker.data)]
        }


@pytest.mark.parametrize("version", APIS[ApiKey.DESCRIBE_LOG_DIRS].served_versions)
def test_sizes_are_those_of_the_files(stablelog_broker, topic, version):
    with BlockingCluster(stablelog_broker.bootstrap, timeout_s=60) as cluster:
        connection = cluster.any_connection()
        answer = connection.call(message_class(ApiKey.DESCRIBE_LOG_DIRS, version, "request")(topics=None))
    sizes = {
        (described.name, partition.partition_index): partition.partition_size
        for described in answer.results[0].topics
        for partition in described.partitions
    }
    logs = (stablelog_broker.data / f"{topic}-0").glob("*.log")
    assert sizes[topic, 0] == sum(path.stat().st_size for path in logs)


def test_what_is_not_there_is_left_out(stablelog_broker, topic):
    request_class = message_class(ApiKey.DESCRIBE_LOG_DIRS, 4, "request")
    module = __import__(request_class.__module__, fromlist=["DescribableLogDirTopic"])
    asked = tuple(module.DescribableLogDirTopic(topic=name, partitions=(0, 7)) for name in (topic, "nowhere"))
    with BlockingCluster(stablelog_broker.bootstrap, timeout_s=60) as cluster:
        answer = cluster.any_connection().call(request_class(topics=asked))
    found = [
        (described.name, [p.partition_index for p in described.partitions])
        for described in answer.results[0].topics
    ]
    assert found == [(topic, [0])]
