"""The resources whose settings can be described, listed and changed, and the values of their settings.

stablelog has three of Kafka's types of resources: topics, brokers, and groups of the consumer group protocol. A
resource of type broker is named by the broker's node id. The empty name stands for all brokers of the cluster: their
dynamic settings apply where the broker has none of its own.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker, Context, Operation
from stablelog.broker.settings.config import NOTHING, ValueSource, setting_of_broker
from stablelog.broker.settings.table import (
    FIXED_BROKER_SETTINGS,
    GROUP_SETTINGS,
    SETTINGS,
    TOPIC_SETTINGS,
    UNUSED_TOPIC_SETTINGS,
)
from stablelog.broker.topics.topic import Topic
from stablelog.errors import RefusedError
from stablelog.wire import acls


class ConfigResourceType(IntEnum):
    """Kafka's numbers for the types of resources that have settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


# What the broker says of the types of resources that Kafka has and stablelog does not.
NOT_HERE: Mapping[int, str] = {
    ConfigResourceType.BROKER_LOGGER: "the levels of the broker's loggers cannot be described or changed",
    ConfigResourceType.CLIENT_METRICS: "the broker receives no metrics of clients, so there is no client metrics resource",
}

BOOLEAN, STRING, LONG = 1, 2, 5


class BrokerResource(Enum):
    """The two resources of type BROKER: this broker, and all brokers of the cluster."""

    THIS = "this broker"
    ALL = "all brokers of the cluster"


class GroupResource(NamedTuple):
    """A consumer group as a resource with settings. The group need not exist: settings can be made before its first
    member joins.
    """

    name: str


class ConfigValue(NamedTuple):
    """One setting in a response to DescribeConfigs.

    Attributes:
        name: the name of the setting.
        values: (source, name of the setting at this source, value) of each source that has a value. The first value is
            in effect.
        read_only: whether the setting cannot be changed while the broker runs.
        doc: the documentation of the setting.
        is_secret: whether the response leaves out the values.
    """

    name: str
    values: tuple[tuple[ValueSource, str, str], ...]
    read_only: bool
    doc: str
    is_secret: bool = False

    @property
    def source(self) -> ValueSource:
        """Where the value in effect comes from."""
        return self.values[0][0]

    @property
    def text(self) -> str:
        """The value in effect, as text."""
        return self.values[0][2]

    @property
    def type(self) -> int:
        """Kafka's number for the type of the setting."""
        if self.text in ("true", "false"):
            return BOOLEAN
        return LONG if self.text.lstrip("-").isdigit() else STRING


def require_config_right(context: Context, operation: Operation, resource_type: int, name: str) -> None:
    """Check that the client may describe or change the settings of a resource.

    As in Kafka, the settings of a topic or a group need a right on this topic or group, and all other settings need a
    right on the cluster.

    Raises:
        RefusedError: the client may not. The error has the error code for that type of resource.
    """
    if resource_type == ConfigResourceType.TOPIC:
        context.require(operation, acls.ResourceType.TOPIC, name)
    elif resource_type == ConfigResourceType.GROUP:
        context.require(operation, acls.ResourceType.GROUP, name)
    else:
        context.require(operation, acls.ResourceType.CLUSTER)


def find_resource(broker: Broker, resource_type: int, name: str) -> Topic | BrokerResource | GroupResource:
    """Return the resource that a request names.

    Raises:
        RefusedError: there is no such topic or broker, or stablelog does not have resources of this type.
    """
    if resource_type == ConfigResourceType.TOPIC:
        if not name:
            raise RefusedError(
                ErrorCode.invalid_request, "a resource of type 2 (a topic) in the request has no name"
            )
        return broker.topics.named(name)
    if resource_type == ConfigResourceType.GROUP:
        if not name:
            raise RefusedError(
                ErrorCode.invalid_request, "a resource of type 32 (a group) in the request has no name"
            )
        return GroupResource(name)
    if resource_type != ConfigResourceType.BROKER:
        why = NOT_HERE.get(resource_type, "this type is unknown")
        raise RefusedError(
            ErrorCode.invalid_request,
            f"the resource type {int(resource_type)} in the request is refused: {why}. Use 2 for a "
            "topic, 4 for a broker or 32 for a group",
        )
    if name not in ("", str(broker.node_id)):
        raise RefusedError(
            ErrorCode.invalid_request, f"there is no broker {name!r}; this broker has id {broker.node_id}"
        )
    return BrokerResource.THIS if name else BrokerResource.ALL


