"""Commit order of a partition whose first segments, or all of them, are only in an object store.

`TieredView` reads both tiers. `commit_order.view` extends it for a broker, whose log grows, and `StoredOrder` for a
reader that has no local log. Such a reader needs the commit indexes of the segments that it reads, and the log files
that these indexes name.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, takewhile
from operator import attrgetter

from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.extent_lookup import extents_from
from stablelog.commit_order.extents import ExtentColumns
from stablelog.commit_order.fetch_assembler import FetchAssembler
from stablelog.commit_order.index_format import CommittedRange, Entry
from stablelog.commit_order.index_rows import IndexRows
from stablelog.commit_order.remote_index import load_index
from stablelog.commit_order.tiered_indexes import StoredLog, TieredIndexes
from stablelog.errors import DamageError, NotLoadedError
from stablelog.log.files.restored import Restored
from stablelog.log.model import Slice
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.search.source import OFFSET_MAX
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

REMOTE_ANSWERS_MAX = 64


class TieredView:
    """The records of a partition in commit order, from the local disk and from the object store.

    Args:
        log: the log.
        indexes: the commit indexes of the local segments, oldest first: each lists the transactions that commit in a
            segment.
        start: the first position that readers get. If the log start offset is greater, readers begin there.

    Attributes:
        indexes: the commit indexes of the local segments, oldest first.
    """

    def __init__(self, log: ViewedLog | StoredLog, indexes: list[CommitIndex], start: int = 0) -> None:
        self.indexes = indexes
        self._partition = log
        self._tiers = TieredIndexes(log, indexes)
        self._start = start
        # Cache of `_torn_sequence`, by the base offset of the index: (log start offset at the last search, number of
        # entries searched, greatest commit sequence found).
        self._torn: dict[int, tuple[int, int, int]] = {}
        # Cache of `torn_sequence`: (log start offset at the last search, end of the remote segments that were searched,
        # greatest commit sequence found).
        self._torn_remote = 0, 0, -1
        # Answers that were found in remote commit indexes, oldest first. A cut of many partitions begins again after
        # each load, and the cache need not have room for the indexes of all of them.
        self._remote_answers: dict[tuple[str, int, int], int] = {}

    @property
    def start_offset(self) -> int:
        """The first position that can be read.

        Torn transactions are left out: their positions are after this one, but they began before the log start offset,
        so that their first batches are missing. Retention and DeleteRecords tear no transaction; a log that was
        restored from an object store may have torn ones.
        """
        return max(self._start, self._tiers.log_start)

    @property
    def end_offset(self) -> int:
        """The position in commit order after the last record that can be read."""
        return max(self._tiers.remote.end_offset, self.start_offset)

    # -- batches -----------------------------------------------------------------------------------------------

    def _assemble(self, response: FetchAssembler) -> bool:
        """Add batches in commit order to a response until it is full. Return True if the response has reached the last
        committed batch, so that none was left out for lack of space.
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
        """Add batches of transactions to a response. `extents` are the byte ranges of the batches in a log file. Return
        whether the response has room for more.
        """
        if self._tiers.is_local(extents.segment):
            return response.add_batches(self._segment(extents.segment), extents)
        view = self._tiers.remote.view
        count, content = view.copy_ranges(extents.segment, extents.begins, extents.ends, response.remote_room)
        try:
            has_room = response.add_remote_batches(memoryview(content), extents.part(0, count))
        except DamageError:
            # The object may have been restored, so the next read loads the bytes again.
            view.drop_ranges(extents.segment, extents.begins[:count], extents.ends[:count])
            raise
        return has_room and count == len(extents.begins)

    def _add_outside(self, response: FetchAssembler, index: IndexRows, entry: Entry) -> bool:
        """Add the batches of an entry of a commit index, a run of batches outside transactions, to a response. Return
        whether the response has room for more.
        """
        extent = index.extent(entry.extent_first)
        if self._tiers.is_local(extent.segment):
            return response.add_local_run(self._segment(extent.segment), extent, entry)
        start, size_max = max(response.start, entry.start), response.remote_room
        found = self._tiers.remote.read(start, entry.end, size_max, at_least_one=response.needs_one)
        return response.add_remote_run(found.buffers, min(found.end_offset, entry.end), entry)

    def _segment(self, base_offset: int) -> Segment:
        segments = self._partition.segments()
        segment = segments[bisect_left(segments, base_offset, key=attrgetter("base_offset"))]
        assert segment.base_offset == base_offset, "the log has no segment for this extent"
        return segment

    # -- times -------------------------------------------------------------------------------------------------

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position of a record that was committed at this time or later. A record outside transactions
        has no commit; its own timestamp is compared.

        Returns:
            A lookup, which the caller runs in steps (see `log.search.times.Lookup`). Its result is (position, time,
            leader epoch); None if there is no such commit or record.
        """
        return look_up_in_steps(
            lambda start: self._look_up_step(timestamp_ms, start), timestamp_ms, lambda: self.start_offset
        )

    def _look_up_step(self, timestamp_ms: int, start: int) -> TimestampedOffset | Batch | int | None:
        """Do one step of a lookup by time.

        Returns:
            The record, if the step has found it; a batch outside transactions that may contain it; the position where
            the next step continues; or None if there is no such record.
        """
        count = 0
        for index in self._tiers.indexes_from(start, timestamp_ms):
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
                    found = self._tiers.remote.view.batch_at_time(
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

    # -- entries -----------------------------------------------------------------------------------------------

    def entries_from(self, position: int) -> Iterator[Entry]:
        """Yield, in commit order, the entries of all commit indexes (transactions, and runs of batches outside
        transactions) that end after a position in commit order.
        """
        for index in self._tiers.indexes_from(position):
            for place in range(index.place_of(position), len(index)):
                yield index[place]

    def entries(self, start: int, end: int) -> Iterator[Entry]:
        """Yield the entries of commit indexes (transactions, and runs of batches outside transactions) with positions
        in [start, end), without transactions whose beginning was deleted.
        """
        found = takewhile(lambda entry: entry.start < end, self.entries_from(start))
        return (entry for entry in found if not entry.is_torn(self._tiers.log_start))

    def transactions(
        self, start: int, count_max: int, *, with_outside: bool = False, end: int = OFFSET_MAX
    ) -> list[CommittedRange]:
        """Return the first transactions that end after a position in commit order.

        Args:
            start: the position.
            count_max: how many transactions to return at most.
            with_outside: whether to also return ranges of records outside transactions.
            end: transactions that begin at this position or later are not returned.
        """
        entries = self.entries(max(start, self.start_offset), end)
        found = (entry.committed for entry in entries if with_outside or not entry.is_outside)
        return list(islice(found, count_max))

    # -- commit sequences --------------------------------------------------------------------------------------

    def offset_after(self, commit_sequence: int) -> int:
        """Return the position in commit order at which the first transaction after `commit_sequence` starts: the first
        one with a greater commit sequence (the number of a commit, counted over all topics of its transaction group).
        Return the position after all committed records if there is none. A reader that stops at the returned position
        gets the records outside transactions before it, too.
        """
        key = "offset_after", commit_sequence, self.start_offset
        if key in self._remote_answers:
            return self._remote_answers[key]
        index = self._tiers.index_after_sequence(commit_sequence)
        if index is None:
            return self.end_offset
        # `latest_sequence` also counts earlier segments. If the index has no entry with a greater sequence, the
        # transaction with that sequence was in a segment that is deleted by now.
        return self._cache_answer(
            key, index, max(index.offset_after(commit_sequence) or 0, self.start_offset)
        )

    def _cache_answer(self, key: tuple[str, int, int], index: IndexRows, answer: int) -> int:
        """Return `answer`, the position that a search has found in a commit index. If the index is a remote one, which
        takes long to search, keep the answer for later searches by `key`: the kind of the search, its argument and the
        start of the view (the committed batches in the order of their commits).
        """
        if index.loaded_size:
            self._remote_answers[key] = answer
        if len(self._remote_answers) > REMOTE_ANSWERS_MAX:
            del self._remote_answers[next(iter(self._remote_answers))]
        return answer

    def torn_sequence(self) -> int:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group) of
        a torn transaction, one that has lost its beginning to retention or a part to the loss of a disk; -1 if there is
        none. Readers in commit order get no part of a torn transaction.
        """
        restored = self._partition.restored
        lost = -1 if restored is None else restored.torn_sequence
        log_start = self._tiers.log_start
        searched_start, end, found = self._torn_remote
        if searched_start != log_start:
            end, found = log_start, -1
        for commits in self._tiers.remote_commits(end):
            if commits.least_first_offset < log_start:
                found = max(found, self._torn_sequence(load_index(self._tiers.remote.view, commits)))
            end = commits.end_offset
        self._torn_remote = log_start, end, found
        return max(
            [lost, found, *(self._torn_sequence(self._tiers.whole_index(index)) for index in self.indexes)]
        )

    def _torn_sequence(self, index: IndexRows) -> int:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group) of
        the torn transactions in one commit index, which have lost their beginning to retention; -1 if there are none.

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


