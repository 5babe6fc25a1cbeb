"""DescribeCluster (60): the cluster's only broker."""

from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_cluster.v1.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context

# The endpoint type of brokers. Type 2 asks for controllers, which only a KRaft cluster of Apache Kafka has.
BROKERS = 1


async def handle(
    broker: Broker, request: DescribeClusterRequest, _context: Context
) -> DescribeClusterResponse:
    """Handle the request."""
    host, port = broker.advertised
    known = request.endpoint_type == BROKERS
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none if known else ErrorCode.unsupported_endpoint_type,
        error_message=None if known else "this broker has no controllers: ask for brokers (endpoint type 1)",
        endpoint_type=request.endpoint_type,
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id,
        brokers=(DescribeClusterBroker(broker_id=broker.node_id, host=host, port=port),) if known else (),
    )
