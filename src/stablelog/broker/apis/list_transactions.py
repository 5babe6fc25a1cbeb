"""ListTransactions (66): list the transactional ids of all transaction groups (each has a coordinator of its own), with
the states of their transactions (KIP-664).

Version notes: v1 only transactions that have been open for a given time; v2 only ids that match a pattern.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.coordinators.transactions.answers import Listed
from stablelog.errors import RefusedError
from stablelog.security.api_rights import LEFT_OUT, on_transactional_id
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_transactions.v2.request import ListTransactionsRequest
    from kio.schema.list_transactions.v2.response import ListTransactionsResponse

API = ServedApi(
    ApiKey.LIST_TRANSACTIONS,
    first_version=0,
    last_version=2,
    is_heavy=True,
    has_long_response=True,
    rights=(on_transactional_id(Operation.DESCRIBE, "each transactional id", LEFT_OUT),),
)
messages = API.messages


async def handle(
    broker: Broker, request: "ListTransactionsRequest", context: Context
) -> "ListTransactionsResponse":
    """Return the transactional ids that match the filters of the request and that the client may describe."""
    listed: list[Listed] = []
    unknown: list[str] = []
    try:
        for group in broker.transactions:
            of_group, unknown = group.coordinator.table.list_transactions(
                states=request.state_filters,
                producer_ids=request.producer_id_filters,
                duration_ms=request.duration_filter,
                id_pattern=request.transactional_id_pattern,
                now_ms=broker.now_ms(),
            )
            async for some in in_turns(of_group):
                listed += [
                    one
                    for one in some
                    if context.allows(
                        Operation.DESCRIBE,
                        ResourceType.TRANSACTIONAL_ID,
                        one.transactional_id,
                        is_logged=False,
                    )
                ]
    except RefusedError as refused:
        return messages.ListTransactionsResponse(
            throttle_time=NO_THROTTLE, error_code=refused.code, transaction_states=()
        )
    return messages.ListTransactionsResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(unknown),
        transaction_states=tuple(
            [
                messages.TransactionState(
                    transactional_id=found.transactional_id,
                    producer_id=found.producer_id,
                    transaction_state=found.state,
                )
                async for found in in_turns(listed)
            ]
        ),
    )
