"""Commit order: what a read-committed consumer of a commit-ordered topic reads.

The commit marker of a transaction with N records in the partition takes N+1 offsets: its own, and one for each record.
These N offsets are the positions of the records in commit order. A record outside transactions has its own offset as
its position. The log itself therefore determines commit order, which is the same after a restart, after a truncation
and in a copy of the log.

A read finds the batches of a transaction by its marker, and returns them with another base offset and another leader
epoch. The CRC does not cover these two fields. The view, which is what a reader gets, contains only committed
transactions and records outside transactions. No reader waits for the open transaction of another producer, and the
response lists no aborted transactions.

Source: the DistributedLog paper; docs/how-it-works/architecture.md, "Commit order".
"""

import weakref
from collections.abc import Callable

from stablelog.commit_order.fetch_assembler import FetchAssembler
from stablelog.commit_order.first_sequence import FirstSequence
from stablelog.commit_order.index_builder import IndexBuilder
from stablelog.commit_order.stored_view import TieredView
from stablelog.env.disk import Disk
from stablelog.errors import DamageError, DiskError, NotLoadedError, OffsetOutOfRangeError, UnprovenError
from stablelog.log.model import Slice
from stablelog.log.search.times import Lookup
from stablelog.log.view import ViewedLog

# How many ends of reads are remembered for each partition. A reader that begins at one of them continues an earlier
# read.
SEQUENTIAL_READERS_MAX = 256


