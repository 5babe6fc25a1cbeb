"""The table of all settings of brokers and topics.

Kafka's settings keep Kafka's names and meanings. The names of all other settings begin with `stablelog.`.
docs/reference/settings.md is generated from this table.
"""

from stablelog.broker.settings.acls import ACL_SETTINGS
from stablelog.broker.settings.connections import CONNECTION_SETTINGS
from stablelog.broker.settings.consumer_groups import CONSUMER_GROUP_SETTINGS
from stablelog.broker.settings.logins import LOGIN_SETTINGS
from stablelog.broker.settings.quotas import QUOTA_SETTINGS
from stablelog.broker.settings.security import SECURITY_SETTINGS
from stablelog.broker.settings.setting import BrokerSetting
from stablelog.broker.settings.tiering import TIERING_SETTINGS
from stablelog.broker.settings.topics import LOG_SETTINGS
from stablelog.broker.settings.transactions import TRANSACTION_SETTINGS
from stablelog.settings import INT_MAX, LONG_MAX, SettingType, boolean, choice, integer

SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting("node.id", integer(0, INT_MAX), "1", "The broker's id, as clients see it."),
    *SECURITY_SETTINGS,
    *LOGIN_SETTINGS,
    *QUOTA_SETTINGS,
    *CONNECTION_SETTINGS,
    # durability
    BrokerSetting(
        "stablelog.flush",
        choice("fsync", "os"),
        "fsync",
        "When a write counts as durable. `fsync`: after an fsync, which all waiting writes share. "
        "`os`: when the operating system has the bytes; they survive `kill -9` of the broker, and not "
        "a power loss.",
    ),
    BrokerSetting(
        "stablelog.disk.reserve.bytes",
        integer(0, LONG_MAX),
        str(64 << 20),
        "The size of the file `disk-reserve`, whose space the broker uses on a full disk for the ends of "
        "transactions, retention and deletions. 0: no reserve.",
    ),
    *LOG_SETTINGS,
    *TRANSACTION_SETTINGS,
    *CONSUMER_GROUP_SETTINGS,
    # metrics and diagnosis
    BrokerSetting(
        "stablelog.metrics.port",
        integer(-1, 65535),
        "-1",
        "The port of the Prometheus metrics (HTTP, `/metrics`) and of the health (`/healthz`, `/readyz`). -1: neither. "
        "0: a free port.",
    ),
    *TIERING_SETTINGS,
    *ACL_SETTINGS,
)
TOPIC_SETTINGS: dict[str, BrokerSetting] = {setting.topic: setting for setting in SETTINGS if setting.topic}

_HINT = "stablelog accepts the setting and does not use it."
_ONE_NODE = "stablelog accepts the setting. It has no effect, because a partition has one replica."


def _unused_setting(name: str, kind: SettingType, default: str, doc: str = _HINT) -> BrokerSetting:
    return BrokerSetting(name, kind, default, doc, topic=name, dynamic=True)


# Settings of one consumer group, by Kafka's names, and the broker's settings that apply to all other groups.
GROUP_SETTINGS: dict[str, BrokerSetting] = {
    setting.name.removeprefix("group."): setting
    for setting in SETTINGS
    if setting.name in ("group.consumer.session.timeout.ms", "group.consumer.heartbeat.interval.ms")
}

# Topic settings of Kafka that change nothing in stablelog. A topic may have them, with any value that Kafka accepts.
UNUSED_TOPIC_SETTINGS: dict[str, BrokerSetting] = {
    setting.name: setting
    for setting in (
        _unused_setting("min.insync.replicas", integer(1, INT_MAX), "1", _ONE_NODE),
        _unused_setting("unclean.leader.election.enable", boolean(), "false", _ONE_NODE),
        _unused_setting(
            "leader.replication.throttled.replicas", SettingType(str, "a list of replicas"), "", _ONE_NODE
        ),
        _unused_setting(
            "follower.replication.throttled.replicas", SettingType(str, "a list of replicas"), "", _ONE_NODE
        ),
        _unused_setting("flush.messages", integer(1, LONG_MAX), str(LONG_MAX)),
        _unused_setting("flush.ms", integer(0, LONG_MAX), str(LONG_MAX)),
        _unused_setting("preallocate", boolean(), "false"),
        _unused_setting("max.compaction.lag.ms", integer(1, LONG_MAX), str(LONG_MAX)),
        _unused_setting("segment.jitter.ms", integer(0, LONG_MAX), "0"),
        _unused_setting("compression.gzip.level", integer(-1, 9), "-1"),
        _unused_setting("compression.lz4.level", integer(1, 17), "9"),
        _unused_setting("compression.zstd.level", integer(-131072, 22), "3"),
    )
}

# Settings of a broker of Kafka that have one possible value here. DescribeConfigs returns them, because clients read them.
FIXED_BROKER_SETTINGS: dict[str, str] = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "log.flush.interval.messages": str(LONG_MAX),
}
