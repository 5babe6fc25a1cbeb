"""The operations of a follower on its log: append batches that were copied from the leader, and truncate the log where
the leader's log differs.
"""

import weakref
from functools import partial

from stablelog.env.disk import Buffer, Disk
from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.append import plan_replicated
from stablelog.log.files.epochs import EPOCH_FILE
from stablelog.log.model import Appended
from stablelog.log.open_log import OpenLog
from stablelog.log.recovery.epoch_check import check_epochs
from stablelog.log.segments.segments import truncate_files
from stablelog.log.view import Order


class LogReplication:
    """The part of a partition that a follower (the broker of a copy of the log) uses.

    Args:
        disk: the disk of the partition.
        partition: the partition.
        order: records where the view of a commit-ordered partition (its committed batches in the order of their
            commits) begins; None for a partition in offset order.
    """

    def __init__(self, disk: Disk, partition: OpenLog, order: Order | None) -> None:
        self._partition: OpenLog = weakref.proxy(partition)  # see `OpenLog`
        self._disk = disk
        self._order = order
        self._are_epochs_checked = False

    def append(self, batches: Buffer, now_ms: int) -> Appended:
        """Append batches of the leader's log with their offsets and leader epochs. The transaction index gets the same
        entries as the leader's.

        Returns:
            The offsets of the first and the last record that were appended.

        Raises:
            RefusedError: a batch begins before the end of this log. Nothing changed.
            DamageError: the bytes are no batches, or a CRC does not match. Nothing changed.
            UnavailableError: the disk failed. No reader gets any of the batches.
        """
        partition = self._partition
        planned = plan_replicated(batches, partition.end_offset)
        for batch in planned:
            partition.log.write_batches((batch,), partition.config, now_ms)
        return Appended(planned[0].header.base_offset, planned[-1].header.last_offset, -1)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Find where a leader epoch ends in this log, so that a follower finds the offset at which its log differs from
        the leader's.

        Returns:
            Two values, as OffsetsForLeaderEpoch reports them: the greatest known epoch up to `leader_epoch`, and its
            end offset, exclusive. (-1, -1) if `leader_epoch` is negative or greater than all known epochs.

        Raises:
            DamageError: the leader-epoch-checkpoint file contradicts the log.
        """
        partition = self._partition
        partition.availability.check_open()
        epochs = partition.log.epochs
        if not self._are_epochs_checked:
            check_epochs(epochs, partition.log.segments, partition.directory / EPOCH_FILE)
            self._are_epochs_checked = True
        if leader_epoch == partition.leader_epoch:
            return leader_epoch, partition.end_offset
        return epochs.end_offset(leader_epoch, partition.end_offset)

    def truncate_to(self, offset: int) -> None:
        """Truncate the log to an offset. If a batch contains the offset, the whole batch is removed.

        A transaction whose marker is removed is open again. On return, the remaining log is durable, and the high
        watermark is its end.

        Raises:
            OffsetOutOfRangeError: the offset is before the log start offset.
        """
        partition = self._partition
        partition.availability.check_usable()
        if offset >= partition.end_offset:
            return
        if offset < partition.start_offset:
            raise OffsetOutOfRangeError(
                f"the log of {partition.topic}-{partition.index} cannot be truncated to offset {offset}: it begins at offset {partition.start_offset}"
            )
        end_offset, position, segment, later = partition.log.segments.find_truncation(offset)
        # The recorded starts of the log and of its commit-ordered view are moved back before the log is cut.
        if end_offset < partition.start_offset:
            partition.move_start(end_offset)
        view = partition.view
        if view is not None and self._order is not None and end_offset < view.start_offset:
            self._order.write_start(partition, end_offset)
        self._are_epochs_checked = False
        partition.reload(
            end_offset, partial(truncate_files, self._disk, partition.directory, segment, position, later)
        )
