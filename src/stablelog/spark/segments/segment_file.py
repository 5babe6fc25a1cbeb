"""Reader of one segment's files without a broker: its log, its indexes and its summary (a small file with its sizes and
checksums).

The reader uses an index entry only if the batch header at the entry's position agrees with it. A summary records the
length of a sealed log file and a CRC of its batch headers. Format: docs/reference/formats.md.
"""

import contextlib
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from stablelog.batch.header import HEADER, BatchHeader, read_header
from stablelog.crc32c import crc32c
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DamageError, UnavailableError, adding_path
from stablelog.log.files.names import INDEX, LOG, SUMMARY, TIMEINDEX, TXNINDEX
from stablelog.log.indexes.offset_index import ENTRY as INDEX_ENTRY
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import NOTHING, Summary
from stablelog.log.indexes.time_index import TimeIndex
from stablelog.log.indexes.transaction_index import ENTRY as TXN_ENTRY
from stablelog.log.indexes.transaction_index import TransactionIndex
from stablelog.log.search.batches import seek, walk
from stablelog.log.search.source import OFFSET_MAX, FoundBatch
from stablelog.log.segments.proof import prove_headers

TIME_MAX = 2**63 - 1
MARK_SIZE = 64 << 10  # bytes between two batches of a growing segment whose positions are remembered


class GoneError(Exception):
    """A listed segment file does not exist any more, because retention or compaction has removed it."""


class BehindError(GoneError):
    """The segment files that this process sees are behind the broker: they lack data that it has. They are an older
    copy, or a network mount shows an earlier state.
    """


