"""The disk reserve: disk space for the work that frees space, and the refusal of clients' writes while the disk is
full.

A file of zeros in the data directory takes up the space. The disk counts as *full* from the first write that fails for
lack of space until the file has its whole size again and a margin beside it is free. It does not matter whether the
broker or another program filled the disk. The margin is at least as large as the largest write that has failed since
the disk became full, so that this write succeeds when a client retries it.

While the disk is full, the broker refuses clients' writes with codes that client libraries retry. It truncates the
file, step by step, to make room for the writes that must continue: ends of open transactions, retention, deletions and
checkpoints; and, as long as half of the file is left, requests of consumer groups and commits of their offsets. The
last quarter is kept for the work that frees space: deletions, retention, and the small files that the broker writes for
them. Nothing needs a restart.

Invariant: the broker accepts clients' writes only while the file has its whole size and no record of a coordinator
waits for space. The reasons for this design: docs/decisions/0013-disk-reserve.md.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.data_directory.names import RESERVE_FILE
from stablelog.env.disk import Disk, File
from stablelog.errors import DiskError, RefusedError

log = logging.getLogger(__name__)

# The broker creates and removes this file to check whether the disk accepts new files.
PROBE_FILE: Final = "disk-reserve.tmp"
STEP_COUNT: Final = 16  # The number of steps in which the broker truncates the reserve file.
# The number of steps at the end of the reserve that only work which frees disk space may use.
FLOOR_COUNT: Final = 4
MARGIN_SIZE_MIN: Final = 64 << 10
CALL_SIZE_MAX: Final = 16 << 20  # Every single call that uses the disk reserve writes fewer bytes than this.
MARGIN_SIZE_MAX: Final = 4 << 20  # The margin without the size of the write that has failed.
# The number of bytes of the reserve file, or of the margin, that are written in one turn of the event loop.
CHUNK_SIZE: Final = 1 << 20


class WhileFull(NamedTuple):
    """How an API answers a client while the disk is full.

    Attributes:
        code: the error code. Clients retry it with the same broker. The Java client retries
            COORDINATOR_LOAD_IN_PROGRESS without another FindCoordinator request, which an idempotent producer could not
            send because it has no transactional id.
        is_served_from_half: whether the API is served nevertheless as long as half of the disk reserve, the space that
            the broker keeps for this case, is left.
        exception: which requests are served nevertheless, or get another code (docs/reference/protocol.md).
    """

    code: ErrorCode
    is_served_from_half: bool = False
    exception: str = ""


Result = TypeVar("Result")


def margin_size(reserve_size: int) -> int:
    """Return how many bytes must be free beside a whole reserve of this size before the broker accepts clients' writes.
    The size of a write that has failed comes on top.
    """
    return max(MARGIN_SIZE_MIN, min(reserve_size // STEP_COUNT, MARGIN_SIZE_MAX))


class DiskReserve:
    """The disk reserve of one data directory: a file whose space the broker uses when the disk is full.

    Args:
        size: the size of the reserve in bytes; 0 for none.
    """

    def __init__(self, disk: Disk, directory: Path, size: int) -> None:
        self._disk = disk
        self._directory = directory
        self._size = size
        # The size in bytes of the largest write that has failed since the disk became full.
        self._failed_size = 0
        self._file: File | None = None
        self._trouble = ""
        self._lacks_room = False
        # Whether the broker's last log message about the disk says that the disk is full, and not that it has space
        # again.
        self._is_told = False
        self._waiting: set[Hashable] = set()

    @property
    def is_full(self) -> bool:
        """Whether the disk counts as full, so that the broker refuses clients' writes.

        The disk counts as full from the first write that fails for lack of space until the reserve file has its whole
        size again and there is a margin of free space beside it. It also counts as full while records of a coordinator
        wait for space.
        """
        return self._lacks_room or bool(self._waiting)

    @property
    def _held(self) -> int:
        """The present size of the reserve file in bytes."""
        return 0 if self._file is None else self._file.size

    @property
    def _margin(self) -> int:
        """The number of bytes that must be free on the disk, in addition to a reserve file of its whole size, before
        the broker accepts clients' writes.
        """
        return margin_size(self._size) + self._failed_size

    @property
    def _lacking(self) -> int:
        """The number of bytes that must still be written before the disk no longer counts as full: the missing part of
        the reserve file, and the margin (bytes that must be free beside the file).

        The broker writes the margin after the end of the reserve, to see whether the disk has space, and then truncates
        the file to the size of the reserve.
        """
        return self._size + self._margin - self._held

    def free_size(self) -> int:
        """Return the free bytes of the disk; 0 if they cannot be determined."""
        try:
            return self._disk.free_size(self._directory)
        except (DiskError, FileNotFoundError):
            return 0

    # -- start -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the reserve file.

        If the file has less than its whole size, the disk counts as full until `restore` has written the rest.
        """
        path = self._directory / RESERVE_FILE
        try:
            if not self._disk.exists(path) and self._size and self.free_size() >= self._size + self._margin:
                self._disk.allocate(path, self._size)
        except DiskError as error:
            self._log_incomplete(error)
        self._open_file()
        self._lacks_room = self._held < self._size

    def _open_file(self) -> None:
        self.close()
        try:
            self._file = self._disk.open(self._directory / RESERVE_FILE, create=True)
            if self._held > self._size:
                self._file.truncate(self._size)
        except DiskError as error:
            self._log_incomplete(error)

    def _log_incomplete(self, error: DiskError) -> None:
        """Log an error that keeps the reserve file from having its whole size: once, until the file is whole again.
        Lack of space is not logged here, because `log_full` reports it.
        """
        if not error.is_full and str(error) != self._trouble:
            self._trouble = str(error)
            log.error(
                "the disk reserve (a file whose space the broker frees when the disk is full) cannot be "
                "written to its whole size: %s. The broker retries",
                error,
            )

    def close(self) -> None:
        """Close the reserve file. It keeps taking up its disk space."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- while it is full --------------------------------------------------------------------------------------

    def record_failure(self, error: BaseException | None) -> bool:
        """Record that a call to the disk failed. If it failed for lack of space, the disk counts as full from now on.

        Returns:
            Whether the error, or one of its causes, is lack of space.
        """
        full = _lack_of_room(error)
        if full is not None:
            self._failed(full)
            self._set_full(full)
        return full is not None

    def _failed(self, error: DiskError) -> None:
        """Record how many bytes a write needed that failed for lack of space: the disk counts as full until that number
        of bytes is free.

        The number is limited. Otherwise the disk would count as full for ever after a write that needs more than the
        disk has.
        """
        self._failed_size = max(self._failed_size, min(error.size, CALL_SIZE_MAX))

    def _set_full(self, error: DiskError) -> None:
        self._lacks_room = True
        self.log_full(error)

    def log_full(self, error: DiskError | None = None) -> None:
        """Log that the disk is full. This is logged only once until there is space again.

        Args:
            error: the error of the call that failed for lack of space, if there was one.
        """
        if not self._is_told:
            self._is_told = True
            log.error("%s%s", self.state(), "" if error is None else f"; {error}")

    def set_waiting(self, who: Hashable, *, waits: bool) -> None:
        """Set whether a coordinator log has records that wait for space. As long as records of any coordinator log
        wait, the disk counts as full.

        Args:
            who: an object of any kind that identifies the log.
            waits: whether records wait.
        """
        if waits:
            self._waiting.add(who)
        else:
            self._waiting.discard(who)

    def state(self) -> str:
        """Return a sentence that says how full the disk is, for messages while it is full."""
        return (
            f"the disk of {self._directory} is full: {self.free_size()} bytes are free, and clients' writes are refused "
            f"until {self._lacking} bytes can be written and files can be created"
        )

    def check(self, while_full: WhileFull) -> None:
        """Refuse a client's write if the disk counts as full.

        Args:
            while_full: the error code with which the API of the request refuses, and whether the API is served
                nevertheless while half of the reserve is left.

        Raises:
            RefusedError: the disk is full. The error has the code of the API.
        """
        half_is_left = 2 * self._held > self._size and not self._waiting
        if not self.is_full or (while_full.is_served_from_half and half_is_left):
            return
        raise RefusedError(while_full.code, self.state())

    def attempt(self, work: Callable[[], Result], *, frees: bool = False) -> Result:
        """Run work that must succeed on a full disk, and return its result. If the work lacks space, free a step of the
        reserve (truncate the reserve file by a part of its size) and run the work again.

        Args:
            work: the function to call. If it raises a DiskError for lack of space whose `undone` is True (the call has
                changed nothing), the function is called again.
            frees: whether `work` frees space, or is needed to free it. Only then may it use the last quarter of the
                reserve.

        Raises:
            DiskError: `work` lacks space and the reserve has none left that this work may use; or `work` has failed for
                another reason.
        """
        while True:
            try:
                return work()
            except DiskError as error:
                if not self._may_repeat(error, frees=frees):
                    raise

    async def attempt_in_thread(
        self, threads: Executor | None, work: Callable[[], Result], *, frees: bool = False
    ) -> Result:
        """Run work in a thread, and return its result. If the work lacks space, truncate the reserve file by a part of
        its size and run the work again, as `attempt` does. `frees` says whether the work frees space.

        Only the event loop changes the reserve file. Raises the errors of `attempt`.
        """
        while True:
            try:
                return await in_thread_to_its_end(threads, work)
            except DiskError as error:
                if not self._may_repeat(error, frees=frees):
                    raise

    def _may_repeat(self, error: DiskError, *, frees: bool) -> bool:
        """Return whether failed work can be repeated: it has changed nothing, and there is more space for it now.
        `frees` says whether the work frees space, so that it may use the last quarter of the reserve.
        """
        if not error.undone:
            self.record_failure(error)
            return False
        return self.make_room(error, frees=frees)

    def make_room(self, error: BaseException, *, frees: bool = False) -> bool:
        """Handle a failed disk call. If space ran out, release a step of the disk reserve: truncate its file by a part
        of its size.

        Args:
            error: the error of the call, or an error that the call's error has caused.
            frees: whether the call frees space. The last quarter of the reserve is only for such calls.

        Returns:
            Whether a step was released, so that the caller can retry the call.
        """
        full = _lack_of_room(error)
        if full is None:
            return False
        self._set_full(full)
        if self._lacks_bytes(full) and self.release(frees=frees):
            return True
        self._failed(full)
        return False

    def _lacks_bytes(self, error: DiskError) -> bool:
        """Return whether a call that failed for lack of space probably lacked free bytes. If not, the file system
        probably had no free inode.

        This is a guess, because the free size of the disk does not show a user's quota.
        """
        return error.number != errno.ENOSPC or self.free_size() < self._size + CALL_SIZE_MAX

    def release(self, *, frees: bool = False) -> bool:
        """Truncate the reserve file by one step, so that other work of the broker can use the space.

        Args:
            frees: whether the work frees space. The last quarter of the reserve is only for such work.

        Returns:
            True if the file was truncated by a step; False if no step is left that this work may use.
        """
        step = max(self._size // STEP_COUNT, 1)
        floor = 0 if frees else FLOOR_COUNT * step
        if self._file is None or self._held <= floor:
            return False
        try:
            # If a part of the margin has been written after the end of the reserve, remove at least that part.
            self._file.truncate(max(floor, min(self._size, self._held - step)))
        except DiskError as error:
            log.error(
                "the broker cannot free the space of its disk reserve, because the file of the reserve "
                "cannot be truncated: %s",
                error,
            )
            return False
        return True

    def write_atomic(self, path: Path, content: bytes, *, is_private: bool = False) -> None:
        """Replace a small file of the broker, on a full disk with space of the reserve. `is_private` says whether only
        the owner may read the file: see `Disk.write_atomic`.
        """
        self.attempt(lambda: self._disk.write_atomic(path, content, is_private=is_private), frees=True)

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace a small file without a sync, on a full disk with space of the reserve. See `Disk.write_unsynced`."""
        self.attempt(lambda: self._disk.write_unsynced(path, content), frees=True)

    async def restore(self) -> bool:
        """Restore the reserve file, from which space was taken: write it to its whole size, as far as the disk has
        space.

        Returns:
            Whether the file is whole. If so, it has become whole in the present turn of the event loop, so the caller
            can write the records that wait for space before any client writes.
        """
        is_probed = False
        while self._lacks_room and self.free_size() >= self._lacking:
            if self._file is None:
                self._open_file()
            try:
                if not is_probed:
                    self._probe()
                    is_probed = True
                self._restore_chunk()
            except DiskError as error:
                self._log_incomplete(error)
                self._open_file()  # If a failed write could not be undone, the file object accepts no more writes.
                break
            if self._lacks_room:
                await asyncio.sleep(0)
        if self._held > self._size:
            self._open_file()  # Opening the file truncates it to the size of the reserve.
        return not self._lacks_room

    def _probe(self) -> None:
        """Check that the disk accepts new files, as it does not without free inodes: create a file and remove it.

        Raises:
            DiskError: no file can be created.
        """
        path = self._directory / PROBE_FILE
        self._disk.open(path, create=True).close()
        self._disk.remove(path)

    def _restore_chunk(self) -> None:
        """Write the next chunk of the bytes that are missing: of the reserve file, and then of the margin, the space
        that must be free beside the file.

        After the last chunk, the margin is truncated, and the disk no longer counts as full. Only a write shows whether
        there is space: the free size of the disk does not show a user's quota.

        Raises:
            DiskError: there is no space.
        """
        if self._file is None:
            raise DiskError(f"opening {self._directory / RESERVE_FILE} failed", errno.EIO)
        self._file.append(bytes(min(self._lacking, CHUNK_SIZE)))
        if not self._lacking:
            self._file.truncate(self._size)
            self._lacks_room, self._failed_size, self._trouble = False, 0, ""
            if self._is_told:
                self._is_told = False
                log.info(
                    "the disk of %s has space again: the broker accepts clients' writes", self._directory
                )


def _lack_of_room(error: BaseException | None) -> DiskError | None:
    """Return the DiskError that reports lack of space: the error itself or one of its causes. None if neither reports
    lack of space.
    """
    while error is not None:
        if isinstance(error, DiskError) and error.is_full:
            return error
        error = error.__cause__
    return None
