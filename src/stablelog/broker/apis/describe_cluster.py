"""DescribeCluster (60): describe the cluster, which is this broker alone.

Version notes: v1 the type of the endpoints; v2 whether the client asks for fenced brokers, of which there are none.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, NOT_ASKED, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
    from kio.schema.describe_cluster.v2.response import DescribeClusterResponse

API = ServedApi(
    ApiKey.DESCRIBE_CLUSTER,
    first_version=0,
    last_version=2,
    is_heavy=True,
    rights=(on_cluster(Operation.DESCRIBE, without="the response names no authorized operation"),),
)
messages = API.messages

# The endpoint types. Only a KRaft cluster of Apache Kafka has controllers.
BROKERS, CONTROLLERS = 1, 2
NO_CONTROLLER_ID = -1


def cluster_operations(context: Context) -> int:
    """Return the operations that the client may carry out on the cluster; 0 if it may not describe the cluster."""
    can_describe = context.allows(Operation.DESCRIBE, ResourceType.CLUSTER, is_logged=False)
    return context.allowed_operations(ResourceType.CLUSTER) if can_describe else 0


async def handle(
    broker: Broker, request: "DescribeClusterRequest", context: Context
) -> "DescribeClusterResponse":
    """Return the cluster id and the address of this broker."""
    if request.endpoint_type != BROKERS:
        is_known = request.endpoint_type == CONTROLLERS
        return messages.DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.mismatched_endpoint_type
            if is_known
            else ErrorCode.unsupported_endpoint_type,
            error_message="this endpoint is that of a broker: ask for brokers (endpoint type 1)",
            cluster_id="",
            controller_id=NO_CONTROLLER_ID,
            brokers=(),
        )
    host, port = context.session.listener.advertised
    return messages.DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=(
            messages.DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port, is_fenced=False),
        ),
        # As in Kafka, a client that may not describe the cluster gets no operations.
        cluster_authorized_operations=cluster_operations(context)
        if request.include_cluster_authorized_operations
        else NOT_ASKED,
    )
