"""Runs compaction: reads sealed segments, and writes the records that compaction keeps into new segments.

A pass reads only files that do not change any more, and opens its own files and indexes. It may therefore run in any
thread while the partition is read and written. Between two steps, `Partition.take_cleaned` replaces the original
segments by the finished one.

Source: Kafka's log cleaner; `policy` decides which records stay, and `interrupted` describes the files that a crash may
leave.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.filtering import filler
from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import Corrupt, StablelogError, Unavailable
from stablelog.log.compaction.policy import (
    Kept,
    LatestOffsets,
    Rules,
    TransactionWalk,
    count_cleanable,
    grouped,
    is_worth_it,
    records_in,
)
from stablelog.log.files.names import LOG, SEGMENT_SUFFIXES, SUMMARY
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer import LastBatch
from stablelog.log.segments.interrupted import CLEANED, begin_swap, finish_swap
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import Segment
from stablelog.log.segments.segments import Segments

STEP_SIZE = 64 << 10  # about how many bytes of the log one step reads
WRITE_SIZE = 1 << 20
OPEN_SEGMENTS_MAX = 16


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A segment that compaction has finished. Its files have the suffix `.cleaned` and are durable.

    Attributes:
        summary: the summary of the new segment.
        replaced: the base offsets of the segments that the new one will replace.
        changed: whether compaction has changed or removed any batch.
    """

    summary: Summary
    replaced: tuple[int, ...]
    changed: bool


class _CancelledError(Exception):
    """The compaction pass was cancelled."""


