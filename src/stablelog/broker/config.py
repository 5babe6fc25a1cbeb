"""Which settings there are, what they may be, and what they are when nothing is said.

Kafka's properties keep Kafka's names and meaning; what Kafka has no name for begins with `stablelog.`.
A setting that is unknown or out of range is refused by name. docs/operating.md lists them all, and a test
holds that list to this table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stablelog.errors import InvalidConfig
from stablelog.log.partition import LogConfig
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, NAME_RULE, is_group_name

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One property.

    Attributes:
        name: its name in a broker's configuration.
        parse: text to value; raises ValueError for what is not valid.
        default: as text.
        valid: the valid range, for people.
        doc: what it does, with its unit.
        topic_name: its name in a topic's configuration, None where a topic has no say.
        dynamic: whether a running broker takes a new value.
    """

    name: str
    parse: Callable[[str], Any]
    default: str
    valid: str
    doc: str
    topic_name: str | None = None
    dynamic: bool = False


def _integer(low: int, high: int) -> tuple[Callable[[str], int], str]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse, f"{low} to {high}"


def _share() -> tuple[Callable[[str], float], str]:
    def parse(text: str) -> float:
        value = float(text)
        if not 0 <= value <= 1:
            raise ValueError(text)
        return value

    return parse, "0 to 1"


def _choice(*words: str) -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse, " or ".join(words)


def _group_name() -> tuple[Callable[[str], str], str]:
    def parse(text: str) -> str:
        if not is_group_name(text):
            raise ValueError(text)
        return text

    return parse, f"{NAME_RULE}, or empty"


def _boolean() -> tuple[Callable[[str], bool], str]:
    def parse(text: str) -> bool:
        return {"true": True, "false": False}[text.strip().lower()]

    return parse, "true or false"


def _words(*words: str) -> tuple[Callable[[str], frozenset[str]], str]:
    def parse(text: str) -> frozenset[str]:
        found = frozenset(word.strip() for word in text.split(",") if word.strip())
        if not found or not found <= set(words):
            raise ValueError(text)
        return found

    return parse, "one or more of " + ", ".join(words)


def parse_listener(text: str) -> tuple[str, int]:
    """`PLAINTEXT://host:port` as (host, port). An empty host is loopback.

    Raises:
        ValueError: it is not one plaintext listener.
    """
    scheme, separator, rest = text.strip().partition("://")
    if not separator or scheme != "PLAINTEXT" or "," in rest:
        raise ValueError(text)
    host, separator, port = rest.rpartition(":")
    if not separator or not 0 <= int(port) <= 65535:
        raise ValueError(text)
    return host.strip("[]") or "127.0.0.1", int(port)


def _listener() -> tuple[Callable[[str], tuple[str, int]], str]:
    return parse_listener, "one PLAINTEXT://host:port"


def _optional_listener() -> tuple[Callable[[str], tuple[str, int] | None], str]:
    return lambda text: parse_listener(text) if text else None, "one PLAINTEXT://host:port, or empty"


def _setting(
    name: str,
    kind: tuple[Callable[[str], Any], str],
    default: str,
    doc: str,
    *,
    topic: str | None = None,
    dynamic: bool = False,
) -> Setting:
    return Setting(name, kind[0], default, kind[1], doc, topic, dynamic)


