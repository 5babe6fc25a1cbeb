"""The indexes of the growing segment. In memory they are complete; the index files may lack the latest entries.

The files are written when the segment is sealed, with each snapshot, and when the partition is closed. Only the entry
of an aborted transaction is written at once. After a crash, recovery rebuilds missing entries from the log.
"""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from stablelog.batch.header import BatchHeader
from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DiskError
from stablelog.log.files.listing import Listing
from stablelog.log.files.names import INDEX, TIMEINDEX, TXNINDEX, PathOf
from stablelog.log.indexes.offset_index import OffsetIndex
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.time_index import ENTRY, NO_TIMESTAMP, TimeIndex
from stablelog.log.indexes.transaction_index import TransactionIndex

Index = OffsetIndex | TimeIndex | TransactionIndex


class GrowingIndexes:
    """The offset index, time index and transaction index of one segment in memory, and their files.

    Args:
        disk: the disk of the segment.
        path_of: returns the path of the segment's file with a suffix.
        base_offset: the base offset of the segment.
        contents: the bytes of the three indexes so far, in the order offset index, time index, transaction index.

    Attributes:
        names_changed: whether an index file was created since the last sync of the directory.
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
        self._dirty: set[str] = set()  # suffixes of the files that were written and not synced
        # By suffix: the size of the index file when it was last known to match the index in memory.
        self._written_sizes: dict[str, int] = {}
        self._synced_sizes: list[int] = []  # sizes of the index files that the last broker has synced
        # Files whose last write has failed. They accept no more writes, but another thread may be syncing them.
        self._broken_files: list[File] = []
        self._lacks_aborted = False  # whether the file of the transaction index lacks an entry

    def contents(self) -> tuple[memoryview, memoryview, memoryview]:
        """Return the bytes of the three indexes, in this order: the offset index, the time index and the transaction
        index. They are memoryviews: until the caller releases them, no entry can be added.
        """
        return self.offsets.content(), self.times.content(), self.txns.content()

    def begin_with(self, progress: Summary) -> bool:
        """Whether the indexes begin with the entries that a summary describes: the first bytes of each index have the
        CRC that the summary records.

        Args:
            progress: a summary of the growing segment up to a snapshot, with the sizes and CRCs that its indexes had
                then.
        """
        return all(
            len(content) >= size and crc32c(content[:size]) == crc
            for content, size, crc in zip(self.contents(), *progress.index_files, strict=True)
        )

    def _by_suffix(self) -> tuple[tuple[str, Index], ...]:
        return (INDEX, self.offsets), (TIMEINDEX, self.times), (TXNINDEX, self.txns)

    def write_new_aborted(self) -> None:
        """Write the newest entry of the transaction index, that of an aborted transaction, to its file. If the disk
        refuses it, `write_aborted` tries again later.
        """
        self._lacks_aborted = True
        with contextlib.suppress(DiskError):
            self.write_aborted()

    def write_aborted(self) -> None:
        """Write all entries that the file of the transaction index lacks.

        Raises:
            DiskError: the file still lacks entries. Other programs must not see the abort markers of these entries:
                they would take the aborted records for committed ones.
        """
        if self._lacks_aborted:
            self._write_index(TXNINDEX, self.txns)
            self._lacks_aborted = False

    def write_files(self) -> None:
        """Write the entries that the index files lack. They are durable after a sync of the files.

        Raises:
            DiskError: some files still lack entries. Recovery can rebuild these entries.
        """
        for suffix, index in self._by_suffix():
            if suffix != TXNINDEX or len(index):
                # As in Kafka, the transaction index has a file only after an abort.
                self._write_index(suffix, index)

    def _write_index(self, suffix: str, index: Index) -> None:
        # The index cannot grow while its memoryview `content` exists. The memoryview is released before an error is
        # raised, because a caller that keeps the error would keep the memoryview, too.
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
                # The next write opens the file again and compares its content with the index.
                self._broken_files.append(self._files.pop(suffix))
                self._dirty.discard(suffix)
            raise

    def _file(self, suffix: str, content: Buffer) -> File:
        """Return the open file of an index. The file then has the first bytes of `content`, and nothing else."""
        file = self._files.get(suffix)
        if file is not None:
            return file
        path, written_size = self._path_of(suffix), self._written_sizes.get(suffix)
        if written_size is None:
            self.names_changed = self.names_changed or not self._disk.exists(path)
        file = self._disk.open(path, create=True)
        try:
            # The file may hold zeros that Kafka has preallocated, or entries of a log that was truncated. In this case
            # it is emptied.
            if file.size != written_size and (
                file.size > len(content) or file.read(0, file.size) != content[: file.size]
            ):
                file.truncate(0)
                if not len(content):
                    # Nothing will be written to the file, so no later sync would make the truncation durable. After a
                    # power failure, the file could then differ from the summary of its segment.
                    file.sync()
            self._written_sizes[suffix] = file.size
        except DiskError:
            file.close()
            raise
        if file.size:  # an earlier write may not be synced yet
            self._dirty.add(suffix)
        self._files[suffix] = file
        return file

    def take_dirty_files(self) -> list[File]:
        """Return the files with writes since their last sync, for the caller to sync. They count as synced from now on."""
        files = [self._files[suffix] for suffix in sorted(self._dirty)]
        self._dirty.clear()
        return files

    def close_files(self) -> None:
        """Close the index files, even if they are not synced.

        A later write opens them again and compares them with the indexes. The files are then synced before a summary or
        a snapshot is written that records their sizes and CRCs.
        """
        self._dirty.clear()
        while self._files:
            self._files.popitem()[1].close()

    def close(self) -> None:
        """Close all files, including those of failed writes."""
        self.close_files()
        while self._broken_files:
            self._broken_files.pop().close()

    # -- files that the last broker has left -------------------------------------------------------------------

    def adopt_files(
        self,
        listing: Listing,
        tail: Callable[[], Iterable[tuple[int, BatchHeader]]] | None,
        latest: tuple[int, int],
        *,
        are_synced: bool,
    ) -> bool:
        """Continue with the existing index files of the growing segment, if they match the log.

        The file of the transaction index must be equal to the index in memory. The other files may lack entries at
        their end, which `write_files` adds. The file of the time index may also have entries that earlier closes of the
        partition have added.

        Args:
            listing: the names of the files in the directory, with a cache of their contents.
            tail: returns the batches that recovery has replayed, as (position, header); None if they are too many to
                read again.
            latest: the greatest timestamp in the segment before the replayed batches, and its offset.
            are_synced: whether the files are durable, because the last broker has synced them before it closed the
                partition.

        Returns:
            True if the files match, and are used from now on; False if they do not.
        """
        sizes = []
        for suffix, index in self._by_suffix():
            name = self._path_of(suffix).name
            found = listing.read(name) if name in listing else b""
            sizes.append(len(found) if name in listing or suffix == TXNINDEX else -1)
            with index.content() as content:
                is_held = found == (content if suffix == TXNINDEX else content[: len(found)])
            if not is_held and (
                suffix != TIMEINDEX or tail is None or not self._adopt_times(found, tail(), latest)
            ):
                return False
        if are_synced:
            self._synced_sizes = sizes
        else:  # A killed broker may have created files without a sync of the directory.
            self.names_changed = True
        return True

    def _adopt_times(
        self, found: bytes, tail: Iterable[tuple[int, BatchHeader]], latest: tuple[int, int]
    ) -> bool:
        """Use the entries of the time index file, if the log confirms each of them. Return whether it does.

        The file may have entries that replay did not create, because each close of a partition adds one for the
        greatest timestamp.
        """
        adopted = TimeIndex(self._base_offset, found)
        known, entries = ([index[at] for at in range(len(index))] for index in (self.times, adopted))
        newest, newest_offset = latest
        # By timestamp: the offset of each timestamp that is greater than all timestamps before it in the segment.
        maxima = {newest: newest_offset, **dict(known)}
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
        """Whether all index files are known to be synced and to lack no entry."""
        return self._synced_sizes == [len(content) for content in self.contents()]
