"""ElectLeaders (43): elect the leaders of partitions. Each partition has one replica, which leads it while it is open.

Behaviour: an open partition gets ELECTION_NOT_NEEDED. A partition that is opening or offline has no replica that could
lead it. Without a list of partitions, the request is for all partitions, and the response has only those that need an
election, as in Apache Kafka. Version notes: v0 elects the preferred replica; v1 names the type of the election, and its
response has one error code for the whole request; v2 flexible.
"""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.topics.partition_state import PartitionCodes, PartitionState
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.elect_leaders.v2.request import ElectLeadersRequest
    from kio.schema.elect_leaders.v2.response import ElectLeadersResponse, PartitionResult

# An open partition needs no election.
PREFERRED_CODES = PartitionCodes(
    opening=ErrorCode.preferred_leader_not_available,
    offline=ErrorCode.preferred_leader_not_available,
    unknown=ErrorCode.unknown_topic_or_partition,
)
UNCLEAN_CODES = PartitionCodes(
    opening=ErrorCode.eligible_leaders_not_available,
    offline=ErrorCode.eligible_leaders_not_available,
    unknown=ErrorCode.unknown_topic_or_partition,
)
API = ServedApi(
    ApiKey.ELECT_LEADERS,
    first_version=0,
    last_version=2,
    is_heavy=True,
    has_long_response=True,
    rights=(on_cluster(Operation.ALTER),),
    codes={"": PREFERRED_CODES, "unclean": UNCLEAN_CODES},
)
messages = API.messages

# By Kafka's number of the type of an election: election of the preferred replica, and of any replica.
TYPES = {0: PREFERRED_CODES, 1: UNCLEAN_CODES}
WORDS = {
    PartitionState.OPEN: "its only replica leads the partition",
    PartitionState.OPENING: "its only replica is recovering",
    PartitionState.OFFLINE: "its only replica is offline: the broker's log says why",
    PartitionState.UNKNOWN: "there is no such partition",
}


async def _partitions_not_open(broker: Broker, turn: Turn) -> AsyncIterator[tuple[str, list[int]]]:
    """Yield the name of each topic that has partitions which are not open, with the indexes of these partitions."""
    for topic in broker.topics:
        indexes = [
            index
            async for index in in_turns(range(topic.partition_count), turn=turn)
            if broker.partitions.state_in(topic, index) is not PartitionState.OPEN
        ]
        if indexes:
            yield topic.name, indexes


async def _requested_partitions(request: "ElectLeadersRequest") -> AsyncIterator[tuple[str, list[int]]]:
    for topic in request.topic_partitions or ():
        yield topic.topic, list(topic.partitions)


async def handle(broker: Broker, request: "ElectLeadersRequest", context: Context) -> "ElectLeadersResponse":
    """Return for each partition the reason why no election takes place: each partition has only one replica that could
    lead it.
    """
    denied = context.denied_code(Operation.ALTER, ResourceType.CLUSTER)
    codes = TYPES.get(request.election_type)
    turn = Turn()

    def elect(name: str, index: int) -> "PartitionResult":
        if denied is not None:
            code, why = denied, "the client is not authorized to ALTER the cluster"
        elif codes is None:
            code, why = ErrorCode.invalid_request, f"election type {request.election_type} is unknown"
        else:
            state = broker.partitions.state(name, index)
            code, why = codes.code_for_state(state) or ErrorCode.election_not_needed, WORDS[state]
        return messages.PartitionResult(partition_id=index, error_code=code, error_message=why)

    wanted = (
        _requested_partitions(request)
        if request.topic_partitions is not None or denied
        else _partitions_not_open(broker, turn)
    )
    results = [
        messages.ReplicaElectionResult(
            topic=name,
            partition_result=tuple([elect(name, index) async for index in in_turns(indexes, turn=turn)]),
        )
        async for name, indexes in wanted
    ]
    return messages.ElectLeadersResponse(
        throttle_time=NO_THROTTLE,
        error_code=denied or (ErrorCode.none if codes is not None else ErrorCode.invalid_request),
        replica_election_results=tuple(results),
    )
