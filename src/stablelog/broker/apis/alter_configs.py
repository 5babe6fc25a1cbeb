"""AlterConfigs (33): replace all settings of a topic, or all dynamic settings of the broker. Changes are durable.

Behaviour: a setting that the request does not name loses the value that was set for the resource. Settings that are
fixed when a topic is created (`stablelog.order`, `stablelog.group`) stay as they are if the request does not name them;
otherwise no client that does not know them could use the API.
Version notes: v2 flexible.
"""

from kio.schema.alter_configs.v2.request import AlterConfigsRequest, AlterConfigsResource
from kio.schema.alter_configs.v2.response import AlterConfigsResourceResponse, AlterConfigsResponse
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context
from stablelog.broker.apis.config_changes import Present, change_each, no_value
from stablelog.broker.settings import TOPIC_SETTINGS


def _replaced(asked: AlterConfigsResource, present: Present) -> dict[str, str]:
    """The settings of a resource after the replacement.

    Raises:
        RefusedError: a value is null.
    """
    result = {
        name: value
        for name, value in present.own.items()
        if name in TOPIC_SETTINGS and TOPIC_SETTINGS[name].is_settled
    }
    for config in asked.configs:
        if config.value is None:
            raise no_value(config.name)
        result[config.name] = config.value
    return result


def _answer(asked: AlterConfigsResource, error: ErrorCode, why: str | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error,
        error_message=why,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )


async def handle(broker: Broker, request: AlterConfigsRequest, context: Context) -> AlterConfigsResponse:
    """Handle each topic or broker on its own: either all its settings are replaced or none."""
    responses = await change_each(
        broker, request.resources, _replaced, _answer, validate_only=request.validate_only, context=context
    )
    return AlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)
