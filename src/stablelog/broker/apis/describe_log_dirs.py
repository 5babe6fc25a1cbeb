"""DescribeLogDirs (35): the data directory, and the size of each partition in it.

A client on the same machine can read the segment files instead of fetching. The file `partition.metadata` in each
partition's directory has the topic id, by which the client checks that it has found the broker's directory. Partitions
that are not open are left out.
Version notes: v4+ the size of the volume; its usable bytes are 0 while the broker refuses writes because the disk is
full.
"""

import os
from pathlib import Path

from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.describe_log_dirs.v4.response import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.broker.topics.partition_state import PartitionState


async def handle(
    broker: Broker, request: DescribeLogDirsRequest, _context: Context
) -> DescribeLogDirsResponse:
    """Handle the request. Topics that do not exist and partitions that are not open are left out."""
    if request.topics is None:
        wanted = {topic.name: sorted(topic.partitions) for topic in broker.topics}
    else:
        wanted = {str(topic.topic): [int(index) for index in topic.partitions] for topic in request.topics}
    directory = broker.directory.path.resolve()
    total_size, usable_size = _volume(directory)
    return DescribeLogDirsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        results=(
            DescribeLogDirsResult(
                error_code=ErrorCode.none,
                log_dir=str(directory),
                topics=tuple(
                    DescribeLogDirsTopic(name=name, partitions=_partitions(broker, name, indexes))
                    for name, indexes in wanted.items()
                    if broker.topics.get(name) is not None
                ),
                total_bytes=total_size,
                usable_bytes=0 if broker.reserve.is_full else usable_size,
            ),
        ),
    )


def _volume(directory: Path) -> tuple[int, int]:
    """Return the total and the free bytes of the volume; -1 for each that cannot be determined, as in Kafka."""
    try:
        volume = os.statvfs(directory)
    except OSError:
        return -1, -1
    return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize


def _partitions(broker: Broker, name: str, indexes: list[int]) -> tuple[DescribeLogDirsPartition, ...]:
    topic = broker.topics.get(name)
    assert topic is not None
    return tuple(
        DescribeLogDirsPartition(
            partition_index=index,
            partition_size=topic.partitions[index].size,
            offset_lag=0,
            is_future_key=False,
        )
        for index in indexes
        if topic.state(index) is PartitionState.OPEN
    )
