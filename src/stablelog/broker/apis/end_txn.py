"""EndTxn (26): commit or abort a transaction.

Behaviour: the response is sent when the decision is durable and its markers are written to the partitions, so that the
producer's next transaction can begin at once. Readers see the transaction only when the markers are durable as well.
While the disk is full, the broker refuses a request that would add a record to the coordinator's log and would not end
an open transaction.
Version notes: v5 transaction version 2: the response contains the producer id and epoch of the next transaction.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_transactional_id
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.end_txn.v5.request import EndTxnRequest
    from kio.schema.end_txn.v5.response import EndTxnResponse

# While the disk is full, a request is served only if it ends an open transaction.
WHILE_FULL = WhileFull(
    ErrorCode.coordinator_load_in_progress,
    exception="An EndTxn that ends an open transaction is served, and so is a retry of it.",
)
API = ServedApi(
    ApiKey.END_TXN,
    first_version=0,
    last_version=5,
    is_appending=True,
    repeats_request=True,
    repeats_response=True,
    rights=(on_transactional_id(Operation.WRITE),),
    while_full=WHILE_FULL,
)
messages = API.messages


async def handle(broker: Broker, request: "EndTxnRequest", context: Context) -> "EndTxnResponse":
    """End the producer's transaction, wait until its markers are written, and return the producer id and epoch for the
    producer's next transaction.
    """
    try:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        group = broker.transactions.require_group(request.transactional_id)
    except RefusedError as refused:
        return messages.EndTxnResponse(throttle_time=NO_THROTTLE, error_code=refused.code)
    # Hold the lock `appending`, so that the transaction ends before a later request of the connection begins.
    async with context.appending:
        if request.committed:
            await group.wait_for_joint_commit()
        decision = group.coordinator.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            request.committed,
            api_version=context.api_version,
            open_only=broker.reserve.is_full,
            now_ms=broker.now_ms(),
        )
        done = group.begin_to_carry_out(decision)
    await group.wait_until_carried_out(done)
    answer = decision.answer
    return messages.EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
    )
