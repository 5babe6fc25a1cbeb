"""Which options `format("stablelog")` takes, what each means, and where it applies.

One table for source and sink. Names are those of Spark's Kafka connector where the meaning is the same, so that a
job moves over by changing the format; `txnAppId` and `txnVersion` are Delta's. Spark hands the names over in lower
case, and adds some of its own.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from stablelog.errors import InvalidConfig
from stablelog.spark.offsets import (
    NUMBER_MAX,
    Bound,
    parse_assign,
    parse_indexes,
    parse_offsets,
    parse_timestamps,
)

_T = TypeVar("_T")
_D = TypeVar("_D")
BATCH, STREAM, WRITE = "batch", "stream", "write"
READ = f"{BATCH}, {STREAM}"
ANY = f"{READ}, {WRITE}"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: a row of the table in docs/spark.md.

    Attributes:
        default: what holds when it is not given, for people; empty where nothing does.
        valid: which values it takes, for people.
        where: at which reads and writes it may be given.
        meaning: what it does.
    """

    default: str
    valid: str
    where: str
    meaning: str


_TEXT, _COUNT, _BOOLEAN, _MILLIS = "text", "1 and more", "true, false", "milliseconds since 1970"
_SIZE = "bytes; with k, m or g"
_SEQUENCE = "a commit sequence; 0 for the beginning"
_JSON_OFFSETS = '`{"topic": {"0": 23}}`; -2 earliest, -1 latest'
_JSON_TIMES = '`{"topic": {"0": 1700000000000}}`'

