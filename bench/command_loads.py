"""The commands `stablelog produce` and `stablelog consume` on many records, each in a process of its own.

Both write or read a topic of one partition, with no option but the address. The commands are those of the variant, and so
is the broker. A slice is one run of the command, with the start of Python.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from bench.sides import NotMeasuredError, Server, Side

LINE = b"x" * 89 + b"\n"
COUNTS: Mapping[str, int] = {"command-produce": 300_000, "command-consume": 600_000}
PARTITIONS = 1
# The command without hypothesis, as users have it.
COMMAND = """
import sys
sys.modules["hypothesis"] = None
from stablelog.cli.main import run
run()
"""


class CommandRuns:
    """Runs of the commands of one variant.

    Args:
        side: the variant.
        server: its broker.
        directory: for the input of `produce`; it is the caller's.
        counts: for each row, how many records a run writes or reads.
    """

    def __init__(self, side: Side, server: Server, directory: Path, counts: Mapping[str, int]) -> None:
        self._side = side
        self._server = server
        self._counts = counts
        self._lines = directory / "lines"
        with self._lines.open("wb") as file:
            file.writelines([LINE] * max(counts.values()))
        self._number = 0
        self._full = ""  # the topic that `consume` reads

    def run(self, row: str) -> tuple[float, float]:
        """Run the command of a row. Returns the processor seconds of its process, and the seconds on the clock.

        Raises:
            NotMeasuredError: the command failed.
        """
        if row == "command-consume":
            if not self._full:
                self._full = self._topic()
                self._produce(self._full, self._counts[row])
            with tempfile.TemporaryFile(dir=self._side.scratch) as printed:
                cost = self._command("consume", self._full, out=printed)
                size = os.fstat(printed.fileno()).st_size
            if size != self._counts[row] * len(LINE):
                raise NotMeasuredError(f"consume wrote {size} bytes")
            return cost
        return self._produce(self._topic(), self._counts[row])

    def _topic(self) -> str:
        self._number += 1
        name = f"command-{self._number}"
        self._command("topics", "create", name, "--partitions", str(PARTITIONS))
        return name

    def _produce(self, topic: str, count: int) -> tuple[float, float]:
        with tempfile.TemporaryFile(dir=self._side.scratch) as given:
            given.write(self._lines.read_bytes()[: count * len(LINE)])
            given.seek(0)
            return self._command("produce", topic, given=given)

    def _command(
        self, *words: str, given: IO[bytes] | None = None, out: IO[bytes] | None = None
    ) -> tuple[float, float]:
        command = [sys.executable, "-c", COMMAND, *words, "--bootstrap", self._server.bootstrap]
        before, began = _children_s(), time.perf_counter()
        done = subprocess.run(
            command,
            stdin=given or subprocess.DEVNULL,
            stdout=out or subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._side.environment,
            cwd=self._side.scratch,
            check=False,
        )
        if done.returncode:
            raise NotMeasuredError(f"{words[0]} ended with {done.returncode}: {done.stderr.decode()}")
        return _children_s() - before, time.perf_counter() - began


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
