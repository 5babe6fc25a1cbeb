"""The remote segments of a commit-ordered topic: their commit indexes, and the bytes of their transactions.

The commit index of a segment lists the transactions that commit in it. It is in the segment's object of indexes, and
the manifest, the list of the segments in the store, describes it. Readers in commit order need the bytes of one
transaction after the other, which are scattered over the log files of one or more segments.
`RemoteCommitOrder.copy_ranges` therefore copies them from the loaded chunks, parts of the log files.
"""

import itertools
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from stablelog.env.disk import Buffer
from stablelog.errors import DamageError, NotLoadedError, UnavailableError
from stablelog.log.remote_tier import RemoteCommits
from stablelog.log.search.times import Batch, look_from
from stablelog.tier.index_object import IndexKind
from stablelog.tier.manifest import Manifest, ManifestSegments
from stablelog.tier.names import RemotePartition
from stablelog.tier.read_ends import ReadEnds
from stablelog.tier.remote_segment import RemoteSegment
from stablelog.tier.segment_bytes import LoadedSegment, SegmentBytes
from stablelog.types import ObjectRange

CHUNK_COUNT_MAX: Final = (
    16  # how many chunks one call of `content` needs in memory at most, if the first range is small
)


class RemoteSegments:
    """The list of the remote segments of a partition, and their loaded bytes.

    Args:
        partition: the partition.
        manifest: the list of remote segments; None if it is not known yet.
        content: the loaded bytes of the segments.
        url: the address of the store, for error messages.
        log_start: the log start offset that is recorded on the local disk.

    Attributes:
        partition: the partition.
        segments: the list of its remote segments, as an object for searches in it.
        bytes: finds the loaded bytes of these segments.
        place: the URL of the partition's directory in the store, for error messages.
    """

    def __init__(
        self,
        partition: RemotePartition,
        manifest: Manifest | None,
        content: SegmentBytes,
        url: str,
        log_start: int,
    ) -> None:
        self.partition = partition
        self.bytes = content
        self.place = f"{url}/{partition.directory}"
        self._manifest = manifest
        self._log_start = log_start
        self.segments = ManifestSegments(manifest.segments if manifest is not None else ())

    @property
    def manifest(self) -> Manifest:
        """The list of remote segments, as it was published.

        Raises:
            UnavailableError: the list is not known yet.
        """
        if self._manifest is None:
            raise UnavailableError(
                f"the remote segments of {self.partition.topic}-{self.partition.partition} are not known until the "
                "object store answers"
            )
        return self._manifest

    @property
    def start_offset(self) -> int:
        """The log start offset: the first offset that a reader of the partition may read."""
        return max(self.manifest.log_start, self._log_start)

    def segment_at(self, offset: int) -> RemoteSegment:
        """Return the segment that contains an offset. Raises DamageError if the list of remote segments has none, or
        one that is being deleted.
        """
        segment = self.segments.segment_at(offset)
        if segment is None:
            raise DamageError(
                f"a segment of {self.place} is lost: the log begins at offset {self.start_offset}, but no "
                f"manifest (list of remote segments) names a segment with offset {offset}"
            )
        return segment

    def loaded_segment(self, segment: RemoteSegment) -> LoadedSegment:
        """Return an object that reads the loaded bytes of a remote segment."""
        return LoadedSegment(self.bytes, segment)

    def chunks_from(self, offset: int, position: int, count: int) -> list[ObjectRange]:
        """Return those of the next `count` chunks (parts in which log files are loaded) that are not loaded. The first
        one contains the byte at `position` in the log file of the segment that contains `offset`.
        """
        found: list[ObjectRange] = []
        while len(found) < count:
            segment = self.segments.segment_at(offset)
            if segment is None:
                break
            chunks = self.bytes.chunks(segment, position, segment.size)
            found += itertools.islice(chunks, count - len(found))
            offset, position = segment.end_offset, 0
        return [chunk for chunk in found if not self.bytes.cache.has(chunk)]


