"""TxnOffsetCommit (28): commit a consumer group's offsets as part of a transaction.

Behaviour: the offsets are pending until the transaction's marker is written to the offsets log. A member of an old
generation is fenced (KIP-447). While the producer's previous transaction is being completed, and while the offsets log
cannot accept the offsets, the response is COORDINATOR_NOT_AVAILABLE, the only code after which every client retries.
Version notes: v3 member and generation; v4 TRANSACTION_ABORTABLE (before: INVALID_TXN_STATE); v5 transaction version 2:
the request adds the offsets log to the transaction.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import (
    NO_THROTTLE,
    Broker,
    Context,
    Operation,
    ResourceType,
    ServedApi,
    check_no_missing_markers,
)
from stablelog.broker.apis.offset_commit import offset_slices, refused_offsets, requested_offsets
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import Turn, in_turns
from stablelog.broker.topic_names import OFFSETS_PARTITION
from stablelog.broker.topics.partition_state import NAMES_ONLY
from stablelog.broker.transactions.transaction_group import TransactionGroup
from stablelog.coordinators.consumer_groups.answers import CommittingMember, OffsetCommit
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group, on_topic, on_transactional_id
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
    from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponse

PARTITION_CODES = NAMES_ONLY
WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress)
API = ServedApi(
    ApiKey.TXN_OFFSET_COMMIT,
    first_version=0,
    last_version=5,
    is_appending=True,
    repeats_response=True,
    rights=(
        on_transactional_id(Operation.WRITE),
        on_group(Operation.READ),
        on_topic(Operation.READ),
    ),
    codes={"": PARTITION_CODES},
    while_full=WHILE_FULL,
)
messages = API.messages

SECOND_DIALECT_VERSION = 5

# The error codes of the transaction coordinator and of the log, each with the code that Kafka's group coordinator
# returns in its place.
_IN_WORDS_OF_GROUPS = {
    ErrorCode.concurrent_transactions: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.message_too_large: ErrorCode.invalid_commit_offset_size,
    ErrorCode.record_list_too_large: ErrorCode.invalid_commit_offset_size,
}


def _check_transaction(
    group: TransactionGroup, now_ms: int, request: "TxnOffsetCommitRequest", api_version: int
) -> ErrorCode:
    """Check that the partition of the offsets log (`__consumer_offsets`) is part of the producer's open transaction.

    In version 5 and later of the API, the offsets log is added to the transaction if it is not part of it.

    Returns:
        `none` if the offsets log is part of the transaction; otherwise the error code of the coordinator.
    """
    coordinator = group.coordinator
    who = (request.transactional_id, request.producer_id, request.producer_epoch)
    if api_version >= SECOND_DIALECT_VERSION:
        codes = group.apply(
            coordinator.add_partitions(
                *who,
                [OFFSETS_PARTITION],
                api_version=api_version,
                transaction_version=2,
                now_ms=now_ms,
            )
        )
    else:
        codes = coordinator.verify_partitions(*who, [OFFSETS_PARTITION])
    return codes[OFFSETS_PARTITION]


async def _commit_offsets(
    broker: Broker, group: TransactionGroup, request: "TxnOffsetCommitRequest", context: Context
) -> dict[TopicPartition, ErrorCode]:
    # Hold the lock `appending`, so that the offsets of one connection are committed in the order of its requests.
    async with context.appending:
        commits, codes = await requested_offsets(broker, request.topics, PARTITION_CODES, context)
        if not request.group_id:
            return dict.fromkeys(commits, ErrorCode.invalid_group_id) | codes
        async for some in offset_slices(commits):
            codes |= _commit_slice(broker, group, request, some, context.api_version)
    return codes


def _commit_slice(
    broker: Broker,
    group: TransactionGroup,
    request: "TxnOffsetCommitRequest",
    commits: dict[TopicPartition, OffsetCommit],
    api_version: int,
) -> dict[TopicPartition, ErrorCode]:
    groups = broker.groups
    membership = CommittingMember(request.member_id, request.generation_id, request.group_instance_id)
    decision = groups.coordinator.txn_commit_offsets(
        request.group_id, commits, membership, now_ms=broker.now_ms()
    )
    codes = dict(decision.answer)
    if not decision.records:
        return codes
    error = _check_transaction(group, broker.now_ms(), request, api_version)
    if error is ErrorCode.none:
        try:
            groups.journal.append_transactional(decision.records, request.producer_id, request.producer_epoch)
        except RefusedError as refused:
            error = ErrorCode(refused.code)
        else:
            groups.coordinator.txn_offsets_appended(
                request.producer_id, decision.records, now_ms=broker.now_ms()
            )
            groups.set_timer()
    error = _IN_WORDS_OF_GROUPS.get(error, error)
    return {target: code if code is not ErrorCode.none else error for target, code in codes.items()}


async def handle(
    broker: Broker, request: "TxnOffsetCommitRequest", context: Context
) -> "TxnOffsetCommitResponse":
    """Commit the offsets as part of the transaction, and return the error code of each partition. The response is sent
    when the logs of both coordinators are durable: the offsets log, and the commit log of the transaction coordinator.
    """
    try:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        broker.reserve.check(WHILE_FULL)
        check_no_missing_markers(broker, OFFSETS_PARTITION, ErrorCode.coordinator_load_in_progress)
        who = (request.transactional_id, request.producer_id, request.producer_epoch)
        if context.api_version >= SECOND_DIALECT_VERSION:
            group = broker.transactions.begin_group(*who, WHILE_FULL)
        else:
            group = broker.transactions.require_group(request.transactional_id)
    except RefusedError as refused:
        codes = await refused_offsets(
            broker, request.topics, PARTITION_CODES, context, ErrorCode(refused.code)
        )
    else:
        codes = await _commit_offsets(broker, group, request, context)
        await group.journal.wait_until_durable()
        await broker.groups.wait_until_durable()
    turn = Turn()
    return messages.TxnOffsetCommitResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            [
                messages.TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=tuple(
                        [
                            messages.TxnOffsetCommitResponsePartition(
                                partition_index=p.partition_index,
                                error_code=codes.get((topic.name, p.partition_index), ErrorCode.none),
                            )
                            async for p in in_turns(topic.partitions, turn=turn)
                        ]
                    ),
                )
                async for topic in in_turns(request.topics, turn=turn)
            ]
        ),
    )
