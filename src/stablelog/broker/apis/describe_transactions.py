"""DescribeTransactions (65): the state of transactional ids at the transaction coordinator, such as an open transaction
and its partitions (KIP-664).
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.security.api_rights import LEFT_OUT, on_topic, on_transactional_id
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
    from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TransactionState

API = ServedApi(
    ApiKey.DESCRIBE_TRANSACTIONS,
    first_version=0,
    last_version=0,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_transactional_id(Operation.DESCRIBE, "each transactional id"),
        on_topic(Operation.DESCRIBE, "each topic of a transaction", LEFT_OUT),
    ),
)
messages = API.messages

# As a start time in the response: -1 ms, that is, no transaction has begun.
NEVER = datetime.fromtimestamp(-0.001, UTC)


def _describe_transaction(broker: Broker, transactional_id: str, context: Context) -> "TransactionState":
    denied = context.denied_code(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id)
    found = broker.transactions.describe(transactional_id) if denied is None else None
    if found is None:
        return messages.TransactionState(
            error_code=denied or ErrorCode.transactional_id_not_found,
            transactional_id=transactional_id,
            transaction_state="",
            transaction_timeout=timedelta(0),
            transaction_start_time=NEVER,
            producer_id=-1,
            producer_epoch=-1,
            topics=(),
        )
    topics: dict[str, list[int]] = {}
    for name, index in sorted(found.partitions):
        if context.allows(Operation.DESCRIBE, ResourceType.TOPIC, name, is_logged=False):
            topics.setdefault(name, []).append(index)
    start_ms = (
        found.start_ms if found.start_ms < 0 else found.start_ms + broker.clock.wall_ms() - broker.now_ms()
    )
    return messages.TransactionState(
        error_code=ErrorCode.none,
        transactional_id=transactional_id,
        transaction_state=found.state.label,
        transaction_timeout=timedelta(milliseconds=found.timeout_ms),
        transaction_start_time=NEVER if start_ms < 0 else datetime.fromtimestamp(start_ms / 1000, UTC),
        producer_id=found.producer_id,
        producer_epoch=found.producer_epoch,
        topics=tuple(
            messages.TopicData(topic=name, partitions=tuple(indexes)) for name, indexes in topics.items()
        ),
    )


async def handle(
    broker: Broker, request: "DescribeTransactionsRequest", context: Context
) -> "DescribeTransactionsResponse":
    """Return the state of each transactional id that the request names, or an error code for an id that is unknown or
    that the client may not describe.
    """
    return messages.DescribeTransactionsResponse(
        throttle_time=NO_THROTTLE,
        transaction_states=tuple(
            [
                _describe_transaction(broker, each, context)
                async for each in in_turns(dict.fromkeys(request.transactional_ids))
            ]
        ),
    )
