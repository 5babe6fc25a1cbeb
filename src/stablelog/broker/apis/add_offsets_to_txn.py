"""AddOffsetsToTxn (25): add the offsets log to a transaction, before the transaction commits offsets of a consumer
group.

Behaviour: a transaction of any transaction group may commit offsets, because committed offsets belong to no transaction
group (a transaction group is a set of topics whose commits are numbered together).
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.broker.topic_names import OFFSETS_PARTITION
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_group, on_transactional_id
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
    from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse

WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress)
API = ServedApi(
    ApiKey.ADD_OFFSETS_TO_TXN,
    first_version=0,
    last_version=4,
    repeats_request=True,
    repeats_response=True,
    rights=(on_transactional_id(Operation.WRITE), on_group(Operation.READ)),
    while_full=WHILE_FULL,
)
messages = API.messages


async def handle(
    broker: Broker, request: "AddOffsetsToTxnRequest", context: Context
) -> "AddOffsetsToTxnResponse":
    """Add the partition of the offsets log (`__consumer_offsets`) to the producer's transaction."""
    try:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        if not request.group_id:
            raise RefusedError(ErrorCode.invalid_group_id, "the group id in the request is empty")
        broker.reserve.check(WHILE_FULL)
        group = broker.transactions.begin_group(
            request.transactional_id, request.producer_id, request.producer_epoch, WHILE_FULL
        )
    except RefusedError as refused:
        return messages.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=refused.code)
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
    return messages.AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=codes[OFFSETS_PARTITION])
