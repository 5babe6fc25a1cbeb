"""The columns of a read: those of Spark's Kafka connector, or the ones that a user's schema names."""

from collections.abc import Mapping
from typing import Any

from stablelog.errors import InvalidConfig
from stablelog.spark.options import ReadOptions, check_commit_order

COLUMNS = {
    "key": "BINARY",
    "value": "BINARY",
    "topic": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    "timestamp": "TIMESTAMP NOT NULL",
    "timestampType": "INT NOT NULL",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "commitSequence": "BIGINT",
    "commitTimestamp": "TIMESTAMP",
    "transactionGroup": "STRING",
}
OF_COMMITS = ("commitSequence", "commitTimestamp", "transactionGroup")


def default_schema(*, include_headers: bool, include_commits: bool = False) -> Any:
    """All columns; `headers`, and those of commits, only if asked for."""
    left_out = set() if include_headers else {"headers"}
    if not include_commits:
        left_out |= set(OF_COMMITS)
    return _schema_of({name: text for name, text in COLUMNS.items() if name not in left_out})


class Columns:
    """The columns of a read, as Spark wants them: what the default schema has, or what the user's names of it.

    Raises:
        InvalidConfig: a column is asked for that there is none of, or as another type than it has.
    """

    def __init__(self, schema: Any) -> None:
        known = {field.name: field.dataType for field in _schema_of(COLUMNS).fields}
        for field in schema.fields:
            if field.name not in known:
                raise InvalidConfig(f"there is no column {field.name!r}; there are {', '.join(known)}")
            if field.dataType != known[field.name]:
                raise InvalidConfig(
                    f"column {field.name} is {known[field.name].simpleString().upper()}, not "
                    f"{field.dataType.simpleString().upper()}: cast it after the read"
                )
        self.names = tuple(field.name for field in schema.fields)
        self.of_commits = any(name in OF_COMMITS for name in self.names)
        self._schema = schema
        self._arrow: Any = None

    def check(self, options: ReadOptions) -> None:
        """See that a read with these options has the columns.

        Raises:
            InvalidConfig: it is not by commit order, which the columns of commits are of.
        """
        for name in self.names:
            if name in OF_COMMITS:
                check_commit_order(f"column {name}", options.isolation, options.bootstrap, options.scan)

    def shaped(self, batch: Any) -> Any:
        """A decoded batch with exactly the types and nullability that Spark was told.

        Raises:
            InvalidConfig: there is a null in a column that the user's schema says has none.
        """
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        if self._arrow is None:
            self._arrow = to_arrow_schema(self._schema, timezone="UTC")
        if batch.schema.equals(self._arrow):
            return batch
        for field, column in zip(self._arrow, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise InvalidConfig(
                    f"column {field.name} is NOT NULL in the schema, and there are records without one"
                )
        return pa.RecordBatch.from_arrays(
            [
                column if column.type.equals(field.type) else column.cast(field.type)
                for field, column in zip(self._arrow, batch.columns, strict=True)
            ],
            schema=self._arrow,
        )

    def __getstate__(self) -> Any:
        return self.names, self.of_commits, self._schema

    def __setstate__(self, state: Any) -> None:
        self.names, self.of_commits, self._schema = state
        self._arrow = None


def _schema_of(columns: Mapping[str, str]) -> Any:
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

    types = {
        "BINARY": BinaryType(),
        "STRING": StringType(),
        "INT": IntegerType(),
        "BIGINT": LongType(),
        "TIMESTAMP": TimestampType(),
        "ARRAY<STRUCT<key: STRING, value: BINARY>>": ArrayType(
            StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        ),
    }
    return StructType(
        [
            StructField(name, types[text.removesuffix(" NOT NULL")], not text.endswith(" NOT NULL"))
            for name, text in columns.items()
        ]
    )
