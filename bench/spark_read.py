"""How fast does Spark read a topic, beside Parquet of the same rows, and beside Spark's own Kafka connector?

Two cores, data in the page cache, segment files written by the broker from batches of 16 KB. Each ratio is the median
over runs made one after the other in one session, so that what else the machine does weighs on both.

    python -m bench --only spark-read
"""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import stablelog
from bench.columns import ALL, BATCH_SIZE
from bench.report import Section, Wanted
from bench.spark_session import (
    PARTITION_COUNT,
    Contender,
    Contest,
    arrow_rows,
    drained,
    make_topic,
    ready,
)
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer
from stablelog.spark.columns.encoder import Encoder

TRANSACTION_COUNT = 18  # with aborts two more, aborted: a tenth of all
NARROW = ("value", "partition", "offset")
NARROW_SCHEMA = "value BINARY, partition INT NOT NULL, offset BIGINT NOT NULL"
COUNTED_SCHEMA = "offset BIGINT NOT NULL"
SMALL_COUNT, LARGE_COUNT = 4_000_000, 800_000
ROUNDS_OF_ABORTS = 4  # for each run: what is looked for is less than what two runs differ by


def fill(bootstrap: str, topic: str, count: int, value_size: int, *, aborts: bool = False) -> None:
    """Write rows in transactions; with aborts, a tenth of all transactions are aborted ones more."""
    with BlockingCluster(bootstrap) as cluster:
        producer = BlockingProducer(cluster, f"bench-{topic}")
        share = count // TRANSACTION_COUNT
        for number in range(TRANSACTION_COUNT):
            _write(producer, topic, share, value_size, commit=True)
            if aborts and number % 9 == 0:
                _write(producer, topic, share, value_size, commit=False)
        producer.close()


def _write(producer: BlockingProducer, topic: str, count: int, value_size: int, *, commit: bool) -> None:
    producer.begin()
    encoder = Encoder(batch_bytes_max=BATCH_SIZE, lingers=True)
    for rows in arrow_rows(count, value_size):
        for one in encoder.encode(rows, topic=topic, partition_counts={topic: PARTITION_COUNT}):
            producer.append(one.topic, one.partition, one.batch)
    for one in encoder.flush():
        producer.append(one.topic, one.partition, one.batch)
    producer.flush()
    producer.end(commit=commit)


def settled(bootstrap: str, topic: str) -> None:
    """Wait until the markers of every transaction are written."""
    with BlockingCluster(bootstrap) as cluster:
        places = {(topic, index): LATEST for index in range(PARTITION_COUNT)}
        while cluster.list_offsets(places) != cluster.list_offsets(places, "read_uncommitted"):
            time.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Rows:
    """A topic, how many of its rows are committed, and where they are in Parquet files, if they are."""

    topic: str
    value_size: int
    count: int
    parquet: Path | None = None


