"""A broker in its own process, which runs as long as a `with` block of Python.

with stablelog.serve() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

The broker's standard input is a pipe from this process. When this process ends in any way, the pipe ends, and the
broker stops (see `stablelog.cli.serve.run_process`).
"""

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from stablelog.env.local_disk import LocalDisk
from stablelog.errors import Unavailable

# The broker's process does not import the command line. It does not import hypothesis either: the entry None in
# `sys.modules` prevents that kio imports an installed hypothesis. Both imports would take half of the start time. The
# process disables the garbage collector while it imports; `stablelog.cli.serve.run_serve` enables it again.
PROCESS = """
import gc, sys
gc.disable()
sys.modules.setdefault("hypothesis", None)
from stablelog.cli.serve import run_process
run_process(sys.argv[1:])
"""
READY_LINE = "stablelog is ready on "
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0


class EmbeddedBroker:
    """A broker in a process of its own.

    Attributes:
        data: the broker's data directory.
        host: the host on which the broker listens.
        port: the port on which the broker listens; 0 before the first start. A later `start` uses the same port.
    """

    def __init__(self, data: Path, host: str, port: int, settings: dict[str, str]) -> None:
        self.data = data
        self.host = host
        self.port = port
        self._settings = settings
        self._held_port: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = data.parent / f"{data.name}.log"

    @property
    def bootstrap(self) -> str:
        """The broker's address in the form of `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running broker.

        Raises:
            Unavailable: no process is running.
        """
        if self._process is None:
            raise Unavailable("the broker is not running, so it has no process id: start it first")
        return self._process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the process and wait until it accepts connections.

        Args:
            timeout_s: the time after which a process that is not ready is killed.

        Raises:
            Unavailable: the process ended or was not ready in time; the message contains the end of the broker's log.
        """
        assert self._process is None, "the broker is running"
        self._hold_port()
        command = [sys.executable, "-c", PROCESS, str(self.data), self.host, str(self.port)]
        command += [f"{name}={value}" for name, value in self._settings.items()]
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        # Set this attribute before the wait for the process: if an interrupt ends the wait, `stop` can still end the
        # process.
        self._process = process
        try:
            port = _port_when_ready(process, timeout_s)
        except TimeoutError:
            why = f"was not ready within {timeout_s:g} s"
            self.kill()
        else:
            if port is not None:
                self.port = port
                return
            why = "did not start"
            self.stop()
        self._release_port()
        raise Unavailable(
            f"the broker on {self.data} {why}; its log {self._log_path} ends with:\n{self.log_tail()}"
        )

    def _hold_port(self) -> None:
        """Choose a free port and bind it without listening, so that no other process gets the port between a stop of
        the broker and its next start.

        On Linux, the broker's process can bind the same port at the same time. On other systems, and for other kinds of
        addresses, the broker chooses the port.
        """
        if self.port or sys.platform != "linux" or not self.host.replace(".", "").isdigit():
            return
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((self.host, 0))
        except OSError:  # the broker's own bind will fail with the same error, and the broker reports it
            held.close()
            return
        self._held_port, self.port = held, held.getsockname()[1]

    def _release_port(self) -> None:
        if self._held_port is not None:
            self._held_port.close()
            self._held_port = None

    def log_tail(self, line_count: int = 20) -> str:
        """Return the last `line_count` lines of the file with the broker's log messages; empty if there is no file."""
        lines = self._log_path.read_text(errors="replace").splitlines() if self._log_path.exists() else []
        return "\n".join(lines[-line_count:])

    def stop(self) -> None:
        """Stop the broker with SIGTERM, so that the broker closes its partitions. Kill the process if it does not end
        within `STOP_TIMEOUT_S`. If no process is running, do nothing.
        """
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker's process with SIGKILL, to simulate a crash. If no process is running, do nothing."""
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # If the process has ended, `Popen` sends no signal, because another process may have the same id by now.
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        self._release_port()


@contextlib.contextmanager
def serve(
    data: str | os.PathLike[str] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    start_timeout_s: float = START_TIMEOUT_S,
    **settings: object,
) -> Iterator[EmbeddedBroker]:
    """Run a broker in a process of its own while the block runs.

    The broker also stops when this process ends without leaving the block, for example by `kill -9`.

    Args:
        data: the data directory, which is kept. None makes a temporary one, which is removed at the end. The broker's
            log goes to a file beside it, with its name and the suffix `.log`.
        host: the host to listen on.
        port: the port to listen on; 0 for a free one.
        start_timeout_s: how long the start may take, in seconds.
        settings: settings of the broker, with `_` for each `.` of the name: `num_partitions=4`.

    Raises:
        Unavailable: the data directory cannot be made, or the broker did not start in time; in that case the message
            contains the end of the broker's log.
        InvalidConfig: a setting is unknown or out of range.
    """
    from stablelog.broker.config import BrokerConfig
    from stablelog.broker.settings import SETTINGS

    names = {setting.name.replace(".", "_"): setting.name for setting in SETTINGS}
    given = {names.get(name, name): _text(value) for name, value in settings.items()}
    BrokerConfig(given)
    temporary = None if data is not None else tempfile.mkdtemp(prefix="stablelog-")
    directory = Path(data).absolute() if data is not None else Path(str(temporary)) / "data"
    try:
        LocalDisk().make_dir(directory)
        with EmbeddedBroker(directory.resolve(), host, port, given) as broker:
            broker.start(start_timeout_s)
            yield broker
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _port_when_ready(process: "subprocess.Popen[bytes]", timeout_s: float) -> int | None:
    """Wait until the broker's process reports that it is ready. Return the broker's port, or None if the process has
    ended.

    Raises:
        TimeoutError: the process was neither ready nor ended within `timeout_s`.
    """
    assert process.stdout is not None
    deadline_s = time.monotonic() + timeout_s
    said = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                if time.monotonic() < deadline_s:
                    continue
                raise TimeoutError
            piece = os.read(process.stdout.fileno(), 1 << 16)
            if not piece:
                return None
            *lines, said = (said + piece).split(b"\n")
            for line in lines:
                if line.startswith(READY_LINE.encode()):
                    return int(line.removeprefix(READY_LINE.encode()).split(b",")[0].rpartition(b":")[2])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