class RemoteCommitOrder:
    """The remote segments of a commit-ordered partition, for readers in commit order. Implements
    `log.remote_tier.RemoteView`.

    Args:
        remote: the remote log of the partition.
    """

    def __init__(self, remote: RemoteSegments) -> None:
        # A weak reference: the remote log refers to this object, and the garbage collector must not be needed to free both.
        self._remote: RemoteSegments = weakref.proxy(remote)
        self._ends = ReadEnds()  # by position in commit order
        self._last: tuple[RemoteSegment, int] | None = None  # where the last range of `content` has ended

    def commits(self, offset: int) -> Iterator[RemoteCommits]:
        """Yield the description of the commit index of each segment, from the segment with this offset on. The
        descriptions are in the manifest, the list of the partition's segments in the store. Segments before the log
        start offset are left out. Raises DamageError.
        """
        return map(self._commits_of, self._remote.segments.live_from(max(offset, self._remote.start_offset)))

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence, a commit's number in the order of commits, of all segments in the store; -1 if
        there is none.
        """
        segments = self._remote.manifest.segments
        return self._commits_of(segments[-1]).latest_sequence if segments else -1

    def commits_after(self, commit_sequence: int) -> RemoteCommits | None:
        """Return the description of the first remote commit index (the list of the transactions that commit in a
        segment) that has a commit sequence (a commit's number in the order of commits) greater than this one; None if
        there is none.
        """
        segments, start = self._remote.manifest.segments, self._remote.start_offset
        first = bisect_right(segments, commit_sequence, key=lambda one: self._commits_of(one).latest_sequence)
        live = (one for one in itertools.islice(segments, first, None) if one.end_offset > start)
        return next(map(self._commits_of, live), None)

    def _commits_of(self, segment: RemoteSegment) -> RemoteCommits:
        if segment.commit is None:
            raise DamageError(
                f"the manifest of {self._remote.place} describes no commit index (list of transactions) "
                f"of the segment {segment.base_offset}, but a commit-ordered topic needs one"
            )
        commit = segment.commit
        return RemoteCommits(
            segment.base_offset,
            segment.end_offset,
            commit.least_first_offset,
            commit.latest_sequence,
            commit.latest_ms,
        )

    def commit_rows(self, base_offset: int) -> tuple[Buffer, Buffer]:
        """Return a pair: the bytes of the entries and the bytes of the extents in the commit index of a remote segment.
        An entry describes a transaction, and an extent describes a range of bytes with its records. Raises
        NotLoadedError, which names bytes that must be loaded first, and DamageError.
        """
        segment, content = self._segment(base_offset), self._remote.bytes
        kinds = (IndexKind.COMMIT_ENTRIES, IndexKind.COMMIT_EXTENTS)
        content.require_indexes([segment], *kinds)
        entries, extents = (content.index_bytes(segment, kind) for kind in kinds)
        return entries, extents

    def copy_ranges(
        self, base_offset: int, begins: Sequence[int], ends: Sequence[int], size_max: int
    ) -> tuple[int, Buffer]:
        """Copy ranges of bytes of a remote log file, in which the batches of transactions stand, into one buffer. Only
        loaded bytes can be copied: the copy ends before the first range that is not loaded. Raises NotLoadedError if
        this is the first range, and DamageError.

        Args:
            base_offset: the base offset of the segment.
            begins: the position in the log file at which each range begins.
            ends: the position at which each range ends.
            size_max: the greatest size of the copied bytes. The first range is copied in any case.

        Returns:
            A pair: the number of ranges that were copied, and their bytes, one range after another.
        """
        segment, content = self._segment(base_offset), self._remote.bytes
        if max(ends) > segment.size:
            raise DamageError(
                f"{content.log_place(segment)} has {segment.size} bytes, and a commit index names bytes up to {max(ends)}"
            )
        views: list[Buffer] = []
        missing: dict[ObjectRange, None] = {}
        chunks: set[ObjectRange] = set()
        size = count = 0
        for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            chunks.update(content.chunks(segment, begin, end))
            size += end - begin
            if number and (size > size_max or len(chunks) > CHUNK_COUNT_MAX):
                break
            try:
                pieces = content.loaded_views(segment, begin, end - begin)
            except NotLoadedError as error:
                missing |= dict.fromkeys(error.ranges)
                continue
            # After a range that is not loaded, others are visited only to load what they need together with it.
            if not missing:
                views += pieces
                count += 1
        if not count:
            raise NotLoadedError(list(missing), sum(chunk.size for chunk in chunks))
        self._last = segment, ends[count - 1]
        return count, b"".join(views)

    def drop_ranges(self, base_offset: int, begins: Sequence[int], ends: Sequence[int]) -> None:
        """Drop from the cache the chunks (parts in which a log file is loaded) that have these ranges of bytes, because
        their bytes are damaged. The next read loads them from the store again.
        """
        segment = self._segment(base_offset)
        for begin, end in zip(begins, ends, strict=True):
            self._remote.bytes.drop_chunks(segment, begin, end - begin)

    def batch_at_time(self, base_offset: int, timestamp_ms: int, start: int, end: int) -> Batch | int | None:
        """Find a batch by the time of its records, among those with offsets in [start, end) in the remote segment with
        this base offset. The arguments and the result, which may be None, are those of `RemoteView.batch_at_time`.
        Raises NotLoadedError, which names bytes that must be loaded first, and DamageError.
        """
        return look_from([self._remote.loaded_segment(self._segment(base_offset))], timestamp_ms, start, end)

    def finish_read(self, start: int, end: int) -> None:
        """Remember that a read in commit order of the positions [start, end) has ended, and where in the log file of a
        segment. A read that begins at `end` continues this one, so that its next bytes can be loaded ahead
        (`ranges_ahead`). The chunks, parts of the log file in the cache, that this read has read to their end are
        marked as consumed, and the cache drops them first.
        """
        if self._last is None:
            return
        segment, position = self._last
        before = self._ends.end_at(start, segment)
        begin = position if before is None else before.position
        self._remote.bytes.mark_consumed(segment, begin, position)
        self._ends.add_read(start, end, segment, begin, position)
        self._last = None

    def ranges_ahead(self, position: int) -> list[ObjectRange]:
        """Return the chunks (parts in which log files are loaded) to load ahead for a reader whose last read ended at
        `position`, in commit order. The result is empty if no such read is remembered.
        """
        last = self._ends.end_at(position)
        if last is None:
            return []
        return self._remote.chunks_from(last.base_offset, last.position, last.ahead_count)

    def _segment(self, base_offset: int) -> RemoteSegment:
        segment = self._remote.segment_at(base_offset)
        if segment.base_offset != base_offset:
            raise DamageError(
                f"no manifest (list of remote segments) of {self._remote.place} names a segment with the "
                f"base offset {base_offset}"
            )
        return segment
