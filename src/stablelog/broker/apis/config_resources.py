"""The resources of DescribeConfigs and IncrementalAlterConfigs: the broker or a topic, with the values of its settings."""

from collections.abc import Mapping
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.broker.apis import Broker
from stablelog.broker.settings import FIXED_TOPIC_SETTINGS, SETTINGS, TOPIC_SETTINGS
from stablelog.broker.topics.topic import Topic
from stablelog.errors import Refused

TOPIC, BROKER = 2, 4
# Kafka's numbers of DYNAMIC_TOPIC_CONFIG, DYNAMIC_BROKER_CONFIG, STATIC_BROKER_CONFIG and DEFAULT_CONFIG
FROM_TOPIC, FROM_DYNAMIC, FROM_FILE, FROM_DEFAULT = 1, 2, 4, 5
BOOLEAN, STRING, LONG = 1, 2, 5


class ConfigValue(NamedTuple):
    """One setting in a response to DescribeConfigs."""

    name: str
    text: str
    source: int
    read_only: bool
    doc: str

    @property
    def type(self) -> int:
        """Kafka's number for the type of the setting."""
        if self.text in ("true", "false"):
            return BOOLEAN
        return LONG if self.text.lstrip("-").isdigit() else STRING


def find_topic(broker: Broker, resource_type: int, name: str) -> Topic | None:
    """The topic that a request names; None if the request names this broker.

    Raises:
        Refused: there is no such topic or broker, or the resource is of another type.
    """
    if resource_type == TOPIC:
        return broker.topics.named(name)
    if resource_type != BROKER:
        raise Refused(
            ErrorCode.invalid_request,
            f"resource type {resource_type} is not supported: use 2 for a topic or 4 for a broker",
        )
    if name not in ("", str(broker.node_id)):
        raise Refused(
            ErrorCode.invalid_request, f"there is no broker {name!r}; this broker has id {broker.node_id}"
        )
    return None


def _source(broker: Broker, name: str) -> int:
    if name in broker.config.dynamic:
        return FROM_DYNAMIC
    return FROM_FILE if name in broker.config.given else FROM_DEFAULT


def topic_config_values(broker: Broker, own: Mapping[str, str]) -> list[ConfigValue]:
    """Return every setting of a topic. `own` has the values that are set for the topic itself."""
    values = []
    for name, setting in TOPIC_SETTINGS.items():
        if name in own:
            text, source = own[name], FROM_TOPIC
        elif setting.is_settled:
            text, source = setting.default, FROM_DEFAULT
        else:
            text, source = broker.config.text(setting.name), _source(broker, setting.name)
        values.append(ConfigValue(name, text, source, setting.is_settled, setting.doc))
    for name, fixed in FIXED_TOPIC_SETTINGS.items():
        if fixed is not None:
            values.append(
                ConfigValue(name, fixed, FROM_DEFAULT, True, "The only value that stablelog supports.")
            )
        elif name in own:
            values.append(
                ConfigValue(name, own[name], FROM_TOPIC, False, "A hint that stablelog does not use.")
            )
    return values


def broker_config_values(broker: Broker) -> list[ConfigValue]:
    """Every setting of the broker."""
    return [
        ConfigValue(
            setting.name,
            broker.config.text(setting.name),
            _source(broker, setting.name),
            not setting.dynamic,
            setting.doc,
        )
        for setting in SETTINGS
    ]
