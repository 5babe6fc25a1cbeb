"""`make demo-cuts`: a transaction is left open; who waits for it, and who sees the others whole.

Three producers, one for each airport, write a transaction for each hour: its departures, and its weather, into two
topics of several partitions. Some are aborted on purpose. A fourth writes a day that comes late, and leaves its
transaction open for most of the time. All records go to two ordinary topics and to two commit-ordered ones, in the same
transactions. An unmodified Kafka consumer follows each pair. Meanwhile Spark joins flights with the weather of their
hour: by offsets, as any stream of Kafka topics is read, and by cut.
"""

import contextlib
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.live import Live
from rich.table import Table

import stablelog
from demo.busy import LateError
from demo.children import Children
from demo.cuts import COMMIT_ORDERED, FLIGHTS_PARTITIONS, ORDINARY, WEATHER_PARTITIONS
from demo.cuts.hours import Plan, plan
from demo.cuts.ledger import Ledger
from demo.cuts.picture import draw
from demo.cuts.read import Reader
from demo.cuts.screen import Screen
from demo.cuts.spark_watch import BY_CUT, QUERIES, SparkWatch
from demo.cuts.write import AirportWriter, LateWriter, Pace, Writer
from demo.tasks import Task

JANUARY = 27_004  # rows of the file
LATE_COMMITS_AT = 0.8  # of all hours
READERS = {"ordinary topics": ORDINARY, "in commit order": COMMIT_ORDERED}
SPARK_BATCHES = 10  # at least so many, however late Spark is
SPARK_LIMIT_MIN = 500  # offsets of a micro-batch: a few transactions
SPARK_READY_S = CATCH_UP_S = 600
LOOK_S = 0.1


def play(console: Console, children: Children, data: Path, row_count_max: int | None, picture: Path) -> bool:
    """Play the scene. Returns whether all was seen, once, and no transaction torn by cut."""
    planned = plan(JANUARY if row_count_max is None else row_count_max)
    records = sum(len(work.records) for work in planned.all())
    console.print(
        f"[bold]{records:,} records[/bold] of flights and weather, {planned.hours[0][:10]} to "
        f"{planned.hours[-1][:10]}, a day a second, through a log in {data}",
        highlight=False,
        soft_wrap=True,
    )
    with stablelog.serve(data) as broker, contextlib.closing(children):
        create_topics(broker.bootstrap)
        limit = max(records // SPARK_BATCHES, SPARK_LIMIT_MIN)
        spark = SparkWatch(children, broker.bootstrap, data.parent / "checkpoint", limit)
        ledger = perform(console, broker.bootstrap, planned, spark)
    draw(picture, planned, ledger, spark)
    return report(console, planned, ledger, spark)


def create_topics(bootstrap: str) -> None:
    """Two ordinary topics, and two in commit order."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [
        NewTopic(name, partition_count, 1, config={"stablelog.order": order})
        for names, order in ((ORDINARY, "offset"), (COMMIT_ORDERED, "commit"))
        for name, partition_count in zip(names, (FLIGHTS_PARTITIONS, WEATHER_PARTITIONS), strict=True)
    ]
    for created in admin.create_topics(topics).values():
        created.result()


def perform(console: Console, bootstrap: str, planned: Plan, spark: SparkWatch) -> Ledger:
    """Have everything written, read and joined. Returns what was seen of it."""
    ledger, pace = Ledger(tuple(READERS)), Pace()
    commit_place = int(len(planned.hours) * LATE_COMMITS_AT)
    writers: list[Writer] = [
        AirportWriter(name, works, bootstrap, ledger, pace) for name, works in planned.works.items()
    ]
    writers.append(LateWriter(planned.late, commit_place, bootstrap, ledger, pace))
    readers = [Reader(name, bootstrap, topics, ledger) for name, topics in READERS.items()]
    tasks: list[Task] = [spark, *readers, *writers]
    with console.status("Spark gets ready"):
        for task in (spark, *readers):
            task.start()
        for writer in writers:
            writer.prepare()
        deadline = time.monotonic() + SPARK_READY_S
        while not spark.is_warm():
            _check(tasks[:3], deadline, f"Spark was not ready within {SPARK_READY_S} s")
            time.sleep(LOOK_S)
    ledger.begin()
    for writer in writers:
        writer.start()
    screen = Screen(planned, ledger, spark)
    with Live(console=console, auto_refresh=False) as live:

        def look() -> None:
            live.update(screen.draw(ledger.look(), pace.reached()), refresh=True)
            time.sleep(LOOK_S)

        while any(writer.is_alive() for writer in writers):
            _check(tasks)
            look()
        _check(tasks)
        spark.end_behind(ledger.committed_count)
        deadline = time.monotonic() + CATCH_UP_S
        while spark.is_running() or not ledger.is_all_read():
            _check(readers, deadline, f"what was committed was not all read within {CATCH_UP_S} s")
            look()
        look()
    console.print()
    for reader in readers:
        reader.stop()
    return ledger


def _check(tasks: "list[Task] | list[Reader]", deadline: float | None = None, why: str = "") -> None:
    """End the scene if one of them has failed, or it is too late: then by LateError."""
    for task in tasks:
        task.is_running()
    if deadline is not None and time.monotonic() > deadline:
        raise LateError(why)


def report(console: Console, planned: Plan, ledger: Ledger, spark: SparkWatch) -> bool:
    """Print what it came to. Returns whether it is as it has to be."""
    table = Table(title="From a commit to its last record seen", title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("records", "aborted", "median", "longest"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, sight in ledger.sights.items():
        table.add_row(
            name,
            f"{sight.record_count:,}",
            f"{sight.doomed_count:,}",
            f"{sight.median_delay_s() * 1000:,.0f} ms",
            f"{max(sight.delays_s) * 1000:,.0f} ms",
        )
    console.print(table)
    expected = sum(len(work.records) for work in planned.all())
    seen = [
        (f"the reader of {name}", sight.record_count, sight.doomed_count)
        for name, sight in ledger.sights.items()
    ]
    for query in QUERIES:
        summary = spark.summary(query)
        seen.append((f"Spark's query {query}", summary.record_count, summary.doomed_count))
    problems = [
        f"{name} saw {count:,} records of {expected:,}, {doomed_count:,} of them aborted"
        for name, count, doomed_count in seen
        if count != expected or doomed_count
    ]
    for query in QUERIES:
        torn = spark.summary(query).torn
        said = f"{len(torn):,} of {ledger.commit_count:,}"
        if query == BY_CUT and torn:
            problems.append(f"by cut {len(torn):,} were torn, such as {', '.join(sorted(torn)[:5])}")
        elif not torn and query != BY_CUT:
            said += ": none this time, though nothing keeps them whole"
        console.print(
            f"  torn transactions {query:<14}{said}",
            style="red" if torn else "green",
            highlight=False,
            soft_wrap=True,
        )
    for problem in problems:
        console.print(f"  {problem}", style="bold red", highlight=False, soft_wrap=True)
    return not problems
