"""Snapshots of the producer state, which shorten recovery: it reads only the log after a snapshot.

A snapshot of offset S has the producer state of the log up to S, in two files. `<S>.snapshot` has Kafka's format, with
one batch of each producer. `<S>.producers` is stablelog's own, with all five batches, the times of the producers' last
writes in broker time (a clock that never goes back), and a summary of the segment up to S (its *progress*). Recovery
prefers the `.producers` file.

The event loop copies the packed producer table, which takes milliseconds. Any thread then encodes and writes the files.

Format: docs/reference/formats.md, "Producer snapshot", "Producers".
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from stablelog.crc32c import crc32c
from stablelog.env.disk import Content, Disk
from stablelog.errors import DamageError, DiskError, UnknownFormatError, refuse_unknown_version
from stablelog.log.files.names import PRODUCERS, SNAPSHOT, file_path, is_snapshot, offset_of
from stablelog.log.indexes.summary import SUMMARY, Summary
from stablelog.log.producer_state.producer import NO_TXN, KeptBatch, ProducerEntry
from stablelog.log.producer_state.producer_table import SNAPSHOT_ENTRY, ProducerTable, entries_of
from stablelog.log.producer_state.producers import Producers
from stablelog.log.segments.growing_segment import GrowingSegment

SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = struct.Struct(
    ">"
    "h"  # version: 1
    "I"  # crc: CRC-32C of everything after this field
    "i"  # entry_count: how many producers the file has
)
CRC_END = 6
# How many snapshots within a segment are kept: the newest, and one for the case that the newest is damaged.
KEPT_COUNT = 2
REPLAYED_SIZE_MAX = 4096  # To replay up to this many bytes of the log costs less than to write a snapshot.
SHARE = 8  # a snapshot is due after at least this many times its own size was appended
PRODUCERS_VERSION = 2
PRODUCERS_HEADER = struct.Struct(
    ">"
    "h"  # version: 2
    "I"  # crc: CRC-32C of everything after this field
    "q"  # producer_count
)
PRODUCERS_CONTENT = "a file of producers"
JSON_BEGINS = b'{"version":1,'  # of a `.producers` file of version 1, which no release has written
PIECE_SIZE = 1 << 20  # how many bytes of a `.producers` file are read at once
PIECE_PARTS = 256  # how many parts of up to 32 producers are written at once: at most 1.5 MB


@dataclass(slots=True, eq=False)
class Snapshots:
    """The snapshots of the producer state of one partition. This object decides when the next snapshot is due, and
    which old ones are removed.

    The snapshot at the beginning of a segment stays as long as the segment. After the earlier segments are deleted,
    only this snapshot knows the transactions that began in them. The other snapshots only shorten recovery.

    Attributes:
        disk: the disk of the partition.
        directory: the partition's directory.
        offsets: the offsets of all snapshots on the disk, or to be written by the next sync.
        whole: the offsets of the snapshots that are whole: they have both files, `.producers` and `.snapshot`.
        replayed_size: how many bytes of the log a recovery would read after the newest snapshot.
        holds_producers: whether the newest snapshot has any producers.
    """

    disk: Disk
    directory: Path
    offsets: set[int] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    replayed_size: int = 0
    holds_producers: bool = False
    # Offsets of the snapshots within a segment that this process has made, oldest first.
    _within: deque[int] = field(default_factory=deque, init=False)
    _appended_size: int = field(default=0, init=False)  # bytes appended to the log since the last snapshot
    _size: int = field(default=0, init=False)  # size of the last snapshot in bytes

    def count_appended(self, size: int) -> None:
        """Count bytes that were appended to the log. `is_due` uses their number to decide when the next snapshot of the
        producer state is taken.
        """
        self._appended_size += size
        self.replayed_size += size

    def needs_snapshot(self, producers: Producers, active: GrowingSegment) -> bool:
        """Whether a snapshot at the log's end is missing that the next start of the broker needs.

        If there are producers, a snapshot is needed because the log does not contain the broker time (a clock that
        never goes back) of their last writes. If there are none, it is needed only if recovery would have many bytes to
        read.

        Args:
            producers: the current producer state.
            active: the growing segment. A snapshot at its end counts only if the segment's time index is complete.
        """
        is_worth_it = len(producers) or self.holds_producers or self.replayed_size > REPLAYED_SIZE_MAX
        return bool(is_worth_it) and not (active.is_time_index_complete and active.end_offset in self.whole)

    def is_due(self, size_min: int) -> bool:
        """Whether the next snapshot of the producer state is due: after the last one, at least `size_min` bytes were
        appended, and at least 8 times (SHARE) as many bytes as that snapshot has.
        """
        return self._appended_size >= max(size_min, SHARE * self._size)

    def postpone_next(self) -> None:
        """Postpone the next snapshot of the producer state, because the files for it cannot be written now. It is due
        after as many appended bytes as if it had been taken.
        """
        self._appended_size = 0

    def make_snapshot(self, producers: Producers, progress: Summary) -> dict[Path, Content]:
        """Return the files of a new snapshot. The caller writes them together, after the log is durable up to
        `progress.end_offset`, the offset of the snapshot. `progress` is the summary (sizes, counts and checksums) of
        the growing segment up to there.

        After a crash there may be only one of the two files. The `.producers` file alone is enough for recovery; the
        `.snapshot` file alone is used only if no `.producers` file can be used.
        """
        offset = progress.end_offset
        if self._within and self._within[-1] == offset:
            self._within.pop()
        if offset != progress.base_offset:
            self._within.append(offset)
        table = producers.packed_copy()
        files = snapshot_files(self.directory, table, progress)
        self._size = len(files[file_path(self.directory, offset, PRODUCERS)])
        self._appended_size = self.replayed_size = 0
        self.offsets.add(offset)
        self.whole.add(offset)
        self.holds_producers = bool(len(table))
        return files

    def remove_snapshot(self, offset: int) -> None:
        """Remove both files of the snapshot at an offset."""
        self.offsets.discard(offset)
        self.whole.discard(offset)
        for suffix in (SNAPSHOT, PRODUCERS):
            self.disk.remove(file_path(self.directory, offset, suffix))

    def remove_older_snapshots(self, durable_end_offset: int) -> None:
        """Remove the older snapshots within segments. These stay: the snapshots after `durable_end_offset`, and the two
        newest ones at or before it, because the log up to their offsets is durable. A removal that fails is tried again
        later.
        """
        with suppress(DiskError):
            while len(self._within) > KEPT_COUNT and self._within[KEPT_COUNT] <= durable_end_offset:
                self.remove_snapshot(self._within[0])
                self._within.popleft()

    def remove_other_snapshots(self, end_offset: int, bases: Iterable[int]) -> None:
        """Remove the snapshots that the one at the log's end, `end_offset`, makes superfluous: all others except those
        at the beginnings of segments, whose offsets are `bases`. Without a snapshot at the log's end, do nothing.
        """
        if end_offset in self.whole:
            for offset in sorted(self.offsets - {end_offset, *bases}):
                self.remove_snapshot(offset)

    def forget_snapshots_within(self, base_offset: int, end_offset: int) -> None:
        """Drop the snapshots of the producer state between two offsets from memory. Their files were removed when
        compaction replaced the segments there.
        """
        gone = {offset for offset in self.offsets if base_offset < offset < end_offset}
        self.offsets -= gone
        self.whole -= gone
        self._within = deque(known for known in self._within if known not in gone)

    def remove_snapshots_past(self, end_offset: int) -> None:
        """Remove the snapshots after the new end of the log, because other records will get these offsets. The caller then
        truncates the log, and recovers it with a new object.
        """
        for name in self.disk.list_dir(self.directory):
            if is_snapshot(name) and offset_of(name) > end_offset:
                self.disk.remove(self.directory / name)


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """The content of a file of a snapshot, encoded piece by piece. It begins with the version and the CRC.

    Attributes:
        version: the version of the file's format, which is in its first two bytes.
        head: the bytes after the CRC, before the producers.
        parts: returns the encoded producers, in parts of up to 32 producers. They must not change any more.
        parts_size: the size of all parts in bytes.
    """

    version: int
    head: bytes
    parts: Callable[[], Iterable[bytes]]
    parts_size: int

    def __len__(self) -> int:
        return CRC_END + len(self.head) + self.parts_size

    def __iter__(self) -> Iterator[bytes]:
        crc = crc32c(self.head)
        for part in self.parts():
            crc = crc32c(part, crc)
        yield struct.pack(">hI", self.version, crc) + self.head
        parts = iter(self.parts())
        while piece := b"".join(islice(parts, PIECE_PARTS)):
            yield piece


def encode_snapshot(table: ProducerTable) -> SnapshotFile:
    """Encode a `.snapshot` file, in Kafka's format, with all producers of a table. The table must not change any more."""
    return SnapshotFile(
        SNAPSHOT_VERSION,
        struct.pack(">i", len(table)),
        lambda: map(entries_of, table.blocks()),
        len(table) * SNAPSHOT_ENTRY.size,
    )


