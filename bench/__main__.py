"""`make bench`: stablelog in turn with Apache Kafka, Parquet or Spark's connector, on this machine and alike.

Figures are medians; a ratio is the median of the ratios of runs made one after the other, so that what else the
machine does weighs on both. Where Apache Kafka cannot be had, stablelog is measured alone.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from rich.console import Console

from bench import (
    aborts,
    acls,
    against,
    client_writes,
    commit_order,
    imports,
    least_broker,
    limits,
    loads,
    loop_holds,
    many_partitions,
    tiers,
    tls,
)
from bench.contestants import (
    KAFKA,
    OURS,
    Broker,
    Promise,
    memory_mb,
    serve_both,
    start_to_first_record,
    why_no_kafka,
)
from bench.report import Section, print_tables, write_document

SPARK_PARTS = ("spark-read", "spark-objects", "spark-write", "spark-plan", "after-start")
PARTS = (
    "throughput",
    "transactions",
    "end-to-end",
    "e2e",
    "start",
    "imports",
    "aborts",
    "acls",
    "client-write",
    "commit-order",
    "columns",
    "loop",
    "many-partitions",
    "tiers",
    "tls",
    *SPARK_PARTS,
)
THROUGHPUT = ((100, 500_000), (1_000, 300_000))  # size of a record, records
RECORDS_IN_A_TRANSACTION = (1, 10, 1_000)
TRANSACTIONS_S = 2.0  # of each size
PRODUCERS_TOGETHER = 16
RECORDS_END_TO_END = 400
RECORDS_OF_E2E = 5_000  # of Kafka's own tool, whose Java has to warm up
ABORT_COUNT = 1_000_000
SEGMENT_COUNTS = (10, 100, 1_000)

console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, how often, and how much of it."""

    parts: frozenset[str]
    run_count: int
    divisor: int  # of every count and duration
    backfill_gb: float = 10.0

    def count(self, full: int) -> int:
        """How many of it."""
        return max(full // self.divisor, 20)

    def seconds(self, full: float) -> float:
        """How long."""
        return max(full / self.divisor, 0.3)


@dataclass(frozen=True, slots=True)
class Turn:
    """One broker's turn under a load."""

    plan: Plan
    promise: Promise
    best: limits.Limits
    section: Section
    contestant: str
    broker: Broker

    @property
    def sync_ms(self) -> float:
        """What the promise costs at least."""
        return self.best.sync_ms if self.promise is Promise.SYNCED else 0.0

    def note(
        self, what: str, figure: float, *, wanted: float | None = None, limit: float | None = None
    ) -> None:
        """Note the broker's figure."""
        self.section.row(what, wanted=wanted, limit=limit).add(self.contestant, figure)


def throughput(turn: Turn) -> None:
    """Produce, and fetch what was produced: by a client that makes objects, and by one that does not."""
    address, best = turn.broker.bootstrap, turn.best
    written = best.synced_write_mb_s if turn.promise is Promise.SYNCED else best.loopback_mb_s
    for size, count in THROUGHPUT:
        with loads.topic_of(address, size, turn.plan.count(count)) as topic:
            for what, load, limit in (
                (f"produce {size:,} B, MB/s", loads.produce, written),
                (f"fetch {size:,} B, MB/s", loads.fetch, best.loopback_mb_s),
                (f"fetch {size:,} B, not decoded, MB/s", loads.fetch_undecoded, best.loopback_mb_s),
            ):
                turn.note(what, load(address, topic), wanted=1, limit=limit)


def transactions(turn: Turn) -> None:
    """Commit transactions of several sizes: one producer, then many together."""
    seconds = turn.plan.seconds(TRANSACTIONS_S)
    # The partition added, the records durable, the decision durable; commit_transaction() may have all of it to do.
    best_ms = 2 * turn.sync_ms + 3 * turn.best.round_trip_ms
    for records in RECORDS_IN_A_TRANSACTION:
        done = loads.transactions(turn.broker.bootstrap, records, seconds)
        name = f"{records:,} record{'s' if records > 1 else ''}"
        turn.note(f"transactions of {name}, per s", done.per_s, wanted=2, limit=1000 / best_ms)
        half, most = (loads.percentile(done.commit_ms, percent) for percent in (50, 99))
        turn.note(f"commit of {name}, p50 ms", half, limit=best_ms)
        turn.note(f"commit of {name}, p99 ms", most, wanted=0.5, limit=best_ms)
    together = loads.transactions(turn.broker.bootstrap, 1, seconds, producers=PRODUCERS_TOGETHER)
    what = f"transactions of 1 record, {PRODUCERS_TOGETHER} producers, per s"
    turn.note(what, together.per_s, wanted=2)


def end_to_end(turn: Turn) -> None:
    """A record's way from one client to another, at a steady pace."""
    p99_ms = loads.end_to_end(turn.broker.bootstrap, turn.plan.count(RECORDS_END_TO_END))
    limit = turn.sync_ms + turn.best.round_trip_ms
    turn.note("end to end at 200 records/s, p99 ms", p99_ms, wanted=0.5, limit=limit)


def e2e(turn: Turn) -> None:
    """Kafka's own measurement of end to end, and what it takes with a broker that does nothing: its client's share."""
    count = turn.plan.count(RECORDS_OF_E2E)
    mean_ms = loads.kafka_e2e_latency(turn.broker.bootstrap, count)
    turn.note("kafka-e2e-latency, mean ms", mean_ms)
    if turn.promise is Promise.LEFT_TO_THE_SYSTEM:
        row = turn.section.row("kafka-e2e-latency of a broker that does nothing, mean ms")
        if turn.contestant == OURS:
            with least_broker.serve() as address:
                mean_ms = loads.kafka_e2e_latency(address, count)
        row.add(turn.contestant, mean_ms)


LOADS = {"throughput": throughput, "transactions": transactions, "end-to-end": end_to_end, "e2e": e2e}


def in_turn(brokers: Mapping[str, Broker], run: int) -> Iterator[tuple[str, Broker]]:
    """The brokers, now one first, now the other; the disk has nothing left to write before each."""
    for contestant in sorted(brokers, reverse=run % 2 == 0):
        os.sync()
        yield contestant, brokers[contestant]


def measure_loads(plan: Plan, promise: Promise, best: limits.Limits, *, with_kafka: bool) -> Section:
    """Put the brokers under every load, in turn. One run before the others warms them up and is not counted."""
    section = Section(f"Acknowledged {promise.value}")
    with serve_both(promise, with_kafka=with_kafka) as brokers:
        for run in range(plan.run_count + 1):
            into = Section(section.title) if run == 0 else section
            for part in [part for part in LOADS if part in plan.parts]:
                for contestant, broker in in_turn(brokers, run):
                    state = f"run {run} of {plan.run_count}" if run else "warming up"
                    with console.status(f"acknowledged {promise.value}: {part}, {contestant}, {state}"):
                        LOADS[part](Turn(plan, promise, best, into, contestant, broker))
        for contestant, broker in brokers.items():
            section.row("memory after that, MB", wanted=0.1, limit=best.python_memory_mb).add(
                contestant, memory_mb(broker.pid)
            )
    return section


def measure_start(plan: Plan, best: limits.Limits, *, with_kafka: bool) -> Section:
    """Start new brokers, and see what they take with nothing to do."""
    section = Section("Start, and nothing to do")
    row = section.row("start to first acknowledged record, s", wanted=0.1, limit=best.python_start_s)
    for run in range(plan.run_count):
        for contestant in (OURS, KAFKA)[: 2 if with_kafka else 1][:: 1 if run % 2 else -1]:
            with console.status(f"start of {contestant}, run {run + 1} of {plan.run_count}"):
                row.add(contestant, start_to_first_record(contestant))
    with console.status("memory"), serve_both(Promise.SYNCED, with_kafka=with_kafka) as brokers:
        idle = section.row("idle memory, MB", wanted=0.1, limit=best.python_memory_mb)
        for contestant, broker in brokers.items():
            loads.first_record(broker.bootstrap)
            idle.add(contestant, memory_mb(broker.pid))
    return section


def measure_aborts(plan: Plan) -> Section:
    """Look up aborted transactions among more and more segments."""
    count = plan.count(ABORT_COUNT)
    section = Section("Lookup of the aborts that touch a fetch", beside="")
    with (
        console.status(f"{count:,} aborts in {SEGMENT_COUNTS} segments"),
        aborts.filled(SEGMENT_COUNTS, count) as logs,
    ):
        for segment_count, directory in logs.items():
            again = section.row(f"{count:,} aborts in {segment_count:,} segments, µs")
            opening = section.row(f"{count:,} aborts in {segment_count:,} segments, index not open, µs")
            for _ in range(plan.run_count):
                found = aborts.look_up(directory, segment_count)
                again.add(OURS, found.us)
                opening.add(OURS, found.opening_us)
    return section


def measure_columns_and_spark(plan: Plan) -> list[Section]:
    """The data source: its decoder and encoder by themselves, its tasks, and its queries in one Spark session."""
    # What only Spark needs takes a second to import.
    from bench import (
        after_start,
        columns,
        spark_objects,
        spark_read,
        spark_session,
        spark_tasks,
        spark_write,
    )

    sections = []
    if "columns" in plan.parts:
        with console.status("columns"):
            sections += columns.run(plan.run_count)
    if "spark-plan" in plan.parts:
        with console.status("planning, and memory of tasks"):
            sections += spark_tasks.run(plan.run_count, plan.divisor)
    if plan.parts & {"spark-read", "spark-objects", "spark-write", "after-start"}:
        jars, missing = spark_session.connector_jars() if "spark-read" in plan.parts else ([], "")
        if missing:
            console.print(f"without Spark's Kafka connector: {missing}")
        with spark_session.session(jars) as spark:
            if "spark-read" in plan.parts:
                with console.status("Spark reads"):
                    sections += spark_read.run(spark, plan.run_count, plan.divisor, with_connector=bool(jars))
            if "spark-objects" in plan.parts:
                with console.status("Spark reads objects"):
                    sections += spark_objects.run(spark, plan.run_count, plan.divisor)
            if "spark-write" in plan.parts:
                with console.status("Spark writes"):
                    sections += spark_write.run(spark, plan.run_count, plan.divisor)
            if "after-start" in plan.parts:
                size = int(plan.backfill_gb * 1e9) // plan.divisor
                segment_size = after_start.SEGMENT_SIZE // plan.divisor
                with console.status("first readers after a start"):
                    sections += after_start.run(spark, plan.run_count, size, segment_size)
    return sections


def measure_tiers(
    plan: Plan, best: limits.Limits, tell: Callable[[str], object], *, with_kafka: bool
) -> list[Section]:
    """Tiered storage, beside that of Apache Kafka if it can be run here."""
    missing = tiers.why_no_tiered_kafka() if with_kafka else None
    if missing is not None:
        console.print(f"without Apache Kafka's tiered storage: {missing}")
    with_kafka = with_kafka and missing is None
    return tiers.run(plan.run_count, plan.divisor, best, tell, with_kafka=with_kafka)


def machine_section(best: limits.Limits) -> Section:
    """What the machine does at best, as a table."""
    section = Section("The machine")
    for what, figure in (
        ("memory copy, MB/s", best.memory_copy_mb_s),
        ("loopback, MB/s", best.loopback_mb_s),
        ("loopback, 100 B there and back, ms", best.round_trip_ms),
        ("append of 100 B and fdatasync, ms", best.sync_ms),
        ("appends of 1 MiB with fdatasync, MB/s", best.synced_write_mb_s),
    ):
        section.row(what, limit=figure)
    return section


def arguments() -> argparse.Namespace:
    """What was asked for on the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one run, and a tenth of the work")
    parser.add_argument(
        "--only", action="append", help=f"this part; can be given several times: {', '.join(PARTS)}"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs that are counted (default 3)")
    parser.add_argument(
        "--backfill-gb",
        type=float,
        default=10.0,
        help="size of after-start's backfill, at least 2 (default 10)",
    )
    parser.add_argument("--json", action="store_true", help="every run's figure, for programs")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/how-it-works/benchmarks.md"
    )
    between = parser.add_argument_group(
        "two commits",
        "the working tree in turn with another commit; --only then names rows of bench/workloads.py",
    )
    between.add_argument("--against", metavar="COMMIT", help="the commit to compare with")
    between.add_argument("--commit", metavar="COMMIT", help="judge this commit instead of the working tree")
    between.add_argument("--pairs", type=int, default=against.PAIRS, help=f"default {against.PAIRS}")
    asked = parser.parse_args()
    unknown = set(asked.only or ()) - set(PARTS)
    if asked.against is None and unknown:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    return asked


def main() -> None:
    """Measure, and tell."""
    asked = arguments()
    if asked.against is not None:
        sys.exit(against.run(asked))
    plan = Plan(
        frozenset(asked.only or PARTS),
        1 if asked.quick else asked.runs,
        10 if asked.quick else 1,
        asked.backfill_gb,
    )
    beside_kafka = {*LOADS, "start", "tiers", "tls"}
    missing = why_no_kafka() if plan.parts & beside_kafka else None
    if missing is not None:
        console.print(f"without Apache Kafka: {missing}")
        plan = replace(plan, parts=plan.parts - {"e2e"})  # its client is Kafka's
    best = limits.measure()
    sections = [machine_section(best)]
    if plan.parts & set(LOADS):
        sections += [measure_loads(plan, promise, best, with_kafka=missing is None) for promise in Promise]
    if "start" in plan.parts:
        sections.append(measure_start(plan, best, with_kafka=missing is None))
    if "imports" in plan.parts:
        with console.status("imports") as status:
            sections += imports.run(plan.run_count, status.update)
    if "tls" in plan.parts:
        with console.status("TLS") as status:
            sections += tls.run(plan.run_count, plan.divisor, status.update, with_kafka=missing is None)
    if "aborts" in plan.parts:
        sections.append(measure_aborts(plan))
    if "acls" in plan.parts:
        with console.status("ACLs"):
            sections += acls.run(plan.run_count, plan.divisor)
    if "client-write" in plan.parts:
        with console.status("writes of the native client") as status:
            sections += client_writes.run(plan.run_count, plan.divisor, status.update)
    if "commit-order" in plan.parts:
        with console.status("commit order") as status:
            sections += commit_order.run(plan.run_count, plan.divisor, best, status.update)
    if "loop" in plan.parts:
        with console.status("holds of the event loop") as status:
            sections += loop_holds.run(plan.run_count, plan.divisor, status.update)
    if "many-partitions" in plan.parts:
        with console.status("many partitions") as status:
            sections += many_partitions.run(plan.run_count, plan.divisor, status.update)
    if "tiers" in plan.parts:
        with console.status("tiered storage") as status:
            sections += measure_tiers(plan, best, status.update, with_kafka=missing is None)
    if plan.parts & {"columns", *SPARK_PARTS}:
        sections += measure_columns_and_spark(plan)
    if asked.json:
        json.dump([asdict(section) for section in sections], sys.stdout, indent=2)
    else:
        print_tables(sections)
    if asked.write:
        write_document(sections)


if __name__ == "__main__":
    main()