SETTINGS: tuple[Setting, ...] = (
    # who and where
    _setting("node.id", _integer(0, INT_MAX), "1", "The broker's id, as clients see it."),
    _setting(
        "listeners",
        _listener(),
        "PLAINTEXT://127.0.0.1:9092",
        "Where the broker listens. Port 0 takes a free one.",
    ),
    _setting(
        "advertised.listeners",
        _optional_listener(),
        "",
        "The address that clients are told to come back to; empty: the one it listens on.",
    ),
    # limits
    _setting(
        "socket.request.max.bytes", _integer(1024, INT_MAX), "104857600", "The largest request, in bytes."
    ),
    _setting(
        "max.connections", _integer(1, INT_MAX), "2000", "Connections at once; one more is closed at once."
    ),
    _setting(
        "max.connections.per.ip",
        _integer(1, INT_MAX),
        str(INT_MAX),
        "Connections at once from one address; one more is closed at once.",
    ),
    _setting(
        "stablelog.max.partitions",
        _integer(1, INT_MAX),
        "10000",
        "Partitions of all topics together that may be made; each takes up to two file descriptors while it is idle, and up to "
        "four in a commit-ordered topic.",
    ),
    _setting(
        "connections.max.idle.ms",
        _integer(1000, LONG_MAX),
        "600000",
        "A connection without a request is closed after this time.",
    ),
    _setting(
        "queued.max.request.bytes",
        _integer(1 << 20, LONG_MAX),
        "268435456",
        "Bytes of large requests in flight over all connections; beyond it the broker stops reading them until some are answered. No request may be larger. Small ones come on top: 0.6 MiB a connection at most.",
    ),
    _setting(
        "stablelog.request.receive.timeout.ms",
        _integer(100, LONG_MAX),
        "30000",
        "A request whose bytes have not all arrived after this time closes its connection.",
    ),
    _setting(
        "stablelog.max.in.flight.requests",
        _integer(1, 10000),
        "100",
        "Unanswered requests of one connection; beyond it the broker stops reading from it.",
    ),
    _setting(
        "fetch.max.bytes",
        _integer(1024, INT_MAX),
        "57671680",
        "The most that one fetch is answered with, in bytes.",
    ),
    _setting(
        "max.incremental.fetch.session.cache.slots", _integer(0, INT_MAX), "1000", "Fetch sessions kept."
    ),
    # durability
    _setting(
        "stablelog.flush",
        _choice("fsync", "os"),
        "fsync",
        "When a write counts as durable: after an fsync, shared by all who wait (fsync), or once the operating system has it (os: survives kill -9, not power loss).",
    ),
    _setting(
        "stablelog.disk.reserve.bytes",
        _integer(0, LONG_MAX),
        str(64 << 20),
        "Room on the disk that is kept in the file disk-reserve, for ends of transactions, retention and deletions when the disk is full; 0: none.",
    ),
    # topics
    _setting(
        "auto.create.topics.enable",
        _boolean(),
        "true",
        "Whether a topic that is written to or asked for comes into being.",
    ),
    _setting(
        "num.partitions", _integer(1, 100_000), "1", "Partitions of a topic that is created without a count."
    ),
    _setting("delete.topic.enable", _boolean(), "true", "Whether topics may be deleted."),
    _setting(
        "log.segment.bytes",
        _integer(1024, INT_MAX),
        "1073741824",
        "A segment is rolled before it outgrows this size, in bytes.",
        topic="segment.bytes",
        dynamic=True,
    ),
    _setting(
        "log.roll.ms",
        _integer(1, LONG_MAX),
        str(7 * DAY_MS),
        "A segment is rolled when its first record is this old.",
        topic="segment.ms",
        dynamic=True,
    ),
    _setting(
        "log.index.interval.bytes",
        _integer(0, INT_MAX),
        "4096",
        "An index entry is written about every so many bytes.",
        topic="index.interval.bytes",
        dynamic=True,
    ),
    _setting(
        "log.index.size.max.bytes",
        _integer(12, INT_MAX),
        "10485760",
        "A segment is rolled before an index outgrows this size, in bytes.",
        topic="segment.index.bytes",
        dynamic=True,
    ),
    _setting(
        "log.retention.ms",
        _integer(-1, LONG_MAX),
        str(7 * DAY_MS),
        "Segments whose newest record is older are deleted; -1: never.",
        topic="retention.ms",
        dynamic=True,
    ),
    _setting(
        "log.retention.bytes",
        _integer(-1, LONG_MAX),
        "-1",
        "The oldest segments are deleted while a partition is larger, in bytes; -1: never.",
        topic="retention.bytes",
        dynamic=True,
    ),
    _setting(
        "log.retention.check.interval.ms",
        _integer(1, LONG_MAX),
        "300000",
        "How often retention looks for work.",
    ),
    _setting(
        "log.cleanup.policy",
        _words("delete", "compact"),
        "delete",
        "What happens to old segments.",
        topic="cleanup.policy",
        dynamic=True,
    ),
    _setting(
        "log.cleaner.delete.retention.ms",
        _integer(0, LONG_MAX),
        str(DAY_MS),
        "How long compaction keeps tombstones and markers, so that slow readers see them.",
        topic="delete.retention.ms",
        dynamic=True,
    ),
    _setting(
        "log.cleaner.min.cleanable.ratio",
        _share(),
        "0.5",
        "A log is compacted when this share of what may be compacted is new since the last time.",
        topic="min.cleanable.dirty.ratio",
        dynamic=True,
    ),
    _setting(
        "stablelog.scrub.bytes.per.second",
        _integer(0, LONG_MAX),
        "10485760",
        "How fast the scrub reads segments to find damage, in bytes a second; 0: it does not.",
    ),
    _setting(
        "log.cleaner.backoff.ms",
        _integer(1, LONG_MAX),
        "15000",
        "How often compaction looks for work.",
    ),
    _setting(
        "log.cleaner.dedupe.buffer.size",
        _integer(1 << 20, LONG_MAX),
        "134217728",
        "The memory that compaction takes for keys, in bytes, at 160 a key; a log with more keys takes several passes.",
    ),
    _setting(
        "log.cleaner.min.compaction.lag.ms",
        _integer(0, LONG_MAX),
        "0",
        "How long a record is safe from compaction.",
        topic="min.compaction.lag.ms",
        dynamic=True,
    ),
    _setting(
        "log.segment.delete.delay.ms",
        _integer(0, LONG_MAX),
        "60000",
        "How long a deleted segment's files stay under the name .deleted.",
        topic="file.delete.delay.ms",
        dynamic=True,
    ),
    _setting(
        "message.max.bytes",
        _integer(0, INT_MAX),
        "1048588",
        "The largest record batch, in bytes.",
        topic="max.message.bytes",
        dynamic=True,
    ),
    _setting(
        "log.message.timestamp.type",
        _choice("CreateTime", "LogAppendTime"),
        "CreateTime",
        "Whose time a record carries: its producer's or the broker's.",
        topic="message.timestamp.type",
        dynamic=True,
    ),
    _setting(
        "log.message.timestamp.before.max.ms",
        _integer(0, LONG_MAX),
        str(LONG_MAX),
        "How far behind the broker's clock a producer's time may be; a batch that begins earlier is refused.",
        topic="message.timestamp.before.max.ms",
        dynamic=True,
    ),
    _setting(
        "log.message.timestamp.after.max.ms",
        _integer(0, LONG_MAX),
        str(HOUR_MS),
        "How far ahead of the broker's clock a producer's time may be; a batch that goes further is refused. A record from the future would keep retention by time from its segment.",
        topic="message.timestamp.after.max.ms",
        dynamic=True,
    ),
    _setting(
        "stablelog.order",
        _choice("offset", "commit"),
        "offset",
        "What committed readers of a new topic get: the order of the writes (offset), or whole transactions in the order of their commits (commit). Given at creation, it cannot change, and a topic in commit order cannot be compacted.",
        topic="stablelog.order",
    ),
    _setting(
        "stablelog.group",
        _group_name(),
        "",
        "The transaction group that a new topic belongs to; empty: the default one. Producers whose transactional id begins with its name and a slash write to it in transactions. Given at creation, it cannot change.",
        topic="stablelog.group",
    ),
    _setting(
        "stablelog.snapshot.bytes",
        _integer(4096, LONG_MAX),
        "67108864",
        "Producer state is written out after so many bytes, so that recovery replays no more.",
    ),
    # producers and transactions
    _setting(
        "producer.id.expiration.ms",
        _integer(1, INT_MAX),
        str(DAY_MS),
        "A producer that has not written for this time, by the broker's clock, is forgotten. Until then a partition keeps 60 to 170 bytes of it in memory, and about as many again on disk in each of its snapshots.",
    ),
    _setting(
        "transaction.max.timeout.ms",
        _integer(1, INT_MAX),
        "900000",
        "The longest transaction timeout that a producer may ask for.",
    ),
    _setting(
        "transactional.id.expiration.ms",
        _integer(1, INT_MAX),
        str(7 * DAY_MS),
        "A transactional id without a transaction for this time is forgotten.",
    ),
    _setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _integer(1, INT_MAX),
        "1000",
        "How often overdue transactions are looked for.",
    ),
    _setting(
        "transaction.two.phase.commit.enable",
        _boolean(),
        "true",
        "Whether a producer may prepare a transaction that outlives it (KIP-939).",
    ),
    _setting(
        "stablelog.max.transaction.groups",
        _integer(0, 100_000),
        "1000",
        "Transaction groups beside the default one; each has a commit log, which takes two file descriptors. One more is refused with POLICY_VIOLATION.",
    ),
    _setting(
        "stablelog.transaction.strict",
        _boolean(),
        "false",
        "Whether transactions of clients that keep their epoch (librdkafka, kafka-python, aiokafka) are refused: a request delayed in the network could end their next transaction.",
    ),
    # groups
    _setting(
        "group.initial.rebalance.delay.ms",
        _integer(0, INT_MAX),
        "100",
        "How long an empty group waits for more members before its first rebalance. Kafka waits 3000.",
    ),
    _setting(
        "group.min.session.timeout.ms",
        _integer(0, INT_MAX),
        "6000",
        "The shortest session timeout that a member may ask for.",
    ),
    _setting(
        "group.max.session.timeout.ms",
        _integer(0, INT_MAX),
        "1800000",
        "The longest session timeout that a member may ask for.",
    ),
    _setting("group.max.size", _integer(1, INT_MAX), "2147483647", "Members of one group."),
    _setting(
        "offsets.retention.minutes",
        _integer(1, INT_MAX),
        "10080",
        "Offsets of a group that has been empty for so many minutes are forgotten.",
    ),
    _setting(
        "offset.metadata.max.bytes",
        _integer(0, INT_MAX),
        "4096",
        "The longest metadata of a committed offset.",
    ),
    # looking in
    _setting(
        "stablelog.metrics.port",
        _integer(-1, 65535),
        "-1",
        "Port on which Prometheus metrics are served over HTTP at /metrics; -1: none; 0: a free one.",
    ),
)

