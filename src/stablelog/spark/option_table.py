"""Table of the options of `format("stablelog")`, one row for each.

Names are those of Spark's Kafka connector where the meaning is the same, so that a job can change to stablelog by
changing the format. `txnAppId` and `txnVersion` are options of Delta Lake.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stablelog.settings import SettingType, boolean, choice
from stablelog.spark.offsets import (
    EARLIEST,
    NUMBER_MAX,
    Bound,
    parse_assign,
    parse_indexes,
    parse_numbers,
    whole_number,
)

BATCH, STREAM, WRITE = "batch", "stream", "write"
READ = f"{BATCH}, {STREAM}"
ANY = f"{READ}, {WRITE}"
BATCH_SIZE_MAX = 100 << 20  # Kafka's default of socket.request.max.bytes
DURATION_MS_MAX = 2**31 - 1  # timeouts in Kafka's protocol are signed 32-bit numbers
_UNITLESS = {"": 1}
_DURATIONS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_SIZES = {"": 1, "b": 1} | {
    unit + b: size for unit, size in (("k", 1 << 10), ("m", 1 << 20), ("g", 1 << 30)) for b in ("", "b")
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a read or write. docs/reference/spark-options.md lists all options.

    Attributes:
        default: the value if the option is not given, as text; empty for no value.
        kind: the type of the value, which says which texts are valid and how they are parsed.
        where: which reads and writes accept the option: those of batches, those of streams or both.
        meaning: the description of the option's effect, for users.
        otherwise: what happens if the option is not given and has no default; used in the documentation.
    """

    default: str
    kind: SettingType
    where: str
    meaning: str
    otherwise: str = ""


# -- the kinds of values -------------------------------------------------------------------------------------------


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from error
    return text


def _number(least: int, most: int = NUMBER_MAX, units: Mapping[str, int] = _UNITLESS) -> Callable[[str], int]:
    """Return a function that parses a text such as `10` or `10m`, a whole number that a unit may follow, and returns
    the number times the factor of the unit. The result must be from `least` to `most`. `units` has the factor of each
    valid unit.
    """

    def parse(text: str) -> int:
        match = re.fullmatch(r"(-?\d+)\s*([a-z]*)", text.lower())
        if match is None or match[2] not in units:
            raise ValueError
        return whole_number(int(match[1]) * units[match[2]], least, most)

    return parse


def _starting(text: str) -> Bound:
    lowered = text.lower()
    return (
        Bound(lowered)
        if lowered in ("earliest", "latest")
        else Bound("offsets", parse_numbers(text, EARLIEST))
    )


def _ending(text: str) -> Bound:
    bound = _starting(text)
    if bound.kind == "earliest" or EARLIEST in bound.by_partition.values():
        raise ValueError("a read that ends at earliest is empty")
    return bound


def _cut(text: str) -> Bound:
    return Bound("cut", commit_sequence=_number(0)(text))


def _time(text: str) -> Bound:
    return Bound("timestamp", timestamp_ms=_number(0)(text))


def _times(text: str) -> Bound:
    return Bound("timestamps", by_partition=parse_numbers(text, 0))


def _word(*words: str) -> SettingType:
    """Return the type of those options whose value is one of these words, in upper or lower case."""
    exact = choice(*words)
    return SettingType(lambda text: exact.parse(text.lower()), exact.valid)


TEXT = SettingType(str, "text")
COUNT = SettingType(_number(1), "1 and more")
SIZE = SettingType(_number(1, units=_SIZES), "bytes; with k, m or g")
DURATION = SettingType(_number(1, DURATION_MS_MAX, _DURATIONS), "a duration: 500ms, 10s, 15m, 1h")
ISOLATION = _word("read_committed", "read_uncommitted")
CODEC = _word("none", "gzip", "snappy", "lz4", "zstd")
TIME = SettingType(_time, "milliseconds since 1970")
CUT = SettingType(_cut, "a commit sequence; 0 for the beginning")
_JSON_OFFSETS = '`{"topic": {"0": 23}}`; -2 earliest, -1 latest'
TIMES = SettingType(_times, '`{"topic": {"0": 1700000000000}}`')

