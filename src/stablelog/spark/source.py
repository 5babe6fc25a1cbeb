"""`spark.read.format("stablelog")`: a topic as a DataFrame, committed records only unless told otherwise.

spark.read.format("stablelog").option("kafka.bootstrap.servers", address).option("subscribe", "orders").load()
"""

from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from stablelog.errors import InvalidConfig
from stablelog.spark import columns, fetch
from stablelog.spark.options import ReadOptions, read_options


class RangePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: fetch.Range) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class StablelogReader(DataSourceReader):
    """Reads whole topics, as they are when the read is planned."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self._options = options
        self._names = names

    def partitions(self) -> list[InputPartition]:
        """A task for each partition that holds something."""
        return [RangePartition(wanted) for wanted in fetch.plan(self._options)]

    def read(self, partition: Any) -> Iterator[Any]:
        """The records of a range, in Arrow batches. Spark calls it with None where there is no range."""
        if partition is None:
            return
        for messages in fetch.read(self._options, partition.wanted):
            if messages:
                yield columns.record_batch(messages, self._names)


class StablelogDataSource(DataSource):
    """The log as a data source of Spark."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return "stablelog"

    def schema(self) -> str:
        """The columns of Spark's Kafka connector."""
        return columns.schema(read_options(self.options))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader of these columns.

        Raises:
            InvalidConfig: a column is asked for that there is none of.
        """
        options = read_options(self.options)
        known = [
            part.split(" ")[0] for part in (columns.COLUMNS + ", " + columns.HEADERS).split(", ") if part
        ]
        names = [field.name for field in schema.fields]
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidConfig(f"there is no column {', '.join(unknown)}; there are {', '.join(known)}")
        return StablelogReader(options, names)

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """The sink of a batch write; see `stablelog.spark.sink`."""
        from stablelog.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 (Spark's name)
        """The sink of a stream; see `stablelog.spark.sink`. Output mode complete appends, as with Spark's Kafka sink."""
        from stablelog.spark.sink import stream_writer

        return stream_writer(self.options, schema)
