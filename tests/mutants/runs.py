"""Runs of tests on a copy of the sources that has one fault."""

import compileall
import contextlib
import importlib.util
import json
import os
import py_compile
import queue
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from tests.mutants import selected

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src"
PACKAGE = "stablelog"
UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
NO_TESTS = (4, 5)  # pytest's exit codes for a wrong call, and for nothing collected
LAST_SIZE = 2000  # characters of an output that a message shows


@dataclass(frozen=True)
class Run:
    """What became of some tests.

    Attributes:
        failed: the first test that failed; None if all passed. Where none could be collected, a word for that.
        count: how many have passed before.
        hung: whether they took longer than they may.
        output: what pytest printed.
    """

    failed: str | None
    count: int = 0
    hung: bool = False
    output: str = ""


class Copy:
    """A copy of the sources, compiled, in which one file at a time can be changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sources = directory / "src"
        shutil.copytree(SOURCES, self._sources, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self._sources, quiet=2, invalidation_mode=UNCHECKED)

    @contextlib.contextmanager
    def changed(self, path: str, text: str) -> Iterator[None]:
        """While the block runs, a file (by its path in the package) has this text."""
        file = self._sources / PACKAGE / path
        before = file.read_bytes()
        compiled = Path(importlib.util.cache_from_source(str(file)))
        compiled.unlink()  # it would be taken for the file's, whatever stands there
        file.write_text(text)
        try:
            yield
        finally:
            file.write_bytes(before)
            py_compile.compile(str(file), invalidation_mode=UNCHECKED)

    def run(self, tests: Iterable[str], *, seconds_max: float, test_seconds_max: float) -> Run:
        """Run tests in their order, up to the first that fails.

        Args:
            tests: node ids.
            seconds_max: for all of them. Later they count as failed.
            test_seconds_max: for one.

        Raises:
            RuntimeError: pytest found none of the tests.
        """
        tests = list(tests)
        wanted, told = self._directory / "tests.txt", self._directory / "told.json"
        wanted.write_text("\n".join(tests))
        told.unlink(missing_ok=True)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        command = [
            *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", selected.__name__),
            *("--hypothesis-seed=0", f"--timeout={test_seconds_max:.0f}", "--tb=short"),
            f"--basetemp={self._directory / 'temporary'}",
            *files,
        ]
        environment = os.environ | {
            "PYTHONPATH": str(self._sources),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            selected.WANTED: str(wanted),
            selected.TOLD: str(told),
        }
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds_max,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Run("(time)", hung=True)
        output = done.stdout.decode(errors="replace")
        if not told.exists():  # the fault keeps the tests from being collected, or has ended the process
            return Run("(collection)", output=output)
        said = json.loads(told.read_text())
        if done.returncode in NO_TESTS:
            raise RuntimeError(f"pytest found none of {tests[:3]}...:\n{output[-LAST_SIZE:]}")
        failed = said["failed"] or ("(collection)" if done.returncode else None)
        return Run(failed, said["passed"], output=output)


def run_all(jobs, work: Callable, count: int, make: Callable = Copy) -> Iterator:
    """Do the work of each job, `count` at once. Yields (job, what the work returned) as they end.

    Args:
        jobs: in the order in which they begin.
        work: called with a place and a job.
        count: of places.
        make: makes a place in an empty directory: a copy of the sources, or more. It is closed in the end if it can be.
    """
    with tempfile.TemporaryDirectory(prefix="mutants") as directory, contextlib.ExitStack() as stack:
        places: queue.Queue = queue.Queue()
        for number in range(count):
            (Path(directory) / str(number)).mkdir()
            place = make(Path(directory) / str(number))
            stack.callback(getattr(place, "close", lambda: None))
            places.put(place)

        def on_a_place(job):
            place = places.get()
            try:
                return work(place, job)
            finally:
                places.put(place)

        with ThreadPoolExecutor(count) as pool:
            under_way = {pool.submit(on_a_place, job): job for job in jobs}
            try:
                for done in as_completed(under_way):
                    yield under_way[done], done.result()
            finally:
                pool.shutdown(cancel_futures=True)