def encode_producers(table: ProducerTable, progress: Summary) -> SnapshotFile:
    """Encode a `.producers` file.

    Args:
        table: the table of all producers. It must not change any more.
        progress: the summary (sizes, counts and checksums) of the growing segment up to the snapshot's offset.
    """
    head = len(table).to_bytes(8, "big") + progress.encode()
    return SnapshotFile(PRODUCERS_VERSION, head, table.blocks, table.size)


def decode_snapshot(content: bytes, now_ms: int) -> ProducerTable:
    """Decode a `.snapshot` file of Kafka's format. The time of each producer's last use becomes `now_ms`, because the
    file does not contain it.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the bytes are no snapshot, or are damaged.
    """
    refuse_unknown_version("a producer snapshot", int.from_bytes(content[:2], "big"), SNAPSHOT_VERSION)
    if len(content) < SNAPSHOT_HEADER.size:
        raise DamageError(
            f"a producer snapshot is incomplete: it ends in its header, after {len(content)} bytes"
        )
    version, crc, count = SNAPSHOT_HEADER.unpack_from(content)
    if version != SNAPSHOT_VERSION:
        raise DamageError(
            f"a producer snapshot has version {version}; only version {SNAPSHOT_VERSION} is known"
        )
    if crc != crc32c(content[CRC_END:]) or len(content) != SNAPSHOT_HEADER.size + count * SNAPSHOT_ENTRY.size:
        raise DamageError("a producer snapshot is damaged: its CRC or its size is wrong")
    return ProducerTable.from_producers(_from_entries(memoryview(content)[SNAPSHOT_HEADER.size :], now_ms))