_BY_NAME = {setting.name: setting for setting in SETTINGS}
TOPIC_SETTINGS: dict[str, Setting] = {
    setting.topic_name: setting for setting in SETTINGS if setting.topic_name
}


def _refuse_unknown(name: str, known: Mapping[str, Setting], whose: str) -> InvalidConfig:
    import difflib

    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else ""
    return InvalidConfig(f"there is no {whose} setting {name!r}{hint}")


def _parse(setting: Setting, name: str, text: str) -> Any:
    try:
        return setting.parse(text)
    except (ValueError, KeyError, ArithmeticError):
        raise InvalidConfig(
            f"{name}={text!r} is not valid: {setting.valid} (default {setting.default})"
        ) from None


def dynamic_setting(name: str) -> Setting:
    """Find a setting that a running broker takes.

    Raises:
        InvalidConfig: it is unknown, or not dynamic.
    """
    setting = _BY_NAME.get(name)
    if setting is None:
        raise _refuse_unknown(name, _BY_NAME, "broker")
    if not setting.dynamic:
        raise InvalidConfig(f"{name} can only be set when the broker starts")
    return setting


class BrokerConfig:
    """Every setting of one broker. A dynamic value counts before a given one, and that before the default.

    Attributes:
        given: the settings with which the broker was started, as text.
        dynamic: the settings that it was given while it ran, as text.
    """

    def __init__(self, given: Mapping[str, str]) -> None:
        self.given = dict(given)
        self.dynamic: dict[str, str] = {}
        self._given_values: dict[str, Any] = {}
        for name, text in given.items():
            if name not in _BY_NAME:
                raise _refuse_unknown(name, _BY_NAME, "broker")
            self._given_values[name] = _parse(_BY_NAME[name], name, text)
        for setting in SETTINGS:
            self._given_values.setdefault(setting.name, setting.parse(setting.default))
        self._values = dict(self._given_values)

    def __getitem__(self, name: str) -> Any:
        """The value of a setting, of the type that its range says."""
        return self._values[name]

    def text(self, name: str) -> str:
        """The value in effect, as text."""
        return self.dynamic.get(name, self.given.get(name, _BY_NAME[name].default))

    def check_dynamic(self, settings: Mapping[str, str]) -> dict[str, Any]:
        """Check dynamic settings.

        Returns:
            Their values.

        Raises:
            InvalidConfig: one is unknown, not dynamic, or out of range.
        """
        return {name: _parse(dynamic_setting(name), name, text) for name, text in settings.items()}

    def set_dynamic(self, settings: Mapping[str, str]) -> None:
        """Replace all dynamic settings.

        Raises:
            InvalidConfig: as `check_dynamic`; nothing changed.
        """
        values = self.check_dynamic(settings)
        self.dynamic = dict(settings)
        self._values = self._given_values | values

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        """The log settings of a topic: its own, else the broker's."""

        def value(topic_name: str) -> Any:
            setting = TOPIC_SETTINGS[topic_name]
            if topic_name in topic_configs:
                return _parse(setting, topic_name, topic_configs[topic_name])
            return self[setting.name]

        return LogConfig(
            segment_bytes=value("segment.bytes"),
            segment_ms=value("segment.ms"),
            index_interval_bytes=value("index.interval.bytes"),
            segment_index_bytes=value("segment.index.bytes"),
            retention_ms=value("retention.ms"),
            retention_bytes=value("retention.bytes"),
            # Compaction would keep what was written last, where readers see what was committed last.
            cleanup_policy=value("cleanup.policy")
            if order_of(topic_configs) == "offset"
            else frozenset({"delete"}),
            max_message_bytes=value("max.message.bytes"),
            message_timestamp_type=value("message.timestamp.type"),
            message_timestamp_before_ms_max=value("message.timestamp.before.max.ms"),
            message_timestamp_after_ms_max=value("message.timestamp.after.max.ms"),
            delete_retention_ms=value("delete.retention.ms"),
            min_cleanable_dirty_ratio=value("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=value("min.compaction.lag.ms"),
            file_delete_delay_ms=value("file.delete.delay.ms"),
            producer_id_expiration_ms=self["producer.id.expiration.ms"],
            snapshot_bytes=self["stablelog.snapshot.bytes"],
            order=order_of(topic_configs),  # never the broker's: that may change, and a topic's cannot
        )


def order_of(topic_configs: Mapping[str, str]) -> str:
    """The order of a topic: `offset` or `commit`."""
    return topic_configs.get("stablelog.order", "offset")


# Topic settings that are given when a topic is created and never change; the broker's value is for new topics.
SETTLED_AT_CREATION = ("stablelog.order", "stablelog.group")


def default_of(name: str) -> str:
    """The value of a broker's setting where nothing is said."""
    return _BY_NAME[name].default


def group_of_topic(topic_configs: Mapping[str, str]) -> str:
    """The transaction group that a topic belongs to; empty for the default one."""
    return topic_configs.get("stablelog.group", DEFAULT_GROUP)


def load_settings(given: Mapping[str, str]) -> BrokerConfig:
    """Check what was given and fill in the defaults.

    Raises:
        InvalidConfig: names the setting and its valid range, or the nearest right name.
    """
    config = BrokerConfig(given)
    if config["group.min.session.timeout.ms"] > config["group.max.session.timeout.ms"]:
        raise InvalidConfig("group.min.session.timeout.ms is larger than group.max.session.timeout.ms")
    return config


# What Kafka has and this log needs no choice in: the one value that is true here, or None where any value is a hint.
FIXED_TOPIC_SETTINGS: dict[str, str | None] = {
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "compression.type": "producer",
    "flush.messages": None,
    "flush.ms": None,
    "preallocate": None,
    "max.compaction.lag.ms": None,
    "segment.jitter.ms": None,
}


def check_topic_configs(configs: Mapping[str, str]) -> None:
    """Check the settings of a topic.

    Raises:
        InvalidConfig: names the setting and its valid range, or the nearest right name.
    """
    for name, text in configs.items():
        if name in FIXED_TOPIC_SETTINGS:
            fixed = FIXED_TOPIC_SETTINGS[name]
            if fixed is not None and text != fixed:
                raise InvalidConfig(f"{name}={text!r} cannot be had here: it is always {fixed}")
        elif name not in TOPIC_SETTINGS:
            raise _refuse_unknown(name, TOPIC_SETTINGS, "topic")
        else:
            _parse(TOPIC_SETTINGS[name], name, text)
    if order_of(configs) == "commit" and "compact" in configs.get("cleanup.policy", ""):
        raise InvalidConfig(
            "cleanup.policy=compact keeps the last record of a key in the order of the writes, and stablelog.order=commit "
            "shows another order: a topic has one of the two"
        )


def check_change(present: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Check new settings of a topic that has others.

    Raises:
        InvalidConfig: as `check_topic_configs`, or what changes cannot change.
    """
    check_topic_configs(wanted)
    if group_of_topic(wanted) != group_of_topic(present):
        raise InvalidConfig(
            f"stablelog.group={group_of_topic(present)} was given when the topic was created and cannot change: its commits "
            "are numbered in that group"
        )
    if order_of(wanted) != order_of(present):
        raise InvalidConfig(
            f"stablelog.order={order_of(present)} was given when the topic was created and cannot change: "
            "offsets that readers keep would mean other records"
        )
