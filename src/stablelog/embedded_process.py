"""The process of a broker of `stablelog.serve()`: to start it, to wait until it is ready, and to release its port and
its temporary directory.
"""

import os
import selectors
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from stablelog.processes import Process, this_process, watch_forks
from stablelog.temporary_data import hold_directory, remove_directory

READY_LINE: Final = "stablelog is ready on "
STOP_TIMEOUT_S: Final = 20.0


@dataclass
class BrokerResources:
    """The resources of a broker of `serve` that must be released at its end: its process, its port and its temporary
    directory.

    The resources are in an object of their own, so that they can be released after the EmbeddedBroker (the program's
    object for the broker) was garbage-collected. Only the process that made the object releases anything, and not the
    copy of the object that a forked process has.
    """

    owner: Process = field(default_factory=this_process)
    process: "subprocess.Popen[bytes] | None" = None
    held_port: socket.socket | None = None
    temporary: Path | None = None
    temporary_fd: int | None = None

    def __post_init__(self) -> None:
        watch_forks(self)

    @property
    def is_own(self) -> bool:
        """Whether this process made the object. False in a forked process, which has a copy of the parent's object."""
        return self.owner is this_process()

    def after_fork(self) -> None:
        """In a forked process, close the copies of the pipe and the port. Open copies would keep the port in use, and
        the broker would not notice the end of the parent process, which it notices by the end of the pipe.
        """
        for pipe in () if self.process is None else (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()  # has no buffer and no lock, which another thread of the parent might hold
        self._close_held()

    def hold_temporary_directory(self) -> None:
        """Lock the temporary directory that the broker's process has made, so that no other broker removes it while
        this broker is stopped.
        """
        if self.temporary is not None and self.temporary_fd is None:
            self.temporary_fd = hold_directory(self.temporary)

    def release(self) -> None:
        """Release the port, the process and the temporary directory of the broker. In a process that did not make the
        object, do nothing.

        The port becomes free. If the broker has a temporary directory, its process is ended, and the directory is
        removed. Otherwise only the standard input of the process is closed: the broker then closes its partitions and
        stops.
        """
        if not self.is_own:
            return
        if self.process is not None:
            if self.temporary is not None:
                _end_and_remove(self.process)
            elif self.process.stdin is not None:
                self.process.stdin.close()
            self.process = None
        if self.temporary is not None:  # as the process has done, unless it was stopped or killed before
            remove_directory(self.temporary)
            self.temporary = None
        self._close_held()

    def _close_held(self) -> None:
        if self.held_port is not None:
            self.held_port.close()
            self.held_port = None
        if self.temporary_fd is not None:
            os.close(self.temporary_fd)
            self.temporary_fd = None


def start_process(command: list[str], stderr: "IO[bytes] | int") -> "subprocess.Popen[bytes]":
    """Start a process with unbuffered pipes for its standard input and output, and return it. `stderr` is the file for
    its error output.
    """
    return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)


def write(process: "subprocess.Popen[bytes]", text: bytes) -> None:
    """Write to the standard input of a process. If the process has ended already, do nothing: its log says why it
    ended.
    """
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        while text:  # a signal may end a write before the end of the text
            text = text[process.stdin.write(text) :]


def end_process(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a process and wait for its end. Kill it if it does not end within `STOP_TIMEOUT_S`."""
    # If the process has ended, `Popen` sends no signal, because another process may have the same id by now.
    process.send_signal(number)
    _wait(process)


def _end_and_remove(process: "subprocess.Popen[bytes]") -> None:
    """Let the broker's process end at once and remove its temporary directory, and wait for its end. The broker's
    process also removes the directory if this process is killed meanwhile.
    """
    write(process, b"\n")
    process.send_signal(signal.SIGCONT)  # a test may have stopped it
    _wait(process)


def _wait(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def port_when_ready(process: "subprocess.Popen[bytes]", timeout_s: float, said: list[str]) -> int | None:
    """Wait until the broker's process prints that it is ready.

    Args:
        process: the process.
        timeout_s: how long to wait, in seconds.
        said: a list to which all other lines that the process prints are added.

    Returns:
        The port on which the broker listens; None if the process has ended.

    Raises:
        TimeoutError: the process was neither ready nor ended within `timeout_s`.
    """
    assert process.stdout is not None
    try:
        # A duplicate, because another thread may stop the broker meanwhile, and close the pipe: a selector would wait on.
        fd = os.dup(process.stdout.fileno())
    except ValueError:  # the pipe is closed
        return None
    try:
        return _port(fd, time.monotonic() + timeout_s, said)
    finally:
        os.close(fd)


def _port(fd: int, deadline_s: float, said: list[str]) -> int | None:
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not selector.select(left_s):
                if time.monotonic() < deadline_s:
                    continue
                raise TimeoutError
            piece = os.read(fd, 1 << 16)
            if not piece:
                return None
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                said.append(line.decode(errors="replace"))
                if line.startswith(READY_LINE.encode()):
                    return int(line.removeprefix(READY_LINE.encode()).split(b",")[0].rpartition(b":")[2])
