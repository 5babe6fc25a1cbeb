"""The two variants that are compared: their sources, their brokers, and work in processes of their own.

A variant is a directory with `src`. Its processes find that `src` by PYTHONPATH, in the same virtual environment. The
load generator runs in this process, from this checkout, for both.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[1]
STOP_S = 60.0
# Uses the variant's public interface alone. It waits for its input to end, and stops the broker then.
HOLDER = """
import json, sys, time
import stablelog
data, settings = sys.argv[1], json.loads(sys.argv[2])
began = time.perf_counter()
with stablelog.serve(data, **settings) as broker:
    took = time.perf_counter() - began
    print(json.dumps({"host": broker.host, "port": broker.port, "pid": broker.pid, "start_s": took,
                      "source": stablelog.__file__}), flush=True)
    if sys.stdin.readline().strip() == "kill":
        broker.kill()
"""


class NotMeasuredError(Exception):
    """A variant cannot do what a row asks for; says why."""


@dataclass(frozen=True, slots=True)
class Side:
    """One variant.

    Attributes:
        name: "old" or "new".
        what: the commit, for the report.
        path: directory that holds `src`.
        scratch: directory for data that this variant writes.
    """

    name: str
    what: str
    path: Path
    scratch: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment of a process that imports this variant, and `bench` of this checkout."""
        known = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return known | {"PYTHONPATH": os.pathsep.join((str(self.path / "src"), str(ROOT)))}

    def dependencies(self) -> set[str]:
        """What pyproject.toml asks for, with all extras."""
        project = tomllib.loads((self.path / "pyproject.toml").read_text())["project"]
        extras = project.get("optional-dependencies", {}).values()
        return {*project["dependencies"], *(one for extra in extras for one in extra)}


def check_out(commit: str, into: Path, repository: Path = ROOT) -> str:
    """Write the sources of a commit into a new directory.

    Nothing is registered in the repository, as a worktree would be: a run that is killed leaves nothing in it.

    Args:
        commit: any name that git knows.
        into: the directory to make.
        repository: where git looks.

    Returns:
        Abbreviated hash and subject.

    Raises:
        SystemExit: git does not know the commit; says so.
    """
    git = ["git", "-C", str(repository)]
    told = subprocess.run(
        [*git, "log", "-1", "--format=%h %s", commit, "--"], capture_output=True, text=True, check=False
    )
    if told.returncode:
        raise SystemExit(f"bench: {commit} is not a commit of {repository}: {told.stderr.strip()}")
    archive = [*git, "archive", "--format=tar", commit, "src", "pyproject.toml"]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with tarfile.open(fileobj=process.stdout, mode="r|") as content:
            content.extractall(into, filter="data")
    assert process.returncode == 0, f"git archive {commit} failed"
    return told.stdout.strip()


def copy_working_tree(into: Path, repository: Path = ROOT) -> str:
    """Write the sources as they are now into a new directory. Returns what to call them."""
    into.mkdir(parents=True)
    shutil.copy(repository / "pyproject.toml", into)
    shutil.copytree(repository / "src", into / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return "working tree"


class Probe:
    """A process of a variant that does the work of `bench.probes`; ends with the block.

    Args:
        side: the variant.
        name: of the work.
        arguments: of the work.

    Raises:
        NotMeasuredError: the process failed: the variant lacks what the work uses.
    """

    def __init__(self, side: Side, name: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "bench.probes", name, *map(str, arguments)]
        self._name = name
        self._process = _Process(command, side, cwd=ROOT)
        told = self._process.receive()
        assert Path(told["source"]).is_relative_to(side.path), "the process has imported another variant"

    def measure(self, row: str) -> list[float]:
        """Do a row's work once. Returns [processor seconds, clock seconds, units of work].

        Raises:
            NotMeasuredError: the process failed.
        """
        self._process.send(row)
        cost: list[float] = self._process.receive()
        return cost

    def close(self) -> None:
        """End the process, and wait until it has ended."""
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Process:
    """A process of a variant that answers lines with lines of JSON, and ends when its input ends."""

    def __init__(self, command: Sequence[str], side: Side, cwd: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+", dir=side.scratch)  # noqa: SIM115 - closed in close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=side.environment,
            cwd=cwd,
        )

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` says why it has ended
            print(line, file=self._process.stdin, flush=True)

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait(STOP_S)
            self._errors.seek(0)
            last = self._errors.read().strip().splitlines()[-1:]
            self.close()
            raise NotMeasuredError(f"the process ended: {' '.join(last) or self._process.returncode}")
        return json.loads(line)

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._process.wait(STOP_S)
        self._errors.close()


class Server:
    """A broker of one variant, in a process of its own; ends with the block.

    Args:
        side: the variant.
        data: data directory; it stays.
        settings: as of `stablelog.serve`.

    Attributes:
        host: where it listens.
        port: where it listens.
        pid: the broker's process.
        start_s: seconds on the clock from its start until it accepted connections.

    Raises:
        NotMeasuredError: it did not start.
    """

    def __init__(self, side: Side, data: Path, settings: Mapping[str, object]) -> None:
        data.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", HOLDER, str(data), json.dumps(dict(settings))]
        self._process = _Process(command, side, cwd=side.scratch)
        told = self._process.receive()
        assert Path(told["source"]).is_relative_to(side.path), "the broker has imported another variant"
        self.data = data
        self.host, self.port, self.pid = told["host"], told["port"], told["pid"]
        self.start_s = told["start_s"]

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return f"{self.host}:{self.port}"

    def processor_s(self) -> float:
        """Processor seconds of the broker's process since its start: all threads, user and system.

        Linux encodes the processor clock of any process in a clock id: `(~pid << 3) | 2`.
        """
        return time.clock_gettime((~self.pid << 3) | 2)

    def close(self, *, kill: bool = False) -> None:
        """Stop the broker in order, or kill it with -9, and wait until it has ended."""
        if kill:
            self._process.send("kill")
        self._process.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
