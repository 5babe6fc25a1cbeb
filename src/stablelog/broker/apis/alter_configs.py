"""AlterConfigs (33): replace all settings of a topic or a group, or all dynamic settings of the broker.

Behaviour: changes are durable before the response. A setting that the request does not name loses the value that was
set for the resource. Settings that are fixed when a topic is created (`stablelog.order`, `stablelog.group`) keep their
value if the request does not name them. Otherwise clients that do not know these settings could not use the API.
Version notes: v2 flexible.
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
from stablelog.broker.settings.table import TOPIC_SETTINGS
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
    from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse

API = ServedApi(
    ApiKey.ALTER_CONFIGS,
    first_version=0,
    last_version=2,
    is_appending=True,
    rights=ALTER_CONFIGS_RIGHTS,
)
messages = API.messages


def _replace_configs(asked: "AlterConfigsResource", present: PresentConfigs) -> dict[str, str]:
    """Return all settings that a resource has after the replacement, as text by name: those of the request, and the
    present values of settings that are fixed when a topic is created.

    Raises:
        RefusedError: a value is null.
    """
    result = {
        name: value
        for name, value in present.own.items()
        if name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].is_fixed_at_creation
    }
    for config in asked.configs:
        if config.value is None:
            raise missing_value_error(config.name)
        result[config.name] = config.value
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


async def handle(broker: Broker, request: "AlterConfigsRequest", context: Context) -> "AlterConfigsResponse":
    """Replace the settings of each resource. If one setting of a resource is refused, none of its settings changes."""
    responses = await change_each(
        broker,
        request.resources,
        _replace_configs,
        _resource_response,
        validate_only=request.validate_only,
        context=context,
    )
    return messages.AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)
