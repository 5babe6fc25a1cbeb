"""A broker process that a test kills, also while it starts."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
READY_S = 120  # for a busy machine
ERROR = re.compile(r"^\S+ \S+ (ERROR|CRITICAL) |^Traceback ")
PROGRAM = """
import sys
sys.modules.setdefault("hypothesis", None)
from stablelog.cli.serve import run_process
mutant, *arguments = sys.argv[1:]
if mutant:
    from tests.chaos.mutants import apply
    apply(mutant)
run_process(arguments)
"""


class EndedByItselfError(AssertionError):
    """The broker's process ended without having been killed or stopped."""


class Victim:
    """A broker on a directory, at a port that stays its own between two starts.

    Args:
        data: data directory.
        settings: of the broker, by their names.
        mutant: a fault of `tests.chaos.mutants` that the broker is to have; empty for none.

    Attributes:
        bootstrap: the address for clients.
        log_path: what the broker logs, over all its starts.
        process: the broker's process; None if it was killed or stopped, or never started.
    """

    def __init__(self, data, settings, mutant=""):
        self.data, self.log_path = data, data.with_suffix(".log")
        # Bound and not listening: Linux lets the broker bind it too, and gives it to no other process.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        port = self._port.getsockname()[1]
        self.bootstrap = f"127.0.0.1:{port}"
        self._settings = dict(settings)
        self._command = [sys.executable, "-c", PROGRAM, mutant, str(os.getpid()), str(data), "127.0.0.1"]
        self._command.append(str(port))
        self.process = None
        data.mkdir(parents=True, exist_ok=True)

    def spawn(self):
        """Start the process, and do not wait for it."""
        assert self.process is None
        with self.log_path.open("ab") as log:
            # The broker stops when its standard input ends: with this process, also if that is killed.
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT
            )
        self.process.stdin.write(json.dumps(self._settings).encode() + b"\n")
        self.process.stdin.flush()

    def start(self):
        """Start the process, and wait until it accepts connections."""
        self.spawn()
        deadline = time.monotonic() + READY_S
        while not select.select([self.process.stdout], [], [], 1)[0]:
            assert time.monotonic() < deadline, f"the broker does not start: {self.log_tail()}"
        if not os.read(self.process.stdout.fileno(), 1024):
            self.kill()

    def kill(self):
        """Kill the process with -9.

        Raises:
            EndedByItselfError: it had ended before.
        """
        self._end(signal.SIGKILL)

    def stop(self):
        """Stop the broker in order. Raises as `kill`."""
        self._end(signal.SIGTERM)

    def _end(self, number):
        process, self.process = self.process, None
        if process is None:
            return
        ended = process.poll()
        if ended is None:
            process.send_signal(number)
            ended = process.wait(READY_S)
        process.stdin.close()
        process.stdout.close()
        if ended != (0 if number == signal.SIGTERM else -number):
            raise EndedByItselfError(f"the broker ended with {ended}: {self.log_tail()}")

    def log_tail(self, line_count=30):
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-line_count:])

    def faults(self):
        """What the broker has logged as an error: a fault of its own, or a partition that it took offline."""
        lines = self.log_path.read_text(errors="replace").splitlines()
        first = next((at for at, line in enumerate(lines) if ERROR.search(line)), None)
        return [] if first is None else ["the broker logs an error:\n" + "\n".join(lines[first : first + 40])]

    def close(self):
        """End the process if one is left, and give the port back."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
            self.process.stdout.close()
            self.process = None
        self._port.close()
