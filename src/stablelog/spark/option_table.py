"""The options that `format("stablelog")` takes: one row for each.

Names are those of Spark's Kafka connector where the meaning is the same, so that a job moves over by changing the
format; `txnAppId` and `txnVersion` are Delta's.
"""

from dataclasses import dataclass

_TEXT, _COUNT, _BOOLEAN, _MILLIS = "text", "1 and more", "true, false", "milliseconds since 1970"
BATCH, STREAM, WRITE = "batch", "stream", "write"
READ = f"{BATCH}, {STREAM}"
ANY = f"{READ}, {WRITE}"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: a row of the table in docs/spark.md.

    Attributes:
        default: the value if it is not given, as text for people; empty if there is none.
        valid: the valid values, for people.
        where: the reads and writes that accept it.
        meaning: what it does.
    """

    default: str
    valid: str
    where: str
    meaning: str


_SIZE = "bytes; with k, m or g"
_SEQUENCE = "a commit sequence; 0 for the beginning"
_JSON_OFFSETS = '`{"topic": {"0": 23}}`; -2 earliest, -1 latest'
_JSON_TIMES = '`{"topic": {"0": 1700000000000}}`'
OPTIONS: dict[str, Option] = {
    # -- where and what ----------------------------------------------------------------------------------------
    "kafka.bootstrap.servers": Option("", "host:port, ...", ANY, "The addresses of the brokers."),
    "bootstrap": Option("", "host:port, ...", ANY, "The same as `kafka.bootstrap.servers`."),
    "path": Option(
        "",
        "a directory",
        READ,
        "The data directory to read without a broker; `load(path)` gives it, too. With brokers: where their data directory is mounted.",
    ),
    "subscribe": Option("", "topic, ...", READ, "The topics to read."),
    "subscribePattern": Option(
        "", "a regular expression", READ, "The read takes every topic whose whole name matches."
    ),
    "assign": Option("", '`{"topic": [0, 1]}`', READ, "The read takes these partitions."),
    "partitions": Option(
        "all", "0,3,5-7", READ, "The read takes only these partition numbers of every topic."
    ),
    # -- from where to where -----------------------------------------------------------------------------------
    "startingOffsets": Option(
        "earliest (batch), latest (stream)",
        f"earliest, latest, or {_JSON_OFFSETS}",
        READ,
        "Where the read begins. A stream with a checkpoint continues from the checkpoint. A stream reads a partition that it finds later from its beginning.",
    ),
    "startingOffsetsByTimestamp": Option(
        "", _JSON_TIMES, READ, "Each partition begins at the first record of this time or later."
    ),
    "startingTimestamp": Option(
        "", _MILLIS, READ, "Every partition begins at the first record of this time or later."
    ),
    "startingOffsetsByTimestampStrategy": Option(
        "error",
        "error, latest",
        READ,
        "What happens if a partition has no record of that time or later: the query fails, or the partition begins at its end.",
    ),
    "endingOffsets": Option(
        "latest", f"latest, or {_JSON_OFFSETS}", BATCH, "Where the read ends, exclusive."
    ),
    "endingOffsetsByTimestamp": Option(
        "",
        _JSON_TIMES,
        BATCH,
        "Each partition ends before the first record of this time or later. Without such a record it ends at its end.",
    ),
    "endingTimestamp": Option(
        "", _MILLIS, BATCH, "Every partition ends before the first record of this time or later."
    ),
    # -- whole transactions ------------------------------------------------------------------------------------
    "cut": Option(
        "false",
        _BOOLEAN,
        READ,
        "Whether a batch, and each micro-batch, holds only whole transactions. The topics must be commit-ordered and of one transaction group.",
    ),
    "startingCut": Option(
        "", _SEQUENCE, READ, "With `cut`: the read begins after the transaction with this commit sequence."
    ),
    "endingCut": Option(
        "", _SEQUENCE, BATCH, "With `cut`: the read ends after the transaction with this commit sequence."
    ),
    "includeCommits": Option(
        "false",
        _BOOLEAN,
        READ,
        "Whether the rows have the columns `commitSequence`, `commitTimestamp` and `transactionGroup`. The topics must be commit-ordered.",
    ),
    # -- how ---------------------------------------------------------------------------------------------------
    "isolation": Option(
        "read_committed",
        "read_committed, read_uncommitted",
        READ,
        "Whether the read leaves out records of open and aborted transactions.",
    ),
    "kafka.isolation.level": Option(
        "read_committed", "read_committed, read_uncommitted", READ, "The same as `isolation`."
    ),
    "includeHeaders": Option(
        "false",
        _BOOLEAN,
        ANY,
        "Whether the rows of a read have the column `headers`. A sink writes the column whenever the rows have it.",
    ),
    "failOnDataLoss": Option(
        "true",
        _BOOLEAN,
        READ,
        "Whether the query fails if records that it has to read are gone. If not, a warning names what is missing.",
    ),
    "scan": Option(
        "auto",
        "auto, fetch, files",
        READ,
        "`fetch` reads from the brokers, `files` reads the segment files. `auto` reads the files if the process can see them.",
    ),
    "checkCrc": Option("true", _BOOLEAN, READ, "Whether the read checks the CRC of each record batch."),
    "targetBytesPerTask": Option(
        "up to 128m",
        _SIZE,
        READ,
        "How many bytes a task reads. By default tasks read less than 128m if cores would be idle otherwise.",
    ),
    "filterPushdown": Option(
        "false",
        _BOOLEAN,
        BATCH,
        "Whether filters on topic, partition, offset and time reduce what is read. Switch it on only if every query loads a frame of its own.",
    ),
    "minPartitions": Option(
        "", _COUNT, READ, "The least number of tasks. There are fewer if there are fewer records."
    ),
    "maxRecordsPerPartition": Option("", _COUNT, READ, "The greatest number of offsets that one task reads."),
    # -- a stream's pace ---------------------------------------------------------------------------------------
    "maxOffsetsPerTrigger": Option(
        "",
        _COUNT,
        STREAM,
        "The greatest number of records in a micro-batch. Where the process does not see the files, offsets are counted instead.",
    ),
    "maxBytesPerTrigger": Option(
        "",
        _SIZE,
        STREAM,
        "The greatest number of stored bytes in a micro-batch. A micro-batch has at least one record batch.",
    ),
    "minOffsetsPerTrigger": Option(
        "",
        _COUNT,
        STREAM,
        "A micro-batch waits until this number of new offsets is there, and at most for `maxTriggerDelay`.",
    ),
    "maxTriggerDelay": Option(
        "15m",
        "a duration: 500ms, 10s, 15m, 1h",
        STREAM,
        "The longest time that a micro-batch waits for `minOffsetsPerTrigger`.",
    ),
    # -- the sink ----------------------------------------------------------------------------------------------
    "topic": Option(
        "the column `topic`", _TEXT, WRITE, "The topic of every row. The column `topic` has no effect then."
    ),
    "guarantee": Option(
        "exactly-once",
        "exactly-once, at-least-once",
        WRITE,
        "`exactly-once` needs a stablelog broker. `at-least-once` works with any broker.",
    ),
    "txnAppId": Option(
        "the query, or one of this write",
        _TEXT,
        WRITE,
        "The name of the job. The broker remembers the last `txnVersion` of each name.",
    ),
    "txnVersion": Option(
        "the micro-batch",
        "0 and more",
        WRITE,
        "The number of this write. The sink skips a number that is already committed under this `txnAppId`.",
    ),
    "transactionGroup": Option(
        "the default group", _TEXT, WRITE, "The transaction group that gives the write its commit sequence."
    ),
    "transactionTimeout": Option(
        "10m", "a duration", WRITE, "How long a task may take before the broker aborts its transaction."
    ),
    "commitGroup": Option(
        "",
        _TEXT,
        WRITE,
        "The consumer group in which the sink commits the offsets of the source, atomically with the rows.",
    ),
    "sourceOffsets": Option(
        "from the checkpoint",
        '`{"topic": {"0": 23}}`',
        WRITE,
        "The offsets for `commitGroup` in batch writes and in `foreachBatch`, where the sink cannot find them.",
    ),
    "compression": Option(
        "none", "none, gzip, snappy, lz4, zstd", WRITE, "How the sink compresses record batches."
    ),
    "kafka.compression.type": Option(
        "none", "none, gzip, snappy, lz4, zstd", WRITE, "The same as `compression`."
    ),
    "batchBytes": Option(
        "1m", _SIZE, WRITE, "The greatest size of a record batch. A larger row is a batch of its own."
    ),
    # -- the connection ----------------------------------------------------------------------------------------
    "kafka.client.id": Option("stablelog-spark", _TEXT, ANY, "The client id that brokers see."),
    "kafka.request.timeout.ms": Option(
        "30000", _COUNT, ANY, "How long the client retries if a broker does not respond."
    ),
}
# Options of Spark's Kafka connector that would not change what is read or written: they are accepted and have no
# effect.
WITHOUT_EFFECT: dict[str, str] = {
    "groupIdPrefix": "the source uses no consumer group",
    "kafka.group.id": "the source uses no consumer group",
    "kafkaConsumer.pollTimeoutMs": "`kafka.request.timeout.ms` limits the wait",
    "fetchOffset.numRetries": "`kafka.request.timeout.ms` limits the retries",
    "fetchOffset.retryIntervalMs": "`kafka.request.timeout.ms` limits the retries",
    "kafka.fetch.max.bytes": "the source chooses the size of each fetch",
    "kafka.max.partition.fetch.bytes": "the source chooses the size of each fetch",
    "kafka.max.poll.records": "the source reads batches and does not poll records",
    "kafka.acks": "every acknowledged record is durable",
    "kafka.linger.ms": "the sink fills record batches from Spark's batches",
    "kafka.batch.size": "`batchBytes` sets the size of a record batch",
}
SAME = {
    "bootstrap": "kafka.bootstrap.servers",
    "isolation": "kafka.isolation.level",
    "compression": "kafka.compression.type",
}
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})
