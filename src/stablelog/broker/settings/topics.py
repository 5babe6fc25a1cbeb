"""The settings of topics and their logs: a part of the table of all settings (`broker.settings.table`)."""

from stablelog.broker.settings.setting import BrokerSetting
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

LOG_SETTINGS: tuple[BrokerSetting, ...] = (
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
        "The largest size of a segment, in bytes.",
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
        "The largest size of an index, in bytes. A full index ends its segment.",
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
        "What the broker checks of a batch. `full`: the header and, decompressed, each record. `header`: the "
        "header and the CRC; a batch with wrong records then makes its partition unreadable for most clients, "
        "so use it only if you trust all producers.",
    ),
    BrokerSetting(
        "compression.type",
        choice("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "producer",
        "The codec of the batches in the log. `producer`: that of its producer. The broker recompresses a batch "
        "of another codec.",
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
        "How far a producer's timestamp may be behind the broker's clock. The broker refuses an older one.",
        topic="message.timestamp.before.max.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.message.timestamp.after.max.ms",
        integer(0, LONG_MAX),
        str(HOUR_MS),
        "How far a producer's timestamp may be ahead of the broker's clock. The broker refuses a later one, "
        "because the record would protect its segment from retention by time.",
        topic="message.timestamp.after.max.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.order",
        choice("offset", "commit"),
        "offset",
        "The order in which read-committed readers get the records of a new topic, which cannot change. "
        "`offset`: the order of the writes. `commit`: whole transactions, in the order of their commits. A "
        "commit-ordered topic cannot be compacted.",
        topic="stablelog.order",
    ),
    BrokerSetting(
        "stablelog.group",
        GROUP_NAME,
        "",
        "The transaction group of a new topic, which cannot change. Empty: the default group. Only "
        "transactional ids that begin with the group's name and a slash can write to the topic in transactions.",
        topic="stablelog.group",
    ),
    BrokerSetting(
        "stablelog.snapshot.bytes",
        integer(4096, LONG_MAX),
        "67108864",
        "The broker writes a snapshot of the producer state after this many bytes of a log. A recovery replays "
        "at most as many.",
    ),
)
