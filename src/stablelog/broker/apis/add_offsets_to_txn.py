"""AddOffsetsToTxn (25): add the offsets log to a transaction that is about to commit a consumer group's offsets.

Behaviour: committed offsets belong to no transaction group, so transactions of all transaction groups may commit them.
"""

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType
from stablelog.broker.topic_names import OFFSETS_PARTITION
from stablelog.errors import RefusedError


async def handle(
    broker: Broker, request: AddOffsetsToTxnRequest, context: Context
) -> AddOffsetsToTxnResponse:
    """Handle the request."""
    try:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        if not request.group_id:
            raise RefusedError(ErrorCode.invalid_group_id, "the group id is empty")
        broker.reserve.check("AddOffsetsToTxn")
        group = broker.transactions.begun(
            request.transactional_id, request.producer_id, request.producer_epoch, "AddOffsetsToTxn"
        )
    except RefusedError as refused:
        return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=refused.code)
    codes = group.apply(
        group.coordinator.add_partitions(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            [OFFSETS_PARTITION],
            api_version=context.api_version,
            now_ms=broker.now_ms(),
        )
    )
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=codes[OFFSETS_PARTITION])
