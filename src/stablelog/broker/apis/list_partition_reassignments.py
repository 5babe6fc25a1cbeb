"""ListPartitionReassignments (46): list the partitions that are being reassigned. There are none, because there is one
broker.

Behaviour: the list is empty also for partitions that do not exist, as in Apache Kafka.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
    from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

API = ServedApi(
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
    first_version=0,
    last_version=0,
    rights=(on_cluster(Operation.DESCRIBE),),
)
messages = API.messages


async def handle(
    _broker: Broker, _request: "ListPartitionReassignmentsRequest", context: Context
) -> "ListPartitionReassignmentsResponse":
    """Return an empty list: with one broker, no partition is ever being reassigned."""
    denied = context.denied_code(Operation.DESCRIBE, ResourceType.CLUSTER)
    return messages.ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=denied or ErrorCode.none, error_message=None, topics=()
    )
