"""The commit indexes of a partition over both tiers: those of local segments on the disk, and those in the object
store.

Local retention deletes the first local segments that the object store has. Their positions are then read with the
commit indexes in the store. A transaction with its marker in a local segment may have batches in a deleted one; these
batches are read from the store, too.

A local index may lack the beginning of such a transaction: if its files were lost in a crash, the broker has rebuilt it
from the local segments only. In this index, the transaction counts as torn: incomplete, and hidden from readers. The
copy of the index in the store is complete, and is read instead.
"""

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from operator import attrgetter
from typing import Final

from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.index_rows import IndexRows
from stablelog.commit_order.remote_index import load_index
from stablelog.errors import DamageError, UnavailableError
from stablelog.log.files.restored import Restored
from stablelog.log.remote_tier import RemoteCommits, RemoteTier
from stablelog.log.search.source import OFFSET_MAX
from stablelog.log.segments.segment import Segment
from stablelog.log.view import ViewedLog

TORN: Final = -1  # stands for the first offset of a transaction whose beginning is not in the local log


@dataclass(frozen=True, slots=True)
class StoredLog:
    """A log that is only in an object store.

    Attributes:
        remote: the segments in the store.
        restored: the offsets and commits that restores of the partition have lost; None if it was never restored.
        start_offset: the first offset of the local log. It is after all offsets, because there is no local log.
    """

    remote: RemoteTier
    restored: Restored | None
    start_offset: int = OFFSET_MAX

    def segments(self) -> list[Segment]:
        """Return the local segments: an empty list."""
        return []


@dataclass(frozen=True, slots=True)
class TieredIndexes:
    """The commit indexes of one partition, local and remote.

    Every call that needs the indexes in the object store raises UnavailableError while the list of remote segments is
    not loaded, and NotLoadedError if bytes of the store are not in the broker's cache.

    Attributes:
        partition: the partition. It is a weak reference if the partition itself refers to this object, so that both can
            be freed.
        local: the indexes of the local segments, oldest first. The last one grows.
    """

    partition: ViewedLog | StoredLog
    local: list[CommitIndex]

    @property
    def log_start(self) -> int:
        """The log start offset of the partition: the first offset that can be read, from the local disk or from the
        object store.
        """
        remote, local_start = self.partition.remote, self.partition.start_offset
        return local_start if remote is None else min(remote.start_offset, local_start)

    @property
    def remote(self) -> RemoteTier:
        """The remote tier, the partition's segments in the object store. The caller makes sure that the partition has
        one.
        """
        assert self.partition.remote is not None
        return self.partition.remote

    def is_local(self, base_offset: int) -> bool:
        """Whether the segment with this base offset is on the local disk."""
        return bool(self.local) and base_offset >= self.local[0].base_offset

    def place_of(self, position: int) -> int:
        """Return the index, in the list `local`, of the first commit index that ends after a position in commit order.
        If there is none, return the index of the last one.
        """
        return bisect_right(self.local, position, hi=len(self.local) - 1, key=attrgetter("view_end"))

    def remote_commits(self, position: int) -> Iterator[RemoteCommits]:
        """Yield the descriptions of remote commit indexes, as the list of remote segments has them: of each segment
        that is only in the store, from the one with `position` (in commit order) on. These segments are before the
        local log start offset.
        """
        local_start = self.partition.start_offset
        if self.partition.remote is None or position >= local_start:
            return iter(())
        return takewhile(lambda one: one.base_offset < local_start, self.remote.view.commits(position))

    def indexes_from(self, position: int, time_ms: int = -1) -> Iterator[IndexRows]:
        """Yield the commit indexes (each lists the transactions that commit in a segment) of both tiers, in commit
        order, from the one with the position `position` on. Indexes without a commit or a record at `time_ms` or later
        are left out.
        """
        for commits in self.remote_commits(position):
            position = commits.end_offset
            if commits.latest_ms >= time_ms:
                yield load_index(self.remote.view, commits)
        for place in range(self.place_of(position), len(self.local)):
            if self.local[place].latest_ms >= time_ms:
                yield self.whole_index(self.local[place])

    def whole_index(self, index: CommitIndex) -> IndexRows:
        """Return a commit index that has all transactions of a local one: the local index itself or, if it lacks the
        beginning of a transaction, its copy in the store.
        """
        commits = self._copy_of(index)
        return index if commits is None else load_index(self.remote.view, commits)

    def least_first_offset(self, index: CommitIndex, start: int) -> int:
        """Return the least log offset at which a transaction of a local commit index begins. Transactions whose
        positions in commit order are before `start` are ignored.

        If the local index lacks the beginning of a transaction, its complete copy in the store is used. In the copy, no
        transaction is ignored, also not those before `start`. The copy need not be loaded: the manifest, the list of
        the segments in the store, has the least offset of all of them.
        """
        commits = self._copy_of(index)
        if commits is not None:
            return commits.least_first_offset
        if index.base_offset >= start:
            return index.least_first_offset
        return index.least_first_offset_from(index.place_of(start))

    def _copy_of(self, index: CommitIndex) -> RemoteCommits | None:
        """Return the description of the copy that the object store has of a local commit index (the list of the commits
        in a segment), if the local index lacks the beginning of a transaction; None if it lacks nothing, or if there is
        no copy.
        """
        if index.least_first_offset == TORN and self.partition.remote is not None:
            commits = next(self.remote.view.commits(index.base_offset), None)
            if commits is not None and commits.base_offset == index.base_offset:
                return commits
        return None

    def index_after_sequence(self, commit_sequence: int) -> IndexRows | None:
        """Return the first commit index (the list of the commits in a segment) with a commit after `commit_sequence`,
        the number of a commit, counted over all topics of its transaction group; None if there is none.
        """
        if self.log_start < self.partition.start_offset:
            commits = self.remote.view.commits_after(commit_sequence)
            if commits is not None and commits.base_offset < self.partition.start_offset:
                return load_index(self.remote.view, commits)
        at = bisect_right(self.local, commit_sequence, key=attrgetter("latest_sequence"))
        return self.whole_index(self.local[at]) if at < len(self.local) else None

    def sequence_before(self, index: IndexRows) -> int | None:
        """Return the greatest commit sequence (number of a commit, counted over all topics of its transaction group) in
        the commit indexes before this one; None if this is the first index.

        A local index that was rebuilt from the log does not know the commits in segments that only the store has. They
        are read from the manifest, the list of the segments in the store.
        """
        base = index.base_offset
        found = [one.latest_sequence for one in self.local if one.base_offset < base][-1:]
        if self.partition.remote is not None and base > self.log_start:
            before = next(self.remote.view.commits(base - 1), None)
            if before is not None and before.base_offset < base:
                found.append(before.latest_sequence)
        return max(found, default=None)

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence (number of a commit, counted over all topics of its transaction group) of the
        log; -1 if there is none. While the list of remote segments is not loaded, the result is the greatest one in the
        local segments.
        """
        latest = self.local[-1].latest_sequence
        if self.partition.remote is not None:
            with contextlib.suppress(DamageError, UnavailableError):
                latest = max(latest, self.remote.view.latest_sequence)
        return latest

    @property
    def is_log_whole(self) -> bool:
        """Whether the commit indexes (each lists the transactions that commit in a segment) have every commit of the
        partition: no segment was deleted from both the disk and the store.
        """
        if self.local[0].base_offset == 0:
            return True
        first = next(self.remote_commits(self.log_start), None)
        return first is not None and first.base_offset == 0
