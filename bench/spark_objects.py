"""How fast does Spark read the objects of tiered storage, beside the same segments on the local disk?

The store is an S3 server without delay, in a process of its own whose processor time is not counted: a real store runs
on another machine. Beside them, the same rows are read from Parquet files in the same store, by pyarrow in the tasks.

    python -m bench --only spark-objects
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

import stablelog
from bench.contestants import OURS
from bench.report import Section, Wanted
from bench.spark_read import fill, settled
from bench.spark_session import PARTITION_COUNT, WARM_UP_COUNT, Cost, cost, drain
from bench.tier_stores import MIB, Store, create, local_logs, s3_store, serve
from stablelog.env.objects.opening import open_store
from stablelog.tier.prefix import Prefix

FILES, PARQUET, READ = "local files", "Parquet in the store", "read"
SMALL_COUNT, LARGE_COUNT = 4_000_000, 800_000
SEGMENT_SIZE = 64 * MIB
COPY_S_MAX = 300.0
MEMORY_MIB_MAX = 64.0
NO_STORE_CPU = "M rows per processor second, without the store's"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that is on the local disk and in the store.

    Attributes:
        name: its name.
        value_size: bytes of a value.
        stored_count: the number of committed records that the store has.
        local_count: the number of all committed records.
        parquet_count: the number of rows in its Parquet files.
    """

    name: str
    value_size: int
    stored_count: int
    local_count: int
    parquet_count: int


class Bench:
    """Queries in one session.

    Args:
        spark: the session.
        store: the store.
        endpoint: the address of the S3 server.
        bootstrap: the address of the broker.
        data: the data directory of the broker.
        directory: a directory for Parquet files.
        run_count: how often each frame is drained.
    """

    def __init__(
        self,
        spark: Any,
        store: Store,
        endpoint: str,
        bootstrap: str,
        data: Path,
        directory: Path,
        run_count: int,
    ) -> None:
        self._spark = spark
        self._store = store
        self._endpoint = endpoint
        self._bootstrap = bootstrap
        self._data = data
        self._directory = directory
        self._run_count = run_count

    @property
    def _options(self) -> dict[str, str]:
        return {
            "path": self._store.url,
            "store.allow_http": "true",
            "store.endpoint": self._endpoint,
            "store.access_key_id": "test",
            "store.secret_access_key": "test",
            "store.region": "us-east-1",
        }

    def make(self, name: str, count: int, value_size: int, segment_size: int) -> Topic:
        """Write a topic, and wait until its sealed segments are in the store, too."""
        config = {"remote.storage.enable": "true", "segment.bytes": str(segment_size)}
        create(self._bootstrap, name, config, PARTITION_COUNT)
        fill(self._bootstrap, name, count, value_size)
        settled(self._bootstrap, name)
        self._wait_for_copies(name)
        local = self._spark.read.format("stablelog").options(bootstrap=self._bootstrap, subscribe=name)
        parquet = self._directory / name
        frame = local.load()
        frame.write.parquet(str(parquet))
        files = sorted(parquet.glob("*.parquet"))
        client = open_store(self._store.url, allow_http=True)
        for file in files:
            content = file.read_bytes()
            client.upload(
                f"parquet/{name}/{file.stem}", lambda content=content: iter([content]), len(content)
            )
        return Topic(
            name,
            value_size,
            stablelog.spark.count({**self._options, "subscribe": name}),
            frame.count(),
            sum(pq.read_metadata(file).num_rows for file in files),
        )

    def _wait_for_copies(self, name: str) -> None:
        prefix = Prefix(open_store(self._store.url, allow_http=True))
        deadline_s = time.monotonic() + COPY_S_MAX
        for partition in range(PARTITION_COUNT):
            sealed = int(local_logs(self._data, name, partition)[-1].stem)
            while True:
                found = {one.partition: one for one in prefix.partitions(name)}
                manifest = prefix.last_manifest(found[partition]) if partition in found else None
                if manifest is not None and manifest.end_offset >= sealed:
                    break
                assert time.monotonic() < deadline_s, f"{name} is not copied after {COPY_S_MAX:g} s"
                time.sleep(0.1)

    def objects(self, topic: Topic) -> Any:
        """A frame of the objects."""
        return self._spark.read.format("stablelog").options(**self.object_options(topic)).load()

    def object_options(self, topic: Topic) -> dict[str, str]:
        """The options of a read of the objects."""
        return {**self._options, "subscribe": topic.name}

    def file_options(self, topic: Topic) -> dict[str, str]:
        """The options of a read of the files on the local disk."""
        return {"bootstrap": self._bootstrap, "subscribe": topic.name, "scan": "files"}

    def files(self, topic: Topic) -> Any:
        """A frame of the files on the local disk."""
        return self._spark.read.format("stablelog").options(**self.file_options(topic)).load()

    def parquet(self, topic: Topic) -> Any:
        """A frame of the Parquet files in the store, which pyarrow reads in the tasks."""
        endpoint = self._endpoint
        prefix = f"{self._store.url.removeprefix('s3://')}/parquet/{topic.name}"
        names = [f"{prefix}/{path.stem}" for path in sorted((self._directory / topic.name).glob("*.parquet"))]

        def read(batches: Iterator[Any]) -> Iterator[Any]:
            from pyarrow import fs
            from pyarrow.parquet import ParquetFile

            store = fs.S3FileSystem(
                access_key="test", secret_key="test", endpoint_override=endpoint, region="us-east-1"
            )
            for batch in batches:
                for name in batch.column(0).to_pylist():
                    with store.open_input_file(name) as file:
                        for rows in ParquetFile(file, pre_buffer=True).iter_batches(batch_size=10_000):
                            yield rows.cast(wanted)

        schema = self._spark.read.parquet(str(self._directory / topic.name)).schema
        wanted = to_arrow_schema(schema, timezone="UTC")
        listed = self._spark.createDataFrame([(name,) for name in names], "name string")
        return listed.repartition(PARTITION_COUNT).mapInArrow(read, schema)

    def verify(self, topic: Topic) -> Any:
        """A frame of the verification of a topic."""
        return stablelog.spark.verify({**self._options, "subscribe": topic.name})

    def cost(self, work: Callable[[], object]) -> Cost:
        """What it takes, without the processor time of the store's process."""
        before_s = self._store.used_s
        taken = cost(work)
        return Cost(taken.seconds, taken.cpu_seconds - (self._store.used_s - before_s))

    def contest(
        self, section: Section, what: str, frames: Mapping[str, tuple[Any, int]], wanted: Wanted | None
    ) -> None:
        """Drain frames in turn. The first is held against the second by processor time."""
        names = list(frames)
        for number in range(self._run_count + WARM_UP_COUNT):
            for turn in range(len(names)):
                name = names[(number + turn) % len(names)]
                frame, count = frames[name]
                taken = self.cost(lambda frame=frame: drain(frame))
                if number >= WARM_UP_COUNT:
                    row = section.row(f"{what}, M rows/s")
                    row.add(name, count / max(taken.seconds, 0.01) / 1e6)
                    row = section.row(f"{what}, {NO_STORE_CPU}", wanted=wanted)
                    row.add(name, count / max(taken.cpu_seconds, 0.01) / 1e6)


