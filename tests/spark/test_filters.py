"""What is taken over from a query's filters is exact, or left for Spark to look at again."""

import datetime as dt
import operator

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource as spark

from stablelog.spark.source.filters import Narrowing

COMPARISONS = {
    spark.EqualTo: operator.eq,
    spark.GreaterThan: operator.gt,
    spark.GreaterThanOrEqual: operator.ge,
    spark.LessThan: operator.lt,
    spark.LessThanOrEqual: operator.le,
}
comparisons = st.tuples(
    st.sampled_from(list(COMPARISONS)), st.sampled_from(["partition", "offset"]), st.integers(-2, 12)
)


def test_bounds_of_offsets_add_up():
    narrowing = Narrowing()
    assert narrowing.take(spark.GreaterThanOrEqual(("offset",), 5))
    assert narrowing.take(spark.LessThan(("offset",), 9))
    assert narrowing.cut(0, 100) == (5, 9)
    assert narrowing.cut(7, 8) == (7, 8)


def test_partitions_and_topics():
    narrowing = Narrowing()
    assert narrowing.take(spark.In(("partition",), (1, 2)))
    assert narrowing.take(spark.EqualTo(("topic",), "a"))
    assert narrowing.keeps(("a", 1))
    assert not narrowing.keeps(("a", 3))
    assert not narrowing.keeps(("b", 1))


def test_a_time_bounds_what_is_read_and_spark_looks_again():
    narrowing = Narrowing()
    at = dt.datetime(2024, 1, 1, microsecond=1500, tzinfo=dt.UTC)
    assert not narrowing.take(spark.GreaterThan(("timestamp",), at))
    assert narrowing.timestamp_min_ms == 1704067200001
    assert not narrowing.take(spark.LessThan(("timestamp",), at))
    assert narrowing.timestamp_min_ms == 1704067200001


def test_a_time_before_1970_narrows_nothing_for_records_without_a_time_have_one():
    narrowing = Narrowing()
    assert not narrowing.take(spark.GreaterThan(("timestamp",), dt.datetime(1969, 12, 31, tzinfo=dt.UTC)))
    assert narrowing.timestamp_min_ms is None


def test_what_is_never_null_need_not_be_looked_at():
    assert Narrowing().take(spark.IsNotNull(("offset",)))
    assert not Narrowing().take(spark.IsNotNull(("key",)))


def test_what_is_not_understood_is_left_to_spark():
    narrowing = Narrowing()
    for condition in (
        spark.EqualTo(("key",), b"x"),
        spark.Not(spark.EqualTo(("partition",), 1)),
        spark.IsNull(("offset",)),
        spark.EqualNullSafe(("partition",), None),
        spark.In(("partition",), (1, None)),
        spark.EqualTo(("partition",), True),
        spark.StringStartsWith(("topic",), "a"),
        spark.EqualTo(("headers", "key"), "a"),
    ):
        assert not narrowing.take(condition)
    assert narrowing == Narrowing()


@given(st.lists(comparisons, max_size=6))
def test_narrowing_keeps_what_the_filters_keep(conditions):
    narrowing = Narrowing()
    left = [one for one in conditions if not narrowing.take(one[0]((one[1],), one[2]))]
    for partition in range(4):
        start, end = narrowing.cut(0, 10)
        read = set(range(start, end)) if narrowing.keeps(("x", partition)) else set()
        rows = {
            offset
            for offset in range(10)
            if all(
                COMPARISONS[kind]({"partition": partition, "offset": offset}[column], value)
                for kind, column, value in conditions
            )
        }
        passed = {
            offset
            for offset in read
            if all(
                COMPARISONS[kind]({"partition": partition, "offset": offset}[column], value)
                for kind, column, value in left
            )
        }
        assert passed == rows
