"""IncrementalAlterConfigs (44): change settings of a topic, or dynamic settings of the broker. Changes are durable."""

from collections.abc import Iterable, Mapping, Sequence

from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from kio.schema.incremental_alter_configs.v1.response import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)

from stablelog.broker.apis import NO_THROTTLE, Broker, Context, for_each
from stablelog.broker.apis.config_resources import find_topic
from stablelog.broker.config import check_change, dynamic_setting
from stablelog.broker.settings import TOPIC_SETTINGS
from stablelog.errors import InvalidConfig, Refused

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
VALUE_SIZE_MAX = 1024  # No setting that can be changed has so long a value.


def _check_sizes(changes: Sequence[AlterableConfig]) -> None:
    """Refuse changes that could take long to apply: APPEND and SUBTRACT divide the values into words.

    Raises:
        Refused: a setting is named twice.
        InvalidConfig: a value is too long.
    """
    if len({change.name for change in changes}) < len(changes):
        raise Refused(ErrorCode.invalid_request, "a setting is named twice")
    for change in changes:
        if change.value is not None and len(change.value) > VALUE_SIZE_MAX:
            raise InvalidConfig(
                f"{change.name}: the value has {len(change.value)} characters; at most {VALUE_SIZE_MAX} are allowed"
            )


def _changed(
    present: Mapping[str, str], effective: Mapping[str, str], changes: Iterable[AlterableConfig]
) -> dict[str, str]:
    """Apply the changes to the present settings.

    Args:
        present: the values that are set for the topic or the broker itself.
        effective: the values in effect of other settings, to which APPEND and SUBTRACT apply.
        changes: the changes of the request.

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
                word for word in result.get(change.name, effective.get(change.name, "")).split(",") if word
            ]
            given = [word for word in change.value.split(",") if word]
            removed = set(given)
            kept = [word for word in words if word not in removed]
            result[change.name] = ",".join(kept + given if change.config_operation == APPEND else kept)
        else:
            raise InvalidConfig(
                f"{change.name}: operation {change.config_operation} with value {change.value!r} is not valid"
            )
    return result


def _alter(broker: Broker, asked: AlterConfigsResource, *, validate_only: bool) -> None:
    """Make all requested changes of the settings of one topic or of the broker; after an error, none.

    Raises:
        Refused, InvalidConfig: nothing changed.
    """
    topic = find_topic(broker, asked.resource_type, asked.resource_name)
    _check_sizes(asked.configs)
    if topic is not None:
        policy = {"cleanup.policy": TOPIC_SETTINGS["cleanup.policy"].default}
        configs = _changed(topic.configs, policy, asked.configs)
        check_change(topic.configs, configs)
        broker.config.check_tiered(configs, topic.configs)
        if not validate_only:
            broker.topics.configure(topic, configs)
        return
    config = broker.config
    effective = {change.name: config.text(dynamic_setting(change.name).name) for change in asked.configs}
    configs = _changed(config.dynamic, effective, asked.configs)
    config.check_dynamic(configs)
    if not validate_only:
        broker.change_settings(configs)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: Context
) -> IncrementalAlterConfigsResponse:
    """Handle each topic or broker on its own: either all its changes are made or none."""

    def alter(asked: AlterConfigsResource) -> AlterConfigsResourceResponse:
        error, why = ErrorCode.none, None
        try:
            _alter(broker, asked, validate_only=request.validate_only)
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

    # Hold the lock `appending`, so that the changes of one connection are made in the order of its requests.
    async with context.appending:
        responses = await for_each(request.resources, alter)
    return IncrementalAlterConfigsResponse(throttle_time=NO_THROTTLE, responses=responses)
