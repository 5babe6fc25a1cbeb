"""What Spark looks for: a top-level module `pyspark_...` with a `DefaultSource`.

Spark imports this in every process it starts, and one such module that fails to import hides the data sources of
all the others. So whatever fails in here stays in here.
"""

try:
    from stablelog.spark.data_source import StablelogDataSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - no PySpark, none that is new enough, or a library that is broken: nothing to offer
    pass
else:
    __all__ = ["DefaultSource"]
