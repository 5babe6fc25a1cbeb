"""Commit order of a partition in an object store, without its local log.

The reader needs the commit indexes of the segments that it reads, and the log files that these indexes name.
"""

import itertools
from collections.abc import Iterator

from stablelog.batch.records import find_by_time
from stablelog.commit_order.extent_lookup import extents_from
from stablelog.commit_order.extents import ExtentColumns
from stablelog.commit_order.fetch_assembler import FetchAssembler
from stablelog.commit_order.index_format import CommittedRange, Entry
from stablelog.commit_order.remote_index import RemoteIndex
from stablelog.errors import DamageError
from stablelog.log.model import Slice
from stablelog.log.remote_tier import RemoteTier


def add_stored(response: FetchAssembler, remote: RemoteTier, extents: ExtentColumns) -> bool:
    """Add batches of transactions from the object store to a fetch response. Return whether it has room for more.

    Raises:
        NotLoadedError: the first batch is not loaded.
        DamageError: a batch is damaged. The batches before it are in the response.
    """
    count, content = remote.view.copy_ranges(
        extents.segment, extents.begins, extents.ends, response.remote_room
    )
    try:
        has_room = response.add_remote_batches(memoryview(content), extents.part(0, count))
    except DamageError:
        # The object may have been restored, so the next read loads the bytes again.
        remote.view.drop_ranges(extents.segment, extents.begins[:count], extents.ends[:count])
        raise
    return has_room and count == len(extents.begins)


def add_stored_run(response: FetchAssembler, remote: RemoteTier, entry: Entry) -> bool:
    """Add a run of batches outside transactions from the object store to a fetch response. Return whether it has room
    for more.

    Raises:
        NotLoadedError: the first batch is not loaded.
        DamageError: the bytes in the store do not match the segment.
    """
    found = remote.read(
        max(response.start, entry.start), entry.end, response.remote_room, at_least_one=response.needs_one
    )
    return response.add_remote_run(found.buffers, min(found.end_offset, entry.end), entry)


