"""The columns of a read are those of Spark's Kafka connector, and a user's schema may name some of them."""

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from stablelog.errors import UsageError
from stablelog.spark.columns.builder import TYPES
from stablelog.spark.options import read_options
from stablelog.spark.schema import OF_COMMITS, SCHEMA, Columns, default_schema, shaped


def schema_of(name, kind, nullable):
    return StructType([StructField(name, kind, nullable)])


def test_headers_and_columns_of_commits_are_there_if_they_are_asked_for():
    assert default_schema(include_headers=True, include_commits=True) == SCHEMA
    assert default_schema(include_headers=False).names == [
        name for name in SCHEMA.names if name not in ("headers", *OF_COMMITS)
    ]


def test_the_decoder_makes_the_types_that_spark_compares_with():
    wanted = Columns(default_schema(include_headers=True)).arrow_schema()
    assert [(field.name, field.type) for field in wanted] == list(TYPES.items())
    assert [field.name for field in wanted if field.nullable] == ["key", "value", "headers"]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (schema_of("offsets", LongType(), True), "no column 'offsets'; the columns are key"),
        (schema_of("offset", IntegerType(), True), "column offset is BIGINT, not INT: cast it"),
    ],
)
def test_a_column_that_there_is_none_of_is_refused(schema, message):
    with pytest.raises(UsageError, match=message):
        Columns(schema)


def test_columns_of_commits_need_commit_order():
    columns = Columns(schema_of("commitSequence", LongType(), True))
    with pytest.raises(UsageError, match="column commitSequence is possible only by fetching"):
        columns.check(read_options({"bootstrap": "h:1", "subscribe": "x", "scan": "files"}))


def test_a_batch_gets_the_nullability_that_spark_was_told():
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v"], pa.binary())})
    wanted = Columns(schema_of("value", BinaryType(), False)).arrow_schema()
    assert shaped(batch, wanted).schema.equals(wanted)
    batch = pa.RecordBatch.from_pydict({"value": pa.array([b"v", None], pa.binary())})
    with pytest.raises(UsageError, match="column value is NOT NULL in the schema"):
        shaped(batch, wanted)
