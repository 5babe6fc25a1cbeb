"""DescribeConfigs (32): the settings of the broker and of topics, each with the source of its value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest
from kio.schema.describe_configs.v4.response import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from kio.schema.errors import ErrorCode

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.broker import Broker
from stablelog.broker.config import FIXED_TOPIC_SETTINGS, SETTLED_AT_CREATION, BrokerConfig
from stablelog.broker.settings import SETTINGS, TOPIC_SETTINGS
from stablelog.broker.turns import in_turns
from stablelog.errors import Refused

TOPIC, BROKER = 2, 4
# Kafka's DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG
FROM_TOPIC, FROM_DYNAMIC, FROM_FILE, FROM_DEFAULT = 1, 2, 4, 5
BOOLEAN, STRING, LONG = 1, 2, 5


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """One setting as a client sees it."""

    name: str
    text: str
    source: int
    read_only: bool
    doc: str
    type: int


def _type_of(text: str) -> int:
    if text in ("true", "false"):
        return BOOLEAN
    return LONG if text.lstrip("-").isdigit() else STRING


def _broker_source(config: BrokerConfig, name: str) -> int:
    if name in config.dynamic:
        return FROM_DYNAMIC
    return FROM_FILE if name in config.given else FROM_DEFAULT


def topic_config_values(broker: Broker, own: Mapping[str, str]) -> list[ConfigValue]:
    """Every setting of a topic, whose own settings are `own`."""
    values = []
    for name, setting in TOPIC_SETTINGS.items():
        if name in own:
            text, source = own[name], FROM_TOPIC
        elif name in SETTLED_AT_CREATION:
            text, source = setting.default, FROM_DEFAULT
        else:
            text, source = broker.config.text(setting.name), _broker_source(broker.config, setting.name)
        is_settled = name in SETTLED_AT_CREATION
        values.append(ConfigValue(name, text, source, is_settled, setting.doc, _type_of(text)))
    for name, fixed in FIXED_TOPIC_SETTINGS.items():
        if fixed is not None:
            values.append(ConfigValue(name, fixed, FROM_DEFAULT, True, "Always so here.", _type_of(fixed)))
        elif name in own:
            values.append(
                ConfigValue(
                    name, own[name], FROM_TOPIC, False, "A hint that is not needed here.", _type_of(own[name])
                )
            )
    return values


def broker_config_values(broker: Broker) -> list[ConfigValue]:
    """Every setting of the broker."""
    return [
        ConfigValue(
            setting.name,
            broker.config.text(setting.name),
            _broker_source(broker.config, setting.name),
            not setting.dynamic,
            setting.doc,
            _type_of(setting.default),
        )
        for setting in SETTINGS
    ]


def _values(broker: Broker, resource_type: int, name: str) -> list[ConfigValue]:
    if resource_type == TOPIC:
        topic = broker.topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return topic_config_values(broker, topic.configs)
    if resource_type == BROKER:
        if name not in ("", str(broker.node_id)):
            raise Refused(
                ErrorCode.invalid_request, f"there is no broker {name!r}; this one is {broker.node_id}"
            )
        return broker_config_values(broker)
    raise Refused(ErrorCode.invalid_request, f"resource type {resource_type}: 2 is a topic, 4 a broker")


async def handle(broker: Broker, request: DescribeConfigsRequest, _context: Any) -> DescribeConfigsResponse:
    """Handle the request."""

    def describe(asked: Any) -> DescribeConfigsResult:
        error, why, configs = ErrorCode.none, None, ()
        try:
            wanted = asked.configuration_keys
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
                for value in _values(broker, asked.resource_type, asked.resource_name)
                if wanted is None or not wanted or value.name in wanted
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
        throttle_time=NO_THROTTLE,
        results=tuple([describe(asked) async for asked in in_turns(asked_once.values())]),
    )
