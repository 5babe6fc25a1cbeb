"""What Spark looks for: a top-level module `pyspark_...` with a `DefaultSource`.

Spark imports this in every process it starts, and one such module that fails to import hides the data sources of
all the others. So nothing is imported here that could fail.
"""

try:
    from stablelog.spark.data_source import StablelogDataSource as DefaultSource
except ImportError:  # no PySpark, or none that is new enough: there is nothing to offer
    pass
else:
    __all__ = ["DefaultSource"]
