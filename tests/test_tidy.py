"""Rules of this house that no linter knows. Each message says why."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PURE = ("batch", "wire", "coordinators", "commit_order", "log", "data_directory")
LINES_MAX, FUNCTION_LINES_MAX = 450, 70


def tree(path):
    return ast.parse(path.read_text())


@pytest.mark.extended
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_module_is_tidy(path):
    text = path.read_text()
    parsed = tree(path)
    assert ast.get_docstring(parsed), "the first line of a module says which question it answers"
    assert len(text.splitlines()) <= LINES_MAX, "a module of this length is a room: make it one"
    assert not re.search(r"\b(FIXME|TODO|XXX)\b", text), "what is not done is no part of the code"
    assert not re.search(r"/work/|/home/|/tmp/", text), "no machine's paths"
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = len((ast.get_docstring(node, clean=False) or "").splitlines())
            length = node.end_lineno - node.lineno + 1 - docstring
            assert length <= FUNCTION_LINES_MAX, (
                f"{node.name} has {length} lines: what it does has parts with names"
            )


STARTS_WORK = (
    "create_task",
    "ensure_future",
    "call_later",
    "call_soon",
    "call_soon_threadsafe",
    "call_at",
    "run_in_executor",
    "to_thread",
    "add_done_callback",
    "TaskGroup",
    "Thread",
    "Timer",
)


@pytest.mark.extended
def test_background_work_of_the_broker_is_started_in_one_place():
    for path in (ROOT / "src" / "stablelog" / "broker").rglob("*.py"):
        if path.parent.name == "loop" and path.name in ("tasks.py", "threads.py"):
            continue
        for node in ast.walk(tree(path)):
            name = (
                node.attr
                if isinstance(node, ast.Attribute)
                else node.id
                if isinstance(node, ast.Name)
                else ""
            )
            assert name not in STARTS_WORK, (
                f"{path.name}:{node.lineno}: {name} starts work whose exceptions nobody sees: start it by "
                "stablelog.broker.loop.tasks or loop.threads, which say what an exception fails"
            )


@pytest.mark.parametrize("room", PURE)
def test_a_room_that_decides_awaits_nothing_and_opens_nothing(room):
    for path in (ROOT / "src" / "stablelog" / room).rglob("*.py"):
        for node in ast.walk(tree(path)):
            assert not isinstance(node, ast.AsyncFunctionDef | ast.Await), (
                f"{path.name}: waiting is for those who do"
            )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "open", f"{path.name}: files are reached through stablelog.env.disk"


# The rooms that decide, of which each module has a test module of its name: src/stablelog/wire/fetch.py and
# tests/wire/test_fetch.py.
TESTED_BY_MODULE = (
    "batch",
    "client/core",
    "commit_order",
    "coordinators",
    "data_directory",
    "log",
    "ops/doctor",
    "security",
    "tier",
    "wire",
)
# Modules in which nothing can be proven, each with the reason. This list only becomes shorter.
WITHOUT_TEST_MODULE = dict.fromkeys(
    ("log/open_log.py", "log/remote_tier.py", "log/view.py"),
    "interfaces, which mypy holds against the classes that implement them",
)


def test_each_module_that_decides_has_a_test_module_of_its_name():
    """A failing test then names the module at fault, and a reader finds what a module promises beside its name."""
    missing = {
        module: f"tests/{module.parent}/test_{module.name}"
        for room in TESTED_BY_MODULE
        for path in sorted((ROOT / "src" / "stablelog" / room).rglob("*.py"))
        if path.name != "__init__.py"
        for module in [path.relative_to(ROOT / "src" / "stablelog")]
        if not (ROOT / "tests" / module.parent / f"test_{module.name}").exists()
    }
    untested = {
        str(module): test for module, test in missing.items() if str(module) not in WITHOUT_TEST_MODULE
    }
    assert not untested, (
        f"state what each of these modules promises in its test module, or move its tests there: {untested}"
    )
    tested = WITHOUT_TEST_MODULE.keys() - set(map(str, missing))
    assert not tested, f"these modules have a test module now: take them off WITHOUT_TEST_MODULE: {tested}"


PRIVATE_NAME = re.compile(r"_[A-Za-z0-9]\w*")
# The classes of libraries of which tests use a private name.
FOREIGN_OWNERS = ("Handle", "KafkaError")
OF_NAMED_TUPLES = ("_asdict", "_field_defaults", "_fields", "_make", "_replace")
# `damage/look.py` waits for the proofs in progress. The other files put faults into the code.
TOUCH_PRIVATE_NAMES = {
    "chaos/mutants.py",
    "coordinators/test_live_state.py",
    "coordinators/transactions/test_spare_ids.py",
    "cuts/mutants.py",
    "damage/look.py",
    "log/search/test_rows.py",
}
TESTS_THAT_TOUCH_PRIVATE_NAMES_MAX = 10


def private(name):
    return PRIVATE_NAME.fullmatch(name) is not None and name not in OF_NAMED_TUPLES


def private_names(paths):
    """The private names that modules define, or assign to objects."""
    names = set()
    for path in paths:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if private(name)}


def is_foreign(node):
    return isinstance(node, ast.Name) and node.id in FOREIGN_OWNERS


def touched(path, names):
    """Those of these private names that a test file uses: as attributes, by import, or in strings.

    What an object does with its own names does not count, and neither do the names of foreign classes.
    """
    if names.isdisjoint(re.findall(rf"\b{PRIVATE_NAME.pattern}", path.read_text())):
        return set()  # most files, which need not be parsed
    parsed, own, found = tree(path), private_names([path]), set()
    no_names = set()  # strings that name nothing, or an attribute of a foreign class
    for node in ast.walk(parsed):
        if isinstance(node, ast.Call) and len(node.args) > 1 and is_foreign(node.args[0]):
            no_names.add(id(node.args[1]))
        elif isinstance(node, ast.JoinedStr):
            no_names.update(map(id, node.values))
    for node in ast.walk(parsed):
        used = []
        if isinstance(node, ast.Attribute):
            is_own = (
                isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") and node.attr in own
            )
            used = [] if is_own or is_foreign(node.value) else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            used = [alias.name for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in no_names:
            used = [node.value.rpartition(".")[2]]
        found |= {name for name in used if private(name) and name in names}
    return found


@pytest.mark.extended
def test_few_tests_touch_private_names():
    """A test that uses a private name fails when the code is written another way and does the same."""
    names = private_names([*SOURCES, *(ROOT / "bench").rglob("*.py")])
    found = {
        str(path.relative_to(ROOT / "tests")): touched(path, names)
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    found = {path: used for path, used in found.items() if used}
    assert found.keys() == TOUCH_PRIVATE_NAMES, (
        f"use public names, or pass a fake to the constructor: {found}"
    )
    assert len(TOUCH_PRIVATE_NAMES) <= TESTS_THAT_TOUCH_PRIVATE_NAMES_MAX


def module_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported(path, modules):
    """The modules of stablelog that a module imports, also for type checkers or in a function."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in modules)
        elif isinstance(node, ast.ImportFrom):
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                yield inner if inner in modules else node.module


# The blocking and the asyncio client offer the areas of administration by the same names.
SHARED_NAMES = {"client/aio/admin.py", "client/blocking/admin.py"}


@pytest.mark.extended
def test_a_class_name_stands_for_one_class():
    places = {}
    for path in SOURCES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.as_posix().partition("/stablelog/")[2])
    several = {name: found for name, found in places.items() if len(found) > 1 and set(found) != SHARED_NAMES}
    assert several == {}, "give each of these classes a name of its own"


@pytest.mark.extended
def test_no_imports_form_a_circle():
    """Also not those for type checkers: a module can be read after the modules that it imports."""
    modules = {module_of(path): path for path in SOURCES}
    rest = {name: {*imported(path, modules)} & modules.keys() - {name} for name, path in modules.items()}
    while leaves := {name for name, below in rest.items() if not below}:
        rest = {name: below - leaves for name, below in rest.items() if name not in leaves}
    # What is left is in a circle, or imports a module that is in one.
    while tops := rest.keys() - {name for below in rest.values() for name in below}:
        rest = {name: below for name, below in rest.items() if name not in tops}
    assert rest == {}, "a lower module says in a Protocol what it needs of a higher one"
