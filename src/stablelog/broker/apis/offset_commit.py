"""OffsetCommit (8): commit the offsets of a consumer group.

Behaviour: the response is sent once the offsets are durable. Each partition that does not exist gets an error code of
its own; the request does not check whether a partition is open.
Version notes: v2 to v4 the client may set the retention time; v6+ leader epoch; v7+ static members; v9 a group that
does not exist is GROUP_ID_NOT_FOUND (before: ILLEGAL_GENERATION).
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.topics.partition_state import NAMES_ONLY, PartitionCodes
from stablelog.coordinators.consumer_groups.answers import (
    RETENTION_OF_BROKER,
    CodeByPartition,
    CommittingMember,
    OffsetCommit,
)
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group, on_topic
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9.request import OffsetCommitRequest, OffsetCommitRequestTopic
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequestTopic

PARTITION_CODES = NAMES_ONLY
WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress, is_served_from_half=True)
API = ServedApi(
    ApiKey.OFFSET_COMMIT,
    first_version=2,
    last_version=9,
    is_appending=True,
    rights=(on_group(Operation.READ), on_topic(Operation.READ)),
    codes={"": PARTITION_CODES},
    while_full=WHILE_FULL,
)
messages = API.messages

MISSING_GROUP_VERSION = 9
OFFSETS_AT_ONCE = 500


async def requested_offsets(
    broker: Broker,
    topics: "Iterable[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic]",
    partition_codes: PartitionCodes,
    context: Context,
) -> tuple[dict[TopicPartition, OffsetCommit], CodeByPartition]:
    """Find out which of the requested offsets an OffsetCommit or TxnOffsetCommit request may commit.

    Returns:
        (the offsets to commit, the error codes of all other partitions), both by partition. A partition has an error
        code if it does not exist, or if the client may not read its topic.
    """
    commits: dict[TopicPartition, OffsetCommit] = {}
    codes: CodeByPartition = {}
    async for name, asked in in_turns((topic.name, asked) for topic in topics for asked in topic.partitions):
        partition = (name, asked.partition_index)
        code = context.denied_code(
            Operation.READ, ResourceType.TOPIC, name
        ) or partition_codes.code_for_state(broker.partitions.state(*partition))
        if code is not None:
            codes[partition] = code
        else:
            commits[partition] = OffsetCommit(
                asked.committed_offset, asked.committed_leader_epoch, asked.committed_metadata
            )
    return commits, codes


async def refused_offsets(
    broker: Broker,
    topics: "Sequence[OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic]",
    partition_codes: PartitionCodes,
    context: Context,
    refusal: ErrorCode,
) -> CodeByPartition:
    """Return the error code of each partition, for a request that is refused as a whole.

    A partition that does not exist gets its own code. If the client is not authorized for the group or the
    transactional id, all partitions get `refusal`, so that the client does not learn which partitions exist.
    """
    if refusal in (
        ErrorCode.group_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
    ):
        asked = ((topic.name, one.partition_index) for topic in topics for one in topic.partitions)
        return {partition: refusal async for partition in in_turns(asked)}
    commits, codes = await requested_offsets(broker, topics, partition_codes, context)
    return codes | dict.fromkeys(commits, refusal)


async def offset_slices(
    commits: dict[TopicPartition, OffsetCommit],
) -> AsyncIterator[dict[TopicPartition, OffsetCommit]]:
    """Yield the offsets in slices of at most OFFSETS_AT_ONCE partitions; other tasks run between two slices.

    If there are no offsets, one empty slice is yielded.
    """
    left = iter(commits.items())
    first = dict(islice(left, OFFSETS_AT_ONCE))
    yield first
    while some := dict(islice(left, OFFSETS_AT_ONCE)):
        await asyncio.sleep(0)
        yield some


async def _commit_offsets(
    broker: Broker,
    request: "OffsetCommitRequest",
    commits: dict[TopicPartition, OffsetCommit],
    context: Context,
) -> CodeByPartition:
    # Only a request of versions 2 to 4 has a retention time (`wire.timed_commit`).
    retention_ms = getattr(request, "retention_ms", RETENTION_OF_BROKER)
    codes: CodeByPartition = {}
    membership = CommittingMember(
        request.member_id, request.generation_id_or_member_epoch, request.group_instance_id
    )
    async for some in offset_slices(commits):
        decision = broker.groups.coordinator.commit_offsets(
            request.group_id,
            some,
            membership,
            retention_ms=retention_ms,
            knows_missing_group=context.api_version >= MISSING_GROUP_VERSION,
            now_ms=broker.now_ms(),
        )
        broker.groups.apply_decision(decision)
        codes |= decision.answer
    return codes


async def handle(broker: Broker, request: "OffsetCommitRequest", context: Context) -> "OffsetCommitResponse":
    """Commit the offsets, wait until they are durable, and return the response."""
    # Hold the lock `appending`, so that the offsets of one connection are committed in the order of its requests.
    async with context.appending:
        try:
            context.require(Operation.READ, ResourceType.GROUP, request.group_id)
            broker.reserve.check(WHILE_FULL)
        except RefusedError as refused:
            codes = await refused_offsets(
                broker, request.topics, PARTITION_CODES, context, ErrorCode(refused.code)
            )
        else:
            commits, codes = await requested_offsets(broker, request.topics, PARTITION_CODES, context)
            codes |= await _commit_offsets(broker, request, commits, context)
    await broker.groups.wait_until_durable()
    turn = Turn()
    return messages.OffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                messages.OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        [
                            messages.OffsetCommitResponsePartition(
                                partition_index=asked.partition_index,
                                error_code=codes[topic.name, asked.partition_index],
                            )
                            async for asked in in_turns(topic.partitions, turn=turn)
                        ]
                    ),
                )
                async for topic in in_turns(request.topics, turn=turn)
            ]
        ),
    )