OPTIONS: dict[str, Option] = {
    # -- where and what ----------------------------------------------------------------------------------------
    "kafka.bootstrap.servers": Option("", "host:port, ...", ANY, "The brokers."),
    "bootstrap": Option("", "host:port, ...", ANY, "The same as `kafka.bootstrap.servers`."),
    "path": Option(
        "",
        "a directory",
        READ,
        "A data directory, read without a broker; also `load(path)`. With a broker: where its data directory is to be seen.",
    ),
    "subscribe": Option("", "topic, ...", READ, "The topics."),
    "subscribePattern": Option("", "a regular expression", READ, "The topics whose whole name matches."),
    "assign": Option("", '`{"topic": [0, 1]}`', READ, "These partitions."),
    "partitions": Option("all", "0,3,5-7", READ, "Only the partitions with these numbers, of every topic."),
    # -- from where to where -----------------------------------------------------------------------------------
    "startingOffsets": Option(
        "earliest (batch), latest (stream)",
        f"earliest, latest, or {_JSON_OFFSETS}",
        READ,
        "Where to begin. A stream that has a checkpoint goes on from there; a partition that it finds later is read from its beginning.",
    ),
    "startingOffsetsByTimestamp": Option(
        "", _JSON_TIMES, READ, "Begin at the first record of this time or later, by partition."
    ),
    "startingTimestamp": Option("", _MILLIS, READ, "The same, with one time for every partition."),
    "startingOffsetsByTimestampStrategy": Option(
        "error", "error, latest", READ, "What to do where no record is that late: fail, or begin at the end."
    ),
    "endingOffsets": Option("latest", f"latest, or {_JSON_OFFSETS}", BATCH, "Where to end, exclusive."),
    "endingOffsetsByTimestamp": Option(
        "",
        _JSON_TIMES,
        BATCH,
        "End before the first record of this time or later, by partition; where there is none, at the end.",
    ),
    "endingTimestamp": Option("", _MILLIS, BATCH, "The same, with one time for every partition."),
    # -- whole transactions ------------------------------------------------------------------------------------
    "cut": Option(
        "false",
        _BOOLEAN,
        READ,
        "Whether a batch, and each micro-batch, holds whole transactions over all topics, which are commit-ordered ones of one transaction group.",
    ),
    "startingCut": Option(
        "", _SEQUENCE, READ, "With `cut`: begin behind the transaction with this commit sequence."
    ),
    "endingCut": Option(
        "", _SEQUENCE, BATCH, "With `cut`: end behind the transaction with this commit sequence."
    ),
    "includeCommits": Option(
        "false",
        _BOOLEAN,
        READ,
        "Whether there are columns `commitSequence`, `commitTimestamp` and `transactionGroup`, of commit-ordered topics.",
    ),
    # -- how ---------------------------------------------------------------------------------------------------
    "isolation": Option(
        "read_committed",
        "read_committed, read_uncommitted",
        READ,
        "Whether records of transactions that are open or were aborted are left out.",
    ),
    "kafka.isolation.level": Option(
        "read_committed", "read_committed, read_uncommitted", READ, "The same as `isolation`."
    ),
    "includeHeaders": Option(
        "false",
        _BOOLEAN,
        ANY,
        "Whether there is a column `headers`. A sink takes the column when it is there, whatever this says.",
    ),
    "failOnDataLoss": Option(
        "true",
        _BOOLEAN,
        READ,
        "Whether records that were to be read and are gone fail the query; if not, a warning says what is missing.",
    ),
    "scan": Option(
        "auto",
        "auto, fetch, files",
        READ,
        "By the protocol, or straight from the segment files; `auto` takes the files where they can be seen.",
    ),
    "checkCrc": Option("true", _BOOLEAN, READ, "Whether the CRC of each record batch is checked."),
    "targetBytesPerTask": Option(
        "up to 128m",
        _SIZE,
        READ,
        "How much a task reads. Less than 128m by default where the cores would otherwise be idle.",
    ),
    "filterPushdown": Option(
        "false",
        _BOOLEAN,
        BATCH,
        "Whether filters on topic, partition, offset and time narrow what is read; safe only where every query loads its own frame.",
    ),
    "minPartitions": Option("", _COUNT, READ, "Tasks there are at least, if there are that many records."),
    "maxRecordsPerPartition": Option("", _COUNT, READ, "Offsets that a task reads at most."),
    # -- a stream's pace ---------------------------------------------------------------------------------------
    "maxOffsetsPerTrigger": Option(
        "",
        _COUNT,
        STREAM,
        "Records of a micro-batch at most: real ones where the files are seen, offsets otherwise.",
    ),
    "maxBytesPerTrigger": Option(
        "", _SIZE, STREAM, "Bytes of a micro-batch at most, as they are stored, but one batch at least."
    ),
    "minOffsetsPerTrigger": Option(
        "", _COUNT, STREAM, "Wait until there are so many offsets, but not longer than `maxTriggerDelay`."
    ),
    "maxTriggerDelay": Option(
        "15m", "a duration: 500ms, 10s, 15m, 1h", STREAM, "See `minOffsetsPerTrigger`."
    ),
    # -- the sink ----------------------------------------------------------------------------------------------
    "topic": Option("the column `topic`", _TEXT, WRITE, "Where every record goes, whatever the column says."),
    "guarantee": Option(
        "exactly-once",
        "exactly-once, at-least-once",
        WRITE,
        "Exactly once needs a stablelog broker; at least once does with any.",
    ),
    "txnAppId": Option(
        "the query, or one of this write",
        _TEXT,
        WRITE,
        "Under which name a write is remembered; with `txnVersion`.",
    ),
    "txnVersion": Option(
        "the micro-batch",
        "0 and more",
        WRITE,
        "Which write of that name this is: what was written already is skipped.",
    ),
    "transactionGroup": Option(
        "the default group", _TEXT, WRITE, "Whose commit sequence the write is part of."
    ),
    "transactionTimeout": Option(
        "10m", "a duration", WRITE, "How long a task may take before the broker aborts what it has written."
    ),
    "commitGroup": Option(
        "",
        _TEXT,
        WRITE,
        "The consumer group to which the source's progress is committed, in the same decision.",
    ),
    "sourceOffsets": Option(
        "from the checkpoint",
        '`{"topic": {"0": 23}}`',
        WRITE,
        "The offsets for `commitGroup`, where the sink cannot find them itself: batch writes and `foreachBatch`.",
    ),
    "compression": Option(
        "none", "none, gzip, snappy, lz4, zstd", WRITE, "How record batches are compressed."
    ),
    "kafka.compression.type": Option(
        "none", "none, gzip, snappy, lz4, zstd", WRITE, "The same as `compression`."
    ),
    "batchBytes": Option(
        "1m", _SIZE, WRITE, "Bytes of a record batch at most; a larger row is a batch of its own."
    ),
    # -- the connection ----------------------------------------------------------------------------------------
    "kafka.client.id": Option("stablelog-spark", _TEXT, ANY, "What brokers log of who asks."),
    "kafka.request.timeout.ms": Option(
        "30000", _COUNT, ANY, "How long a broker that does not answer is asked again."
    ),
}

