"""The columns of a read: those of Spark's Kafka connector, or those of the schema that the user gives."""

from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from stablelog.errors import UsageError
from stablelog.spark.options import ReadOptions, check_commit_order

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
OF_COMMITS = ("commitSequence", "commitTimestamp", "transactionGroup")
SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("timestamp", TimestampType(), nullable=False),
        StructField("timestampType", IntegerType(), nullable=False),
        StructField("headers", ArrayType(_HEADER)),
        StructField("commitSequence", LongType()),
        StructField("commitTimestamp", TimestampType()),
        StructField("transactionGroup", StringType()),
    ]
)


def default_schema(*, include_headers: bool, include_commits: bool = False) -> StructType:
    """Return the schema of a read for which the user gives no schema: the columns of Spark's Kafka connector.

    Args:
        include_headers: whether the read also has the column headers.
        include_commits: whether the read also has the columns of commits, such as commitSequence.
    """
    left_out = set() if include_headers else {"headers"}
    if not include_commits:
        left_out |= set(OF_COMMITS)
    return StructType([field for field in SCHEMA.fields if field.name not in left_out])


class Columns:
    """The columns of a read, which are some of the columns of SCHEMA.

    Raises:
        UsageError: the schema has an unknown column, or a column with another type.
    """

    def __init__(self, schema: StructType) -> None:
        known = {field.name: field.dataType for field in SCHEMA.fields}
        for field in schema.fields:
            if field.name not in known:
                raise UsageError(f"there is no column {field.name!r}; the columns are {', '.join(known)}")
            if field.dataType != known[field.name]:
                raise UsageError(
                    f"column {field.name} is {known[field.name].simpleString().upper()}, not "
                    f"{field.dataType.simpleString().upper()}: cast it after the read"
                )
        self.names = tuple(field.name for field in schema.fields)
        self.of_commits = any(name in OF_COMMITS for name in self.names)
        self._schema = schema

    def check(self, options: ReadOptions) -> None:
        """Check that a read with these options can return the columns.

        Raises:
            UsageError: the schema has columns of commits, such as commitSequence, but the read does not return the
                transactions in the order of their commits.
        """
        is_directory = options.bootstrap is None and options.store_url is None
        for name in self.names:
            if name in OF_COMMITS:
                check_commit_order(
                    f"column {name}", options.isolation, options.scan, is_directory=is_directory
                )

    def arrow_schema(self) -> Any:
        """The Arrow schema with which Spark compares each batch, with the nullability of each column."""
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(self._schema, timezone="UTC")


def shaped(batch: Any, schema: Any) -> Any:
    """Return an Arrow batch with another schema, which has the same columns. It may differ in that a column is declared
    to have no nulls.

    Raises:
        UsageError: a column has a null that the schema does not allow.
    """
    for field, column in zip(schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise UsageError(
                f"column {field.name} is NOT NULL in the schema, but some records have no value for it"
            )
    return type(batch).from_arrays(batch.columns, schema=schema)
