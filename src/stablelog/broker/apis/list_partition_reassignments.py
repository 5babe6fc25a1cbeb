"""ListPartitionReassignments (46): no partition is being reassigned, because there is one broker.

Behaviour: the list is empty also for partitions that do not exist, as in Apache Kafka.
"""

from kio.schema.errors import ErrorCode
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType


async def handle(
    _broker: Broker, _request: ListPartitionReassignmentsRequest, context: Context
) -> ListPartitionReassignmentsResponse:
    """Handle the request."""
    denied = context.refusal(Operation.DESCRIBE, ResourceType.CLUSTER)
    return ListPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE, error_code=denied or ErrorCode.none, error_message=None, topics=()
    )
