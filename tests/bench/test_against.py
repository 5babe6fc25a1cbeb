"""The comparison of two commits: its statistics have known answers, its runs are in turn, and every row runs in miniature."""

import math
import random
import re
import subprocess
from argparse import Namespace

import pytest

from bench import against
from bench.against import Plan, Result, as_json, compare, table_of
from bench.paired import Interval, Verdict, pair_ratio, ratio_interval, t_quantile
from bench.report import DOCUMENT
from bench.sides import ROOT, NotMeasuredError, Probe, Side, check_out, copy_working_tree
from bench.workloads import ROWS, Cost, Row, workloads

# Two-sided 95 %, as printed in statistical tables.
TABLE = {
    1: 12.706,
    2: 4.303,
    3: 3.182,
    4: 2.776,
    5: 2.571,
    6: 2.447,
    9: 2.262,
    11: 2.201,
    29: 2.045,
    120: 1.980,
}


@pytest.mark.parametrize(("degrees", "quantile"), TABLE.items())
def test_the_quantile_of_student_is_that_of_the_tables(degrees, quantile):
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, abs=0.0006)


def test_other_confidences_have_their_quantiles():
    assert t_quantile(0.99, 5) == pytest.approx(4.032, abs=0.0006)
    assert t_quantile(0.5, 1) == pytest.approx(1.0)  # the quartile of the Cauchy distribution


def test_the_interval_of_two_pairs_is_what_a_hand_finds():
    found = ratio_interval([math.exp(-0.1), math.exp(0.1)])
    half = 12.7062 * math.sqrt(0.02) / math.sqrt(2)
    assert found.ratio == pytest.approx(1.0)
    assert found.low == pytest.approx(math.exp(-half), rel=1e-4)
    assert found.high == pytest.approx(math.exp(half), rel=1e-4)


@pytest.mark.extended
def test_the_interval_holds_the_true_ratio_in_95_of_100_runs():
    chance = random.Random(1)
    held = 0
    for _ in range(4000):
        found = ratio_interval([1.1 * math.exp(chance.gauss(0, 0.05)) for _ in range(7)])
        held += found.low <= 1.1 <= found.high
    assert 0.94 < held / 4000 < 0.96


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.90, 0.9699, Verdict.SLOWER),
        (0.90, 0.97, Verdict.UNDECIDED),
        (0.9699, 1.2, Verdict.UNDECIDED),
        (0.97, 1.0, Verdict.HOLDS),
        (1.2, 1.3, Verdict.HOLDS),
    ],
)
def test_only_an_interval_that_lies_below_the_bound_is_slower(low, high, verdict):
    assert Interval((low + high) / 2, low, high).verdict is verdict


def test_slices_in_which_the_machine_did_something_else_are_left_out():
    new = [1.0] * 8
    assert pair_ratio([2, 2, 2, 2, 2, 2, 20, 0.1], new) == pytest.approx(2)
    assert pair_ratio([2, 4], [1, 1]) == pytest.approx(math.sqrt(8))


class Sessions:
    """A workload without a broker; `costs` says what a slice costs each variant."""

    def __init__(self, costs, *, fails=None):
        self.rows = {"fetch-1k": Row("fetch", "MB")}
        self.costs, self.fails = costs, fails
        self.measured, self.open_count = [], 0

    def prepare(self, side, divisor):
        assert divisor == 4

    def open(self, side, divisor):
        if side.name == self.fails:
            raise NotMeasuredError("it has no such thing")
        self.open_count += 1
        session = Sessions(self.costs)
        session.measured, session.side = self.measured, side
        session.close = self.closed
        return session

    def closed(self):
        self.open_count -= 1

    def measure(self, row):
        self.measured.append(self.side.name)
        return Cost(self.costs[self.side.name](), 1.0, 2.0)


@pytest.fixture
def sides(tmp_path):
    return [Side(name, name, tmp_path, tmp_path) for name in ("old", "new")]


def compared(work, sides, pairs=7):
    [result] = compare(sides, Plan(frozenset(ROWS), pairs, slices=4, divisor=4), lambda _what: None, [work])
    return result


def test_a_slower_commit_is_flagged_and_an_equal_one_is_not(sides):
    chance = random.Random(5)
    noisy = {"old": lambda: chance.gauss(1, 0.01), "new": lambda: chance.gauss(1.1, 0.01)}
    slower = compared(Sessions(noisy), sides)
    assert slower.is_slower
    assert slower.interval("processor time").ratio == pytest.approx(1 / 1.1, rel=0.02)
    assert not compared(Sessions(noisy | {"new": noisy["old"]}), sides).is_slower
    faster = compared(Sessions({"old": noisy["new"], "new": noisy["old"]}), sides)
    assert not faster.is_slower
    assert faster.interval("processor time").low > 1


def test_the_clock_decides_nothing():
    slices = [[Cost(1.0, 1.0, 1)] for _ in range(7)]
    slow = [[Cost(1.0, 2.0, 1)] for _ in range(7)]
    result = Result("fetch-1k", {"old": slices, "new": slow})
    assert result.interval("clock").high < 0.97
    assert not result.is_slower


