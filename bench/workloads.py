"""The rows on which two commits are compared, and the work behind each.

A workload prepares data once for each variant. A session of it starts new processes of the variant, and then measures
its rows in slices of about a tenth of a second, so that slices of two variants can be measured in turn. Data is written
through the protocol, by this checkout's client: both variants get the same batches in the same order.
"""

import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from confluent_kafka.admin import AdminClient, NewTopic

from bench import command_loads, loads, produced_batches
from bench.bare_transactions import BareProducers
from bench.commit_fetch import fetch_undecoded
from bench.interleaved import NOW_MS, Shape, steps
from bench.sides import Probe, Server, Side
from stablelog.batch.records import Record, encode_batch
from stablelog.client.blocking.cluster import LATEST, BlockingCluster
from stablelog.client.blocking.producer import BlockingProducer

SEGMENT_COUNT = 100  # of the partition with aborted transactions


class Cost(NamedTuple):
    """What a slice of a row took.

    Attributes:
        processor_s: processor seconds of the process that is measured: the broker, or the one that does the work.
        clock_s: seconds on the clock.
        units: how much work it was, in the row's unit.
    """

    processor_s: float
    clock_s: float
    units: float


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is compared.

    Attributes:
        what: for the report.
        unit: a cost is shown in milliseconds for each of these.
    """

    what: str
    unit: str


class Session(Protocol):
    """Processes of one variant."""

    def measure(self, row: str) -> Cost:
        """Do one slice of a row's work."""

    def close(self) -> None:
        """End the processes."""


class Workload(Protocol):
    """Work that gives one or more rows."""

    rows: Mapping[str, Row]

    def prepare(self, side: Side, divisor: int) -> None:
        """Write the data that every session reads, once for each variant."""

    def open(self, side: Side, divisor: int) -> Session:
        """Start a session; the divisor is of every count and size."""


