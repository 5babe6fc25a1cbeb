"""Read-only access to the files of a partition that is not open: the summaries and indexes of its segments, its
snapshots and its small files. No log file is read.

A damaged small file counts as missing, because the next start of the broker rebuilds it.
"""

import contextlib
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.errors import DamageError
from stablelog.log.files.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.files.listing import SMALL_SIZE, Listing
from stablelog.log.files.names import (
    INDEX_SUFFIXES,
    LOG,
    PRODUCERS,
    SNAPSHOT,
    SUMMARY,
    SegmentName,
    log_offsets,
    snapshot_offsets,
)
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.producer_state.snapshots import decode_producers, decode_snapshot, read_producers


class PartitionDirectory:
    """The segments and snapshots in the directory of a partition that is not open.

    Every method raises UnknownFormatError for a file of a later release, and DiskError for a file that cannot be read.

    Args:
        listing: the names of the files in the partition's directory, with a cache of their contents.

    Attributes:
        bases: base offsets of the log files, ascending.
        snapshots: offsets of the snapshots, ascending.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.bases = log_offsets(listing.names)
        self.snapshots = snapshot_offsets(listing.names)
        self._summaries: dict[int, Summary | None] = {}
        # By offset: the content of each `.producers` snapshot that was read; None if it cannot be read.
        self._producers: dict[int, tuple[ProducerTable, Summary] | None] = {}

    def path(self, offset: int, suffix: str) -> Path:
        """The path of the partition's file with this offset and suffix."""
        return self.listing.path(f"{offset:020d}{suffix}")

    def segment_name(self, base_offset: int) -> SegmentName:
        """The name of a segment: its base offset, and the paths of its files. The segment need not exist."""
        return SegmentName.of(self.listing.directory, base_offset)

    def summary(self, base_offset: int) -> Summary | None:
        """The summary of a segment: its offsets, timestamps, file sizes and checksums. None if the file of the summary
        is missing or damaged, or belongs to another segment.
        """
        if base_offset not in self._summaries:
            self._summaries[base_offset] = None
            with contextlib.suppress(FileNotFoundError, DamageError):
                summary = Summary.decode(self.listing.read(f"{base_offset:020d}{SUMMARY}"))
                if summary.base_offset == base_offset:
                    self._summaries[base_offset] = summary
        return self._summaries[base_offset]

    def epochs(self) -> LeaderEpochs | None:
        """Return the leader epochs; None if the leader-epoch-checkpoint file is missing or damaged."""
        with contextlib.suppress(FileNotFoundError, DamageError):
            return LeaderEpochs.decode(self.listing.read(EPOCH_FILE))
        return None

    def producers(self, offset: int) -> tuple[ProducerTable, Summary] | None:
        """Read the `.producers` snapshot of an offset.

        Returns:
            Two values: the producer state at this offset, and a summary (sizes, counts and checksums) of the segment up
            to this offset. None if the file is missing or damaged.
        """
        if offset not in self._producers:
            self._producers[offset] = self._read_producers(offset)
        return self._producers[offset]

    def read_progress(self, offset: int) -> Summary | None:
        """Return the *progress* in the `.producers` snapshot of an offset: a summary (sizes, counts and checksums) of
        the segment up to this offset. None if the file is missing or damaged.

        The producer state of the snapshot is not kept in memory, because a partition may have thousands of snapshots.
        """
        found = self._read_producers(offset)
        return None if found is None else found[1]

    def _read_producers(self, offset: int) -> tuple[ProducerTable, Summary] | None:
        name = f"{offset:020d}{PRODUCERS}"
        with contextlib.suppress(FileNotFoundError, DamageError):
            head = self.listing.head(name)
            if len(head) < SMALL_SIZE:
                return decode_producers(head)
            return read_producers(self.listing.disk, self.listing.path(name))
        return None

    def kafka_producers(self, offset: int, now_ms: int) -> ProducerTable | None:
        """Read the producer state in Kafka's `.snapshot` file of an offset; None if the file is missing or damaged."""
        with contextlib.suppress(FileNotFoundError, DamageError):
            return decode_snapshot(self.listing.read(f"{offset:020d}{SNAPSHOT}"), now_ms)
        return None

    def has_readable_snapshot(self, offset: int) -> bool:
        """Whether at least one of the two files of the snapshot at this offset, `.producers` and `.snapshot`, can be
        read.
        """
        return self.producers(offset) is not None or self.kafka_producers(offset, 0) is not None

    def header_crcs(self, base_offset: int) -> dict[int, int]:
        """Return the recorded CRCs over the batch headers of a log file. Each CRC covers the headers in the first bytes
        of the file; the key is the number of these bytes.

        For a sealed segment, the CRC is in its summary. For the last segment, the CRCs are in the snapshots that were
        read. Snapshots within a sealed segment are ignored, because the segment may have been compacted since.
        """
        said = [self.summary(base_offset)]
        if base_offset == self.bases[-1]:
            said += [found[1] for found in self._producers.values() if found is not None]
        return {
            one.log_size: one.log_crc
            for one in said
            if one is not None and one.base_offset == base_offset and one.log_size
        }

    def indexes_up_to(self, progress: Summary) -> tuple[bytes, ...] | None:
        """Return the contents of the growing segment's indexes up to a snapshot, in the order offset index, time index,
        transaction index. Later entries in the files are left out. None if the index files do not match the snapshot.

        Args:
            progress: the summary from the `.producers` file of the snapshot, with the sizes and checksums of the
                indexes up to the snapshot.
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
