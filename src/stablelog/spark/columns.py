"""Messages as columns: the schema of Spark's Kafka connector, and the Arrow types that Spark expects of it."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from stablelog.errors import InvalidConfig
from stablelog.spark.options import ReadOptions

COLUMNS = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT"
HEADERS = "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
CREATE_TIME, LOG_APPEND_TIME = 0, 1  # Spark's numbers; confluent-kafka counts from one

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", HEADER_TYPE)),
}
NULLABLE = frozenset({"key", "value", "headers"})
NAMES = tuple(TYPES)


def schema(options: ReadOptions) -> str:
    """The columns, as Spark's DDL."""
    return f"{COLUMNS}, {HEADERS}" if options.include_headers else COLUMNS


def arrow_schema(names: Sequence[str], nullable: frozenset[str] = NULLABLE) -> pa.Schema:
    """The Arrow schema of these columns, in this order.

    Args:
        names: which columns.
        nullable: the columns that the schema handed to Spark allows to be null. Spark compares the schemas exactly.

    Raises:
        InvalidConfig: there is no such column.
    """
    unknown = [name for name in names if name not in TYPES]
    if unknown:
        raise InvalidConfig(f"there is no column {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return pa.schema([pa.field(name, TYPES[name], nullable=name in nullable) for name in names])


def checked_schema(schema: pa.Schema) -> pa.Schema:
    """The schema, if its columns are those of a topic.

    Raises:
        InvalidConfig: a column that there is none of, of another type, or declared never null though it may be.
    """
    arrow_schema(schema.names)
    for field in schema:
        if not field.type.equals(TYPES[field.name]):
            raise InvalidConfig(f"the column {field.name} is {TYPES[field.name]}, not {field.type}")
        if not field.nullable and field.name in NULLABLE:
            raise InvalidConfig(f"the column {field.name} may be null: the schema must not say NOT NULL")
    return schema


def record_batch(messages: Sequence[Any], names: Sequence[str]) -> Any:
    """An Arrow batch of these columns, in this order, from messages of confluent-kafka."""
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
            TYPES["headers"],
        ),
    }
    return pa.RecordBatch.from_arrays([makers[name]() for name in names], names=list(names))
