"""Requests to create, list, describe and delete topics, to add partitions and to delete records (KIP-4, KIP-107,
KIP-195).
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.steps import NOW, Steps
from stablelog.client.responses import RetriableError, check
from stablelog.client.topics import TopicDescription, by_topic
from stablelog.types import TopicPartition


class CreatedTopic(NamedTuple):
    """A created topic: its name and its id. The id is None if the broker does not send it."""

    name: str
    topic_id: UUID | None
    partition_count: int


def list_topics(cluster: Cluster, *, internal: bool = False) -> Steps[dict[str, TopicDescription]]:
    """Return the topics that the user may describe, by name.

    Args:
        cluster: the brokers.
        internal: whether to return the internal topics of the brokers, too.

    Raises:
        UnavailableError: no broker responds.
    """
    found = yield from cluster.metadata()
    return {name: found[name] for name in sorted(found) if internal or not found[name].is_internal}


def describe_topic(cluster: Cluster, name: str) -> Steps[TopicDescription]:
    """Return a topic: its id, and its partitions with their leaders.

    Raises:
        RefusedError: the topic does not exist, or the user has no right to it.
        UnavailableError: no broker responds.
    """
    return (yield from cluster.metadata((name,)))[name]


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
) -> Steps[CreatedTopic]:
    """Create a topic.

    Args:
        cluster: the brokers.
        name: the name of the topic.
        partitions: the number of the topic's partitions; -1 for the default of the broker.
        replication_factor: the number of copies of each partition; -1 for the default of the broker.
        configs: settings of the topic by name, such as {"stablelog.order": "commit"}.

    Raises:
        RefusedError: a topic of this name exists, or the broker does not accept an argument. If an earlier attempt of the
            same call got no response, that attempt may have created the topic.
        UnavailableError: no broker responds.
    """
    from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )

    def attempt() -> Steps[CreatedTopic]:
        connection = yield from cluster.any_connection()
        request = CreateTopicsRequest(topics=(topic,), timeout=(yield from _time_left(cluster)))
        (created,) = (yield from connection.request_steps(request)).topics
        check(created.error_code, f"creating topic {name!r}", created.error_message)
        return CreatedTopic(name, created.topic_id, created.num_partitions)

    return (yield from cluster.retrying(f"creating topic {name!r}", attempt))


def add_partitions(cluster: Cluster, name: str, count: int) -> Steps[None]:
    """Increase the number of partitions of a topic to `count`.

    Raises:
        RefusedError: the topic does not exist, or it has at least as many partitions.
        UnavailableError: no broker responds.
    """
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic

    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)

    def attempt() -> Steps[None]:
        yield from cluster.topic(name)  # a topic that does not exist is refused at once
        connection = yield from cluster.any_connection()
        left = yield from _time_left(cluster)
        request = CreatePartitionsRequest(topics=(topic,), timeout=left, validate_only=False)
        (changed,) = (yield from connection.request_steps(request)).results
        check(changed.error_code, f"partitions of topic {name!r}", changed.error_message)

    yield from cluster.retrying(f"adding partitions to topic {name!r}", attempt)
    cluster.forget_metadata()


def delete_topic(cluster: Cluster, name: str) -> Steps[None]:
    """Delete a topic and all its records.

    Raises:
        RefusedError: the topic does not exist, or the user may not delete it.
        UnavailableError: no broker responds.
    """
    from kio.schema.delete_topics.v5.request import DeleteTopicsRequest

    def attempt() -> Steps[None]:
        yield from cluster.topic(name)  # a topic that does not exist is refused at once
        connection = yield from cluster.any_connection()
        request = DeleteTopicsRequest(topic_names=(name,), timeout=(yield from _time_left(cluster)))
        (deleted,) = (yield from connection.request_steps(request)).responses
        check(deleted.error_code, f"deleting topic {name!r}", deleted.error_message)

    yield from cluster.retrying(f"deleting topic {name!r}", attempt)
    cluster.forget_metadata()


def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> Steps[dict[TopicPartition, int]]:
    """Delete the records of partitions before an offset.

    Args:
        cluster: the brokers.
        before: by (topic, partition), the first offset to keep; -1 for the high watermark, which deletes all records.

    Returns:
        By partition, the log start offset after the deletion.

    Raises:
        RefusedError: a partition does not exist, its topic is compacted, or the offset is past its high watermark. The
            records of other partitions may be deleted.
        UnavailableError: no broker responds.
    """
    from kio.schema.delete_records.v2.request import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    starts: dict[TopicPartition, int] = {}

    def request(wanted: Iterable[TopicPartition], timeout: timedelta) -> DeleteRecordsRequest:
        return DeleteRecordsRequest(
            topics=tuple(
                DeleteRecordsTopic(
                    name=topic,
                    partitions=tuple(
                        DeleteRecordsPartition(partition_index=index, offset=before[topic, index])
                        for index in indexes
                    ),
                )
                for topic, indexes in by_topic(wanted).items()
            ),
            timeout=timeout,
        )

    def attempt() -> Steps[dict[TopicPartition, int]]:
        left = [target for target in before if target not in starts]
        for leader_id, wanted in (yield from cluster.group_by_leader(left)).items():
            connection = yield from cluster.connection_to(leader_id)
            response = yield from connection.request_steps(request(wanted, (yield from _time_left(cluster))))
            for topic in response.topics:
                for partition in topic.partitions:
                    name = f"{topic.name}-{partition.partition_index}"
                    check(partition.error_code, f"deleting records of {name}")
                    starts[topic.name, partition.partition_index] = partition.low_watermark
            for topic_name, index in set(wanted) - starts.keys():
                raise RetriableError(
                    f"the response of {connection.address} does not contain {topic_name}-{index}"
                )
        return starts

    return (yield from cluster.retrying("deleting records", attempt))


def _time_left(cluster: Cluster) -> Steps[timedelta]:
    """Return the time until the deadline of the present call. Requests that change topics name it as the time that the
    broker may take.
    """
    return timedelta(milliseconds=max(1, int(1000 * cluster.time_left_s((yield NOW)))))
