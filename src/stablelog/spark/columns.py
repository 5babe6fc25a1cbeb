"""Messages as columns: the schema of Spark's Kafka connector."""

from collections.abc import Sequence
from typing import Any

from stablelog.spark.options import ReadOptions

COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
CREATE_TIME, LOG_APPEND_TIME = 0, 1  # Spark's numbers; confluent-kafka counts from one


def schema(options: ReadOptions) -> str:
    """The columns, as Spark's DDL."""
    return f"{COLUMNS}, {HEADERS}" if options.include_headers else COLUMNS


def record_batch(messages: Sequence[Any], names: Sequence[str]) -> Any:
    """An Arrow batch of these columns, in this order."""
    import pyarrow as pa

    makers = {
        "key": lambda: pa.array([message.key() for message in messages], pa.binary()),
        "value": lambda: pa.array([message.value() for message in messages], pa.binary()),
        "topic": lambda: pa.array([message.topic() for message in messages], pa.string()),
        "partition": lambda: pa.array([message.partition() for message in messages], pa.int32()),
        "offset": lambda: pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": lambda: pa.array(
            [message.timestamp()[1] * 1000 for message in messages], pa.timestamp("us", tz="UTC")
        ),
        "timestampType": lambda: pa.array([message.timestamp()[0] - 1 for message in messages], pa.int32()),
        "headers": lambda: pa.array(
            [
                [{"key": name, "value": value} for name, value in headers]
                if (headers := message.headers()) is not None
                else None
                for message in messages
            ],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in names], names=list(names))
