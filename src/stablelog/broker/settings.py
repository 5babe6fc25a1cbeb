"""The settings of brokers and topics: one row for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stablelog.wire.extension.transaction_groups import NAME_RULE, is_group_name

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    Attributes:
        name: its name in a broker's configuration.
        parse: converts text to the value; raises ValueError for invalid text.
        default: as text.
        valid: the valid range, for people.
        doc: what it does, with its unit.
        topic_name: its name in a topic's configuration; None if a topic cannot set it.
        dynamic: whether it can be changed while the broker runs.
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
    """Parse `PLAINTEXT://host:port` as (host, port). An empty host means the loopback address.

    Raises:
        ValueError: the text is not exactly one plaintext listener.
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
    # identity and addresses
    _setting("node.id", _integer(0, INT_MAX), "1", "The broker's id, as clients see it."),
    _setting(
        "listeners",
        _listener(),
        "PLAINTEXT://127.0.0.1:9092",
        "The address on which the broker listens. Port 0 takes a free port.",
    ),
    _setting(
        "advertised.listeners",
        _optional_listener(),
        "",
        "The address that clients use after the first connection. Empty: the address on which the "
        "broker listens.",
    ),
    # limits
    _setting(
        "socket.request.max.bytes", _integer(1024, INT_MAX), "104857600", "The largest request, in bytes."
    ),
    _setting(
        "max.connections",
        _integer(1, INT_MAX),
        "2000",
        "The number of open connections. The broker closes a further connection immediately.",
    ),
    _setting(
        "max.connections.per.ip",
        _integer(1, INT_MAX),
        str(INT_MAX),
        "The number of open connections from one IP address. The broker closes a further connection "
        "immediately.",
    ),
    _setting(
        "stablelog.max.partitions",
        _integer(1, INT_MAX),
        "10000",
        "The number of partitions of all topics together. An idle partition needs up to two file "
        "descriptors, and up to four in a commit-ordered topic.",
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
        "The memory for large requests in flight, in bytes, over all connections. Above this limit "
        "the broker stops reading large requests until it has answered some. No request may be "
        "larger. Small requests need further memory: at most 0.6 MiB for each connection.",
    ),
    _setting(
        "stablelog.request.receive.timeout.ms",
        _integer(100, LONG_MAX),
        "30000",
        "The broker closes a connection if a request has not arrived completely after this time.",
    ),
    _setting(
        "stablelog.max.in.flight.requests",
        _integer(1, 10000),
        "100",
        "The number of unanswered requests of one connection. Above this limit the broker stops "
        "reading from the connection.",
    ),
    _setting(
        "fetch.max.bytes",
        _integer(1024, INT_MAX),
        "57671680",
        "The largest response to a fetch, in bytes.",
    ),
    _setting(
        "max.incremental.fetch.session.cache.slots",
        _integer(0, INT_MAX),
        "1000",
        "The number of fetch sessions that the broker keeps.",
    ),
    # durability
    _setting(
        "stablelog.flush",
        _choice("fsync", "os"),
        "fsync",
        "When a write counts as durable. `fsync`: after an fsync, which all waiting writes share. "
        "`os`: when the operating system has the bytes; they survive `kill -9` of the broker, and not "
        "a power loss.",
    ),
    _setting(
        "stablelog.disk.reserve.bytes",
        _integer(0, LONG_MAX),
        str(64 << 20),
        "The size of the file `disk-reserve`. The broker uses this space for the ends of "
        "transactions, retention and deletions when the disk is full. 0: no reserve.",
    ),
    # topics
    _setting(
        "auto.create.topics.enable",
        _boolean(),
        "true",
        "Whether the broker creates a missing topic when a client writes to it or asks for its metadata.",
    ),
    _setting(
        "num.partitions",
        _integer(1, 100_000),
        "1",
        "The number of partitions of a topic that is created without one.",
    ),
    _setting("delete.topic.enable", _boolean(), "true", "Whether topics may be deleted."),
    _setting(
        "log.segment.bytes",
        _integer(1024, INT_MAX),
        "1073741824",
        "The largest size of a segment, in bytes. The broker begins a new segment before a segment "
        "becomes larger.",
        topic="segment.bytes",
        dynamic=True,
    ),
    _setting(
        "log.roll.ms",
        _integer(1, LONG_MAX),
        str(7 * DAY_MS),
        "The broker begins a new segment when the first record of the segment is this old.",
        topic="segment.ms",
        dynamic=True,
    ),
    _setting(
        "log.index.interval.bytes",
        _integer(0, INT_MAX),
        "4096",
        "The distance between two index entries, in bytes of the log.",
        topic="index.interval.bytes",
        dynamic=True,
    ),
    _setting(
        "log.index.size.max.bytes",
        _integer(12, INT_MAX),
        "10485760",
        "The largest size of an index, in bytes. The broker begins a new segment before an index "
        "becomes larger.",
        topic="segment.index.bytes",
        dynamic=True,
    ),
    _setting(
        "log.retention.ms",
        _integer(-1, LONG_MAX),
        str(7 * DAY_MS),
        "The broker deletes a segment when its newest record is older than this. -1: never.",
        topic="retention.ms",
        dynamic=True,
    ),
    _setting(
        "log.retention.bytes",
        _integer(-1, LONG_MAX),
        "-1",
        "The broker deletes the oldest segments of a partition that is larger than this, in bytes. "
        "-1: never.",
        topic="retention.bytes",
        dynamic=True,
    ),
    _setting(
        "log.retention.check.interval.ms",
        _integer(1, LONG_MAX),
        "300000",
        "The time between two checks of retention.",
    ),
    _setting(
        "log.cleanup.policy",
        _words("delete", "compact"),
        "delete",
        "What the broker does with old segments: it deletes them, compacts them, or both.",
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
        "The broker compacts a log when this share of the compactable bytes is new since the last "
        "compaction.",
        topic="min.cleanable.dirty.ratio",
        dynamic=True,
    ),
    _setting(
        "stablelog.scrub.bytes.per.second",
        _integer(0, LONG_MAX),
        "10485760",
        "The speed at which the scrub reads segments to find damage, in bytes a second. 0: no scrub.",
    ),
    _setting(
        "log.cleaner.backoff.ms",
        _integer(1, LONG_MAX),
        "15000",
        "The time between two checks for logs to compact.",
    ),
    _setting(
        "log.cleaner.dedupe.buffer.size",
        _integer(1 << 20, LONG_MAX),
        "134217728",
        "The memory of compaction for keys, in bytes; a key needs 160 bytes. A log with more keys "
        "needs several passes.",
    ),
    _setting(
        "log.cleaner.min.compaction.lag.ms",
        _integer(0, LONG_MAX),
        "0",
        "Compaction does not touch a record that is younger than this.",
        topic="min.compaction.lag.ms",
        dynamic=True,
    ),
    _setting(
        "log.segment.delete.delay.ms",
        _integer(0, LONG_MAX),
        "60000",
        "How long the files of a deleted segment stay in the directory, with the suffix `.deleted`.",
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
        "The source of a record's timestamp: the producer (CreateTime) or the broker (LogAppendTime).",
        topic="message.timestamp.type",
        dynamic=True,
    ),
    _setting(
        "log.message.timestamp.before.max.ms",
        _integer(0, LONG_MAX),
        str(LONG_MAX),
        "How far a producer's timestamp may be behind the broker's clock. The broker refuses a batch "
        "with an older timestamp.",
        topic="message.timestamp.before.max.ms",
        dynamic=True,
    ),
    _setting(
        "log.message.timestamp.after.max.ms",
        _integer(0, LONG_MAX),
        str(HOUR_MS),
        "How far a producer's timestamp may be ahead of the broker's clock. The broker refuses a "
        "batch with a later timestamp, because such a record would protect its segment from retention "
        "by time.",
        topic="message.timestamp.after.max.ms",
        dynamic=True,
    ),
    _setting(
        "stablelog.order",
        _choice("offset", "commit"),
        "offset",
        "The order in which read-committed readers get the records of a new topic. `offset`: the "
        "order of the writes. `commit`: whole transactions, in the order of their commits. It is set "
        "when a topic is created and cannot change. A commit-ordered topic cannot be compacted.",
        topic="stablelog.order",
    ),
    _setting(
        "stablelog.group",
        _group_name(),
        "",
        "The transaction group of a new topic. Empty: the default group. Only producers whose "
        "transactional id begins with the group's name and a slash can write to the topic in "
        "transactions. It is set when a topic is created and cannot change.",
        topic="stablelog.group",
    ),
    _setting(
        "stablelog.snapshot.bytes",
        _integer(4096, LONG_MAX),
        "67108864",
        "The broker writes a snapshot of the producer state after this many bytes of a log. A "
        "recovery replays at most this many bytes.",
    ),
    # producers and transactions
    _setting(
        "producer.id.expiration.ms",
        _integer(1, INT_MAX),
        str(DAY_MS),
        "The broker forgets a producer that has not written for this time, by the broker's clock. "
        "Until then, each partition keeps 60 to 170 bytes of the producer in memory, and about the "
        "same on disk in each snapshot.",
    ),
    _setting(
        "transaction.max.timeout.ms",
        _integer(1, INT_MAX),
        "900000",
        "The longest transaction timeout that a producer may request.",
    ),
    _setting(
        "transactional.id.expiration.ms",
        _integer(1, INT_MAX),
        str(7 * DAY_MS),
        "The broker forgets a transactional id that has had no transaction for this time.",
    ),
    _setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _integer(1, INT_MAX),
        "1000",
        "The time between two checks for transactions that have reached their timeout.",
    ),
    _setting(
        "transaction.two.phase.commit.enable",
        _boolean(),
        "true",
        "Whether a producer may prepare a transaction that outlives the producer (KIP-939).",
    ),
    _setting(
        "stablelog.max.transaction.groups",
        _integer(0, 100_000),
        "1000",
        "The number of transaction groups besides the default group. Each group has a commit log, "
        "which needs two file descriptors. The broker refuses a further group with POLICY_VIOLATION.",
    ),
    _setting(
        "stablelog.transaction.strict",
        _boolean(),
        "false",
        "Whether the broker refuses transactions of clients that keep their producer epoch "
        "(transaction version 1: librdkafka, kafka-python, aiokafka). A request of such a client that "
        "is delayed in the network could end the client's next transaction.",
    ),
    # groups
    _setting(
        "group.initial.rebalance.delay.ms",
        _integer(0, INT_MAX),
        "100",
        "How long an empty consumer group waits for more members before its first rebalance. Kafka's "
        "default is 3000.",
    ),
    _setting(
        "group.min.session.timeout.ms",
        _integer(0, INT_MAX),
        "6000",
        "The shortest session timeout that a member may request.",
    ),
    _setting(
        "group.max.session.timeout.ms",
        _integer(0, INT_MAX),
        "1800000",
        "The longest session timeout that a member may request.",
    ),
    _setting(
        "group.max.size", _integer(1, INT_MAX), "2147483647", "The number of members of one consumer group."
    ),
    _setting(
        "offsets.retention.minutes",
        _integer(1, INT_MAX),
        "10080",
        "The broker deletes the committed offsets of a consumer group that has been empty for this "
        "many minutes.",
    ),
    _setting(
        "offset.metadata.max.bytes",
        _integer(0, INT_MAX),
        "4096",
        "The largest metadata of a committed offset, in bytes.",
    ),
    # metrics and diagnosis
    _setting(
        "stablelog.metrics.port",
        _integer(-1, 65535),
        "-1",
        "The port of the Prometheus metrics (HTTP, `/metrics`). -1: no metrics. 0: a free port.",
    ),
)
TOPIC_SETTINGS: dict[str, Setting] = {
    setting.topic_name: setting for setting in SETTINGS if setting.topic_name
}
