"""IncrementalAlterConfigs (44): change settings of a topic, or dynamic settings of the broker. Changes are durable."""

from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import IncrementalAlterConfigsRequest
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from stablelog.broker.apis import NO_THROTTLE
from stablelog.broker.apis.describe_configs import BROKER, TOPIC
from stablelog.broker.broker import Broker
from stablelog.broker.config import check_change, dynamic_setting
from stablelog.errors import InvalidConfig, Refused

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def _changed(present: dict[str, str], defaults: dict[str, str], changes: Any) -> dict[str, str]:
    """Apply the changes to the present settings.

    Raises:
        InvalidConfig: a change is not valid.
    """
    result = dict(present)
    for change in changes:
        if change.config_operation == SET and change.value is not None:
            result[change.name] = change.value
        elif change.config_operation == DELETE:
            result.pop(change.name, None)
        elif change.config_operation in (APPEND, SUBTRACT) and change.value is not None:
            words = [
                word for word in result.get(change.name, defaults.get(change.name, "")).split(",") if word
            ]
            given = [word for word in change.value.split(",") if word]
            kept = [word for word in words if word not in given]
            result[change.name] = ",".join(kept + given if change.config_operation == APPEND else kept)
        else:
            raise InvalidConfig(
                f"{change.name}: operation {change.config_operation} with value {change.value!r} makes no sense"
            )
    return result


def _alter_topic(broker: Broker, name: str, changes: Any, *, validate_only: bool) -> None:
    topic = broker.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
    configs = _changed(topic.configs, {"cleanup.policy": "delete"}, changes)
    check_change(topic.configs, configs)
    if not validate_only:
        broker.topics.configure(topic, configs)


def _alter_broker(broker: Broker, name: str, changes: Any, *, validate_only: bool) -> None:
    if name not in ("", str(broker.node_id)):
        raise Refused(ErrorCode.invalid_request, f"there is no broker {name!r}; this one is {broker.node_id}")
    config = broker.config
    effective = {change.name: config.text(dynamic_setting(change.name).name) for change in changes}
    wanted = _changed(config.dynamic, effective, changes)
    if validate_only:
        config.check_dynamic(wanted)
    else:
        broker.change_settings(wanted)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, _context: Any
) -> IncrementalAlterConfigsResponse:
    """Handle each topic or broker on its own: either all its changes are made or none."""

    def alter(asked: Any) -> AlterConfigsResourceResponse:
        error, why = ErrorCode.none, None
        try:
            if asked.resource_type == TOPIC:
                _alter_topic(broker, asked.resource_name, asked.configs, validate_only=request.validate_only)
            elif asked.resource_type == BROKER:
                _alter_broker(broker, asked.resource_name, asked.configs, validate_only=request.validate_only)
            else:
                raise Refused(
                    ErrorCode.invalid_request,
                    f"resource type {asked.resource_type}: 2 is a topic, 4 a broker",
                )
        except Refused as refused:
            error, why = refused.code, str(refused)
        except InvalidConfig as invalid:
            error, why = ErrorCode.invalid_config, str(invalid)
        return AlterConfigsResourceResponse(
            error_code=error,
            error_message=why,
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )

    return IncrementalAlterConfigsResponse(
        throttle_time=NO_THROTTLE, responses=tuple(alter(asked) for asked in request.resources)
    )
