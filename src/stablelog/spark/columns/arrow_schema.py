"""The Arrow columns of a record: names, types, and the check of a requested schema against them."""

from collections.abc import Sequence

import pyarrow as pa

from stablelog.errors import InvalidConfig

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
