"""Opens the log of one partition, or makes it."""

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
    """Open a partition's directory, or make it, and recover the log after a crash. On return, the whole log is
    durable.

    Args:
        disk: the disk of the directory.
        directory: the partition's directory.
        config: the partition's settings.
        topic: the name of the topic.
        partition: the number of the partition in its topic.
        clean: whether the last broker closed the partition, so that the whole log was durable. If so, damage at the
            end of the log, or a gap between segments, is not the effect of a crash.
        now_ms: the time of the broker's clock.
        log_start_offset: the log start offset that the data directory records. The log begins there, or later if
            the partition's own file says so.
        recovery_point: the recorded recovery point: the log was synced up to this offset, exclusive; None if none
            is recorded.
        first_dirty_offset: the first offset that has not been compacted.
        leader_epoch: the leader epoch of the batches that will be appended.
        is_established: whether an earlier start of this release has made all its files in the directory. If so, a
            missing file has been lost.
        gapless_epoch: a leader epoch. If the growing segment has a gap in the offsets before a batch of this leader
            epoch or of a later one, batches were lost.
        progress: called with (bytes done, bytes in all) while recovery reads.
        open_files: the cache that limits how many sealed segments have open files.
        listing: the current listing of the directory, if the caller has one. The directory must exist then.
        order: makes the view of a commit-ordered partition; None for another partition.

    Raises:
        DamageError: durable bytes are damaged or missing. No log file was changed.
        DiskError: the disk failed.
    """
    if listing is None:
        disk.make_dir(directory)
        listing = Listing(disk, directory)
    known = Known(
        is_clean=clean,
        is_established=is_established,
        log_start_offset=log_start_offset,
        recovery_point=recovery_point,
        leader_epoch=leader_epoch,
        gapless_epoch=gapless_epoch,
        now_ms=now_ms,
    )
    return Partition(
        disk,
        directory,
        config,
        topic=topic,
        partition=partition,
        open_files=OpenFiles() if open_files is None else open_files,
        order=order,
        known=known,
        listing=listing,
        progress=progress,
        first_dirty_offset=first_dirty_offset,
    )
