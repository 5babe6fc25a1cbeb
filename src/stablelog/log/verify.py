"""Whether a partition's files say the same as its log. Every index can be proven from the log; this proves it.

Nothing is written. A directory whose broker runs can be verified too: what stands behind the last whole batch is
its present append, and the indexes of its growing segment may lag behind the log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.batch.markers import read_marker
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.producers import Producers
from stablelog.log.segment import INDEX, LOG, SUMMARY, TIMEINDEX, TXNINDEX
from stablelog.log.snapshots import decode_producers, decode_snapshot
from stablelog.log.summary import Summary
from stablelog.log.time_index import TimeIndex
from stablelog.log.transaction_index import AbortedTxn, TransactionIndex

READ_SIZE = 4 << 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not agree with the log.

    Attributes:
        path: the file.
        message: what is wrong, with offset or entry.
    """

    path: Path
    message: str


@dataclass(slots=True)
class _Segment:
    """What the log says of a segment."""

    base_offset: int
    log_size: int = 0
    end_offset: int = 0
    log_crc: int = 0
    record_count: int = 0
    positions: dict[int, tuple[int, int]] | None = (
        None  # position -> (last offset, greatest timestamp so far)
    )
    greatest: dict[int, int] | None = None  # last offset of a batch -> greatest timestamp so far
    torn: bool = False


def verify_directory(
    disk: Disk, directory: Path, progress: Callable[[int, int], None] | None = None
) -> Iterator[Finding]:
    """Prove the files of a partition from its log.

    Args:
        disk: where it lies.
        directory: the partition's own.
        progress: called with (bytes read, bytes in all).
    """
    names = disk.list_dir(directory)
    bases = sorted(int(name[:-4]) for name in names if name.endswith(LOG) and name[:-4].isdigit())
    all_size = sum(disk.size(directory / f"{base:020d}{LOG}") for base in bases)
    done = 0
    producers = Producers()
    aborted: dict[int, list[AbortedTxn]] = {base: [] for base in bases}
    deleted_before = bases[0] if bases and bases[0] else None
    previous_end = None
    for base in bases:
        if not disk.exists(directory / f"{base:020d}{LOG}"):
            continue  # deleted by its broker meanwhile
        is_last = base == bases[-1]
        segment = _Segment(base, end_offset=base, positions={}, greatest={})
        if previous_end is not None and base < previous_end:
            yield Finding(
                directory / f"{base:020d}{LOG}",
                f"begins at {base}, before the segment in front of it ends ({previous_end})",
            )
        yield from _read_log(disk, directory, segment, producers, aborted[base], is_last=is_last)
        previous_end = segment.end_offset
        done += segment.log_size
        if progress is not None:
            progress(done, all_size)
        yield from _verify_offset_index(disk, directory, segment)
        yield from _verify_time_index(disk, directory, segment)
        yield from _verify_txn_index(
            disk, directory, segment, aborted[base], deleted_before=deleted_before, is_last=is_last
        )
        yield from _verify_summary(disk, directory, segment)
    yield from _verify_snapshots(disk, directory, previous_end)


def _read_log(
    disk: Disk,
    directory: Path,
    segment: _Segment,
    producers: Producers,
    aborted: list[AbortedTxn],
    *,
    is_last: bool,
) -> Iterator[Finding]:
    path = directory / f"{segment.base_offset:020d}{LOG}"
    file = disk.open(path)
    assert segment.positions is not None
    assert segment.greatest is not None
    greatest = -1
    try:
        size = file.size
        position = 0
        while position < size:
            head = file.read(position, HEADER.size)
            header = read_header(head)
            if position + header.size > size:
                raise Corrupt(f"a torn batch at byte {position}")
            batch = file.read(position, header.size)
            if not crc_holds(batch, 0, header):
                raise Corrupt(
                    f"the CRC of the batch at offset {header.base_offset}, byte {position}, does not hold"
                )
            if header.base_offset < segment.end_offset:
                raise Corrupt(
                    f"the batch at byte {position} begins at offset {header.base_offset}, not past {segment.end_offset - 1}"
                )
            _take(producers, aborted, header, batch)
            greatest = max(greatest, header.max_timestamp)
            segment.positions[position] = (header.last_offset, greatest)
            segment.greatest[header.last_offset] = greatest
            segment.log_crc = crc32c(head, segment.log_crc)
            segment.end_offset = header.next_offset
            if not header.is_control:
                segment.record_count += header.record_count
            position += header.size
            segment.log_size = position
    except Corrupt as error:
        segment.torn = True
        if not is_last:
            yield Finding(path, str(error))
        else:
            # The end of a log may be a write under way, or what a crash left: recovery cuts it.
            yield Finding(
                path, f"{error}; it is the last segment: a start of the broker cuts what is not whole"
            )
    finally:
        file.close()


def _take(producers: Producers, aborted: list[AbortedTxn], header: BatchHeader, batch: bytes) -> None:
    if not header.is_control:
        if header.has_producer and header.record_count:
            producers.batch_appended(header, header.base_offset, 0)
        return
    marker = read_marker(batch)
    if marker is None:
        return
    txn = producers.marker_appended(
        header.producer_id, header.producer_epoch, marker, header.base_offset, header.next_offset, 0
    )
    if txn is not None:
        if txn.aborted is not None:
            aborted.append(txn.aborted)
        producers.ended(header.producer_id, txn)


