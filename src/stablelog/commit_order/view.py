"""Commit order: what a read-committed consumer of a commit-ordered topic reads.

The commit marker of a transaction with N records in the partition takes N+1 offsets: its own, and one for each record.
These N offsets are the positions of the records in commit order. A record outside transactions has its own offset as
its position. The log itself therefore determines commit order, which is the same after a restart, after a truncation
and in a copy of the log.

A read finds the batches of a transaction by its marker, and returns them with another base offset and another leader
epoch. The CRC does not cover these two fields. The view contains only committed transactions and records outside
transactions. No reader waits for the open transaction of another producer, and the response lists no aborted
transactions.

Source: the DistributedLog paper; docs/architecture.md, "Commit order".
"""

import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import attrgetter

from stablelog.commit_order.extent_lookup import extents_from
from stablelog.commit_order.extents import ExtentColumns
from stablelog.commit_order.fetch_assembler import FetchAssembler
from stablelog.commit_order.first_sequence import FirstSequence
from stablelog.commit_order.index_builder import IndexBuilder
from stablelog.commit_order.index_format import CommittedRange, Entry
from stablelog.commit_order.index_rows import IndexRows
from stablelog.commit_order.remote_index import RemoteIndex
from stablelog.commit_order.stored_view import add_stored, add_stored_run
from stablelog.commit_order.tiered_indexes import TieredIndexes
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, DiskError, NotLoadedError, OffsetOutOfRangeError, UnprovenError
from stablelog.log.model import Slice
from stablelog.log.search.times import (
    STEP_COUNT_MAX,
    Batch,
    Lookup,
    TimestampedOffset,
    batches_from_time,
    look_up_in_steps,
)
from stablelog.log.segments.segment import Segment
from stablelog.log.view import ViewedLog

# How many ends of reads are remembered for each partition. A reader that begins at one of them continues an earlier
# read.
SEQUENTIAL_READERS_MAX = 256
REMOTE_ANSWERS_MAX = 64


