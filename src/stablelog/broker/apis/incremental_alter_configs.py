"""IncrementalAlterConfigs (44): change single settings of a topic or a group, or dynamic settings of the broker.

Behaviour: changes are durable before the response. The operations APPEND and SUBTRACT apply to a list of words. If the
resource has no value of its own, they apply to the value in effect.
Version notes: v1 flexible.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, ServedApi
from stablelog.broker.apis.config_changes import (
    ALTER_CONFIGS_RIGHTS,
    PresentConfigs,
    change_each,
    missing_value_error,
)
from stablelog.errors import RefusedError
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kio.schema.incremental_alter_configs.v1.response import (
        AlterConfigsResourceResponse,
        IncrementalAlterConfigsResponse,
    )

API = ServedApi(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    first_version=0,
    last_version=1,
    is_appending=True,
    rights=ALTER_CONFIGS_RIGHTS,
)
messages = API.messages

# Kafka's limits of a broker for the move of replicas. `kafka-reassign-partitions` deletes them after each reassignment.
# The broker does not have these settings, so a deletion changes nothing.
THROTTLES = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def _change_configs(asked: "AlterConfigsResource", present: PresentConfigs) -> dict[str, str]:
    """Return the settings of a resource after the changes, as text by name.

    Raises:
        UsageError: the resource does not have a setting that the request names.
        RefusedError: the request has an unknown operation, or an operation without the value that it needs.
    """
    result = dict(present.own)
    for change in asked.configs:
        if change.config_operation == DELETE and change.name in THROTTLES:
            continue
        effective = present.effective(change.name)
        if change.config_operation == DELETE:
            result.pop(change.name, None)
            continue
        if change.config_operation not in (SET, APPEND, SUBTRACT):
            raise RefusedError(
                ErrorCode.invalid_request,
                f"setting {change.name}: operation {change.config_operation} is unknown",
            )
        if change.value is None:
            raise missing_value_error(change.name)
        if change.config_operation == SET:
            result[change.name] = change.value
            continue
        words = [word for word in result.get(change.name, effective).split(",") if word]
        given = [word for word in change.value.split(",") if word]
        removed = set(given)
        kept = [word for word in words if word not in removed]
        result[change.name] = ",".join(kept + given if change.config_operation == APPEND else kept)
    return result


def _resource_response(
    asked: "AlterConfigsResource", error: ErrorCode, why: str | None
) -> "AlterConfigsResourceResponse":
    return messages.AlterConfigsResourceResponse(
        error_code=error,
        error_message=why,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


async def handle(
    broker: Broker, request: "IncrementalAlterConfigsRequest", context: Context
) -> "IncrementalAlterConfigsResponse":
    """Change the settings of each resource. If one change of a resource is refused, none of its settings changes."""
    responses = await change_each(
        broker,
        request.resources,
        _change_configs,
        _resource_response,
        validate_only=request.validate_only,
        context=context,
    )
    return messages.IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)
