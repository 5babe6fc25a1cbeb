"""Whether a partition's commit indexes say the same as its log. Nothing is written, and no index is made anew.

What the log says is found here in another way than `commit_order` finds it: batch by batch, with every transaction's
batches kept, so that the two can be held against each other.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, read_header
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt, NewerFormat
from stablelog.log.names import LOG, is_log, offset_of
from stablelog.log.verify import Finding
from stablelog.views.extents import EXTENT, SEVERAL, Extent
from stablelog.views.index_format import (
    ENTRIES_SUFFIX,
    ENTRY,
    EXTENTS_SUFFIX,
    NO_PRODUCER,
    SUMMARY_SUFFIX,
    CommitSummary,
    EarlierForm,
    Entry,
)

Place = tuple[int, int]  # segment, position of a batch in it


class _Transaction(NamedTuple):
    """A committed transaction, as the log has it. `places` are those of its batches."""

    start: int
    record_count: int
    places: list[Place]


class _Contents(NamedTuple):
    """Contents of a segment: transactions that commit in it, and batches outside transactions."""

    transactions: list[_Transaction]
    outside: list[Place]


class _Walk:
    """The log, read from its first batch to its last."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self.headers: dict[Place, BatchHeader] = {}
        self._open: dict[int, list[Place]] = {}  # batches of open transactions, by producer id

    def contents_of(self, base_offset: int) -> _Contents:
        """Read a segment. Transactions are in the order of the view.

        Raises:
            Corrupt: a batch is damaged.
        """
        file = self._disk.open(self._directory / f"{base_offset:020d}{LOG}")
        try:
            return self._contents_in(file, base_offset)
        finally:
            file.close()

    def _contents_in(self, file: File, base_offset: int) -> _Contents:
        found = _Contents([], [])
        position = 0
        while position + HEADER.size <= file.size:
            header = read_header(file.read(position, HEADER.size))
            if position + header.size > file.size:
                break  # a write under way, or torn: `log.verify` reports it
            place = base_offset, position
            self.headers[place] = header
            if header.is_control:
                marker = read_marker(file.read(position, header.size))
                places = self._open.pop(header.producer_id, [])
                if marker is not None and marker.type is MarkerType.COMMIT and header.last_offset_delta:
                    found.transactions.append(
                        _Transaction(header.base_offset + 1, header.last_offset_delta, places)
                    )
            elif header.is_transactional:
                self._open.setdefault(header.producer_id, []).append(place)
            else:
                found.outside.append(place)
            position += header.size
        return found

    def forget_before(self, base_offset: int) -> None:
        """Forget the batches of earlier segments that no open transaction can lead to any more."""
        needed = min([base_offset, *(places[0][0] for places in self._open.values())])
        self.headers = {place: header for place, header in self.headers.items() if place[0] >= needed}


def verify_view(
    disk: Disk, directory: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Finding]:
    """Prove the sealed commit indexes of a partition from its log; nothing is found where there are none.

    Args:
        disk: where it lies.
        directory: the partition's own.
        progress: called with (segments done, segments in all).
    """
    names = disk.list_dir(directory)
    if not any(name.endswith(SUMMARY_SUFFIX) for name in names):
        return
    bases = sorted(offset_of(name) for name in names if is_log(name))
    walk = _Walk(disk, directory)
    for done, base_offset in enumerate(bases):
        try:
            contents = walk.contents_of(base_offset)
        except Corrupt as error:
            message = f"{error}; the commit indexes from here on are not proven"
            yield Finding(directory / f"{base_offset:020d}{LOG}", message)
            return
        if f"{base_offset:020d}{SUMMARY_SUFFIX}" in names:
            yield from _verify_index(disk, directory, base_offset, contents, walk)
        walk.forget_before(base_offset)
        if progress is not None:
            progress(done + 1, len(bases))


