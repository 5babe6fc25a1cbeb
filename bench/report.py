"""How are the figures shown: a table for the terminal, and the same in docs/benchmarks.md."""

import os
import platform
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.contestants import KAFKA, OURS

DOCUMENT = Path(__file__).parents[1] / "docs" / "benchmarks.md"
FIGURES = re.compile(r"(?<=<!-- figures -->\n).*(?=<!-- end of figures -->)", re.DOTALL)
HEADINGS = ("", "stablelog", "Kafka", "ratio", "wanted", "limit")


@dataclass(slots=True)
class Row:
    """One question, and what each broker's runs say to it.

    Attributes:
        what: the question, with its unit.
        wanted: the ratio of stablelog's figure to Kafka's that is aimed at: at least, or at most where it is under 1.
        limit: what the machine does at best.
        runs: the figures of each broker's runs.
    """

    what: str
    wanted: float | None = None
    limit: float | None = None
    runs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contestant: str, figure: float) -> None:
        """Note the figure of a run."""
        self.runs.setdefault(contestant, []).append(figure)

    def median(self, contestant: str) -> float | None:
        """The median of a broker's runs; None if it has none."""
        runs = self.runs.get(contestant)
        return statistics.median(runs) if runs else None

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of Kafka's: the median over runs that were made one after the other."""
        pairs = list(zip(self.runs.get(OURS, ()), self.runs.get(KAFKA, ()), strict=False))
        return statistics.median(ours / theirs for ours, theirs in pairs) if pairs else None

    @property
    def reached(self) -> bool | None:
        """Whether the ratio is what was aimed at; None if there is no ratio, or no aim."""
        if self.ratio is None or self.wanted is None:
            return None
        return self.ratio <= self.wanted if self.wanted < 1 else self.ratio >= self.wanted

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of HEADINGS."""
        wanted = "" if self.wanted is None else f"{'≤' if self.wanted < 1 else '≥'} {self.wanted:g}"
        ratio = "" if self.ratio is None else f"{self.ratio:.2g}" if self.ratio < 10 else f"{self.ratio:.0f}"
        figures = [_figure(value) for value in (self.median(OURS), self.median(KAFKA))]
        return self.what, *figures, ratio, wanted, _figure(self.limit)


@dataclass(slots=True)
class Section:
    """Rows under one heading."""

    title: str
    rows: list[Row] = field(default_factory=list)

    def row(self, what: str, *, wanted: float | None = None, limit: float | None = None) -> Row:
        """The row of this question; made if it is not there."""
        for row in self.rows:
            if row.what == what:
                return row
        self.rows.append(Row(what, wanted, limit))
        return self.rows[-1]


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> str:
    """Where it was measured."""
    return f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, Python {platform.python_version()}"


def print_tables(sections: Iterable[Section]) -> None:
    """Show the sections on the terminal."""
    console = Console()
    console.print(machine())
    for section in sections:
        table = Table(title=section.title, title_justify="left", title_style="bold")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if not heading else "right")
        for row in section.rows:
            style = {True: "green", False: "yellow", None: ""}[row.reached]
            *before, ratio, wanted, limit = row.cells()
            table.add_row(*before, f"[{style}]{ratio}[/]" if style else ratio, wanted, limit)
        console.print(table)


def write_document(sections: Sequence[Section], path: Path = DOCUMENT) -> None:
    """Put the sections where docs/benchmarks.md has its figures. Sections that were not measured now stay."""
    text = path.read_text()
    place = FIGURES.search(text)
    assert place is not None, f"{path} has no place for the figures"
    _, *before = re.split(r"^\*\*(.+)\*\*\n", place[0], flags=re.MULTILINE)
    bodies = dict(zip(before[::2], before[1::2], strict=True))
    bodies |= {section.title: _markdown(section) for section in sections}
    figures = "".join(f"**{title}**\n{body}" for title, body in bodies.items())
    path.write_text(f"{text[: place.start()]}Measured on {machine()}.\n\n{figures}{text[place.end() :]}")


def _markdown(section: Section) -> str:
    lines = ["", f"| {' | '.join(HEADINGS)} |", "|---" + "|---:" * 5 + "|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in section.rows]
    return "\n".join([*lines, "", ""])
