"""The log file of a local segment, as the searches in `log.search` read it."""

from collections.abc import Callable
from dataclasses import dataclass

from stablelog.env.disk import File
from stablelog.errors import DamageError
from stablelog.log.files.names import LOG, PathOf


class LogFile:
    """The base class of log files, with the error messages about them. A derived class has the path and the size of the
    file.
    """

    __slots__ = ()
    path: PathOf
    size: int

    def no_batch_at(self, position: int, error: DamageError | None) -> DamageError:
        """Return the error for bytes at a position that are no batch: `error`, which has the reason; or, if it is None,
        an error without a reason.
        """
        return error or DamageError(
            f"{self.path(LOG)}: the bytes at byte {position} are no batch. Restore the file"
        )

    def torn_at(self, position: int) -> DamageError:
        """Return the error for a torn batch: one that begins at `position` and does not end within the file."""
        return DamageError(
            f"{self.path(LOG)}: the {self.size - position} bytes at byte {position} are no batch. Restore the file"
        )


@dataclass(slots=True, eq=False)
class ReadLogFile(LogFile):
    """A log file that is read with system calls, not through its memory map. So a sector that the disk cannot read is
    an error, not a signal that ends the process.

    Attributes:
        path: returns the path of the log file.
        log: returns the open log file. It is called before each read, because the file may be closed between two
            batches.
        size: the size of the log file.
    """

    path: PathOf
    log: Callable[[], File]
    size: int

    def piece(self, position: int, size: int) -> bytes:
        """Return a piece of the log file: up to `size` bytes from `position` on."""
        return self.log().read(position, min(size, self.size - position))
