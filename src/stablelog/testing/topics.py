"""Topics with new names, for tests that share a broker."""

import itertools
import os
from collections.abc import Mapping
from typing import Final

from kio.schema.create_topics.v7.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from kio.schema.errors import ErrorCode

from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.responses import (
    RETRIABLE_CODES,
    RetriableError,
    UnknownTopicOrPartitionError,
    refused_error,
)
from stablelog.testing.faults import OWN_CLIENT_ID

_numbers: Final = itertools.count(1)


def fresh_name(name: str) -> str:
    """Return a topic name that no other test gets, not even in another process, such as `orders-4711-3` for
    `orders`.
    """
    return f"{name}-{os.getpid()}-{next(_numbers)}"


def create_topic(bootstrap: str, name: str, partitions: int, settings: Mapping[str, object]) -> None:
    """Create a topic, and return when the broker's metadata contains it, so that clients can use it.

    Args:
        bootstrap: the address of the broker.
        name: the name of the topic.
        partitions: the number of its partitions.
        settings: settings of the topic by their names.

    Raises:
        RefusedError: the broker refuses the topic; the message says why.
        UnavailableError: no response within the deadline.
    """
    configs = tuple(
        CreatableTopicConfig(name=key, value=str(value).lower() if isinstance(value, bool) else str(value))
        for key, value in settings.items()
    )
    topic = CreatableTopic(
        name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=configs
    )
    with BlockingCluster(bootstrap, client_id=OWN_CLIENT_ID) as cluster:

        def attempt() -> None:
            (result,) = cluster.any_connection().request(CreateTopicsRequest(topics=(topic,))).topics
            code, message = result.error_code, result.error_message or result.error_code.name
            if code in RETRIABLE_CODES:
                raise RetriableError(message)
            if code is not ErrorCode.none:
                raise refused_error(code, f"creating topic {name}: {message}")

        def look() -> None:
            try:
                cluster.metadata((name,))
            except (
                UnknownTopicOrPartitionError
            ) as unknown:  # Apache Kafka answers before its brokers know the topic.
                raise RetriableError(str(unknown)) from unknown

        cluster.retrying(f"creating topic {name}", attempt)
        cluster.retrying(f"looking for topic {name}", look)
