"""FindCoordinator: the brokers that coordinate groups and transactional ids (KIP-699)."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import Steps
from stablelog.client.responses import RetriableError, check
from stablelog.wire.api import ApiKey

# The first version of FindCoordinator that names several coordinators in one response.
SEVERAL_COORDINATORS: Final = 4
GROUP_COORDINATOR, TRANSACTION_COORDINATOR = 0, 1


class Coordinator(NamedTuple):
    """The broker that coordinates one group or one transactional id."""

    node_id: int
    host: str
    port: int


def find_coordinators(
    connection: BrokerConnection, kind: int, keys: Sequence[str]
) -> Steps[dict[str, Coordinator]]:
    """Return the coordinator of each key. A key is a transactional id or the id of a consumer group.

    Args:
        connection: a connection to any broker.
        kind: TRANSACTION_COORDINATOR for transactional ids, GROUP_COORDINATOR for the ids of groups.
        keys: the transactional ids, or the ids of consumer groups. If the broker supports it, one request has all of
            them.

    Raises:
        RetriableError: a coordinator is not available yet.
        RefusedError: the broker refuses to name a coordinator.
        UnavailableError: the broker does not respond.
    """
    if connection.supports_api(ApiKey.FIND_COORDINATOR, SEVERAL_COORDINATORS):
        from kio.schema.find_coordinator.v5.request import FindCoordinatorRequest

        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=tuple(keys))
        answers = {one.key: one for one in (yield from connection.request_steps(request)).coordinators}
    else:
        from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as FindOneCoordinatorRequest

        answers = {}
        for key in keys:
            answers[key] = yield from connection.request_steps(
                FindOneCoordinatorRequest(key=key, key_type=kind)
            )
    found = {}
    for key in keys:
        if key not in answers:
            raise RetriableError(f"the broker {connection.address} did not name a coordinator for {key!r}")
        answer = answers[key]
        check(answer.error_code, f"the coordinator of {key!r}", answer.error_message)
        found[key] = Coordinator(answer.node_id, answer.host, answer.port)
    return found
