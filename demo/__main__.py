"""`make demo`: flights through the log, with crashes, and the proof that none was lost.

Three producers, one for each airport, write a transaction for each hour of departures. Some transactions are
aborted on purpose and written again; one producer is killed with -9 in the middle of one, and its successor fences
it; the broker itself is killed with -9 while they write. A read-committed consumer group follows all along. Then
Spark reads the topic, and what it finds is put beside the source file.
"""

import argparse
import contextlib
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import stablelog
from demo.flights import AIRPORTS, TOPIC, Totals, by_hour, read_flights, totals
from demo.follow import Follower, Sampler
from demo.picture import draw, read_transactions
from stablelog.embedded import EmbeddedBroker

KILLED_AIRPORT = "JFK"
BROKER_KILLED_AT = 0.6  # of all rows
CATCH_UP_S = 30


class Fleet:
    """The producers: starts them, follows what they say, and replaces those that die."""

    def __init__(self, bootstrap: str, row_count_max: int | None, hang_at: int) -> None:
        self._bootstrap = bootstrap
        self._row_count_max = row_count_max
        self._hang_at = hang_at
        self.said: queue.Queue[tuple[str, str, int]] = queue.Queue()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.restarts = 0

    def start(self, airport: str, *, hangs: bool = False) -> None:
        """Start an airport's producer."""
        command = [sys.executable, "-m", "demo.produce", self._bootstrap, airport]
        if self._row_count_max is not None:
            command += ["--rows", str(self._row_count_max)]
        if hangs:
            command += ["--hang-at", str(self._hang_at)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._processes[airport] = process
        threading.Thread(target=self._listen, args=(airport, process), daemon=True).start()

    def _listen(self, airport: str, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            word, number = line.split()
            self.said.put((airport, word, int(number)))
        self.said.put((airport, "ended", process.wait()))

    def kill(self, airport: str) -> None:
        """Kill an airport's producer with -9."""
        self._processes[airport].kill()

    def stop(self) -> None:
        """Kill whoever is left."""
        for process in self._processes.values():
            process.kill()
            process.wait()


def write_flights(
    console: Console,
    broker: EmbeddedBroker,
    row_count: int,
    row_count_max: int | None,
    hang_at: int,
    sampler: Sampler,
) -> tuple[list[tuple[float, str]], int, int]:
    """Have all flights written, through both crashes.

    Returns:
        What happened when, how many transactions were aborted on purpose, and how many producers had to be replaced.
    """
    fleet = Fleet(broker.bootstrap, row_count_max, hang_at)
    events: list[tuple[float, str]] = []
    aborted = 0
    done: set[str] = set()
    written = 0
    broker_killed = False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with contextlib.ExitStack() as stack:
        stack.callback(fleet.stop)
        progress = stack.enter_context(Progress(*columns, console=console))
        task = progress.add_task("writing flights", total=row_count)
        for airport in AIRPORTS:
            fleet.start(airport, hangs=airport == KILLED_AIRPORT)
        while len(done) < len(AIRPORTS):
            airport, word, number = fleet.said.get(timeout=180)
            if word == "committed":
                written += number
                progress.advance(task, number)
            elif word == "aborted":
                aborted += 1
            elif word == "hangs":
                events.append((sampler.now_s(), f"{airport}'s producer killed -9"))
                fleet.kill(airport)
            elif word == "done":
                done.add(airport)
            elif word == "ended" and airport not in done:
                fleet.restarts += 1
                progress.console.print(
                    f"  {airport}: its producer is gone, a successor fences it and goes on"
                )
                fleet.start(airport)
            elif word == "resumes" and number:
                progress.console.print(f"  {airport}: goes on behind {number:,} committed hours")
            if not broker_killed and written >= row_count * BROKER_KILLED_AT:
                broker_killed = True
                events.append((sampler.now_s(), "broker killed -9"))
                broker.kill()
                began = time.monotonic()
                broker.start()
                progress.console.print(f"  broker: killed -9, back after {time.monotonic() - began:.1f} s")
    return events, aborted, fleet.restarts


def read_with_spark(bootstrap: str) -> tuple[Totals, dict[str, int]]:
    """What Spark finds in the topic."""
    from pyspark.sql import functions as f

    spark = stablelog_session()
    spark.sparkContext.setLogLevel("ERROR")
    source = (
        spark.read.format("stablelog").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC)
    )
    shape = "row BIGINT, carrier STRING, hour STRING, dep_delay DOUBLE, arr_delay DOUBLE, doomed BOOLEAN"

    def rows(isolation: str) -> Any:
        read = source.option("isolation", isolation).load()
        return read.select(f.from_json(f.col("value").cast("string"), shape).alias("flight")).select(
            "flight.*"
        )

    committed = rows("read_committed").cache()
    whole = committed.agg(
        f.count("*").alias("rows"),
        f.countDistinct("row").alias("distinct"),
        f.avg("dep_delay").alias("dep"),
        f.avg("arr_delay").alias("arr"),
        f.sum(f.col("doomed").cast("int")).alias("doomed"),
    ).first()
    carriers = {row["carrier"]: row["count"] for row in committed.groupBy("carrier").count().collect()}
    seen_uncommitted = rows("read_uncommitted").count()
    spark.stop()
    counts = {"distinct": whole["distinct"], "doomed": whole["doomed"] or 0, "uncommitted": seen_uncommitted}
    return Totals(whole["rows"], carriers, whole["dep"], whole["arr"]), counts


def stablelog_session() -> Any:
    """A Spark session, quiet."""
    import os
    import warnings

    from stablelog.spark import session

    warnings.simplefilter("ignore")
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    return session(
        "flights", master="local[2]", spark_ui_showConsoleProgress="false", spark_sql_shuffle_partitions="2"
    )


def report(console: Console, source: Totals, found: Totals, counts: dict[str, int], followed: int) -> bool:
    """Print source and log side by side. Returns whether nothing is lost, duplicated, or seen though aborted."""
    table = Table(title="Flights out of New York in 2013", title_justify="left", title_style="bold")
    table.add_column("")
    for column in ("source file", "Spark, read committed"):
        table.add_column(column, justify="right")
    table.add_column("")
    same = True

    def row(label: str, left: object, right: object) -> None:
        nonlocal same
        equal = left == right
        same = same and equal
        table.add_row(
            label,
            f"{left:,}" if isinstance(left, int) else str(left),
            f"{right:,}" if isinstance(right, int) else str(right),
            "=" if equal else "[red]differs",
        )

    row("rows", source.rows, found.rows)
    row(
        "mean departure delay, minutes",
        f"{source.mean_departure_delay:.6f}",
        f"{found.mean_departure_delay:.6f}",
    )
    row("mean arrival delay, minutes", f"{source.mean_arrival_delay:.6f}", f"{found.mean_arrival_delay:.6f}")
    for carrier in sorted(source.per_carrier | found.per_carrier):
        row(f"rows of {carrier}", source.per_carrier.get(carrier, 0), found.per_carrier.get(carrier, 0))
    console.print(table)
    proof = {
        "lost": source.rows - counts["distinct"],
        "duplicated": found.rows - counts["distinct"],
        "aborted yet seen": counts["doomed"],
        "missed by the follower": source.rows - followed,
    }
    for label, count in proof.items():
        console.print(
            f"  {label:<24}{count:>10,}", style="green" if count == 0 else "bold red", highlight=False
        )
    extra = counts["uncommitted"] - found.rows
    console.print(
        f"  {'read uncommitted sees':<24}{counts['uncommitted']:>10,}  ({extra:,} more: aborted records)",
        highlight=False,
    )
    return same and not any(proof.values())


def main() -> int:
    """Run the demo; 0 if nothing was lost, duplicated, or seen though aborted."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--rows", type=int, help="only the first rows of the file")
    parser.add_argument(
        "--data", type=Path, help="a directory to keep the log in; a temporary one if not given"
    )
    parser.add_argument("--picture", type=Path, default=Path("flights.svg"), help="where the picture goes")
    arguments = parser.parse_args()
    console = Console()
    began = time.monotonic()
    source = totals(read_flights(arguments.rows))
    hours = len(by_hour(read_flights(arguments.rows), KILLED_AIRPORT))
    data = arguments.data or Path(tempfile.mkdtemp(prefix="stablelog-demo-")) / "data"
    console.print(f"[bold]{source.rows:,} flights[/bold] through a log in {data}")
    try:
        # Sixty segments or so: aborts and transactions that reach over their ends.
        with stablelog.serve(data, log_segment_bytes=4 << 20) as broker:
            ok = run(console, broker, source, arguments.rows, hours // 3, arguments.picture)
    finally:
        if arguments.data is None:
            shutil.rmtree(data.parent, ignore_errors=True)
    console.print(
        f"  done in {time.monotonic() - began:.0f} s; the picture is in {arguments.picture}", highlight=False
    )
    return 0 if ok else 1


def run(
    console: Console,
    broker: EmbeddedBroker,
    source: Totals,
    row_count_max: int | None,
    hang_at: int,
    picture: Path,
) -> bool:
    """Write, follow, read back, draw. Returns whether all agrees."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, len(AIRPORTS), 1)])[TOPIC].result()
    partition = AIRPORTS.index(KILLED_AIRPORT)
    follower, sampler = Follower(broker.bootstrap), Sampler(broker.bootstrap, partition)
    follower.start()
    sampler.start()
    events, aborted, restarts = write_flights(console, broker, source.rows, row_count_max, hang_at, sampler)
    console.print(
        f"  {aborted:,} transactions aborted on purpose, {restarts} producers replaced", highlight=False
    )
    deadline = time.monotonic() + CATCH_UP_S
    while follower.followed.count < source.rows and time.monotonic() < deadline:
        time.sleep(0.05)
    sampler.stop()
    follower.stop()
    with console.status("reading it all back with Spark"):
        found, counts = read_with_spark(broker.bootstrap)
    counts["doomed"] += follower.followed.doomed_count
    ok = report(console, source, found, counts, follower.followed.count)
    transactions = read_transactions(broker.data / f"{TOPIC}-{partition}")
    killed = next((txn for txn in transactions if not txn.committed and txn.marker_offset > 0), None)
    centre = killed.first_offset if killed is not None else 0
    draw(
        picture,
        f"Partition {TOPIC}-{partition} ({KILLED_AIRPORT}): {len(transactions):,} transactions, "
        f"{sum(not txn.committed for txn in transactions):,} aborted",
        transactions,
        (max(centre - 100, 0), centre + 700),
        sampler.samples,
        events,
    )
    return ok


if __name__ == "__main__":
    sys.exit(main())