def _from_entries(entries: memoryview, now_ms: int) -> Iterator[ProducerEntry]:
    for entry in SNAPSHOT_ENTRY.iter_unpack(entries):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first = entry
        producer = ProducerEntry(
            producer_id, epoch, coordinator_epoch, used_ms=now_ms, last_timestamp_ms=timestamp
        )
        if offset >= 0:
            producer.batches.append(KeptBatch(sequence, offset, delta, timestamp))
        if txn_first != NO_TXN:
            producer.txn_first_offset = txn_first
            producer.txn_started_ms = now_ms
        yield producer


def snapshot_files(directory: Path, table: ProducerTable, progress: Summary) -> dict[Path, Content]:
    """Return the contents of the two files of a snapshot at `progress.end_offset`, by path.

    Args:
        directory: the partition's directory.
        table: the table of all producers. It must not change any more.
        progress: the summary (sizes, counts and checksums) of the growing segment up to the snapshot's offset.
    """
    return {
        file_path(directory, progress.end_offset, PRODUCERS): encode_producers(table, progress),
        file_path(directory, progress.end_offset, SNAPSHOT): encode_snapshot(table),
    }


def decode_producers(content: bytes) -> tuple[ProducerTable, Summary]:
    """Decode a `.producers` file. Return the table of all producers, and the summary (sizes, counts and checksums) of
    the segment up to the snapshot's offset.

    Raises:
        UnknownFormatError: another release has written the file, in a format that this one does not read.
        DamageError: the file is incomplete or damaged.
    """
    return _decode_pieces(iter((content,)))


def read_producers(disk: Disk, path: Path) -> tuple[ProducerTable, Summary]:
    """Read and decode a `.producers` file piece by piece, so that its content need not fit into memory at once. Return
    the table of all producers, and the summary (sizes, counts and checksums) of the segment up to the snapshot's
    offset.

    Raises:
        FileNotFoundError: the file is missing.
        UnknownFormatError: another release has written the file, in a format that this one does not read.
        DamageError: the file is incomplete or damaged.
    """
    with closing(disk.open(path)) as file:
        return _decode_pieces(file.read(at, PIECE_SIZE) for at in range(0, max(file.size, 1), PIECE_SIZE))


def check_producers_version(head: bytes) -> None:
    """Check the version in the first bytes of a `.producers` file.

    Raises:
        UnknownFormatError: another release has written the file, in a version that this one does not read.
    """
    if head.startswith(JSON_BEGINS):
        raise UnknownFormatError(PRODUCERS_CONTENT, 1, PRODUCERS_VERSION)
    refuse_unknown_version(PRODUCERS_CONTENT, int.from_bytes(head[:2], "big"), PRODUCERS_VERSION)


def _decode_pieces(pieces: Iterator[bytes]) -> tuple[ProducerTable, Summary]:
    first = next(pieces)
    check_producers_version(first)
    begin = PRODUCERS_HEADER.size + SUMMARY.size
    if len(first) < begin:
        raise DamageError(
            f"a `.producers` file is incomplete: it ends in its header, after {len(first)} bytes"
        )
    version, wanted_crc, count = PRODUCERS_HEADER.unpack_from(first)
    if version != PRODUCERS_VERSION:
        raise DamageError(
            f"a `.producers` file has version {version}; only version {PRODUCERS_VERSION} is known"
        )
    crc = crc32c(memoryview(first)[CRC_END:])

    def blocks() -> Iterator[bytes]:
        nonlocal crc
        yield first[begin:]
        for piece in pieces:
            crc = crc32c(piece, crc)
            yield piece

    table = ProducerTable.from_blocks(blocks())
    if crc != wanted_crc:
        raise DamageError("a `.producers` file is damaged: its CRC does not match its bytes")
    if len(table) != count:
        raise DamageError(f"a `.producers` file holds {len(table)} producers, but its header says {count}")
    return table, Summary.decode(first[PRODUCERS_HEADER.size : begin])


def decode_either(name: str, content: bytes) -> ProducerTable:
    """Decode a `.snapshot` or a `.producers` file, as the suffix of `name` says. For a `.snapshot` file, the times of
    last use are -1.

    Raises:
        UnknownFormatError: another release has written the file, in a format that this one does not read.
        DamageError: the file is incomplete or damaged.
    """
    return decode_producers(content)[0] if name.endswith(PRODUCERS) else decode_snapshot(content, -1)