# Options of Spark's Kafka connector that change nothing of what is read or written: taken, and without effect.
WITHOUT_EFFECT: dict[str, str] = {
    "groupIdPrefix": "no consumer group is used",
    "kafka.group.id": "no consumer group is used",
    "kafkaConsumer.pollTimeoutMs": "kafka.request.timeout.ms says how long is waited",
    "fetchOffset.numRetries": "kafka.request.timeout.ms says how long is tried",
    "fetchOffset.retryIntervalMs": "kafka.request.timeout.ms says how long is tried",
    "kafka.fetch.max.bytes": "fetches are sized by what is there",
    "kafka.max.partition.fetch.bytes": "fetches are sized by what is there",
    "kafka.max.poll.records": "records are not polled one by one",
    "kafka.acks": "what is committed is durable",
    "kafka.linger.ms": "record batches are filled from Spark's",
    "kafka.batch.size": "batchBytes says how large a record batch is",
}
SAME = {
    "bootstrap": "kafka.bootstrap.servers",
    "isolation": "kafka.isolation.level",
    "compression": "kafka.compression.type",
}
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
ISOLATIONS = ("read_committed", "read_uncommitted")
SCANS = ("auto", "fetch", "files")
GUARANTEES = ("exactly-once", "at-least-once")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BATCH_SIZE_MAX = 100 << 20  # Kafka's default of socket.request.max.bytes
TIMES = ("timestamp", "timestamps")  # kinds of a Bound
DURATION_MS_MAX = 2**31 - 1  # Kafka's messages have 32 bits for a timeout
_DURATIONS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a read was asked for. Sizes in bytes; None where nothing was said."""

    bootstrap: str | None
    path: str | None
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[tuple[str, int], ...]
    partitions: frozenset[int] | None
    starting: Bound
    ending: Bound
    cut: bool
    latest_if_late: bool
    isolation: str
    include_headers: bool
    include_commits: bool
    fail_on_data_loss: bool
    scan: str
    check_crc: bool
    filter_pushdown: bool
    target_size: int | None
    task_count_min: int | None
    task_offsets_max: int | None
    trigger_offsets_max: int | None
    trigger_size_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_max_ms: int
    client_id: str
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was asked for. Sizes in bytes; None where nothing was said."""

    bootstrap: str
    topic: str | None
    guarantee: str
    app_id: str | None
    version: int | None
    transaction_group: str | None
    transaction_timeout_ms: int
    commit_group: str | None
    source_offsets: dict[str, dict[int, int]] | None
    codec: str
    batch_size_max: int
    checkpoint: str | None
    client_id: str
    timeout_ms: int