@dataclass(slots=True)
class SegmentFile:
    """One segment's files.

    Attributes:
        base_offset: the base offset, from the file's name.
        path: path of the log file.
        size: size of the log file in bytes when its status was last read.
        inode: inode of the log file.
        sealed: whether there is a later segment.
        summary: the segment's summary, a small file with its sizes and checksums; None if the segment is growing, or
            was not written by stablelog.
        end_offset: the base offset of the next segment; OFFSET_MAX if there is none.
        has_txn_index: whether the file of the transaction index was listed.
        marks: in a growing segment, (base offset, position) of some batches that were read, about one in MARK_SIZE
            bytes.
        passed: how far earlier searches by time have read the log file (`log.search.times`), so that the next search
            can continue there.
    """

    base_offset: int
    path: str
    size: int
    inode: int
    sealed: bool
    summary: Summary | None
    end_offset: int = OFFSET_MAX
    has_txn_index: bool = False
    marks: list[tuple[int, int]] = field(default_factory=list)
    passed: tuple[int, int] = (0, NOTHING)
    _index: OffsetIndex | None = None
    _txn_index: TransactionIndex | None = None
    _is_proven: bool = False

    @property
    def proof(self) -> tuple[int, int] | None:
        """A pair from the segment's summary (a file with its sizes and checksums), with which a task checks the log
        file: the size of the file in bytes, and the CRC-32C over its batch headers. None if the segment has no summary.
        """
        return (self.summary.log_size, self.summary.log_crc) if self.summary is not None else None

    @property
    def stable_offset(self) -> int | None:
        """The first offset of the oldest transaction that was open at the end of the segment. All transactions that
        began before this offset have ended by the end of the segment. None if the segment has no summary (a small file
        with its sizes, checksums and this offset).
        """
        return None if self.summary is None else self.summary.stable_offset

    @property
    def least_aborted_offset(self) -> int | None:
        """The least offset at which a transaction whose abort marker is in the segment may have begun; None if the
        segment has no abort marker.
        """
        if self.summary is None:
            return 0 if self.has_txn_index else None
        return self.summary.least_aborted_offset if self.summary.txnindex_size else None

    @property
    def max_timestamp(self) -> int:
        """The greatest timestamp of the records; TIME_MAX if it is unknown."""
        return TIME_MAX if self.summary is None else self.summary.max_timestamp

    @property
    def time_index(self) -> TimeIndex:
        """The time index of the segment. Before it is read, all batch headers of the segment are checked (`prove`). The
        result is empty if the segment has no summary (a small file with its checksums) or the summary has no CRC of the
        time index, because the index then cannot be checked.
        """
        self.prove()
        content = b"" if self.summary is None else read_or_nothing(self.beside(TIMEINDEX))
        is_known = self.summary is not None and crc32c(content) == self.summary.timeindex_crc
        return TimeIndex(self.base_offset, content if is_known else b"")

    def beside(self, suffix: str) -> str:
        """Return the path of the segment's file with this suffix."""
        return self.path.removesuffix(LOG) + suffix

    def prove(self) -> None:
        """Check the batch headers against the segment's summary (a file with its sizes and checksums). Only the first
        call checks them. Without a summary, do nothing.

        Call this before using batch headers. The driver may plan tasks without this check, because each task makes the
        check before it reads the file.

        Raises:
            GoneError: the file was removed or replaced.
            DamageError: the headers do not match the summary. The message names the file and the damaged batch.
            UnavailableError: the file cannot be read.
        """
        if self.proof is not None and not self._is_proven:
            prove_file(self.path, self.inode, self.proof)
            self._is_proven = True

    def find(self, offset: int) -> FoundBatch | None:
        """Return the batch that contains `offset`, or the first batch after it; None if there is none.

        Raises:
            GoneError: the file was removed.
            DamageError: the file is damaged. The message names the file and the position.
        """
        with _OpenLog(self) as log:
            return seek(log, self._known_before(log.descriptor, offset), offset=offset)

    def boundary_before(self, position: int) -> tuple[int, int] | None:
        """Find a batch that begins at or before a position in the log file, so that the file can be divided there.
        Return a pair: its base offset and its position. Return None if only the first batch of the file is known.
        """
        with _OpenLog(self) as log:
            index = self._offset_index()
            at = index.position_at_or_before(position)
            header = self._header_at(log.descriptor, index, at) if at else None
            found = (header.base_offset, at) if header is not None else None
            place = bisect_right(self.marks, position, key=lambda mark: mark[1])
            if place and (found is None or self.marks[place - 1][1] > found[1]):
                found = self.marks[place - 1]
            return found

    def walk(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the header of each whole batch from the one at `position` on. Before that, check all headers of the
        segment against its summary, a file with its sizes and checksums (`prove`).

        Raises:
            GoneError: the file was removed.
            DamageError: the file is damaged.
        """
        self.prove()
        with _OpenLog(self) as log:
            yield from takewhile(lambda found: found[0] + found[1].size <= log.size, walk(log, position))

    def batch_at(self, position: int, size: int) -> bytes:
        """Read the bytes of a batch."""
        with _OpenLog(self) as log:
            return os.pread(log.descriptor, size, position)

    def _known_before(self, descriptor: int, offset: int) -> int:
        """Return the known position of a batch at or before the one with this offset, from the offset index or from
        `marks` (batches that were read before); 0, the beginning of the file, if neither has one.
        """
        index = self._offset_index()
        at = index.position_before(offset)
        if at and self._header_at(descriptor, index, at) is None:
            at = 0  # The index does not agree with this log file, so begin at its start.
        place = bisect_right(self.marks, offset, key=lambda mark: mark[0])
        return max(at, self.marks[place - 1][1]) if place else at

    def _header_at(self, descriptor: int, index: OffsetIndex, position: int) -> BatchHeader | None:
        """Return the batch header at an entry of the offset index; None if no batch at that position agrees with the
        entry.
        """
        content = os.pread(descriptor, HEADER.size, position)
        try:
            header = read_header(content)
        except DamageError:
            return None
        place = bisect_left(range(len(index)), position, key=lambda at: index[at][1])
        agrees = place < len(index) and index[place] == (header.last_offset, position)
        return header if agrees and header.base_offset >= self.base_offset else None

    def _offset_index(self) -> OffsetIndex:
        if self._index is None or not self.sealed:  # The index of a growing segment grows.
            content = read_or_nothing(self.beside(INDEX))
            whole_size = len(content) // INDEX_ENTRY.size * INDEX_ENTRY.size
            self._index = OffsetIndex(self.base_offset, content[:whole_size])
        return self._index

    @property
    def txn_index(self) -> TransactionIndex:
        """Return the aborted transactions whose abort marker is in this segment.

        Raises:
            DamageError: the transaction index does not agree with its checksum in the segment's summary.
        """
        if self._txn_index is None or not self.sealed:
            path, summary = self.beside(TXNINDEX), self.summary
            is_empty = summary is not None and summary.txnindex_size == 0
            content = b"" if is_empty else read_or_nothing(path)
            if summary is not None and not is_empty and crc32c(content) != summary.txnindex_crc:
                if not os.path.exists(self.path):
                    raise GoneError(self.path)
                raise DamageError(
                    f"{path} is damaged, so it is unknown which transactions were aborted there. Restart its broker, which rebuilds it"
                )
            self._txn_index = TransactionIndex(content[: len(content) // TXN_ENTRY.size * TXN_ENTRY.size])
        return self._txn_index


class _OpenLog(contextlib.AbstractContextManager["_OpenLog"]):
    """An open log file of a segment, with those methods that the searches of `log.search`, which the broker uses too,
    expect of a log file.
    """

    def __init__(self, segment: SegmentFile) -> None:
        self._segment = segment
        self.size = segment.size
        self.descriptor = open_file(segment.path)

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def piece(self, position: int, size: int) -> bytes:
        """Return at most `size` bytes of the log file, from a position at which a batch begins. In a growing segment,
        the position is remembered, so that later searches can begin there.
        """
        size = min(MARK_SIZE + HEADER.size, self.size - position)
        content, segment = os.pread(self.descriptor, size, position), self._segment
        marked = segment.marks[-1][1] if segment.marks else 0
        if not segment.sealed and position - marked >= MARK_SIZE and len(content) >= HEADER.size:
            with contextlib.suppress(DamageError):
                segment.marks.append((read_header(content).base_offset, position))
        return content

    def no_batch_at(self, position: int, error: DamageError | None) -> DamageError:
        """Return the error to raise if the bytes at a position of the log file are no batch. If the segment has a
        summary (a file with its checksums), the whole file is first compared with it (`prove`): the error of this check
        names the damaged batch, and is raised here. `error` says what is wrong with the bytes; None if that is not
        known.
        """
        self._segment.prove()
        return DamageError(f"{self._segment.path}: {error or f'there is no batch at byte {position}'}")

    def torn_at(self, position: int) -> None:
        """Return None in place of an error for a torn batch, which does not end within the file: it is no damage,
        because the broker may be writing it now.
        """


def open_file(path: Path | str) -> int:
    """Open a file for reading. Return its file descriptor, which the caller must close.

    Raises:
        GoneError: the file was removed.
        UnavailableError: the file cannot be read.
    """
    try:
        return os.open(path, os.O_RDONLY)  # Python sets O_CLOEXEC.
    except FileNotFoundError as error:
        raise GoneError(str(path)) from error
    except OSError as error:
        raise UnavailableError(f"{path} cannot be read: {error.strerror}") from error


def prove_file(path: str, inode: int, proof: tuple[int, int]) -> None:
    """Check the batch headers of a log file against `proof`, two numbers from the segment's summary (a small file with
    its sizes and checksums): the size of the log file, and the CRC over its headers. `inode` is the inode of the log
    file when it was listed.

    Raises:
        GoneError: the file was removed or replaced.
        DamageError: the headers do not match `proof`. The message names the file and the damaged batch.
        UnavailableError: the file cannot be read.
    """
    try:
        for _ in prove_headers(LocalDisk(read_only=True), Path(path), *proof):
            pass
    except DamageError:
        if status_of(path).st_ino != inode:
            raise GoneError(path) from None
        raise


def status_of(path: str, summary: Summary | None = None) -> os.stat_result:
    """Return the status (size, inode) of a log file.

    A network mount may return an old status from its cache. If its size is not that in the segment's summary (a file
    with the sizes of the sealed segment), or if there is no summary, this function opens the file, so that the mount
    asks its server, and returns the status of the open file.

    Raises:
        GoneError: the file was removed.
        UnavailableError: the file cannot be read.
    """
    if summary is not None:
        try:
            found = os.stat(path)
        except FileNotFoundError as error:
            raise GoneError(path) from error
        if found.st_size == summary.log_size:
            return found
    descriptor = open_file(path)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def read_summarized(path: str, base: int) -> tuple[Summary | None, os.stat_result]:
    """Read the summary of a segment (a small file with its sizes and checksums), and the status of its log file. Return
    both in a pair; None in place of the summary if it is missing or damaged.

    Compaction removes the summary, replaces the log file and writes a new summary, in this order. The summary belongs
    to the log file if the file's inode is the same before and after the summary is read.

    Raises:
        GoneError: the log file was removed.
    """
    beside = f"{path.removesuffix(LOG)}{SUMMARY}"
    while True:
        before = status_of(path)
        try:
            with adding_path(beside):
                summary = Summary.decode(read_or_nothing(beside))
        except DamageError:
            summary = None  # Without a summary, the reader reads more of the log file.
        if summary is not None and summary.base_offset != base:
            summary = None
        found = status_of(path, summary)
        if found.st_ino == before.st_ino:
            return summary, found


def read_or_nothing(path: Path | str) -> bytes:
    """Return the content of a file; empty bytes if the file does not exist."""
    try:
        descriptor = open_file(path)
    except GoneError:
        return b""
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
