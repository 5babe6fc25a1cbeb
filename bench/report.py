"""How are the figures shown: a table for the terminal, and the same in docs/how-it-works/benchmarks.md."""

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

DOCUMENT = Path(__file__).parents[1] / "docs" / "how-it-works" / "benchmarks.md"
FIGURES = re.compile(r"(?<=<!-- figures -->\n).*(?=<!-- end of figures -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is aimed at.

    Attributes:
        value: at least so much, or at most.
        at_most: whether less is better.
        of_figure: whether stablelog's own figure is meant, and not its ratio to the other's.
    """

    value: float
    at_most: bool = False
    of_figure: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.value:g}"


@dataclass(slots=True)
class Row:
    """One question, and what each contestant's runs say to it.

    Attributes:
        what: the question, with its unit.
        wanted: what is aimed at.
        limit: what there is at best: of the machine, or of what stands between stablelog and whoever measures.
        beside: who the other contestant is.
        runs: the figures of each contestant's runs.
    """

    what: str
    wanted: Wanted | None = None
    limit: float | None = None
    beside: str = KAFKA
    runs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contestant: str, figure: float) -> None:
        """Note the figure of a run."""
        self.runs.setdefault(contestant, []).append(figure)

    def median(self, contestant: str) -> float | None:
        """The median of a contestant's runs; None if it has none."""
        runs = self.runs.get(contestant)
        return statistics.median(runs) if runs else None

    @property
    def ratio(self) -> float | None:
        """Ours as a multiple of the other's: the median over runs that were made one after the other."""
        pairs = list(zip(self.runs.get(OURS, ()), self.runs.get(self.beside, ()), strict=False))
        ratios = [ours / theirs for ours, theirs in pairs if theirs]
        return statistics.median(ratios) if ratios else None

    @property
    def reached(self) -> bool | None:
        """Whether there is what was aimed at; None if there is nothing to hold it against, or no aim."""
        if self.wanted is None:
            return None
        found = self.median(OURS) if self.wanted.of_figure else self.ratio
        if found is None:
            return None
        return found <= self.wanted.value if self.wanted.at_most else found >= self.wanted.value

    def cells(self) -> tuple[str, ...]:
        """The row as text, in the order of the section's headings."""
        wanted = "" if self.wanted is None else str(self.wanted)
        ratio = "" if self.ratio is None else f"{self.ratio:.2g}" if self.ratio < 10 else f"{self.ratio:.0f}"
        figures = [_figure(value) for value in (self.median(OURS), self.median(self.beside))]
        return self.what, *figures, ratio, wanted, _figure(self.limit)


@dataclass(slots=True)
class Section:
    """Rows under one heading.

    Attributes:
        title: the heading.
        rows: what is under it.
        beside: who is measured beside stablelog; empty if nobody is.
    """

    title: str
    rows: list[Row] = field(default_factory=list)
    beside: str = KAFKA

    def row(self, what: str, *, wanted: Wanted | float | None = None, limit: float | None = None) -> Row:
        """The row of this question; made if it is not there.

        Args:
            what: the question, with its unit.
            wanted: what is aimed at; a number is of the ratio, at least, or at most where it is under 1.
            limit: what there is at best.
        """
        for row in self.rows:
            if row.what == what:
                return row
        if isinstance(wanted, float | int):
            wanted = Wanted(wanted, at_most=wanted < 1)
        self.rows.append(Row(what, wanted, limit, self.beside))
        return self.rows[-1]

    @property
    def headings(self) -> tuple[str, ...]:
        """What stands over the cells of its rows."""
        beside = self.beside.removeprefix("Apache ")
        return "", "stablelog", beside, "ratio" if beside else "", "wanted", "limit"


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
        for place, heading in enumerate(section.headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in section.rows:
            style = {True: "green", False: "yellow", None: ""}[row.reached]
            cells = [*row.cells()]
            held = 1 if row.wanted is not None and row.wanted.of_figure else 3
            cells[held] = f"[{style}]{cells[held]}[/]" if style else cells[held]
            table.add_row(*cells)
        console.print(table)


def write_document(sections: Sequence[Section], path: Path = DOCUMENT) -> None:
    """Put the sections where docs/how-it-works/benchmarks.md has its figures. Sections that were not measured now stay."""
    text = path.read_text()
    place = FIGURES.search(text)
    assert place is not None, f"{path} has no place for the figures"
    _, *before = re.split(r"^\*\*(.+)\*\*\n", place[0], flags=re.MULTILINE)
    bodies = dict(zip(before[::2], before[1::2], strict=True))
    bodies |= {section.title: _markdown(section) for section in sections}
    figures = "".join(f"**{title}**\n{body}" for title, body in bodies.items())
    path.write_text(f"{text[: place.start()]}Measured on {machine()}.\n\n{figures}{text[place.end() :]}")


def _markdown(section: Section) -> str:
    """The table of a section, without the columns that have no figure, and without the rows in which both have 0."""
    rows = [cells for row in section.rows if (cells := row.cells())[1:3] != ("0", "0")]
    shown = [0, *(place for place in range(1, len(section.headings)) if any(cells[place] for cells in rows))]
    lines = [f"| {' | '.join(cells[place] for place in shown)} |" for cells in (section.headings, *rows)]
    return "\n".join(["", lines[0], "|---" + "|---:" * (len(shown) - 1) + "|", *lines[1:], "", ""])
