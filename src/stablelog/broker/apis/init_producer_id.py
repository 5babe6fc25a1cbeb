"""InitProducerId (22): assign a producer id and epoch; for a transactional id, fence its earlier producer.

Version notes: v3 the producer sends its present id and epoch (KIP-360); v4 may return PRODUCER_FENCED; v6 two-phase
commit (KIP-939): with `enable2Pc` a transaction stays open when its producer ends, and with `keepPreparedTxn` a new
producer continues the open transaction.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.durability.disk_reserve import WhileFull
from stablelog.coordinators.transactions.answers import InitAnswer
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster, on_topic, on_transactional_id
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
    from kio.schema.init_producer_id.v6.response import InitProducerIdResponse

WHILE_FULL = WhileFull(ErrorCode.coordinator_load_in_progress)
API = ServedApi(
    ApiKey.INIT_PRODUCER_ID,
    first_version=0,
    last_version=6,
    is_alone=True,
    rights=(
        on_transactional_id(Operation.WRITE),
        on_transactional_id(Operation.TWO_PHASE_COMMIT, "the transactional id, with `enable2Pc`"),
        on_topic(Operation.WRITE, "any topic, without a transactional id", "the next right is needed"),
        on_cluster(Operation.IDEMPOTENT_WRITE, "the cluster, without a transactional id"),
    ),
    while_full=WHILE_FULL,
)
messages = API.messages

MILLISECOND = timedelta(milliseconds=1)


def _require_rights(request: "InitProducerIdRequest", context: Context) -> None:
    """Check that the client may get a producer id.

    Raises:
        RefusedError: the client may not. The error has the error code for that type of resource.
    """
    if request.transactional_id is not None:
        context.require(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        if request.enable2_pc:
            context.require(
                Operation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID, request.transactional_id
            )
    elif not context.allows_some(Operation.WRITE, ResourceType.TOPIC):
        # A client that may write to some topic needs no right of its own for an idempotent producer.
        context.require(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)


async def _init_producer(broker: Broker, request: "InitProducerIdRequest", context: Context) -> InitAnswer:
    _require_rights(request, context)
    broker.reserve.check(WHILE_FULL)
    group = broker.transactions.group_for_producer(request.transactional_id)
    return await group.carry_out(
        group.coordinator.producers.init_producer_id(
            request.transactional_id,
            request.transaction_timeout // MILLISECOND,
            request.producer_id,
            request.producer_epoch,
            enable_two_phase=request.enable2_pc,
            keep_prepared=request.keep_prepared_txn,
            api_version=context.api_version,
            now_ms=broker.now_ms(),
        )
    )


async def handle(
    broker: Broker, request: "InitProducerIdRequest", context: Context
) -> "InitProducerIdResponse":
    """Return a producer id and epoch. The response is sent when they are durable in the log of the transaction
    coordinator.
    """
    try:
        answer = await _init_producer(broker, request, context)
    except RefusedError as refused:
        answer = InitAnswer(ErrorCode(refused.code))
    return messages.InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        ongoing_txn_producer_id=answer.ongoing_producer_id,
        ongoing_txn_producer_epoch=answer.ongoing_producer_epoch,
    )
