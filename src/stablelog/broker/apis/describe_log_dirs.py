"""DescribeLogDirs (35): the data directory, and the size of each partition in it.

A client on the same machine can read the segment files instead of fetching. The file `partition.metadata` in each
partition's directory contains the topic id. The client compares this id to check that the directory is the broker's.
Partitions that are not open are left out.
Version notes: v4+ the size of the volume; its usable bytes are 0 while the broker refuses writes because the disk is
full.
"""

import os
from operator import itemgetter
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
from stablelog.broker.topics.partition_state import PartitionState
from stablelog.security.api_rights import on_cluster
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
    from kio.schema.describe_log_dirs.v4.response import (
        DescribeLogDirsPartition,
        DescribeLogDirsResponse,
        DescribeLogDirsTopic,
    )

API = ServedApi(
    ApiKey.DESCRIBE_LOG_DIRS,
    first_version=1,
    last_version=4,
    is_heavy=True,
    has_long_response=True,
    rights=(on_cluster(Operation.DESCRIBE),),
)
messages = API.messages


async def handle(
    broker: Broker, request: "DescribeLogDirsRequest", context: Context
) -> "DescribeLogDirsResponse":
    """Return the data directory with the sizes of the partitions. Partitions that do not exist or are not open are left
    out.
    """
    denied = context.denied_code(Operation.DESCRIBE, ResourceType.CLUSTER)
    if denied is not None:
        return messages.DescribeLogDirsResponse(throttle_time=NO_THROTTLE, error_code=denied, results=())
    if request.topics is None:
        wanted = {topic.name: sorted(broker.partitions.of_topic(topic)) for topic in broker.topics}
    else:
        wanted = {str(topic.topic): [int(index) for index in topic.partitions] for topic in request.topics}

    def partition(of: tuple[str, list[int]], index: int) -> "DescribeLogDirsPartition | None":
        topic = broker.topics.get(of[0])
        if topic is None or broker.partitions.state_in(topic, index) is not PartitionState.OPEN:
            return None
        return messages.DescribeLogDirsPartition(
            partition_index=index,
            partition_size=broker.partitions.of_topic(topic)[index].size,
            offset_lag=0,
            is_future_key=False,
        )

    def topic(
        of: tuple[str, list[int]], partitions: "tuple[DescribeLogDirsPartition | None, ...]"
    ) -> "DescribeLogDirsTopic | None":
        if broker.topics.get(of[0]) is None:
            return None
        return messages.DescribeLogDirsTopic(name=of[0], partitions=tuple(filter(None, partitions)))

    described = await for_each_part(list(wanted.items()), itemgetter(1), partition, topic)
    directory = broker.directory.path.resolve()
    total_size, usable_size = _volume(directory)
    return messages.DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            messages.DescribeLogDirsResult(
                error_code=ErrorCode.none,
                log_dir=str(directory),
                topics=tuple(topic for topic in described if topic is not None),
                total_bytes=total_size,
                usable_bytes=0 if broker.reserve.is_full else usable_size,
            ),
        ),
    )


def _volume(directory: Path) -> tuple[int, int]:
    """Return (total bytes, free bytes) of the volume that the directory is on; (-1, -1) if they are unknown, as in
    Kafka.
    """
    try:
        volume = os.statvfs(directory)
    except OSError:
        return -1, -1
    return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
