"""Rules of this house that no linter knows. Each message says why."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PURE = ("batch", "wire", "coordinators", "views", "log")
LINES_MAX, FUNCTION_LINES_MAX = 500, 70


def tree(path):
    return ast.parse(path.read_text())


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


def test_background_work_of_the_broker_is_started_in_one_place():
    for path in (ROOT / "src" / "stablelog" / "broker").rglob("*.py"):
        if path.name == "tasks.py":
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
                "stablelog.broker.loop.tasks, which says what an exception fails, logs it and counts it"
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
