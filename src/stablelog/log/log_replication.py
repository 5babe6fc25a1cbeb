"""What a follower does with its log: it appends copied batches, and truncates where the leader's log differs."""

import weakref
from functools import partial

from stablelog.env.disk import Buffer, Disk
from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.append import plan_replicated
from stablelog.log.files.epochs import EPOCH_FILE
from stablelog.log.model import Appended
from stablelog.log.open_log import OpenLog
from stablelog.log.recovery.epoch_check import check_epochs
from stablelog.log.segments.segments import cut_files
from stablelog.log.view import Order


class LogReplication:
    """The part of a partition that a follower uses.

    Args:
        disk: the disk of the partition.
        partition: the partition.
        order: records where the view of a commit-ordered partition begins; None for another partition.
    """

    def __init__(self, disk: Disk, partition: OpenLog, order: Order | None) -> None:
        self._partition: OpenLog = weakref.proxy(partition)  # see `OpenLog`
        self._disk = disk
        self._order = order
        self._are_epochs_checked = False

    def append(self, batches: Buffer, now_ms: int) -> Appended:
        """Append batches of another log with their offsets and leader epochs. The transaction index gets the same
        entries as in the other log.

        Raises:
            RefusedError: this log has already reached an offset of the batches. Nothing changed.
            DamageError: the bytes are no batches, or do not match their CRCs. Nothing changed.
            UnavailableError: the disk failed.
        """
        partition = self._partition
        planned = plan_replicated(batches, partition.end_offset)
        for batch in planned:
            partition.log.write((batch,), partition.config, now_ms)
        return Appended(planned[0].header.base_offset, planned[-1].header.last_offset, -1)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) for the greatest known leader epoch that is not above `leader_epoch`; (-1, -1) if
        there is none. The end offset is exclusive.

        Raises:
            DamageError: the leader-epoch-checkpoint file contradicts the log.
        """
        partition = self._partition
        partition.usability.check_open()
        epochs = partition.log.epochs
        if not self._are_epochs_checked:
            check_epochs(epochs, partition.log.segments, partition.directory / EPOCH_FILE)
            self._are_epochs_checked = True
        if leader_epoch == partition.leader_epoch:
            return leader_epoch, partition.end_offset
        return epochs.end_offset(leader_epoch, partition.end_offset)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to `offset`, or to the beginning of the batch that contains this offset.

        A transaction whose marker is removed is open again. On return, the remaining log is durable: the high watermark
        is the new end.

        Raises:
            OffsetOutOfRangeError: the offset is before the log start offset.
        """
        partition = self._partition
        partition.usability.check()
        if offset >= partition.end_offset:
            return
        if offset < partition.start_offset:
            raise OffsetOutOfRangeError(
                f"the log of {partition.topic}-{partition.index} cannot be truncated to offset {offset}: it begins at offset {partition.start_offset}"
            )
        end_offset, position, segment, later = partition.log.segments.cut_at(offset)
        self._lower_starts(end_offset)
        self._are_epochs_checked = False
        partition.reload(
            end_offset, partial(cut_files, self._disk, partition.directory, segment, position, later)
        )

    def _lower_starts(self, end_offset: int) -> None:
        """Before a truncation to `end_offset`, move the start of the log back to this offset if the start is greater.
        Do the same with the start of the view in commit order.
        """
        partition = self._partition
        if end_offset < partition.start_offset:
            partition.move_start(end_offset)
        if (
            partition.view is not None
            and self._order is not None
            and end_offset < partition.view.start_offset
        ):
            self._order.write_start(partition, end_offset)
