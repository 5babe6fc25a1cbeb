"""DescribeClientQuotas (48): no client has a quota, because the broker has none.

Behaviour: a filter is checked as in Apache Kafka, and a valid one finds nothing.
Version notes: v1 flexible.
"""

from collections.abc import Sequence

from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest
from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType
from stablelog.errors import RefusedError

IP = "ip"
ENTITY_TYPES = ("user", "client-id", IP)
EXACT, DEFAULT, ANY = 0, 1, 2


def _check(components: Sequence[ComponentData]) -> None:
    """Refuse a filter that Kafka would refuse.

    Raises:
        RefusedError: a component of the filter is not valid, or contradicts another one.
    """
    seen: set[str] = set()
    for component in components:
        kind, match_type = component.entity_type, component.match_type
        if not kind or kind in seen:
            raise RefusedError(ErrorCode.invalid_request, f"the entity type {kind!r} is empty or named twice")
        if kind not in ENTITY_TYPES:
            raise RefusedError(ErrorCode.unsupported_version, f"the entity type {kind!r} is not supported")
        if match_type not in (EXACT, DEFAULT, ANY):
            raise RefusedError(ErrorCode.invalid_request, f"the match type {match_type} is unknown")
        if (component.match is None) == (match_type == EXACT):
            raise RefusedError(
                ErrorCode.invalid_request, f"the match type {match_type} and the match string contradict"
            )
        seen.add(kind)
    if IP in seen and len(seen) > 1:
        raise RefusedError(
            ErrorCode.invalid_request, "the entity type ip cannot be combined with another one"
        )


async def handle(
    _broker: Broker, request: DescribeClientQuotasRequest, context: Context
) -> DescribeClientQuotasResponse:
    """Handle the request."""
    try:
        context.require(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        _check(request.components)
    except RefusedError as refused:
        return DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE, error_code=refused.code, error_message=str(refused), entries=None
        )
    return DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, entries=()
    )
