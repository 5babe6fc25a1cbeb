"""The process of a broker of `stablelog.serve()`, as the program sees it that has started the process."""

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

from stablelog.processes import Process, this_process, watch
from stablelog.temporary_data import hold, remove

READY_LINE: Final = "stablelog is ready on "
STOP_TIMEOUT_S: Final = 20.0


@dataclass
class BrokerResources:
    """What a broker occupies. It is an object of its own, so that it can be released after the broker was collected.

    Only the process that made the object releases anything: after a fork, the child process has a copy of the object.
    """

    owner: Process = field(default_factory=this_process)
    process: "subprocess.Popen[bytes] | None" = None
    held_port: socket.socket | None = None
    temporary: Path | None = None
    temporary_fd: int | None = None

    def __post_init__(self) -> None:
        watch(self)

    @property
    def is_own(self) -> bool:
        """Whether this process has made the object, and not a process from which this one was forked."""
        return self.owner is this_process()

    def after_fork(self) -> None:
        """Close the copies of what the parent process holds. While a copy is open, the broker does not see the end of
        the pipe from its parent, and the port is in use.
        """
        for pipe in () if self.process is None else (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()  # has no buffer and no lock, which another thread of the parent might hold
        self._close_held()

    def hold_temporary(self) -> None:
        """Hold the temporary directory that the broker's process has made, also while the broker is stopped."""
        if self.temporary is not None and self.temporary_fd is None:
            self.temporary_fd = hold(self.temporary)

    def release(self) -> None:
        """Release the port. With a temporary directory, end the broker's process and remove the directory. Without one,
        a process that still runs stops because its standard input ends. In another process than that of the owner, do
        nothing.
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
            remove(self.temporary)
            self.temporary = None
        self._close_held()

    def _close_held(self) -> None:
        if self.held_port is not None:
            self.held_port.close()
            self.held_port = None
        if self.temporary_fd is not None:
            os.close(self.temporary_fd)
            self.temporary_fd = None


def popen(command: list[str], stderr: "IO[bytes] | int") -> "subprocess.Popen[bytes]":
    """Start a process with pipes that have no buffer."""
    return subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)


def write(process: "subprocess.Popen[bytes]", text: bytes) -> None:
    """Write to the standard input of a process, which may have ended already: its log says why."""
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        while text:  # a signal may end a write before the end of the text
            text = text[process.stdin.write(text) :]


def end(process: "subprocess.Popen[bytes]", number: int) -> None:
    """Send a signal to a process and wait for its end. Kill it if it does not end within `STOP_TIMEOUT_S`."""
    # If the process has ended, `Popen` sends no signal, because another process may have the same id by now.
    process.send_signal(number)
    _wait(process)


def _end_and_remove(process: "subprocess.Popen[bytes]") -> None:
    """End a process that then removes its temporary directory, as it does if this process is killed meanwhile."""
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
    """Wait until the broker's process reports that it is ready. Return the broker's port, or None if the process has
    ended. Add the other lines of the process to `said`.

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
