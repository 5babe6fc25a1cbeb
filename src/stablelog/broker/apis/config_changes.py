"""Changes of the settings of topics, of consumer groups and of the broker, for AlterConfigs and IncrementalAlterConfigs.

Behaviour: of the changes of one resource, either all are made or none. A change is durable before the response. The
error codes are those of Apache Kafka: INVALID_CONFIG for a value that a topic cannot have, INVALID_REQUEST for one that
the broker cannot have.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, Context, Operation, for_each
from stablelog.broker.apis.config_resources import (
    BrokerResource,
    ConfigResourceType,
    GroupResource,
    find_resource,
    require_config_right,
)
from stablelog.broker.settings.config import check_change, dynamic_setting
from stablelog.broker.settings.table import TOPIC_SETTINGS
from stablelog.broker.topic_names import check_topic_name
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError, UsageError
from stablelog.security.api_rights import on_cluster, on_group, on_topic

# The rights of AlterConfigs and IncrementalAlterConfigs.
ALTER_CONFIGS_RIGHTS = (
    on_topic(Operation.ALTER_CONFIGS, "a topic whose settings change"),
    on_group(Operation.ALTER_CONFIGS, "a group whose settings change"),
    on_cluster(Operation.ALTER_CONFIGS, "the cluster, for settings of brokers"),
)
GROUPS_MAX = 1000  # The number of groups with settings of their own: each change writes the settings of all.
VALUE_SIZE_MAX = 1024  # No setting that can be changed has so long a value.


class NamedValue(Protocol):
    """A setting in a request, with its new value."""

    name: str
    value: str | None


class ResourceChange(Protocol):
    """A resource in a request, with the changes of its settings."""

    resource_type: int
    resource_name: str

    @property
    def configs(self) -> Sequence[NamedValue]:
        """The settings to change."""


class PresentConfigs(NamedTuple):
    """The settings of a resource before a change.

    Attributes:
        own: the values that are set for the resource itself, by the name of the setting.
        effective: returns the value in effect of a setting for which the resource has no value of its own; "" if there
            is none. Raises UsageError for a setting that the resource does not have.
    """

    own: Mapping[str, str]
    effective: Callable[[str], str]


AskedResource = TypeVar("AskedResource", bound=ResourceChange)
Answer = TypeVar("Answer")
# Returns the settings that a resource has after the change that a request asks for.
Change = Callable[[AskedResource, PresentConfigs], dict[str, str]]


def _check_new_values(configs: Sequence[NamedValue]) -> None:
    """Refuse a setting that is named twice, and a value that is so long that its parsing would take time.

    Raises:
        RefusedError: a setting is named twice.
        UsageError: a value is too long.
    """
    if len({config.name for config in configs}) < len(configs):
        raise RefusedError(
            ErrorCode.invalid_request, "a setting is named twice in the request: name each setting once"
        )
    for config in configs:
        if config.value is not None and len(config.value) > VALUE_SIZE_MAX:
            raise UsageError(
                f"{config.name}: the value has {len(config.value)} characters; at most {VALUE_SIZE_MAX} are allowed"
            )


def _change_topic(
    broker: Broker, topic: Topic, asked: AskedResource, change: Change[AskedResource], *, validate_only: bool
) -> None:
    policy = "cleanup.policy"  # The only setting whose value is a list of words.
    default = {policy: TOPIC_SETTINGS[policy].default}
    configs = change(asked, PresentConfigs(topic.configs, lambda name: default.get(name, "")))
    check_change(topic.configs, configs)
    broker.config.check_tiered(configs, topic.configs)
    if not validate_only:
        broker.topic_files.configure(topic, configs)


def _change_broker(
    broker: Broker,
    resource: BrokerResource,
    asked: AskedResource,
    change: Change[AskedResource],
    *,
    validate_only: bool,
) -> None:
    config = broker.config
    settings, defaults = config.dynamic, config.dynamic_defaults
    present = settings if resource is BrokerResource.THIS else defaults
    changed = change(
        asked, PresentConfigs(present, lambda name: config.value_text(dynamic_setting(name).name))
    )
    config.check_dynamic(changed)
    if validate_only:
        return
    if resource is BrokerResource.THIS:
        broker.change_settings(changed, defaults)
    else:
        broker.change_settings(settings, changed)


def _change_group(
    broker: Broker,
    resource: GroupResource,
    asked: AskedResource,
    change: Change[AskedResource],
    *,
    validate_only: bool,
) -> None:
    config = broker.config
    groups = config.groups.own
    changed = change(asked, PresentConfigs(groups.get(resource.name, {}), lambda _name: ""))
    config.groups.check_group(changed)
    if resource.name not in groups and len(groups) >= GROUPS_MAX:
        raise RefusedError(
            ErrorCode.policy_violation,
            f"a group cannot get settings of its own: {GROUPS_MAX} groups have such settings already, "
            "which is the maximum. Delete the settings of another group first",
        )
    if validate_only:
        return
    wanted = {**groups, resource.name: changed}
    if not changed:
        del wanted[resource.name]
    broker.change_settings(config.dynamic, config.dynamic_defaults, wanted)


async def change_each(
    broker: Broker,
    resources: Sequence[AskedResource],
    change: Change[AskedResource],
    answer: Callable[[AskedResource, ErrorCode, str | None], Answer],
    *,
    validate_only: bool,
    context: Context,
) -> tuple[Answer, ...]:
    """Change the settings of each resource. An error of one resource does not affect the others.

    Args:
        broker: the broker.
        resources: the resources of the request.
        change: called with a resource and its present settings; returns all settings that the resource has after the
            change.
        answer: makes the part of the response for a resource from its error code and error message. The message is None
            if there is no error.
        validate_only: whether the changes are only checked.
        context: the client.

    Returns:
        The results of `answer`, in the order of the resources.
    """
    named = Counter((asked.resource_type, asked.resource_name) for asked in resources)

    def alter(asked: AskedResource) -> Answer:
        invalid_code = (
            ErrorCode.invalid_request
            if asked.resource_type == ConfigResourceType.BROKER
            else ErrorCode.invalid_config
        )
        try:
            require_config_right(context, Operation.ALTER_CONFIGS, asked.resource_type, asked.resource_name)
            if named[asked.resource_type, asked.resource_name] > 1:
                raise RefusedError(
                    ErrorCode.invalid_request,
                    "a resource is named more than once in the request: name each resource once",
                )
            if asked.resource_type == ConfigResourceType.TOPIC and asked.resource_name:
                check_topic_name(asked.resource_name)
            resource = find_resource(broker, asked.resource_type, asked.resource_name)
            _check_new_values(asked.configs)
            if isinstance(resource, Topic):
                _change_topic(broker, resource, asked, change, validate_only=validate_only)
            elif isinstance(resource, GroupResource):
                _change_group(broker, resource, asked, change, validate_only=validate_only)
            else:
                _change_broker(broker, resource, asked, change, validate_only=validate_only)
        except RefusedError as refused:
            return answer(asked, ErrorCode(refused.code), str(refused))
        except UsageError as invalid:
            return answer(asked, invalid_code, str(invalid))
        return answer(asked, ErrorCode.none, None)

    # Hold the lock `appending`, so that the changes of one connection are made in the order of its requests.
    async with context.appending:
        return await for_each(resources, alter)


def missing_value_error(name: str) -> RefusedError:
    """Return the error for a setting whose new value in the request is null."""
    return RefusedError(ErrorCode.invalid_request, f"{name}: the new value is null")
