"""Registration of the data source in Spark: Spark imports each top-level module `pyspark_...` and uses its
`DefaultSource`.

Spark imports this module in every process that it starts. If one such module raises an error, Spark finds the data
sources of none of them. So this module catches all errors.
"""

try:
    from stablelog.spark.data_source import StablelogDataSource as DefaultSource
except Exception:  # noqa: BLE001, S110 - PySpark or a library is missing, too old or broken: no data source
    pass
else:
    __all__ = ["DefaultSource"]
