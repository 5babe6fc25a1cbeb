"""OffsetCommit (8): a group says how far it has come.

Behaviour: answered once it is durable. Partitions that do not exist are refused one by one; whether a partition is open
is not looked at. Version notes:
v2 to v4 the client may say for how long; v6+ leader epoch; v7+ static members; v9 a group that is not there is
GROUP_ID_NOT_FOUND (before: ILLEGAL_GENERATION).
"""

from typing import Any

from kio.schema.offset_commit.v9.request import OffsetCommitRequest
from kio.schema.offset_commit.v9.response import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.broker import Broker
from stablelog.broker.partition_state import CODES, Codes
from stablelog.coordinators.consumer_groups.answers import (
    RETENTION_OF_BROKER,
    CodeByPartition,
    Membership,
    OffsetCommit,
    TopicPartition,
)
from stablelog.errors import Refused
from stablelog.wire.shapes import TimedOffsetCommitRequest

MISSING_GROUP_VERSION = 9
PARTITION_CODES = CODES["OffsetCommit"]


def offsets_asked(
    broker: Broker, topics: Any, partition_codes: Codes
) -> tuple[dict[TopicPartition, OffsetCommit], CodeByPartition]:
    """What this request (or a TxnOffsetCommit) commits for partitions that exist; and codes of others."""
    commits: dict[TopicPartition, OffsetCommit] = {}
    codes: CodeByPartition = {}
    for topic in topics:
        for asked in topic.partitions:
            partition = (topic.name, asked.partition_index)
            code = partition_codes.of(broker.topics.state(*partition))
            if code is not None:
                codes[partition] = code
            else:
                commits[partition] = OffsetCommit(
                    asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata
                )
    return commits, codes


async def _commit(
    broker: Broker,
    request: OffsetCommitRequest,
    commits: dict[TopicPartition, OffsetCommit],
    api_version: int,
) -> CodeByPartition:
    is_timed = isinstance(request, TimedOffsetCommitRequest)
    codes: CodeByPartition = await broker.groups.carry_out(
        broker.groups.coordinator.commit_offsets(
            request.group_id,
            commits,
            Membership(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id),
            retention_ms=request.retention_ms if is_timed else RETENTION_OF_BROKER,
            knows_missing_group=api_version >= MISSING_GROUP_VERSION,
            now_ms=broker.now_ms(),
        )
    )
    return codes


async def handle(broker: Broker, request: OffsetCommitRequest, context: Any) -> OffsetCommitResponse:
    """Commit, wait for durability, answer."""
    commits, codes = offsets_asked(broker, request.topics, PARTITION_CODES)
    try:
        broker.reserve.check("OffsetCommit")
    except Refused as refused:
        codes |= dict.fromkeys(commits, refused.code)
    else:
        codes |= await _commit(broker, request, commits, context.api_version)
    return OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetCommitResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetCommitResponsePartition(
                        partition_index=asked.partition_index,
                        error_code=codes[topic.name, asked.partition_index],
                    )
                    for asked in topic.partitions
                ),
            )
            for topic in request.topics
        ),
    )
