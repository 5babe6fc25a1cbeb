"""ListConfigResources (74): the resources that have settings: topics, this broker, and groups with settings of their
own.

Behaviour: Kafka's other types (broker loggers, client metrics) have no resources here. A request that names an unknown
type gets UNSUPPORTED_VERSION, as in Apache Kafka.
Version notes: v0 asks only for client metrics resources, so its list is empty; v1 names types, and no type means all.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ServedApi
from stablelog.broker.apis.config_resources import ConfigResourceType
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.security.api_rights import on_cluster
from stablelog.wire import acls
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.list_config_resources.v1.request import ListConfigResourcesRequest
    from kio.schema.list_config_resources.v1.response import ListConfigResourcesResponse

API = ServedApi(
    ApiKey.LIST_CONFIG_RESOURCES,
    first_version=0,
    last_version=1,
    is_heavy=True,
    has_long_response=True,
    rights=(on_cluster(Operation.DESCRIBE_CONFIGS),),
)
messages = API.messages

VERSION_WITH_TYPES = 1


async def handle(
    broker: Broker, request: "ListConfigResourcesRequest", context: Context
) -> "ListConfigResourcesResponse":
    """Return the resources of the types that the request names, or of all types."""
    types = frozenset(request.resource_types or ConfigResourceType)
    if context.api_version < VERSION_WITH_TYPES:
        types = frozenset({ConfigResourceType.CLIENT_METRICS})
    if not types <= frozenset(ConfigResourceType):
        return messages.ListConfigResourcesResponse(
            throttle_time=NO_THROTTLE, error_code=ErrorCode.unsupported_version, config_resources=()
        )
    denied = context.denied_code(Operation.DESCRIBE_CONFIGS, acls.ResourceType.CLUSTER)
    if denied is not None:
        return messages.ListConfigResourcesResponse(
            throttle_time=NO_THROTTLE, error_code=denied, config_resources=()
        )
    found = []
    if ConfigResourceType.BROKER in types:
        found.append(
            messages.ConfigResource(
                resource_name=str(broker.node_id), resource_type=ConfigResourceType.BROKER.value
            )
        )
    if ConfigResourceType.TOPIC in types:
        found += [
            messages.ConfigResource(resource_name=topic.name, resource_type=ConfigResourceType.TOPIC.value)
            async for topic in in_turns(list(broker.topics), at_once=AT_ONCE_MAX)
        ]
    if ConfigResourceType.GROUP in types:
        found += [
            messages.ConfigResource(resource_name=group, resource_type=ConfigResourceType.GROUP.value)
            for group in broker.config.groups.own
        ]
    return messages.ListConfigResourcesResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, config_resources=tuple(found)
    )
