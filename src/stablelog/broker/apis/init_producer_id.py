"""InitProducerId (22): a producer id and epoch; for a transactional id also the end of whoever had it before.

Version notes: v3 the producer says what it has (KIP-360); v4 PRODUCER_FENCED; v6 two-phase commit (KIP-939):
`enable2Pc` lets a transaction outlive its producer, `keepPreparedTxn` takes over the one that is open.
"""

from datetime import timedelta
from typing import Any

from kio.schema.init_producer_id.v6.request import InitProducerIdRequest
from kio.schema.init_producer_id.v6.response import InitProducerIdResponse

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.broker import Broker

MILLISECOND = timedelta(milliseconds=1)


async def handle(broker: Broker, request: InitProducerIdRequest, context: Any) -> InitProducerIdResponse:
    """Answer."""
    transactions = broker.transactions
    answer = await transactions.carry_out(
        transactions.coordinator.init_producer_id(
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
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE,
        error_code=answer.error,
        producer_id=answer.producer_id,
        producer_epoch=answer.producer_epoch,
        ongoing_txn_producer_id=answer.ongoing_producer_id,
        ongoing_txn_producer_epoch=answer.ongoing_producer_epoch,
    )
