"""DescribeClientQuotas (48): list the quotas of the entities that a filter selects.

Behaviour: the filter is checked and applied as in Apache Kafka. A filter without components selects all entities, unless
it is strict.
Version notes: v1 flexible.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ResourceType, ServedApi
from stablelog.broker.loop.turns import in_turns
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster
from stablelog.security.quotas.entities import Entity, FilterComponent, Values, check_filter, selects
from stablelog.wire.api import ApiKey
from stablelog.wire.quotas import ENTITY_TYPES

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import DescribeClientQuotasRequest
    from kio.schema.describe_client_quotas.v1.response import DescribeClientQuotasResponse, EntryData

API = ServedApi(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    first_version=0,
    last_version=1,
    is_heavy=True,
    has_long_response=True,
    rights=(on_cluster(Operation.DESCRIBE_CONFIGS),),
)
messages = API.messages


def _entry_response(entity: Entity, values: Values) -> "EntryData":
    return messages.EntryData(
        entity=tuple(
            [messages.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.pairs]
        ),
        values=tuple([messages.ValueData(key=key.value, value=value) for key, value in values.items()]),
    )


async def handle(
    broker: Broker, request: "DescribeClientQuotasRequest", context: Context
) -> "DescribeClientQuotasResponse":
    """Return the quotas of the entities that the filter selects."""
    # If there are more components than types of entities, one of the first is refused: its type is unknown, or named twice.
    first = request.components[: len(ENTITY_TYPES) + 1]
    components = [FilterComponent(one.entity_type, one.match_type, one.match) for one in first]
    try:
        context.require(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
        check_filter(components)
    except RefusedError as refused:
        return messages.DescribeClientQuotasResponse(
            throttle_time=NO_THROTTLE, error_code=refused.code, error_message=str(refused), entries=None
        )
    # Without components, a strict filter selects nothing: each entity has a type that the filter does not name.
    entries = [
        _entry_response(entity, values)
        async for entity, values in in_turns(broker.quotas.table.entities.items())
        if selects(components, entity, strict=request.strict)
    ]
    return messages.DescribeClientQuotasResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, error_message=None, entries=tuple(entries)
    )