class Bench:
    """Queries in one session, each beside another of the same rows."""

    def __init__(self, spark: Any, bootstrap: str, directory: Path, run_count: int) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._directory = directory
        self._run_count = run_count

    def make(self, topic: str, count: int, value_size: int, *, aborts: bool = False) -> Rows:
        """A topic; its rows are counted."""
        make_topic(self._bootstrap, topic)
        fill(self._bootstrap, topic, count, value_size, aborts=aborts)
        settled(self._bootstrap, topic)
        return Rows(topic, value_size, self.read(topic, COUNTED_SCHEMA).count())

    def in_parquet(self, rows: Rows) -> Rows:
        """The same, with its Parquet."""
        parquet = self._directory / f"{rows.topic}.parquet"
        self.read(rows.topic).write.parquet(str(parquet))
        found = sum(pq.read_metadata(file).num_rows for file in parquet.glob("*.parquet"))
        assert found == rows.count, (found, rows)
        return replace(rows, parquet=parquet)

    def read(self, topic: str, schema: str | None = None, **options: str) -> Any:
        """Return a frame that reads a topic, with this schema or with all columns."""
        reader = self._spark.read.format("stablelog").options(
            bootstrap=self._bootstrap, subscribe=topic, **options
        )
        return (reader.schema(schema) if schema else reader).load()

    def beside_parquet(self, small: Rows, large: Rows) -> Section:
        """All columns, and three of them."""
        section = Section("Spark reads a topic, beside Parquet of the same rows", beside="Parquet")
        for rows, wanted in ((small, 0.45), (large, 0.55)):
            limit = drained(ready(self._spark, ALL, rows.value_size, rows.count), self._run_count)
            parquet = self._spark.read.parquet(str(rows.parquet)), rows.count
            ours = [
                Contender(
                    f"{rows.value_size:,} B by {scan}", self.read(rows.topic, scan=scan), rows.count, aim
                )
                for scan, aim in (("files", Wanted(wanted)), ("fetch", None))
            ]
            Contest(section, ours, parquet, limit).run(self._run_count)
        limit = drained(ready(self._spark, NARROW, small.value_size, small.count), self._run_count)
        parquet = self._spark.read.parquet(str(small.parquet)).select(*NARROW), small.count
        what = f"{small.value_size:,} B by files, three columns"
        narrow = Contender(
            what, self.read(small.topic, NARROW_SCHEMA, scan="files"), small.count, Wanted(0.8)
        )
        Contest(section, [narrow], parquet, limit).run(self._run_count)
        return section

    def beside_none_aborted(self, aborted: Rows, clean: Rows) -> Section:
        """What it costs that a tenth of the transactions are aborted: by what is delivered, and by what is read."""
        section = Section("Spark reads a topic, a tenth of it aborted, beside none", beside="none aborted")
        scanned = aborted.count * (TRANSACTION_COUNT + 2) // TRANSACTION_COUNT
        some, none = (self.read(rows.topic, scan="files") for rows in (aborted, clean))
        delivered = Section(section.title, beside=section.beside)
        ours = [Contender("delivered", some, aborted.count, Wanted(0.95))]
        Contest(delivered, ours, (none, clean.count)).run(ROUNDS_OF_ABORTS * self._run_count)
        for row in delivered.rows:
            section.rows.append(row)
            read = section.row(row.what.replace("delivered", "read"), wanted=Wanted(0.95))
            for contestant, figures in row.runs.items():
                factor = 1.0 if contestant == section.beside else scanned / aborted.count
                read.runs[contestant] = [figure * factor for figure in figures]
        return section

    def beside_connector(self, rows: Rows) -> Section:
        """The same rows from the same broker."""
        section = Section("Spark reads a topic, beside Spark's own Kafka connector", beside="connector")
        theirs = self._spark.read.format("kafka").options(
            **{"kafka.bootstrap.servers": self._bootstrap, "kafka.isolation.level": "read_committed"},
            subscribe=rows.topic,
        )
        ours = [
            Contender(f"{rows.value_size:,} B by {scan}", self.read(rows.topic, scan=scan), rows.count, aim)
            for scan, aim in (("files", Wanted(3)), ("fetch", None))
        ]
        Contest(section, ours, (theirs.load(), rows.count)).run(self._run_count)
        return section


def run(spark: Any, run_count: int, divisor: int, *, with_connector: bool) -> list[Section]:
    """All figures, in some minutes."""
    with (
        tempfile.TemporaryDirectory() as directory,
        stablelog.serve(Path(directory) / "data", stablelog_flush="os") as broker,
    ):
        bench = Bench(spark, broker.bootstrap, Path(directory), run_count)
        small = bench.in_parquet(bench.make("small", SMALL_COUNT // divisor, 100))
        large = bench.in_parquet(bench.make("large", LARGE_COUNT // divisor, 1000))
        aborted = bench.make("aborted", SMALL_COUNT // divisor, 100, aborts=True)
        sections = [bench.beside_parquet(small, large), bench.beside_none_aborted(aborted, small)]
        if with_connector:
            fewer = bench.make("fewer", SMALL_COUNT // 4 // divisor, 100)  # the connector takes its time
            sections.append(bench.beside_connector(fewer))
    return sections
