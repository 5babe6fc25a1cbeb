"""Input of `stablelog produce` for which the command may have to wait: a pipe or a terminal.

One thread reads the input and sends the records. Before it waits for more input, it must send the records that it has
read, because the next input may never come.
"""

import io
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from stablelog.cli.output import fail

# Called before input is read. It gets a function that waits at most this many seconds for input, and returns whether
# there is some.
BeforeInput = Callable[[Callable[[float], bool]], None]


class WaitingInput(io.RawIOBase):
    """A file, a pipe or a terminal as a raw stream, which calls a function before each read: the command then sends the
    records that it has buffered, in case the read has to wait.

    Args:
        raw: the input, without a buffer.
        before_input: called before each read. Its argument is a function that waits for input for the given number of
            seconds at most, and returns whether there is input.
    """

    def __init__(self, raw: io.RawIOBase, before_input: BeforeInput) -> None:
        self._raw = raw
        self._before_input = before_input

    def readable(self) -> bool:
        """Return True, by which the classes of `io` know that this stream is for reading."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read bytes into a buffer. Return their number, which is 0 at the end of the input. Return None if the input
        is non-blocking and has no bytes now.
        """
        self._before_input(self._is_ready)
        return self._raw.readinto(buffer)

    def _is_ready(self, wait_s: float) -> bool:
        return bool(select.select([self._raw], [], [], wait_s)[0])


@contextmanager
def open_input(file: Path | None, before_input: BeforeInput) -> Iterator[IO[bytes]]:
    """Context with the opened file, or with standard input if no file is given.

    Args:
        file: the file; None for standard input.
        before_input: called before each read that may wait for input.

    Yields:
        The input as a stream of bytes.

    Raises:
        UnavailableError: the process has no standard input.
        OSError: the file cannot be opened.
    """
    if file is None:
        if sys.stdin is None:
            fail("standard input cannot be read: it is closed")
        raw = getattr(sys.stdin.buffer, "raw", None)
        if raw is None or sys.platform == "win32":  # `select` takes only sockets there
            yield sys.stdin.buffer
        else:
            yield io.BufferedReader(WaitingInput(raw, before_input))
        return
    with file.open("rb", buffering=0) as raw:
        yield raw if sys.platform == "win32" else io.BufferedReader(WaitingInput(raw, before_input))