def _broker_values(broker: Broker, name: str) -> tuple[tuple[ValueSource, str, str], ...]:
    return tuple((source, name, text) for source, text in broker.config.values_by_source(name))


def _own_value(
    source: ValueSource, name: str, own: Mapping[str, str]
) -> tuple[tuple[ValueSource, str, str], ...]:
    return ((source, name, own[name]),) if name in own else ()


def topic_config_values(broker: Broker, own: Mapping[str, str]) -> list[ConfigValue]:
    """Return every setting of a topic with its values.

    Args:
        broker: the broker, whose values apply to settings that the topic does not have itself.
        own: the settings of the topic itself, as text.
    """
    values = []
    for name, setting in TOPIC_SETTINGS.items():
        found = _own_value(ValueSource.TOPIC, name, own)
        # A topic keeps the order and the group that it was created with, so the broker's values do not apply to it.
        rest = (
            ((ValueSource.DEFAULT, name, setting.default),)
            if setting.is_fixed_at_creation
            else _broker_values(broker, setting.name)
        )
        values.append(ConfigValue(name, found + rest, setting.is_fixed_at_creation, setting.doc))
    for name, setting in UNUSED_TOPIC_SETTINGS.items():
        given = (*_own_value(ValueSource.TOPIC, name, own), (ValueSource.DEFAULT, name, setting.default))
        values.append(ConfigValue(name, given, False, setting.doc))
    return values


def group_config_values(broker: Broker, group: str) -> list[ConfigValue]:
    """Return every setting of a consumer group. Each has the group's own value if there is one, followed by the values
    of the broker, which apply otherwise.
    """
    own = broker.config.groups.own.get(group, NOTHING)
    return [
        ConfigValue(
            name,
            _own_value(ValueSource.GROUP, name, own) + _broker_values(broker, setting.name),
            False,
            setting.doc,
        )
        for name, setting in GROUP_SETTINGS.items()
    ]


def broker_config_values(broker: Broker, resource: BrokerResource) -> list[ConfigValue]:
    """Return settings of a resource of type BROKER: every setting if the resource is this broker, or only the settings
    that were set dynamically for all brokers, if the resource stands for all brokers of the cluster.
    """
    if resource is BrokerResource.ALL:
        texts = broker.config.dynamic_defaults
        source = ValueSource.DYNAMIC_DEFAULT_BROKER
        return [
            ConfigValue(one.name, ((source, one.name, texts[one.name]),), False, one.doc)
            for one in SETTINGS
            if one.name in texts
        ]
    whole = [
        ConfigValue(
            setting.name,
            _broker_values(broker, setting.name),
            not setting.dynamic,
            setting.doc,
            setting.is_secret,
        )
        for setting in SETTINGS
    ]
    fixed = [
        ConfigValue(
            name, ((ValueSource.DEFAULT, name, text),), True, "The only value that stablelog supports."
        )
        for name, text in FIXED_BROKER_SETTINGS.items()
    ]
    return [*whole, *fixed, *_listener_values(broker)]


def _listener_values(broker: Broker) -> Iterator[ConfigValue]:
    """Yield the settings that were set for single listeners, each with its values."""
    for name, text in broker.config.static.items():
        setting = setting_of_broker(name)
        if setting.name != name:
            given = ((ValueSource.STATIC_BROKER, name, text),)
            yield ConfigValue(name, given, True, setting.doc, setting.is_secret)
