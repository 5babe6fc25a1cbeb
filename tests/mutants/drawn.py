"""Mutants that a seed draws from all changes of the rooms that decide, or wire decisions to what acts.

The same seed and the same sources give the same mutants. Each is put to the tests that execute one of its lines: first
those that have caught mutants of the same file, then the quick ones, up to the seconds of a round. What survives the first
round is tried again in the second one, which takes more tests. Results go into a file; a run that is begun again goes on
with it. What was caught stays caught while the sources are the same; what has survived is tried again when the tests have
changed.

A mutant that survives needs a reason in `survivors.txt`. The command fails without one, or if too many survive.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutants import lines
from tests.mutants.changes import Change, changes_of, compiles
from tests.mutants.runs import PACKAGE, ROOT, SOURCES, Copy, Run, run_all
from tests.mutants.server import Client

TARGET = ROOT / "target" / "mutants"
REASONS = Path(__file__).parent / "survivors.txt"
FOLDERS = (*lines.ROOMS, "cuts")
FILES = ("golden/test_newer_formats.py", "golden/test_dropped_formats.py")
SURVIVING_MAX = 0.05
ROUNDS = (15, 90)  # seconds of the tests of one mutant, as long as they take when they are traced
TEST_SECONDS_MAX = 60
FILES_AT_ONCE = (
    8  # that one process traces: a start takes seconds, and what was traced outlives a run that is ended
)
FEW_TESTS = 3  # that execute a line
KILLERS_FIRST = 10  # tests that have caught a mutant of the same file
# Of a room, a test that looks at all constants and defaults of its modules. It executes next to none of their lines.
LOOKING = {"log": "tests/log/test_accounts.py::test_constants_and_defaults_are_those_that_are_kept"}


def digest(paths: Iterable[Path]) -> str:
    """A word for the content of files."""
    found = hashlib.sha256()
    for path in sorted(paths):
        found.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()[:16]


def draw(seed: int, count: int, only: str = "") -> list[Change]:
    """The mutants of a seed, in the order in which they are drawn.

    Args:
        seed: decides which, and in which order.
        count: how many.
        only: in files whose path in the package has this text. With a count that is great enough, all of them.
    """
    texts = {
        path.relative_to(SOURCES / PACKAGE).as_posix(): path.read_text()
        for room in lines.ROOMS
        for path in sorted((SOURCES / PACKAGE / room).rglob("*.py"))
    }
    every = [change for path, text in texts.items() for change in changes_of(path, text)]
    random.Random(seed).shuffle(every)
    mine = (change for change in every if only in change.path)
    found = (change for change in mine if compiles(change.applied(texts[change.path])))
    return [change for change, _ in zip(found, range(count), strict=False)]


# -- which tests ---------------------------------------------------------------------------------------------------


def test_files() -> list[Path]:
    """The files whose tests may catch a mutant."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))]
    return [*found, *(ROOT / "tests" / name for name in FILES)]


def groups(paths: Iterable[Path]) -> list[list[Path]]:
    """The files in groups, each of at most FILES_AT_ONCE files of one folder."""
    found: dict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        found[path.parent].append(path)
    return [
        folder[begin : begin + FILES_AT_ONCE]
        for folder in found.values()
        for begin in range(0, len(folder), FILES_AT_ONCE)
    ]


