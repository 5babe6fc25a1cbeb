"""The passes that rewrite sealed segments: they read batches, and write new segments from the parts that stay.

Compaction and the removal of aborted data (the data of aborted transactions) share this module. Each of them has its
own rules for what stays. A new segment covers the same offsets as the segments that it replaces. Its indexes and its
summary describe the new log file.

Source: Kafka's log cleaner; `segments.replacement` describes the files that a crash may leave.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stablelog.batch.filtering import filler
from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError, StablelogError
from stablelog.log.compaction.policy import Kept
from stablelog.log.files.names import LOG, SEGMENT_SUFFIXES, SUMMARY, SegmentName
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.search.aborts import find_aborted
from stablelog.log.search.source import ReaderRows
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.proof import bad_crc
from stablelog.log.segments.replacement import CLEANED
from stablelog.log.segments.sealed_segment import SealedSegment

STEP_SIZE = 64 << 10  # about how many bytes of the log one step reads
STEP_COUNT = 500  # how many batch headers one step reads, if it reads no bodies
WRITE_SIZE = 1 << 20
OPEN_SEGMENTS_MAX = 16
ReadBatches = Iterator[tuple[BatchHeader, memoryview] | tuple[None, bytes]]  # see `read_batches`


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A new segment that a pass of compaction, or of the removal of aborted data, has finished. Its files are durable.
    They have the suffix `.cleaned` until they are put in place of the original ones.

    Attributes:
        summary: the summary of the new segment: its offsets, timestamps, counts, file sizes and checksums.
        replaced: the base offsets of the segments that it replaces.
        changed: whether any batch was changed or removed.
    """

    summary: Summary
    replaced: tuple[int, ...]
    changed: bool


class CancelledError(Exception):
    """A pass of compaction, or of the removal of aborted data, was cancelled by `Pass.cancel`."""


class Rewriter(ABC):
    """Builds a new segment from what compaction or the removal of aborted data leaves of the batches of older segments.
    A derived class decides where the bytes are stored.

    Args:
        segment: the new segment, without batches.
        index_interval: the number of bytes between two entries of the offset index.

    Attributes:
        segment: the new segment.
        changed: whether any batch was changed or removed.
    """

    def __init__(self, segment: GrowingSegment, index_interval: int) -> None:
        self.segment = segment
        self.changed = False
        self._index_interval = index_interval
        self._leader_epoch = -1
        self._next_offset = segment.base_offset
        self._position = 0  # where the next original batch begins in the original log file

    def write_batch(self, header: BatchHeader, batch: Buffer, kept: Kept) -> None:
        """Add the part of a batch that stays. The caller passes the batches in the order of the log.

        Args:
            header: the header of the original batch.
            batch: the bytes by which it was decided what stays: all of the batch, or only its header.
            kept: the part of the batch that stays.
        """
        self._leader_epoch = header.leader_epoch
        position, self._position = self._position, self._position + header.size
        is_changed = kept.batch is not batch
        self.changed = self.changed or is_changed
        if kept.batch is None:
            return
        self._next_offset = header.next_offset
        if kept.entry is not None:
            self.segment.index_aborted(kept.entry)
        self.segment.committed_count += kept.committed_count
        self._put_batch(kept.batch, None if is_changed else position)

    def write_batches(
        self, batches: ReadBatches, keep_batch: Callable[[BatchHeader, Buffer], Kept]
    ) -> Iterator[None]:
        """Add what stays of the batches of a segment.

        Args:
            batches: yields (header, bytes) of each batch, and (None, b"") at the end of each step, as `read_batches`
                does.
            keep_batch: decides what stays of a batch.

        Yields:
            None after each step.
        """
        for header, batch in batches:
            if header is None:
                yield None
            else:
                self.write_batch(header, batch, keep_batch(header, batch))

    def finish(self, end_offset: int) -> None:
        """Complete the segment. If its last offsets have no batch, add a batch without records there, so that the
        segment ends where the next one begins.
        """
        if self._next_offset < end_offset:
            self._put_batch(filler(self._next_offset, end_offset, self._leader_epoch), None)
        self._flush()
        assert self.segment.end_offset == end_offset

    @abstractmethod
    def _put_batch(self, batch: Buffer, origin: int | None) -> None:
        """Store the next batch of the new segment.

        Args:
            batch: the bytes of the batch. If it is an original one, they may be those of its header only.
            origin: the position of an original batch in the original log file; None for a new or changed batch.
        """

    def _flush(self) -> None:  # noqa: B027 - a derived class that delays no write has nothing to do here
        """Write the batches that `_put_batch` has collected in memory. This base class does nothing: only a derived
        class that collects batches overrides it.
        """

    def _index_batch(self, batch: Buffer) -> None:
        """Add the next batch of the new segment to the indexes and counts. Only its header is read."""
        self.segment.index_batch(
            read_header(batch), self.segment.size, batch[: HEADER.size], self._index_interval
        )


