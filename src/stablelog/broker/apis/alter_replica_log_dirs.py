"""AlterReplicaLogDirs (34): move replicas to another data directory. The broker has one, so no replica moves.

Behaviour: a request to move a partition to the broker's data directory succeeds, because the partition is there
already. For another directory, the response has LOG_DIR_NOT_FOUND for each partition, whether the partition exists or
not, as in Apache Kafka. Version notes: v2 flexible.
"""

from pathlib import Path
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
from stablelog.broker.loop.turns import in_turns
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_replica_log_dirs.v2.request import AlterReplicaLogDirsRequest
    from kio.schema.alter_replica_log_dirs.v2.response import AlterReplicaLogDirsResponse

# Apache Kafka refuses to move an offline replica, too.
PARTITION_CODES = NAMES_ONLY._replace(offline=ErrorCode.kafka_storage_error)
API = ServedApi(
    ApiKey.ALTER_REPLICA_LOG_DIRS,
    first_version=1,
    last_version=2,
    is_heavy=True,
    rights=(on_cluster(Operation.ALTER),),
    codes={"": PARTITION_CODES},
)
messages = API.messages


async def handle(
    broker: Broker, request: "AlterReplicaLogDirsRequest", context: Context
) -> "AlterReplicaLogDirsResponse":
    """Return success for partitions that the request assigns to the broker's data directory, because they are there
    already. Return an error for others. The response has each topic once, even if the request names it for several
    directories.
    """
    denied = context.denied_code(Operation.ALTER, ResourceType.CLUSTER)
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
            code = PARTITION_CODES.code_for_state(broker.partitions.state(name, index)) or ErrorCode.none
        results.setdefault(name, {})[index] = code
    return messages.AlterReplicaLogDirsResponse(
        throttle_time=NO_THROTTLE,
        results=await for_each_part(
            list(results),
            lambda name: list(results[name].items()),
            lambda _name, found: messages.AlterReplicaLogDirPartitionResult(
                partition_index=found[0], error_code=found[1]
            ),
            lambda name, partitions: messages.AlterReplicaLogDirTopicResult(
                topic_name=name, partitions=partitions
            ),
        ),
    )
