"""The table of rules agrees with the sources, changes are what they say, and a mutant that no test notices survives."""

import ast
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest

from stablelog.coordinators.transactions.config import TransactionConfig
from stablelog.log.model import LogConfig
from tests.mutants import drawn, lines, server
from tests.mutants.__main__ import try_rules
from tests.mutants.changes import SETTINGS, changes_of, compiles
from tests.mutants.drawn import Result, Results, draw
from tests.mutants.rules import RULES, Rule, read
from tests.mutants.runs import PACKAGE, ROOT, SOURCES, Run

ROWS_MIN = 60


SLOW = ("tests/chaos", "tests/clients", "tests/java", "tests/spark/test_")


def fault_of(rule):
    """What is wrong with a rule; None if nothing is."""
    try:
        mutated = rule.mutated()
    except ValueError as error:
        return str(error)  # it says what to write
    if rule.new == rule.old:
        return "its two texts are equal"
    if not compiles(mutated):
        return "a mutant that does not compile is caught by every test"
    if rule.test.startswith(SLOW):
        return "a test of a rule is quick, and starts no Spark and no other client"
    return None


def test_each_rule_names_what_is_there():
    faults = {rule.says: fault for rule in RULES if (fault := fault_of(rule)) is not None}
    assert not faults


@pytest.mark.extended
def test_every_rule_names_a_test_that_is_collected(request):
    """By this run, if it is of all tests; otherwise by another one."""
    groups = re.compile(r"@[^@\]]*$")  # what pytest-xdist adds to an id
    found = {groups.sub("", item.nodeid): item for item in request.session.items}
    wanted = {rule.test for rule in RULES}
    by_night = {test for test in wanted & found.keys() if found[test].get_closest_marker("night")}
    assert not by_night, "the tests of rules run by day, too"
    assert not wanted - found.keys() - collected(wanted - found.keys()), (
        "no test has these node ids: name in tests/mutants/rules those that catch the mutants now"
    )


