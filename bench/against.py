"""`make bench AGAINST=COMMIT`: the working tree in turn with a commit, row by row, and the rows that became slower.

    python -m bench --against HEAD~3
    python -m bench --against v1 --commit v2 --only aborts --pairs 20

Each pair starts new processes of both variants and measures a row in short slices, in turn: A B B A. See
`bench.paired` for the interval. A row is decided by processor time; the clock stands beside it for information,
because it also measures what else the machine does.
"""

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.paired import PAIRS_MIN, SLOWER_BELOW, Interval, Verdict, pair_ratio, ratio_interval
from bench.report import machine
from bench.sides import NotMeasuredError, Side, check_out, copy_working_tree
from bench.workloads import ROWS, Cost, Workload, workloads

PAIRS = 12
SLICES = 8
KINDS = ("processor time", "clock")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared, and how much of it.

    Attributes:
        rows: names of the rows.
        pairs: sessions of each variant, each in new processes.
        slices: of each row in a session.
        divisor: of every count and size.
    """

    rows: frozenset[str]
    pairs: int = PAIRS
    slices: int = SLICES
    divisor: int = 1


@dataclass(slots=True)
class Result:
    """What was measured of one row.

    Attributes:
        costs: of each variant, the slices of each pair, in the order of the pairs.
        missing: why a variant could not be measured, by its name.
    """

    name: str
    costs: dict[str, list[list[Cost]]] = field(default_factory=lambda: {"old": [], "new": []})
    missing: dict[str, str] = field(default_factory=dict)

    def per_unit(self, side: str, kind: str) -> float:
        """Milliseconds for each unit of work: the median of all slices."""
        return statistics.median(cost for slices in self._slices(side, kind) for cost in slices)

    def interval(self, kind: str) -> Interval | None:
        """Old cost / new cost; None if a variant could not be measured."""
        if self.missing:
            return None
        pairs = zip(self._slices("old", kind), self._slices("new", kind), strict=True)
        return ratio_interval([pair_ratio(old, new) for old, new in pairs])

    def _slices(self, side: str, kind: str) -> list[list[float]]:
        place = KINDS.index(kind)
        return [[1000 * cost[place] / cost.units for cost in slices] for slices in self.costs[side]]

    @property
    def is_slower(self) -> bool:
        """Whether the row is flagged: by processor time alone, or because the new variant could not be measured."""
        if self.missing:
            return "new" in self.missing
        interval = self.interval("processor time")
        return interval is not None and interval.verdict is Verdict.SLOWER


def compare(
    sides: Sequence[Side], plan: Plan, tell: Callable[[str], None], works: Iterable[Workload] | None = None
) -> list[Result]:
    """Measure the rows on both variants in turn.

    Args:
        sides: the old variant, and the new one, which is judged.
        plan: what and how much.
        tell: called with what is being measured.
        works: the workloads; all of them if none are given.
    """
    everything = workloads() if works is None else works
    found = []
    for work in everything:
        results = {name: Result(name) for name in work.rows if name in plan.rows}
        if results:
            _compare(work, sides, plan, results, tell)
            found += results.values()
    return found


def _compare(
    work: Workload,
    sides: Sequence[Side],
    plan: Plan,
    results: Mapping[str, Result],
    tell: Callable[[str], None],
) -> None:
    """Measure the rows of one workload; it is over for all of them if one variant cannot do it."""
    now = sides[0]
    try:
        for now in sides:
            tell(f"{', '.join(results)}: preparing {now.name}")
            work.prepare(now, plan.divisor)
        for pair in range(plan.pairs):
            tell(f"{', '.join(results)}: pair {pair + 1} of {plan.pairs}")
            with contextlib.ExitStack() as stack:
                sessions = {}
                for now in in_turn(sides, pair):
                    sessions[now] = work.open(now, plan.divisor)
                    stack.callback(sessions[now].close)
                for name, result in results.items():
                    slices: dict[str, list[Cost]] = {side.name: [] for side in sides}
                    for turn in range(plan.slices):
                        for now in in_turn(sides, pair + turn):
                            slices[now.name].append(sessions[now].measure(name))
                    for side, costs in slices.items():
                        result.costs[side].append(costs)
    except NotMeasuredError as error:
        for result in results.values():
            result.missing[now.name] = str(error)


def in_turn(sides: Sequence[Side], turn: int) -> Sequence[Side]:
    """Now the one first, now the other."""
    return sides if turn % 2 == 0 else sides[::-1]


def table_of(results: Sequence[Result]) -> Table:
    """The results for the terminal: two lines for each row, the deciding one first."""
    table = Table(title="old cost / new cost: less than 1 is slower", title_justify="left")
    headings = ("row", "decided by", "unit", "old", "new", "ratio", "95 % interval", "")
    for heading in headings:
        is_figure = heading in ("old", "new", "ratio", "95 % interval")
        table.add_column(heading, justify="right" if is_figure else "left")
    for result in results:
        row = ROWS[result.name]
        for kind in KINDS:
            interval = result.interval(kind)
            if interval is None:
                side, reason = next(iter(result.missing.items()))
                table.add_row(row.what, "", "", "", "", "", "", f"{side} not measured: {reason}")
                break
            before, after = (result.per_unit(side, kind) for side in ("old", "new"))
            verdict = interval.verdict.value if kind == KINDS[0] else "for information"
            cells = (f"{before:.4g}", f"{after:.4g}", f"{interval.ratio:.3f}")
            table.add_row(
                row.what if kind == KINDS[0] else "",
                kind,
                f"ms/{row.unit}",
                *cells,
                f"{interval.low:.3f} to {interval.high:.3f}",
                f"[bold red]{verdict.upper()}[/]" if result.is_slower and kind == KINDS[0] else verdict,
            )
    return table


def as_json(results: Sequence[Result], old: Side, new: Side) -> dict[str, object]:
    """Every run's figures, and the verdicts, for programs."""
    return {
        "machine": machine(),
        "old": old.what,
        "new": new.what,
        "rows": [
            {
                **asdict(result),
                **{kind: asdict(found) for kind in KINDS if (found := result.interval(kind)) is not None},
                "slower": result.is_slower,
            }
            for result in results
        ],
    }


