"""`format("stablelog")`: what Spark finds, and from there the ways to the source and the sink.

spark.read.format("stablelog").option("kafka.bootstrap.servers", address).option("subscribe", "orders").load()
spark.readStream.format("stablelog").option("kafka.bootstrap.servers", address).option("subscribe", "orders").load()

Spark imports this in every Python process that it starts, four kinds of them for a query, and most of these ask for a
name or a schema only. So nothing else is imported here; each way imports what it needs.
"""

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader


class StablelogDataSource(DataSource):
    """The log as a data source of Spark."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "stablelog"

    def schema(self) -> Any:
        """The columns of Spark's Kafka connector."""
        from stablelog.spark.options import read_options
        from stablelog.spark.schema import default_schema

        options = read_options(self.options)
        return default_schema(
            include_headers=options.include_headers, include_commits=options.include_commits
        )

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of these columns.

        Raises:
            InvalidConfig: an option or a column is unknown, contradictory or out of range.
        """
        from stablelog.spark.option_table import BATCH
        from stablelog.spark.source.reader import StablelogReader
        from stablelog.spark.worker import tune_worker

        tune_worker()
        return StablelogReader(*self._asked(BATCH, schema))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """A reader of these columns, of a stream. It raises the errors of `reader`."""
        from stablelog.spark.option_table import STREAM
        from stablelog.spark.source.cut_reader import CutStreamReader
        from stablelog.spark.source.reader import StablelogStreamReader

        options, columns = self._asked(STREAM, schema)
        return (CutStreamReader if options.cut else StablelogStreamReader)(options, columns)

    def _asked(self, where: str, schema: Any) -> tuple[Any, Any]:
        """The checked options and columns of a read."""
        from stablelog.spark.options import read_options
        from stablelog.spark.schema import Columns

        options, columns = read_options(self.options, where), Columns(schema)
        columns.check(options)
        return options, columns

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """The sink of a batch write; see `stablelog.spark.sink.writer`."""
        from stablelog.spark.sink.writer import batch_writer
        from stablelog.spark.worker import tune_worker

        tune_worker()
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """The sink of a stream; see `stablelog.spark.sink.writer`. Output mode complete appends, as with Spark's Kafka sink."""
        from stablelog.spark.sink.writer import stream_writer
        from stablelog.spark.worker import tune_worker

        tune_worker()  # Spark calls this method in a worker process for each micro-batch.
        return stream_writer(self.options, schema)
