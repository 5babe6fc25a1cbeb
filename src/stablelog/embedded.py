"""A broker in its own process, which a Python program starts and stops.

with stablelog.serve() as broker:
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

The broker stops when the process that started it ends, even if that process is killed (see
`stablelog.cli.serve.stop_with_parent`).
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from stablelog.embedded_process import BrokerResources, end_process, port_when_ready, start_process, write
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import UnavailableError, UsageError, did_you_mean
from stablelog.temporary_data import DATA, new_path

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
START_TIMEOUT_S = 120.0
LOG_FILE: Final = ".broker.log"  # In the data directory. A start ignores hidden files.
LOG_SIZE_MAX: Final = 10_000_000  # bytes of the file, and of the earlier one beside it
PORT_MAX: Final = 65_535
LOOPBACK: Final = "127.0.0.1"
ARGUMENTS: Final = ("data", "settings", "host", "port", "start_timeout_s")


class EmbeddedBroker:
    """A broker in a process of its own. `serve` makes it.

    A `with` block, or an `async with` block, starts the broker and closes it at its end. Without a block, call `start`,
    and `close` at the end. A broker that is closed, stopped or killed can be started again, on the same data and port;
    only `close` removes a temporary data directory.

    Attributes:
        data: the broker's data directory.
        host: the host on which the broker listens.
        port: the port on which the broker listens; 0 before the first start if the broker chooses it.

    Example:
        broker = stablelog.serve(num_partitions=4)
        broker.start()
        print(broker.bootstrap)  # 127.0.0.1:40001
        broker.kill()  # a crash
        broker.start()
        broker.close()
    """

    def __init__(
        self,
        data: Path | None,
        host: str = LOOPBACK,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._running = BrokerResources()
        self._is_temporary = data is None
        self.data = self._temporary_data() if data is None else data
        self.host = host
        self.port = port
        self._settings = dict(settings or {})
        self._start_timeout_s = start_timeout_s
        weakref.finalize(self, BrokerResources.release, self._running)

    def _temporary_data(self) -> Path:
        self._running.temporary = new_path()
        return self._running.temporary / DATA

    def __repr__(self) -> str:
        state = f"running as process {self.pid}" if self.is_running else "not running"
        return f"<EmbeddedBroker at {self.bootstrap} on {self.data}, {state}>"

    @property
    def bootstrap(self) -> str:
        """The broker's address in the form of `bootstrap.servers`, such as "127.0.0.1:40001"."""
        return f"{self.host}:{self.port}"

    @property
    def log_path(self) -> Path:
        """The file with the log messages of the broker's process, in the data directory."""
        return self.data / LOG_FILE

    @property
    def is_running(self) -> bool:
        """Whether the broker's process runs."""
        process = self._running.process
        if process is None or self._running.is_own:
            return process is not None and process.poll() is None
        try:
            os.kill(process.pid, 0)  # only the parent process can wait for the broker's process
        except ProcessLookupError:
            return False
        return True

    @property
    def pid(self) -> int:
        """The process id of the running broker.

        Raises:
            UnavailableError: no process is running.
        """
        if self._running.process is None:
            raise UnavailableError("the broker is not running, so it has no process id: start it first")
        return self._running.process.pid

    def start(self, timeout_s: float | None = None) -> None:
        """Start the process and wait until it accepts connections.

        Args:
            timeout_s: the time after which a process that is not ready is killed; None for the one of `serve`.

        Raises:
            UnavailableError: the process ended or was not ready in time; the message contains the end of the broker's
                log. Or the data directory cannot be made.
            UsageError: the broker is running already, or the data directory contains files of another program, or this
                process was forked from the one that made the broker object.
        """
        self._wait_until_ready(self._launch(), timeout_s)

    def _launch(self) -> "subprocess.Popen[bytes]":
        """Start the process and return it, without waiting until it is ready."""
        self._check_own("start")
        if self.is_running:
            raise UsageError(f"the broker at {self.bootstrap} is running: stop it before you start it again")
        self._end(signal.SIGKILL)  # close the pipes of a process that has ended by itself
        if self._is_temporary and self._running.temporary is None:  # it was closed
            self.data = self._temporary_data()
        self._make_data()
        self._hold_port()
        temporary = self._running.temporary
        data = str(self.data) if temporary is None else ""
        command = [sys.executable, "-c", PROCESS, str(os.getpid()), data, self.host, str(self.port)]
        if temporary is None:
            with self.log_path.open("ab") as log:
                process = start_process(command, log)
        else:  # the process makes the directory, and then its log
            process = start_process(command, subprocess.STDOUT)
        # Keep the process before the wait for it: if an interrupt ends the wait, `stop` can still end the process.
        self._running.process = process
        # The settings may have secrets, and another user could make the temporary directory first, if he knew its path.
        # Every user of this machine can read the arguments of a process.
        lines = [dict(self._settings), *([] if temporary is None else [str(temporary)])]
        write(process, b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        return process

    def _make_data(self) -> None:
        """Make the data directory if it is missing. A temporary data directory is not made here: the broker's process
        makes it.
        """
        from stablelog.data_directory.foreign_directory import refuse_foreign_directory

        if self._running.temporary is None:
            disk = LocalDisk()
            refuse_foreign_directory(disk, self.data)
            disk.make_dir(self.data)
            self.data = self.data.resolve()

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]", timeout_s: float | None = None) -> None:
        timeout_s = self._start_timeout_s if timeout_s is None else timeout_s
        said: list[str] = []
        try:
            port = port_when_ready(process, timeout_s, said)
        except TimeoutError:
            why = f"was not ready within {timeout_s:g} s"
            self.kill()
        else:
            if port is not None:
                self.port = port
                self._running.hold_temporary_directory()
                return
            why = "did not start"
            self.stop()
        text = "\n".join((*said, self.log_tail())).strip()
        raise UnavailableError(
            f"the broker on {self.data} is not running: the process {why}. Its log {self.log_path} ends with:\n{text}"
        )

    def _hold_port(self) -> None:
        """Choose a free port and bind it without listening, so that no other process gets the port between a stop of
        the broker and its next start.

        This works on Linux, where the broker's process can bind the port that this process has bound. On other systems,
        and for other kinds of addresses, nothing is bound here and the broker chooses the port.
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
        self._running.held_port, self.port = held, held.getsockname()[1]

    def log_tail(self, line_count: int = 20) -> str:
        """Return the last `line_count` lines of the file with the broker's log messages; empty if there is no file."""
        lines = self.log_path.read_text(errors="replace").splitlines() if self.log_path.exists() else []
        return "\n".join(lines[-line_count:])

    def stop(self) -> None:
        """Stop the broker with SIGTERM, so that the broker closes its partitions. Kill the process if it does not end
        within 20 s. If no process is running, do nothing.

        Raises:
            UsageError: this is a forked process.
        """
        self._check_own("stop")
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker's process with SIGKILL, to simulate a crash. If no process is running, do nothing.

        Raises:
            UsageError: this is a forked process.
        """
        self._check_own("kill")
        self._end(signal.SIGKILL)

    def _end(self, number: int) -> None:
        process, self._running.process = self._running.process, None
        if process is not None:
            end_process(process, number)

    def close(self) -> None:
        """Stop the broker as `stop` does, and release its port. If the data directory is temporary, the partitions are
        not closed: the broker's process ends at once and removes the directory. In a forked process, do nothing: the
        broker belongs to the process that started it.
        """
        if self._running.is_own:
            if self._running.temporary is None:
                self.stop()
            self._running.release()

    def _check_own(self, verb: str) -> None:
        """Raise UsageError if this process was forked from the one that made this object, to which the broker belongs.
        `verb` names the call in the message.
        """
        if not self._running.is_own:
            raise UsageError(
                f"process {os.getpid()} cannot {verb} the broker at {self.bootstrap}: the broker belongs "
                f"to process {self._running.owner.id}, from which this process was forked. "
                f"{verb.capitalize()} the broker there"
            )

    def __enter__(self) -> Self:
        if not self.is_running:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        """Start the broker, and wait in a thread until it is ready. If the task is cancelled meanwhile, kill the
        broker's process and wait for its end.
        """
        try:
            if not self.is_running:
                process = self._launch()
                waiting = asyncio.create_task(asyncio.to_thread(self._wait_until_ready, process))
                try:
                    await asyncio.shield(waiting)
                except asyncio.CancelledError:
                    process.kill()
                    with suppress(UnavailableError):
                        await waiting
                    raise
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the broker in a thread. If the task is cancelled meanwhile, it still waits for the end of the broker's
        process.
        """
        closing = asyncio.create_task(asyncio.to_thread(self.close))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise


def serve(
    data: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    host: str = LOOPBACK,
    port: int = 0,
    start_timeout_s: float = START_TIMEOUT_S,
    **more_settings: object,
) -> EmbeddedBroker:
    """Return a broker that runs in a process of its own during a `with` block or an `async with` block, or from a call
    of `start` to a call of `close`.

    The broker also stops when this process ends in another way, for example by `kill -9`, and removes a temporary data
    directory. It writes nothing outside its data directory. Its log messages go to the file `.broker.log` in the data
    directory, and earlier ones are in `.broker.log.1`: 10 MB in each at most.

    Args:
        data: the data directory, which is made if it is missing, and kept. None makes a temporary one, which is removed
            when the broker is closed.
        settings: settings of the broker by their names: `{"num.partitions": 4}`. A value is text, a number or a bool.
        host: the host to listen on. The setting `listeners` replaces `host` and `port`.
        port: the port to listen on; 0 for a free one.
        start_timeout_s: how long a start may take, in seconds.
        more_settings: settings as keyword arguments, with `_` for each `.` of the name: `num_partitions=4`.

    Returns:
        The broker, which is not started yet. Its address is `bootstrap`.

    Raises:
        UsageError: an argument or a setting is unknown or out of range. The message has its nearest valid name or its
            valid range. Nothing was written.
        UnavailableError: at the start: the data directory cannot be made, or the broker did not start in time. The
            message contains the end of the broker's log.

    Example:
        with stablelog.serve(num_partitions=4) as broker:
            with confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap}) as producer:
                producer.produce("greetings", b"hello")

        async def main():
            async with stablelog.serve("log", settings={"log.retention.ms": 3_600_000}) as broker:
                admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": broker.bootstrap})
                admin.create_topics([confluent_kafka.admin.NewTopic("greetings", 1)])["greetings"].result()
                async with stablelog.aio.connect(broker.bootstrap) as client:
                    async with client.transaction() as txn:
                        await txn.write("greetings", b"hello", key="en")

        asyncio.run(main())
    """
    _check_arguments(data, settings, host, port, start_timeout_s)
    given = _settings(settings or {}, more_settings)
    host, port = _first_address(given, host, port)
    directory = None if data is None else Path(os.fsdecode(data)).absolute()
    return EmbeddedBroker(directory, host, port, given, start_timeout_s)


