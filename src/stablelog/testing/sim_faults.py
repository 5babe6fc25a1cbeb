"""The faults of a simulated disk: operations (changes of the disk) and calls that fail, and the operation in which the
machine stops.
"""

import contextlib
import errno
from collections.abc import Callable, Iterator
from pathlib import Path

from stablelog.errors import DiskError
from stablelog.testing.sim_tree import Inode


class SimulatedCrash(BaseException):
    """The simulated machine has stopped. The class is derived from BaseException and not from Exception, so that no
    `except Exception` in the tested code catches it.
    """


class SimFaults:
    """Which operations of a simulated disk fail, and which one crashes the machine. An operation is a call that changes
    something on the disk; operations are counted from 1 on.

    Attributes:
        steps: how many operations (calls of `step`) there were; also the number of the last one.
        crash_at: the number of the operation in which the machine stops; None for never.
        fail_at: the number of the operation that fails; None for none.
        fault: a function that is called with the name and the path of every call, also of a call that only reads. It
            returns the error number with which the call fails, or None if the call is to succeed.
        number: the operating system's error number (errno) with which the operation `fail_at` fails.
        fails_late: whether the operation `fail_at` raises its error only after it has changed names or synced bytes, as
            may happen on a real disk. An append then leaves half of its bytes, which cannot be removed.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.crash_at: int | None = None
        self.fail_at: int | None = None
        self.fault: Callable[[str, Path], int | None] | None = None
        self.number = errno.EIO
        self.fails_late = False

    def step(self, what: str, torn: tuple[Inode, bytes] | None = None, path: Path | None = None) -> None:
        """Count an operation, which is about to change the disk. Raise SimulatedCrash if it is the operation
        `crash_at`, and DiskError if it is the operation `fail_at`.

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
        """Return a context manager that counts an operation. The body of the `with` statement makes the operation's
        change on the disk.

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
        """Raise a DiskError if the function `fault` that a test has set returns an error number for this call. `what`
        is the name of the call.
        """
        number = None if self.fault is None else self.fault(what, path)
        if number is not None:
            raise DiskError(f"{what} {path} failed", number)
