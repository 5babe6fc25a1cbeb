"""A program of a framework, in a process of its own."""

import subprocess
from pathlib import Path

from peers.python_frameworks import python_with

PROGRAMS = Path(__file__).parent / "programs"


class Program:
    """The process.

    Args:
        framework: with which it runs.
        name: of its source, in `programs`.
        arguments: of its command line.
        log: the file for what it prints.

    Attributes:
        ends: how often it ended by itself and was started again.

    Raises:
        NotAvailableError: the framework cannot be had.
    """

    def __init__(self, framework, name, arguments, log):
        self._command = [str(python_with(framework)), str(PROGRAMS / f"{name}.py"), *map(str, arguments)]
        self._log = log
        self.ends = 0
        self.start()

    def start(self):
        """Start the process."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def keep_up(self):
        """Start it again if it has ended by itself, as a supervisor does."""
        if self._process.poll() is not None:
            self.ends += 1
            self.start()
        return True

    def log_tail(self):
        """The last lines that it has printed."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-60:])

    def kill(self):
        """Kill it with -9; fine if it has ended."""
        self._process.kill()
        self._process.wait()
