"""The settings of a running broker, and the checks of a topic's settings.

A setting that is unknown or out of range is refused with an error that names the setting. `broker.settings.table` lists
all settings.
"""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any

from stablelog.broker.settings.group_overrides import GroupOverrides
from stablelog.broker.settings.listeners import (
    LISTENER_PREFIX,
    Address,
    Listener,
    is_loopback,
    reachable_host,
)
from stablelog.broker.settings.setting import BrokerSetting, find_setting
from stablelog.broker.settings.table import (
    FIXED_BROKER_SETTINGS,
    SETTINGS,
    TOPIC_SETTINGS,
    UNUSED_TOPIC_SETTINGS,
)
from stablelog.coordinators.consumer_groups.answers import GroupConfig
from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.data_directory.topic_settings import group_of_topic, order_of
from stablelog.errors import UsageError
from stablelog.log.partition import LogConfig
from stablelog.log.retention import NO_LIMIT
from stablelog.types import SecurityProtocol

_BY_NAME = {setting.name: setting for setting in SETTINGS}
NOTHING: Mapping[str, str] = MappingProxyType({})


def dynamic_setting(name: str) -> BrokerSetting:
    """Return the setting of this name, which must be one that can change while the broker runs.

    Raises:
        UsageError: the setting is unknown or not dynamic. No setting of a single listener is dynamic.
    """
    setting = setting_of_broker(name)
    if not setting.dynamic or setting.name != name:
        raise UsageError(
            f"{name} can only be set when the broker starts: restart the broker with the new value"
        )
    return setting


class ValueSource(IntEnum):
    """Where the value of a setting was set, such as at the start or as a default. The numbers are Kafka's.

    A value with a smaller number overrides one with a greater number; a value of a group overrides all others.
    """

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


def setting_of_broker(name: str) -> BrokerSetting:
    """Return the setting of this name: of the broker, or with the prefix `listener.name.` of one of its listeners.

    Raises:
        UsageError: there is no such setting, or it cannot be set for one listener.
    """
    if not name.startswith(LISTENER_PREFIX):
        return find_setting(name, _BY_NAME, "broker")
    listener, _, rest = name.removeprefix(LISTENER_PREFIX).partition(".")
    known = {setting.name: setting for setting in SETTINGS if setting.per_listener}
    if not listener or listener != listener.lower():
        raise UsageError(
            f"{name!r} is not a setting of a listener: write {LISTENER_PREFIX}<name in lower case>.<setting>"
        )
    return find_setting(rest, known, "listener")