def read_options(given: Mapping[str, str], where: str = READ) -> ReadOptions:
    """Check the options of a read.

    Args:
        given: as Spark hands them over, in any case.
        where: BATCH or STREAM; READ where that is not known yet.

    Raises:
        InvalidConfig: one is unknown, missing, contradictory or out of range; names it and the nearest right one.
    """
    values = _Values(given, where)
    path = values.text("path")
    scan = values.choice("scan", SCANS)
    isolation = values.choice("kafka.isolation.level", ISOLATIONS)
    bootstrap = values.text("kafka.bootstrap.servers")
    _check_place(bootstrap, path, scan, where)
    what = values.one_of("subscribe", "subscribePattern", "assign")
    if what is None and bootstrap is not None:
        raise InvalidConfig("say what to read: option subscribe, subscribePattern or assign")
    assigned = values.parsed("assign", parse_assign, ())
    partitions = values.parsed("partitions", parse_indexes, None)
    if assigned and partitions is not None:
        raise InvalidConfig("assign and partitions both say which partitions: give one of them")
    topics = tuple(topic.strip() for topic in (values.text("subscribe") or "").split(",") if topic.strip())
    if what == "subscribe" and not topics:
        raise InvalidConfig("subscribe names no topic")
    cut, include_commits = values.boolean("cut", False), values.boolean("includeCommits", False)
    if include_commits:
        check_commit_order("includeCommits", isolation, bootstrap, scan)
    if cut:
        check_commit_order("cut=true", isolation, bootstrap, scan)
    _check_bounds(values, at_cuts=cut)
    starting = _bound(values, "starting", "latest" if where == STREAM else "earliest")
    return ReadOptions(
        bootstrap=bootstrap,
        path=path,
        topics=topics,
        pattern=values.parsed("subscribePattern", _pattern, None),
        assigned=assigned,
        partitions=partitions,
        starting=starting,
        ending=_bound(values, "ending", "latest"),
        cut=cut,
        latest_if_late=_latest_if_late(values, starting),
        isolation=isolation,
        include_headers=values.boolean("includeHeaders", False),
        include_commits=include_commits,
        fail_on_data_loss=values.boolean("failOnDataLoss", True),
        scan=scan,
        check_crc=values.boolean("checkCrc", True),
        filter_pushdown=values.boolean("filterPushdown", False),
        target_size=values.parsed("targetBytesPerTask", _size, None),
        task_count_min=values.parsed("minPartitions", _count, None),
        task_offsets_max=values.parsed("maxRecordsPerPartition", _count, None),
        trigger_offsets_max=values.parsed("maxOffsetsPerTrigger", _count, None),
        trigger_size_max=values.parsed("maxBytesPerTrigger", _size, None),
        trigger_offsets_min=_trigger_offsets_min(values),
        trigger_delay_max_ms=_trigger_delay(values),
        client_id=values.text("kafka.client.id") or "stablelog-spark",
        timeout_ms=values.parsed("kafka.request.timeout.ms", _count, 30_000),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write.

    Raises:
        InvalidConfig: one is unknown, missing, contradictory or out of range; names it and the nearest right one.
    """
    values = _Values(given, WRITE)
    bootstrap = values.text("kafka.bootstrap.servers")
    if bootstrap is None:
        raise InvalidConfig("say where to write: option kafka.bootstrap.servers")
    app_id, version = values.text("txnAppId"), values.parsed("txnVersion", _natural, None)
    if (app_id is None) != (version is None):
        raise InvalidConfig("txnAppId and txnVersion go together: give both or none")
    guarantee = values.choice("guarantee", GUARANTEES)
    commit_group = values.text("commitGroup")
    source_offsets = values.parsed("sourceOffsets", parse_offsets, None)
    if source_offsets is not None and commit_group is None:
        raise InvalidConfig("sourceOffsets are committed to a group: option commitGroup says which")
    if guarantee == "at-least-once":
        for name in ("txnAppId", "commitGroup", "transactionGroup"):
            if values.text(name) is not None:
                raise InvalidConfig(
                    f"{name} is part of a joint commit, and guarantee=at-least-once does without one"
                )
    return WriteOptions(
        bootstrap=bootstrap,
        topic=values.text("topic"),
        guarantee=guarantee,
        app_id=app_id,
        version=version,
        transaction_group=values.text("transactionGroup"),
        transaction_timeout_ms=values.parsed("transactionTimeout", _duration, 600_000),
        commit_group=commit_group,
        source_offsets=source_offsets,
        codec=values.choice("kafka.compression.type", CODECS),
        batch_size_max=values.parsed("batchBytes", _batch_size, 1_000_000),
        checkpoint=next(
            (value for name, value in given.items() if name.lower() == "checkpointlocation"), None
        ),
        client_id=values.text("kafka.client.id") or "stablelog-spark",
        timeout_ms=values.parsed("kafka.request.timeout.ms", _count, 30_000),
    )


class _Values:
    """What was given, by the table's names; of two names for one option, the one of the Kafka connector."""

    def __init__(self, given: Mapping[str, str], where: str) -> None:
        known = {name.lower(): name for name in (*OPTIONS, *WITHOUT_EFFECT)}
        self._values: dict[str, str] = {}
        wanted = set(where.split(", "))
        for lowered, value in sorted((name.lower(), value) for name, value in given.items()):
            if lowered in SPARKS_OWN or (lowered == "path" and not value):
                continue
            name = known.get(lowered)
            if name is None:
                raise InvalidConfig(_unknown(lowered, known))
            if name in WITHOUT_EFFECT:
                continue
            if not wanted & set(OPTIONS[name].where.split(", ")):
                raise InvalidConfig(
                    f"{name} is an option of {_places(OPTIONS[name].where)}, not of {_places(where)}"
                )
            same = SAME.get(name, name)
            if same in self._values and self._values[same] != value:
                other = next(one for one, known in SAME.items() if known == same)
                raise InvalidConfig(f"{other} and {same} are the same option: give one of them")
            self._values[same] = value

    def text(self, name: str) -> str | None:
        return (self._values.get(name) or "").strip() or None

    def parsed(self, name: str, parse: Callable[[str], _T], default: _D) -> _T | _D:
        value = self.text(name)
        if value is None:
            return default
        try:
            return parse(value)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise InvalidConfig(
                f"{name}={value!r} is not valid: {OPTIONS[name].valid}{_reason(error)}"
            ) from error

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise InvalidConfig(f"{name}={value!r}: {' or '.join(choices)}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidConfig(f"{name}={value!r}: true or false")
        return value == "true"

    def one_of(self, *names: str) -> str | None:
        """The one of these that was given."""
        there = [name for name in names if name in self._values]
        if len(there) > 1:
            raise InvalidConfig(f"{' and '.join(there)} say the same thing differently: give one of them")
        return there[0] if there else None


def _unknown(name: str, known: Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"stablelog has no option {name!r}; did you mean {known[near[0]]}?"
    if name.startswith("kafka."):
        return (
            f"stablelog has no option {name!r}: of Kafka's client settings it has "
            f"{', '.join(sorted(option for option in OPTIONS if option.startswith('kafka.')))}"
        )
    return f"stablelog has no option {name!r}; there are {', '.join(OPTIONS)}"


def _places(where: str) -> str:
    names = {BATCH: "a batch read", STREAM: "a stream's read", WRITE: "a write"}
    return " or ".join(names[place] for place in where.split(", "))


def _reason(error: Exception) -> str:
    text = str(error)
    return f" ({text})" if isinstance(error, ValueError) and text and "literal" not in text else ""


def _check_place(bootstrap: str | None, path: str | None, scan: str, where: str) -> None:
    if bootstrap is None and path is None:
        raise InvalidConfig(
            "say where the log is: option kafka.bootstrap.servers, or the path of a data directory"
        )
    if bootstrap is None and scan == "fetch":
        raise InvalidConfig("scan=fetch needs a broker: option kafka.bootstrap.servers")
    if bootstrap is None and where == STREAM:
        raise InvalidConfig("a stream needs a broker: option kafka.bootstrap.servers")
    if path is not None and scan == "fetch":
        raise InvalidConfig("scan=fetch does not look into path: leave out one of them")


def _check_bounds(values: _Values, *, at_cuts: bool) -> None:
    by_times = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
    for name in by_times if at_cuts else ("startingCut", "endingCut"):
        if values.text(name) is None:
            continue
        if not at_cuts:
            raise InvalidConfig(f"{name} is of a read at cuts: give cut=true, too")
        one = name.replace("OffsetsBy", "")
        raise InvalidConfig(f"{name} gives partitions times of their own, and a cut has one: {one}")


def check_commit_order(what: str, isolation: str, bootstrap: str | None, scan: str) -> None:
    """Commit order is what a broker serves to committed readers.

    Raises:
        InvalidConfig: a read is asked for that does not go by it; `what` says who wants it.
    """
    if isolation == "read_uncommitted":
        raise InvalidConfig(
            f"{what} and isolation=read_uncommitted: what is not committed is of no transaction yet"
        )
    if bootstrap is None:
        raise InvalidConfig(
            f"{what} needs a broker, which knows the transactions: option kafka.bootstrap.servers"
        )
    if scan == "files":
        raise InvalidConfig(f"{what} is read by the protocol: leave out scan=files")


def _latest_if_late(values: _Values, starting: Bound) -> bool:
    strategy = values.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
    if values.text("startingOffsetsByTimestampStrategy") is not None and starting.kind not in TIMES:
        raise InvalidConfig(
            "startingOffsetsByTimestampStrategy is about a time to begin at, which is not given: startingTimestamp or startingOffsetsByTimestamp"
        )
    return strategy == "latest"


def _bound(values: _Values, side: str, default: str) -> Bound:
    names = (f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp", f"{side}Cut")
    name = values.one_of(*names)
    if name == f"{side}Cut":
        return Bound("cut", commit_sequence=values.parsed(name, _natural, 0))
    if name == f"{side}Timestamp":
        return Bound("timestamp", timestamp_ms=values.parsed(name, _natural, 0))
    if name == f"{side}OffsetsByTimestamp":
        return Bound("timestamps", by_partition=values.parsed(name, parse_timestamps, {}))
    text = (values.text(f"{side}Offsets") or default).lower()
    if text == "latest" or (text == "earliest" and side == "starting"):
        return Bound(text)
    if text == "earliest":
        raise InvalidConfig("endingOffsets=earliest would read nothing: latest, or offsets")
    found = values.parsed(f"{side}Offsets", parse_offsets, {})
    if side == "ending" and any(offset == -2 for places in found.values() for offset in places.values()):
        raise InvalidConfig("endingOffsets has -2 (earliest), which would read nothing")
    return Bound("offsets", by_partition=found)


def _trigger_delay(values: _Values) -> int:
    if values.text("maxTriggerDelay") is not None and values.text("minOffsetsPerTrigger") is None:
        raise InvalidConfig("maxTriggerDelay says how long minOffsetsPerTrigger waits, which is not given")
    return values.parsed("maxTriggerDelay", _duration, 15 * 60_000)


def _trigger_offsets_min(values: _Values) -> int | None:
    found = values.parsed("minOffsetsPerTrigger", _count, None)
    most = values.parsed("maxOffsetsPerTrigger", _count, None)
    if found is not None and most is not None and found > most:
        raise InvalidConfig(
            f"minOffsetsPerTrigger={found} is more than maxOffsetsPerTrigger={most}: no micro-batch has as many"
        )
    return found


def _pattern(text: str) -> str:
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    return text


def _natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("less than 0")
    if number > NUMBER_MAX:
        raise ValueError("more than 64 bits")
    return number


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("less than 1")
    return number


def _size(text: str) -> int:
    lowered = text.lower().removesuffix("b")
    unit = _SIZES.get(lowered[-1:], 1)
    return _count(lowered[:-1].strip() if unit > 1 else lowered) * unit


def _batch_size(text: str) -> int:
    size = _size(text)
    if size > BATCH_SIZE_MAX:
        raise ValueError("more than a request can hold, which is 100m")
    return size


def _duration(text: str) -> int:
    lowered = text.lower().replace(" ", "")
    for unit in ("ms", "s", "m", "h"):
        if lowered.endswith(unit) and lowered.removesuffix(unit).isdigit():
            return _within(_count(lowered.removesuffix(unit)) * _DURATIONS[unit])
    return _within(_count(lowered))


def _within(duration_ms: int) -> int:
    if duration_ms > DURATION_MS_MAX:
        raise ValueError("more than 24 days")
    return duration_ms
