"""Deletion, retention and compaction: what takes records out of an open log."""

from collections.abc import Iterator

from stablelog.env.disk import File
from stablelog.errors import OffsetOutOfRange, Unavailable
from stablelog.log.compaction.cleaner import Cleaned, Compaction
from stablelog.log.files.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.model import Isolation
from stablelog.log.readable_log import ReadableLog
from stablelog.log.retention import count_durable, count_too_much, count_too_old

RECENT_MS = 60_000  # a producer that has not written for so long is packed


class PrunableLog(ReadableLog):
    """An open log from which records are deleted."""

    # -- delete ------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Delete what readers see before `before_offset`, and the segments that nothing needs. Returns the start.

        The start is durable on return. A view begins behind a transaction in which `before_offset` lies, and the log
        keeps what transactions need that the view shows or may show yet.

        Raises:
            OffsetOutOfRange: it lies past the high watermark.
        """
        self.usability.check()
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"records before {before_offset} of {self.topic}-{self.index} cannot be deleted: the high watermark is {self.high_watermark}"
            )
        view, order = self.view, self._order
        if view is not None and order is not None:
            start_offset = max(view.whole_from(before_offset), view.start_offset)
            self._sync_up_to(start_offset)
            # The record comes first: the beginning of the view never moves back.
            order.write_start(self, start_offset)
            view.begin_at(start_offset)
            before_offset = view.first_needed_offset()
        self._begin_at(before_offset)
        self._delete_segments(self.log.segments.place_of(self.start_offset), due_ms=0)
        return self.visible_start(Isolation.READ_COMMITTED)

    def _begin_at(self, start_offset: int) -> None:
        """Move the log's start, which is durable then. Recovery removes what a crash leaves before it."""
        if start_offset > self.start_offset:
            self._sync_up_to(start_offset)
            self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(start_offset))
            self.start_offset = start_offset

    def _sync_up_to(self, offset: int) -> None:
        """Sync the log, unless it is synced up to this offset: a start refuses a log that ends before its recorded start.

        The high watermark is ahead of the synced end only where what the operating system has counts as durable.

        Raises:
            DiskError: which bytes are durable is not known, and the partition has failed.
        """
        if offset > self.synced_offset:
            self.log.sync_log()
            self.synced_offset = self.end_offset

    def apply_retention(self, now_ms: int) -> int:
        """Delete the oldest segments while they are too old or too much. Returns how many."""
        self.usability.check()
        segments = self.log.segments
        count = segments.place_of(self.start_offset)
        if "delete" in self.config.cleanup_policy:
            too_old = count_too_old(segments, self.config, now_ms)
            if too_old == len(segments) and self.high_watermark == self.end_offset:
                self.log.roll(now_ms)  # the next call deletes it, when it is durable that it is sealed
            count = max(count, too_old, count_too_much(segments, self.config))
        return self._delete_segments(count, due_ms=now_ms + self.config.file_delete_delay_ms)

    def _delete_segments(self, count: int, due_ms: int) -> int:
        """Delete up to `count` segments from the oldest on: those that are sealed and durable. Returns how many."""
        segments, view = self.log.segments, self.view
        if view is not None:
            first_open = self.log.producers.first_unstable_offset()
            if first_open is not None:
                # An open transaction would be torn when it commits. Open is also one whose marker a crash could take.
                count = min(count, segments.place_of(first_open))
            view.advance()  # so that the view stands in a segment that stays
        durable_count = min(count, count_durable(segments, self.high_watermark))
        if not durable_count:
            return 0
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
        """Remove the names of deleted segments' files whose time has passed. Returns the files, to be closed in a thread.

        After a DiskError, the next call goes on.
        """
        self.usability.check_open()
        return self._pending_deletes.purge(now_ms)

    def expire_producers(self, now_ms: int) -> Iterator[int]:
        """Forget producers after `producer.id.expiration.ms`, in steps of some milliseconds: how many each forgot."""
        self.usability.check_open()
        return self.log.producers.expire(now_ms - self.config.producer_id_expiration_ms, now_ms - RECENT_MS)

    # -- compact -----------------------------------------------------------------------------------------------

    def begin_compaction(self, now_ms: int, *, key_count_max: int) -> Compaction | None:
        """A pass of compaction, if the topic is to be compacted and there is enough to do; None if not.

        Its steps may run in any thread. The caller gives each segment that they finish to `take_cleaned`, and the pass,
        when it is over, to `compacted`. There may be one pass at a time.

        Args:
            now_ms: the broker's clock.
            key_count_max: how many keys there is memory for.
        """
        self.usability.check()
        return self._cleaning.begin(
            self.log.segments,
            self.config,
            last_batch=self.log.producers.last_batches(),
            start_offset=self.start_offset,
            stable_offset=self.last_stable_offset,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def take_cleaned(self, cleaned: Cleaned) -> bool:
        """Put a segment that compaction has finished in the place of those that it was made of.

        Returns:
            False if they have changed meanwhile: the caller gives up the pass.

        Raises:
            Unavailable: the disk failed, and the partition needs a restart.
        """
        self.usability.check()
        try:
            segments = self._cleaning.put_in_place(self.log.segments, cleaned)
        except Unavailable as error:
            self.fail(error)
            raise
        if segments is None:
            return False
        if segments is not self.log.segments:
            self.log.segments = segments
            for gone in cleaned.replaced[1:]:
                self._snapshots.remove(gone)
        return True

    def compacted(self, work: Compaction) -> None:
        """Note that a pass is over."""
        self.usability.check_open()
        self._cleaning.over(work)
