"""Leader epochs held against the log: no checksum covers Kafka's file of them."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, NewerFormat, Unavailable
from stablelog.log.files.epochs import EPOCH_FILE, UNKNOWN, LeaderEpochs
from stablelog.log.files.names import LOG, file_path, log_offsets
from stablelog.log.segments.scan import check_crc, scan_batches
from stablelog.log.segments.segments import Segments


def latest_epoch(disk: Disk, directory: Path, known: int) -> int:
    """The greatest leader epoch of a partition that nobody has opened.

    An epoch of the file counts if the log has a batch of it, or has no batch from where it begins. Where the file is
    missing or damaged, the last batches count. If the file names no epoch above `known`, no log file is read.

    Args:
        disk: where the partition lies.
        directory: the partition's own.
        known: returned if the partition has no greater one.

    Raises:
        FileNotFoundError: there is no such directory.
        DiskError: a file cannot be read.
    """
    try:
        entries = LeaderEpochs.decode(disk.read_bytes(directory / EPOCH_FILE)).entries
    except (FileNotFoundError, Corrupt, NewerFormat):
        entries = None
    later = [entry for entry in entries or () if entry[0] > known]
    if entries is not None and not later:
        return known
    found, last_offset = {UNKNOWN}, -1
    for base in reversed(log_offsets(disk.list_dir(directory))):
        for header in _whole_batches(disk, file_path(directory, base, LOG)):
            found.add(header.leader_epoch)
            last_offset = max(last_offset, header.last_offset)
            if later and header.leader_epoch == later[-1][0]:
                return header.leader_epoch
        if base <= later[0][1] if later else last_offset >= 0:
            break
    if entries is None:
        return max(known, *found)
    return max((epoch for epoch, start in later if epoch in found or start > last_offset), default=known)


def latest_epoch_of_all(disk: Disk, directories: Iterable[Path], known: int) -> int:
    """The greatest leader epoch of partitions that nobody has opened. A partition that cannot be read counts for nothing.

    A list of topics that was restored from a backup names an earlier epoch than the logs.

    Args:
        disk: where the partitions lie.
        directories: of the partitions.
        known: as the list of topics says; returned if no partition has a greater one.
    """
    for directory in directories:
        with contextlib.suppress(FileNotFoundError, Unavailable):
            known = latest_epoch(disk, directory, known)
    return known


def _whole_batches(disk: Disk, path: Path) -> Iterator[BatchHeader]:
    """The headers of a log file's batches, up to where it is damaged or torn."""
    with contextlib.closing(disk.open(path)) as file, contextlib.suppress(Corrupt):
        for position, header, batch in scan_batches(file.read, 0, file.size):
            check_crc(header, batch, position)
            yield header


def epoch_at(offset: int, epochs: LeaderEpochs, segments: Segments) -> int:
    """The leader epoch of the record at `offset`: of its batch, or, where that is deleted, of the epochs' file."""
    header = segments[segments.place_of(offset)].header_at(offset)
    if header is not None and header.base_offset <= offset:
        return header.leader_epoch
    return epochs.epoch_of(offset)


def check_epochs(epochs: LeaderEpochs, segments: Segments, path: Path) -> None:
    """Hold each epoch against the batches where it begins.

    Args:
        epochs: as the file says.
        segments: of the partition.
        path: of the file, for the message.

    Raises:
        Corrupt: the file is not what the log says.
    """
    _check_first(epochs, segments, path)
    for epoch, start in epochs.entries:
        segment = segments[segments.place_of(start)]
        if not segment.base_offset <= start < segment.end_offset:
            continue  # deleted, or nothing was written since
        header, before = segment.header_at(start), segment.header_at(max(start - 1, segment.base_offset))
        if header is None or before is None or not header.record_count or not before.record_count:
            continue  # compacted away: a batch without records may stand for batches of several epochs
        # Compaction may have removed the batch that began there.
        is_gone = header.base_offset > start and header.leader_epoch >= epoch
        if not is_gone and (header.base_offset, header.leader_epoch) != (start, epoch):
            raise _wrong(path, epoch, start, header)
        if before.last_offset < start and before.leader_epoch >= epoch:
            raise _wrong(path, epoch, start, before)


def _check_first(epochs: LeaderEpochs, segments: Segments, path: Path) -> None:
    """Hold the epoch of the first batch that is left against the file: where earlier epochs began is deleted."""
    if not epochs.entries:
        return
    first = max(segments[0].base_offset, epochs.entries[0][1])
    header = segments[segments.place_of(first)].header_at(first)
    if header is None or header.base_offset < first or not header.record_count:
        return
    epoch = epochs.epoch_of(header.base_offset)
    if epoch != header.leader_epoch:
        start = next(start for known, start in epochs.entries if known == epoch)
        raise _wrong(path, epoch, start, header)


def _wrong(path: Path, epoch: int, start: int, header: BatchHeader) -> Corrupt:
    return Corrupt(
        f"{path} says that leader epoch {epoch} begins at offset {start}; the batch of offset {header.base_offset} has "
        f"epoch {header.leader_epoch}. Stop the broker and remove the file: it is rebuilt"
    )
