"""A plugin of pytest: runs the tests that a file names, in its order, and tells which one failed.

It also keeps a fault from taking the machine's memory, and Hypothesis from remembering what a fault has shown.
"""

import json
import os
import resource
from pathlib import Path

from hypothesis import Phase, settings

WANTED = "STABLELOG_WANTED"  # names the file with node ids, one a line
TOLD = "STABLELOG_TOLD"  # names the file that says how it went
MEMORY_MAX = 8 << 30


class Selected:
    """The plugin."""

    def __init__(self):
        wanted = Path(os.environ[WANTED]).read_text().splitlines()
        self._places = {test: place for place, test in enumerate(wanted)}
        self._told = {"passed": 0, "failed": None}

    def pytest_collection_modifyitems(self, config, items):
        mine = [item for item in items if item.nodeid in self._places]
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in self._places])
        items[:] = sorted(mine, key=lambda item: self._places[item.nodeid])

    def pytest_runtest_logreport(self, report):
        if report.failed and self._told["failed"] is None:
            self._told["failed"] = report.nodeid
        self._told["passed"] += report.when == "call" and report.passed

    def pytest_sessionfinish(self):
        Path(os.environ[TOLD]).write_text(json.dumps(self._told))


def hurry_hypothesis():
    """Have Hypothesis make no failure small, and keep none for the next fault."""
    known = settings.get_profile("any machine")
    quick = settings(known, database=None, phases=(Phase.explicit, Phase.generate))
    settings.register_profile("mutants", quick)
    settings.load_profile("mutants")


def pytest_configure(config):
    if WANTED in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        hurry_hypothesis()
        config.pluginmanager.register(Selected(), "selected")
