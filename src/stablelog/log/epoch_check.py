"""Leader epochs held against the log: no checksum covers Kafka's file of them."""

from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.errors import Corrupt
from stablelog.log.epochs import LeaderEpochs
from stablelog.log.segments import Segments


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
