"""Requests for the settings of topics, brokers and groups (KIP-133, KIP-339)."""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, Literal, NamedTuple

from stablelog.client.core.admin.brokers import node_connection
from stablelog.client.core.cluster import Cluster
from stablelog.client.core.connection import BrokerConnection
from stablelog.client.core.steps import Steps
from stablelog.client.responses import check
from stablelog.errors import UsageError

Kind = Literal["topic", "broker", "group"]
# Kafka's numbers of the resources that have settings.
RESOURCE_TYPES: Final[Mapping[str, int]] = {"topic": 2, "broker": 4, "group": 32}
SET, DELETE = 0, 1  # operations of IncrementalAlterConfigs


class ConfigSource(IntEnum):
    """Where the value of a setting comes from, such as the topic, the configuration of the broker or the default. The
    numbers are Kafka's.
    """

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8

    @classmethod
    def _missing_(cls, value: object) -> "ConfigSource":
        return cls.UNKNOWN


class Config(NamedTuple):
    """A setting of a topic, a broker or a group. The value is None if the setting is secret or has no value.

    Attributes:
        name: the name of the setting.
        value: the value of the setting as text.
        source: whether the value was set for the topic, the broker or the group itself, or is a default.
        is_read_only: whether only a restart of the broker can change it.
        is_sensitive: whether the value is secret, such as a password.
    """

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool


def describe_configs(
    cluster: Cluster, kind: Kind, name: str, *, names: Iterable[str] | None = None
) -> Steps[dict[str, Config]]:
    """Return the settings of a topic, a broker or a group, by name.

    Args:
        cluster: the brokers.
        kind: topic, broker or group.
        name: the name of the topic or group, or the id of the broker.
        names: only these settings; None for all.

    Raises:
        RefusedError: the resource does not exist, or the user may not describe its settings.
        UsageError: `kind` is neither topic, nor broker, nor group.
        UnavailableError: no broker responds.
    """
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource

    resource = DescribeConfigsResource(
        resource_type=_resource_type(kind),
        resource_name=name,
        configuration_keys=None if names is None else tuple(names),
    )
    request = DescribeConfigsRequest(resources=(resource,))

    def attempt() -> Steps[dict[str, Config]]:
        connection = yield from _connection(cluster, kind, name)
        (found,) = (yield from connection.request_steps(request)).results
        check(found.error_code, f"settings of {kind} {name!r}", found.error_message)
        return {
            one.name: Config(
                one.name, one.value, ConfigSource(one.config_source), one.read_only, one.is_sensitive
            )
            for one in found.configs
        }

    return (yield from cluster.retrying(f"asking for the settings of {kind} {name!r}", attempt))


def alter_configs(cluster: Cluster, kind: Kind, name: str, changes: Mapping[str, str | None]) -> Steps[None]:
    """Change settings of a topic, a broker or a group. Either all changes are made or none.

    Args:
        cluster: the brokers.
        kind: topic, broker or group.
        name: the name of the topic or group, or the id of the broker; empty for the default of all brokers.
        changes: by the name of the setting, its new value; None removes the setting, so that its default applies again.

    Raises:
        RefusedError: the resource does not exist, a setting is not valid, or the user may not change it.
        UsageError: `kind` is neither topic, nor broker, nor group.
        UnavailableError: no broker responds.
    """
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    resource = AlterConfigsResource(
        resource_type=_resource_type(kind),
        resource_name=name,
        configs=tuple(
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in changes.items()
        ),
    )
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)

    def attempt() -> Steps[None]:
        connection = yield from _connection(cluster, kind, name)
        (changed,) = (yield from connection.request_steps(request)).responses
        check(changed.error_code, f"settings of {kind} {name!r}", changed.error_message)

    yield from cluster.retrying(f"changing the settings of {kind} {name!r}", attempt)


def _resource_type(kind: str) -> int:
    if kind not in RESOURCE_TYPES:
        raise UsageError(
            f"{kind!r} is no kind of resource with settings: write one of {', '.join(RESOURCE_TYPES)}"
        )
    return RESOURCE_TYPES[kind]


def _connection(cluster: Cluster, kind: str, name: str) -> Steps[BrokerConnection]:
    """Return a connection to a broker that can serve a request for these settings: for the settings of one broker, to
    that broker, and for all others, to any broker.
    """
    if kind != "broker" or not name:
        return (yield from cluster.any_connection())
    if not name.isdecimal():
        raise UsageError(f"{name!r} is not the id of a broker: write a number")
    return (yield from node_connection(cluster, int(name)))