class StoredOrder(TieredView):
    """The remote segments of a commit-ordered partition, read in commit order.

    Args:
        remote: the remote tier of the partition, which has its segments in the object store. Every call of its methods
            raises NotLoadedError if bytes are not in its cache, and DamageError if bytes in the store do not match the
            manifest, the list of the partition's segments there.
        view_start: the first position that readers get. If the log start offset is greater, readers begin there.
        restored: the offsets and commits that restores of the partition have lost; None if it was never restored.
    """

    def __init__(self, remote: RemoteTier, view_start: int = 0, restored: Restored | None = None) -> None:
        super().__init__(StoredLog(remote, restored), [], view_start)

    def read(self, start: int, size_max: int) -> Slice:
        """Read whole batches in commit order: at most `size_max` bytes, but at least one batch. The result is empty if
        `start` is after the last record in the store.
        """
        response = FetchAssembler(start, size_max, at_least_one=True, reads_on=True)
        try:
            self._assemble(response)
        except DamageError:
            if response.end == start:
                raise
            # The response ends before the damaged batch. The next read raises the error.
        self._tiers.remote.view.finish_read(start, response.end)
        return response.slice()

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence (the number of a commit, counted over all topics of its transaction group) in
        the store; -1 if there is none.
        """
        return self._tiers.remote.view.latest_sequence

    def removed_sequence(self) -> int | None:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group) of
        a transaction that may have lost records to retention; -1 if there is none, and None if it is unknown. All
        transactions with greater commit sequences are complete, except the torn ones, which `torn_sequence` reports.
        """
        start = self.start_offset
        if start == 0:
            return -1
        index = next(self._tiers.indexes_from(start), None)
        if index is None:
            return None
        # The view may begin at the begin of a segment, and the log start be in the segment before.
        earlier = self._tiers.sequence_before(index)
        known = index.sequence_before(start, earlier)
        if known == -1 and earlier is None and index.base_offset > 0:
            # The segments before the start were deleted together with their commit indexes.
            first = next(iter(self.transactions(start, 1)), None)
            return None if first is None else first.commit_sequence - 1
        return known
