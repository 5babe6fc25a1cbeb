"""The settings of tiered storage: a part of the table of all settings (`broker.settings.table`)."""

from stablelog.broker.settings.setting import BrokerSetting
from stablelog.settings import INT_MAX, LONG_MAX, SettingType, boolean, integer

STORE_URL = SettingType(str.strip, "a URL of an object store, or empty")

TIERING_SETTINGS: tuple[BrokerSetting, ...] = (
    BrokerSetting(
        "stablelog.remote.url",
        STORE_URL,
        "",
        "The URL of the object store for tiered storage, such as `s3://bucket/prefix` or `file:///directory`. "
        "One prefix belongs to one cluster. Empty: no tiered storage.",
    ),
    BrokerSetting(
        "stablelog.remote.allow.http",
        boolean(),
        "false",
        "Whether the broker may send requests to an object store without TLS.",
    ),
    BrokerSetting(
        "stablelog.remote.storage.enable",
        boolean(),
        "false",
        "Whether sealed segments are copied to the object store. A compacted topic cannot be copied.",
        topic="remote.storage.enable",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.remote.copy.disable",
        boolean(),
        "false",
        "Whether the broker copies no further segments of a topic to the object store. Copied segments stay "
        "readable.",
        topic="remote.log.copy.disable",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.remote.delete.on.disable",
        boolean(),
        "false",
        "Whether `remote.storage.enable` may be set to false again. The records that are only in the object store "
        "are then deleted.",
        topic="remote.log.delete.on.disable",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.remote.drop.aborted",
        boolean(),
        "false",
        "Whether copies of segments in the object store lack the records of aborted transactions. A "
        "read-uncommitted consumer then misses them. A commit-ordered topic cannot have this setting.",
        topic="stablelog.remote.drop.aborted",
        dynamic=True,
    ),
    BrokerSetting(
        "stablelog.local.drop.aborted",
        boolean(),
        "false",
        "Whether the broker removes the records of aborted transactions from sealed local segments; with tiered "
        "storage, after it has copied the segment. A read-uncommitted consumer then misses these records. A "
        "commit-ordered topic cannot have this setting. Compaction removes them in any case.",
        topic="stablelog.local.drop.aborted",
        dynamic=True,
    ),
    BrokerSetting(
        "log.local.retention.ms",
        integer(-2, LONG_MAX),
        "-2",
        "The broker deletes a copied segment from the local disk when its newest record is older than this. "
        "-2: the value of `retention.ms`. -1: never.",
        topic="local.retention.ms",
        dynamic=True,
    ),
    BrokerSetting(
        "log.local.retention.bytes",
        integer(-2, LONG_MAX),
        "-2",
        "The broker deletes copied segments from the local disk while a partition has more bytes there than this. "
        "-2: the value of `retention.bytes`. -1: never.",
        topic="local.retention.bytes",
        dynamic=True,
    ),
    BrokerSetting(
        "remote.log.manager.task.interval.ms",
        integer(1, LONG_MAX),
        "30000",
        "The time between two checks for segments to copy to the object store.",
    ),
    BrokerSetting(
        "remote.log.manager.copier.thread.pool.size",
        integer(1, 1000),
        "4",
        "The number of partitions whose segments are copied at a time. Kafka's default is 10.",
    ),
    BrokerSetting(
        "remote.log.manager.copy.max.bytes.per.second",
        integer(1, LONG_MAX),
        str(LONG_MAX),
        "The speed at which segments are copied to the object store, in bytes a second over all partitions.",
    ),
    BrokerSetting(
        "stablelog.remote.coordinator.copy.interval.ms",
        integer(100, LONG_MAX),
        "60000",
        "The time in which a record of the coordinators' logs (`__consumer_offsets`, `__transaction_state`) is copied "
        "to the object store. A copy begins when three quarters of this time have passed.",
    ),
    BrokerSetting(
        "stablelog.remote.delete.delay.ms",
        integer(0, LONG_MAX),
        "3600000",
        "The time between the mark for deletion of a remote segment and the deletion of its objects, in which "
        "readers may still use it. It begins again at each start.",
    ),
    BrokerSetting(
        "rlmm.config.remote.log.metadata.topic.num.partitions",
        integer(1, 1000),
        "50",
        "The number of partitions with which the broker creates `__remote_log_metadata`, with its first tiered "
        "partition.",
    ),
    BrokerSetting(
        "stablelog.remote.chunk.bytes",
        integer(4096, INT_MAX),
        str(4 << 20),
        "The size of the chunks in which log files are read from the object store and proven, in bytes; greater "
        "by less than one batch. A segment keeps the chunks of its copy, at most 513.",
    ),
    BrokerSetting(
        "stablelog.remote.cache.memory.bytes",
        integer(0, LONG_MAX),
        str(64 << 20),
        "The memory for ranges from the object store, in bytes; at least four chunks. Ranges that one read "
        "needs at once, and up to 16 that are being loaded, come on top.",
    ),
    BrokerSetting(
        "stablelog.remote.cache.bytes",
        integer(0, LONG_MAX),
        str(1 << 30),
        "The disk space for ranges from the object store, in bytes, in the directory `remote-log-index-cache`, "
        "which is emptied at a start. 0: only memory.",
    ),
)
