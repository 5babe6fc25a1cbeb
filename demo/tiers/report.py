"""What the terminal shows of the reads."""

from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table

from demo.tiers.results import Read, Results
from demo.tiers.store import GET_INDEXES, GET_LOG

MB = 1_000_000


def said_of(read: Read) -> str:
    """Return a read in one line."""
    colour = "green" if read.verdict.is_good else "bold red"
    return (
        f"{read.name}: {read.verdict.read_count:,} flights in {read.seconds:.1f} s. Of the "
        f"{read.expected_count:,} flights {read.scope}: [{colour}]{read.verdict}[/{colour}]"
    )


def report(console: Console, results: Results) -> bool:
    """Print what each reader read, from where and with which requests. Returns whether all is as it has to be."""
    style = {"title_justify": "left", "title_style": "bold", "box": box.SIMPLE_HEAD}
    table = Table(title="Reads of the topic", **style, pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for heading in ("flights", "disk MB", "store MB", "requests"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("Kafka's", justify="right", no_wrap=True, style="dim")
    for read in results.reads:
        table.add_row(
            read.name,
            f"{read.verdict.read_count:,}",
            *(f"{size / MB:,.1f}" for size in (read.local_size, read.store_size)),
            in_parts(read.requests),
            in_parts(read.kafka_requests),
        )
    console.print(table)
    for note in (
        "requests: to the store, for log files + indexes + others",
        "Kafka's: those of Apache Kafka 4.2 for the same reads, computed from its code, not measured",
    ):
        console.print(f"  {note}", style="dim", highlight=False, soft_wrap=True)
    verdict = results.reads[-1].verdict
    for label, count in (
        ("lost", verdict.lost_count),
        ("duplicated", verdict.duplicated_count),
        ("aborted yet shown", sum(read.verdict.aborted_count for read in results.reads)),
        ("unlike the source", sum(read.verdict.changed_count for read in results.reads)),
    ):
        style = "green" if count == 0 else "bold red"
        console.print(f"  {label:<24}{count:>10,}", style=style, highlight=False)
    console.print(
        f"  {'of the source':<24}{results.flight_count:>10,}  ({results.aborted_record_count:,} more were aborted)",
        highlight=False,
    )
    return results.is_good


def in_parts(requests: Counter[str]) -> str:
    """Return the numbers of requests for log files, for indexes, and of others if there are any."""
    others = requests.total() - requests[GET_LOG] - requests[GET_INDEXES]
    parts = [requests[GET_LOG], requests[GET_INDEXES], *([others] if others else [])]
    return " + ".join(f"{count:,}" for count in parts)
