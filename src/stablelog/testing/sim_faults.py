"""The faults of a simulated disk: operations and calls that fail, and the operation in which the machine stops."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from stablelog.errors import DiskError
from stablelog.testing.sim_tree import Inode


class SimulatedCrash(BaseException):
    """The simulated machine has stopped. The class is not an Exception, so that the tested code does not catch it."""


class SimFaults:
    """The operations and calls of a disk that fail, and the operation that crashes the machine.

    Attributes:
        steps: how many operations have changed something.
        crash_at: the number of the operation in which the machine stops; None for never.
        fail_at: the number of the operation that fails; None for none.
        fault: a function that is called with the name and the path of every call, also of a call that only reads. It
            returns the error number with which the call fails, or None if the call is to succeed.
        number: the error number (errno) with which the operation `fail_at` fails.
        fails_late: whether an operation fails after its effect, as on a real disk: names are changed, bytes are synced.
            A failed append leaves half of its bytes, which cannot be removed.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        self.fault: Callable[[str, Path], int | None] | None = None
        self.number = errno.EIO
        self.fails_late = False

    def step(self, what: str, torn: tuple[Inode, bytes] | None = None, path: Path | None = None) -> None:
        """Count an operation that changes something. Stop the machine if it is the operation `crash_at`; fail if it is
        the operation `fail_at`.

        Args:
            what: the operation, for messages.
            torn: a file and the bytes that the operation appends. They are added to the file before a crash, because a
                part of them may have reached the disk.
            path: the path of the operation, for messages.
        """
        self.steps += 1
        if self.steps == self.crash_at:
            if torn is not None:
                # A part of the appended bytes may have reached the disk before the crash.
                torn[0].content += torn[1]
            raise SimulatedCrash(what)
        if self.steps == self.fail_at:
            raise DiskError(f"{what} at {path} failed on the simulated disk", self.number)

    @contextlib.contextmanager
    def effect(self, what: str, path: Path) -> Iterator[None]:
        """Return a context manager that counts an operation, as `step` does. Its body makes the change on the disk.

        If the operation fails or the machine crashes, the error is raised before the body runs, so nothing changes.
        With `fails_late`, a DiskError is raised after the body has made the change.
        """
        late = None
        try:
            self.step(what, path=path)
        except DiskError as error:
            if not self.fails_late:
                raise
            late = DiskError(f"{what} failed", error.number, undone=False)
        yield
        if late is not None:
            raise late

    def call(self, what: str, path: Path) -> None:
        """Raise the error that the function `fault` returns for this call, if any."""
        number = None if self.fault is None else self.fault(what, path)
        if number is not None:
            raise DiskError(f"{what} {path} failed", number)