def memory_mib(given: Mapping[str, str]) -> float:
    """Read a topic as tasks do, in a process of its own. Return its memory at most, in MiB."""
    program = "import json, sys; from bench.spark_tasks import read_memory_mb as f; print(f(json.loads(sys.argv[1])))"
    command = [sys.executable, "-c", program, json.dumps(dict(given))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run(spark: Any, run_count: int, divisor: int) -> list[Section]:
    """All figures, in some minutes."""
    read = Section("Spark reads an object store, beside the files on the local disk", beside=FILES)
    parquet = Section("Spark reads an object store, beside Parquet in the same store", beside=PARQUET)
    memory = Section("Memory of a task that reads objects, beyond that of one that reads files", beside="")
    verified = Section("Spark verifies an object store, beside a read of it", beside=READ)
    with (
        tempfile.TemporaryDirectory(prefix="objects-") as directory,
        s3_store(0) as store,
        serve(store.url, stablelog_flush="os") as broker,
    ):
        endpoint = os.environ["AWS_ENDPOINT"]
        bench = Bench(spark, store, endpoint, broker.bootstrap, broker.data, Path(directory), run_count)
        for name, count, size, wanted in (
            ("small", SMALL_COUNT, 100, 0.70),
            ("large", LARGE_COUNT, 1000, 0.55),
        ):
            topic = bench.make(name, count // divisor, size, max(SEGMENT_SIZE // divisor, MIB))
            ours = bench.objects(topic), topic.stored_count
            frames = {OURS: ours, FILES: (bench.files(topic), topic.local_count)}
            bench.contest(read, f"{size:,} B", frames, Wanted(wanted))
            frames = {OURS: ours, PARQUET: (bench.parquet(topic), topic.parquet_count)}
            bench.contest(parquet, f"{size:,} B", frames, None)
            frames = {OURS: (bench.verify(topic), topic.stored_count), READ: ours}
            bench.contest(verified, f"{size:,} B", frames, Wanted(0.8))
            for _ in range(run_count):
                more_mib = memory_mib(bench.object_options(topic)) - memory_mib(bench.file_options(topic))
                row = memory.row(
                    f"{size:,} B, MiB", wanted=Wanted(MEMORY_MIB_MAX, at_most=True, of_figure=True)
                )
                row.add(OURS, max(more_mib, 0))
    return [read, parquet, verified, memory]