def collected(tests):
    """What pytest collects from the files of these tests."""
    if not tests:
        return set()
    files = sorted({test.partition("::")[0] for test in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    # The tests of Spark leave a PYTHONPATH for its workers, which hides hypothesis.
    known = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, env=known)
    assert done.returncode == 0, done.stdout
    return set(done.stdout.splitlines())


def test_no_rule_stands_twice():
    assert len(RULES) >= ROWS_MIN
    assert len({rule.says for rule in RULES}) == len(RULES)
    assert len({(rule.path, rule.old, rule.new) for rule in RULES}) == len(RULES)


def test_a_text_that_is_gone_or_stands_twice_is_named():
    path, source = (
        "log/producer_state/producers.py",
        (SOURCES / PACKAGE / "log/producer_state/producers.py").read_text(),
    )
    gone, twice = (
        Rule("a", "It holds.", path, "no such text", "", ""),
        Rule("a", "It holds.", path, "def ", "", ""),
    )
    assert "no such text" not in source
    with pytest.raises(
        ValueError, match=r"'It holds.' is gone from log/producer_state/producers.py: write into rules/"
    ):
        gone.mutated()
    with pytest.raises(ValueError, match=r"'It holds.' stands \d+ times in log/producer_state/producers.py"):
        twice.mutated()


def test_a_table_is_read_with_texts_of_several_lines():
    rules = read(
        "# an area\n\nIt holds.\n@ a.py\n-     one\n-         two\n+ three\n= tests/x.py::test_y[a b]\n"
    )
    assert rules == [
        Rule("an area", "It holds.", "a.py", "    one\n        two", "three", "tests/x.py::test_y[a b]")
    ]


@pytest.mark.extended
def test_a_mutant_that_a_weak_test_does_not_notice_survives(capsys):
    """The same fault, put to a test that asks for it and to one that does not."""
    old, new = (
        "(self.last_sequence - self.offset_delta) & SEQUENCE_MAX",
        "self.last_sequence - self.offset_delta",
    )
    sound = "tests/log/producer_state/test_producers.py::test_a_batch_whose_sequences_wrap_is_recognised"
    weak = "tests/log/producer_state/test_producers.py::test_the_window_of_five_survives_a_crash"
    rules = [
        Rule("cuts", f"It wraps, {at}.", "log/producer_state/producer.py", old, new, at)
        for at in (sound, weak)
    ]
    assert not try_rules(rules, workers=1)
    said = capsys.readouterr().out
    assert f"caught   cuts: It wraps, {sound}." in said
    assert f"SURVIVES cuts: It wraps, {weak}." in said
    assert said.rstrip().endswith(f"{weak} passes with it")


SOURCE = '''
"""A module."""
import os
LIMIT: int = 5

def count(rows: list[int], least=1) -> int:
    """How many."""
    assert rows, "none"
    found = 0
    for row in rows:
        if row >= least and row != 7:  # a comment: < and or
            found += 1
    if not found:
        raise ValueError(f"none of {len(rows) - 1}")
    log.warning("found %d", found + 1)
    return min(found, LIMIT)
'''


def test_changes_are_small_faults_of_behaviour_and_nothing_else():
    changes = changes_of("log/x.py", SOURCE)
    assert all(compiles(change.applied(SOURCE)) for change in changes)
    shown = {change.shown(SOURCE) for change in changes}
    line = "if row >= least and row != 7: # a comment: < and or"
    for after in (
        line.replace(">=", ">"),
        line.replace("d row !=", "d row =="),
        line.replace("t and r", "t or r"),
    ):
        assert (line, after) in shown
    assert ("found += 1", "pass") in shown
    assert ("found += 1", "found -= 1") in shown
    assert ("return min(found, LIMIT)", "return max(found, LIMIT)") in shown
    assert ("return min(found, LIMIT)", "return min(LIMIT, found)") not in shown, (
        "min is the same in any order"
    )
    assert ("LIMIT: int = 5", "LIMIT: int = (6)") in shown
    for before, _ in shown:
        assert not any(word in before for word in ("import", "assert", "log.", '"""'))
    raised = [after for before, after in shown if before.startswith("raise")]
    assert raised == ["pass"], "what an error says changes no behaviour"


COSTS = """
READ_SIZE = 4 << 20
READ_SIZE_MAX = 7
SECONDS_MAX = 1

class LogConfig:
    limit: int = 3

def size(disk, path, rows, names):
    file = disk.open(path)
    found, shown = file.size, rows[0] + 1
    for row, name in zip(rows, names, strict=True):
        if row.size != found:
            told = row.size - found
            raise ValueError(f"{name}: {told}")
    file.close()
    rows.close()
    if found < 0:
        raise AssertionError(f"{found} bytes")
    if shown > found:
        return False
    return True
"""


def test_what_cannot_make_an_answer_wrong_is_not_changed():
    shown = {change.shown(COSTS) for change in changes_of("log/x.py", COSTS)}
    befores = {before for before, _ in shown}
    assert {before for before in befores if before.isupper() or " = " in before} == {
        "READ_SIZE = 4 << 20",
        "SECONDS_MAX = 1",
        "found, shown = file.size, rows[0] + 1",
    }
    assert {after for before, after in shown if before.startswith("READ")} == {"READ_SIZE = 4 >> 20"}
    assert {after for before, after in shown if before == "rows.close()"} == {"pass"}
    assert not any("AssertionError" in before for before in befores)
    assert not befores & {"file.close()", "told = row.size - found", "limit: int = 3"}
    assert not any("strict=False" in after for _, after in shown)
    assert {after for before, after in shown if before == "return False"} == {"return True"}
    assert {after for before, after in shown if before == "return True"} == {"return False", "return None"}


HARMLESS = """
SCAN_COUNT_MAX = 64
SECONDS_MAX = 64

def look(file, count, rows):
    file.will_need(count - 1, 7)
    if count <= SCAN_COUNT_MAX:
        return rows
    if count <= SECONDS_MAX:
        return count
    with contextlib.suppress(ValueError, KeyError):
        rows.move(count, file)
    if rows:
        raise AssertionError("never")
    if file:
        raise ValueError("perhaps")
    return file

def damaged(position) -> DamageError:
    while position < 7:
        position += 1
    return DamageError(f"at {position}")
"""


def test_a_bound_of_an_amount_a_hint_and_the_order_of_exceptions_are_not_changed():
    shown = {change.shown(HARMLESS) for change in changes_of("log/x.py", HARMLESS)}
    assert not any("will_need" in before or "suppress" in before for before, _ in shown)
    of_amount = {after for before, after in shown if before == "if count <= SCAN_COUNT_MAX:"}
    assert of_amount == {"if count > SCAN_COUNT_MAX:", "if not (count <= SCAN_COUNT_MAX):"}
    assert ("if count <= SECONDS_MAX:", "if count < SECONDS_MAX:") in shown
    assert ("rows.move(count, file)", "rows.move(file, count)") in shown
    assert {before for before, _ in shown if before.startswith("raise")} == {'raise ValueError("perhaps")'}
    assert not any("position" in before for before, _ in shown), "it makes a message"


@pytest.mark.extended
def test_the_broker_names_every_setting_whose_default_is_not_changed():
    """So these defaults are those of tests alone."""
    named = {}
    for path in (SOURCES / PACKAGE / "broker").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                named.setdefault(node.func.id, []).append({keyword.arg for keyword in node.keywords})
    classes = (LogConfig, TransactionConfig)
    assert {settings.__name__ for settings in classes} == SETTINGS
    for settings in classes:
        every = {field.name for field in dataclasses.fields(settings)}
        assert every in named[settings.__name__]


def test_changes_know_the_lines_that_have_to_be_executed():
    changes = changes_of("log/x.py", SOURCE)
    at_import = {change.shown(SOURCE)[0] for change in changes if not change.lines}
    assert at_import == {"LIMIT: int = 5", "def count(rows: list[int], least=1) -> int:"}
    assert all(len(change.lines) == 1 for change in changes if change.lines)


@pytest.mark.extended
def test_a_seed_draws_the_same_mutants_of_each_room_again():
    mutants = draw(7, 500)
    assert len(mutants) == len(set(mutants)) == 500
    assert draw(7, 50) == mutants[:50] != draw(8, 50)
    rooms = Counter(change.path.partition("/")[0] for change in mutants)
    assert set(rooms) == set(lines.ROOMS)
    for change in mutants:
        source = (SOURCES / PACKAGE / change.path).read_text()
        assert change.applied(source) != source


def test_a_mutant_works_in_functions_that_its_function_has_made_before():
    source = "def checks(bound):\n    def check(value):\n        return value < bound\n\n    return [check, lambda: bound + 1]\n"
    made = {}
    exec(compile(source, "made.py", "exec"), made)
    check, above = made["checks"](7)
    functions = {("made.py", 1, "checks"): [made["checks"]], ("made.py", 2, "check"): [check]}
    functions["made.py", 5, "<lambda>"] = [above]
    server.apply(functions, "made.py", source.replace("value < bound", "value > bound"), 1, "checks")
    assert (check(7), check(8), above()) == (False, True, 8)
    assert made["checks"](7)[0](8)
    server.apply(functions, "made.py", source.replace("bound + 1", "bound - 1"), 1, "checks")
    assert (check(6), above()) == (True, 6)
    assert check(6)
    for text, name in ((source, "other"), (source.replace("value < bound", "True"), "checks")):
        with pytest.raises(server.NotLiveError):
            server.apply(functions, "made.py", text, 1, name)


def test_a_mutant_that_works_at_the_import_is_put_to_the_test_that_looks_at_constants_first():
    looking = drawn.LOOKING["log"]
    assert looking.partition("::")[2] in (ROOT / looking.partition("::")[0]).read_text()
    coverage = drawn.Coverage.__new__(drawn.Coverage)
    executes = "tests/log/test_a.py::test_executes"
    coverage.seconds = {looking: 4.0, executes: 0.1}
    changes = changes_of("log/x.py", SOURCE)
    at_import = next(change for change in changes if not change.lines)
    executed = next(change for change in changes if change.lines)
    coverage._of_file = {"log/x.py": {executes}}
    coverage._of_line = defaultdict(set, {("log/x.py", executed.lines[0]): {executes}})
    assert coverage.tests_for(executed, [executes], 9) == [executes]
    assert coverage.tests_for(at_import, [executes], 9) == [looking, executes]
    assert coverage.tests_for(at_import, [looking], 90) == [looking, executes]
    del coverage.seconds[looking]
    assert coverage.tests_for(at_import, [], 9) == [executes]


@pytest.mark.parametrize(
    ("failed", "count", "is_tried_again"),
    [(None, 3, True), (None, 4, False), ("test_a", 1, False)],
    ids=["few tests", "more tests", "caught"],
)
def test_a_survivor_that_few_tests_execute_is_tried_at_the_import_too(failed, count, is_tried_again):
    change = next(change for change in changes_of("log/x.py", SOURCE) if change.function is not None)
    place, copied = drawn.Place.__new__(drawn.Place), []
    live, at_import = Run(failed), Run("test_at_import")
    place.client = SimpleNamespace(try_mutant=lambda *_, **__: live)
    place.copy = SimpleNamespace(
        changed=lambda *changed: contextlib.nullcontext(copied.append(changed)),
        run=lambda *_, **__: at_import,
    )
    found = place.try_mutant(change, "text", ["test"] * count, 1.0, live=True)
    assert found is (at_import if is_tried_again else live)
    assert len(copied) == is_tried_again


def result(at, test):
    return Result("log/x.py", at, "constant", 1, "a", f"b{at}", test, 3, 1, 0.5)


def test_a_run_goes_on_where_it_ended_and_tries_survivors_again_with_other_tests(tmp_path):
    path = tmp_path / "results"
    first = Results(path, "sources", "tests")
    first.add(result(1, "test_a"))
    first.add(result(2, None))
    assert set(Results(path, "sources", "tests").found) == {result(1, None).key, result(2, None).key}
    assert set(Results(path, "sources", "other tests").found) == {result(1, None).key}
    assert [json.loads(line)["test"] for line in path.read_text().splitlines()[1:]] == ["test_a"]
    assert not Results(path, "other sources", "tests").found


def test_every_reason_names_a_source_file_and_a_change():
    """A reason whose line has changed since does no harm: it is that of no mutant any more."""
    assert drawn.reasons()
    for (path, before, after), reason in drawn.reasons().items():
        assert (SOURCES / PACKAGE / path).exists(), (
            f"{path} is gone: remove its reason from {drawn.REASONS.name}"
        )
        assert before != after
        assert reason


def test_too_many_survivors_fail_and_so_does_one_without_a_reason(monkeypatch):
    caught, survivor = [result(at, "test_a") for at in range(99)], result(100, None)
    said = []
    assert drawn.summary(caught, 1, 60.0, said.append)
    assert not drawn.summary([*caught, survivor], 1, 60.0, said.append)
    assert "1 survive (1.0%; at most 5%), 1 of them without a reason; 1.0 minutes" in said[-1]
    monkeypatch.setattr(drawn, "reasons", lambda: {("log/x.py", "a", f"b{at}"): "equal" for at in range(200)})
    assert drawn.summary([*caught, survivor], 1, 60.0, said.append)
    assert not drawn.summary([*caught, *(result(at, None) for at in range(100, 110))], 1, 60.0, said.append)
    kept = [*caught, survivor]
    monkeypatch.setattr(drawn, "reasons", dict)
    assert drawn.summary(kept, 1, 60.0, said.append, surviving_max=0.01, needs_reasons=False)
    assert not drawn.summary(kept, 1, 60.0, said.append, surviving_max=0.009, needs_reasons=False)


def test_files_of_one_folder_are_traced_together():
    paths = [Path(folder) / f"test_{number}.py" for number in range(10) for folder in ("a", "b")]
    found = drawn.groups(paths)
    assert sorted(path for group in found for path in group) == sorted(paths)
    assert [len(group) for group in found] == [8, 2, 8, 2]
    assert all(len({path.parent for path in group}) == 1 for group in found)