def test_the_variants_take_turns(sides):
    work = Sessions({"old": lambda: 1.0, "new": lambda: 1.0})
    compared(work, sides, pairs=2)
    one_way = ["old", "new", "new", "old"] * 2
    other_way = ["new", "old", "old", "new"] * 2
    assert work.measured == one_way + other_way
    assert work.open_count == 0


@pytest.mark.parametrize(("fails", "is_slower"), [("old", False), ("new", True)])
def test_what_a_variant_cannot_do_is_reported_and_counts_against_the_new_one(sides, fails, is_slower):
    work = Sessions({"old": lambda: 1.0, "new": lambda: 1.0}, fails=fails)
    result = compared(work, sides)
    assert result.missing == {fails: "it has no such thing"}
    assert result.is_slower is is_slower
    assert work.open_count == 0
    assert any("not measured" in cell for column in table_of([result]).columns for cell in column.cells)


def test_the_report_has_both_kinds_of_time_and_every_slice(sides):
    result = compared(Sessions({"old": lambda: 0.5, "new": lambda: 0.5}), sides)
    table = table_of([result])
    assert [*table.columns[1].cells] == ["processor time", "clock"]
    assert [*table.columns[3].cells] == ["250", "500"]  # ms for each of two units
    assert [*table.columns[-1].cells] == ["holds", "for information"]
    [row] = as_json([result], *sides)["rows"]
    assert row["processor time"] == {"ratio": 1.0, "low": 1.0, "high": 1.0}
    assert len(row["costs"]["old"]) == 7
    assert row["slower"] is False


def git(repository, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", repository, *identity, *words], check=True, capture_output=True)


def test_the_sources_of_a_commit_are_checked_out_and_the_repository_stays_as_it_is(tmp_path):
    repository = tmp_path / "repository"
    (repository / "src").mkdir(parents=True)
    git(tmp_path, "init", "-q", "repository")
    for content in ("one", "two"):
        (repository / "src" / "module.py").write_text(content)
        (repository / "pyproject.toml").write_text(f'[project]\ndependencies = ["{content}"]\n')
        git(repository, "add", "-A")
        git(repository, "commit", "-q", "-m", f"the {content}")
    (repository / "src" / "module.py").write_text("not committed")
    assert check_out("HEAD~1", tmp_path / "old", repository).endswith(" the one")
    assert (tmp_path / "old" / "src" / "module.py").read_text() == "one"
    copy_working_tree(tmp_path / "new", repository)
    assert (tmp_path / "new" / "src" / "module.py").read_text() == "not committed"
    assert Side("old", "", tmp_path / "old", tmp_path).dependencies() == {"one"}
    told = subprocess.run(
        ["git", "-C", repository, "worktree", "list"], capture_output=True, text=True, check=True
    )
    assert len(told.stdout.splitlines()) == 1
    with pytest.raises(SystemExit, match="nowhere is not a commit"):
        check_out("nowhere", tmp_path / "other", repository)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"only": ["fetch-2k"]}, "no such row: fetch-2k. Rows: produce-100"),
        ({"pairs": 6}, "--pairs 6: at least 7"),
    ],
)
def test_what_cannot_be_compared_is_refused(given, message):
    asked = {"against": "HEAD", "commit": None, "only": None, "pairs": 7, "quick": False, "json": False}
    with pytest.raises(SystemExit, match=message):
        against.run(Namespace(**asked | given))


def test_a_process_that_fails_says_why(tmp_path):
    side = Side("old", "", ROOT, tmp_path)
    with pytest.raises(NotMeasuredError, match="the process ended: KeyError: 'nothing'"):
        Probe(side, "nothing")


@pytest.fixture(scope="module")
def side(module_path):
    return Side("new", "", ROOT, module_path)


def by_day_or_by_night():
    """The workloads: two of them by day."""
    for work in workloads():
        name = next(iter(work.rows))
        marks = [] if name in ("produce-100", "start-after-kill") else [pytest.mark.night]
        yield pytest.param(work, id=name, marks=marks)


@pytest.mark.extended
@pytest.mark.parametrize("work", [*by_day_or_by_night()])
def test_every_row_runs_in_miniature(work, side):
    """With one variant: a second one would only repeat it."""
    work.prepare(side, 200)
    session = work.open(side, 200)
    try:
        for name in work.rows:
            assert min(session.measure(name)) > 0, name
    finally:
        session.close()


def test_every_row_has_a_name_of_its_own_and_stands_in_the_document():
    assert len(ROWS) == sum(len(work.rows) for work in workloads())
    document = DOCUMENT.read_text()
    batches = re.compile("batches-(16k|1m)-(100|1k)(-lz4)?(-mixed)?")
    assert "| `batches-SIZE-RECORD`, with 16k or 1m, and 100 or 1k |" in document
    assert "`-lz4` compresses, and `-mixed` (also `-lz4-mixed`)" in document
    others = [name for name in ROWS if not batches.fullmatch(name)]
    assert len(others) == len(ROWS) - 16
    assert [name for name in others if f"`{name}`" not in document] == []