class Coverage:
    """Which tests execute a line, and how long each takes.

    The tests of several files of a folder are traced in one process. The trace of a file is kept until the file changes,
    or a source file of the rooms that its tests execute.
    """

    def __init__(self, workers: int, tell) -> None:
        files = {path: TARGET / "lines" / f"{digest([path])}.json" for path in test_files()}
        missing = {path: target for path, target in files.items() if not self._is_current(target)}
        (TARGET / "lines").mkdir(parents=True, exist_ok=True)
        tell(f"{len(files)} files with tests, {len(missing)} of them to be traced")
        with ThreadPoolExecutor(workers) as pool:
            list(
                pool.map(
                    lambda paths: self._trace({path: missing[path] for path in paths}, tell), groups(missing)
                )
            )
        self.seconds: dict[str, float] = {}
        self._of_line: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._of_file: dict[str, set[str]] = defaultdict(set)
        for target in files.values():
            for test, told in json.loads(target.read_text())["tests"].items():
                if told["passed"]:
                    self.seconds[test] = told["seconds"]
                    for path, met in told["lines"].items():
                        self._of_file[path].add(test)
                        for line in met:
                            self._of_line[path, line].add(test)

    @staticmethod
    def _is_current(target: Path) -> bool:
        if not target.exists():
            return False
        sources = json.loads(target.read_text())["sources"]
        paths = {name: SOURCES / PACKAGE / name for name in sources}
        return all(path.exists() and digest([path]) == sources[name] for name, path in paths.items())

    @staticmethod
    def _trace(targets: dict[Path, Path], tell) -> None:
        made = next(iter(targets.values())).with_suffix(".new")
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", lines.__name__)
        done = subprocess.run(
            [*command, "--hypothesis-seed=0", *map(str, targets)],
            cwd=ROOT,
            env=os.environ | {lines.TARGET: str(made), "PYTHONPATH": str(SOURCES), "PYTHONHASHSEED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        names = {path.relative_to(ROOT).as_posix(): target for path, target in targets.items()}
        if not made.exists():
            raise RuntimeError(f"{', '.join(names)} were not traced:\n{done.stdout.decode(errors='replace')}")
        traced = json.loads(made.read_text())
        made.unlink()
        for name, target in names.items():
            tests = {test: told for test, told in traced.items() if test.partition("::")[0] == name}
            met = {source for told in tests.values() for source, found in told["lines"].items() if found}
            sources = {source: digest([SOURCES / PACKAGE / source]) for source in sorted(met)}
            made.write_text(json.dumps({"sources": sources, "tests": tests}))
            made.rename(target)
            failed = sum(not told["passed"] for told in tests.values())
            tell(f"traced {name}" + f": {failed} failed tests are not used" * bool(failed))

    def _executing(self, change: Change) -> set[str]:
        return {test for line in change.lines for test in self._of_line[change.path, line]}

    def is_executed(self, change: Change) -> bool:
        """Whether a test executes a line of it; if not, it runs at the import, or never."""
        return bool(self._executing(change))

    def tests_for(self, change: Change, killers: Iterable[str], seconds_max: float) -> list[str]:
        """The tests that may catch a mutant, as many as take so many seconds.

        First, for what runs at the import, the one that looks at the room's constants; then those of `killers` that are quick; then the tests of its room before others, one variant of each before a second one, the quick
        ones first.
        """
        found = self._executing(change)
        room = change.path.partition("/")[0]
        looking = [LOOKING[room]] if not found and LOOKING.get(room) in self.seconds else []
        if not found:  # what runs at the import works in all that uses the module
            found = self._of_file[change.path]
        if not found:  # a module without functions
            found = {test for test in self.seconds if test.startswith(f"tests/{room}/")}
        quick = seconds_max / KILLERS_FIRST
        first = [test for test in killers if test in found and self.seconds[test] <= quick][:KILLERS_FIRST]
        variants: Counter[str] = Counter()
        rank = {}
        for test in sorted(found, key=lambda test: (self.seconds[test], test)):
            name = test.partition("[")[0]
            rank[test] = not test.startswith(f"tests/{room}/"), variants[name], self.seconds[test], test
            variants[name] += 1
        first = [*looking, *(test for test in first if test not in looking)]
        ordered = first + sorted(found - set(first), key=rank.__getitem__)
        seconds, chosen = 0.0, []
        for test in ordered:
            if not chosen or seconds + self.seconds[test] <= seconds_max:
                seconds += self.seconds[test]
                chosen.append(test)
        return chosen


class Place:
    """Where mutants are tried: a server of tests; and a copy of the sources, for what runs at the import."""

    def __init__(self, directory: Path) -> None:
        self.copy = Copy(directory)
        files = [str(path.relative_to(ROOT)) for path in test_files()]
        self.client = Client(files, directory / "served", TEST_SECONDS_MAX)

    def try_mutant(self, change: Change, text: str, tests: list[str], seconds: float, *, live: bool) -> Run:
        """Run tests with a mutant, up to the first failure.

        Args:
            change: that makes it.
            text: of the source file with it.
            tests: in their order.
            seconds: that they take about without it.
            live: whether it works in a function that is loaded already.
        """
        found, seconds_max = None, TEST_SECONDS_MAX + 2 * seconds
        if live and change.function is not None:
            found = self.client.try_mutant(change.path, text, change.function, tests, seconds_max=seconds_max)
        # What next to no test executes may have worked at the import, as a function that makes a table: there the change comes too late.
        if found is not None and (found.failed is not None or len(tests) > FEW_TESTS):
            return found
        with self.copy.changed(change.path, text):
            return self.copy.run(tests, seconds_max=seconds_max, test_seconds_max=TEST_SECONDS_MAX)

    def close(self) -> None:
        """End the server."""
        self.client.close()


# -- results -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """How a mutant fared.

    Attributes:
        path: of the source file, in the package.
        begin: where it changes the source.
        kind: of the change.
        line: of the source.
        before: the lines that are changed.
        after: the same with the mutant.
        test: the one that has caught it; None if it survives.
        tested: how many tests were chosen.
        rounds: in how many rounds it was tried.
        seconds: that the last of them took.
    """

    path: str
    begin: int
    kind: str
    line: int
    before: str
    after: str
    test: str | None
    tested: int
    rounds: int
    seconds: float

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from the other mutants of the same sources."""
        return self.path, self.begin, self.after


class Results:
    """The file of the results of one seed."""

    def __init__(self, path: Path, sources: str, tests: str) -> None:
        self._path = path
        self._header = {"sources": sources, "tests": tests}
        self.found: dict[tuple[str, int, str], Result] = {}
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        if rows and rows[0]["sources"] == sources:
            for row in rows[1:]:
                result = Result(**row)
                if result.test is not None or rows[0]["tests"] == tests:
                    self.found[result.key] = result
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [self._header, *map(asdict, self.found.values())]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in kept))

    def add(self, result: Result) -> None:
        """Note a result, in the file too."""
        self.found[result.key] = result
        with self._path.open("a") as out:
            out.write(f"{json.dumps(asdict(result))}\n")


