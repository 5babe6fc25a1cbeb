"""Parsing and checking of the options of a read or write.

Spark passes option names in lower case, and adds some of its own.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stablelog.client.core.security import SecuritySettings
from stablelog.errors import UsageError, did_you_mean
from stablelog.spark.kafka_settings import (
    PREFIX,
    WITHOUT_EFFECT,
    check_kafka_setting,
    is_security_setting,
    security_settings,
    unwarned,
)
from stablelog.spark.offsets import Bound
from stablelog.spark.option_table import (
    ALLOW_HTTP,
    BATCH,
    OPTIONS,
    READ,
    SAME,
    SPARKS_OWN,
    STORE_PREFIX,
    STREAM,
    WRITE,
)
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)
TABLE = "a table (CREATE TABLE ... USING stablelog) is not possible, because Spark does not pass the options of a table to its reads and writes: use CREATE TEMPORARY VIEW ... USING stablelog OPTIONS (...)"
# Options that Spark adds when it asks for the columns of a table.
TABLES_OWN = frozenset({"owner", "provider", "location", "external", "comment", "is_managed_location"})
TABLES_PREFIX = "option."
TIMES = ("timestamp", "timestamps")  # the kinds of a Bound that are times


@dataclass(frozen=True, slots=True, repr=False)
class StoreSettings:
    """The settings of the object store of a read: the options `store.*`, without this prefix. They may contain
    credentials, so the text of this object shows only their names.

    Attributes:
        options: names and values, which the library obstore checks.
        allow_http: whether requests may be sent without TLS.
    """

    options: tuple[tuple[str, str], ...] = ()
    allow_http: bool = False

    def __repr__(self) -> str:
        return f"StoreSettings({', '.join(name for name, _ in self.options)})"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The checked options of a read. Sizes are in bytes. An option is None if it was not given."""

    bootstrap: str | None
    path: str | None
    mount: str | None
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
    target_size: int | None
    parallelism: int | None
    task_count_min: int | None
    task_offsets_max: int | None
    trigger_offsets_max: int | None
    trigger_size_max: int | None
    trigger_offsets_min: int | None
    trigger_delay_max_ms: int
    client_id: str
    timeout_ms: int
    store: StoreSettings
    security: SecuritySettings

    @property
    def store_url(self) -> str | None:
        """The URL of the object store to read; None if the read has none."""
        return self.path if is_store_url(self.path) else None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The checked options of a write. Sizes are in bytes. An option is None if it was not given."""

    bootstrap: str
    topic: str | None
    guarantee: str
    app_id: str | None
    version: int | None
    transaction_group: str | None
    transaction_timeout_ms: int
    commit_group: str | None
    source_offsets: dict[TopicPartition, int] | None
    codec: str
    batch_size_max: int
    fail_on_data_loss: bool
    checkpoint: str | None
    client_id: str
    timeout_ms: int
    security: SecuritySettings


def is_store_url(path: str | None) -> bool:
    """Return whether the option path is the URL of an object store, and not a directory."""
    return path is not None and "://" in path


def read_options(given: Mapping[str, str], where: str = READ) -> ReadOptions:
    """Check the options of a read, and return their values.

    Args:
        given: the options as Spark passes them. Their names may be in upper or lower case.
        where: BATCH or STREAM; READ if the kind of read is not known yet.

    Raises:
        UsageError: an option is unknown, missing, contradictory or out of range. The message names the option
            and the nearest valid one.
    """
    values = _Values(given, where)
    path, mount = values["path"], values["mount"]
    scan = values["scan"]
    isolation = values["kafka.isolation.level"]
    bootstrap = values["kafka.bootstrap.servers"]
    _check_place(bootstrap, path, scan, where, is_empty=values.is_empty)
    _check_mount(bootstrap, path, mount, scan)
    if values.store and not is_store_url(path):
        raise UsageError(
            f"{STORE_PREFIX}{min(values.store)} applies to the read of an object store: give its URL as the path, too"
        )
    what = values.one_of("subscribe", "subscribePattern", "assign")
    if what is None and bootstrap is not None:
        raise UsageError("the read names no topic: give the option subscribe, subscribePattern or assign")
    assigned = values["assign"] or ()
    partitions = values["partitions"]
    if assigned and partitions is not None:
        raise UsageError("assign and partitions both select partitions: give one of them")
    topics = tuple(topic.strip() for topic in (values["subscribe"] or "").split(",") if topic.strip())
    if what is not None and not (topics or assigned or values["subscribePattern"]):
        raise UsageError(f"{what} names no topic")
    cut, include_commits = values["cut"], values["includeCommits"]
    is_directory = bootstrap is None and not is_store_url(path)
    if include_commits:
        check_commit_order("includeCommits", isolation, scan, is_directory=is_directory)
    if cut:
        check_commit_order("cut=true", isolation, scan, is_directory=is_directory)
    _check_bounds(values, at_cuts=cut)
    _check_trigger(values)
    starting = _bound(values, "starting", "latest" if where == STREAM else "earliest")
    return ReadOptions(
        bootstrap=bootstrap,
        path=path,
        mount=mount,
        topics=topics,
        pattern=values["subscribePattern"],
        assigned=assigned,
        partitions=partitions,
        starting=starting,
        ending=_bound(values, "ending", "latest"),
        cut=cut,
        latest_if_late=_latest_if_late(values, starting),
        isolation=isolation,
        include_headers=values["includeHeaders"],
        include_commits=include_commits,
        fail_on_data_loss=values["failOnDataLoss"],
        scan=scan,
        check_crc=values["checkCrc"],
        target_size=values["targetBytesPerTask"],
        parallelism=values["parallelism"],
        task_count_min=values["minPartitions"],
        task_offsets_max=values["maxRecordsPerPartition"],
        trigger_offsets_max=values["maxOffsetsPerTrigger"],
        trigger_size_max=values["maxBytesPerTrigger"],
        trigger_offsets_min=values["minOffsetsPerTrigger"],
        trigger_delay_max_ms=values["maxTriggerDelay"],
        client_id=values["kafka.client.id"],
        timeout_ms=values["kafka.request.timeout.ms"],
        store=_store_settings(values.store),
        security=security_settings(values.security),
    )


def _store_settings(given: Mapping[str, str]) -> StoreSettings:
    options = dict(given)
    text = options.pop(ALLOW_HTTP, "false").lower()
    if text not in ("true", "false"):
        raise UsageError(f"the option {STORE_PREFIX}{ALLOW_HTTP} must be true or false")
    return StoreSettings(tuple(sorted(options.items())), allow_http=text == "true")


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Check the options of a write, and return their values.

    Raises:
        UsageError: an option is unknown, missing, contradictory or out of range. The message names the option
            and the nearest valid one.
    """
    values = _Values(given, WRITE)
    bootstrap = values["kafka.bootstrap.servers"]
    if bootstrap is None:
        hint = f"; {TABLE}" if values.is_empty else ""
        raise UsageError(
            f"the address of the broker is missing: give the option kafka.bootstrap.servers{hint}"
        )
    app_id, version = values["txnAppId"], values["txnVersion"]
    if (app_id is None) != (version is None):
        raise UsageError("txnAppId and txnVersion belong together: give both or none")
    guarantee = values["guarantee"]
    commit_group = values["commitGroup"]
    source_offsets = values["sourceOffsets"]
    if source_offsets is not None and commit_group is None:
        raise UsageError("sourceOffsets are committed to a consumer group: name it in the option commitGroup")
    if guarantee == "at-least-once":
        for name in ("txnAppId", "commitGroup", "transactionGroup"):
            if values.has(name):
                raise UsageError(
                    f"{name} requires a joint commit (one commit for all tasks), which "
                    "guarantee=at-least-once does not use: leave out one of them"
                )
    return WriteOptions(
        bootstrap=bootstrap,
        topic=values["topic"],
        guarantee=guarantee,
        app_id=app_id,
        version=version,
        transaction_group=values["transactionGroup"],
        transaction_timeout_ms=values["transactionTimeout"],
        commit_group=commit_group,
        source_offsets=source_offsets,
        codec=values["kafka.compression.type"],
        batch_size_max=values["batchBytes"],
        fail_on_data_loss=values["failOnDataLoss"],
        checkpoint=next(
            (value for name, value in given.items() if name.lower() == "checkpointlocation"), None
        ),
        client_id=values["kafka.client.id"],
        timeout_ms=values["kafka.request.timeout.ms"],
        security=security_settings(values.security),
    )