class CommitOrder:
    """The view of one partition in commit order. `advance` extends it over the batches that have become durable.

    Args:
        partition: a partition of a commit-ordered topic.
        disk: the disk of the partition.
        progress: called during the start of the broker with (bytes done, bytes of the log).
        first_sequences: the recorded commit sequences before segments that may be the first.

    Attributes:
        indexes: the commit indexes, oldest first. The last one grows.
        first_sequences: the recorded commit sequences before segments that may be the first.
    """

    def __init__(
        self,
        partition: ViewedLog,
        disk: Disk,
        progress: Callable[[int, int], None] | None = None,
        first_sequences: tuple[FirstSequence, ...] = (),
    ) -> None:
        # A weak reference: the partition refers to its view, and the garbage collector must not be needed to free both
        # (`broker.loop.garbage`). A caller that uses the view holds the partition.
        self._partition: ViewedLog = weakref.proxy(partition)
        self.first_sequences = first_sequences
        self._builder = IndexBuilder(partition, disk, first_sequences)
        self.indexes = self._builder.indexes
        self._tiers = TieredIndexes(partition, self.indexes)
        self._read_ends: dict[int, None] = {}  # positions where the last reads have ended, oldest first
        self._start = 0
        # Cache of `_torn_sequence`, by the base offset of the index: (log start offset at the last search, number of
        # entries searched, greatest commit sequence found).
        self._torn: dict[int, tuple[int, int, int]] = {}
        # Cache of `torn_sequence`: (log start offset at the last search, end of the remote segments that were searched,
        # greatest commit sequence found).
        self._torn_remote = 0, 0, -1
        # Answers that were found in remote commit indexes, oldest first. A cut of many partitions begins again after
        # each load, and the cache need not have room for the indexes of all of them.
        self._remote_answers: dict[tuple[str, int, int], int] = {}
        try:
            self._builder.load(progress)
        except BaseException:
            self.close()
            raise

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first position that can be read.

        The view leaves out torn transactions: their positions are after this one, but they began before the log start
        offset. Retention and DeleteRecords tear no transaction; a log that was restored from an object store may have
        torn ones.
        """
        return max(self._start, self._tiers.log_start)

    @property
    def end_offset(self) -> int:
        """The position after the last record that can be read. It never moves back."""
        return max(self.indexes[-1].view_end, self._start, self._partition.start_offset)

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence in the durable part of the log; -1 if there is none."""
        return self._tiers.latest_sequence

    @property
    def failure(self) -> DiskError | None:
        """The error that has kept the commit index of a sealed segment from being written; None if all are written."""
        return self._builder.failure

    def open_record_counts(self) -> dict[int, int]:
        """Return the number of durable records of each open transaction, by producer id."""
        return {producer_id: one.extents.record_count for producer_id, one in self._builder.open.items()}

    def first_needed_offset(self) -> int:
        """Return the first log offset that the view needs: the least one among the start of the view, the offsets at
        which transactions of the view begin, and those at which open transactions begin.

        If the view begins within a segment whose commit index is only in the store, transactions before the start of
        the view count, too.
        """
        start = self.start_offset
        needed = [start, *(one.first_offset for one in self._builder.open.values())]
        remote = [commits.least_first_offset for commits in self._tiers.remote_commits(start)]
        place = 0 if remote else self._tiers.place_of(start)
        needed += remote
        needed += [self._tiers.least_first_offset(index, start) for index in self.indexes[place:]]
        # A transaction that began before the log start is torn and not in the view, so offsets before the log start do
        # not count.
        return max(min(needed), self._tiers.log_start)

    def first_whole_position(self, log_start: int) -> int:
        """Return the first position, at or after the log offset `log_start`, from which on every transaction has all
        its records at or after `log_start`.
        """
        for index in reversed(self.indexes):
            if index.least_first_offset < log_start:
                place = index.place_of_last_before(log_start)
                return max(index[place].end, log_start)
        return log_start

    def first_offset_of(self, end_offset: int) -> int:
        """Return the least log offset at which one of these transactions begins: those that are open, and those whose
        markers are at or after `end_offset`. Return `end_offset` if there is none that begins before it.
        """
        needed = [one.first_offset for one in self._builder.open.values()]
        needed += [index.least_first_offset for index in self.indexes if index.base_offset >= end_offset]
        return min([end_offset, *needed])

    def whole_from(self, position: int) -> int:
        """Return the first position, from `position` on, that is not in the middle of a transaction: `position` itself,
        or the position after the transaction that contains it.
        """
        entry = next(self._entries_from(position), None)
        if entry is None or entry.is_outside or entry.start >= position:
            return position
        return entry.end

    def sequence_before_segment(self, base_offset: int) -> int:
        """Return the greatest commit sequence before a local segment; -1 if there is none, or if it is unknown."""
        return self._builder.sequence_before(base_offset)

    # -- changes -----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Extend the view over the batches of the log that have become durable. Index files that cannot be written now
        are written later: see `failure`.
        """
        self._builder.advance()

    def move_start(self, start_offset: int) -> None:
        """Hide all positions before this one, which must not be in the middle of a transaction."""
        self._start = max(self._start, start_offset)

    def forget_deleted(self) -> None:
        """Drop the commit indexes of segments that retention has deleted."""
        for index in self._builder.forget_deleted():
            self._torn.pop(index.base_offset, None)

    def close(self) -> None:
        """Close all files."""
        self._builder.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches in commit order: at most `size_max` bytes, but one batch of any size if `at_least_one`.

        The first batch contains `start`, or is the next one after it. An earlier batch must not be returned, because a
        client would take its records for those at `start`.

        Raises:
            OffsetOutOfRangeError: `start` is before the start of the view, or after its end.
            DamageError: the first batch is damaged.
            UnprovenError: the batch headers of the first batch's segment were not checked since the start of the
                broker.
        """
        if not self.start_offset <= start <= max(self._partition.high_watermark, self.end_offset):
            raise OffsetOutOfRangeError(
                f"position {start} is not in the view of {self._partition.topic}-{self._partition.index}, which has the "
                f"positions {self.start_offset} to {self.end_offset} (exclusive)"
            )
        # A reader that begins at the start of the view is expected to continue with the following positions.
        reads_on = start in self._read_ends or start == self.start_offset
        self._read_ends.pop(start, None)
        response = FetchAssembler(start, size_max, at_least_one=at_least_one, reads_on=reads_on)
        try:
            if self._assemble(response) and response.end == start:
                # The view has no record from `start` to its end.
                response.add_empty_batch(self.end_offset)
        except (DamageError, NotLoadedError, UnprovenError):
            if response.end == start:
                raise
            # The response ends before the damaged or unproven batch. The next read begins at this batch and raises the
            # error.
        if self._partition.remote is not None:
            self._tiers.remote_view.finish_read(start, response.end)
        self._read_ends[response.end] = None
        if len(self._read_ends) > SEQUENTIAL_READERS_MAX:
            del self._read_ends[next(iter(self._read_ends))]
        return response.slice()

    def _assemble(self, response: FetchAssembler) -> bool:
        """Add batches in commit order to a response until it is full. Return True if the response has reached the end
        of the view, so that no batch was left out.
        """
        log_start = self._tiers.log_start
        for index in self._tiers.indexes_from(response.start):
            for part in extents_from(index, response.start, log_start, response.room):
                try:
                    if isinstance(part, ExtentColumns):
                        has_room = self._add(response, part)
                    else:
                        has_room = self._add_outside(response, index, part)
                except NotLoadedError as missing:
                    # The cache must have room for the index, too. Otherwise the bytes of the batches would drop it.
                    raise NotLoadedError(missing.ranges, missing.size + index.loaded_size) from None
                if not has_room:
                    return False
        return True

    def _add(self, response: FetchAssembler, extents: ExtentColumns) -> bool:
        """Add batches of transactions. Return whether the response has room for more."""
        if self._tiers.is_local(extents.segment):
            return response.add_batches(self._segment(extents.segment), extents)
        assert self._partition.remote is not None
        return add_stored(response, self._partition.remote, extents)

    def _add_outside(self, response: FetchAssembler, index: IndexRows, entry: Entry) -> bool:
        """Add a range of batches outside transactions. Return whether the response has room for more."""
        extent = index.extent(entry.extent_first)
        if self._tiers.is_local(extent.segment):
            return response.add_local_run(self._segment(extent.segment), extent, entry)
        assert self._partition.remote is not None
        return add_stored_run(response, self._partition.remote, entry)

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position with a commit at this time or later. A record outside transactions counts with its
        own timestamp.

        Returns:
            A lookup, which the caller runs in steps (see `log.search.times.Lookup`). Its result is (position, time,
            leader epoch); None if there is no such commit or record.
        """
        return (
            yield from look_up_in_steps(
                lambda start: self._look_up_step(timestamp_ms, start), timestamp_ms, lambda: self.start_offset
            )
        )

    def _look_up_step(self, timestamp_ms: int, start: int) -> TimestampedOffset | Batch | int | None:
        """Do one step of a lookup by time.

        Returns:
            The record, if the step has found it; a batch outside transactions that may contain it; the position where
            the next step continues; or None if there is no such record.
        """
        count = 0
        for index in self._tiers.indexes_with_time(start, timestamp_ms):
            for place in range(max(index.place_at_time(timestamp_ms), index.place_of(start)), len(index)):
                entry = index[place]
                if count >= STEP_COUNT_MAX:
                    # This position is greater than `start`, because the step has already searched an earlier entry.
                    return entry.start
                count += 1
                if entry.is_torn(self._tiers.log_start):
                    continue
                if not entry.is_outside:
                    return max(entry.start, start), entry.latest_ms, entry.leader_epoch
                if not self._tiers.is_local(index.base_offset):
                    found = self._tiers.remote_view.batch_at_time(
                        index.base_offset, timestamp_ms, max(entry.start, start), entry.end
                    )
                    if found is not None:
                        return found
                    continue
                segment = self._segment(index.base_offset)
                for position, header in batches_from_time(segment, timestamp_ms, max(entry.start, start)):
                    if header.base_offset >= entry.end:
                        break
                    if header.max_timestamp >= timestamp_ms:
                        return Batch(header, segment.batch_at(position, header.size))
                    if count >= STEP_COUNT_MAX:
                        return max(header.base_offset, start)
                    count += 1
        return None

    def look_up_newest(self) -> Lookup:
        """Find the first position of the latest commit.

        Returns:
            A lookup, which the caller runs in steps (see `log.search.times.Lookup`). Its result is (position, time,
            leader epoch); None if the view is empty.
        """
        start = self.start_offset
        remote = self._tiers.remote_commits(start)
        local = self.indexes[self._tiers.place_of(start) :]
        latest_ms = max([*(one.latest_ms for one in local), *(one.latest_ms for one in remote)])
        return None if latest_ms < 0 else (yield from self.look_up_time(latest_ms))

    # -- commit sequences --------------------------------------------------------------------------------------

    def transactions(self, start: int, count_max: int, *, with_outside: bool = False) -> list[CommittedRange]:
        """Return the first transactions that end after a position.

        Args:
            start: the position.
            count_max: how many transactions to return at most.
            with_outside: whether to also return ranges of records outside transactions.
        """
        found: list[CommittedRange] = []
        for entry in self._entries_from(max(start, self.start_offset)):
            if (entry.is_outside and not with_outside) or entry.is_torn(self._tiers.log_start):
                continue
            if len(found) == count_max:
                break
            found.append(entry.committed)
        return found

    def offset_after(self, commit_sequence: int) -> int:
        """Return the start of the first transaction with a greater commit sequence; the view's end if there is none.
        Records outside transactions before this position count as earlier than the transaction.
        """
        key = "offset_after", commit_sequence, self.start_offset
        if key in self._remote_answers:
            return self._remote_answers[key]
        index = self._tiers.index_after_sequence(commit_sequence)
        if index is None:
            return self.end_offset
        # `latest_sequence` also counts earlier segments. If the index has no entry with a greater sequence, the
        # transaction with that sequence was in a segment that is deleted by now.
        found = max(index.offset_after(commit_sequence) or 0, self.start_offset)
        return self._cache_answer(key, found) if index.loaded_size else found

    def _cache_answer(self, key: tuple[str, int, int], answer: int) -> int:
        self._remote_answers[key] = answer
        if len(self._remote_answers) > REMOTE_ANSWERS_MAX:
            del self._remote_answers[next(iter(self._remote_answers))]
        return answer

    def removed_sequence(self) -> int | None:
        """Return the greatest commit sequence of a transaction that may have lost records to retention. All
        transactions with greater commit sequences are complete.

        A DeleteRecords request counts as retention, and so does the loss of a disk before a restore.

        Returns:
            -1 if no transaction has lost records. None if this is unknown, because the view has no transaction.
        """
        start = self.start_offset
        is_log_whole = self._tiers.is_log_whole
        known = -1 if start == 0 else self._sequence_before(start)
        if known == -1 and not is_log_whole and self.latest_sequence != -1:
            # The earlier segments were deleted together with their commit indexes, so their commit sequences are
            # unknown. They are less than the sequence of the first commit that remains. Use that sequence minus 1.
            for first in self.transactions(start, 1):
                known = first.commit_sequence - 1
        found = max(known, self.torn_sequence())
        return None if found == -1 and not is_log_whole else found

    def torn_sequence(self) -> int:
        """Return the greatest commit sequence of a torn transaction, one that has lost its beginning to retention or a
        part to the loss of a disk; -1 if there is none. The view leaves out all torn transactions.
        """
        restored = self._partition.restored
        lost = -1 if restored is None else restored.torn_sequence
        log_start = self._tiers.log_start
        searched_start, end, found = self._torn_remote
        if searched_start != log_start:
            end, found = log_start, -1
        for commits in self._tiers.remote_commits(end):
            if commits.least_first_offset < log_start:
                found = max(found, self._torn_sequence(RemoteIndex(self._tiers.remote_view, commits)))
            end = commits.end_offset
        self._torn_remote = log_start, end, found
        return max(
            [lost, found, *(self._torn_sequence(self._tiers.whole_index(index)) for index in self.indexes)]
        )

    def _sequence_before(self, position: int) -> int:
        """Return the greatest commit sequence before a position; -1 if there is none, or if it is unknown."""
        key = "sequence_before", position, self.start_offset
        if key in self._remote_answers:
            return self._remote_answers[key]
        index = next(self._tiers.indexes_from(position))
        found = index.sequence_before(position, self._tiers.sequence_before(index))
        return self._cache_answer(key, found) if index.loaded_size else found

    def _torn_sequence(self, index: IndexRows) -> int:
        """Return the greatest commit sequence of the torn transactions in one commit index; -1 if there are none.

        The index may have a million entries, so each call searches only the entries that were added since the last
        call.
        """
        log_start = self._tiers.log_start
        if index.least_first_offset >= log_start:
            return -1
        searched_start, done, found = self._torn.get(index.base_offset, (log_start, 0, -1))
        if searched_start != log_start:
            done = 0
        found = max(found, index.torn_sequence(log_start, done))
        self._torn[index.base_offset] = log_start, len(index), found
        return found

    # -- entries by position -----------------------------------------------------------------------------------

    def _entries_from(self, position: int) -> Iterator[Entry]:
        """Yield, in commit order, the entries of all commit indexes that end after a position."""
        for index in self._tiers.indexes_from(position):
            for place in range(index.place_of(position), len(index)):
                yield index[place]

    def _segment(self, base_offset: int) -> Segment:
        segments = self._partition.segments()
        segment = segments[bisect_left(segments, base_offset, key=attrgetter("base_offset"))]
        assert segment.base_offset == base_offset, "an extent is in a segment that exists"
        return segment
