"""A plugin of pytest that collects the tests once, and tries each mutant in a child of its process.

A child is forked from a process in which sources and tests are loaded. It puts the mutant's code into the live functions,
runs the tests that it is told, up to the first failure, and ends. So a mutant costs its tests, and no start.

The driver and the server talk in lines of JSON. A request names the source file, its changed text, the first line and the
name of the function that has changed, the tests in their order, and how many seconds they have.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutants import selected
from tests.mutants.runs import PACKAGE, ROOT, SOURCES, Run

REQUESTS, ANSWERS = "STABLELOG_REQUESTS", "STABLELOG_ANSWERS"  # name the descriptors


class NotLiveError(Exception):
    """No live function has this code: it can only be changed before the import."""


def _codes(code: CodeType):
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def apply(functions, file: str, text: str, line: int, name: str) -> None:
    """Put the code of a changed source file into the live functions, and into those that they have made.

    A function that was made in another one, such as a check in a table of the module, lives on with code of its own.
    """
    live = functions.get((file, line, name))
    codes = [
        code for code in _codes(compile(text, file, "exec", dont_inherit=True)) if code.co_firstlineno == line
    ]
    found = [code for code in codes if code.co_name == name]
    if not live or not found:
        raise NotLiveError(f"{file}:{line} {name}")
    changed = [(function, found[0]) for function in live]
    inner = list(_codes(found[0]))
    for function in live:
        before = list(_codes(function.__code__))
        for old, new in zip(before, inner, strict=True) if len(before) == len(inner) else ():
            made = [
                one
                for one in functions.get((file, old.co_firstlineno, old.co_name), ())
                if one.__code__ is old
            ]
            if made and old.co_freevars != new.co_freevars:
                raise NotLiveError(f"{file}:{old.co_firstlineno} {old.co_name}")
            changed += [(one, new) for one in made]
    for function, code in changed:
        function.__code__ = code


class Server:
    """The plugin."""

    def __init__(self):
        self._failed = None
        self._passed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        items = {item.nodeid: item for item in session.items}
        functions = defaultdict(list)
        gc.unfreeze()  # what was frozen when the tests were collected
        for one in gc.get_objects():
            if isinstance(one, FunctionType):
                code = one.__code__
                functions[code.co_filename, code.co_firstlineno, code.co_name].append(one)
        gc.collect()
        gc.freeze()  # what the children share stays shared
        with (
            os.fdopen(int(os.environ[REQUESTS])) as requests,
            os.fdopen(int(os.environ[ANSWERS]), "w") as answers,
        ):
            for line in requests:
                answers.write(json.dumps(self._in_a_child(json.loads(line), items, functions)) + "\n")
                answers.flush()
        return True

    def _in_a_child(self, request, items, functions):
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            try:
                answer = self._try(request, items, functions)
            except BaseException as error:  # whatever it is, the fault has caused it
                answer = {"failed": f"({type(error).__name__})", "passed": self._passed}
            os.write(writes, json.dumps(answer).encode())
            os._exit(0)
        os.close(writes)
        ready, _, _ = select.select([reads], [], [], request["seconds_max"])
        content = os.read(reads, 1 << 16) if ready else b""
        os.close(reads)
        for kill, who in ((os.killpg, child), (os.kill, child)):
            with contextlib.suppress(ProcessLookupError):
                kill(who, signal.SIGKILL)
        os.waitpid(child, 0)
        if not ready:
            return {"failed": "(time)", "passed": 0}
        return json.loads(content) if content else {"failed": "(the process ended)", "passed": 0}

    def _try(self, request, items, functions):
        resource.setrlimit(resource.RLIMIT_AS, (selected.MEMORY_MAX, selected.MEMORY_MAX))
        try:
            apply(functions, request["file"], request["text"], request["line"], request["name"])
        except NotLiveError:
            return {"failed": None, "passed": -1}
        chosen = [items[test] for test in request["tests"] if test in items]
        for item, following in zip(chosen, [*chosen[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed is not None:
                break
        return {"failed": self._failed, "passed": self._passed}

    def pytest_runtest_logreport(self, report):
        if report.failed and self._failed is None:
            self._failed = report.nodeid
        self._passed += report.when == "call" and report.passed


def pytest_configure(config):
    if REQUESTS in os.environ:
        selected.hurry_hypothesis()
        config.pluginmanager.register(Server(), "server")


class Client:
    """A server, and the way to it.

    Args:
        files: with the tests.
        directory: for what the tests write.
        test_seconds_max: for one test.
    """

    def __init__(self, files, directory: Path, test_seconds_max: float) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", __name__)
        self._process = subprocess.Popen(
            [
                *command,
                "--hypothesis-seed=0",
                f"--timeout={test_seconds_max:.0f}",
                f"--basetemp={directory}",
                *files,
            ],
            cwd=ROOT,
            env=os.environ
            | {"PYTHONPATH": str(SOURCES), "PYTHONHASHSEED": "0"}
            | {REQUESTS: str(requests), ANSWERS: str(answers)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(requests, answers),
        )
        os.close(requests)
        os.close(answers)
        self._lines = os.fdopen(self._answers)

    def try_mutant(self, path, text, function: tuple[int, str], tests, *, seconds_max: float) -> Run | None:
        """Run tests with a mutant, up to the first failure. None if it can only be applied before the import.

        Raises:
            RuntimeError: the server has ended.
        """
        line, name = function
        request = {"file": str(SOURCES / PACKAGE / path), "text": text, "line": line, "name": name}
        request |= {"tests": list(tests), "seconds_max": seconds_max}
        content = memoryview(f"{json.dumps(request)}\n".encode())
        while content:
            content = content[os.write(self._requests, content) :]
        answer = self._lines.readline()
        if not answer:
            raise RuntimeError(f"the server of tests has ended with exit code {self._process.wait()}")
        told = json.loads(answer)
        return None if told["passed"] < 0 else Run(told["failed"], told["passed"], told["failed"] == "(time)")

    def close(self) -> None:
        """End the server."""
        os.close(self._requests)
        self._process.wait()
        self._lines.close()
