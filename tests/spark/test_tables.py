"""SQL: a view has its options, and a table is refused in one line, because Spark loses its options."""

import pytest
from pyspark.errors import PySparkException

import stablelog
from stablelog.testing.topics import create_topic

REFUSED = "a table .CREATE TABLE ... USING stablelog. is not possible, .*: use CREATE TEMPORARY VIEW"


@pytest.fixture(scope="module")
def options(stablelog_broker):
    create_topic(stablelog_broker.bootstrap, "of_a_table", 1, {})
    with stablelog.connect(stablelog_broker.bootstrap).transaction() as txn:
        for number in range(3):
            txn.write("of_a_table", str(number), key="k")
    return f"'kafka.bootstrap.servers' '{stablelog_broker.bootstrap}', 'subscribe' 'of_a_table'"


@pytest.mark.parametrize("more", ["", "COMMENT 'x'", "TBLPROPERTIES ('a' = 'b')"])
def test_a_table_is_refused_when_it_is_created(spark, options, more):
    with pytest.raises(PySparkException, match=REFUSED):
        spark.sql(f"CREATE TABLE refused USING stablelog OPTIONS ({options}) {more}")
    assert not spark.catalog.tableExists("refused")


@pytest.mark.extended
def test_a_table_with_columns_is_refused_when_it_is_used(spark, options):
    # Spark creates it without a question to the source.
    spark.sql(f"CREATE TABLE used (key BINARY, value BINARY) USING stablelog OPTIONS ({options})")
    try:
        with pytest.raises(PySparkException, match=REFUSED):
            spark.sql("SELECT * FROM used").collect()
        with pytest.raises(PySparkException, match=REFUSED):
            spark.sql("INSERT INTO used SELECT binary('a'), binary('b')")
    finally:
        spark.sql("DROP TABLE used")


@pytest.mark.extended
def test_a_view_keeps_the_plan_of_its_first_query_until_it_is_replaced(spark, options, stablelog_broker):
    def count():
        return spark.sql("SELECT count(*) FROM seen").collect()[0][0]

    spark.sql(f"CREATE TEMPORARY VIEW seen USING stablelog OPTIONS ({options})")
    assert count() == 3
    with stablelog.connect(stablelog_broker.bootstrap).transaction() as txn:
        txn.write("of_a_table", "later", key="k")
    assert count() == 3
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING stablelog OPTIONS ({options})")
    assert count() == 4
    spark.catalog.dropTempView("seen")
