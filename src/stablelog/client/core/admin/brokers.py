"""Connections to given brokers of a cluster, and requests for the brokers and their data directories (KIP-113)."""

from collections.abc import Iterable
from contextlib import suppress

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import Steps
from stablelog.client.responses import RetriableError
from stablelog.client.topics import by_topic
from stablelog.errors import RefusedError, UnavailableError
from stablelog.types import TopicPartition


def list_brokers(cluster: Cluster) -> Steps[dict[int, str]]:
    """Return the address ("host:port") of each broker by its id.

    Raises:
        UnavailableError: no broker responds.
    """
    yield from cluster.metadata(())
    return {node_id: cluster.address_of(node_id) for node_id in cluster.node_ids}


def every_connection(cluster: Cluster) -> Steps[list[BrokerConnection]]:
    """Return a connection to each broker of the cluster. Call this inside a function that is passed to
    `Cluster.retrying`, which repeats it after a failure.

    Raises:
        UnavailableError: a broker does not respond.
    """
    found = []
    for node_id in (yield from cluster.refresh_node_ids()):
        connection = yield from cluster.connection_to(node_id)
        found.append(connection)
    return found


def node_connection(cluster: Cluster, node_id: int) -> Steps[BrokerConnection]:
    """Return a connection to the broker with this id. Call this inside a function that is passed to `Cluster.retrying`,
    which repeats it after a failure.

    Raises:
        RefusedError: the cluster has no such broker.
        UnavailableError: the broker does not respond.
    """
    if node_id not in cluster.node_ids and node_id not in (yield from cluster.refresh_node_ids()):
        known = ", ".join(map(str, cluster.node_ids))
        raise RefusedError(
            ErrorCode.broker_id_not_registered, f"the cluster has no broker {node_id}, only {known}"
        )
    return (yield from cluster.connection_to(node_id))


def log_directories(cluster: Cluster, targets: Iterable[TopicPartition] = ()) -> Steps[dict[int, list[str]]]:
    """Return the data directories of each broker, by the id of the broker. The list of a broker may be empty. A broker
    that does not respond has no list in the result.

    Args:
        cluster: the brokers.
        targets: the partitions to ask for; empty for all. Kafka leaves out a directory that holds none of them.
    """
    from kio.schema.describe_log_dirs.v4.request import DescribableLogDirTopic, DescribeLogDirsRequest

    topics = tuple(
        DescribableLogDirTopic(topic=topic, partitions=tuple(partitions))
        for topic, partitions in by_topic(targets).items()
    )
    found = {}
    if not cluster.node_ids:
        yield from cluster.metadata(())
    for node_id in cluster.node_ids:
        with suppress(UnavailableError, RetriableError):
            connection = yield from cluster.connection_to(node_id)
            response = yield from connection.request_steps(DescribeLogDirsRequest(topics=topics or None))
            found[node_id] = [
                result.log_dir for result in response.results if result.error_code is ErrorCode.none
            ]
    return found