class Compaction:
    """One compaction pass over a partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries of the segments that the pass may rewrite, from the first segment of the log on.
        spanning: the aborted transactions that began in these segments and whose abort markers are in later ones.
        last_batch: returns the last batch of a producer, by producer id; None if the partition does not know the
            producer.
        first_dirty_offset: the first offset that has not been compacted yet.
        config: the partition's settings.
        now_ms: the time of the broker's clock.
        key_count_max: how many keys the pass may keep in memory. If there are more, the next pass handles the later
            records.

    Attributes:
        key_count: the number of different keys in the records that were added since the last pass.
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
        last_batch: Callable[[int], LastBatch | None],
        first_dirty_offset: int,
        config: LogConfig,
        now_ms: int,
        key_count_max: int,
    ) -> None:
        self.key_count = 0
        self.read_size = 0
        self.written_size = 0
        self._disk = disk
        self._directory = directory
        self._spanning = spanning
        self._last_batch = last_batch
        self._config = config
        self._now_ms = now_ms
        self._latest = LatestOffsets(max(first_dirty_offset, summaries[0].base_offset), key_count_max)
        self.cancelled = False
        open_files = OpenFiles(OPEN_SEGMENTS_MAX)
        segments = [Segment(disk, directory, summary.base_offset, open_files) for summary in summaries]
        for segment, summary in zip(segments, summaries, strict=True):
            segment.open_sealed(summary)
        self._segments = Segments(segments)
        # by producer id: how many records of its open transaction compaction keeps
        self._uncounted: dict[int, int] = {}

    @property
    def end_offset(self) -> int:
        """The first dirty offset after this pass, which has compacted all records before it."""
        return self._latest.end_offset

    def cancel(self) -> None:
        """Let `steps` end before its next step. Another thread may call this."""
        self.cancelled = True

    def steps(self) -> Iterator[Cleaned | None]:
        """Run the pass, a step at a time.

        Yields:
            After a step that has finished a segment, this segment. Before the next step, the caller puts it in place of
            the original segments. After any other step, None.

        Raises:
            Corrupt: a batch or an index is damaged. Segments that were put in place before are not affected.
            Unavailable: the disk failed. The files of the unfinished segment are removed now, or by the next recovery.
            FileNotFoundError: retention has deleted a segment meanwhile.
        """
        try:
            yield from self._note_latest()
            rules = Rules(
                self._latest,
                self._new_walk(),
                self._last_batch,
                now_ms=self._now_ms,
                delete_retention_ms=self._config.delete_retention_ms,
            )
            for group in grouped(self._to_clean(), self._config):
                if self.cancelled:
                    return
                cleaned = self._begin(group[0].base_offset)
                try:
                    yield from self._clean(group, cleaned, rules)
                except (StablelogError, FileNotFoundError, _CancelledError):
                    discard_cleaned(self._disk, self._directory, group[0].base_offset)
                    raise
                finally:
                    cleaned.close()
        except _CancelledError:
            return
        finally:
            for segment in self._segments:
                segment.close()

    def _to_clean(self) -> list[Summary]:
        summaries = [segment.summary for segment in self._segments]
        return [one for one in summaries if one is not None and one.base_offset < self._latest.end_offset]

    # -- the first reading -------------------------------------------------------------------------------------

    def _note_latest(self) -> Iterator[None]:
        walk = self._new_walk()
        latest = self._latest
        first = self._segments.place_of(latest.start_offset)
        for place in range(first, len(self._segments)):
            segment = self._segments[place]
            walk.expect(self._segments.aborted(place, segment.base_offset, segment.end_offset))
            for header, batch in self._batches(segment):
                if header is None:
                    yield None
                    continue
                if header.is_control:
                    walk.meet_marker(header, batch)
                elif not walk.meet_data(header) and header.last_offset >= latest.start_offset:
                    records = records_in(batch, header) or ()
                    if not latest.has_room(len(records)):
                        self.key_count = len(latest)
                        return
                    latest.note(records)
                latest.end_offset = max(latest.end_offset, header.next_offset)
            latest.end_offset = segment.end_offset
        self.key_count = len(latest)

    def _new_walk(self) -> TransactionWalk:
        walk = TransactionWalk()
        walk.expect(self._spanning)
        return walk

    def _batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, memoryview] | tuple[None, bytes]]:
        """Yield the header and the bytes of each batch in a segment, with its CRC checked. At the end of each step,
        yield (None, b"").
        """
        for _ in segment.prove():
            yield None, b""
            if self.cancelled:
                raise _CancelledError
        read_size = 0
        for position, header in segment.walk(0):
            batch = memoryview(segment.log.read(position, header.size))
            if not crc_holds(batch, 0, header):
                raise Corrupt(
                    f"{segment.path('.log')}: the CRC of the batch at offset {header.base_offset} does not match its bytes; "
                    "the partition is not compacted"
                )
            yield header, batch
            read_size += header.size
            if read_size >= STEP_SIZE:
                read_size = 0
                yield None, b""
                if self.cancelled:
                    raise _CancelledError

    # -- the second reading ------------------------------------------------------------------------------------

    def _begin(self, base_offset: int) -> Segment:
        """Create the new segment. Its files have the suffix `.cleaned`, so that recovery removes them after a crash."""
        discard_cleaned(self._disk, self._directory, base_offset)
        cleaned = Segment(self._disk, self._directory, base_offset, OpenFiles(), CLEANED)
        cleaned.create()
        return cleaned

    def _clean(self, group: list[Summary], cleaned: Segment, rules: Rules) -> Iterator[Cleaned | None]:
        out = _Writer(cleaned, self._config.index_interval_bytes)
        for summary in group:
            yield from self._clean_segment(summary, out, rules)
        out.finish(group[-1].end_offset)
        cleaned.seal(group[-1].stable_offset)
        for file in cleaned.files_to_sync(indexes=True):
            file.sync()
        assert cleaned.summary is not None
        self._disk.write_atomic(cleaned.path(SUMMARY), cleaned.summary.encode())
        self._disk.sync_dir(self._directory)
        self.read_size += sum(summary.log_size for summary in group)
        self.written_size += cleaned.size
        changed = len(group) > 1 or out.changed
        yield Cleaned(cleaned.summary, tuple(summary.base_offset for summary in group), changed)

    def _clean_segment(self, summary: Summary, out: "_Writer", rules: Rules) -> Iterator[None]:
        place = self._segments.place_of(summary.base_offset)
        segment = self._segments[place]
        rules.walk.expect(self._segments.aborted(place, segment.base_offset, segment.end_offset))
        for header, batch in self._batches(segment):
            if header is None:
                yield None
                continue
            kept = rules.keep(header, batch)
            out.write(header, batch, kept)
            self._count(header, kept, out.segment)

    def _count(self, header: BatchHeader, kept: Kept, cleaned: Segment) -> None:
        """Count the records of committed transactions that compaction keeps. The records of a transaction are counted
        in the segment that holds its commit marker.
        """
        if header.is_control:
            count = self._uncounted.pop(header.producer_id, 0)
            cleaned.committed_count += count if kept.commits else 0
        elif header.is_transactional and kept.record_count:
            self._uncounted[header.producer_id] = (
                self._uncounted.get(header.producer_id, 0) + kept.record_count
            )


class Cleaning:
    """The state of compaction in one partition: its first dirty offset, and the segments of the running pass.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        open_files: the cache that limits how many sealed segments have open files.

    Attributes:
        first_dirty_offset: the first offset that has not been compacted yet.
    """

    def __init__(self, disk: Disk, directory: Path, open_files: OpenFiles) -> None:
        self.first_dirty_offset: int  # set by the partition when its log is loaded
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        # By base offset: the segments that the running pass rewrites.
        self._under_way: dict[int, Segment] = {}

    def begin(
        self,
        segments: Segments,
        config: LogConfig,
        *,
        last_batch: Callable[[int], LastBatch | None],
        start_offset: int,
        stable_offset: int,
        now_ms: int,
        key_count_max: int,
    ) -> Compaction | None:
        """Make a compaction pass; return None if the topic is not compacted, or if too few records are new since the
        last pass.
        """
        if "compact" not in config.cleanup_policy or config.order != "offset":
            return None
        sealed = [segment for segment in segments if segment.durable]
        summaries = [segment.summary for segment in sealed if segment.summary is not None]
        del summaries[count_cleanable(summaries, stable_offset, config, now_ms) :]
        if not is_worth_it(summaries, self.first_dirty_offset, config):
            return None
        self._under_way = {segment.base_offset: segment for segment in sealed[: len(summaries)]}
        end_offset = summaries[-1].end_offset
        return Compaction(
            self._disk,
            self._directory,
            summaries,
            spanning=segments.aborted(segments.place_of(end_offset), end_offset, end_offset),
            last_batch=last_batch,
            first_dirty_offset=max(self.first_dirty_offset, start_offset),
            config=config,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def put_in_place(self, segments: Segments, cleaned: Cleaned) -> Segments | None:
        """Replace segments of the log by the one segment into which compaction has rewritten them.

        Returns:
            The new segments of the log; `segments` itself if the rewriting has changed no batch; None if a segment that
            was to be replaced has been deleted or replaced meanwhile.

        Raises:
            Unavailable: the disk failed. It is unknown whether the new segment is in place until the partition is
                opened again.
        """
        base_offset, count = cleaned.replaced[0], len(cleaned.replaced)
        place = segments.place_of(base_offset)
        there = [segments[at] for at in range(place, min(place + count, len(segments) - 1))]
        unchanged = there == [self._under_way[base_offset] for base_offset in cleaned.replaced]
        if not unchanged or not cleaned.changed:
            discard_cleaned(self._disk, self._directory, base_offset)
            return segments if unchanged else None
        fresh = Segment(self._disk, self._directory, base_offset, self._open_files)
        fresh.open_sealed(cleaned.summary, is_proven=True)
        for segment in there:
            segment.close()
        try:
            begin_swap(self._disk, self._directory, base_offset)
            finish_swap(self._disk, self._directory, base_offset)
        except (Unavailable, FileNotFoundError) as error:
            raise Unavailable(
                f"compaction cannot put its new segment {fresh.path(LOG)} in place of the original ones: {error}"
            ) from error
        return segments.replaced(place, count, fresh)

    def over(self, work: Compaction) -> None:
        """Note that a compaction pass has ended."""
        self.first_dirty_offset = max(self.first_dirty_offset, work.end_offset)
        self._under_way = {}

    def cut(self, end_offset: int) -> None:
        """Note that the log was truncated to this offset."""
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)


class _Writer:
    """Writes the batches that compaction keeps into the new segment, in pieces of about WRITE_SIZE bytes."""

    def __init__(self, segment: Segment, index_interval: int) -> None:
        self.segment = segment
        self.changed = False
        self._index_interval = index_interval
        self._waiting: list[Buffer] = []
        self._waiting_size = 0
        self._leader_epoch = -1
        self._next_offset = segment.base_offset

    def write(self, header: BatchHeader, batch: Buffer, kept: Kept) -> None:
        """Write the part of a batch that compaction keeps."""
        self._leader_epoch = header.leader_epoch
        self.changed = self.changed or kept.batch is not batch
        if kept.batch is None:
            return
        self._waiting.append(kept.batch)
        self._waiting_size += len(kept.batch)
        self._next_offset = header.next_offset
        if kept.entry is not None:
            self.segment.note_aborted(kept.entry)
        if self._waiting_size >= WRITE_SIZE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        position = self.segment.append(self._waiting)
        for batch in self._waiting:
            header = read_header(batch)
            self.segment.note(header, position, batch[: HEADER.size], self._index_interval)
            position += header.size
        self._waiting.clear()
        self._waiting_size = 0

    def finish(self, end_offset: int) -> None:
        """Write all remaining batches. If offsets are missing at the segment's end, add a filler, which is a batch
        without records, so that the segment ends where the next one begins.
        """
        if self._next_offset < end_offset:
            self._waiting.append(filler(self._next_offset, end_offset, self._leader_epoch))
        self._flush()
        assert self.segment.end_offset == end_offset


def discard_cleaned(disk: Disk, directory: Path, base_offset: int) -> None:
    """Remove the `.cleaned` files of a segment that will not be put in place."""
    for suffix in SEGMENT_SUFFIXES:
        disk.remove(directory / f"{base_offset:020d}{suffix}{CLEANED}")