def _check_arguments(data: object, settings: object, host: object, port: object, timeout_s: object) -> None:
    """Check the arguments of `serve`.

    Raises:
        UsageError: an argument is out of range, or of another type than expected.
    """
    for name, value, is_valid, valid in (
        ("data", data, data is None or (isinstance(data, str | os.PathLike) and os.fspath(data)), "a path"),
        ("settings", settings, settings is None or isinstance(settings, Mapping), "a dict of settings"),
        ("host", host, isinstance(host, str) and host.strip(), "the name or address of a host"),
        ("port", port, type(port) is int and 0 <= port <= PORT_MAX, f"0 to {PORT_MAX}"),
        (
            "start_timeout_s",
            timeout_s,
            isinstance(timeout_s, int | float) and timeout_s > 0,
            "a number of seconds above 0",
        ),
    ):
        if not is_valid:
            raise UsageError(f"{name}={value!r} is not valid: {valid}")


def _settings(by_name: Mapping[str, object], by_keyword: Mapping[str, object]) -> dict[str, str]:
    """Return the broker settings that `serve` was given as text, by their names with dots. `by_name` has the argument
    `settings`, and `by_keyword` the keyword arguments with `_` for each dot.

    Raises:
        UsageError: a setting is unknown, out of range, or given twice.
    """
    from stablelog.broker.settings.table import SETTINGS

    known = {setting.name.replace(".", "_"): setting for setting in SETTINGS}
    given = {name: _text(name, value) for name, value in by_name.items()}
    for keyword, value in by_keyword.items():
        if keyword not in known:
            hint = did_you_mean(keyword, [*known, *ARGUMENTS])
            raise UsageError(f"{keyword!r} is neither an argument of serve nor a setting of the broker{hint}")
        setting = known[keyword]
        if setting.name in given:
            raise UsageError(f"{setting.name} is given twice: in settings and as {keyword}. Give it once")
        given[setting.name] = _text(keyword, value)
        setting.read(given[setting.name], keyword)
    return given


def _first_address(given: Mapping[str, str], host: str, port: int) -> tuple[str, int]:
    """Return a pair: the host and the port of the broker's first listener. It is the first address in the setting
    `listeners`, if `given` (the settings by name) has it; otherwise `host` and `port`.

    Raises:
        UsageError: a setting is out of range, or the address is given twice.
    """
    from stablelog.broker.settings.config import BrokerConfig
    from stablelog.broker.settings.listeners import Address

    if "listeners" not in given:
        BrokerConfig({**given, "listeners": str(Address("PLAINTEXT", host, port))})
        return host, port
    if (host, port) != (LOOPBACK, 0):
        raise UsageError("listeners has the addresses of the broker: leave out host and port")
    first = BrokerConfig(given).listeners[0]
    return first.host, first.port


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float | os.PathLike):
        return str(value)
    raise UsageError(f"{name}={value!r} is not valid: write text, a number, True or False")
