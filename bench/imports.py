"""Processor time of imports: of a broker, of `stablelog --version`, of `stablelog health`, and of the pytest plugin.

Each figure is the processor time of a process, less that of a process without the imports, which runs before it. The
processes run in turn, with compiled modules. Only the figures of the two commands have the start of the interpreter in it.

    python -m bench --only imports
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.contestants import OURS
from bench.report import Section, Wanted

RUN_COUNT_MIN: Final = 11
# As a broker's process imports, without the garbage collector and without the test library hypothesis.
BROKER: Final = """
import gc, sys
gc.disable()
sys.modules.setdefault("hypothesis", None)
import stablelog.cli.serve, stablelog.broker.server
"""
# No broker answers at this port, which only the superuser could bind; the answer costs nothing but a few microseconds.
HEALTH: Final = """
import sys
from stablelog.__main__ import run
sys.argv = ["stablelog", "health", "--address", "127.0.0.1:1"]
try:
    run()
except SystemExit:
    pass
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A row of the figures.

    Attributes:
        what: the question.
        wanted_ms: the greatest figure that is aimed at.
        words: the arguments of Python.
        without: the arguments of Python for the process whose time is subtracted; empty for none.
    """

    what: str
    wanted_ms: float
    words: tuple[str, ...]
    without: tuple[str, ...] = ()


PROGRAMS: Final = (
    Program("imports of a broker, processor ms", 200, ("-c", BROKER), ("-c", "pass")),
    Program("stablelog --version, processor ms", 60, ("-m", "stablelog", "--version")),
    Program("stablelog health, processor ms", 60, ("-c", HEALTH)),
    Program(
        "the pytest plugin after pytest, processor ms",
        5,
        ("-c", "import pytest, stablelog.testing.pytest_plugin"),
        ("-c", "import pytest"),
    ),
)


def run(run_count: int, tell: Callable[[str], object]) -> list[Section]:
    """All figures.

    Args:
        run_count: runs that are counted, but at least RUN_COUNT_MIN.
        tell: told what is being done.
    """
    section = Section("Imports", beside="")
    for number in range(-1, max(run_count, RUN_COUNT_MIN)):
        tell(f"imports, run {number + 1}")
        for program in PROGRAMS:
            least_ms = processor_ms(program.without) if program.without else 0.0
            took_ms = processor_ms(program.words) - least_ms
            if number >= 0:  # the first run may compile modules
                wanted = Wanted(program.wanted_ms, at_most=True, of_figure=True)
                section.row(program.what, wanted=wanted).add(OURS, took_ms)
    return [section]


def processor_ms(words: tuple[str, ...]) -> float:
    """Run Python with these arguments, and return the processor time that its process took.

    Raises:
        RuntimeError: the process failed.
    """
    quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = os.posix_spawn(sys.executable, [sys.executable, *words], environment, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"python {' '.join(words)} failed")
    return (usage.ru_utime + usage.ru_stime) * 1000
