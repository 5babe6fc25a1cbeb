"""Parsing and checking of the options of a read or write.

Spark passes option names in lower case, and adds some of its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from stablelog.errors import InvalidConfig, did_you_mean
from stablelog.spark.offsets import (
    NUMBER_MAX,
    Bound,
    parse_assign,
    parse_indexes,
    parse_offsets,
    parse_timestamps,
)
from stablelog.spark.option_table import BATCH, OPTIONS, READ, SAME, SPARKS_OWN, STREAM, WITHOUT_EFFECT, WRITE
from stablelog.types import TopicPartition

_T = TypeVar("_T")
_D = TypeVar("_D")

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
    """The options of a read. Sizes in bytes; None for an option that was not given."""

    bootstrap: str | None
    path: str | None
    topics: tuple[str, ...]
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
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
    """The options of a write. Sizes in bytes; None for an option that was not given."""

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
        given: the options as Spark passes them; upper and lower case are the same.
        where: BATCH or STREAM; READ if that is not known yet.

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
    """The given options by the names of the table; of two names for one option, that of the Kafka connector."""

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
        """Which one of these options was given; None if none was."""
        there = [name for name in names if name in self._values]
        if len(there) > 1:
            raise InvalidConfig(f"{' and '.join(there)} say the same thing differently: give one of them")
        return there[0] if there else None


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if hint := did_you_mean(name, known.values()):
        return f"stablelog has no option {name!r}{hint}"
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
    """Check that a read can be in commit order: only a broker serves it, and only to committed readers.

    Raises:
        InvalidConfig: it cannot; the message begins with `what`, the option that needs commit order.
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
