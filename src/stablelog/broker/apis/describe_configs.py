"""DescribeConfigs (32): the settings of the broker and of topics, each with the source of its value."""

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, for_each
from stablelog.broker.apis.config_resources import broker_config_values, find_topic, topic_config_values
from stablelog.errors import Refused


async def handle(
    broker: Broker, request: DescribeConfigsRequest, _context: Context
) -> DescribeConfigsResponse:
    """Handle the request."""

    def describe(asked: DescribeConfigsResource) -> DescribeConfigsResult:
        error, why, configs = ErrorCode.none, None, ()
        keys = frozenset(asked.configuration_keys or ())
        try:
            topic = find_topic(broker, asked.resource_type, asked.resource_name)
            values = (
                broker_config_values(broker) if topic is None else topic_config_values(broker, topic.configs)
            )
            configs = tuple(
                DescribeConfigsResourceResult(
                    name=value.name,
                    value=value.text,
                    read_only=value.read_only,
                    config_source=value.source,
                    is_sensitive=False,
                    synonyms=(),
                    config_type=value.type,
                    documentation=value.doc if request.include_documentation else None,
                )
                for value in values
                if not keys or value.name in keys
            )
        except Refused as refused:
            error, why = refused.code, str(refused)
        return DescribeConfigsResult(
            error_code=error,
            error_message=why,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=configs,
        )

    asked_once = {(asked.resource_type, asked.resource_name): asked for asked in request.resources}
    return DescribeConfigsResponse(
        throttle_time=NO_THROTTLE, results=await for_each(asked_once.values(), describe)
    )
