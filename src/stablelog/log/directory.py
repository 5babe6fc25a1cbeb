"""A partition's directory, read only: which segments and snapshots it holds, and what the small files say of them.

Reads no log file. A small file that is damaged counts as missing: a start rebuilds each of them.
"""

import contextlib
from pathlib import Path

from crc32c import crc32c

from stablelog.errors import Corrupt
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import SMALL_SIZE, Listing
from stablelog.log.files.names import (
    INDEX_SUFFIXES,
    LOG,
    PRODUCERS,
    SNAPSHOT,
    SUMMARY,
    log_offsets,
    snapshot_offsets,
)
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import decode_producers, decode_snapshot, read_producers


class PartitionDirectory:
    """The segments and snapshots of a partition that is not open.

    Every call raises NewerFormat for a file that a later release has written, and DiskError for one that cannot be read.

    Args:
        listing: of the partition's directory.

    Attributes:
        bases: base offsets of the log files, ascending.
        snapshots: offsets of the snapshots, ascending.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.bases = log_offsets(listing.names)
        self.snapshots = snapshot_offsets(listing.names)
        self._summaries: dict[int, Summary | None] = {}
        # What our snapshots say, as far as a start has read them.
        self._producers: dict[int, tuple[ProducerTable, Summary] | None] = {}

    def path(self, offset: int, suffix: str) -> Path:
        """The path of the file with this offset and suffix."""
        return self.listing.path(f"{offset:020d}{suffix}")

    def summary(self, base_offset: int) -> Summary | None:
        """The summary of a segment; None if it is missing, damaged or that of another segment."""
        if base_offset not in self._summaries:
            self._summaries[base_offset] = None
            with contextlib.suppress(FileNotFoundError, Corrupt):
                summary = Summary.decode(self.listing.read(f"{base_offset:020d}{SUMMARY}"))
                if summary.base_offset == base_offset:
                    self._summaries[base_offset] = summary
        return self._summaries[base_offset]

    def epochs(self) -> LeaderEpochs | None:
        """The leader epochs; None if their file is missing or damaged."""
        with contextlib.suppress(FileNotFoundError, Corrupt):
            return LeaderEpochs.decode(self.listing.read(EPOCH_FILE))
        return None

    def producers(self, offset: int) -> tuple[ProducerTable, Summary] | None:
        """Our snapshot: producer state, and how far the segment had come in which it lies; None if it cannot be read."""
        if offset not in self._producers:
            self._producers[offset] = self._read_producers(offset)
        return self._producers[offset]

    def progress(self, offset: int) -> Summary | None:
        """How far the segment had come in which our snapshot lies. The snapshot is not kept: there may be thousands."""
        found = self._read_producers(offset)
        return None if found is None else found[1]

    def _read_producers(self, offset: int) -> tuple[ProducerTable, Summary] | None:
        name = f"{offset:020d}{PRODUCERS}"
        with contextlib.suppress(FileNotFoundError, Corrupt):
            head = self.listing.head(name)
            is_whole = len(head) < SMALL_SIZE
            return (
                decode_producers(head)
                if is_whole
                else read_producers(self.listing.disk, self.listing.path(name))
            )
        return None

    def kafkas_producers(self, offset: int, now_ms: int) -> ProducerTable | None:
        """The producer state in Kafka's file of a snapshot; None if it cannot be read."""
        with contextlib.suppress(FileNotFoundError, Corrupt):
            return decode_snapshot(self.listing.read(f"{offset:020d}{SNAPSHOT}"), now_ms)
        return None

    def has_readable_snapshot(self, offset: int) -> bool:
        """Whether one of the files of a snapshot can be read."""
        return self.producers(offset) is not None or self.kafkas_producers(offset, 0) is not None

    def marks(self, base_offset: int) -> dict[int, int]:
        """CRC over the batch headers of a log file, by the bytes that the file had when the CRC was written.

        The summary says it of a sealed segment. Of the last segment, the snapshots say it that a start has read. Snapshots
        within a sealed segment may be older than its last compaction.
        """
        said = [self.summary(base_offset)]
        if base_offset == self.bases[-1]:
            said += [found[1] for found in self._producers.values() if found is not None]
        return {
            one.log_size: one.log_crc
            for one in said
            if one is not None and one.base_offset == base_offset and one.log_size
        }

    def held_indexes(self, progress: Summary) -> tuple[bytes, ...] | None:
        """The indexes of the growing segment as a snapshot describes them; None if their files hold something else.

        The files may have more behind that.
        """
        sizes, crcs = progress.index_files
        try:
            if self.listing.disk.size(self.path(progress.base_offset, LOG)) < progress.log_size:
                return None
            indexes = tuple(
                self.listing.read(f"{progress.base_offset:020d}{suffix}")[:size] if size else b""
                for suffix, size in zip(INDEX_SUFFIXES, sizes, strict=True)
            )
        except FileNotFoundError:
            return None
        is_held = all(crc32c(index) == crc for index, crc in zip(indexes, crcs, strict=True) if index)
        return indexes if is_held and tuple(map(len, indexes)) == sizes else None
