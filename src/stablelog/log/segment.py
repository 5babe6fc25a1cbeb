"""One segment: a file of record batches, and the indexes over it.

The growing segment keeps its offset and time index in memory and writes them out when it is sealed or a snapshot
is taken; recovery makes them anew from the log. An abort goes into the file of the transaction index at once.
A sealed segment is opened when it is first read, and only so many are open at a time.
"""

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, read_header
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import Corrupt
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.summary import NOTHING, Summary
from stablelog.log.time_index import TimeIndex
from stablelog.log.transaction_index import AbortedTxn, TransactionIndex, encode_entry

LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY = ".log", ".index", ".timeindex", ".txnindex", ".summary"
SEGMENT_SUFFIXES = (LOG, INDEX, TIMEINDEX, TXNINDEX, SUMMARY)
WALK_READ_SIZE = 64 << 10
FIND_READ_SIZE = 5 << 10  # an index interval and a header
RELATIVE_OFFSET_MAX = 2**31 - 1


class OpenFiles:
    """Sealed segments' log files that are open: the one that was not used for longest is closed for the next."""

    def __init__(self, disk: Disk, count_max: int = 256) -> None:
        self._disk = disk
        self._count_max = count_max
        self._files: OrderedDict[Path, File] = OrderedDict()

    def get(self, path: Path) -> File:
        """The file, opened if it is not."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = self._disk.open(path)
            while len(self._files) > self._count_max:
                self._files.popitem(last=False)[1].close()
        else:
            self._files.move_to_end(path)
        return file

    def close(self, path: Path) -> None:
        """The file is going away."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()

    def close_all(self) -> None:
        """Close them all."""
        while self._files:
            self._files.popitem()[1].close()


