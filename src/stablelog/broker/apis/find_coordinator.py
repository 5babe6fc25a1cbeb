"""FindCoordinator (10): the coordinator of a consumer group or a transactional id. There is one broker, so it is always
this broker.

Version notes: v4+ several keys at once.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi, for_each
from stablelog.security.api_rights import on_group, on_transactional_id
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v5.request import FindCoordinatorRequest
    from kio.schema.find_coordinator.v5.response import Coordinator, FindCoordinatorResponse

API = ServedApi(
    ApiKey.FIND_COORDINATOR,
    first_version=0,
    last_version=5,
    rights=(
        on_group(Operation.DESCRIBE, "each group"),
        on_transactional_id(Operation.DESCRIBE, "each transactional id"),
    ),
)
messages = API.messages

GROUP, TRANSACTION = 0, 1
RESOURCES = {GROUP: ResourceType.GROUP, TRANSACTION: ResourceType.TRANSACTIONAL_ID}


async def handle(
    broker: Broker, request: "FindCoordinatorRequest", context: Context
) -> "FindCoordinatorResponse":
    """Return the address of this broker for each key."""
    host, port = context.session.listener.advertised

    def find(key: str) -> "Coordinator":
        if request.key_type not in (GROUP, TRANSACTION):
            error, why = (
                ErrorCode.invalid_request,
                f"key type {request.key_type} is not supported: use 0 for a group or 1 for a transactional id",
            )
        elif not key and request.key_type == TRANSACTION:
            error, why = ErrorCode.invalid_request, "the transactional id in the request is empty"
        elif denied := context.denied_code(Operation.DESCRIBE, RESOURCES[request.key_type], key):
            error, why = denied, "the client is not authorized to DESCRIBE the group or transactional id"
        else:
            return messages.Coordinator(
                key=key,
                node_id=broker.node_id,
                host=host,
                port=port,
                error_code=ErrorCode.none,
                error_message=None,
            )
        return messages.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error, error_message=why
        )

    return messages.FindCoordinatorResponse(
        throttle_time=NO_THROTTLE, coordinators=await for_each(request.coordinator_keys, find)
    )