class _FileRewriter(Rewriter):
    """A rewriter (it builds a segment from the batches that stay) that writes the batches into the log file of the new
    segment, in pieces of about 1 MiB (WRITE_SIZE).
    """

    def __init__(self, segment: GrowingSegment, index_interval: int) -> None:
        super().__init__(segment, index_interval)
        self._waiting: list[Buffer] = []
        self._waiting_size = 0

    def _put_batch(self, batch: Buffer, origin: int | None) -> None:
        self._waiting.append(batch)
        self._waiting_size += len(batch)
        if self._waiting_size >= WRITE_SIZE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        self.segment.append(self._waiting)
        for batch in self._waiting:
            self._index_batch(batch)
        self._waiting.clear()
        self._waiting_size = 0


def _aborted_in(segments: ReaderRows[SealedSegment], start: int, end: int) -> list[AbortedTxn]:
    """Return the aborted transactions with offsets in [start, end) whose markers are in the segments."""
    return find_aborted(segments, start, end)[0]


class Pass(ABC):
    """A pass of compaction, or of the removal of aborted data, over sealed segments of a partition. It writes new
    segments in their place.

    A pass reads only files that do not change any more, and opens them itself. So it may run in any thread while the
    partition is read and written. Between two steps, the caller passes each finished segment to
    `LogCompaction.put_in_place`.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries (offsets, file sizes and checksums) of the segments that the pass may rewrite, in the
            order of the log.
        spanning: the aborted transactions that began in these segments and whose markers are in later ones.
        index_interval: the number of bytes between two entries of an offset index.

    Attributes:
        read_size: the bytes of the segments that were rewritten so far.
        written_size: the bytes of the new segments.
        cancelled: whether `cancel` was called.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        summaries: Sequence[Summary],
        *,
        spanning: Sequence[AbortedTxn],
        index_interval: int,
    ) -> None:
        self.read_size = 0
        self.written_size = 0
        self.cancelled = False
        self._disk = disk
        self._directory = directory
        self._spanning = spanning
        self._index_interval = index_interval
        self._segments = ReaderRows(open_segments(disk, directory, summaries))
        # No method: the pass keeps a walk that has this function, and would be a cycle with a method of its own.
        self._find_aborted = partial(_aborted_in, self._segments)

    @property
    @abstractmethod
    def end_offset(self) -> int:
        """The end of the records that this pass cleans, exclusive. After the pass, it is the first dirty offset."""

    @property
    @abstractmethod
    def outcome(self) -> str:
        """The result of the pass as text for a log line; empty if the pass has changed nothing."""

    def cancel(self) -> None:
        """Cancel the pass: the generator `steps` ends before its next step. Another thread may call this."""
        self.cancelled = True

    def steps(self) -> Iterator[Cleaned | None]:
        """Run the pass, one step at a time.

        Yields:
            The new segment, if the step has finished one: the caller puts it in place before the next step. Otherwise
                None.

        Raises:
            DamageError: a batch or an index is damaged. Segments that were put in place before are not affected.
            UnavailableError: the disk failed. The files of the unfinished segment are removed, now or by the next
                recovery.
            FileNotFoundError: retention has deleted a segment meanwhile.
        """
        run = self._run()
        try:
            if self.cancelled:
                return
            for finished in run:
                yield finished
                if self.cancelled:
                    run.throw(CancelledError)  # the pass removes the files of its unfinished segment
        except CancelledError:
            return
        finally:
            for segment in self._segments:
                segment.close()

    @abstractmethod
    def _run(self) -> Generator[Cleaned | None]:
        """Rewrite the segments, one step at a time. `steps` calls this generator, yields what it yields, and ends it
        after a call of `cancel`.
        """

    def _rewrite_group(
        self,
        group: Sequence[Summary],
        write: Callable[[Rewriter], Iterator[None]],
        *,
        committed_count: int | None = None,
    ) -> Iterator[Cleaned | None]:
        """Write one new segment in place of a group of neighbours. Its files get the suffix `.cleaned`, so that
        recovery removes them after a crash.

        Args:
            group: the summaries (offsets, file sizes and checksums) of the original segments.
            write: writes all batches that stay, in steps.
            committed_count: the number of committed records in the new segment; None if this number follows from the
                batches that `write` adds.

        Yields:
            None after each step of `write`; last, the finished segment.
        """
        base_offset = group[0].base_offset
        discard_cleaned(self._disk, self._directory, base_offset)
        growing = GrowingSegment.create(self._disk, SegmentName.of(self._directory, base_offset, CLEANED))
        cleaned: GrowingSegment | SealedSegment = growing
        try:
            out = _FileRewriter(growing, self._index_interval)
            yield from write(out)
            out.finish(group[-1].end_offset)
            if committed_count is not None:
                growing.committed_count = committed_count
            cleaned = growing.seal(group[-1].stable_offset, OpenFiles())
            for file in cleaned.files_to_sync(indexes=True):
                file.sync()
            self._disk.write_atomic(cleaned.path(SUMMARY), cleaned.summary.encode())
            self._disk.sync_dir(self._directory)
            self.read_size += sum(summary.log_size for summary in group)
            self.written_size += cleaned.size
        except (StablelogError, FileNotFoundError, CancelledError):
            discard_cleaned(self._disk, self._directory, base_offset)
            raise
        else:
            yield Cleaned(
                cleaned.summary,
                replaced=tuple(summary.base_offset for summary in group),
                changed=len(group) > 1 or out.changed,
            )
        finally:
            cleaned.close()


def read_batches(segment: SealedSegment, *, with_bodies: bool) -> ReadBatches:
    """Read a segment from its beginning. First prove its batch headers: check that they have the CRC that the segment's
    summary records.

    Yields:
        Each batch as (header, bytes), after a check of its CRC; and (None, b"") after each step of the work, so that
            the caller can end its own step there. If not `with_bodies`, a data batch has only the bytes of its header,
            and its CRC is not checked.

    Raises:
        DamageError: the log file is damaged.
    """
    for _ in segment.prove():
        yield None, b""
    read_size = count = 0
    for position, header in segment.walk(0):
        if with_bodies or header.is_control:
            batch = memoryview(segment.log.read(position, header.size))
            if not crc_holds(batch, 0, header):  # the proof has checked the header only
                raise DamageError(bad_crc(segment.path(LOG), header, position))
            read_size += header.size
        else:
            batch = memoryview(HEADER.pack(*header))
        yield header, batch
        count += 1
        if read_size >= STEP_SIZE or count == STEP_COUNT:
            read_size = count = 0
            yield None, b""


def open_segments(disk: Disk, directory: Path, summaries: Sequence[Summary]) -> list[SealedSegment]:
    """Open sealed segments, which their summaries (offsets, file sizes and checksums) describe. The partition has other
    objects for them, so a thread may read these while the partition is in use.
    """
    open_files = OpenFiles(OPEN_SEGMENTS_MAX)
    return [
        SealedSegment(disk, SegmentName.of(directory, summary.base_offset), summary, open_files)
        for summary in summaries
    ]


def discard_cleaned(disk: Disk, directory: Path, base_offset: int) -> None:
    """Remove the `.cleaned` files of a new segment that will not be put in place."""
    for suffix in SEGMENT_SUFFIXES:
        disk.remove(directory / f"{base_offset:020d}{suffix}{CLEANED}")
