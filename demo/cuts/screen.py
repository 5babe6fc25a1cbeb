"""What the terminal shows while the scene plays: both readers side by side, and what Spark's joins have seen."""

from rich import box
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from demo.cuts.hours import Plan
from demo.cuts.ledger import Ledger, Moment
from demo.cuts.spark_watch import QUERIES, SparkWatch

BLOCKS = " ▁▂▃▄▅▆▇█"
SPARKLINE_WIDTH = 26


class Screen:
    """Draws how things stand."""

    def __init__(self, plan: Plan, ledger: Ledger, spark: SparkWatch) -> None:
        self._plan = plan
        self._ledger = ledger
        self._spark = spark
        self._record_count = sum(len(work.records) for work in plan.all())

    def draw(self, moment: Moment, place: int) -> Group:
        """The screen at a moment.

        Args:
            moment: how far writers and readers are.
            place: the hour that all writers have reached.
        """
        return Group(
            self._writing(moment, place), self._open(), Text(), self._readers(moment), Text(), self._joins()
        )

    def _writing(self, moment: Moment, place: int) -> Table:
        hours = self._plan.hours
        line = Table.grid(padding=(0, 2))
        line.add_row(
            f"[bold]{hours[min(place, len(hours) - 1)][:10]}[/bold]",
            ProgressBar(self._record_count, moment.committed_count, width=14),
            f"{moment.committed_count:,} records, {self._ledger.commit_count:,} transactions, "
            f"{self._ledger.abort_count} aborted",
        )
        return line

    def _open(self) -> Text:
        ledger, size = self._ledger, len(self._plan.late.records)
        if ledger.opened_at_s is None:
            return Text("all transactions are short so far", style="dim")
        if ledger.closed_at_s is None:
            return Text(
                f"a transaction of {size:,} records is open for {ledger.open_for_s():.1f} s", "bold yellow"
            )
        return Text(f"the long transaction was committed after {ledger.open_for_s():.1f} s", style="yellow")

    def _readers(self, moment: Moment) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("A Kafka consumer reads", no_wrap=True)
        for reader in moment.read_counts:
            table.add_column(reader, justify="right", no_wrap=True, min_width=SPARKLINE_WIDTH)
        readers = tuple(moment.read_counts)
        table.add_row("records read", *(f"{moment.read_counts[reader]:,}" for reader in readers))
        table.add_row("records behind", *(_shade(moment, reader, f"{moment.behind_count(reader):,}") for reader in readers))  # fmt: skip
        table.add_row("seconds behind", *(_shade(moment, reader, f"{moment.behind_s[reader]:.1f}") for reader in readers))  # fmt: skip
        table.add_row("", *(self._sparkline(reader) for reader in readers))
        return table

    def _sparkline(self, reader: str) -> Text:
        """How far behind the reader was, from the beginning until now, on one scale for all."""
        moments = self._ledger.moments
        highest = max(1.0, *(max(moment.behind_s.values()) for moment in moments))
        step = max(len(moments) / SPARKLINE_WIDTH, 1.0)
        picks = [moments[int(i * step)] for i in range(min(SPARKLINE_WIDTH, len(moments)))]
        heights = (moment.behind_s[reader] / highest for moment in picks)
        return Text("".join(BLOCKS[min(8, max(1, round(8 * height)))] for height in heights), "yellow")

    def _joins(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("Spark joins", no_wrap=True)
        for name in ("records", "batches", "torn transactions", "flights without weather"):
            table.add_column(name, justify="right", no_wrap=True)
        for query in QUERIES:
            seen = self._spark.summary(query)
            style = "bold red" if seen.torn else "bold green" if seen.batch_count else "dim"
            table.add_row(
                query,
                f"{seen.record_count:,}",
                str(seen.batch_count),
                Text(f"{len(seen.torn):,}", style),
                Text(f"{seen.bare_count:,}", style),
            )
        return table


def _shade(moment: Moment, reader: str, text: str) -> Text:
    return Text(text, style="bold red" if moment.behind_s[reader] > 1 else "bold green")