def _verify_index(
    disk: Disk, directory: Path, base_offset: int, said: _Contents, walk: _Walk
) -> Iterator[Finding]:
    path = {
        suffix: directory / f"{base_offset:020d}{suffix}"
        for suffix in (ENTRIES_SUFFIX, EXTENTS_SUFFIX, SUMMARY_SUFFIX)
    }
    try:
        summary = CommitSummary.decode(disk.read_bytes(path[SUMMARY_SUFFIX]))
    except EarlierForm:
        return  # no damage: whoever opens the partition makes it anew
    except (Corrupt, NewerFormat) as error:
        yield Finding(path[SUMMARY_SUFFIX], str(error))
        return
    rows = []
    for suffix, size, crc in (
        (ENTRIES_SUFFIX, summary.entries_size, summary.entries_crc),
        (EXTENTS_SUFFIX, summary.extents_size, summary.extents_crc),
    ):
        content = disk.read_bytes(path[suffix]) if disk.exists(path[suffix]) else b""
        if len(content) != size or crc32c(content) != crc:
            yield Finding(path[suffix], f"{len(content)} bytes that are not those of its commit summary")
            return
        rows.append(content)
    entries = [Entry(*row) for row in ENTRY.iter_unpack(rows[0])]
    extents = [Extent(*row) for row in EXTENT.iter_unpack(rows[1])]
    for one, following in pairwise(entries):
        if following.start < one.end:
            yield Finding(
                path[ENTRIES_SUFFIX], f"the entry at {following.start} follows one that ends at {one.end}"
            )
    transactions = [entry for entry in entries if entry.producer_id != NO_PRODUCER]
    if len(transactions) != len(said.transactions):
        yield Finding(
            path[ENTRIES_SUFFIX],
            f"{len(transactions)} transactions; {len(said.transactions)} were committed here",
        )
        return
    for entry, committed in zip(transactions, said.transactions, strict=True):
        yield from _verify_transaction(path[ENTRIES_SUFFIX], entry, committed, extents, walk)
    outside: set[Place] = set()
    for entry in entries:
        if entry.producer_id == NO_PRODUCER:
            places = _batches(entry, extents, walk)
            headers = [walk.headers[place] for place in places]
            if not headers or (entry.start, entry.end) != (headers[0].base_offset, headers[-1].next_offset):
                yield Finding(
                    path[ENTRIES_SUFFIX],
                    f"the extent of the run at {entry.start} is not where its batches are",
                )
            outside.update(places)
    missing = [walk.headers[place].base_offset for place in said.outside if place not in outside]
    if missing:
        yield Finding(path[ENTRIES_SUFFIX], f"the batches at offsets {missing} are in no entry")


def _verify_transaction(
    path: Path, entry: Entry, said: _Transaction, extents: list[Extent], walk: _Walk
) -> Iterator[Finding]:
    if (entry.start, entry.record_count) != (said.start, said.record_count):
        yield Finding(
            path,
            f"a transaction at {entry.start} with {entry.record_count} records; the log has it at {said.start} with {said.record_count}",
        )
    elif entry.extent_count and _batches(entry, extents, walk) != said.places:
        yield Finding(path, f"the extents of the transaction at {entry.start} are not where its batches are")
    elif entry.extent_count and _is_whole(said, walk) and not _are_placed(entry, extents, walk):
        yield Finding(
            path, f"the extents of the transaction at {entry.start} say other positions than its batches"
        )


def _is_whole(said: _Transaction, walk: _Walk) -> bool:
    """Whether retention has left all of a transaction."""
    return sum(walk.headers[place].last_offset_delta + 1 for place in said.places) == said.record_count


def _are_placed(entry: Entry, extents: list[Extent], walk: _Walk) -> bool:
    """Whether an entry's extents say what a reader is to get in place of the first bytes of a batch."""
    position, leader_epoch = (0, 0) if entry.is_long else (entry.start, entry.leader_epoch)
    for extent in extents[entry.extent_first : entry.extent_first + entry.extent_count]:
        places = _batches_in(extent, entry.producer_id, walk)
        headers = [walk.headers[place] for place in places]
        if not headers or extent.end != places[-1][1] + headers[-1].size:
            return False
        length = headers[0].batch_length if len(headers) == 1 else SEVERAL
        if extent[:3] != (position, length, leader_epoch):
            return False
        position += sum(header.last_offset_delta + 1 for header in headers)
    return True


def _batches(entry: Entry, extents: list[Extent], walk: _Walk) -> list[Place]:
    """Where the batches stand that an entry's extents lead to."""
    return [
        place
        for extent in extents[entry.extent_first : entry.extent_first + entry.extent_count]
        for place in _batches_in(extent, entry.producer_id, walk)
    ]


def _batches_in(extent: Extent, producer_id: int, walk: _Walk) -> list[Place]:
    """Where a producer's batches stand in an extent; of a run outside transactions, all."""
    found = []
    position = extent.begin
    while position < extent.end and (extent.segment, position) in walk.headers:
        header = walk.headers[extent.segment, position]
        if not header.is_control and producer_id in (header.producer_id, NO_PRODUCER):
            found.append((extent.segment, position))
        position += header.size
    return found