def reasons() -> dict[tuple[str, str, str], str]:
    """Why mutants survive that are known to, by file, line before and line after."""
    found = {}
    for block in REASONS.read_text().split("\n\n") if REASONS.exists() else ():
        rows = block.strip("\n").split("\n")
        if rows[0].startswith("@ "):
            path, before, after = (
                next(row[2:] for row in rows if row.startswith(sign)) for sign in ("@ ", "- ", "+ ")
            )
            found[path, before, after] = next(row[2:] for row in rows if row.startswith("= "))
    return found


# -- the command ---------------------------------------------------------------------------------------------------


def run(
    seed: int,
    count: int,
    workers: int,
    tell,
    *,
    only: str = "",
    surviving_max: float = SURVIVING_MAX,
    needs_reasons: bool = True,
) -> bool:
    """Draw mutants, try them, and tell how each fared. Returns whether few enough survive, each with a reason.

    Args:
        seed: decides which.
        count: how many.
        workers: how many are tried at once.
        tell: called with each line.
        only: in files whose path in the package has this text.
        surviving_max: the part of the mutants that may survive.
        needs_reasons: whether each survivor has to have a reason. Those of a seed that is drawn anew have none.
    """
    began = time.monotonic()
    drawn = draw(seed, count, only)
    coverage = Coverage(workers, tell)
    target = TARGET / f"random-{seed}.jsonl"
    results = Results(
        target, digest((SOURCES / PACKAGE).rglob("*.py")), digest((ROOT / "tests").rglob("*.py"))
    )
    texts = {path: (SOURCES / PACKAGE / path).read_text() for path in {change.path for change in drawn}}
    mine = {(change.path, change.begin, change.shown(texts[change.path])[1]): change for change in drawn}
    killers: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results.found.values():
        killers[result.path][result.test or ""] += 1
    tell(
        f"seed {seed}: {len(mine)} mutants, {len(mine.keys() & results.found.keys())} of them known from {target}"
    )

    def work(place: Place, job: tuple[Change, int]) -> Result:
        (change, number), started = job, time.monotonic()
        first = [test for test, _ in killers[change.path].most_common()]
        tests = coverage.tests_for(change, first, ROUNDS[number - 1])
        seconds = sum(coverage.seconds[test] for test in tests)
        text, live = change.applied(texts[change.path]), coverage.is_executed(change)
        found = place.try_mutant(change, text, tests, seconds, live=live) if tests else Run(None)
        before, after = change.shown(texts[change.path])
        line, seconds = (
            texts[change.path].count("\n", 0, change.begin) + 1,
            round(time.monotonic() - started, 1),
        )
        return Result(
            change.path,
            change.begin,
            change.kind,
            line,
            before,
            after,
            found.failed,
            len(tests),
            number,
            seconds,
        )

    for number in range(1, len(ROUNDS) + 1):
        left = [(change, number) for key, change in mine.items() if _is_left(results.found.get(key), number)]
        for done, (_, result) in enumerate(run_all(left, work, workers, Place) if left else (), 1):
            results.add(result)
            killers[result.path][result.test or ""] += 1
            fate = (
                f"caught by {result.test}"
                if result.test
                else f"SURVIVES {result.tested} tests: {result.after}"
            )
            tell(
                f"round {number}: {done}/{len(left)} {result.path}:{result.line} {result.kind}: {fate} "
                f"({result.seconds:.0f} s)"
            )
    found = [results.found[key] for key in mine]
    return summary(
        found,
        seed,
        time.monotonic() - began,
        tell,
        surviving_max=surviving_max,
        needs_reasons=needs_reasons,
    )


def _is_left(result: Result | None, number: int) -> bool:
    """Whether a mutant has to be tried in a round."""
    return result is None or (result.test is None and result.rounds < number)


def summary(
    found: list[Result],
    seed: int,
    seconds: float,
    tell,
    *,
    surviving_max: float = SURVIVING_MAX,
    needs_reasons: bool = True,
) -> bool:
    known = reasons()
    survivors = sorted((one for one in found if one.test is None), key=lambda one: one.key)
    without = [one for one in survivors if (one.path, one.before, one.after) not in known]
    for one in survivors:
        reason = known.get((one.path, one.before, one.after), "NO REASON")
        tell(
            f"\n{one.path}:{one.line} {one.kind}, {one.tested} tests: {reason}\n- {one.before}\n+ {one.after}"
        )
    part = len(survivors) / max(len(found), 1)
    tell(
        f"\nseed {seed}: {len(found)} mutants, {len(found) - len(survivors)} caught, {len(survivors)} survive "
        f"({part:.1%}; at most {surviving_max:.0%}), {len(without)} of them without a reason; {seconds / 60:.1f} minutes"
    )
    return part <= surviving_max and not (needs_reasons and without)
