"""Deletion of records from the start of a log, by DeleteRecords requests and by retention.

`retention` counts the segments that the settings no longer keep. This module moves the start of the log and of its
commit-ordered view (the committed batches in the order of their commits), and removes the segments. It also removes the
state of producers that have not written for long.
"""

import weakref
from collections.abc import Iterator

from stablelog.env.disk import Disk, File
from stablelog.errors import OffsetOutOfRangeError
from stablelog.log.model import Isolation
from stablelog.log.open_log import OpenLog
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.retention import PendingDeletes, count_durable, count_too_much, count_too_old
from stablelog.log.view import Order

RECENT_MS = 60_000  # a producer that has not written for this time is kept only in packed form


class RecordDeletion:
    """The part of a partition that deletes records.

    Args:
        disk: the disk of the partition.
        partition: the partition.
        order: records where the view of a commit-ordered partition (its committed batches in the order of their
            commits) begins; None for a partition in offset order.

    Attributes:
        pending: the files of deleted segments, which are renamed and wait for their removal.
    """

    def __init__(self, disk: Disk, partition: OpenLog, order: Order | None) -> None:
        self._partition: OpenLog = weakref.proxy(partition)  # see `OpenLog`
        self._order = order
        self.pending = PendingDeletes(disk, partition.directory)

    # -- by a request ------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Delete the records before an offset, and the segments that no reader needs any more. Return the new start
        offset, which is durable.

        In a commit-ordered partition, `before_offset` is a position in commit order, which readers see as the offset.
        The view, the committed batches in commit order, then begins there, or after a transaction in the middle of
        which `before_offset` is. The log keeps the batches of all transactions that the view contains or that may still
        commit.

        Raises:
            OffsetOutOfRangeError: `before_offset` is after the high watermark.
        """
        partition = self._partition
        partition.availability.check_usable()
        if not 0 <= before_offset <= partition.high_watermark:
            raise OffsetOutOfRangeError(
                f"records of {partition.topic}-{partition.index} cannot be deleted up to offset {before_offset}: the offset must be between 0 and the high watermark, {partition.high_watermark}"
            )
        if partition.view is not None:
            before_offset = self._move_view_start(partition.view.whole_from(before_offset))
        if partition.remote is not None:
            partition.remote.move_start(before_offset)
        self._move_log_start(before_offset)
        self._delete_segments(partition.log.segments.place_of(partition.start_offset), due_ms=0)
        return partition.visible_start(Isolation.READ_COMMITTED)

    def delete_remote(self) -> None:
        """Delete all records that are only in the object store. In a commit-ordered partition, readers then begin after
        the last transaction with such records. The new start is durable on return.

        Raises:
            UnavailableError: the list of remote segments is not loaded yet.
        """
        partition = self._partition
        partition.availability.check_usable()
        assert partition.remote is not None
        if partition.view is not None:
            self._move_view_start(partition.view.first_whole_position(partition.start_offset))
        partition.remote.move_start(partition.start_offset)

    # -- the start ---------------------------------------------------------------------------------------------

    def _move_view_start(self, start_offset: int) -> int:
        """Move the start of the commit-ordered view (the committed batches in the order of their commits) forward to
        the position `start_offset` in it. Return the first offset in the order of the writes that the log must keep,
        because readers of the view need the batches from there on.
        """
        view, order = self._partition.view, self._order
        assert view is not None
        assert order is not None
        if start_offset > view.start_offset:
            self._partition.log.sync_up_to(start_offset)
            # The new start of the view is written to disk before it is used in memory. Otherwise, after a crash, the
            # view could begin at its old start again, and readers could see deleted records.
            order.write_start(self._partition, start_offset)
            view.move_start(start_offset)
        return view.first_needed_offset()

    def _move_log_start(self, start_offset: int) -> None:
        """Move the log start offset forward. It is durable on return: if a crash prevents the deletion of the earlier
        segments, recovery deletes them.
        """
        partition = self._partition
        if start_offset > partition.start_offset:
            partition.log.sync_up_to(start_offset)
            # After a crash, recovery deletes the segments before the new start.
            self._record_deletion(partition.log.segments.place_of(start_offset))
            partition.move_start(start_offset)

    def _record_deletion(self, count: int) -> None:
        """Record, before the first `count` segments are deleted, what the commit-ordered view (the committed batches in
        the order of their commits) must know of them later: the number of the last commit in them. The record is
        durable on return. Without a view, do nothing.
        """
        partition = self._partition
        if count and partition.view is not None and self._order is not None:
            partition.view.advance()
            self._order.record_deletion(partition, partition.view, partition.log.segments[count].base_offset)

    def _expire_records_before(self, start_offset: int) -> int:
        """Hide the records before `start_offset` from readers, because they have expired: retention no longer keeps
        them.

        A transaction whose marker is not durable counts as open, because a crash could remove the marker.

        Returns:
            The first offset that the log must keep. It may be less than `start_offset`, because the log keeps the open
            transactions and, in a commit-ordered partition, also all batches of the transactions that readers can still
            get.
        """
        view = self._partition.view
        if view is not None:
            view.advance()
            return self._move_view_start(start_offset)
        return self._partition.log.producers.first_unstable_offset(start_offset)

    # -- retention ---------------------------------------------------------------------------------------------

    def apply_retention(self, now_ms: int, *, wall_ms: int | None = None) -> int:
        """Delete the oldest segments while `retention.ms` or `retention.bytes` is exceeded. Return how many were
        deleted.

        Readers then begin at the base offset of a segment. Earlier segments stay if an open transaction needs them or,
        in a commit-ordered partition, if they have records of a transaction that commits in a later segment.

        Args:
            now_ms: broker time, a clock that never goes back, even if the machine's clock is set back.
            wall_ms: the time of the wall clock, which gives the age of records; None for `now_ms`.
        """
        partition = self._partition
        partition.availability.check_usable()
        segments, config, high_watermark = partition.log.segments, partition.config, partition.high_watermark
        wall_ms = now_ms if wall_ms is None else wall_ms
        count = segments.place_of(partition.start_offset)
        if "delete" in config.cleanup_policy:
            too_old = count_too_old(segments, config, now_ms, wall_ms)
            if too_old == len(segments) and high_watermark == partition.end_offset:
                partition.log.roll(now_ms)  # the next call deletes the sealed segment, after a sync
            expired_count = min(
                max(too_old, count_too_much(segments, config)), count_durable(segments, high_watermark)
            )
            start_offset = segments[expired_count].base_offset if expired_count else 0
            if partition.remote is None:
                expired_count = segments.place_of(self._expire_records_before(start_offset))
            else:
                expired_count = self._apply_remote_retention(partition.remote, start_offset, now_ms, wall_ms)
            count = max(count, expired_count)
        return self._delete_segments(count, due_ms=now_ms + config.file_delete_delay_ms)

    def _apply_remote_retention(
        self, remote: RemoteTier, start_offset: int, now_ms: int, wall_ms: int
    ) -> int:
        """Move the log start offset after the records that retention deletes in the remote tier. Return how many of the
        first local segments can be deleted: those that have expired, and those that are in the store and that local
        retention does not keep.

        Args:
            remote: the remote tier.
            start_offset: the base offset of the first local segment that the limits of the whole log keep.
            now_ms: broker time, a clock that never goes back, even if the machine's clock is set back.
            wall_ms: the time of the wall clock, which gives the age of records.
        """
        segments, config, view = self._partition.log.segments, self._partition.config, self._partition.view
        only_local = list(segments.ending_behind(remote.end_offset))
        expired = remote.expired_before(config, sum(one.size for one in only_local), wall_ms)
        start_offset = self._expire_records_before(max(start_offset, expired))
        remote.move_start(start_offset)
        expired_count = segments.place_of(start_offset)
        if config.is_copy_disabled or not config.is_tiered:
            return expired_count
        local = config.local
        local_count = max(
            count_too_old(segments, local, now_ms, wall_ms, is_local=True), count_too_much(segments, local)
        )
        copied_count = len(segments) - len(only_local)
        if view is not None and copied_count:
            # The commit indexes of segments that are not in the store can be rebuilt only from the local log. So the
            # local log must have the transactions in these indexes from their first record on.
            copied_end = segments[copied_count - 1].end_offset
            copied_count = segments.place_of(view.first_offset_of(copied_end))
        return max(expired_count, min(local_count, copied_count))

    # -- segments and files ------------------------------------------------------------------------------------

    def _delete_segments(self, count: int, due_ms: int) -> int:
        """Delete up to `count` of the oldest segments, if they are sealed and durable. Their files are removed at the
        broker time `due_ms` (by a clock that never goes back) or later. Return how many segments were deleted.
        """
        partition, segments, view = self._partition, self._partition.log.segments, self._partition.view
        if view is not None:
            view.advance()  # moves the view's reading position out of the segments that will be deleted
        durable_count = min(count, count_durable(segments, partition.high_watermark))
        if not durable_count:
            return 0
        self._record_deletion(durable_count)
        self._move_log_start(max(partition.start_offset, segments[durable_count].base_offset))
        gone = segments.drop_first(durable_count)
        try:
            for segment in gone:
                segment.close()
            self.pending.add(gone, segments[0].base_offset, due_ms)
        finally:
            if view is not None:
                view.forget_deleted()
        return durable_count

    def remove_deleted(self, now_ms: int) -> list[File]:
        """Remove the files of deleted segments for which the delay `file.delete.delay.ms` has passed. Return the
        removed log files, which are still open: the caller closes them in a thread, because this takes long. If this
        raises DiskError, the next call removes the rest.
        """
        self._partition.availability.check_open()
        return self.pending.purge(now_ms)

    # -- producers ---------------------------------------------------------------------------------------------

    def expire_producers(self, now_ms: int) -> Iterator[int]:
        """Remove the state of producers that have not written for `producer.id.expiration.ms`. Each step takes a few
        milliseconds, and yields how many producers it has removed, so that other work can run in between.
        """
        partition = self._partition
        partition.availability.check_open()
        expiration_ms = partition.config.producer_id_expiration_ms
        return partition.log.producers.remove_unused(now_ms - expiration_ms, now_ms - RECENT_MS)
