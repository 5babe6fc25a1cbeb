"""Spark drivers, and their supervisor: it kills one half-way, and replaces one that ends with an error of its own."""

import contextlib
import math
import subprocess
import textwrap
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo.busy import EXIT_CODE, LateError
from demo.children import Children
from demo.crashes.history import STREAMED, History

KILLED_AT = 0.4  # of all rows
BATCHES = 8
RESTARTS_MAX = 2  # after errors of its own


class Drivers:
    """Spark drivers. The first two are started in advance, because a session takes seconds to start."""

    def __init__(self, children: Children, bootstrap: str, checkpoint: Path, row_count: int) -> None:
        self._children = children
        self._arguments = (bootstrap, str(checkpoint), str(max(row_count // BATCHES, 1)))
        self._directory = checkpoint.parent
        self._logs: dict[subprocess.Popen[str], Path] = {}
        self._waiting = [self._start()]
        self._is_first = True

    def _start(self) -> "subprocess.Popen[str]":
        log = self._directory / f"spark-{len(self._logs) + 1}.log"
        process = self._children.start("demo.crashes.pipeline", *self._arguments, errors=log)
        self._logs[process] = log
        return process

    def next(self) -> "subprocess.Popen[str]":
        """Let the next driver begin. While the first one runs, its successor starts, because the first one is killed."""
        process = self._waiting.pop() if self._waiting else self._start()
        if self._is_first:
            self._is_first = False
            self._waiting.append(self._start())
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has failed; whoever waits for it is told
            process.stdin.write("go\n")
            process.stdin.close()
        return process

    def error_of(self, process: "subprocess.Popen[str]") -> str:
        """Return all that a driver has written to its standard error: its error, with the causes that Java tells."""
        return self._logs[process].read_text(errors="replace").strip()

    def kill(self, process: "subprocess.Popen[str]") -> None:
        """Kill one with -9, and all that it has started: Spark is a Java process and its Python workers."""
        self._children.kill(process)

    def close(self) -> None:
        """Kill the driver that was started in advance and is not used, if there is one."""
        for process in self._waiting:
            self.kill(process)


def run_pipeline(console: Console, drivers: Drivers, row_count: int, history: History) -> int:
    """Run the Spark pipeline over all flights; kill it with -9 half-way, and let another go on from its checkpoint.

    A driver that ends with an error of its own is replaced, too, as a supervisor of a cluster does.

    Args:
        console: where each kill, each error of a driver and each restart is printed.
        drivers: the drivers.
        row_count: how many flights there are.
        history: is told how far the pipeline is, and of the kill.

    Returns:
        How many drivers have ended with an error of their own.

    Raises:
        LateError: RESTARTS_MAX successors were not enough, and the last one has ended because of a time limit.
        SystemExit: RESTARTS_MAX successors were not enough, and the last one has ended for another reason.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("through Spark", total=row_count)
        kill_at = row_count * KILLED_AT
        done = failures = 0
        history.reached(STREAMED, 0)
        while True:
            process, is_killed = drivers.next(), False
            assert process.stdout is not None
            for line in process.stdout:
                done += int(line.split()[1])
                progress.update(task, completed=done)
                history.reached(STREAMED, done)
                if done >= kill_at:
                    kill_at, is_killed = math.inf, True
                    history.killed("the Spark driver", STREAMED)
                    drivers.kill(process)
                    console.print(
                        "  Spark: killed -9 in the middle, a new driver goes on from the checkpoint"
                    )
            code = process.wait()
            drivers.kill(
                process
            )  # What it has started may be left, and only one driver may use the checkpoint.
            if code == 0:
                break
            if not is_killed:
                failures += 1
                _tell(console, code, drivers.error_of(process), failures)
        progress.update(task, completed=row_count)
        history.reached(STREAMED, row_count)
    return failures


def _tell(console: Console, code: int, error: str, failures: int) -> None:
    """Print the error of a driver. Raise an error if it is not to be replaced."""
    console.print(f"  Spark: a driver has ended with an error of its own, exit code {code}:", style="yellow")
    shown = textwrap.indent(error or "it has written nothing", "    ")
    console.print(shown, highlight=False, markup=False, soft_wrap=True)
    if failures > RESTARTS_MAX:
        kind = LateError if code == EXIT_CODE else SystemExit
        raise kind(f"{failures} Spark drivers have ended with errors of their own, which are printed above")
    console.print(
        f"  Spark: restart {failures} of at most {RESTARTS_MAX}: a new driver goes on from the checkpoint",
        style="yellow",
        highlight=False,
    )
