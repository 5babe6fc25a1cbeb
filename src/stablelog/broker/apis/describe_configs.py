"""DescribeConfigs (32): the settings of the broker, of topics and of consumer groups, each with the source of its
value.

Behaviour: the value of a secret, such as a password, is left out. A broker with an empty name stands for all brokers of
the cluster; its settings are the dynamic ones that were set for all brokers.
Version notes: v1 synonyms: the values of all sources, if the request asks for them; v3 type and documentation; v4
flexible.
"""

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, Operation, ServedApi, for_each
from stablelog.broker.apis.config_resources import (
    GroupResource,
    broker_config_values,
    find_resource,
    group_config_values,
    require_config_right,
    topic_config_values,
)
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError
from stablelog.security.api_rights import on_cluster, on_group, on_topic
from stablelog.wire.api import ApiKey

if TYPE_CHECKING:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.schema.describe_configs.v4.response import DescribeConfigsResponse, DescribeConfigsResult

API = ServedApi(
    ApiKey.DESCRIBE_CONFIGS,
    first_version=1,
    last_version=4,
    is_heavy=True,
    has_long_response=True,
    rights=(
        on_topic(Operation.DESCRIBE_CONFIGS),
        on_group(Operation.DESCRIBE_CONFIGS, "each group"),
        on_cluster(Operation.DESCRIBE_CONFIGS, "the cluster, for settings of brokers"),
    ),
)
messages = API.messages


async def handle(
    broker: Broker, request: "DescribeConfigsRequest", context: Context
) -> "DescribeConfigsResponse":
    """Return the settings of each resource. A resource that is named several times is returned once."""

    def describe(asked: "DescribeConfigsResource") -> "DescribeConfigsResult":
        error, why, configs = ErrorCode.none, None, ()
        keys = frozenset(asked.configuration_keys or ())
        try:
            require_config_right(
                context, Operation.DESCRIBE_CONFIGS, asked.resource_type, asked.resource_name
            )
            resource = find_resource(broker, asked.resource_type, asked.resource_name)
            if isinstance(resource, Topic):
                values = topic_config_values(broker, resource.configs)
            elif isinstance(resource, GroupResource):
                values = group_config_values(broker, resource.name)
            else:
                values = broker_config_values(broker, resource)
            configs = tuple(
                messages.DescribeConfigsResourceResult(
                    name=value.name,
                    value=None if value.is_secret else value.text,
                    read_only=value.read_only,
                    config_source=value.source.value,
                    is_sensitive=value.is_secret,
                    synonyms=tuple(
                        messages.DescribeConfigsSynonym(
                            name=name, value=None if value.is_secret else text, source=source.value
                        )
                        for source, name, text in (value.values if request.include_synonyms else ())
                    ),
                    config_type=value.type,
                    documentation=value.doc if request.include_documentation else None,
                )
                for value in values
                if not keys or value.name in keys
            )
        except RefusedError as refused:
            error, why = ErrorCode(refused.code), str(refused)
        return messages.DescribeConfigsResult(
            error_code=error,
            error_message=why,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
            configs=configs,
        )

    asked_once = {(asked.resource_type, asked.resource_name): asked for asked in request.resources}
    return messages.DescribeConfigsResponse(
        throttle_time=NO_THROTTLE, results=await for_each(asked_once.values(), describe)
    )
