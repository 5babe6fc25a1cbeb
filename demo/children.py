"""Processes that the demo starts, and that do not outlive it: not its end, nor an exception, nor Ctrl-C."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Children:
    """Child processes, each with a process group of its own, so that with it goes whatever it has started.

    While the block runs, SIGINT and SIGTERM end the demo as an exception does, that is with all of them. To be used
    in the main thread.
    """

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._is_starting = False
        self._asked_to_end: int | None = None

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._end) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        if self._is_starting:
            self._asked_to_end = number
            return
        for each in SIGNALS:  # once is enough, and clearing up is not to be cut short
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        """A process is in the list once it runs, whenever a signal comes."""
        self._is_starting = True
        try:
            yield
        finally:
            self._is_starting = False
            if self._asked_to_end is not None:
                self._end(self._asked_to_end, None)

    def start(self, module: str, *arguments: str, errors: Path | None = None) -> "subprocess.Popen[str]":
        """Start a module of Python, whose standard input and output are pipes.

        Args:
            module: its name.
            arguments: its arguments.
            errors: a file to which its standard error is added; ours if none is given.
        """
        with contextlib.ExitStack() as stack:
            stderr = None if errors is None else stack.enter_context(errors.open("a"))
            stack.enter_context(self._starting())
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
            self._processes.append(process)
        return process

    def kill(self, process: "subprocess.Popen[str]") -> None:
        """Kill a child with -9, and all that it has started. Fine if it has ended."""
        if process in self._processes:
            self._processes.remove(process)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also when it has ended: what it started may be left
            process.wait()

    def close(self) -> None:
        """Kill all that are left."""
        for process in tuple(self._processes):
            self.kill(process)
