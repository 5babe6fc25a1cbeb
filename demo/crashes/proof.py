"""What Spark finds in the log, beside the source file."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.crashes import DELAYS_TOPIC, NAMED_TOPIC, TOPIC
from demo.crashes.pipeline import FLIGHT
from demo.flights import Totals
from demo.spark_session import in_time, quiet_session
from stablelog.spark import count


@dataclass(frozen=True, slots=True)
class Found:
    """What a topic of flights holds.

    Attributes:
        totals: to be compared with those of the source file.
        distinct_count: different rows of the source file.
        doomed_count: records of transactions that were not to be committed.
    """

    totals: Totals
    distinct_count: int
    doomed_count: int


@dataclass(frozen=True, slots=True)
class Proof:
    """What was read back.

    Attributes:
        log: the flights as the producers wrote them.
        named: the flights as the stream wrote them.
        summed: flights of each carrier by the stream's last sums.
        uncommitted_count: what a read-uncommitted reader sees of the first.
    """

    log: Found
    named: Found
    summed: dict[str, int]
    uncommitted_count: int


def read_back(bootstrap: str) -> Proof:
    """Read every topic with Spark."""
    from pyspark.sql import functions as f

    spark = quiet_session("proof")

    def load(topic: str) -> Any:
        read = spark.read.format("stablelog").option("kafka.bootstrap.servers", bootstrap)
        return read.option("subscribe", topic).load()

    def find(topic: str) -> Found:
        value = f.from_json(f.col("value").cast("string"), FLIGHT)
        rows = load(topic).select(value.alias("flight")).select("flight.*")
        carriers = rows.groupBy("carrier").agg(
            f.count("*").alias("rows"),
            f.sum("dep_delay").alias("departure"),
            f.count("dep_delay").alias("departed"),
            f.sum("arr_delay").alias("arrival"),
            f.count("arr_delay").alias("arrived"),
            f.countDistinct("row").alias("distinct"),  # a row of the file has one carrier
            f.sum(f.col("doomed").cast("int")).alias("doomed"),
        )
        found = carriers.collect()

        def total(name: str) -> Any:
            return sum(row[name] for row in found)

        totals = Totals(
            total("rows"),
            {row["carrier"]: row["rows"] for row in found},
            total("departure") / total("departed"),
            total("arrival") / total("arrived"),
        )
        return Found(totals, total("distinct"), total("doomed"))

    def prove() -> Proof:
        sums = load(DELAYS_TOPIC).select(
            "offset", f.from_json(f.col("value").cast("string"), "carrier STRING, flights INT").alias("sum")
        )
        last = sums.groupBy("sum.carrier").agg(f.max_by("sum.flights", "offset").alias("flights"))
        return Proof(
            log=find(TOPIC),
            named=find(NAMED_TOPIC),
            summed={row["carrier"]: row["flights"] for row in last.collect()},
            uncommitted_count=count(
                {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, "isolation": "read_uncommitted"}
            ),
        )

    proof = in_time("the proof by Spark", prove)
    spark.stop()
    return proof


def report(console: Console, source: Totals, proof: Proof, followed_count: int, doomed_count: int) -> bool:
    """Print source and log side by side.

    Args:
        console: where.
        source: what the file says.
        proof: what was read back.
        followed_count: flights that the consumer group has seen.
        doomed_count: of them, those of transactions that were not to be committed.

    Returns:
        Whether nothing is lost, duplicated, or seen though aborted.
    """
    table = Table(title="Flights out of New York in 2013", title_justify="left", title_style="bold")
    table.add_column("", no_wrap=True)
    for column in ("source", "the log", "by Spark", "its sums"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    log, named = proof.log.totals, proof.named.totals
    same = True

    def row(label: str, *values: object) -> None:
        nonlocal same
        equal = len({value for value in values if value is not None}) == 1
        same = same and equal
        shown = [f"{value:,}" if isinstance(value, int) else str(value or "") for value in values]
        table.add_row(label, *shown, "=" if equal else "[red]differs")

    def minutes(*values: float) -> list[str]:
        return [f"{value:.6f}" for value in values]

    row("rows", source.rows, log.rows, named.rows, sum(proof.summed.values()))
    departures = minutes(*(each.mean_departure_delay for each in (source, log, named)))
    row("mean departure delay", *departures, None)
    row(
        "mean arrival delay",
        *minutes(*(each.mean_arrival_delay for each in (source, log, named))),
        None,
    )
    for carrier in sorted(source.per_carrier):
        counts = [each.per_carrier.get(carrier, 0) for each in (source, log, named)]
        row(f"rows of {carrier}", *counts, proof.summed.get(carrier, 0))
    console.print(table)
    checks = {
        "lost": (source.rows - proof.log.distinct_count) + (source.rows - proof.named.distinct_count),
        "duplicated": (log.rows - proof.log.distinct_count) + (named.rows - proof.named.distinct_count),
        "aborted yet seen": proof.log.doomed_count + proof.named.doomed_count + doomed_count,
        "missed by the follower": source.rows - followed_count,
    }
    for label, found in checks.items():
        console.print(
            f"  {label:<24}{found:>10,}", style="green" if found == 0 else "bold red", highlight=False
        )
    extra = proof.uncommitted_count - log.rows
    console.print(
        f"  {'read uncommitted sees':<24}{proof.uncommitted_count:>10,}  ({extra:,} more: aborted records)",
        highlight=False,
    )
    return same and not any(checks.values())