def warn_without_effect(given: Mapping[str, str]) -> None:
    """Log one warning that names the given options that have no effect. A process warns of each option once."""
    unused = unwarned(given)
    if unused:
        log.warning("options of Spark's Kafka connector have no effect here: %s", "; ".join(unused))


class _Values:
    """The options of one read or write, by their names in the option table. Of an option with two names, the name of
    Spark's Kafka connector is used.
    """

    def __init__(self, given: Mapping[str, str], where: str) -> None:
        known = {name.lower(): name for name in (*OPTIONS, *WITHOUT_EFFECT)}
        self._texts: dict[str, str] = {}
        # The options of the object store, without their prefix. They are not in the table: each store has its own.
        self.store: dict[str, str] = {}
        # The settings of TLS and SASL. They are not in the table: docs/reference/client.md lists them.
        self.security: dict[str, str] = {}
        wanted = set(where.split(", "))
        names = sorted((name.lower(), text) for name, text in given.items())
        if any(lowered in TABLES_OWN or lowered.startswith(TABLES_PREFIX) for lowered, _ in names):
            raise UsageError(TABLE)
        self.is_empty = not any(text for _, text in names)
        for lowered, text in names:
            if lowered in SPARKS_OWN or (lowered == "path" and not text):
                continue
            if lowered.startswith(STORE_PREFIX) and not wanted & {WRITE}:
                self.store[lowered.removeprefix(STORE_PREFIX)] = text
                continue
            if is_security_setting(lowered):
                self.security[lowered] = text
                continue
            check_kafka_setting(lowered)
            option = known.get(lowered)
            if option is None:
                raise UsageError(_unknown(lowered, known))
            if option in WITHOUT_EFFECT:
                continue
            if not wanted & set(OPTIONS[option].where.split(", ")):
                raise UsageError(
                    f"{option} is an option of {_places(OPTIONS[option].where)}, not of {_places(where)}: leave it out"
                )
            same = SAME.get(option, option)
            if self._texts.setdefault(same, text) != text:
                other = next(one for one, known in SAME.items() if known == same)
                raise UsageError(f"{other} and {same} are the same option: give one of them")

    def has(self, name: str) -> bool:
        """Return whether an option was given with a value that is not empty."""
        return bool(self._texts.get(name, "").strip())

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option, or its default if it was not given; None if it has no default either.

        Raises:
            UsageError: the value is not valid.
        """
        option = OPTIONS[name]
        text = self._texts.get(name, "").strip() or option.default
        return option.kind.read(name, text) if text else None

    def one_of(self, *names: str) -> str | None:
        """Return the name of that one of these options that is set; None if none is. Several are an error."""
        there = [name for name in names if name in self._texts]
        if len(there) > 1:
            raise UsageError(f"{' and '.join(there)} exclude each other: give one of them")
        return there[0] if there else None


def _unknown(name: str, known: Mapping[str, str]) -> str:
    if is_security_setting(PREFIX + name):
        return f"stablelog has no option {name!r}: settings of TLS and SASL have the prefix {PREFIX}, so give {PREFIX}{name}"
    hint = did_you_mean(name, known.values())
    if not hint and name.startswith("kafka."):
        return (
            f"stablelog has no option {name!r}: of Kafka's client settings it has "
            f"{', '.join(sorted(option for option in OPTIONS if option.startswith('kafka.')))}; docs/reference/spark-options.md lists those "
            "that have no effect"
        )
    return f"stablelog has no option {name!r}{hint or '; there are ' + ', '.join(OPTIONS)}"


def _places(where: str) -> str:
    names = {BATCH: "a batch read", STREAM: "a stream's read", WRITE: "a write"}
    return " or ".join(names[place] for place in where.split(", "))


def _check_place(bootstrap: str | None, path: str | None, scan: str, where: str, *, is_empty: bool) -> None:
    if bootstrap is None and path is None:
        hint = f"; {TABLE}" if is_empty else ""
        raise UsageError(
            "the log to read is not named: give the option kafka.bootstrap.servers, or a path: that of a data directory, "
            f"or the URL of an object store{hint}"
        )
    if is_store_url(path) and scan != "auto":
        raise UsageError(f"scan={scan} excludes the object store at path: leave out scan, or the path")
    if bootstrap is None and scan == "fetch":
        raise UsageError(
            "scan=fetch requires a broker: give kafka.bootstrap.servers in place of path, or leave out scan"
        )
    if bootstrap is None and where == STREAM and not is_store_url(path):
        raise UsageError(
            "a stream requires a broker: give kafka.bootstrap.servers in place of path, or the URL of an object store as path"
        )


def _check_mount(bootstrap: str | None, path: str | None, mount: str | None, scan: str) -> None:
    if bootstrap is not None and path is not None and not is_store_url(path):
        raise UsageError(
            f"path={path} is a directory to read without a broker, but kafka.bootstrap.servers is given: give the directory "
            "as mount if it is the mounted data directory of the broker, or leave out one of them"
        )
    if mount is None:
        return
    if bootstrap is None:
        raise UsageError(
            "mount says where the data directory of a broker is mounted, and no broker is given: give the option "
            "kafka.bootstrap.servers, or to read the directory without a broker give it as path"
        )
    if is_store_url(mount):
        raise UsageError(f"mount={mount} is a URL, not a directory: give the URL of the object store as path")
    if scan == "fetch":
        raise UsageError("scan=fetch does not read the files at mount: leave out one of them")


def _check_bounds(values: _Values, *, at_cuts: bool) -> None:
    by_times = ("startingOffsetsByTimestamp", "endingOffsetsByTimestamp")
    for option in by_times if at_cuts else ("startingCut", "endingCut"):
        if not values.has(option):
            continue
        if not at_cuts:
            raise UsageError(f"{option} applies only to a read between commits: give cut=true, too")
        one = option.replace("OffsetsBy", "")
        raise UsageError(
            f"{option} sets a time for each partition, but a read at cuts has one time for all: give {one} in its place"
        )


def check_commit_order(what: str, isolation: str, scan: str, *, is_directory: bool) -> None:
    """Check that a read can follow the order of the commits: read-committed, from a broker or an object store.

    Args:
        what: the option that requires commit order; the message begins with it.
        isolation: the isolation level of the read.
        scan: the option scan.
        is_directory: whether the read is from a data directory, without a broker.

    Raises:
        UsageError: the read cannot be in commit order.
    """
    if isolation == "read_uncommitted":
        raise UsageError(
            f"no read can have {what} and isolation=read_uncommitted: a record that is not committed has no commit yet"
        )
    if is_directory:
        raise UsageError(
            f"{what} requires a broker, which lists the transactions, or an object store: give kafka.bootstrap.servers in "
            "place of path, or the URL of the store as path"
        )
    if scan == "files":
        raise UsageError(
            f"{what} is possible only by fetching from the broker, not from files: leave out scan=files"
        )


def _latest_if_late(values: _Values, starting: Bound) -> bool:
    name = "startingOffsetsByTimestampStrategy"
    if values.has(name) and starting.kind not in TIMES:
        raise UsageError(
            f"{name} applies to a start at a time: give startingTimestamp or startingOffsetsByTimestamp, too"
        )
    return bool(values[name] == "latest")


def _bound(values: _Values, side: str, default: str) -> Bound:
    names = (f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp", f"{side}Cut")
    bound: Bound | None = values[values.one_of(*names) or names[0]]
    return Bound(default) if bound is None else bound


def _check_trigger(values: _Values) -> None:
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is None and values.has("maxTriggerDelay"):
        raise UsageError(
            "maxTriggerDelay limits the wait for minOffsetsPerTrigger, which is not given: give that option, too"
        )
    if least is not None and most is not None and least > most:
        raise UsageError(
            f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}: no micro-batch can be so large"
        )
