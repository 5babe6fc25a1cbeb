"""`format("stablelog")`: the class that Spark loads, which makes the source and the sink.

spark.read.format("stablelog").option("kafka.bootstrap.servers", address).option("subscribe", "orders").load()
spark.readStream.format("stablelog").option("kafka.bootstrap.servers", address).option("subscribe", "orders").load()

Spark imports this module in every Python process that it starts, and most of these use only the name or the schema. So
this module imports little, and each method imports the modules that it uses.
"""

from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from stablelog.spark.messages import one_line


class StablelogDataSource(DataSource):
    """stablelog as a data source of Spark.

    Attributes:
        parallelism: the default of the option of this name: how many tasks the session's cluster can run at a time; None
            if it is unknown. `stablelog.spark.register` sets it.
    """

    parallelism: int | None = None

    @one_line
    def __init__(self, options: dict[str, str]) -> None:
        from stablelog.spark.kafka_settings import refuse_shown_key
        from stablelog.spark.options import warn_without_effect
        from stablelog.spark.pyspark_version import check_pyspark

        check_pyspark()
        refuse_shown_key(
            options
        )  # here, because Spark can show a plan before it asks for the columns or a reader
        super().__init__(options)
        # Spark makes one object for a read. It passes this object to the processes that plan and run the read.
        warn_without_effect(options)

    @classmethod
    def name(cls) -> str:
        """The data source's name in `format(...)`."""
        return "stablelog"

    @one_line
    def schema(self) -> Any:
        """The columns of a read for which the user gives no schema: those of Spark's Kafka connector."""
        from stablelog.spark.options import read_options
        from stablelog.spark.schema import default_schema

        options = read_options(self.options)
        return default_schema(
            include_headers=options.include_headers, include_commits=options.include_commits
        )

    @one_line
    def reader(self, schema: Any) -> DataSourceReader:
        """Return the reader of a batch read. `schema` has the columns that the user wants.

        Raises:
            UsageError: an option or a column is unknown, contradictory or out of range.
        """
        from stablelog.spark.option_table import BATCH
        from stablelog.spark.source.reader import StablelogReader
        from stablelog.spark.worker import tune_worker

        tune_worker()
        return StablelogReader(*self._checked_read(BATCH, schema))

    @one_line
    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of a stream. `schema` has the columns that the user wants. Raise UsageError if an option or
        a column is not valid.
        """
        from stablelog.spark.option_table import STREAM
        from stablelog.spark.source.cut_reader import CutStreamReader
        from stablelog.spark.source.reader import StablelogStreamReader

        options, columns = self._checked_read(STREAM, schema)
        return (CutStreamReader if options.cut else StablelogStreamReader)(options, columns)

    def _checked_read(self, where: str, schema: Any) -> tuple[Any, Any]:
        """Check the options and the columns of a read. `where` says whether it is a batch read or a stream. Return a
        pair: the options as `ReadOptions`, and the columns as `Columns`.
        """
        from stablelog.spark.options import read_options
        from stablelog.spark.schema import Columns

        options = read_options(self.options, where)
        if options.parallelism is None:
            options = replace(options, parallelism=self.parallelism)
        columns = Columns(schema)
        columns.check(options)
        return options, columns

    @one_line
    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return the sink of a batch write; see `stablelog.spark.sink.writer`. `overwrite` is True if the mode of the
        write is `overwrite`.
        """
        from stablelog.spark.sink.writer import batch_writer
        from stablelog.spark.worker import tune_worker

        tune_worker()
        return batch_writer(self.options, schema, overwrite=overwrite)

    @one_line
    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """Return the sink of a stream; see `stablelog.spark.sink.writer`. `overwrite` is True if the output mode is
        `complete`. It has no effect: the sink appends the rows, as Spark's Kafka sink does.
        """
        from stablelog.spark.sink.writer import stream_writer
        from stablelog.spark.worker import tune_worker

        tune_worker()  # tune the worker here, because Spark calls this method in a worker process for each micro-batch
        return stream_writer(self.options, schema)
