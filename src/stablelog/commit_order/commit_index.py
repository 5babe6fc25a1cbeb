"""The commit index of one segment of a commit-ordered topic.

A commit index has one *entry* for each transaction whose commit marker is in the segment, and one for each run of
consecutive batches outside transactions, in commit order. An entry names its *extents*: the byte ranges of its batches
in the log files.

The index can be rebuilt from the log. The broker does so at a start if a file is missing or does not match the
`.commitsummary` file, which has the sizes and checksums of the index's files. If a file cannot be written, as on a full
disk, the index is read from memory and is written later. No file is synced: the checksums reveal bytes that a crash has
lost.

Source: the DistributedLog paper, "commit record plus local sequence number".
"""

import contextlib
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from stablelog.commit_order.extents import EXTENT
from stablelog.commit_order.index_format import (
    ENTRIES_SUFFIX,
    ENTRY,
    EXTENTS_SUFFIX,
    NO_PRODUCER,
    NOTHING,
    SUMMARY_SUFFIX,
    CommitSummary,
    Entry,
)
from stablelog.commit_order.index_rows import IndexRows
from stablelog.commit_order.row_file import RowFile
from stablelog.crc32c import crc32c
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError, DiskError
from stablelog.log.files.names import file_path
from stablelog.log.indexes.summary import Summary


