"""The table "Uses of the clocks" of decision 32 has a row for each use of a clock in the code, and each cell is a test or a reason."""

import ast
import functools
import re
from pathlib import Path

from tests import documented

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "stablelog"
SECTION = documented.section("Uses of the clocks")
# By the name of what is called: which clock it is. A method's name tells a clock that is passed as a function.
CLOCKS = {
    "now_ms": "broker time",
    "wall_ms": "wall clock",
    "time_ns": "wall clock",
    "now": "wall clock",
    "utcnow": "wall clock",
    "st_mtime": "wall clock",
    "clock_gettime_ns": "wall clock",
    "monotonic": "steady clock",
    "monotonic_ns": "steady clock",
    "perf_counter": "steady clock",
    "perf_counter_ns": "steady clock",
    "now_s": "steady clock",
    "clock": "steady clock",
    "read_ns": "wall clock",
    "call_later": "steady clock",
    "call_at": "steady clock",
    "thread_time": "processor time",
    "thread_time_ns": "processor time",
    "process_time": "processor time",
}


def uses(tree):
    """The clocks that a module reads."""
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else node
        if not isinstance(called, ast.Name | ast.Attribute):
            continue
        name = (called.id if isinstance(called, ast.Name) else called.attr).removeprefix("_")
        if name != "time" and name not in CLOCKS:
            continue
        owner = "" if isinstance(called, ast.Name) else ast.unparse(called.value)
        if name == "time" and isinstance(node, ast.Call) and owner and not node.args:
            yield "wall clock" if owner == "time" else "steady clock"
        elif name == "now" and owner not in ("datetime", "datetime.datetime"):
            continue
        elif name != "time" and (isinstance(node, ast.Call) or owner == "time" or name == "st_mtime"):
            yield CLOCKS[name]


# The time that these modules call `now_ms` is the wall clock of the caller.
GIVEN_WALL_CLOCK = {
    "broker.tiering.partition_copier",
    "broker.tiering.segment_uploads",
    "broker.tiering.metadata_topic",
    "broker.tiering.remote_tiers",
    "broker.upkeep.compaction",
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in re.findall(r"^\|.*\|$", SECTION, re.M)[2:]
]
LEGEND = dict(re.findall(r"^- (T\d+|[A-Z]): (.*)$", SECTION, re.M))


@functools.cache
def found():
    """Each use as (module, clock), sorted."""
    pairs = set()
    for path in SRC.rglob("*.py"):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for clock in set(uses(ast.parse(path.read_text()))):
            is_given = clock == "broker time" and module in GIVEN_WALL_CLOCK
            pairs.add((module, "wall clock" if is_given else clock))
    return sorted(pairs)


def covers(row, module, clock):
    """Whether a row of the table has this use."""
    return row[1] == clock and any(
        module == name or (name.endswith(".*") and f"{module}.".startswith(name[:-1]))
        for name in re.findall(r"`([\w.*]+)`", row[2])
    )


def test_each_use_of_a_clock_has_a_row():
    assert len(found()) > 100
    without = [use for use in found() if not any(covers(row, *use) for row in ROWS)]
    assert not without, "decision 32 has no row for these in its table of clocks"


def test_each_row_has_a_use():
    for row in ROWS:
        for name in re.findall(r"`([\w.*]+)`", row[2]):
            one = [*row[:2], f"`{name}`"]
            assert any(covers(one, *use) for use in found()), (row[0], name)


def test_each_cell_is_a_test_or_a_reason():
    assert len(ROWS) > 20
    cells = {name for row in ROWS for cell in row[3:] for name in cell.split(", ")}
    assert all(len(row) == 8 for row in ROWS)
    assert cells <= LEGEND.keys(), cells - LEGEND.keys()
    for name, text in LEGEND.items():
        if name.startswith("T"):
            path, _, test = text.strip("`").partition("::")
            assert f"def {test}(" in (ROOT / path).read_text(), text