class BrokerConfig:
    """Every setting of one broker, with the values that were set at the start and while it ran.

    Attributes:
        static: the settings with which the broker was started, as text.
        dynamic: the settings that were changed for this broker while it ran, as text.
        dynamic_defaults: the settings that were changed for all brokers of the cluster, as text.
        groups: the settings that single consumer groups have in place of the broker's.
        listeners: the listeners, in the order of the setting `listeners`.

    Raises:
        UsageError: a setting is unknown or out of range, or settings contradict each other. The message names the
            setting with its valid range, or the nearest valid name.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        _check_fixed(given)
        self.static = {name: text for name, text in given.items() if name not in FIXED_BROKER_SETTINGS}
        self.dynamic: dict[str, str] = {}
        self.dynamic_defaults: dict[str, str] = {}
        self.groups = GroupOverrides(self.__getitem__)
        self._static_values: dict[str, Any] = {s.name: s.kind.parse(s.default) for s in SETTINGS}
        for name, text in self.static.items():
            setting = setting_of_broker(name)
            self._static_values[name] = setting.read(text, name)
        self._values = self._static_values
        self.listeners = self._find_listeners()
        self._check_metrics()
        if self["group.min.session.timeout.ms"] > self["group.max.session.timeout.ms"]:
            raise UsageError(
                "group.min.session.timeout.ms is larger than group.max.session.timeout.ms: change one of them"
            )
        if self["group.consumer.heartbeat.interval.ms"] >= self["group.consumer.session.timeout.ms"]:
            raise UsageError(
                "group.consumer.heartbeat.interval.ms must be smaller than "
                "group.consumer.session.timeout.ms: change one of them"
            )

    def __getitem__(self, name: str) -> Any:
        """Return the value of a setting that is in effect, parsed."""
        return self._values[name]

    def listener_value(self, listener: str, name: str) -> Any:
        """Return the value of a setting for one listener, parsed: the listener's own value, or else that of the broker."""
        own = self._listener_setting_name(listener, name)
        return self._values[own if own in self._values else name]

    def is_set_for_listener(self, listener: str, name: str) -> bool:
        """Return whether a setting was set for this listener itself, so that the broker's value does not apply to it."""
        return self._listener_setting_name(listener, name) in self._values

    @staticmethod
    def _listener_setting_name(listener: str, name: str) -> str:
        return f"{LISTENER_PREFIX}{listener.lower()}.{name}"

    def _find_listeners(self) -> tuple[Listener, ...]:
        """Find the listeners in the settings, and return them with their protocols and advertised addresses, in the
        order of the setting `listeners`.

        Raises:
            UsageError: settings of listeners contradict each other, or everyone on the network could use a listener.
        """
        addresses: tuple[Address, ...] = self["listeners"]
        names = [address.name for address in addresses]
        advertised = {one.name: (one.host, one.port) for one in self["advertised.listeners"]}
        prefixed = [name for name in self.static if name.startswith(LISTENER_PREFIX)]
        named = {
            "advertised.listeners": [*advertised],
            "inter.broker.listener.name": [self["inter.broker.listener.name"].upper()],
            **{name: [name.split(".")[2].upper()] for name in prefixed},
        }
        for setting, found in named.items():
            for name in found:
                if name and name not in names:
                    raise UsageError(
                        f"{setting} names the listener {name}, and listeners has {', '.join(names)}: name "
                        "one of these, or add the listener there"
                    )
        return tuple(self._listener(address, advertised.get(address.name)) for address in addresses)

    def _check_metrics(self) -> None:
        """Refuse metrics that everyone on the network could read, unless a setting accepts the risk."""
        host: str = self["stablelog.metrics.host"]
        is_safe = self["stablelog.metrics.port"] < 0 or is_loopback(host)
        if not is_safe and not self["stablelog.metrics.allow.unauthenticated"]:
            raise UsageError(
                f"stablelog.metrics.host={host}: everyone who reaches this address could read the metrics, because they "
                "have no login. Use 127.0.0.1; or accept the risk with stablelog.metrics.allow.unauthenticated=true"
            )

    def _listener(self, address: Address, advertised: tuple[str, int] | None) -> Listener:
        protocols: Mapping[str, SecurityProtocol] = self["listener.security.protocol.map"]
        protocol = protocols.get(address.name) or SecurityProtocol.__members__.get(address.name)
        if protocol is None:
            raise UsageError(
                f"the listener {address.name} has no security protocol: add {address.name}:PROTOCOL to "
                "listener.security.protocol.map"
            )
        listener = Listener(
            address.name,
            protocol,
            address.host,
            address.port,
            advertised or (reachable_host(address.host), 0),
        )
        is_safe = protocol.is_sasl or self.client_auth(listener) == "required" or is_loopback(address.host)
        if not is_safe and not self["stablelog.listeners.allow.unauthenticated"]:
            raise UsageError(
                f"{address}: everyone on the network could use this listener, because it does not authenticate its "
                "clients. Use SASL_SSL, or SSL with ssl.client.auth=required, or listen on 127.0.0.1; or accept the "
                "risk with stablelog.listeners.allow.unauthenticated=true"
            )
        return listener

    def client_auth(self, listener: Listener) -> str:
        """Return whether the clients of a listener need a TLS certificate, as `none`, `requested` or `required`.

        As in Kafka, the value that is set for the whole broker does not apply to a listener with SASL.
        """
        if not listener.protocol.is_tls:
            return "none"
        if listener.is_sasl and not self.is_set_for_listener(listener.name, "ssl.client.auth"):
            return "none"
        auth: str = self.listener_value(listener.name, "ssl.client.auth")
        return auth

    def value_text(self, name: str) -> str:
        """Return as text the value of a setting that is in effect."""
        return self.values_by_source(name)[0][1]

    def values_by_source(self, name: str) -> list[tuple[ValueSource, str]]:
        """Return all values of a setting, each as (source, text). The first value is in effect."""
        sources = (
            (ValueSource.DYNAMIC_BROKER, self.dynamic),
            (ValueSource.DYNAMIC_DEFAULT_BROKER, self.dynamic_defaults),
            (ValueSource.STATIC_BROKER, self.static),
        )
        found = [(source, values[name]) for source, values in sources if name in values]
        return [*found, (ValueSource.DEFAULT, _BY_NAME[name].default)]

    def check_dynamic(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Check dynamic settings, and return their parsed values.

        Raises:
            UsageError: a setting is unknown, not dynamic, or out of range.
        """
        found = {name: dynamic_setting(name) for name in settings}
        return {name: one.read(settings[name]) for name, one in found.items()}

    def set_dynamic(self, settings: Mapping[str, str], defaults: Mapping[str, str] = NOTHING) -> None:
        """Replace all dynamic settings.

        Args:
            settings: the dynamic settings of this broker.
            defaults: the dynamic settings of all brokers of the cluster, which `settings` override.

        Raises:
            UsageError: a setting is not valid: see `check_dynamic`. Nothing changed.
        """
        values = self.check_dynamic(defaults) | self.check_dynamic(settings)
        self.dynamic, self.dynamic_defaults = dict(settings), dict(defaults)
        self._values = self._static_values | values

    def group_config(self) -> GroupConfig:
        """Return the settings of the group coordinator."""
        return GroupConfig(
            initial_rebalance_delay_ms=self["group.initial.rebalance.delay.ms"],
            session_timeout_ms_min=self["group.min.session.timeout.ms"],
            session_timeout_ms_max=self["group.max.session.timeout.ms"],
            group_size_max=self["group.max.size"],
            offsets_retention_ms=self["offsets.retention.minutes"] * 60_000,
            offset_metadata_size_max=self["offset.metadata.max.bytes"],
            consumer_session_timeout_ms=self["group.consumer.session.timeout.ms"],
            heartbeat_interval_ms=self["group.consumer.heartbeat.interval.ms"],
            consumer_group_size_max=self["group.consumer.max.size"],
            consumer_times=self.groups.times,
        )

    def transaction_config(self) -> TransactionConfig:
        """Return the settings of the transaction coordinators."""
        return TransactionConfig(
            transaction_timeout_ms_max=self["transaction.max.timeout.ms"],
            transactional_id_expiration_ms=self["transactional.id.expiration.ms"],
            two_phase_commit_enable=self["transaction.two.phase.commit.enable"],
            strict=self["stablelog.transaction.strict"],
        )

    def creation_configs(self) -> dict[str, str]:
        """Return the broker's values of those settings that a topic keeps from its creation on. A new topic gets a copy
        of them.

        Values that are equal to the default are left out.
        """
        settled = [setting for setting in SETTINGS if setting.is_fixed_at_creation]
        return {
            one.name: self.value_text(one.name) for one in settled if self.value_text(one.name) != one.default
        }

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        """Return the log settings of a topic: the topic's own values, and the broker's values for all other settings."""

        def value(topic_name: str) -> Any:
            setting = TOPIC_SETTINGS[topic_name]
            if topic_name in topic_configs:
                return setting.kind.read(topic_name, topic_configs[topic_name])
            return self[setting.name]

        # Take the order from the topic's own settings; a topic without this setting has the order `offset`. The
        # broker's setting does not apply to an existing topic, because that setting may change and a topic's order must
        # not change.
        order = order_of(topic_configs)
        # Commit-ordered topics are not compacted: compaction would keep the record of a key that was written last, but
        # readers in commit order expect the record that was committed last. If the broker's policy changes to compaction,
        # a topic that has a remote tier by its own settings keeps the tier, and is not compacted either.
        cleanup_policy = value("cleanup.policy")
        is_own = "cleanup.policy" in topic_configs
        if order == "commit" or ("compact" in cleanup_policy and not is_own and _is_tiered(topic_configs)):
            cleanup_policy = frozenset({"delete"})
        return LogConfig(
            segment_bytes=value("segment.bytes"),
            segment_ms=value("segment.ms"),
            index_interval_bytes=value("index.interval.bytes"),
            segment_index_bytes=value("segment.index.bytes"),
            retention_ms=value("retention.ms"),
            retention_bytes=value("retention.bytes"),
            cleanup_policy=cleanup_policy,
            max_message_bytes=value("max.message.bytes"),
            compression_type=value("compression.type"),
            message_timestamp_type=value("message.timestamp.type"),
            message_timestamp_before_ms_max=value("message.timestamp.before.max.ms"),
            message_timestamp_after_ms_max=value("message.timestamp.after.max.ms"),
            delete_retention_ms=value("delete.retention.ms"),
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            file_delete_delay_ms=value("file.delete.delay.ms"),
            producer_id_expiration_ms=self["producer.id.expiration.ms"],
            snapshot_bytes=self["stablelog.snapshot.bytes"],
            order=order,
            is_tiered=value("remote.storage.enable") and "compact" not in cleanup_policy,
            local_retention_ms=value("local.retention.ms"),
            local_retention_bytes=value("local.retention.bytes"),
            is_copy_disabled=value("remote.log.copy.disable"),
            is_deleted_on_disable=value("remote.log.delete.on.disable"),
            drops_aborted_copies=value("stablelog.remote.drop.aborted") and order != "commit",
            drops_aborted=value("stablelog.local.drop.aborted") and order != "commit",
            proves_records=self["stablelog.produce.proof"] == "full",
        )

    def check_tiered(
        self, topic_configs: Mapping[str, str], present: Mapping[str, str] | None = None
    ) -> None:
        """Check the tiered storage settings of a topic before they take effect.

        Args:
            topic_configs: the settings that the topic gets.
            present: the settings that it has; None for a new topic.

        Raises:
            UsageError: tiered storage would be enabled, and the broker has no object store, the topic is compacted, or
                a limit of local retention is greater than that of the whole log; or tiered storage would be disabled,
                and the settings do not allow the deletion of the records in the object store.
        """
        if present is not None and self.log_config(present).is_tiered:
            wanted = self.log_config(topic_configs)
            if not wanted.is_tiered and not wanted.is_deleted_on_disable:
                raise UsageError(
                    "the topic has a remote tier, and would lose it with the records that are only in the object store. To "
                    "delete these records, set remote.log.delete.on.disable=true, too; to stop only the copies, keep "
                    "remote.storage.enable=true, and set remote.log.copy.disable=true"
                )
        if not _is_tiered(topic_configs):
            return
        if not self["stablelog.remote.url"]:
            raise UsageError(
                "remote.storage.enable=true needs an object store: start the broker with stablelog.remote.url"
            )
        policy_name = self._name_in(topic_configs, "cleanup.policy")
        policy = topic_configs.get("cleanup.policy", self.value_text("log.cleanup.policy"))
        if "compact" in policy and order_of(topic_configs) != "commit":
            raise UsageError(
                f"remote.storage.enable=true and {policy_name}={policy} cannot be combined: compaction replaces segments that "
                "are copied already. Set cleanup.policy=delete for the topic"
            )
        log_config = self.log_config(topic_configs)
        for name, local, total in (
            ("ms", log_config.local_retention_ms, log_config.retention_ms),
            ("bytes", log_config.local_retention_bytes, log_config.retention_bytes),
        ):
            if total != NO_LIMIT and (local == NO_LIMIT or local > total):
                local_name, total_name = (
                    self._name_in(topic_configs, f"{prefix}retention.{name}") for prefix in ("local.", "")
                )
                raise UsageError(
                    f"{local_name}={local} is greater than {total_name}={total}: the local disk cannot keep records that are "
                    "deleted from the whole log"
                )

    @staticmethod
    def _name_in(topic_configs: Mapping[str, str], name: str) -> str:
        """Return the name of the setting that a topic's value comes from, for a message: that of the topic's own
        setting if it is set, and otherwise that of the broker's.
        """
        return name if name in topic_configs else TOPIC_SETTINGS[name].name


def _check_fixed(given: Mapping[str, str]) -> None:
    for name, only in FIXED_BROKER_SETTINGS.items():
        if given.get(name, only) != only:
            raise UsageError(
                f"{name}={given[name]!r} is not supported: the value is always {only}; leave the setting out"
            )


def _is_tiered(topic_configs: Mapping[str, str]) -> bool:
    return topic_configs.get("remote.storage.enable", "false").lower() == "true"


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Check the settings of a topic.

    Raises:
        UsageError: a setting is unknown or out of range, or two settings contradict each other. The message names the
            setting with its valid range, or the nearest valid name.
    """
    for name, text in configs.items():
        setting = UNUSED_TOPIC_SETTINGS.get(name) or find_setting(name, TOPIC_SETTINGS, "topic")
        setting.kind.read(name, text, setting.default)
    if order_of(configs) == "commit" and "compact" in configs.get("cleanup.policy", ""):
        raise UsageError(
            "cleanup.policy=compact and stablelog.order=commit cannot be combined: compaction keeps the record of a key "
            "that was written last, and readers in commit order expect the record that was committed last"
        )
    for name in ("stablelog.remote.drop.aborted", "stablelog.local.drop.aborted"):
        if order_of(configs) == "commit" and configs.get(name, "false").lower() == "true":
            raise UsageError(
                f"{name}=true and stablelog.order=commit cannot be combined: the commit index (the list of a "
                "segment's transactions) names positions in the log files, which would change if records were removed"
            )


def check_change(present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check a change of a topic's settings from `present` to `wanted`.

    Raises:
        UsageError: a setting is not valid (see `check_topic_configs`), or is fixed when a topic is created and would
            change.
    """
    check_topic_configs(wanted)
    if group_of_topic(wanted) != group_of_topic(present):
        raise UsageError(
            f"stablelog.group={group_of_topic(present)} was set when the topic was created and cannot change: the "
            "commits in its partitions are numbered in that group"
        )
    if order_of(wanted) != order_of(present):
        raise UsageError(
            f"stablelog.order={order_of(present)} was set when the topic was created and cannot change: "
            "offsets that readers have stored would point to other records"
        )
