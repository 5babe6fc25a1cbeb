"""Fetch requests of the client. They name topics instead of topic ids, and use no fetch session."""

from collections.abc import Mapping
from typing import Final

from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import Steps
from stablelog.client.topics import ISOLATIONS
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey
from stablelog.wire.fetch import VERSION_FLEXIBLE, FetchResponse, encode_fetch_request, read_fetch_response

# The last version of Fetch that identifies topics by name; later versions use topic ids.
TOPIC_NAMES_MAX: Final = 12


def send_fetch(
    connection: BrokerConnection,
    offsets: Mapping[TopicPartition, int],
    size_max: int,
    isolation: str,
    wait_ms: int,
) -> Steps[None]:
    """Send a Fetch request without waiting for the response.

    Args:
        connection: the connection to the broker that leads all these partitions. `negotiate` was called for it.
        offsets: the first offset to read in each partition.
        size_max: maximum of bytes of records in the response, but at least one batch is returned.
        isolation: "read_committed" or "read_uncommitted".
        wait_ms: how long the broker may wait for a record if there is none.

    Raises:
        UnavailableError: the request could not be sent completely.
    """
    version = connection.newest_version(ApiKey.FETCH, newest=TOPIC_NAMES_MAX)
    body = encode_fetch_request(version, offsets, size_max, ISOLATIONS[isolation], wait_ms=wait_ms)
    yield from connection.send_steps(ApiKey.FETCH, version, [body], flexible=version >= VERSION_FLEXIBLE)


def receive_fetch(connection: BrokerConnection) -> Steps[FetchResponse]:
    """Receive the response to a request of `send_fetch`.

    Raises:
        UnavailableError: the broker did not respond, or its response is invalid.
    """
    version = connection.newest_version(ApiKey.FETCH, newest=TOPIC_NAMES_MAX)
    response = yield from connection.receive_steps(flexible=version >= VERSION_FLEXIBLE)
    with connection.closing_on_decode_error(ApiKey.FETCH):
        fetched = read_fetch_response(version, response)
    yield from connection.set_throttle(fetched.throttle_ms / 1000)
    return fetched