class StoredOrder:
    """The remote segments of a commit-ordered partition, read in commit order.

    Args:
        remote: the remote tier of the partition. Every call raises NotLoadedError if bytes are not in its cache, and
            DamageError if bytes in the store do not match the manifest.
        view_start: the first position of the view, if it is greater than the log start offset.
    """

    def __init__(self, remote: RemoteTier, view_start: int = 0) -> None:
        self._remote = remote
        self._view_start = view_start

    @property
    def _start_offset(self) -> int:
        """The first position in commit order that can be read.

        This is not always the log start offset, which may be less. The log start offset decides which transactions are
        torn: those that began before it.
        """
        return max(self._remote.start_offset, self._view_start)

    def read(self, start: int, size_max: int) -> Slice:
        """Read whole batches in commit order: at most `size_max` bytes, but at least one batch. The result is empty at
        the end of the store.
        """
        response = FetchAssembler(start, size_max, at_least_one=True, reads_on=True)
        try:
            self._assemble(response)
        except DamageError:
            if response.end == start:
                raise
            # The response ends before the damaged batch. The next read raises the error.
        self._remote.view.finish_read(start, response.end)
        return response.slice()

    def _assemble(self, response: FetchAssembler) -> None:
        for index in self._indexes(response.start):
            for part in extents_from(index, response.start, self._remote.start_offset, response.room):
                if isinstance(part, ExtentColumns):
                    has_room = add_stored(response, self._remote, part)
                else:
                    has_room = add_stored_run(response, self._remote, part)
                if not has_room:
                    return

    def entries(self, start: int, end: int) -> Iterator[Entry]:
        """Yield the entries of commit indexes with positions in [start, end), without transactions whose beginning was
        deleted.
        """
        for index in self._indexes(start):
            for place in range(index.place_of(start), len(index)):
                entry = index[place]
                if entry.start >= end:
                    return
                if not entry.is_torn(self._remote.start_offset):
                    yield entry

    def transactions(
        self, start: int, end: int, count_max: int, *, with_outside: bool
    ) -> list[CommittedRange]:
        """Return the first transactions with positions in [start, end), in commit order.

        Args:
            start: the first position.
            end: the end of the positions, exclusive.
            count_max: how many to return at most.
            with_outside: whether to also return runs of records outside transactions.
        """
        found = (one.committed for one in self.entries(start, end) if with_outside or not one.is_outside)
        return list(itertools.islice(found, count_max))

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence in the store; -1 if there is none."""
        return self._remote.view.latest_sequence

    def offset_after(self, commit_sequence: int) -> int | None:
        """Return the start of the first transaction with a greater commit sequence; None if the store has none."""
        commits = self._remote.view.commits_after(commit_sequence)
        if commits is None:
            return None
        found = RemoteIndex(self._remote.view, commits).offset_after(commit_sequence)
        # As in `CommitOrder.offset_after`, that transaction may be in a segment that is deleted by now.
        return max(found or 0, self._start_offset)

    def removed_sequence(self) -> int | None:
        """Return the greatest commit sequence of a transaction that may have lost records to retention; -1 if there is
        none, and None if it is unknown. All transactions with greater commit sequences are complete, except those that
        `torn_sequence` counts.
        """
        start = self._start_offset
        if start == 0:
            return -1
        index = next(self._indexes(start), None)
        if index is None:
            return None
        before = next(self._remote.view.commits(index.base_offset - 1), None)
        # The view may begin at the begin of a segment, and the log start be in the segment before.
        earlier = before.latest_sequence if before and before.base_offset < index.base_offset else None
        known = index.sequence_before(start, earlier)
        if known == -1 and earlier is None and index.base_offset > 0:
            # The segments before the start were deleted together with their commit indexes.
            first = next((one for one in self.entries(start, 2**63) if not one.is_outside), None)
            return None if first is None else first.latest_sequence - 1
        return known

    def torn_sequence(self) -> int:
        """Return the greatest commit sequence of a torn transaction, whose beginning retention has removed; -1 if there
        is none.
        """
        view, start = self._remote.view, self._remote.start_offset
        with_torn = (one for one in view.commits(start) if one.least_first_offset < start)
        return max((RemoteIndex(view, one).torn_sequence(start) for one in with_torn), default=-1)

    def at_time(self, timestamp_ms: int, start: int) -> int | None:
        """Return the first position from `start` on with a commit at this time or later; None if there is none. A
        record outside transactions counts with its own timestamp.
        """
        for commits in self._remote.view.commits(start):
            if commits.latest_ms < timestamp_ms:
                continue
            index = RemoteIndex(self._remote.view, commits)
            for place in range(max(index.place_at_time(timestamp_ms), index.place_of(start)), len(index)):
                entry = index[place]
                if entry.is_torn(self._remote.start_offset):
                    continue
                if not entry.is_outside:
                    return max(entry.start, start)
                found = self._outside_at(index.base_offset, timestamp_ms, max(entry.start, start), entry.end)
                if found is not None:
                    return found
        return None

    def _outside_at(self, base_offset: int, timestamp_ms: int, start: int, end: int) -> int | None:
        """Return the offset of the first record with this time or a later one in a run of batches outside transactions;
        None if there is none.
        """
        at: int | None = start
        while at is not None:
            found = self._remote.view.batch_at_time(base_offset, timestamp_ms, at, end)
            if isinstance(found, tuple):
                header, batch = found
                record = find_by_time(batch, timestamp_ms, start)
                if record is not None:
                    return record[0]
                at = header.last_offset + 1
            else:
                at = found
        return None

    def _indexes(self, position: int) -> Iterator[RemoteIndex]:
        for commits in self._remote.view.commits(position):
            yield RemoteIndex(self._remote.view, commits)
