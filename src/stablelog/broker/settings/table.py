"""The table of all settings of brokers and topics.

Kafka's settings keep Kafka's names and meanings. The names of all other settings begin with `stablelog.`.
docs/operating.md lists all settings, and a test compares that list with this table.
"""

from stablelog.broker.settings.acls import ACL_SETTINGS
from stablelog.broker.settings.listeners import CONNECTION_COUNTS
from stablelog.broker.settings.logins import LOGIN_SETTINGS
from stablelog.broker.settings.quotas import QUOTA_SETTINGS
from stablelog.broker.settings.security import SECURITY_SETTINGS
from stablelog.broker.settings.setting import BrokerSetting
from stablelog.broker.settings.tiering import TIERING_SETTINGS
from stablelog.settings import INT_MAX, LONG_MAX, SettingType, boolean, choice, choices, integer, share
from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def _parse_group(text: str) -> str:
    if not is_group_name(text):
        raise ValueError
    return text


GROUP_NAME = SettingType(_parse_group, f"{NAME_RULE}, or empty")

SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting("node.id", integer(0, INT_MAX), "1", "The broker's id, as clients see it."),
    *SECURITY_SETTINGS,
    *LOGIN_SETTINGS,
    *QUOTA_SETTINGS,
    # limits
    BrokerSetting(
        "socket.request.max.bytes", integer(1024, INT_MAX), "104857600", "The largest request, in bytes."
    ),
    BrokerSetting(
        "max.connections",
        integer(1, INT_MAX),
        "2000",
        "The number of open connections. The broker closes a further connection immediately. For one listener, with "
        "listener.name.: the number of its connections, in addition to the limit of the broker.",
        per_listener=True,
        dynamic=True,
    ),
    BrokerSetting(
        "max.connections.per.ip",
        integer(1, INT_MAX),
        str(INT_MAX),
        "The number of open connections from one IP address. The broker closes a further connection "
        "immediately.",
        dynamic=True,
    ),
    BrokerSetting(
        "max.connections.per.ip.overrides",
        CONNECTION_COUNTS,
        "",
        "The number of open connections of single IP addresses, in place of max.connections.per.ip.",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.max.partitions",
        integer(1, INT_MAX),
        "10000",
        "The number of partitions of all topics together. An idle partition needs up to two file "
        "descriptors, and up to four in a commit-ordered topic.",
    ),
    BrokerSetting(
        "connections.max.idle.ms",
        integer(1000, LONG_MAX),
        "600000",
        "A connection without a request is closed after this time.",
    ),
    BrokerSetting(
        "queued.max.request.bytes",
        integer(1 << 20, LONG_MAX),
        "268435456",
        "The memory for large requests in flight, in bytes, over all connections. Above this limit "
        "the broker stops reading large requests until it has answered some. No request may be "
        "larger. Small requests need further memory: at most 0.6 MiB for each connection, and about 10 KiB for an idle one.",
    ),
    BrokerSetting(
        "stablelog.request.receive.timeout.ms",
        integer(100, LONG_MAX),
        "30000",
        "The broker closes a connection if a request has not arrived completely after this time.",
    ),
    BrokerSetting(
        "stablelog.max.in.flight.requests",
        integer(1, 10000),
        "100",
        "The number of unanswered requests of one connection. Above this limit the broker stops "
        "reading from the connection.",
    ),
    BrokerSetting(
        "fetch.max.bytes",
        integer(1024, INT_MAX),
        "57671680",
        "The largest response to a fetch, in bytes.",
    ),
    BrokerSetting(
        "max.incremental.fetch.session.cache.slots",
        integer(0, INT_MAX),
        "1000",
        "The number of fetch sessions that the broker keeps.",
    ),
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
        "The size of the file `disk-reserve`. The broker uses this space for the ends of "
        "transactions, retention and deletions when the disk is full. 0: no reserve.",
    ),
    # topics
    BrokerSetting(
        "auto.create.topics.enable",
        boolean(),
        "true",
        "Whether the broker creates a missing topic when a client writes to it or asks for its metadata.",
    ),
    BrokerSetting(
        "num.partitions",
        integer(1, 100_000),
        "1",
        "The number of partitions of a new topic whose creation request does not give a number.",
    ),
    BrokerSetting("delete.topic.enable", boolean(), "true", "Whether topics may be deleted."),
    BrokerSetting(
        "log.segment.bytes",
        integer(1024, INT_MAX),
        "1073741824",
        "The largest size of a segment, in bytes. The broker begins a new segment before a segment "
        "becomes larger.",
        topic="segment.bytes",
        dynamic=True,
    ),
    BrokerSetting(
        "log.roll.ms",
        integer(1, LONG_MAX),
        str(7 * DAY_MS),
        "The broker begins a new segment when the first record of the segment is this old.",
        topic="segment.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.index.interval.bytes",
        integer(0, INT_MAX),
        "4096",
        "The distance between two index entries, in bytes of the log.",
        topic="index.interval.bytes",
        dynamic=True,
    ),
    BrokerSetting(
        "log.index.size.max.bytes",
        integer(12, INT_MAX),
        "10485760",
        "The largest size of an index, in bytes. The broker begins a new segment before an index "
        "becomes larger.",
        topic="segment.index.bytes",
        dynamic=True,
    ),
    BrokerSetting(
        "log.retention.ms",
        integer(-1, LONG_MAX),
        str(7 * DAY_MS),
        "The broker deletes a segment when its newest record is older than this. -1: never.",
        topic="retention.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.retention.bytes",
        integer(-1, LONG_MAX),
        "-1",
        "The broker deletes the oldest segments of a partition that is larger than this, in bytes. "
        "-1: never.",
        topic="retention.bytes",
        dynamic=True,
    ),
    BrokerSetting(
        "log.retention.check.interval.ms",
        integer(1, LONG_MAX),
        "300000",
        "The time between two checks of retention.",
    ),
    BrokerSetting(
        "log.cleanup.policy",
        choices("delete", "compact"),
        "delete",
        "What the broker does with old segments: it deletes them, compacts them, or both. Empty: neither.",
        topic="cleanup.policy",
        dynamic=True,
    ),
    BrokerSetting(
        "log.cleaner.delete.retention.ms",
        integer(0, LONG_MAX),
        str(DAY_MS),
        "How long compaction keeps tombstones and markers, so that slow readers see them.",
        topic="delete.retention.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.cleaner.min.cleanable.ratio",
        share(),
        "0.5",
        "The broker compacts a log when this share of the compactable bytes is new since the last "
        "compaction.",
        topic="min.cleanable.dirty.ratio",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.scrub.bytes.per.second",
        integer(0, LONG_MAX),
        "10485760",
        "The speed at which the scrub reads segments to find damage, in bytes a second. 0: no scrub.",
    ),
    BrokerSetting(
        "log.cleaner.backoff.ms",
        integer(1, LONG_MAX),
        "15000",
        "The time between two checks for logs to compact.",
        dynamic=True,
    ),
    BrokerSetting(
        "log.cleaner.dedupe.buffer.size",
        integer(1 << 20, LONG_MAX),
        "134217728",
        "The memory of compaction for keys, in bytes; a key needs 160 bytes. A log with more keys "
        "needs several passes.",
    ),
    BrokerSetting(
        "log.cleaner.min.compaction.lag.ms",
        integer(0, LONG_MAX),
        "0",
        "Compaction does not touch a record that is younger than this.",
        topic="min.compaction.lag.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.segment.delete.delay.ms",
        integer(0, LONG_MAX),
        "60000",
        "How long the files of a deleted segment stay in the directory, with the suffix `.deleted`.",
        topic="file.delete.delay.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "message.max.bytes",
        integer(0, INT_MAX),
        "1048588",
        "The largest record batch, in bytes.",
        topic="max.message.bytes",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.produce.proof",
        choice("full", "header"),
        "full",
        "What the broker checks of a batch before it appends it. `full`: the header, and the structure of each record, "
        "for which it decompresses the batch. `header`: the header and the CRC. A batch whose records do not match its "
        "header then makes its partition unreadable for most clients. Use `header` only if you trust all producers.",
    ),
    BrokerSetting(
        "compression.type",
        choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "The codec of the batches in the log. `producer`: each batch keeps the codec of its producer. The broker "
        "recompresses a batch of another codec, which takes processor time.",
        topic="compression.type",
        dynamic=True,
    ),
    BrokerSetting(
        "log.message.timestamp.type",
        choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "The source of a record's timestamp: the producer (CreateTime) or the broker (LogAppendTime).",
        topic="message.timestamp.type",
        dynamic=True,
    ),
    BrokerSetting(
        "log.message.timestamp.before.max.ms",
        integer(0, LONG_MAX),
        str(LONG_MAX),
        "How far a producer's timestamp may be behind the broker's clock. The broker refuses a batch "
        "with an older timestamp.",
        topic="message.timestamp.before.max.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.message.timestamp.after.max.ms",
        integer(0, LONG_MAX),
        str(HOUR_MS),
        "How far a producer's timestamp may be ahead of the broker's clock. The broker refuses a "
        "batch with a later timestamp, because such a record would protect its segment from retention "
        "by time.",
        topic="message.timestamp.after.max.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.order",
        choice("offset", "commit"),
        "offset",
        "The order in which read-committed readers get the records of a new topic. `offset`: the "
        "order of the writes. `commit`: whole transactions, in the order of their commits. It is set "
        "when a topic is created and cannot change. A commit-ordered topic cannot be compacted.",
        topic="stablelog.order",
    ),
    BrokerSetting(
        "stablelog.group",
        GROUP_NAME,
        "",
        "The transaction group of a new topic. Empty: the default group. Only producers whose "
        "transactional id begins with the group's name and a slash can write to the topic in "
        "transactions. It is set when a topic is created and cannot change.",
        topic="stablelog.group",
    ),
    BrokerSetting(
        "stablelog.snapshot.bytes",
        integer(4096, LONG_MAX),
        "67108864",
        "The broker writes a snapshot of the producer state after this many bytes of a log. A "
        "recovery replays at most this many bytes.",
    ),
    # producers and transactions
    BrokerSetting(
        "producer.id.expiration.ms",
        integer(1, INT_MAX),
        str(DAY_MS),
        "The broker forgets a producer that has not written for this time, by the broker's clock. "
        "Until then, each partition keeps 60 to 170 bytes of the producer in memory, and about the "
        "same on disk in each snapshot.",
        dynamic=True,
    ),
    BrokerSetting(
        "transaction.max.timeout.ms",
        integer(1, INT_MAX),
        "900000",
        "The longest transaction timeout that a producer may request.",
    ),
    BrokerSetting(
        "transactional.id.expiration.ms",
        integer(1, INT_MAX),
        str(7 * DAY_MS),
        "The broker forgets a transactional id that has had no transaction for this time.",
    ),
    BrokerSetting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        integer(1, INT_MAX),
        "1000",
        "The time between two checks for transactions that have reached their timeout.",
    ),
    BrokerSetting(
        "transaction.two.phase.commit.enable",
        boolean(),
        "true",
        "Whether a producer may prepare a transaction that outlives the producer (KIP-939).",
    ),
    BrokerSetting(
        "stablelog.max.transaction.groups",
        integer(0, 100_000),
        "1000",
        "The number of transaction groups besides the default group. Each group has a commit log, "
        "which needs two file descriptors. The broker refuses a further group with POLICY_VIOLATION.",
    ),
    BrokerSetting(
        "stablelog.transaction.strict",
        boolean(),
        "false",
        "Whether the broker refuses transactions of clients that keep their producer epoch "
        "(transaction version 1: librdkafka, kafka-python, aiokafka). A request of such a client that "
        "is delayed in the network could end the client's next transaction.",
    ),
    # groups
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
        "The number of members of one consumer group. A rebalance holds the event loop once, for about 10 ms with 1,000 "
        "members. Kafka has no limit by default.",
    ),
    BrokerSetting(
        "group.consumer.session.timeout.ms",
        integer(1, INT_MAX),
        "45000",
        "The session timeout of the members of consumer groups (group.protocol=consumer): the broker removes a member "
        "that sends no heartbeat for this time.",
    ),
    BrokerSetting(
        "group.consumer.heartbeat.interval.ms",
        integer(1, INT_MAX),
        "5000",
        "The time after which such a member sends its next heartbeat. A member learns in a heartbeat that it has to give "
        "away or may take partitions. It must be smaller than group.consumer.session.timeout.ms.",
    ),
    BrokerSetting(
        "group.consumer.max.size",
        integer(1, INT_MAX),
        "1000",
        "The number of members of one consumer group with group.protocol=consumer. Kafka has no limit by default.",
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
    # metrics and diagnosis
    BrokerSetting(
        "stablelog.metrics.port",
        integer(-1, 65535),
        "-1",
        "The port of the Prometheus metrics (HTTP, `/metrics`). -1: no metrics. 0: a free port.",
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