class CommitOrder(TieredView):
    """The view of one partition in commit order: its committed batches in the order of their commits. `advance` extends
    it over the batches that have become durable.

    Args:
        partition: a partition of a commit-ordered topic.
        disk: the disk of the partition.
        progress: called during the start of the broker with (bytes done, bytes of the log).
        first_sequences: the rows of the file `log-start-sequence`. A crash may interrupt a deletion of segments, so
            there is a row for each segment that may be the first one now. It has the greatest commit sequence (number
            of a commit, counted over all topics of its transaction group) before the segment.

    Attributes:
        indexes: the commit indexes, oldest first. The last one grows.
        builder: builds the commit indexes.
        first_sequences: the argument of this name.
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
        self.builder = IndexBuilder(self._partition, disk, first_sequences)
        super().__init__(self._partition, self.builder.indexes)
        self.first_sequences = first_sequences
        self._read_ends: dict[int, None] = {}  # positions where the last reads have ended, oldest first
        try:
            self.builder.load(progress)
        except BaseException:
            self.close()
            raise

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The position in commit order after the last record that can be read. It never moves back."""
        return max(self.indexes[-1].view_end, self._start, self._partition.start_offset)

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence (the number of a commit, counted over all topics of its transaction group) in
        the durable part of the log; -1 if there is none.
        """
        return self._tiers.latest_sequence

    @property
    def failure(self) -> DiskError | None:
        """The error that has kept the commit index of a sealed segment (the list of its commits) from being written;
        None if all are written.
        """
        return self.builder.failure

    def open_record_counts(self) -> dict[int, int]:
        """Return the number of durable records of each open transaction, by producer id."""
        return {producer_id: one.record_count for producer_id, one in self.builder.open.items()}

    def first_needed_offset(self) -> int:
        """Return the first log offset that readers in commit order need; retention must keep the batches from there on.
        It is the least of these: the first position that can be read, the offsets at which the transactions begin whose
        positions follow it, and the offsets at which open transactions begin.

        If the first position is in a segment of which only the store has the commit index, the offsets of all
        transactions of this index are included, also of those before the first position.
        """
        start = self.start_offset
        needed = [start, *(one.first_offset for one in self.builder.open.values())]
        remote = [commits.least_first_offset for commits in self._tiers.remote_commits(start)]
        place = 0 if remote else self._tiers.place_of(start)
        needed += remote
        needed += [self._tiers.least_first_offset(index, start) for index in self.indexes[place:]]
        # A transaction that began before the log start is torn and not in the view, so offsets before the log start do
        # not count.
        return max(min(needed), self._tiers.log_start)

    def first_whole_position(self, log_start: int) -> int:
        """Return the first position in commit order from which on no transaction has records before the log offset
        `log_start`. The position is not before `log_start`.
        """
        for index in reversed(self.indexes):
            if index.least_first_offset < log_start:
                return max(index[index.place_of_last_before(log_start)].end, log_start)
        return log_start

    def first_offset_of(self, end_offset: int) -> int:
        """Return the least first offset, in the log, of the transactions that are not over at `end_offset`: those that
        are open, and those whose marker is at or after it. Return `end_offset` if no such transaction begins before it.
        """
        needed = [one.first_offset for one in self.builder.open.values()]
        needed += [index.least_first_offset for index in self.indexes if index.base_offset >= end_offset]
        return min([end_offset, *needed])

    def whole_from(self, position: int) -> int:
        """Return the first position, from `position` on, that is not in the middle of a transaction: `position` itself,
        or the position after the transaction that contains it.
        """
        entry = next(self.entries_from(position), None)
        if entry is None or entry.is_outside or entry.start >= position:
            return position
        return entry.end

    # -- changes -----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Extend the view, which has the committed records in commit order, over the batches of the log that have
        become durable. Index files that cannot be written now are written later: see `failure`.
        """
        self.builder.advance()

    def move_start(self, start_offset: int) -> None:
        """Move the start of the view: hide all records at positions before `start_offset` in commit order. The caller
        passes a position that is not in the middle of a transaction.
        """
        self._start = max(self._start, start_offset)

    def forget_deleted(self) -> None:
        """Drop the commit indexes (which list the transactions that commit in a segment) of segments that retention has
        deleted.
        """
        for index in self.builder.forget_deleted():
            self._torn.pop(index.base_offset, None)

    def close(self) -> None:
        """Close the files of all commit indexes (each lists the transactions that commit in a segment)."""
        self.builder.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches in commit order: at most `size_max` bytes, but one batch of any size if `at_least_one`.

        The first batch contains `start`, or is the next one after it. An earlier batch must not be returned, because a
        client would take its records for those at `start`.

        Raises:
            OffsetOutOfRangeError: `start` is before the first position that can be read, or after the last one.
            DamageError: the first batch is damaged.
            UnprovenError: the batch headers of the first batch's segment were not checked since the start of the
                broker.
        """
        if not self.start_offset <= start <= max(self._partition.high_watermark, self.end_offset):
            raise OffsetOutOfRangeError(
                f"position {start} in commit order is not in "
                f"{self._partition.topic}-{self._partition.index}, which has the positions "
                f"{self.start_offset} to {self.end_offset} (exclusive)"
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
            self._tiers.remote.view.finish_read(start, response.end)
        self._read_ends[response.end] = None
        if len(self._read_ends) > SEQUENTIAL_READERS_MAX:
            del self._read_ends[next(iter(self._read_ends))]
        return response.slice()

    def look_up_newest(self) -> Lookup:
        """Find the newest record: the first position of the latest commit.

        Returns:
            A lookup, which the caller runs in steps (see `log.search.times.Lookup`). Its result is (position, time,
            leader epoch); None if there is no commit.
        """
        start = self.start_offset
        remote = self._tiers.remote_commits(start)
        local = self.indexes[self._tiers.place_of(start) :]
        latest_ms = max([*(one.latest_ms for one in local), *(one.latest_ms for one in remote)])
        return None if latest_ms < 0 else (yield from self.look_up_time(latest_ms))

    # -- commit sequences --------------------------------------------------------------------------------------

    def removed_sequence(self) -> int | None:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group) of
        a transaction that may have lost records to retention. All transactions with greater commit sequences are
        complete.

        A DeleteRecords request counts as retention, and so does the loss of a disk before a restore.

        Returns:
            -1 if no transaction has lost records. None if this is unknown, because no transaction is left in the
            partition.
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

    def _sequence_before(self, position: int) -> int:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group)
        before a position in commit order; -1 if there is none, or if it is unknown.
        """
        key = "sequence_before", position, self.start_offset
        if key in self._remote_answers:
            return self._remote_answers[key]
        index = next(self._tiers.indexes_from(position))
        found = index.sequence_before(position, self._tiers.sequence_before(index))
        return self._cache_answer(key, index, found)
