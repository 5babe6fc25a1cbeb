"""Checks of the leader epochs against the log. The file of leader epochs has Kafka's format, which has no checksum."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, UnavailableError, UnknownFormatError
from stablelog.log.files.epochs import EPOCH_FILE, UNKNOWN, LeaderEpochs
from stablelog.log.files.names import LOG, file_path, log_offsets
from stablelog.log.segments.scan import check_crc, scan_batches
from stablelog.log.segments.segments import LogSegments


def latest_epoch(disk: Disk, directory: Path, known: int) -> int:
    """Return the greatest leader epoch of a partition that is not open.

    An epoch in the leader-epoch-checkpoint file is used only if the log confirms it: by a batch of this epoch, or
    because the log ends before the epoch begins. If the file is missing or damaged, the batches of the last segment
    that has any are read instead. If the file has no epoch above `known`, no log file is read.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        known: the result if the partition has no greater epoch.

    Raises:
        FileNotFoundError: the directory is missing.
        DiskError: a file cannot be read.
    """
    try:
        entries = LeaderEpochs.decode(disk.read_bytes(directory / EPOCH_FILE)).entries
    except (FileNotFoundError, DamageError, UnknownFormatError):
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
    """Return the greatest leader epoch in the logs of several partitions that are not open. Partitions that cannot be
    read are ignored.

    The broker needs this after `cluster.json` was restored from a backup, because its leader epoch is then older than
    that of the logs.

    Args:
        disk: the disk of the partitions.
        directories: the directories of the partitions.
        known: the leader epoch in `cluster.json`, which is the result if no partition has a greater one.
    """
    for directory in directories:
        with contextlib.suppress(FileNotFoundError, UnavailableError):
            known = latest_epoch(disk, directory, known)
    return known


def _whole_batches(disk: Disk, path: Path) -> Iterator[BatchHeader]:
    """Yield the batch headers of a log file, up to the first damaged or torn batch."""
    with contextlib.closing(disk.open(path)) as file, contextlib.suppress(DamageError):
        for position, header, batch in scan_batches(file.read, 0, file.size):
            check_crc(header, batch, position)
            yield header


def epoch_at(offset: int, epochs: LeaderEpochs, segments: LogSegments) -> int:
    """Return the leader epoch of the record at an offset: that in its batch or, if the batch is deleted, that in the
    file of leader epochs, whose content is `epochs`.
    """
    header = segments[segments.place_of(offset)].header_at(offset)
    if header is not None and header.base_offset <= offset:
        return header.leader_epoch
    return epochs.epoch_of(offset)


def check_epochs(epochs: LeaderEpochs, segments: LogSegments, path: Path) -> None:
    """Compare the first offset of each leader epoch with the batches there.

    Args:
        epochs: the content of the leader-epoch-checkpoint file.
        segments: the segments of the partition.
        path: the path of this file, for the error message.

    Raises:
        DamageError: the file contradicts the log.
    """
    _check_first(epochs, segments, path)
    for epoch, start in epochs.entries:
        segment = segments[segments.place_of(start)]
        if not segment.base_offset <= start < segment.end_offset:
            continue  # the log has no batch at `start`: the batch is deleted, or the epoch has none
        header, before = segment.header_at(start), segment.header_at(max(start - 1, segment.base_offset))
        if header is None or before is None or not header.record_count or not before.record_count:
            # Compaction has emptied a batch. A batch without records may cover offsets of several epochs, so nothing
            # can be compared.
            continue
        # Compaction may have removed the first batch of the epoch; then the next batch counts.
        is_gone = header.base_offset > start and header.leader_epoch >= epoch
        if not is_gone and (header.base_offset, header.leader_epoch) != (start, epoch):
            raise _wrong(path, epoch, start, header)
        if before.last_offset < start and before.leader_epoch >= epoch:
            raise _wrong(path, epoch, start, before)


def _check_first(epochs: LeaderEpochs, segments: LogSegments, path: Path) -> None:
    """Compare the leader epoch of the log's first batch with the file. Earlier epochs cannot be compared, because their
    batches are deleted.
    """
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


def _wrong(path: Path, epoch: int, start: int, header: BatchHeader) -> DamageError:
    return DamageError(
        f"{path} says that leader epoch {epoch} begins at offset {start}, but the batch of offset {header.base_offset} has "
        f"epoch {header.leader_epoch}. Stop the broker and remove the file. The next start rebuilds it"
    )
