"""AddPartitionsToTxn (24): the partitions that a transaction is about to write to.

Behaviour: a partition that does not exist is refused, or whose topic belongs to another transaction group, and then
none is added. The answer does not wait for the disk: an acknowledged batch of the transaction does, for both logs.
Version notes: v4+ is for brokers: several transactions, and `verifyOnly`.
"""

from typing import Any

from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.broker import Broker
from stablelog.broker.topics import is_internal
from stablelog.errors import Refused
from stablelog.wire.extension.transaction_groups import group_of

TopicPartition = tuple[str, int]


def _exists(broker: Broker, name: str, index: int) -> bool:
    topic = broker.topics.get(name)
    return topic is not None and 0 <= index < topic.partition_count and not is_internal(name)


def _is_refused(broker: Broker, transactional_id: str, name: str) -> bool:
    try:
        broker.transactions.check_topic(transactional_id, name)
    except Refused:
        return True
    return False


def _add(broker: Broker, asked: Any, api_version: int) -> dict[TopicPartition, ErrorCode]:
    targets = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
    missing = {target for target in targets if not _exists(broker, *target)}
    if missing:
        return {
            target: ErrorCode.unknown_topic_or_partition
            if target in missing
            else ErrorCode.operation_not_attempted
            for target in targets
        }
    crossing = {name for name, _ in targets if _is_refused(broker, asked.transactional_id, name)}
    if crossing:
        group = broker.transactions.get(group_of(asked.transactional_id))
        if group is not None and not asked.verify_only:
            group.coordinator.turn_away(asked.transactional_id, asked.producer_id, asked.producer_epoch)
        return {
            target: ErrorCode.topic_authorization_failed
            if target[0] in crossing
            else ErrorCode.operation_not_attempted
            for target in targets
        }
    try:
        group = broker.transactions.of_id(asked.transactional_id)
    except Refused as refused:
        return dict.fromkeys(targets, refused.code)
    coordinator = group.coordinator
    if asked.verify_only:
        return coordinator.verify_partitions(
            asked.transactional_id, asked.producer_id, asked.producer_epoch, targets
        )
    return group.apply(
        coordinator.add_partitions(
            asked.transactional_id,
            asked.producer_id,
            asked.producer_epoch,
            targets,
            api_version=api_version,
            now_ms=broker.now_ms(),
        )
    )


async def handle(
    broker: Broker, request: AddPartitionsToTxnRequest, context: Any
) -> AddPartitionsToTxnResponse:
    """Answer."""
    results = []
    for asked in request.transactions:
        codes = _add(broker, asked, context.api_version)
        results.append(
            AddPartitionsToTxnResult(
                transactional_id=asked.transactional_id,
                topic_results=tuple(
                    AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            AddPartitionsToTxnPartitionResult(
                                partition_index=index, partition_error_code=codes[topic.name, index]
                            )
                            for index in topic.partitions
                        ),
                    )
                    for topic in asked.topics
                ),
            )
        )
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=tuple(results)
    )