OPTIONS: dict[str, Option] = {
    # -- brokers, topics and partitions ------------------------------------------------------------------------
    "kafka.bootstrap.servers": Option(
        "", SettingType(str, "host:port, ..."), ANY, "The addresses of the brokers."
    ),
    "bootstrap": Option(
        "", SettingType(str, "host:port, ..."), ANY, "The same as `kafka.bootstrap.servers`."
    ),
    "path": Option(
        "",
        SettingType(str, "a directory or a URL"),
        READ,
        "The data directory, or the URL of the object store, to read; `load(path)` gives it, too. With brokers, only the URL of their object store.",
    ),
    "mount": Option(
        "",
        SettingType(str, "a directory"),
        READ,
        "With brokers: where the data directory of the broker is mounted on the machines of the driver and the tasks.",
        "the directory that the broker names",
    ),
    "subscribe": Option("", SettingType(str, "topic, ..."), READ, "The topics to read."),
    "subscribePattern": Option(
        "",
        SettingType(_pattern, "a regular expression"),
        READ,
        "The read takes every topic whose whole name matches.",
    ),
    "assign": Option(
        "", SettingType(parse_assign, '`{"topic": [0, 1]}`'), READ, "The read takes these partitions."
    ),
    "partitions": Option(
        "",
        SettingType(parse_indexes, "0,3,5-7"),
        READ,
        "The read takes only these partition numbers of every topic.",
        "all",
    ),
    # -- the beginning and the end of a read -------------------------------------------------------------------
    "startingOffsets": Option(
        "",
        SettingType(_starting, f"earliest, latest, or {_JSON_OFFSETS}"),
        READ,
        "Where the read begins. A stream with a checkpoint continues from the checkpoint. A stream reads a partition that it finds later from its beginning.",
        "earliest (batch), latest (stream)",
    ),
    "startingOffsetsByTimestamp": Option(
        "", TIMES, READ, "Each partition begins at the first record of this time or later."
    ),
    "startingTimestamp": Option(
        "", TIME, READ, "Every partition begins at the first record of this time or later."
    ),
    "startingOffsetsByTimestampStrategy": Option(
        "error",
        _word("error", "latest"),
        READ,
        "If a partition has no such record, the query fails, or the partition begins at its end.",
    ),
    "endingOffsets": Option(
        "latest",
        SettingType(_ending, f"latest, or {_JSON_OFFSETS}"),
        BATCH,
        "Where the read ends, exclusive.",
    ),
    "endingOffsetsByTimestamp": Option(
        "",
        TIMES,
        BATCH,
        "Each partition ends before the first record of this time or later. Without such a record it ends at its end.",
    ),
    "endingTimestamp": Option(
        "", TIME, BATCH, "Every partition ends before the first record of this time or later."
    ),
    # -- whole transactions ------------------------------------------------------------------------------------
    "cut": Option(
        "false",
        boolean(),
        READ,
        "Whether a batch, and each micro-batch, holds only whole transactions of commit-ordered topics of one transaction group.",
    ),
    "startingCut": Option(
        "", CUT, READ, "With `cut`: the read begins after the transaction with this commit sequence."
    ),
    "endingCut": Option(
        "", CUT, BATCH, "With `cut`: the read ends after the transaction with this commit sequence."
    ),
    "includeCommits": Option(
        "false",
        boolean(),
        READ,
        "Whether rows of commit-ordered topics have the columns `commitSequence`, `commitTimestamp` and `transactionGroup`.",
    ),
    # -- how records are read ----------------------------------------------------------------------------------
    "isolation": Option(
        "read_committed",
        ISOLATION,
        READ,
        "Whether the read leaves out records of open and aborted transactions.",
    ),
    "kafka.isolation.level": Option("read_committed", ISOLATION, READ, "The same as `isolation`."),
    "includeHeaders": Option(
        "false",
        boolean(),
        ANY,
        "Whether the rows of a read have the column `headers`. A sink writes the column whenever the rows have it.",
    ),
    "failOnDataLoss": Option(
        "true",
        boolean(),
        ANY,
        "Whether the query fails if records that it has to read, or micro-batches that it has written, are gone. If not, a warning names what is missing.",
    ),
    "scan": Option(
        "auto",
        _word("auto", "fetch", "files"),
        READ,
        "`fetch` reads from the brokers, `files` the segment files. `auto` reads the files if the process can see them.",
    ),
    "checkCrc": Option("true", boolean(), READ, "Whether the read checks the CRC of each record batch."),
    "targetBytesPerTask": Option(
        "",
        SIZE,
        READ,
        "How many bytes a task reads.",
        "up to 128m; less if cores would be idle otherwise",
    ),
    "parallelism": Option(
        "",
        COUNT,
        READ,
        "How many tasks the cluster can run at a time. Tasks become smaller so that there are as many.",
        "see [Tasks and micro-batches](#tasks-and-micro-batches)",
    ),
    "minPartitions": Option(
        "", COUNT, READ, "The least number of tasks. There are fewer if there are fewer records."
    ),
    "maxRecordsPerPartition": Option("", COUNT, READ, "The greatest number of offsets that one task reads."),
    # -- the size of micro-batches -----------------------------------------------------------------------------
    "maxOffsetsPerTrigger": Option(
        "",
        COUNT,
        STREAM,
        "The greatest number of records in a micro-batch; of offsets if records are fetched.",
    ),
    "maxBytesPerTrigger": Option(
        "",
        SIZE,
        STREAM,
        "The greatest number of stored bytes in a micro-batch. A micro-batch has at least one record batch.",
    ),
    "minOffsetsPerTrigger": Option(
        "",
        COUNT,
        STREAM,
        "A micro-batch waits until this number of new offsets is there, and at most for `maxTriggerDelay`.",
    ),
    "maxTriggerDelay": Option(
        "15m",
        DURATION,
        STREAM,
        "The longest time that a micro-batch waits for `minOffsetsPerTrigger`.",
    ),
    # -- the sink ----------------------------------------------------------------------------------------------
    "topic": Option(
        "",
        TEXT,
        WRITE,
        "The topic of every row. The column `topic` has no effect then.",
        "the column `topic`",
    ),
    "guarantee": Option(
        "exactly-once",
        _word("exactly-once", "at-least-once"),
        WRITE,
        "`exactly-once` needs a stablelog broker. `at-least-once` works with any broker.",
    ),
    "txnAppId": Option(
        "",
        TEXT,
        WRITE,
        "The name of the job. The broker remembers the last `txnVersion` of each name and `topic`.",
        "a name for the query, or for this write only",
    ),
    "txnVersion": Option(
        "",
        SettingType(_number(0), "0 and more"),
        WRITE,
        "The number of this write. The sink skips a number that is already committed under this `txnAppId` for this `topic`, and logs a warning.",
        "the micro-batch",
    ),
    "transactionGroup": Option(
        "",
        TEXT,
        WRITE,
        "The transaction group that gives the write its commit sequence.",
        "the default group",
    ),
    "transactionTimeout": Option(
        "10m", DURATION, WRITE, "How long a task may take before the broker aborts its transaction."
    ),
    "commitGroup": Option(
        "",
        TEXT,
        WRITE,
        "The consumer group in which the sink commits the offsets of the source, atomically with the rows.",
    ),
    "sourceOffsets": Option(
        "",
        SettingType(lambda text: parse_numbers(text, EARLIEST), '`{"topic": {"0": 23}}`'),
        WRITE,
        "The offsets for `commitGroup` in batch writes and in `foreachBatch`, where the sink cannot find them.",
        "from the checkpoint",
    ),
    "compression": Option("none", CODEC, WRITE, "How the sink compresses record batches."),
    "kafka.compression.type": Option("none", CODEC, WRITE, "The same as `compression`."),
    "batchBytes": Option(
        "1000000",
        SettingType(_number(1, BATCH_SIZE_MAX, _SIZES), SIZE.valid),
        WRITE,
        "The greatest size of a record batch. A larger row is a batch of its own.",
    ),
    # -- the connection ----------------------------------------------------------------------------------------
    "kafka.client.id": Option("stablelog-spark", TEXT, ANY, "The client id that brokers see."),
    "kafka.request.timeout.ms": Option(
        "30000", COUNT, ANY, "How long the client retries if a broker does not respond."
    ),
}
SAME = {
    "bootstrap": "kafka.bootstrap.servers",
    "isolation": "kafka.isolation.level",
    "compression": "kafka.compression.type",
}
# Options of the object store, such as `store.region`: this prefix, and an option of the library obstore.
STORE_PREFIX = "store."
ALLOW_HTTP = "allow_http"  # The option of the store that allows requests without TLS.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
