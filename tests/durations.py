"""Report of the time that each folder of tests takes, of the longest test, and of when each worker of pytest-xdist has ended.

A folder's minutes are the sum of its tests' set-up, call and tear-down, over all workers. Two workers together take about
half of the sum of all folders, if both have tests until the end. With `--minutes-limit` a run fails whose sum is larger.
"""

import time
from collections import Counter
from pathlib import PurePosixPath


class Durations:
    """Sums up reports. Registered where the summary is printed: in the controller, or in the only process.

    Args:
        limit_min: the most minutes of all workers together; None for no limit.
        now_s: the clock.
    """

    def __init__(self, limit_min=None, now_s=time.monotonic):
        self._limit_min = limit_min
        self._now_s = now_s
        self._began_s = now_s()
        self._seconds = Counter()  # by folder
        self._counts = Counter()  # tests, by folder
        self._tests = Counter()  # seconds, by test
        self._workers = {}  # name -> [seconds of tests, when its last report came]

    def pytest_runtest_logreport(self, report):
        folder = folder_of(report.nodeid)
        self._seconds[folder] += report.duration
        self._counts[folder] += report.when == "call"
        self._tests[report.nodeid] += report.duration
        worker = self._workers.setdefault(getattr(report, "worker_id", "master"), [0.0, 0.0])
        worker[0] += report.duration
        worker[1] = self._now_s() - self._began_s

    def is_over(self):
        """Return whether the tests took more minutes than they may."""
        return self._limit_min is not None and self._seconds.total() > self._limit_min * 60

    def pytest_sessionfinish(self, session):
        if self.is_over() and session.exitstatus == 0:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter):
        if not self._workers:
            return
        terminalreporter.section("minutes of each folder")
        for line in self.lines():
            terminalreporter.line(line)

    def lines(self):
        """What is printed: the folders that took the longest first, the longest test, the workers, and the limit."""
        for folder, seconds in self._seconds.most_common():
            yield f"{seconds / 60:6.2f}  {folder} ({self._counts[folder]} tests)"
        yield f"{self._seconds.total() / 60:6.2f}  all ({self._counts.total()} tests)"
        ((longest, seconds),) = self._tests.most_common(1)
        yield f"{seconds / 60:6.2f}  the longest test, {longest}"
        for name, (seconds, ended_s) in sorted(self._workers.items()):
            yield f"{seconds / 60:6.2f}  worker {name}, ended after {ended_s / 60:.2f}"
        if self.is_over():
            yield (
                f"FAILED: all tests together may take {self._limit_min:g} minutes. Make tests shorter, or mark some "
                "of them `extended`, if tests without the mark still prove the same promise."
            )


def folder_of(nodeid):
    """The folder right below `tests`; `tests` for what lies in it."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]
