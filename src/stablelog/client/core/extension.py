"""Requests of the APIs that stablelog adds to Kafka's protocol, such as CommitJoint, with retries. No other broker
supports them.
"""

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import Steps
from stablelog.client.responses import (
    BROKEN_OFF,
    RETRIABLE_CODES,
    RetriableError,
    UnknownTopicOrPartitionError,
    refused_error,
)
from stablelog.errors import RefusedError

# The broker that serves the request has all topics. So unknown_topic_or_partition means that the topic does not exist,
# and a retry cannot help.
RETRIABLE_OF_A_TOPIC = RETRIABLE_CODES - {ErrorCode.unknown_topic_or_partition}


def call_extension(
    cluster: Cluster,
    connect: Callable[[], Steps[BrokerConnection]],
    request: Any,
    what: str,
    retriable: frozenset[ErrorCode],
    on_unanswered: Callable[[], None] | None = None,
) -> Steps[Any]:
    """Send a request of one of stablelog's own APIs, and return the response. Repeat the request while the broker does
    not respond or responds with a retriable error.

    Args:
        cluster: the brokers.
        connect: called for each attempt; its steps (a generator of I/O operations) open or find the connection to the
            broker that serves the request.
        request: a message of one of stablelog's own APIs.
        what: the work of the request in words, for messages, such as "asking for a cut".
        retriable: the error codes that a retry can resolve. A response with another error code is returned to the
            caller.
        on_unanswered: called for each request without a response, because the broker may nevertheless have carried it
            out.

    Raises:
        RefusedError: the broker does not know the API.
        UnavailableError: no response within the deadline. The broker may have carried out the request.
    """

    def attempt() -> Steps[Any]:
        connection = yield from connect()
        if not connection.supports_api(request.__api_key__):
            raise RefusedError(
                ErrorCode.unsupported_version,
                f"the broker at {cluster.bootstrap} does not know this request, which only a stablelog "
                f"broker supports: {what}",
            )
        is_answered = False
        try:
            response = yield from connection.request_steps(request)
            is_answered = response.error_code not in retriable | BROKEN_OFF
        finally:
            if on_unanswered is not None and not is_answered:
                on_unanswered()
        if response.error_code in retriable:
            raise RetriableError(response.error_message or response.error_code.name)
        return response

    return (yield from cluster.retrying(what, attempt))


def request_about_topics(
    cluster: Cluster, connect: Callable[[], Steps[BrokerConnection]], request: Any, what: str
) -> Steps[Any]:
    """Send a request of one of stablelog's own APIs that names topics, with retries, and return the response. If the
    response has an error code, raise an error instead.

    Raises:
        UnknownTopicOrPartitionError: a topic does not exist.
        RefusedError: the broker does not know the API, or refuses the request; the message says why.
        UnavailableError: no response within the deadline.
    """
    response = yield from call_extension(cluster, connect, request, what, RETRIABLE_OF_A_TOPIC)
    message = response.error_message or response.error_code.name
    if response.error_code is ErrorCode.unknown_topic_or_partition:
        raise UnknownTopicOrPartitionError(message)
    if response.error_code is not ErrorCode.none:
        raise refused_error(response.error_code, message)
    return response
