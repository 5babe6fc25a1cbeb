"""Deletion, retention, compaction and the removal of aborted data: the operations that remove records from an open log."""

from collections.abc import Iterator

from stablelog.env.disk import File
from stablelog.errors import OffsetOutOfRangeError, UnavailableError
from stablelog.log.compaction.rewriter import Cleaned, Pass
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.model import Isolation
from stablelog.log.readable_log import ReadableLog
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.retention import count_durable, count_too_much, count_too_old

RECENT_MS = 60_000  # a producer that has not written for this time is kept only in packed form


class PrunableLog(ReadableLog):
    """An open log with the operations that delete records."""

    # -- delete ------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Delete the records before `before_offset`, and the segments that no reader can need any more. Return the new
        start offset.

        The new start is durable on return. In a commit-ordered partition, `before_offset` is an offset of the view. If
        this offset is in the middle of a transaction, the view then begins after the last record of this transaction.
        The log keeps the batches of all transactions that the view contains or that may still commit.

        Raises:
            OffsetOutOfRangeError: `before_offset` is past the high watermark.
        """
        self.usability.check()
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"records of {self.topic}-{self.index} cannot be deleted up to offset {before_offset}: the offset must be between 0 and the high watermark, {self.high_watermark}"
            )
        if self.view is not None:
            before_offset = self._begin_view_at(self.view.whole_from(before_offset))
        if self.remote is not None:
            self.remote.begin_at(before_offset)
        self._begin_at(before_offset)
        self._delete_segments(self.log.segments.place_of(self.start_offset), due_ms=0)
        return self.visible_start(Isolation.READ_COMMITTED)

    def delete_remote(self) -> None:
        """Delete all records that are not in the local log. A commit-ordered view then begins after the last transaction
        that has such records. Its new start is durable on return.

        Raises:
            UnavailableError: the segments in the remote tier are not known yet.
        """
        self.usability.check()
        assert self.remote is not None
        if self.view is not None:
            self._begin_view_at(self.view.first_whole_position(self.start_offset))
        self.remote.begin_at(self.start_offset)

    def _begin_view_at(self, start_offset: int) -> int:
        """Let the view begin at this position, or at its present start if that is greater. Return the first offset of
        the log that readers of the view need.
        """
        view, order = self.view, self._order
        assert view is not None
        assert order is not None
        if start_offset > view.start_offset:
            self._sync_up_to(start_offset)
            # The new start of the view is written to disk before it is used in memory. Otherwise, after a crash, the
            # view could begin at its old start again, and readers could see deleted records.
            order.write_start(self, start_offset)
            view.begin_at(start_offset)
        return view.first_needed_offset()

    def _expire_before(self, start_offset: int) -> int:
        """Let readers begin at the offset to which the limits of retention move the start. Return the first offset that
        the log must keep: that of the first record that belongs to an open transaction or, in a commit-ordered
        partition, to a transaction that the view contains.

        A transaction whose marker is not durable counts as open, because a crash could remove the marker.
        """
        if self.view is not None:
            self.view.advance()
            return self._begin_view_at(start_offset)
        first_open = self.log.producers.first_unstable_offset()
        return start_offset if first_open is None else min(start_offset, first_open)

    def _begin_at(self, start_offset: int) -> None:
        """Move the log start offset. The new offset is durable on return. If a crash then prevents the deletion of the
        earlier segments, recovery deletes them.
        """
        if start_offset > self.start_offset:
            self._sync_up_to(start_offset)
            # After a crash, recovery deletes the segments before the new start.
            self._note_deletion(self.log.segments.place_of(start_offset))
            self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(start_offset))
            self.start_offset = start_offset

    def _note_deletion(self, count: int) -> None:
        """Record what the view must know of the first segments, which will be deleted. It is durable on return."""
        if count and self.view is not None and self._order is not None:
            self.view.advance()
            self._order.note_deletion(self, self.view, self.log.segments[count].base_offset)

    def _sync_up_to(self, offset: int) -> None:
        """Sync the log, unless it is synced up to this offset. Without the sync, a crash could leave a log that ends
        before its recorded start, and the next start of the broker would refuse it.

        A sync can be needed only with `stablelog.flush=os`, because only then can the high watermark be ahead of the
        synced end.

        Raises:
            DiskError: it is unknown which bytes are durable, and the partition has failed.
        """
        if offset > self.synced_offset:
            self.log.sync_log()
            self.synced_offset = self.end_offset

    def apply_retention(self, now_ms: int, *, wall_ms: int | None = None) -> int:
        """Delete the oldest segments while `retention.ms` or `retention.bytes` is exceeded. Return how many were
        deleted. The age of records is by the wall clock, `wall_ms`; None for `now_ms`.

        The limits decide where readers begin: at the base offset of a segment. Of the segments before it, those stay
        that an open transaction needs. In a commit-ordered partition, those stay, too, that have records of a
        transaction whose commit marker is in a later segment.
        """
        self.usability.check()
        segments = self.log.segments
        wall_ms = now_ms if wall_ms is None else wall_ms
        count = segments.place_of(self.start_offset)
        if "delete" in self.config.cleanup_policy:
            too_old = count_too_old(segments, self.config, now_ms, wall_ms)
            if too_old == len(segments) and self.high_watermark == self.end_offset:
                self.log.roll(now_ms)  # the next call deletes the sealed segment, after a sync
            expired_count = max(too_old, count_too_much(segments, self.config))
            expired_count = min(expired_count, count_durable(segments, self.high_watermark))
            start_offset = segments[expired_count].base_offset if expired_count else 0
            if self.remote is None:
                count = max(count, segments.place_of(self._expire_before(start_offset)))
            else:
                count = max(count, self._apply_remote_retention(self.remote, start_offset, now_ms, wall_ms))
        return self._delete_segments(count, due_ms=now_ms + self.config.file_delete_delay_ms)

    def _apply_remote_retention(
        self, remote: RemoteTier, start_offset: int, now_ms: int, wall_ms: int
    ) -> int:
        """Move the log start offset past the records that retention deletes in the remote tier. Return how many of the
        first local segments can be deleted: segments that have expired, and segments that are also in the store and
        that local retention does not keep.

        Args:
            remote: the remote tier.
            start_offset: the base offset of the first local segment that the limits of the whole log keep.
            now_ms: the time of the broker's clock.
            wall_ms: the time of the wall clock.
        """
        segments = self.log.segments
        only_local = segments.ending_behind(remote.end_offset)
        expired = remote.expired_before(self.config, sum(one.size for one in only_local), wall_ms)
        start_offset = self._expire_before(max(start_offset, expired))
        remote.begin_at(start_offset)
        expired_count = segments.place_of(start_offset)
        if self.config.is_copy_disabled or not self.config.is_tiered:
            return expired_count
        local = self.config.local
        too_old = count_too_old(segments, local, now_ms, wall_ms, is_local=True)
        local_count = max(too_old, count_too_much(segments, local))
        copied_count = len(segments) - len(only_local)
        if self.view is not None and copied_count:
            # The commit indexes of segments that are not in the store can be rebuilt only from the local log. So the
            # local log must have the transactions in these indexes from their first record on.
            copied_end = segments[copied_count - 1].end_offset
            copied_count = segments.place_of(self.view.first_offset_of(copied_end))
        return max(expired_count, min(local_count, copied_count))

    def _delete_segments(self, count: int, due_ms: int) -> int:
        """Delete up to `count` of the oldest segments, as far as they are sealed and durable. Return how many were
        deleted.
        """
        segments, view = self.log.segments, self.view
        if view is not None:
            view.advance()  # moves the view's reading position out of the segments that will be deleted
        durable_count = min(count, count_durable(segments, self.high_watermark))
        if not durable_count:
            return 0
        self._note_deletion(durable_count)
        self._begin_at(max(self.start_offset, segments[durable_count].base_offset))
        gone = segments.drop_first(durable_count)
        try:
            for segment in gone:
                segment.close()
            self._pending_deletes.add(gone, segments[0].base_offset, due_ms)
        finally:
            if view is not None:
                view.forget_deleted()
        return durable_count

    def remove_deleted(self, now_ms: int) -> list[File]:
        """Remove the files of deleted segments whose `file.delete.delay.ms` has passed. Return the removed files, still
        open. The caller closes them in a thread.

        After a DiskError, the next call continues.
        """
        self.usability.check_open()
        return self._pending_deletes.purge(now_ms)

    def expire_producers(self, now_ms: int) -> Iterator[int]:
        """Remove the state of producers that have not written for `producer.id.expiration.ms`. Each step takes some
        milliseconds and yields how many producers it has removed.
        """
        self.usability.check_open()
        return self.log.producers.expire(now_ms - self.config.producer_id_expiration_ms, now_ms - RECENT_MS)

    # -- compact -----------------------------------------------------------------------------------------------

    def begin_compaction(self, now_ms: int, *, key_count_max: int) -> Pass | None:
        """Return a new pass of compaction, or of the removal of aborted data from local segments. None if the topic's
        settings ask for neither, or if too few records are new since the last pass.

        In a topic with a remote tier, a segment is rewritten only after its copy was published, so that no copy reads
        files that are being replaced.

        The steps of the pass may run in any thread. A step may yield a rewritten segment, which the caller passes to
        `take_cleaned`. At the end, the caller passes the pass itself to `compacted`. Only one pass may exist at a time.

        Args:
            now_ms: the time of the wall clock.
            key_count_max: how many keys the pass may keep in memory.
        """
        self.usability.check()
        stable_offset = self.last_stable_offset
        if self.remote is not None:
            try:
                stable_offset = min(stable_offset, self.remote.end_offset)
            except UnavailableError:
                return None  # the segments in the remote tier are not known yet
        return self._cleaning.begin(
            self.log.segments,
            self.config,
            last_batch=self.log.producers.last_batches,
            start_offset=self.start_offset,
            stable_offset=stable_offset,
            aborted_behind=self.aborted_behind,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def take_cleaned(self, cleaned: Cleaned) -> bool:
        """Replace segments of the log by the one segment into which a pass has rewritten them.

        Returns:
            False if one of the segments to be replaced was deleted or replaced meanwhile: the caller must end the pass.

        Raises:
            UnavailableError: the disk failed, and the partition with it. A restart of the broker is needed.
        """
        self.usability.check()
        try:
            segments = self._cleaning.put_in_place(self.log.segments, cleaned)
        except UnavailableError as error:
            self.fail(error)
            raise
        if segments is None:
            return False
        if segments is not self.log.segments:
            self.log.segments = segments
            self._snapshots.forget_within(cleaned.summary.base_offset, cleaned.summary.end_offset)
        return True

    def compacted(self, work: Pass) -> None:
        """Note that a pass of compaction, or of the removal of aborted data, has ended."""
        self.usability.check_open()
        self._cleaning.over(work)
