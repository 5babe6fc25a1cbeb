"""The settings of consumer groups: a part of the table of all settings (`broker.settings.table`)."""

from stablelog.broker.settings.setting import BrokerSetting
from stablelog.settings import INT_MAX, integer

CONSUMER_GROUP_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "group.initial.rebalance.delay.ms",
        integer(0, INT_MAX),
        "100",
        "How long an empty consumer group waits for more members before its first rebalance. Kafka's "
        "default is 3000.",
    ),
    BrokerSetting(
        "group.min.session.timeout.ms",
        integer(0, INT_MAX),
        "6000",
        "The shortest session timeout that a member may request.",
    ),
    BrokerSetting(
        "group.max.session.timeout.ms",
        integer(0, INT_MAX),
        "1800000",
        "The longest session timeout that a member may request.",
    ),
    BrokerSetting(
        "group.max.size",
        integer(1, INT_MAX),
        "1000",
        "The number of members of one consumer group. A rebalance holds the event loop once, for about 10 ms "
        "with 1,000 members. Kafka's default is no limit.",
    ),
    BrokerSetting(
        "group.consumer.session.timeout.ms",
        integer(1, INT_MAX),
        "45000",
        "The session timeout of members with `group.protocol=consumer`: the broker removes a member that sends "
        "no heartbeat for this time.",
    ),
    BrokerSetting(
        "group.consumer.heartbeat.interval.ms",
        integer(1, INT_MAX),
        "5000",
        "The time after which such a member sends its next heartbeat, in which it learns its partitions. It "
        "must be smaller than `group.consumer.session.timeout.ms`.",
    ),
    BrokerSetting(
        "group.consumer.max.size",
        integer(1, INT_MAX),
        "1000",
        "The maximum number of members of one consumer group with `group.protocol=consumer`. Kafka's default "
        "is no limit.",
    ),
    BrokerSetting(
        "offsets.retention.minutes",
        integer(1, INT_MAX),
        "10080",
        "The broker deletes the committed offsets of a consumer group that has been empty for this "
        "many minutes.",
    ),
    BrokerSetting(
        "offset.metadata.max.bytes",
        integer(0, INT_MAX),
        "4096",
        "The largest metadata of a committed offset, in bytes.",
    ),
)
