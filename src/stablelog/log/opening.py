"""Opening of one partition: creates its directory if needed, and recovers its log."""

from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.log.files.listing import Listing
from stablelog.log.model import LogConfig
from stablelog.log.partition import Partition
from stablelog.log.recovery import NEVER, Known
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.view import Order, Progress


def open_partition(
    disk: Disk,
    directory: Path,
    config: LogConfig,
    *,
    topic: str,
    partition: int,
    clean: bool,
    now_ms: int,
    log_start_offset: int = 0,
    recovery_point: int | None = None,
    first_dirty_offset: int = 0,
    leader_epoch: int = 0,
    is_established: bool = False,
    gapless_epoch: int = NEVER,
    progress: Progress | None = None,
    open_files: OpenFiles | None = None,
    listing: Listing | None = None,
    order: Order | None = None,
) -> Partition:
    """Open a partition, or create it, and recover its log after a crash. The whole log is durable on return.

    Args:
        disk: the disk of the directory.
        directory: the partition's directory.
        config: the partition's settings.
        topic: the name of the topic.
        partition: the number of the partition in its topic.
        clean: whether the last broker closed the partition, so that the whole log was durable. Damage at the end of the
            log, or a gap between segments, then cannot come from a crash, and is a DamageError.
        now_ms: broker time, a clock that never goes back, even if the machine's clock is set back.
        log_start_offset: the log start offset that the data directory records. The log begins there, or later if the
            partition's own file says so.
        recovery_point: the offset up to which the log was synced, exclusive, as the data directory records it; None if
            it has no record.
        first_dirty_offset: the first offset that was not compacted yet.
        leader_epoch: the leader epoch for batches that will be appended.
        is_established: whether an earlier start of stablelog has completed the directory, so that a missing file is a
            lost file. If not, the directory is new, or Apache Kafka has written it.
        gapless_epoch: a leader epoch. Batches of this epoch and of later ones follow each other without a gap in the
            growing segment, so a gap between two of them means lost records.
        progress: called with (bytes done, bytes in all) while recovery reads the log.
        open_files: the cache that limits how many sealed segments have open files.
        listing: the names of the files in the directory, if the caller has read them. The directory must exist then.
        order: makes the view of a commit-ordered partition (its committed batches in the order of their commits); None
            for a partition in offset order.

    Returns:
        The open partition, which the caller closes.

    Raises:
        DamageError: durable bytes are damaged or missing. No log file was changed.
        DiskError: the disk failed.
    """
    if listing is None:
        disk.make_dir(directory)
        listing = Listing(disk, directory)
    return Partition(
        disk,
        directory,
        config,
        topic=topic,
        partition=partition,
        open_files=OpenFiles() if open_files is None else open_files,
        order=order,
        known=Known(
            is_clean=clean,
            is_established=is_established,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            leader_epoch=leader_epoch,
            gapless_epoch=gapless_epoch,
            now_ms=now_ms,
        ),
        listing=listing,
        progress=progress,
        first_dirty_offset=first_dirty_offset,
    )
