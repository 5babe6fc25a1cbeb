"""AlterReplicaLogDirs (34): move replicas to another data directory. The broker has one, so no replica moves.

Behaviour: a partition is already in the broker's data directory, which is a success. Another directory gets
LOG_DIR_NOT_FOUND for each partition, whether the partition exists or not, as in Apache Kafka.
Version notes: v2 flexible.
"""

from pathlib import Path

from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
from kio.schema.alter_replica_log_dirs.v2.response import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, for_each_part
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.partition_state import CODES

PARTITION_CODES = CODES["AlterReplicaLogDirs"]


async def handle(
    broker: Broker, request: AlterReplicaLogDirsRequest, context: Context
) -> AlterReplicaLogDirsResponse:
    """Handle the request. The response has each topic once."""
    denied = context.refusal(Operation.ALTER, ResourceType.CLUSTER)
    here = broker.directory.path.resolve()
    asked = (
        (Path(moved.path), topic.name, index)
        for moved in request.dirs
        for topic in moved.topics
        for index in topic.partitions
    )
    results: dict[str, dict[int, ErrorCode]] = {}
    async for path, name, index in in_turns(asked):
        code = denied or ErrorCode.log_dir_not_found
        # Compare the paths as they are written. A path that the client chooses is not looked up on the disk.
        if denied is None and path in (here, broker.directory.path):
            code = PARTITION_CODES.of(broker.topics.state(name, index)) or ErrorCode.none
        results.setdefault(name, {})[index] = code
    return AlterReplicaLogDirsResponse(
        throttle_time=NO_THROTTLE,
        results=await for_each_part(
            list(results),
            lambda name: list(results[name].items()),
            lambda _name, found: AlterReplicaLogDirPartitionResult(
                partition_index=found[0], error_code=found[1]
            ),
            lambda name, partitions: AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions),
        ),
    )
