"""`stablelog serve`: run the broker in this process."""

import contextlib
import gc
import json
import logging
import os
import selectors
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from stablelog.cli.pairs import split_pair
from stablelog.cli.properties import read_properties
from stablelog.embedded import LOG_FILE, LOG_SIZE_MAX
from stablelog.embedded_process import READY_LINE, STOP_TIMEOUT_S
from stablelog.errors import StablelogError
from stablelog.json_text import parse_json
from stablelog.temporary_data import DATA, end_and_remove, make_directory, remove_abandoned

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def run_serve(
    data: Path,
    host: str | None,
    port: int | None,
    config: Path | None,
    settings: Sequence[str],
    *,
    as_json: bool = False,
) -> None:
    """Run a broker until SIGINT or SIGTERM stops it.

    Args:
        data: the data directory.
        host: the host of the first listener; None for the one of the settings.
        port: the port of the first listener; None for the one of the settings.
        config: a file of settings.
        settings: further settings, as `name=value`.
        as_json: whether the line that says that the broker is ready is JSON.

    Raises:
        UsageError: a setting is unknown or out of range.
        UnavailableError: the address or the data directory is in use.
        DamageError: the data directory cannot be opened.
    """
    with _ended_by_interrupt():
        _run_serve(data, host, port, config, settings, as_json=as_json)


@contextlib.contextmanager
def _ended_by_interrupt() -> Iterator[None]:
    """Context in which SIGINT ends the process at once, as SIGTERM does. The command is in this context until the
    broker's event loop handles both signals. The context has no value.

    Otherwise Python would raise KeyboardInterrupt in the middle of an import, and print a traceback. Until the event
    loop runs, there is nothing to clean up.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _run_serve(
    data: Path,
    host: str | None,
    port: int | None,
    config: Path | None,
    settings: Sequence[str],
    *,
    as_json: bool,
) -> None:
    # Disable the garbage collector during the imports. They make tens of thousands of permanent objects, and several
    # collections of these would take a tenth of the start time.
    gc.disable()
    from stablelog.broker.server import run_server
    from stablelog.broker.settings.config import BrokerConfig

    gc.freeze()
    gc.enable()
    given = read_properties(config) if config is not None else {}
    given |= dict(split_pair(setting) for setting in settings)
    loaded = BrokerConfig(given)
    if host is not None or port is not None:
        first, *others = loaded["listeners"]
        first = first._replace(host=host or first.host, port=first.port if port is None else port)
        given["listeners"] = ",".join(map(str, (first, *others)))
        loaded = BrokerConfig(given)
    # Has no effect in the process that `stablelog.serve()` starts, which has a handler.
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)

    def ready(at_host: str, at_port: int) -> None:
        line = f"{READY_LINE}{at_host}:{at_port}, data in {data}"
        if as_json:
            line = json.dumps({"host": at_host, "port": at_port, "data": str(data)})
        print(line, flush=True)  # noqa: T201 - for the parent process

    run_server(loaded, data.absolute(), ready=ready)


def stop_with_parent(
    fd: int, stop_timeout_s: float, parent_id: int | None = None, temporary: Path | None = None
) -> None:
    """Start a thread that stops this process when its parent, the process that has started it, has ended.

    Linux has the option PR_SET_PDEATHSIG for this purpose. It is not used, because it sends its signal when the thread
    that started this process ends, even if the parent continues.

    Args:
        fd: the reading end of a pipe. The parent holds the writing end, which the operating system closes when the
            parent ends, also by `kill -9`. A process that the parent has forked may hold the writing end, too, and keep
            it open. To stop this process while it still runs, the parent writes a byte.
        stop_timeout_s: how many seconds an orderly stop may take before this process is killed.
        parent_id: the process id of the parent. On Linux, this process then stops when the parent ends, even if another
            process holds the writing end of the pipe. If it is None, this process stops only when the pipe ends.
        temporary: the temporary data directory. Nobody needs its data after the end of the parent, so this process then
            removes the directory and ends without an orderly stop. None if the data directory is not temporary.
    """

    def wait() -> None:
        with selectors.DefaultSelector() as ends:
            ends.register(fd, selectors.EVENT_READ)
            if parent_id is not None and hasattr(os, "pidfd_open"):
                with contextlib.suppress(OSError):  # an older kernel, or the parent has ended
                    ends.register(os.pidfd_open(parent_id), selectors.EVENT_READ)
            is_ended = (
                parent_id is not None and os.getppid() != parent_id
            )  # it ended before its id was opened
            if not is_ended:
                ends.select()
        if temporary is not None:
            end_and_remove(temporary)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stop_timeout_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def run_process(arguments: Sequence[str]) -> None:
    """Run the process that `stablelog.serve()` starts, until a signal stops it or its parent has ended.

    Args:
        arguments: the process id of the parent, data directory, host and port, in this order. An empty text as the data
            directory stands for a temporary one, which is made here, and removed when the parent ends. The first line
            of the standard input is a JSON object with the settings. The second line is the path of the temporary
            directory, as JSON text, if there is one.
    """
    from logging.handlers import RotatingFileHandler

    parent_id, data, host, port = arguments
    temporary = None
    # Read without a buffer, because `stop_with_parent` waits for the end of the pipe.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as from_parent:
        line = from_parent.readline()
        if not data:
            path = from_parent.readline()
            if not path.endswith(b"\n"):
                return  # the parent has ended
            temporary = Path(parse_json(path))
            data = str(temporary / DATA)
    stop_with_parent(sys.stdin.fileno(), STOP_TIMEOUT_S, int(parent_id), temporary)
    # The file is also the standard error of the process, which is how a crash of the interpreter gets into it.
    log_path = Path(data) / LOG_FILE
    if temporary is not None:
        _make_temporary(temporary, log_path)
    handler = RotatingFileHandler(log_path, maxBytes=LOG_SIZE_MAX, backupCount=1, delay=True)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, handlers=[handler])
    settings = [f"{name}={value}" for name, value in parse_json(line or b"{}").items()]
    try:
        run_serve(Path(data), host, int(port), None, settings)
    except StablelogError as error:
        sys.stderr.write(f"stablelog: {error}\n")
        sys.exit(2)


def _make_temporary(directory: Path, log_path: Path) -> None:
    """Make the temporary directory and write the standard error to the log file in it."""
    try:
        make_directory(directory)
        with log_path.open("ab") as log:
            os.dup2(log.fileno(), sys.stderr.fileno())
    except OSError as error:
        sys.exit(f"stablelog: the temporary directory {directory} cannot be made: {error.strerror}")
    threading.Thread(target=remove_abandoned, args=(directory.parent,), name="abandoned", daemon=True).start()