def run(asked: argparse.Namespace) -> int:
    """Compare what the command line names, and print it.

    Returns:
        0 if no row is flagged, else 1.

    Raises:
        SystemExit: a row or a commit is unknown, or fewer pairs are asked for than an interval needs.
    """
    unknown = set(asked.only or ()) - ROWS.keys()
    if unknown:
        raise SystemExit(f"bench: no such row: {', '.join(sorted(unknown))}. Rows: {', '.join(ROWS)}")
    if asked.pairs < PAIRS_MIN:
        raise SystemExit(f"bench: --pairs {asked.pairs}: at least {PAIRS_MIN}")
    plan = Plan(frozenset(asked.only or ROWS), asked.pairs, divisor=10 if asked.quick else 1)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="bench-against-") as directory:
        place = Path(directory)
        old = _side(place, "old", asked.against)
        new = _side(place, "new", asked.commit)
        console.print(f"{machine()}\nold: {old.what}\nnew: {new.what}")
        if old.dependencies() != new.dependencies():
            differ = ", ".join(sorted(old.dependencies() ^ new.dependencies()))
            console.print(
                f"pyproject.toml asks for other packages; both run with those installed here: {differ}"
            )
        with console.status("") as status:
            results = compare((old, new), plan, status.update)
    if asked.json:
        json.dump(as_json(results, old, new), sys.stdout, indent=2)
    else:
        Console(width=None if sys.stdout.isatty() else 180).print(table_of(results))
    flagged = [result.name for result in results if result.is_slower]
    console.print(
        f"SLOWER, upper end below {SLOWER_BELOW}: {', '.join(flagged)}"
        if flagged
        else f"no row is slower: no interval of processor time lies below {SLOWER_BELOW}"
    )
    return 1 if flagged else 0


def _side(place: Path, name: str, commit: str | None) -> Side:
    path, scratch = place / name, place / f"{name}-data"
    scratch.mkdir()
    what = check_out(commit, path) if commit else copy_working_tree(path)
    return Side(name, what, path, scratch)