class Segment:
    """A segment of one partition.

    Attributes:
        base_offset: of its first record, if no compaction has removed it.
        summary: what it holds; of a growing segment, what it held when it was last asked for.
        sealed: whether it is complete.
        end_offset: exclusive.
        size: bytes of the log file.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int, open_files: OpenFiles) -> None:
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._log: File | None = None
        self._txn_file: File | None = None
        self._index_files: list[File] = []  # written, and to be synced with the log
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._txn_index: TransactionIndex | None = None
        self._indexed_position = 0
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.first_timestamp = NOTHING
        self.max_timestamp = NOTHING
        self.max_timestamp_offset = base_offset
        self.log_crc = 0
        self.record_count = 0
        self.committed_count = 0
        self.aborted_count = 0
        self.least_aborted_offset: int | None = None
        self.created_ms = -1
        self.sealed = False
        self.summary: Summary | None = None

    def path(self, suffix: str) -> Path:
        """The segment's file of this kind."""
        return self._directory / f"{self.base_offset:020d}{suffix}"

    @property
    def stable_offset(self) -> int:
        """The first offset that was undecided when the segment was sealed."""
        assert self.summary is not None
        return self.summary.stable_offset

    # -- making and opening ------------------------------------------------------------------------------------

    def create(self) -> None:
        """Make the log file of a segment that begins to grow; the names are durable when their directory is synced."""
        self._log = self._disk.open(self.path(LOG), create=True)
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self._txn_index = TransactionIndex()

    def open_sealed(self, summary: Summary) -> None:
        """Trust a summary that recovery has checked."""
        self._take(summary)
        self.sealed = True

    def open_growing(self, progress: Summary | None) -> None:
        """Open the log to append, or to scan again from where `progress` says that its indexes are known."""
        self._log = self._disk.open(self.path(LOG), create=True)
        self._txn_file = None
        if progress is not None:
            self._offset_index = OffsetIndex(
                self.base_offset, bytearray(self._read(INDEX, progress.index_size))
            )
            self._time_index = TimeIndex(
                self.base_offset, bytearray(self._read(TIMEINDEX, progress.timeindex_size))
            )
            self._txn_index = TransactionIndex(bytearray(self._read(TXNINDEX, progress.txnindex_size)))
            self._take(progress)
            self._indexed_position = self._log.size
            self._truncate(TXNINDEX, progress.txnindex_size)
        else:
            self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
            self._txn_index = TransactionIndex()
            self._truncate(TXNINDEX, 0)

    def _take(self, summary: Summary) -> None:
        self.summary = summary
        self.end_offset = summary.end_offset
        self.size = summary.log_size
        self.first_timestamp, self.max_timestamp = summary.first_timestamp, summary.max_timestamp
        self.log_crc = summary.log_crc
        self.record_count, self.committed_count = summary.record_count, summary.committed_count
        self.aborted_count = summary.txnindex_size // 34
        self.least_aborted_offset = None if summary.least_aborted_offset < 0 else summary.least_aborted_offset
        self.created_ms = summary.first_timestamp

    def _read(self, suffix: str, size: int) -> bytes:
        return self._disk.read_bytes(self.path(suffix))[:size] if size else b""

    def _truncate(self, suffix: str, size: int) -> None:
        if self._disk.exists(self.path(suffix)):
            if size:
                file = self._disk.open(self.path(suffix))
                file.truncate(size)
                file.close()
            else:
                self._disk.remove(self.path(suffix))

    def matches(self, summary: Summary) -> bool:
        """Whether the segment's files are those that the summary tells of, as far as that costs little to say.

        The log's size and the transaction index are looked at here; the other indexes when they are first used.
        """
        try:
            if summary.base_offset != self.base_offset or self._disk.size(self.path(LOG)) != summary.log_size:
                return False
            for suffix, size in ((INDEX, summary.index_size), (TIMEINDEX, summary.timeindex_size)):
                if self._disk.size(self.path(suffix)) != size:
                    return False
            if summary.txnindex_size == 0:
                return not self._disk.exists(self.path(TXNINDEX)) or self._disk.size(self.path(TXNINDEX)) == 0
            content = self._disk.read_bytes(self.path(TXNINDEX))
            return len(content) == summary.txnindex_size and crc32c(content) == summary.txnindex_crc
        except FileNotFoundError:
            return False

    # -- growing -----------------------------------------------------------------------------------------------

    def has_room(self, size: int, next_offset: int, segment_bytes: int, index_bytes: int) -> bool:
        """Whether a batch of this size still belongs here."""
        assert self._offset_index is not None
        assert self._time_index is not None
        return (
            (self.size == 0 or self.size + size <= segment_bytes)
            and next_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and (len(self._offset_index) + 1) * 8 <= index_bytes
            and (len(self._time_index) + 2) * 12 <= index_bytes
        )

    def append(self, buffers: tuple[Buffer, ...]) -> int:
        """Write the bytes of a batch, or of several. Returns their position. Nothing is noted yet: see `note`."""
        assert self._log is not None
        assert not self.sealed
        assert self._log.size == self.size
        return self._log.append(*buffers)

    def note(self, header: BatchHeader, position: int, prefix: Buffer, interval: int) -> None:
        """Take a batch that stands at `position` into the indexes and counts.

        Args:
            header: with its own base offset.
            position: where in the log file it begins.
            prefix: its first 61 bytes as they stand in the file.
            interval: bytes between two entries of the offset index.
        """
        assert self._offset_index is not None
        assert self._time_index is not None
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
        if position - self._indexed_position > interval:
            self._offset_index.append(header.last_offset, position)
            self._time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
            self._indexed_position = position
        if self.first_timestamp == NOTHING:
            self.first_timestamp = header.base_timestamp
        self.size = position + header.size
        self.end_offset = header.next_offset
        self.log_crc = crc32c(prefix, self.log_crc)
        if not header.is_control:
            self.record_count += header.record_count
            if not header.is_transactional:
                self.committed_count += header.record_count

    def append_aborted(self, txn: AbortedTxn) -> None:
        """Put an aborted transaction into the transaction index, file and memory."""
        assert self._txn_index is not None
        if self._txn_file is None:
            self._txn_file = self._disk.open(self.path(TXNINDEX), create=True)
        if self._txn_file.size != len(self._txn_index) * 34:
            self._txn_file.truncate(len(self._txn_index) * 34)
        self._txn_file.append(encode_entry(txn))
        self._txn_index.append(txn)
        self.aborted_count += 1
        if self.least_aborted_offset is None or txn.first_offset < self.least_aborted_offset:
            self.least_aborted_offset = txn.first_offset

    def progress(self, stable_offset: int) -> Summary:
        """What the segment holds by now, in the form of a summary."""
        assert self._offset_index is not None
        assert self._time_index is not None
        assert self._txn_index is not None
        index, timeindex, txnindex = (
            self._offset_index.content(),
            self._time_index.content(),
            self._txn_index.content(),
        )
        return Summary(
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            first_timestamp=self.first_timestamp,
            max_timestamp=self.max_timestamp,
            log_size=self.size,
            log_crc=self.log_crc,
            index_size=len(index),
            index_crc=crc32c(index),
            timeindex_size=len(timeindex),
            timeindex_crc=crc32c(timeindex),
            txnindex_size=len(txnindex),
            txnindex_crc=crc32c(txnindex),
            record_count=self.record_count,
            committed_count=self.committed_count,
            stable_offset=stable_offset,
            least_aborted_offset=NOTHING if self.least_aborted_offset is None else self.least_aborted_offset,
        )

    def write_indexes(self) -> None:
        """Bring the files of the offset and time index up to what memory holds. They are durable when synced."""
        assert self._offset_index is not None
        assert self._time_index is not None
        self._close_indexes()
        for suffix, content in (
            (INDEX, self._offset_index.content()),
            (TIMEINDEX, self._time_index.content()),
        ):
            file = self._disk.open(self.path(suffix), create=True)
            # The file may hold zeros of a preallocation, or entries of a log that was cut: begin anew if it is not a prefix.
            if file.size > len(content) or (
                file.size and file.read(0, file.size) != bytes(content[: file.size])
            ):
                file.truncate(0)
            if file.size < len(content):
                file.append(content[file.size :])
            self._index_files.append(file)

    def _close_indexes(self) -> None:
        while self._index_files:
            self._index_files.pop().close()

    def seal(self, stable_offset: int) -> None:
        """Nothing more is appended: close the time index with its last entry, and write the indexes."""
        assert self._time_index is not None
        if self.size:
            self._time_index.append_if_later(self.max_timestamp, self.max_timestamp_offset)
        self.write_indexes()
        self.summary = self.progress(stable_offset)
        self.sealed = True

    def files_to_sync(self) -> list[File]:
        """The files whose bytes a sync of this segment makes durable."""
        assert self._log is not None
        return [self._log, *self._index_files, *([] if self._txn_file is None else [self._txn_file])]

    def release(self) -> None:
        """A sealed segment that is durable: keep no file open, and load the indexes again when they are needed."""
        assert self.sealed
        self._close_own()
        self._offset_index = self._time_index = None
        self._txn_index = None

    def cut(self, size: int) -> None:
        """Cut the log file: what follows was not whole."""
        assert self._log is not None
        self._log.truncate(size)

    def close(self) -> None:
        """Close every file."""
        self._close_own()
        self._open_files.close(self.path(LOG))

    def _close_own(self) -> None:
        for file in (self._log, self._txn_file):
            if file is not None:
                file.close()
        self._log = self._txn_file = None
        self._close_indexes()

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def log(self) -> File:
        """The log file, open."""
        return self._log if self._log is not None else self._open_files.get(self.path(LOG))

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, read from its file where it is not in memory."""
        if self._offset_index is None:
            assert self.summary is not None
            content = self._checked(INDEX, self.summary.index_crc)
            if content is None:
                self._rebuild_indexes()
            else:
                self._offset_index = OffsetIndex(self.base_offset, content)
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, read from its file where it is not in memory."""
        if self._time_index is None:
            assert self.summary is not None
            content = self._checked(TIMEINDEX, self.summary.timeindex_crc)
            if content is None:
                self._rebuild_indexes()
            else:
                self._time_index = TimeIndex(self.base_offset, content)
        assert self._time_index is not None
        return self._time_index

    @property
    def txn_index(self) -> TransactionIndex:
        """The transaction index, read from its file where it is not in memory.

        Raises:
            Corrupt: it is not what the summary tells of. What was aborted is then not known, and nothing is served.
        """
        if self._txn_index is None:
            assert self.summary is not None
            content = b""
            if self.summary.txnindex_size:
                checked = self._checked(TXNINDEX, self.summary.txnindex_crc)
                if checked is None:
                    raise Corrupt(
                        f"{self.path(TXNINDEX)} is damaged; restart the broker to have it made anew from the log"
                    )
                content = checked
            self._txn_index = TransactionIndex(content)
        return self._txn_index

    def _checked(self, suffix: str, crc: int) -> bytes | None:
        try:
            content = self._disk.read_bytes(self.path(suffix))
        except FileNotFoundError:
            return None
        return content if crc32c(content) == crc else None

    def _rebuild_indexes(self) -> None:
        """Make the offset and time index of a sealed segment anew, by walking its batches."""
        fresh = Segment(self._disk, self._directory, self.base_offset, self._open_files)
        fresh._offset_index, fresh._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        for position, header in self.walk(0):
            fresh.note(header, position, self.log.read(position, HEADER.size), WALK_READ_SIZE // 16)
        fresh._time_index.append_if_later(fresh.max_timestamp, fresh.max_timestamp_offset)
        self._offset_index, self._time_index = fresh._offset_index, fresh._time_index

    def walk(self, position: int, read_size: int = WALK_READ_SIZE) -> Iterator[tuple[int, BatchHeader]]:
        """Each batch from the one that begins at `position`, as (position, header)."""
        while position < self.size:
            chunk = self.log.read(position, min(read_size, self.size - position))
            reached = position
            at = 0
            while len(chunk) - at >= HEADER.size:
                header = read_header(chunk, at)
                yield position + at, header
                at += header.size
                reached = position + at
            if reached == position:
                raise Corrupt(f"{self.path(LOG)}: {self.size - position} bytes at {position} are no batch")
            position = reached

    def find(self, offset: int) -> tuple[int, BatchHeader] | None:
        """The first batch that ends at `offset` or after it, as (position, header); None if there is none here."""
        for position, header in self.walk(self.offset_index.position_before(offset), FIND_READ_SIZE):
            if header.last_offset >= offset:
                return position, header
        return None

    def whole_batches(self, position: int, end: int) -> tuple[int, int]:
        """Where the last whole batch of [position, end) ends: as (position, next offset), both exclusive.

        The batch at `position` is there as a whole.
        """
        if end >= self.size:
            return self.size, self.end_offset
        begin = max(self.offset_index.position_at_or_before(end), position)
        reached: tuple[int, int] | None = None
        for at, header in self.walk(begin, FIND_READ_SIZE):
            if at + header.size > end:
                if reached is None:
                    # The batch at the indexed position is cut off: what ends there ends before its base offset.
                    assert at > position
                    return at, header.base_offset
                break
            reached = (at + header.size, header.next_offset)
        assert reached is not None
        return reached
