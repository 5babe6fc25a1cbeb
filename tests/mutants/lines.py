"""Which tests execute which lines: a plugin of pytest, and the map that it writes.

The plugin traces each test with `sys.settrace`, and follows a function only until each of its lines was met in this
test. Lines that run while a module is imported belong to no test.
"""

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path

import pytest

TARGET = "STABLELOG_LINES"  # names the file that the plugin writes; without it nothing is traced
# That decide, or wire decisions to what acts. The rest are commands, Spark, and the interfaces to the outside.
ROOMS = (
    "batch",
    "broker",
    "client",
    "commit_order",
    "coordinators",
    "data_directory",
    "log",
    "ops",
    "security",
    "tier",
    "wire",
)
NOTHING = frozenset()


def _lines_of(code, rooms):
    """The lines of a function in one of the rooms; none of any other."""
    if not code.co_filename.startswith(rooms):
        return NOTHING
    return frozenset(line for *_, line in code.co_lines() if line is not None)


class Lines:
    """The plugin: what each test has executed.

    Args:
        source: directory of the package.
        target: file for the map.
    """

    def __init__(self, source, target):
        self._source = source
        self._rooms = tuple(f"{source / room}{os.sep}" for room in ROOMS)
        self._target = target
        self._all = {}  # by code object: its lines
        self._left = {}  # of those what the present test has not met
        self._tests = {}

    def _call(self, frame, event, argument):
        code = frame.f_code
        left = self._left.get(code)
        if left is None:
            known = self._all.get(code)
            if known is None:
                known = self._all[code] = _lines_of(code, self._rooms)
            left = self._left[code] = set(known)
        left.discard(frame.f_lineno)
        return self._line if left else None

    def _line(self, frame, event, argument):
        if event == "line":
            self._left[frame.f_code].discard(frame.f_lineno)
        return self._line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._left = {}
        self._tests[item.nodeid] = {"seconds": 0.0, "passed": True, "lines": {}}
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self._take(item.nodeid)

    def _take(self, test):
        met = defaultdict(set)
        for code, left in self._left.items():
            path = Path(code.co_filename)
            if self._all[code]:
                met[path.relative_to(self._source).as_posix()] |= self._all[code] - left
        self._tests[test]["lines"] = {path: sorted(lines) for path, lines in met.items()}

    def pytest_runtest_logreport(self, report):
        told = self._tests[report.nodeid]
        told["seconds"] += report.duration
        told["passed"] &= not report.failed

    def pytest_sessionfinish(self):
        self._target.write_text(json.dumps(self._tests))


def pytest_configure(config):
    target = os.environ.get(TARGET)
    if target:
        import stablelog

        config.pluginmanager.register(Lines(Path(stablelog.__file__).parent, Path(target)), "lines")
