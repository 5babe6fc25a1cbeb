"""The indexes of the segment that grows: complete in memory, and in files that may be behind.

The files are written when the segment is sealed, when a snapshot is taken and when the partition is closed. An aborted
transaction is written at once. Recovery rebuilds from the log what a crash takes of them.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DiskError
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import INDEX, TIMEINDEX, TXNINDEX, PathOf
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.time_index import ENTRY, NO_TIMESTAMP, TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex

Index = OffsetIndex | TimeIndex | TransactionIndex


class GrowingIndexes:
    """The three indexes of one segment, and their files.

    Args:
        disk: where the segment lies.
        path_of: the path of the segment's file with a suffix.
        base_offset: of the segment.
        contents: of the indexes so far, in the order of INDEX_SUFFIXES.

    Attributes:
        names_changed: a file was made, and the directory is not synced since.
    """

    def __init__(
        self,
        disk: Disk,
        path_of: PathOf,
        base_offset: int,
        contents: Sequence[bytes] = (b"", b"", b""),
    ) -> None:
        self.offsets = OffsetIndex(base_offset, contents[0])
        self.times = TimeIndex(base_offset, contents[1])
        self.txns = TransactionIndex(contents[2])
        self.names_changed = False
        self._disk = disk
        self._path_of = path_of
        self._base_offset = base_offset
        self._files: dict[str, File] = {}
        self._dirty: set[str] = set()  # suffixes of files that are not synced since they were written
        self._written_sizes: dict[str, int] = {}  # bytes of files that are known to begin the index
        self._synced_sizes: list[int] = []  # of the files, if the last owner has synced them
        self._broken_files: list[File] = []  # They take no more writes, but a sync may have them.
        self._lacks_aborted = False  # the file of the transaction index is behind memory

    def contents(self) -> tuple[memoryview, memoryview, memoryview]:
        """The bytes of the indexes, in the order of INDEX_SUFFIXES. See `IndexEntries.content`."""
        return self.offsets.content(), self.times.content(), self.txns.content()

    def _by_suffix(self) -> tuple[tuple[str, Index], ...]:
        return (INDEX, self.offsets), (TIMEINDEX, self.times), (TXNINDEX, self.txns)

    def aborted_added(self) -> None:
        """Write the aborted transaction that was added. If its file cannot be written, the file is behind memory."""
        self._lacks_aborted = True
        with contextlib.suppress(DiskError):
            self.write_aborted()

    def write_aborted(self) -> None:
        """Write to the file of the transaction index what it lacks.

        Raises:
            DiskError: the file is behind memory. Readers of the files must not see the markers of what it lacks.
        """
        if self._lacks_aborted:
            self._write_one(TXNINDEX, self.txns)
            self._lacks_aborted = False

    def write(self) -> None:
        """Write to all files what they lack. They are durable when they are synced.

        Raises:
            DiskError: the files are behind memory, which does no harm.
        """
        for suffix, index in self._by_suffix():
            if suffix != TXNINDEX or len(index):  # Kafka makes this file with the first abort.
                self._write_one(suffix, index)

    def _write_one(self, suffix: str, index: Index) -> None:
        # An error that is kept must not keep the view: the index could not grow.
        with index.content() as content:
            file = self._file(suffix, content)
            missing = bytes(content[file.size :])
        if not missing:
            return
        self._dirty.add(suffix)
        try:
            file.append(missing)
            self._written_sizes[suffix] = file.size
        except DiskError as error:
            if not error.undone:
                self._written_sizes.pop(suffix, None)
                # The next write opens the file again and compares it.
                self._broken_files.append(self._files.pop(suffix))
                self._dirty.discard(suffix)
            raise

    def _file(self, suffix: str, content: Buffer) -> File:
        """The file of an index, holding the beginning of `content` and nothing else."""
        file = self._files.get(suffix)
        if file is not None:
            return file
        path, written_size = self._path_of(suffix), self._written_sizes.get(suffix)
        if written_size is None:
            self.names_changed = self.names_changed or not self._disk.exists(path)
        file = self._disk.open(path, create=True)
        try:
            # The file may hold zeros of a preallocation, or entries of a log that was cut: then it is emptied.
            if file.size != written_size and (
                file.size > len(content) or file.read(0, file.size) != content[: file.size]
            ):
                file.truncate(0)
                self._dirty.add(suffix)
            self._written_sizes[suffix] = file.size
        except DiskError:
            file.close()
            raise
        if file.size:  # it may have been closed before it was synced
            self._dirty.add(suffix)
        self._files[suffix] = file
        return file

    def take_dirty_files(self) -> list[File]:
        """The files that were written and not synced. They count as synced from now on."""
        files = [self._files[suffix] for suffix in sorted(self._dirty)]
        self._dirty.clear()
        return files

    def close_files(self) -> None:
        """Close the files that can be opened again, synced or not.

        A later write opens, compares and syncs them before anything relies on them.
        """
        self._dirty.clear()
        while self._files:
            self._files.popitem()[1].close()

    def close(self) -> None:
        """Close all files."""
        self.close_files()
        while self._broken_files:
            self._broken_files.pop().close()

    # -- files that the last owner has left --------------------------------------------------------------------

    def adopt_files(
        self,
        listing: Listing,
        tail: Callable[[], Iterable[tuple[int, BatchHeader]]] | None,
        latest: tuple[int, int],
        *,
        are_synced: bool,
    ) -> bool:
        """Go on with the index files as they are. Returns whether they need no repair.

        The transaction index has to be what memory holds. The others may be behind it: `write` goes on from there.
        Entries that closes have added to the time index are taken over.

        Args:
            listing: of the directory.
            tail: gives the batches that were replayed, as (position, header); None if they are too many to read again.
            latest: the greatest timestamp before them, and its offset.
            are_synced: whether the files are as their last owner has synced them.
        """
        sizes = []
        for suffix, index in self._by_suffix():
            name = self._path_of(suffix).name
            found = listing.read(name) if name in listing else b""
            sizes.append(len(found) if name in listing or suffix == TXNINDEX else -1)
            with index.content() as content:
                is_held = found == (content if suffix == TXNINDEX else content[: len(found)])
            if is_held:
                continue
            if suffix != TIMEINDEX or tail is None or not self._adopt_times(found, tail(), latest):
                return False
        if are_synced:
            self._synced_sizes = sizes
        else:  # a kill may have left files whose names no sync has made durable
            self.names_changed = True
        return True

    def _adopt_times(
        self, found: bytes, tail: Iterable[tuple[int, BatchHeader]], latest: tuple[int, int]
    ) -> bool:
        """Take over the entries of the time index's file, if the log confirms each. Returns whether it does.

        A close completes the time index, and a replay does not make such an entry.
        """
        adopted = TimeIndex(self._base_offset, found)
        known, entries = ([index[at] for at in range(len(index))] for index in (self.times, adopted))
        newest, newest_offset = latest
        maxima = {newest: newest_offset, **dict(known)}  # by greatest timestamp, the offset that reached it
        for _, header in tail:
            if header.max_timestamp > newest and header.record_count:
                newest, maxima[header.max_timestamp] = header.max_timestamp, header.last_offset
        timestamps = [NO_TIMESTAMP, *(timestamp for timestamp, _ in entries)]
        if (
            len(found) != len(adopted) * ENTRY.size
            or any(maxima.get(timestamp) != offset for timestamp, offset in entries)
            or any(former >= latter for former, latter in pairwise(timestamps))
        ):
            return False
        for timestamp, offset in known:
            adopted.append_if_later(timestamp, offset)
        self.times = adopted
        return True

    @property
    def are_files_complete(self) -> bool:
        """Whether the last owner has synced all that memory holds, as far as is known."""
        return self._synced_sizes == [len(content) for content in self.contents()]
