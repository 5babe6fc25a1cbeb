"""AlterPartitionReassignments (45): move replicas to other brokers. There is one broker, so no replica moves.

Behaviour: a request to assign a partition to this broker alone succeeds, because that is the present assignment. Any
other assignment is refused. A request to cancel a reassignment (null replicas) gets NO_REASSIGNMENT_IN_PROGRESS.
Version notes: v1 says whether the number of replicas may change; only one replica is possible.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    NO_THROTTLE,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    for_each_part,
)
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_partition_reassignments.v1.request import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )
    from kio.schema.alter_partition_reassignments.v1.response import (
        AlterPartitionReassignmentsResponse,
        ReassignablePartitionResponse,
    )

PARTITION_CODES = NAMES_ONLY
API = ServedApi(
    ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    first_version=0,
    last_version=1,
    is_heavy=True,
    rights=(on_cluster(Operation.ALTER),),
    codes={"": PARTITION_CODES},
)
messages = API.messages

DENIED = "the client is not authorized to ALTER the cluster"


def _reassignment_code(
    broker: Broker, name: str, asked: "ReassignablePartition"
) -> tuple[ErrorCode, str | None]:
    replicas: Sequence[int] | None = asked.replicas
    unknown = PARTITION_CODES.code_for_state(broker.partitions.state(name, asked.partition_index))
    if unknown is not None:
        return unknown, f"there is no partition {name}-{asked.partition_index}"
    if replicas is None:
        return ErrorCode.no_reassignment_in_progress, "the partition is not being reassigned"
    if tuple(replicas) != (broker.node_id,):
        return (
            ErrorCode.invalid_replica_assignment,
            f"the partition can only be assigned to broker {broker.node_id} alone: there is no other broker",
        )
    return ErrorCode.none, None


async def handle(
    broker: Broker, request: "AlterPartitionReassignmentsRequest", context: Context
) -> "AlterPartitionReassignmentsResponse":
    """Return success for each partition that the request assigns to this broker alone, because it is there already.
    Return an error for all others.
    """
    denied = context.denied_code(Operation.ALTER, ResourceType.CLUSTER)

    def answer(topic: "ReassignableTopic", asked: "ReassignablePartition") -> "ReassignablePartitionResponse":
        code, why = (denied, DENIED) if denied is not None else _reassignment_code(broker, topic.name, asked)
        return messages.ReassignablePartitionResponse(
            partition_index=asked.partition_index, error_code=code, error_message=why
        )

    return messages.AlterPartitionReassignmentsResponse(
        throttle_time=NO_THROTTLE,
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_code=denied or ErrorCode.none,
        error_message=None if denied is None else DENIED,
        responses=await for_each_part(
            request.topics,
            lambda topic: topic.partitions,
            answer,
            lambda topic, partitions: messages.ReassignableTopicResponse(
                name=topic.name, partitions=partitions
            ),
        ),
    )
