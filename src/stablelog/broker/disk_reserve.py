"""Room on the disk that is kept for the work that frees room, and what is refused while the disk is full.

A file of zeros in the data directory takes up the room. The disk counts as *full* from the first write that finds no
room until the file is whole again and a margin beside it is free; whatever filled it, the broker or another program.
The margin has room for the largest write that has failed since, so that this write succeeds when a client sends it
again.
While it is full, clients' writes are refused with codes that their libraries retry, and the file is cut, step by step,
for the writes that must go on: ends of open transactions, retention, deletions, checkpoints, and, as long as half of
it is left, consumer groups and their offsets. The last quarter of it is kept for what frees room: deletions, retention,
and the small files of the broker that these write. Nothing needs a restart.

Invariant: clients' writes are taken only while the file is whole and no coordinator's record waits for room.

Why it is so: docs/decisions/0013-disk-reserve.md.
"""

import asyncio
import errno
import logging
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from kio.schema.errors import ErrorCode

from stablelog.env.disk import Disk, File
from stablelog.errors import DiskError, Refused

log = logging.getLogger(__name__)

RESERVE_FILE: Final = "disk-reserve"
PROBE_FILE: Final = "disk-reserve.tmp"  # made and removed, to see whether files can be made
STEP_COUNT: Final = 16  # the file is cut in so many steps
FLOOR_COUNT: Final = 4  # steps that are kept for what frees room
MARGIN_SIZE_MIN: Final = 64 << 10
CALL_SIZE_MAX: Final = 16 << 20  # no call that the reserve gives room to needs as many bytes
CHUNK_SIZE: Final = 1 << 20  # bytes of it, or of the margin, that are written in one turn of the loop

# The code with which an API refuses while the disk is full: one that clients retry, with the same broker. The Java client
# retries COORDINATOR_LOAD_IN_PROGRESS without another FindCoordinator, for which an idempotent producer has no key.
REFUSED_WHILE_FULL: Final[Mapping[str, ErrorCode]] = MappingProxyType(
    {
        "Produce": ErrorCode.kafka_storage_error,
        "CreateTopics": ErrorCode.kafka_storage_error,
        "CreatePartitions": ErrorCode.kafka_storage_error,
        "InitProducerId": ErrorCode.coordinator_load_in_progress,
        "AddPartitionsToTxn": ErrorCode.coordinator_load_in_progress,
        "AddOffsetsToTxn": ErrorCode.coordinator_load_in_progress,
        "TxnOffsetCommit": ErrorCode.coordinator_load_in_progress,
        "BeginJoint": ErrorCode.coordinator_load_in_progress,
        # These are served where they end a transaction that is open.
        "EndTxn": ErrorCode.coordinator_load_in_progress,
        "WriteTxnMarkers": ErrorCode.kafka_storage_error,
        "CommitJoint": ErrorCode.coordinator_load_in_progress,
        "AbortJoint": ErrorCode.coordinator_load_in_progress,
        # As long as half of the reserve is left, these are served.
        "OffsetCommit": ErrorCode.coordinator_load_in_progress,
        "JoinGroup": ErrorCode.coordinator_load_in_progress,
        "SyncGroup": ErrorCode.rebalance_in_progress,  # the member joins again, and is told to wait
    }
)
SERVED_FROM_HALF: Final = frozenset({"OffsetCommit", "JoinGroup", "SyncGroup"})
ENDS_ONLY: Final = frozenset({"EndTxn", "WriteTxnMarkers", "CommitJoint", "AbortJoint"})

Result = TypeVar("Result")