def _content(disk: Disk, path: Path) -> bytes:
    try:
        return disk.read_bytes(path)
    except FileNotFoundError:
        return b""


def _verify_offset_index(disk: Disk, directory: Path, segment: _Segment) -> Iterator[Finding]:
    path = directory / f"{segment.base_offset:020d}{INDEX}"
    index = OffsetIndex(segment.base_offset, _content(disk, path))
    assert segment.positions is not None
    assert segment.greatest is not None
    for place in range(len(index)):
        offset, position = index[place]
        known = segment.positions.get(position)
        if known is None:
            if segment.log_size <= position < disk.size(directory / f"{segment.base_offset:020d}{LOG}"):
                return  # the log went on while it was read, or is torn there, which was said
            yield Finding(path, f"entry {place} says that a batch begins at byte {position}; none does")
            return
        # Kafka may name the last of several batches that were appended at once, by the position of the first.
        if offset < known[0] or offset not in segment.greatest:
            yield Finding(
                path,
                f"entry {place} says offset {offset} for byte {position}, whose batch ends at {known[0]}",
            )
            return


def _verify_time_index(disk: Disk, directory: Path, segment: _Segment) -> Iterator[Finding]:
    path = directory / f"{segment.base_offset:020d}{TIMEINDEX}"
    index = TimeIndex(segment.base_offset, _content(disk, path))
    assert segment.greatest is not None
    for place in range(len(index)):
        timestamp, offset = index[place]
        if offset >= segment.end_offset:
            return
        if segment.greatest.get(offset) != timestamp:
            yield Finding(
                path,
                f"entry {place} says time {timestamp} for offset {offset}; the log says {segment.greatest.get(offset)}",
            )
            return


def _verify_txn_index(
    disk: Disk,
    directory: Path,
    segment: _Segment,
    wanted: list[AbortedTxn],
    *,
    deleted_before: int | None,
    is_last: bool,
) -> Iterator[Finding]:
    path = directory / f"{segment.base_offset:020d}{TXNINDEX}"
    content = _content(disk, path)
    try:
        index = TransactionIndex(content)
    except Corrupt as error:
        yield Finding(path, str(error))
        return
    found = [index[place] for place in range(len(index))]
    if is_last:
        found = [txn for txn in found if txn.last_offset < segment.end_offset]
    if deleted_before is not None:
        # What began before the log's start, which was deleted, cannot be told from the log: compare what can.
        whole = {txn.last_offset for txn in found if txn.first_offset >= deleted_before}
        ends, wanted_ends = {txn.last_offset for txn in found}, {txn.last_offset for txn in wanted}
        if not whole <= wanted_ends <= ends:
            yield Finding(path, f"abort markers at {sorted(ends)}; the log has them at {sorted(wanted_ends)}")
        return
    if found != wanted:
        differ = next(
            (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
            min(len(found), len(wanted)),
        )
        there = found[differ] if differ < len(found) else "nothing"
        right = wanted[differ] if differ < len(wanted) else "nothing"
        yield Finding(path, f"entry {differ} is {there}; the log says {right}")


def _verify_summary(disk: Disk, directory: Path, segment: _Segment) -> Iterator[Finding]:
    path = directory / f"{segment.base_offset:020d}{SUMMARY}"
    content = _content(disk, path)
    if not content:
        return  # growing, or sealed and not yet durable
    try:
        summary = Summary.decode(content)
    except Corrupt as error:
        yield Finding(path, str(error))
        return
    wanted = {
        "end_offset": segment.end_offset,
        "log_size": segment.log_size,
        "log_crc": segment.log_crc,
        "record_count": segment.record_count,
        "index_crc": crc32c(_content(disk, directory / f"{segment.base_offset:020d}{INDEX}")),
        "timeindex_crc": crc32c(_content(disk, directory / f"{segment.base_offset:020d}{TIMEINDEX}")),
        "txnindex_crc": crc32c(_content(disk, directory / f"{segment.base_offset:020d}{TXNINDEX}")),
    }
    for name, value in wanted.items():
        if getattr(summary, name) != value:
            yield Finding(path, f"{name} is {getattr(summary, name)}; the files say {value}")


def _verify_snapshots(disk: Disk, directory: Path, end_offset: int | None) -> Iterator[Finding]:
    for name in disk.list_dir(directory):
        stem, _, suffix = name.partition(".")
        path = directory / name
        if suffix not in ("snapshot", "producers") or not stem.isdigit():
            continue
        try:
            if suffix == "snapshot":
                decode_snapshot(_content(disk, path), 0)
            else:
                decode_producers(_content(disk, path))
        except Corrupt as error:
            yield Finding(path, str(error))
            continue
        if end_offset is not None and int(stem) > end_offset:
            yield Finding(path, f"is of offset {int(stem)}; the log ends at {end_offset}")