class CommitIndex(IndexRows):
    """The commit index of one local segment: the list of the transactions that commit in it. The index grows with the
    segment, and is sealed after the segment.

    Attributes:
        path: returns the path of that file of the segment that has a given suffix.
        summary: the content of the `.commitsummary` file; None while the index grows.
        is_written: whether the index is sealed and completely written to its files.
    """

    entries: RowFile
    extents: RowFile

    def __init__(self, disk: Disk, directory: Path, base_offset: int) -> None:
        self._disk = disk
        self.path = partial(file_path, directory, base_offset)
        self.base_offset = base_offset
        self.view_end = base_offset
        self.least_first_offset = NOTHING
        self.latest_sequence = -1
        self.latest_ms = -1
        self.summary: CommitSummary | None = None
        self.is_written = False
        self.entries = RowFile(disk, self.path(ENTRIES_SUFFIX), ENTRY)
        self.extents = RowFile(disk, self.path(EXTENTS_SUFFIX), EXTENT)

    # -- growing -----------------------------------------------------------------------------------------------

    def create(self, before: "CommitIndex | None", first_sequence: int = -1) -> None:
        """Begin an empty commit index (the list of the transactions that commit in a segment), and empty the files that
        an earlier start of the broker may have left.

        Args:
            before: the commit index of the previous segment; None for the first index of the partition.
            first_sequence: for the first index, the greatest commit sequence (the number of a commit, counted over all
                topics of its transaction group) before it; -1 if there is none, or if it is unknown.
        """
        self.latest_sequence = first_sequence
        if before is not None:
            self.latest_sequence, self.view_end = before.latest_sequence, before.view_end
        with contextlib.suppress(DiskError):  # if a file cannot be created, its rows stay in memory
            self._disk.remove(self.path(SUMMARY_SUFFIX))
            self.entries.open_for_writing()
            self.extents.open_for_writing()

    def add_entry(
        self,
        start: int,
        record_count: int,
        *,
        time_ms: int,
        first_offset: int,
        producer_id: int,
        commit_sequence: int,
        leader_epoch: int,
        extents: Iterable[Buffer],
    ) -> None:
        """Add an entry at the end of the commit index: a transaction that commits in the segment, or a run of batches
        outside transactions.

        Args:
            start: the position of its first record in commit order.
            record_count: how many positions it takes.
            time_ms: its commit time or, outside transactions, the greatest timestamp of its records, in ms since 1970.
            first_offset: the offset of its first batch in the log; -1 if the log has lost the beginning of the
                transaction.
            producer_id: the producer of the transaction; NO_PRODUCER outside transactions.
            commit_sequence: the number of the commit, counted over all topics of its transaction group; -1 outside
                transactions.
            leader_epoch: the leader epoch of the commit marker.
            extents: the byte ranges of its batches in the log files, encoded as `Extents.rows` yields them.
        """
        assert start >= self.view_end
        assert self.summary is None, "a sealed commit index gets no more entries"
        extent_first = len(self.extents)
        for rows in extents:
            self.extents.append(rows)
        self.latest_ms = max(self.latest_ms, time_ms)
        self.latest_sequence = max(self.latest_sequence, commit_sequence)
        entry = Entry(
            start,
            record_count,
            self.latest_ms,
            first_offset,
            producer_id,
            self.latest_sequence,
            extent_first,
            len(self.extents) - extent_first,
            leader_epoch,
        )
        self.entries.append(ENTRY.pack(*entry))
        self.view_end = entry.end
        if producer_id != NO_PRODUCER:
            self.least_first_offset = min(self.least_first_offset, first_offset)

    def seal(self, segment: Summary, opened: Sequence[tuple[int, int]]) -> None:
        """Seal the index after its segment was sealed: make the content of its `.commitsummary` file, with the sizes
        and checksums of the index's files.

        Args:
            segment: the summary of the segment: its sizes, times and checksums. The index records the segment's end
                offset and CRC, by which a later start checks that the index belongs to the segment.
            opened: (producer id, first offset) of each transaction that is open at the segment's end.
        """
        self.summary = CommitSummary(
            self.base_offset,
            segment.end_offset,
            segment.log_crc,
            self.view_end,
            self.least_first_offset,
            self.latest_sequence,
            self.latest_ms,
            self.entries.size,
            self.entries.crc,
            self.extents.size,
            self.extents.crc,
            tuple(opened),
        )

    def write(self) -> None:
        """Write an index, which `seal` has completed, to its files, and close them.

        Raises:
            DiskError: a part of the index could not be written. It stays in memory, where it can be read.
        """
        assert self.summary is not None
        self.entries.write()
        self.extents.write()
        self._disk.write_unsynced(self.path(SUMMARY_SUFFIX), self.summary.encode())
        self.close_written()

    # -- sealed ------------------------------------------------------------------------------------------------

    def open_sealed(self, segment: Summary) -> bool:
        """Open the commit index of a sealed segment (the list of the transactions that commit in it) from its files.
        Return True if it is open now; False if the files are incomplete or belong to another segment.

        Args:
            segment: the summary of the segment, with its end offset and CRC. An index with another end offset or CRC
                belongs to another segment.
        """
        try:
            summary = CommitSummary.decode(self._disk.read_bytes(self.path(SUMMARY_SUFFIX)))
            if (summary.base_offset, summary.end_offset, summary.log_crc) != (
                self.base_offset,
                segment.end_offset,
                segment.log_crc,
            ):
                return False
            for suffix, size, crc in (
                (ENTRIES_SUFFIX, summary.entries_size, summary.entries_crc),
                (EXTENTS_SUFFIX, summary.extents_size, summary.extents_crc),
            ):
                content = self._disk.read_bytes(self.path(suffix))
                if len(content) != size or crc32c(content) != crc:
                    return False
        except (FileNotFoundError, DamageError):
            return False
        self.use_summary(summary)
        return True

    def use_summary(self, summary: CommitSummary) -> None:
        """Open the index from its files. `summary` is the content of their `.commitsummary` file, which has their sizes
        and checksums. The files are not compared with it here.
        """
        self.summary = summary
        self.view_end = summary.view_end
        self.least_first_offset = summary.least_first_offset
        self.latest_sequence, self.latest_ms = summary.latest_sequence, summary.latest_ms
        self.entries = RowFile(self._disk, self.path(ENTRIES_SUFFIX), ENTRY, summary.entries_size)
        self.extents = RowFile(self._disk, self.path(EXTENTS_SUFFIX), EXTENT, summary.extents_size)
        self.is_written = True

    def close_written(self) -> None:
        """Close the files of a commit index (the list of the transactions that commit in a segment) that is completely
        written, so that few files are open. A read opens them again.
        """
        assert self.summary is not None
        self.close()
        self.use_summary(self.summary)

    def close(self) -> None:
        """Close the files of the commit index (the list of the transactions that commit in a segment)."""
        self.entries.close()
        self.extents.close()