def scaled(count: int, divisor: int) -> int:
    """A count of a small run: at least one."""
    return max(count // divisor, 1)


def fill(bootstrap: str, topic: str, order: str, shape: Shape) -> None:
    """Make a topic of one partition and write the transactions of a shape into it, batch by batch."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **loads.QUIET})
    admin.create_topics([NewTopic(topic, 1, 1, config={"stablelog.order": order})])[topic].result()
    records = [Record(0, NOW_MS, None, os.urandom(shape.record_size))] * shape.records
    with BlockingCluster(bootstrap) as cluster:
        writers = [BlockingProducer(cluster, f"{topic}-{number}") for number in range(shape.writers)]
        for writer in writers:
            writer.begin()
        for number, is_commit in steps(shape):
            if is_commit:
                writers[number].end(commit=True)
            else:
                writers[number].append(topic, 0, bytearray(encode_batch(records)))
                writers[number].flush()
        for writer in writers:
            writer.close()


class ServerSession:
    """A broker of one variant, and for each row what is done to it.

    Args:
        server: the broker; it is stopped in the end.
        loads_of: for each row, a function that prepares it and returns (one slice's work, its units).
        temporary: a directory to remove in the end.
    """

    def __init__(
        self,
        server: Server,
        loads_of: Mapping[str, Callable[[], tuple[Callable[[], object], float]]],
        temporary: Path | None = None,
    ) -> None:
        self._server = server
        self._loads_of = loads_of
        self._temporary = temporary
        self._prepared: dict[str, tuple[Callable[[], object], float]] = {}

    def measure(self, row: str) -> Cost:
        """Do one slice of a row's work. The first is done twice, and measured the second time."""
        if row not in self._prepared:
            self._prepared[row] = self._loads_of[row]()
            self._prepared[row][0]()
        work, units = self._prepared[row]
        before, began = self._server.processor_s(), time.perf_counter()
        work()
        return Cost(self._server.processor_s() - before, time.perf_counter() - began, units)

    def close(self) -> None:
        """Stop the broker."""
        self._prepared.clear()  # clients go before their broker does
        self._server.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


def _on_empty_directory(side: Side, **settings: str) -> tuple[Server, Path]:
    directory = Path(tempfile.mkdtemp(prefix="data-", dir=side.scratch))
    return Server(side, directory / "data", settings), directory


class Writes:
    """Produce by librdkafka, acks=all, every acknowledged append on disk."""

    sizes: Mapping[str, tuple[int, int]] = {"produce-100": (100, 100_000), "produce-1k": (1_000, 30_000)}
    rows: Mapping[str, Row] = {
        "produce-100": Row("produce records of 100 B", "MB"),
        "produce-1k": Row("produce records of 1 KB", "MB"),
    }

    def prepare(self, side: Side, divisor: int) -> None:
        """Nothing: a session begins with an empty directory."""

    def open(self, side: Side, divisor: int) -> Session:
        """A broker, and a producer for each row."""
        server, directory = _on_empty_directory(side)

        def producing(name: str) -> tuple[Callable[[], object], float]:
            size, count = self.sizes[name]
            topic = loads.Topic(name, size, scaled(count, divisor))
            producer = loads.producer_of(server.bootstrap, topic)
            return lambda: loads.fill(producer, topic), topic.megabytes

        return ServerSession(
            server, {name: lambda name=name: producing(name) for name in self.rows}, directory
        )


class Commands:
    """The commands `produce` and `consume`, on a topic of one partition."""

    rows: Mapping[str, Row] = {
        "command-produce": Row("`stablelog produce` of 300,000 lines of 90 B", "300,000 records"),
        "command-consume": Row("`stablelog consume` of 600,000 records of 90 B", "600,000 records"),
    }

    def prepare(self, side: Side, divisor: int) -> None:
        """Nothing: a session begins with an empty directory."""

    def open(self, side: Side, divisor: int) -> Session:
        """A broker, and a command for each slice."""
        server, directory = _on_empty_directory(side)
        counts = {name: scaled(count, divisor) for name, count in command_loads.COUNTS.items()}
        return _CommandSession(server, directory, command_loads.CommandRuns(side, server, directory, counts))


class _CommandSession:
    def __init__(self, server: Server, directory: Path, runs: command_loads.CommandRuns) -> None:
        self._server = server
        self._directory = directory
        self._runs = runs

    def measure(self, row: str) -> Cost:
        return Cost(*self._runs.run(row), 1.0)

    def close(self) -> None:
        self._server.close()
        shutil.rmtree(self._directory, ignore_errors=True)


class ProducedBatches:
    """Produce of batches of each size, codec and kind of records, by a bare socket; stablelog.flush=os."""

    kinds = produced_batches.kinds()
    rows: Mapping[str, Row] = {name: Row(kind.what, "MB") for name, kind in kinds.items()}

    def prepare(self, side: Side, divisor: int) -> None:
        """Nothing: a session begins with an empty directory."""

    def open(self, side: Side, divisor: int) -> Session:
        """A broker, and a topic for each row. The slices are never divided: they are as short as can be measured."""
        server, directory = _on_empty_directory(side, stablelog_flush="os")

        def producing(name: str) -> tuple[Callable[[], object], float]:
            return produced_batches.producing(server.bootstrap, name, self.kinds[name])

        return ServerSession(
            server, {name: lambda name=name: producing(name) for name in self.rows}, directory
        )


class Transactions:
    """Transactions by librdkafka, one after the other from each producer."""

    shapes: Mapping[str, tuple[int, int, int]] = {  # records, producers, transactions of each in a slice
        "transactions-1": (1, 1, 40),
        "transactions-10": (10, 1, 40),
        "transactions-1000": (1_000, 1, 25),
        "transactions-16-producers": (1, 16, 8),
    }
    rows: Mapping[str, Row] = {
        "transactions-1": Row("transactions of 1 record", "transaction"),
        "transactions-10": Row("transactions of 10 records", "transaction"),
        "transactions-1000": Row("transactions of 1,000 records", "transaction"),
        "transactions-16-producers": Row("transactions of 1 record, 16 producers", "transaction"),
    }

    def prepare(self, side: Side, divisor: int) -> None:
        """Nothing: a session begins with an empty directory."""

    def open(self, side: Side, divisor: int) -> Session:
        """A broker, and producers for each row."""
        server, directory = _on_empty_directory(side)

        def committing(name: str) -> tuple[Callable[[], object], float]:
            records, producers, count = self.shapes[name]
            count = scaled(count, divisor)
            committers = loads.Committers(server.bootstrap, records, producers)
            return lambda: committers.commit(lambda _began: range(count)), producers * count

        return ServerSession(
            server, {name: lambda name=name: committing(name) for name in self.rows}, directory
        )


class BareTransactions:
    """Transactions of one record by clients that leave the processor to the broker; stablelog.flush=os."""

    shapes: Mapping[str, tuple[int, int]] = {  # producers, transactions of each in a slice
        "transactions-8-bare": (8, 40),
        "transactions-16-bare": (16, 20),
    }
    rows: Mapping[str, Row] = {
        "transactions-8-bare": Row("transactions of 1 record, 8 bare producers", "transaction"),
        "transactions-16-bare": Row("transactions of 1 record, 16 bare producers", "transaction"),
    }

    def prepare(self, side: Side, divisor: int) -> None:
        """Nothing: a session begins with an empty directory."""

    def open(self, side: Side, divisor: int) -> Session:
        """A broker, and producers for each row."""
        server, directory = _on_empty_directory(side, stablelog_flush="os")

        def committing(name: str) -> tuple[Callable[[], object], float]:
            count_of_producers, count = self.shapes[name]
            count = scaled(count, divisor)
            producers = BareProducers(server.bootstrap, name, count_of_producers)
            return lambda: producers.commit(count), count_of_producers * count

        return ServerSession(
            server, {name: lambda name=name: committing(name) for name in self.rows}, directory
        )


class Reads:
    """Read-committed fetch of topics of both orders, without decoding the records."""

    large = Shape(writers=10, batches=10, records=16, record_size=1_000, size=24_000_000)
    small = Shape(writers=10, batches=10, records=1, record_size=1_000, size=4_000_000)
    topics: Mapping[str, tuple[str, Shape, int]] = {  # order, shape, how often it is read in a slice
        "fetch-16k": ("offset", large, 5),
        "fetch-1k": ("offset", small, 20),
        "commit-order-16k": ("commit", large, 4),
        "commit-order-1k": ("commit", small, 10),
    }
    rows: Mapping[str, Row] = {
        "fetch-16k": Row("fetch, batches of 16 KB", "MB"),
        "fetch-1k": Row("fetch, batches of 1 KB", "MB"),
        "commit-order-16k": Row("commit-ordered fetch, batches of 16 KB", "MB"),
        "commit-order-1k": Row("commit-ordered fetch, batches of 1 KB", "MB"),
    }

    @staticmethod
    def directory(side: Side) -> Path:
        """Where the topics are."""
        return side.scratch / "read" / "data"

    def prepare(self, side: Side, divisor: int) -> None:
        """Write the topics and stop the broker in order, unless another workload has had it done."""
        if self.directory(side).exists():
            return
        with Server(side, self.directory(side), {"stablelog_flush": "os"}) as server:
            for name, (order, shape, _) in self.topics.items():
                fill(server.bootstrap, name, order, _divided(shape, divisor))

    def open(self, side: Side, divisor: int) -> Session:
        """A broker on the topics."""
        server = Server(side, self.directory(side), {"stablelog_flush": "os"})

        def reading(name: str) -> tuple[Callable[[], object], float]:
            _, shape, times = self.topics[name]
            small, times = _divided(shape, divisor), scaled(times, divisor)
            topic = loads.Topic(name, small.record_size, small.record_count)
            with BlockingCluster(server.bootstrap) as cluster:  # waits until the partition is open
                cluster.list_offsets({(name, 0): LATEST})
            return lambda: [fetch_undecoded(server, topic) for _ in range(times)], topic.megabytes * times

        return ServerSession(server, {name: lambda name=name: reading(name) for name in self.rows})


def _divided(shape: Shape, divisor: int) -> Shape:
    return Shape(shape.writers, shape.batches, shape.records, shape.record_size, shape.size // divisor)


class StartAfterKill:
    """Start of a broker on the directory that `kill -9` left, until every partition can be read."""

    rows: Mapping[str, Row] = {"start-after-kill": Row("start after kill -9", "start")}
    large = Shape(writers=4, batches=10, records=16, record_size=1_000, size=40_000_000)
    small = Shape(writers=10, batches=10, records=1, record_size=1_000, size=2_000_000)
    topics: Mapping[str, tuple[str, Shape]] = {"ordinary": ("offset", large), "ordered": ("commit", small)}

    @staticmethod
    def directory(side: Side) -> Path:
        """What the killed broker left."""
        return side.scratch / "killed" / "data"

    def prepare(self, side: Side, divisor: int) -> None:
        """Write into growing segments, and kill the broker."""
        server = Server(side, self.directory(side), {"stablelog_flush": "os"})
        try:
            for name, (order, shape) in self.topics.items():
                fill(server.bootstrap, name, order, _divided(shape, divisor))
        finally:
            server.close(kill=True)

    def open(self, side: Side, divisor: int) -> Session:
        """Each slice starts a broker of its own."""
        return _Starts(side, self.directory(side), tuple(self.topics))


class _Starts:
    def __init__(self, side: Side, killed: Path, topics: tuple[str, ...]) -> None:
        self._side, self._killed, self._topics = side, killed, topics

    def measure(self, row: str) -> Cost:
        """Start a broker on a copy, and ask for the end of each partition."""
        with tempfile.TemporaryDirectory(prefix="started-", dir=self._side.scratch) as directory:
            data = Path(directory) / "data"
            shutil.copytree(self._killed, data)
            with Server(self._side, data, {}) as server:
                began = time.perf_counter()
                with BlockingCluster(server.bootstrap) as cluster:
                    cluster.list_offsets(dict.fromkeys(((name, 0) for name in self._topics), LATEST))
                took = server.start_s + time.perf_counter() - began
                return Cost(server.processor_s(), took, 1)

    def close(self) -> None:
        """Nothing is open."""


class _Probed:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.close = probe.close

    def measure(self, row: str) -> Cost:
        """Have the process do one slice of a row's work."""
        return Cost(*self._probe.measure(row))


class FileScan:
    """Spark's scan of a stopped broker's directory, without Spark."""

    rows: Mapping[str, Row] = {"file-scan": Row("scan of files by Spark's tasks, without Spark", "MB")}
    topics = ("fetch-16k", "fetch-1k")
    times = 3

    def __init__(self, reads: Reads) -> None:
        self._reads = reads

    def prepare(self, side: Side, divisor: int) -> None:
        """Write the topics."""
        self._reads.prepare(side, divisor)

    def open(self, side: Side, divisor: int) -> Session:
        """A process that reads both topics."""
        times = scaled(self.times, divisor)
        return _Probed(Probe(side, "scan", self._reads.directory(side), ",".join(self.topics), times))


class Columns:
    """The decoder and the encoder of Spark's workers by themselves."""

    rows: Mapping[str, Row] = {
        "decode-100": Row("decode records of 100 B into Arrow", "million rows"),
        "decode-1k": Row("decode records of 1 KB into Arrow", "million rows"),
        "encode": Row("encode Arrow into records of 100 B", "million rows"),
    }

    def prepare(self, side: Side, divisor: int) -> None:
        """Nothing: the work makes its rows."""

    def open(self, side: Side, divisor: int) -> Session:
        """A process that decodes and encodes."""
        return _Probed(Probe(side, "columns", divisor))


class Aborts:
    """Lookup of the aborted transactions that touch a fetch, in a partition with many of them."""

    rows: Mapping[str, Row] = {"aborts": Row("lookup of aborted transactions", "1,000 lookups")}
    count = 20_000
    times = 6

    @staticmethod
    def _directory(side: Side) -> Path:
        return side.scratch / "t-0"

    def prepare(self, side: Side, divisor: int) -> None:
        """Write the partition."""
        count = max(self.count // divisor, 2 * SEGMENT_COUNT)
        Probe(side, "fill-aborts", self._directory(side), SEGMENT_COUNT, count).close()

    def open(self, side: Side, divisor: int) -> Session:
        """A process that looks up at a thousand places, each several times."""
        return _Probed(Probe(side, "aborts", self._directory(side), scaled(self.times, divisor)))


def workloads() -> list[Workload]:
    """Every workload, in the order in which they are prepared and run."""
    reads = Reads()
    return [
        Writes(),
        Commands(),
        ProducedBatches(),
        Transactions(),
        BareTransactions(),
        reads,
        FileScan(reads),
        StartAfterKill(),
        Columns(),
        Aborts(),
    ]


ROWS: Mapping[str, Row] = dict(itertools.chain.from_iterable(work.rows.items() for work in workloads()))
