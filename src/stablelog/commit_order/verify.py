"""Verification of commit indexes (each lists the transactions that commit in a segment): compares them with the log.
Nothing is written or rebuilt.

This module reads the log in another way than `index_builder`: it remembers every batch of every transaction, and no
ranges of bytes. So a fault in either of the two is found.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from stablelog.batch.header import BatchHeader
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.commit_order.extents import EXTENT, SEVERAL, BatchExtent
from stablelog.commit_order.index_format import (
    ENTRIES_SUFFIX,
    ENTRY,
    EXTENTS_SUFFIX,
    NO_PRODUCER,
    SUMMARY_SUFFIX,
    CommitSummary,
    Entry,
)
from stablelog.crc32c import crc32c
from stablelog.env.disk import Disk, read_if_there
from stablelog.errors import DamageError, UnknownFormatError
from stablelog.log.files.names import LOG, file_path, log_offsets
from stablelog.log.segments.scan import TornError, scan_batches
from stablelog.log.verify import FileFinding

Place = tuple[int, int]  # the base offset of a segment, and the position of a batch in its log file


class _FoundTransaction(NamedTuple):
    """A committed transaction that was found by reading the log. `places` has for each of its batches the base offset
    of the segment and the position in the log file.
    """

    start: int
    record_count: int
    places: list[Place]


@dataclass
class LogWalk:
    """A walk through the log from its first batch to its last one, which finds the committed transactions without the
    commit indexes.

    Attributes:
        disk: the disk of the partition.
        directory: the partition's directory.
        headers: batch headers, by segment and position. Commit indexes of this segment or of later ones may refer to
            them.
        open: by producer id, the place (segment and position) of each batch of the producer's open transaction.
    """

    disk: Disk
    directory: Path
    headers: dict[Place, BatchHeader] = field(default_factory=dict)
    open: dict[int, list[Place]] = field(default_factory=dict)

    def contents_of(self, base_offset: int) -> tuple[list[_FoundTransaction], list[Place]]:
        """Read the batch headers of a segment. An incomplete batch at the end of the file is ignored, because
        `log.verify` reports it.

        Returns:
            A pair: the transactions that commit in the segment, in commit order, and the places of its batches outside
            transactions.

        Raises:
            DamageError: a batch is damaged.
        """
        transactions: list[_FoundTransaction] = []
        outside: list[Place] = []
        path = file_path(self.directory, base_offset, LOG)
        with contextlib.closing(self.disk.open(path)) as file, contextlib.suppress(TornError):
            for position, header, _ in scan_batches(file.read, 0, file.size, with_bodies=False):
                place = base_offset, position
                self.headers[place] = header
                if header.is_control:
                    marker = read_marker(file.read(position, header.size))
                    places = self.open.pop(header.producer_id, [])
                    if marker is not None and marker.type is MarkerType.COMMIT and header.last_offset_delta:
                        transactions.append(
                            _FoundTransaction(header.base_offset + 1, header.last_offset_delta, places)
                        )
                elif header.is_transactional:
                    self.open.setdefault(header.producer_id, []).append(place)
                else:
                    outside.append(place)
        return transactions, outside

    def forget_before(self, base_offset: int) -> None:
        """Drop from memory the batch headers of segments before a base offset, unless an open transaction has batches
        in them.
        """
        needed = min([base_offset, *(places[0][0] for places in self.open.values())])
        self.headers = {place: header for place, header in self.headers.items() if place[0] >= needed}

    def batches_of(self, entry: Entry, extents: list[BatchExtent]) -> list[Place]:
        """Return (base offset of the segment, position in the log file) of each batch in the extents (byte ranges of
        batches) of the entry. `extents` has the extents of all entries of the commit index.
        """
        return [
            place
            for extent in extents[entry.extent_first : entry.extent_first + entry.extent_count]
            for place in self.batches_in(extent, entry.producer_id)
        ]

    def batches_in(self, extent: BatchExtent, producer_id: int) -> list[Place]:
        """Return (base offset of the segment, position in the log file) of each data batch of a producer in an extent,
        a byte range of the log file. If `producer_id` is NO_PRODUCER, return those of all data batches there.
        """
        found = []
        position = extent.begin
        while position < extent.end and (extent.segment, position) in self.headers:
            header = self.headers[extent.segment, position]
            if not header.is_control and producer_id in (header.producer_id, NO_PRODUCER):
                found.append((extent.segment, position))
            position += header.size
        return found


def verify_view(disk: Disk, directory: Path) -> Iterator[FileFinding]:
    """Compare the sealed commit indexes of a partition (each lists the transactions that commit in a segment) with its
    log, and yield each difference. A partition without commit indexes has no findings.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
    """
    names = disk.list_dir(directory)
    if not any(name.endswith(SUMMARY_SUFFIX) for name in names):
        return
    walk = LogWalk(disk, directory)
    for base_offset in log_offsets(names):
        try:
            transactions, outside = walk.contents_of(base_offset)
        except DamageError as error:
            yield FileFinding(
                file_path(directory, base_offset, LOG),
                f"{error}; the commit indexes from this segment on are not verified",
            )
            return
        if f"{base_offset:020d}{SUMMARY_SUFFIX}" in names:
            yield from _verify_index(disk, directory, base_offset, transactions, outside, walk)
        walk.forget_before(base_offset)


def _verify_index(
    disk: Disk,
    directory: Path,
    base_offset: int,
    committed: list[_FoundTransaction],
    outside: list[Place],
    walk: LogWalk,
) -> Iterator[FileFinding]:
    path = file_path(directory, base_offset, SUMMARY_SUFFIX)
    try:
        summary = CommitSummary.decode(disk.read_bytes(path))
    except (DamageError, UnknownFormatError) as error:
        yield FileFinding(path, str(error))
        return
    rows = []
    for suffix, size, crc in (
        (ENTRIES_SUFFIX, summary.entries_size, summary.entries_crc),
        (EXTENTS_SUFFIX, summary.extents_size, summary.extents_crc),
    ):
        path = file_path(directory, base_offset, suffix)
        content = read_if_there(disk, path) or b""
        if len(content) != size or crc32c(content) != crc:
            yield FileFinding(
                path,
                f"its {len(content)} bytes do not have the size and CRC that the `.commitsummary` file records",
            )
            return
        rows.append(content)
    entries = [Entry(*row) for row in ENTRY.iter_unpack(rows[0])]
    extents = [BatchExtent(*row) for row in EXTENT.iter_unpack(rows[1])]
    path = file_path(directory, base_offset, ENTRIES_SUFFIX)
    for message in _faults(entries, extents, committed, outside, walk):
        yield FileFinding(path, message)


def _faults(
    entries: list[Entry],
    extents: list[BatchExtent],
    committed: list[_FoundTransaction],
    outside: list[Place],
    walk: LogWalk,
) -> Iterator[str]:
    """Find the faults in a commit index: in its entries (transactions, and runs of batches outside transactions) or in
    their extents, the byte ranges of their batches.

    Args:
        entries: the entries of the commit index of one segment.
        extents: the extents of the same index.
        committed: the transactions that commit in this segment according to its log file.
        outside: the batches of this segment outside transactions.
        walk: the walk through the log, which has the batch headers that it has read.

    Yields:
        A description of each fault, in words.
    """
    for one, following in pairwise(entries):
        if following.start < one.end:
            yield f"the entry at position {following.start} follows an entry that ends at position {one.end}"
    transactions = [entry for entry in entries if entry.producer_id != NO_PRODUCER]
    if len(transactions) != len(committed):
        yield f"it has {len(transactions)} transactions, but {len(committed)} have their commit markers in this segment"
        return
    for entry, said in zip(transactions, committed, strict=True):
        yield from _transaction_faults(entry, said, extents, walk)
    named: set[Place] = set()
    for entry in entries:
        if entry.producer_id == NO_PRODUCER:
            places = walk.batches_of(entry, extents)
            headers = [walk.headers[place] for place in places]
            if not headers or (entry.start, entry.end) != (headers[0].base_offset, headers[-1].next_offset):
                yield f"the extent of the entry at position {entry.start} is not where its batches outside transactions are"
            named.update(places)
    missing = [walk.headers[place].base_offset for place in outside if place not in named]
    if missing:
        yield f"no entry has the batches outside transactions at the offsets {missing}"


def _transaction_faults(
    entry: Entry, said: _FoundTransaction, extents: list[BatchExtent], walk: LogWalk
) -> Iterator[str]:
    if (entry.start, entry.record_count) != (said.start, said.record_count):
        yield (
            f"an entry says that a transaction is at position {entry.start} and has {entry.record_count} records; the log has "
            f"this transaction at position {said.start} with {said.record_count} records"
        )
    elif entry.extent_count and walk.batches_of(entry, extents) != said.places:
        yield f"the extents of the transaction at position {entry.start} are not where its batches are"
    elif entry.extent_count and _is_whole(said, walk) and not _are_placed(entry, extents, walk):
        yield f"the extents of the transaction at position {entry.start} have other positions or lengths than its batches"


def _is_whole(said: _FoundTransaction, walk: LogWalk) -> bool:
    """Whether the log still has all batches of the transaction `said`. If so, the entry of the transaction in the
    commit index must be complete.
    """
    return sum(walk.headers[place].last_offset_delta + 1 for place in said.places) == said.record_count


def _are_placed(entry: Entry, extents: list[BatchExtent], walk: LogWalk) -> bool:
    """Whether each extent (byte range of batches) of a commit index's entry ends where its last batch ends, and has the
    right base offset, batch length and leader epoch. These three values replace the first bytes of a batch in a
    response, so a wrong one would reach readers.
    """
    position, leader_epoch = (0, 0) if entry.is_long else (entry.start, entry.leader_epoch)
    for extent in extents[entry.extent_first : entry.extent_first + entry.extent_count]:
        places = walk.batches_in(extent, entry.producer_id)
        headers = [walk.headers[place] for place in places]
        if not headers or extent.end != places[-1][1] + headers[-1].size:
            return False
        length = headers[0].batch_length if len(headers) == 1 else SEVERAL
        if extent[:3] != (position, length, leader_epoch):
            return False
        position += sum(header.last_offset_delta + 1 for header in headers)
    return True
