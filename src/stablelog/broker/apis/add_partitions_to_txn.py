"""AddPartitionsToTxn (24): add the partitions that a transaction is about to write to.

Behaviour: a partition is refused if it does not exist, is offline, or belongs to a topic of another transaction group
(topics whose commits have one order). If one partition is refused, none is added. An offline partition is refused
because it could not get the marker that ends the transaction, and without that end the transactional id could not begin
another transaction. A partition that is still opening (being recovered after a start) is added. The response does not
wait for the disk: the response to a Produce request of the transaction waits instead, until both the commit log and the
partition's log are durable. Version notes: v4+ is used by brokers: a request can name several transactions, and with
`verifyOnly` it only asks whether partitions are part of a transaction, so offline partitions are not refused.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.loop.turns import AT_ONCE_MAX, Turn, in_turns
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.partition_state import NAMES_ONLY, PartitionState
from stablelog.coordinators.transactions.states import TransactionState
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster, on_topic, on_transactional_id
from stablelog.types import TopicPartition
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v5.request import (
        AddPartitionsToTxnRequest,
        AddPartitionsToTxnTransaction,
    )
    from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse

# An offline partition is not added to a transaction: the transaction could not get its marker there, and its
# transactional id could then begin no other transaction.
ADD_CODES = NAMES_ONLY._replace(offline=ErrorCode.kafka_storage_error)
VERIFY_CODES = NAMES_ONLY
WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress)
API = ServedApi(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    first_version=0,
    last_version=5,
    is_appending=True,
    repeats_request=True,
    repeats_response=True,
    rights=(
        on_transactional_id(Operation.WRITE, "the transactional id, before v4"),
        on_topic(Operation.WRITE, "each topic, before v4"),
        on_cluster(Operation.CLUSTER_ACTION, "the cluster, from v4 on"),
    ),
    codes={"": ADD_CODES, "verifyOnly": VERIFY_CODES},
    while_full=WHILE_FULL,
)
messages = API.messages

BROKERS_VERSION = 4  # From this version on, requests are those of brokers.


def _refused_code(
    broker: Broker, context: Context, target: TopicPartition, *, verify_only: bool
) -> ErrorCode | None:
    """Return the error code for a partition that the client's transaction cannot write to; None if it can be added.

    Args:
        broker: the broker.
        context: the client, which needs the right to write to the topic.
        target: topic and index of the partition.
        verify_only: whether the request only asks if the partition is part of the transaction already. An offline
            partition is not refused then.
    """
    if context.api_version < BROKERS_VERSION:
        denied = context.denied_code(Operation.WRITE, ResourceType.TOPIC, target[0])
        if denied is not None:
            return denied
    state = PartitionState.UNKNOWN if is_internal(target[0]) else broker.partitions.state(*target)
    return (VERIFY_CODES if verify_only else ADD_CODES).code_for_state(state)


def _allow_abort(broker: Broker, asked: "AddPartitionsToTxnTransaction") -> None:
    """Let a producer abort a transaction that has not begun, because its AddPartitionsToTxn request was refused.

    After such a refusal, librdkafka sends EndTxn with an abort, which the coordinator would otherwise refuse because
    there is no open transaction. If the producer's transaction is open, nothing changes: the producer can abort the
    transaction, or retry the request.
    """
    group = broker.transactions.find_group(asked.transactional_id)
    known = None if group is None else group.coordinator.table.get(asked.transactional_id)
    if group is not None and known is not None and known.state is not TransactionState.ONGOING:
        group.coordinator.mark_abort_only(asked.transactional_id, asked.producer_id, asked.producer_epoch)


def _is_other_group(broker: Broker, transactional_id: str, name: str) -> bool:
    try:
        broker.transactions.check_topic(transactional_id, name)
    except RefusedError:
        return True
    return False


async def _add_partitions(
    broker: Broker, asked: "AddPartitionsToTxnTransaction", context: Context
) -> dict[TopicPartition, ErrorCode]:
    targets = [(topic.name, index) for topic in asked.topics for index in topic.partitions]
    if context.api_version < BROKERS_VERSION:
        denied = context.denied_code(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, asked.transactional_id)
        if denied is not None:
            return dict.fromkeys(targets, denied)
    refused = {
        target: _refused_code(broker, context, target, verify_only=asked.verify_only)
        async for target in in_turns(targets, at_once=AT_ONCE_MAX)
    }
    if any(refused.values()):
        if not asked.verify_only:
            _allow_abort(broker, asked)
        return {target: code or ErrorCode.operation_not_attempted for target, code in refused.items()}
    names = {topic.name for topic in asked.topics}
    crossing = {
        name
        async for name in in_turns(names, at_once=AT_ONCE_MAX)
        if _is_other_group(broker, asked.transactional_id, name)
    }
    if crossing:
        group = broker.transactions.find_group(asked.transactional_id)
        if group is not None and not asked.verify_only:
            group.coordinator.mark_abort_only(asked.transactional_id, asked.producer_id, asked.producer_epoch)
        return {
            target: ErrorCode.topic_authorization_failed
            if target[0] in crossing
            else ErrorCode.operation_not_attempted
            for target in targets
        }
    try:
        if asked.verify_only:
            group = broker.transactions.require_group(asked.transactional_id)
        else:
            broker.reserve.check(WHILE_FULL)
            group = broker.transactions.begin_group(
                asked.transactional_id, asked.producer_id, asked.producer_epoch, WHILE_FULL
            )
    except RefusedError as why:
        return dict.fromkeys(targets, ErrorCode(why.code))
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
            api_version=context.api_version,
            now_ms=broker.now_ms(),
        )
    )


async def handle(
    broker: Broker, request: "AddPartitionsToTxnRequest", context: Context
) -> "AddPartitionsToTxnResponse":
    """Add to each transaction the partitions that the request names for it, and return the error code of each
    partition.
    """
    if context.api_version >= BROKERS_VERSION:
        denied = context.denied_code(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        if denied is not None:
            return messages.AddPartitionsToTxnResponse(
                throttle_time=NO_THROTTLE, error_code=denied, results_by_transaction=()
            )
    async with context.appending:
        codes = [await _add_partitions(broker, asked, context) for asked in request.transactions]
    turn = Turn()
    results = [
        messages.AddPartitionsToTxnResult(
            transactional_id=asked.transactional_id,
            topic_results=tuple(
                [
                    messages.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            [
                                messages.AddPartitionsToTxnPartitionResult(
                                    partition_index=index, partition_error_code=found[topic.name, index]
                                )
                                async for index in in_turns(topic.partitions, turn=turn)
                            ]
                        ),
                    )
                    async for topic in in_turns(asked.topics, turn=turn)
                ]
            ),
        )
        async for asked, found in in_turns(zip(request.transactions, codes, strict=True), turn=turn)
    ]
    return messages.AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=tuple(results)
    )