class DiskReserve:
    """The reserve of one data directory.

    Args:
        disk: where the directory lies.
        directory: the data directory.
        size: bytes that are kept; 0 for none.
    """

    def __init__(self, disk: Disk, directory: Path, size: int) -> None:
        self._disk = disk
        self._directory = directory
        self._size = size
        self._failed_size = 0  # of the largest write that has failed since the disk counts as full
        self._file: File | None = None
        self._trouble = ""
        self._lacks_room = False
        self._is_told = False  # whether the log says last that the disk is full
        self._waiting: set[Hashable] = set()

    @property
    def is_full(self) -> bool:
        """Whether the disk counts as full."""
        return self._lacks_room or bool(self._waiting)

    @property
    def _held(self) -> int:
        """Bytes that the file takes up."""
        return 0 if self._file is None else self._file.size

    @property
    def _margin(self) -> int:
        """Bytes that must be free beside the whole file before clients' writes are taken."""
        return max(MARGIN_SIZE_MIN, min(self._size // STEP_COUNT, 4 << 20)) + self._failed_size

    @property
    def _lacking(self) -> int:
        """Bytes that the file and the margin lack. The margin is written to the end of the file, and then cut off."""
        return self._size + self._margin - self._held

    def free_size(self) -> int:
        """Bytes that may be written to the disk, whoever writes them; 0 if that cannot be found out."""
        try:
            return self._disk.free_size(self._directory)
        except (DiskError, FileNotFoundError):
            return 0

    # -- start -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file, or make it. If it is not whole, the disk counts as full until `restore` has made it so."""
        path = self._directory / RESERVE_FILE
        try:
            if not self._disk.exists(path) and self._size and self.free_size() >= self._size + self._margin:
                self._disk.allocate(path, self._size)
        except DiskError as error:
            self._note_trouble(error)
        self._open_file()
        self._lacks_room = self._held < self._size

    def _open_file(self) -> None:
        self.close()
        try:
            self._file = self._disk.open(self._directory / RESERVE_FILE, create=True)
            if self._held > self._size:
                self._file.truncate(self._size)
        except DiskError as error:
            self._note_trouble(error)

    def _note_trouble(self, error: DiskError) -> None:
        """Log what keeps the reserve from being whole, once, unless it is the lack of room."""
        if not error.is_full and str(error) != self._trouble:
            self._trouble = str(error)
            log.error("the disk reserve cannot be made whole; it is tried again: %s", error)

    def close(self) -> None:
        """Close the file. It goes on taking up its room."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- while it is full --------------------------------------------------------------------------------------

    def note(self, error: BaseException | None) -> bool:
        """Take note that a call failed. Returns whether it, or what caused it, was for lack of room."""
        full = _lack_of_room(error)
        if full is not None:
            self._failed(full)
            self._set_full(full)
        return full is not None

    def _failed(self, error: DiskError) -> None:
        """Take note how much room a call lacked: capped, since one that can never succeed must not keep the disk full."""
        self._failed_size = max(self._failed_size, min(error.size, CALL_SIZE_MAX))

    def _set_full(self, error: DiskError) -> None:
        self._lacks_room = True
        self.tell_full(error)

    def tell_full(self, error: DiskError | None = None) -> None:
        """Log that the disk is full, once until there is room.

        Args:
            error: of the call that found no room, if there was one.
        """
        if not self._is_told:
            self._is_told = True
            log.error("%s%s", self.state(), "" if error is None else f"; {error}")

    def set_waiting(self, who: Hashable, *, waits: bool) -> None:
        """Somebody has records that wait for room, or has none any more. Until then the disk counts as full."""
        if waits:
            self._waiting.add(who)
        else:
            self._waiting.discard(who)

    def state(self) -> str:
        """A sentence about the disk while it is full."""
        return (
            f"the disk of {self._directory} is full: {self.free_size()} bytes are free, and clients' writes are refused "
            f"until {self._lacking} bytes can be written and files can be made"
        )

    def check(self, api: str) -> None:
        """Refuse a write of a client while the disk is full.

        Raises:
            Refused: with the code of this API.
        """
        half_is_left = 2 * self._held > self._size and not self._waiting
        if not self.is_full or (api in SERVED_FROM_HALF and half_is_left):
            return
        raise Refused(REFUSED_WHILE_FULL[api], self.state())

    def attempt(self, work: Callable[[], Result], *, frees: bool = False) -> Result:
        """Do work that must go on while the disk is full. The reserve gives it room, in steps, until it succeeds.

        Args:
            work: changes nothing if it raises a DiskError for lack of room that is `undone`; it is called again then.
            frees: it frees room, or what frees room needs it: it may use the last quarter of the reserve, too.

        Raises:
            DiskError: the reserve has nothing left for it, the error is another one, or it is not undone.
        """
        while True:
            try:
                return work()
            except DiskError as error:
                if not error.undone:
                    self.note(error)
                    raise
                if not self.make_room(error, frees=frees):
                    raise

    def make_room(self, error: BaseException, *, frees: bool = False) -> bool:
        """Note that a call failed, and give up a step of the reserve if that can help. Returns whether it did.

        Args:
            error: of the call, or what it has caused.
            frees: see `attempt`.
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
        """Whether a call that found no room lacked bytes, as far as can be told; else it lacked an inode.

        A quota is not in the free size.
        """
        return error.number != errno.ENOSPC or self.free_size() < self._size + CALL_SIZE_MAX

    def release(self, *, frees: bool = False) -> bool:
        """Give up a step of the reserve, for work as in `attempt`. Returns whether there was any left for it."""
        step = max(self._size // STEP_COUNT, 1)
        floor = 0 if frees else FLOOR_COUNT * step
        if self._file is None or self._held <= floor:
            return False
        try:
            # A margin that is being written is given up first.
            self._file.truncate(max(floor, min(self._size, self._held - step)))
        except DiskError as error:
            log.error("the disk reserve cannot be released: %s", error)
            return False
        return True

    def write_atomic(self, path: Path, content: bytes) -> None:
        """Replace a small file of the broker, also while the disk is full: see `Disk.write_atomic`."""
        self.attempt(lambda: self._disk.write_atomic(path, content), frees=True)

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """The same without a sync: see `Disk.write_unsynced`."""
        self.attempt(lambda: self._disk.write_unsynced(path, content), frees=True)

    async def restore(self) -> bool:
        """Take back what was given up, as far as there is room. Returns whether the reserve is whole then.

        It returns in the turn of the loop in which it is, so that the caller first writes what waits for room.
        """
        is_probed = False
        while self._lacks_room and self.free_size() >= self._lacking:
            if self._file is None:
                self._open_file()
            try:
                if not is_probed:
                    self._probe()
                    is_probed = True
                self._take_back()
            except DiskError as error:
                self._note_trouble(error)
                self._open_file()  # a file whose failed write could not be undone takes no more
                break
            if self._lacks_room:
                await asyncio.sleep(0)
        if self._held > self._size:
            self._open_file()  # without the part of the margin that was written
        return not self._lacks_room

    def _probe(self) -> None:
        """Make a file and remove it.

        Raises:
            DiskError: no file can be made.
        """
        path = self._directory / PROBE_FILE
        self._disk.open(path, create=True).close()
        self._disk.remove(path)

    def _take_back(self) -> None:
        """Write a chunk of what is lacking. When nothing is lacking any more, cut the margin off.

        Only a write tells that there is room: a quota of the user is not in the free size.

        Raises:
            DiskError: there is none.
        """
        if self._file is None:
            raise DiskError(f"opening {self._directory / RESERVE_FILE} failed", errno.EIO)
        self._file.append(bytes(min(self._lacking, CHUNK_SIZE)))
        if not self._lacking:
            self._file.truncate(self._size)
            self._lacks_room, self._failed_size, self._trouble = False, 0, ""
            if self._is_told:
                self._is_told = False
                log.info("the disk of %s has room: clients' writes are taken", self._directory)


def _lack_of_room(error: BaseException | None) -> DiskError | None:
    """The error of a call that found no room, which is this error or has caused it; None if it is another one."""
    while error is not None:
        if isinstance(error, DiskError) and error.is_full:
            return error
        error = error.__cause__
    return None
