"""Every error that stablelog raises on purpose.

    StablelogError
    ├── Refused              a request that cannot be done as asked; nothing changed; carries Kafka's error code
    │   └── OffsetOutOfRange the asked offset is not in the log; the reader must reset
    ├── Corrupt              bytes that are not what was written: stop, and look at the named file
    ├── NewerFormat          a file or record that a later release has written: stop, and start that release
    ├── Unavailable          the disk or the broker failed underneath; nothing was acknowledged
    │   └── DiskError        one call to the disk failed; carries the operating system's error number
    ├── Unproven             a log file was not proven since the start: prove it, and ask again
    └── InvalidConfig        a setting that is unknown or outside its valid range

A class exists only where a caller acts differently. Everything else that a Kafka client can be told is a
`Refused` with the error code that says it. Any other exception is a bug: the broker logs it and closes the
connection it came from.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

FULL = (errno.ENOSPC, errno.EDQUOT)
NEWER_MAX: Final = 100  # a version further ahead is damage: no later release has so many


class StablelogError(Exception):
    """The root: never raised itself."""


class Refused(StablelogError):
    """A request that cannot be done as asked. State is as it was before.

    Args:
        code: what a Kafka client is told.
        message: what was wrong and what to do, for people.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class OffsetOutOfRange(Refused):
    """The asked offset lies before the log's start or past its end."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.offset_out_of_range, message)


class Corrupt(StablelogError):
    """Bytes that are not what was written. Names the file and the position, or the offset."""


class NewerFormat(StablelogError):
    """A file or record of a version that a later release has written. Nothing of it was read or changed.

    It is not `Corrupt`: what is damaged may be made anew, and this must be left as it is.

    Args:
        what: the kind of file or record, such as "a segment summary".
        found: its version.
        known: the greatest version that this release reads.
        place: the file, and the offset of a record; empty where who raises it does not know.
    """

    def __init__(self, what: str, found: int, known: int, place: str = "") -> None:
        super().__init__(
            f"{f'{place}: ' if place else ''}{what} of version {found}; this release reads versions up to {known}. "
            "Start the release that wrote it, or a later one"
        )
        self.what = what
        self.found = found
        self.known = known
        self.place = place


def refuse_newer(what: str, found: int, known: int) -> None:
    """Refuse a version that a later release may have written.

    Any other version that is not known is left to the caller: it is damage.

    Raises:
        NewerFormat: the version is a little greater than the greatest that is known.
    """
    if known < found <= known + NEWER_MAX:
        raise NewerFormat(what, found, known)


@contextlib.contextmanager
def naming(place: object) -> Iterator[None]:
    """Name a file in a `NewerFormat` that is raised in the block and names none."""
    try:
        yield
    except NewerFormat as newer:
        if newer.place:
            raise
        raise NewerFormat(newer.what, newer.found, newer.known, str(place)) from None


class Unavailable(StablelogError):
    """The disk or the broker failed underneath. What was asked was not acknowledged."""


class DiskError(Unavailable):
    """A call to the disk failed. `Disk` and `File` raise this and FileNotFoundError, and nothing else.

    Args:
        what: the call and its path, such as "writing 12 bytes to /log/t-0/x.log failed".
        number: the operating system's error number (`errno`).
        undone: whether the file or directory is as it was before the call.
        size: bytes that the call was to write; 0 where it writes none, or their number is not known.
    """

    def __init__(self, what: str, number: int, *, undone: bool = True, size: int = 0) -> None:
        super().__init__(f"{what}: {os.strerror(number)} ({errno.errorcode.get(number, number)})")
        self.number = number
        self.undone = undone
        self.size = size

    @property
    def is_full(self) -> bool:
        """Whether the disk or the user's quota has no room. The same call may succeed once there is room."""
        return self.number in FULL


class Unproven(StablelogError):
    """A log file was taken on trust at the start of the broker, and is not handed out before it is proven.

    Args:
        path: of the log file.
        prove: proves it, a piece at a time, in any thread. Raises Corrupt or DiskError.
    """

    def __init__(self, path: Path, prove: Callable[[], Iterator[None]]) -> None:
        super().__init__(f"{path} was not proven since the start of the broker")
        self.path = path
        self.prove = prove


class InvalidConfig(StablelogError):
    """A setting that is unknown, or whose value lies outside the valid range; says which and what is valid."""


def in_words(error: Exception) -> str:
    """Why content could not be read or a file not be found, for people: the message of an error without Python's names."""
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    if isinstance(error, (TypeError, AttributeError)):
        return "a value in it is of another type than expected"
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return str(error)
