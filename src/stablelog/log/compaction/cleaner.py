"""Compaction of sealed segments: a pass finds the latest record of each key, and writes new segments without the older
ones.

`policy` decides which records stay, and `rewriter` writes the new segments.

Source: Kafka's log cleaner.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Disk
from stablelog.errors import UnavailableError
from stablelog.log.compaction.aborted_data import RemovalPass
from stablelog.log.compaction.policy import (
    Kept,
    LatestOffsets,
    Rules,
    TransactionWalk,
    count_cleanable,
    group_segments,
    is_dirty_enough,
    records_in,
)
from stablelog.log.compaction.rewriter import Cleaned, Pass, Rewriter, discard_cleaned
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer import LastBatch
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.replacement import begin_swap, finish_swap
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segment import LogProof
from stablelog.log.segments.segments import LogSegments


class Compaction(Pass):
    """One compaction pass over a partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries of the segments that the pass may rewrite, beginning with the first segment of the log.
        spanning: the aborted transactions that began in these segments and whose abort markers are in later ones.
        last_batch: returns the last batch of a producer, by producer id; None if the partition has no state of the
            producer.
        first_dirty_offset: the first offset that was not compacted before.
        config: the partition's settings.
        now_ms: the time of the broker's clock.
        key_count_max: how many keys the pass may keep in memory. Records of further keys are left to the next pass.

    Attributes:
        key_count: how many different keys the new records have, those since the last pass.
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
        super().__init__(disk, directory, summaries, index_interval=config.index_interval_bytes)
        self.key_count = 0
        self._spanning = spanning
        self._last_batch = last_batch
        self._config = config
        self._now_ms = now_ms
        self._latest = LatestOffsets(max(first_dirty_offset, summaries[0].base_offset), key_count_max)
        # by producer id: how many records of its open transaction compaction keeps
        self._uncounted: dict[int, int] = {}

    @property
    def end_offset(self) -> int:
        """The end of the compacted records, exclusive: the first dirty offset after this pass."""
        return self._latest.end_offset

    @property
    def outcome(self) -> str:
        """The result of the pass as text for a log line."""
        return (
            f"compacted to offset {self.end_offset}: {self.key_count} keys and {self.written_size} bytes of "
            f"{self.read_size} remain"
        )

    def _run(self) -> Iterator[Cleaned | None]:
        yield from self._collect_latest()
        rules = Rules(
            self._latest,
            self._new_walk(),
            self._last_batch,
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
        )
        for group in group_segments(self._summaries_to_clean(), self._config):
            if self.cancelled:
                return
            yield from self._rewrite_group(group, lambda out, group=group: self._clean(group, out, rules))  # type: ignore[misc]

    def _clean(self, group: list[Summary], out: Rewriter, rules: Rules) -> Iterator[None]:
        for summary in group:
            yield from self._clean_segment(summary, out, rules)

    def _summaries_to_clean(self) -> list[Summary]:
        summaries = [segment.summary for segment in self._segments]
        return [one for one in summaries if one.base_offset < self._latest.end_offset]

    # -- the first reading -------------------------------------------------------------------------------------

    def _collect_latest(self) -> Iterator[None]:
        walk = self._new_walk()
        latest = self._latest
        first = self._segments.place_of(latest.start_offset)
        for place in range(first, len(self._segments)):
            segment = self._segments[place]
            walk.expect_aborted(self._segments.aborted(segment.base_offset, segment.end_offset))
            for header, batch in self._batches(segment):
                if header is None:
                    yield None
                    continue
                if header.is_control:
                    walk.process_marker(header, batch)
                elif not walk.process_data(header) and header.last_offset >= latest.start_offset:
                    records = records_in(batch, header) or ()
                    if not latest.has_room(len(records)):
                        self.key_count = len(latest)
                        return
                    latest.add_keys(records)
                latest.end_offset = max(latest.end_offset, header.next_offset)
            latest.end_offset = segment.end_offset
        self.key_count = len(latest)

    def _new_walk(self) -> TransactionWalk:
        walk = TransactionWalk()
        walk.expect_aborted(self._spanning)
        return walk

    # -- the second reading ------------------------------------------------------------------------------------

    def _clean_segment(self, summary: Summary, out: Rewriter, rules: Rules) -> Iterator[None]:
        place = self._segments.place_of(summary.base_offset)
        segment = self._segments[place]
        rules.walk.expect_aborted(self._segments.aborted(segment.base_offset, segment.end_offset))
        for header, batch in self._batches(segment):
            if header is None:
                yield None
                continue
            kept = rules.keep_batch(header, batch)
            out.write_batch(header, batch, kept)
            self._count(header, kept, out.segment)

    def _count(self, header: BatchHeader, kept: Kept, cleaned: GrowingSegment) -> None:
        """Count the records of committed transactions that stay. Those of a transaction are counted in the segment of
        its commit marker.
        """
        if header.is_control:
            count = self._uncounted.pop(header.producer_id, 0)
            cleaned.committed_count += count if kept.commits else 0
        elif header.is_transactional and kept.record_count:
            self._uncounted[header.producer_id] = (
                self._uncounted.get(header.producer_id, 0) + kept.record_count
            )


class Cleaning:
    """The progress of compaction, or of the removal of aborted data, in one partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        open_files: the cache that limits how many sealed segments have open files.
        first_dirty_offset: the first offset that was not compacted yet.
    """

    def __init__(self, disk: Disk, directory: Path, open_files: OpenFiles, first_dirty_offset: int) -> None:
        self.first_dirty_offset = first_dirty_offset
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        # The end of the segments from which aborted data was removed since the start of the broker. This offset is not
        # recorded: another pass over these segments changes nothing.
        self._removed_to = 0
        # By base offset: the segments that the running pass rewrites.
        self._under_way: dict[int, SealedSegment] = {}

    def begin_pass(
        self,
        segments: LogSegments,
        config: LogConfig,
        *,
        last_batch: Callable[[], Callable[[int], LastBatch | None]],
        start_offset: int,
        stable_offset: int,
        aborted_behind: Callable[[int], list[AbortedTxn]],
        now_ms: int,
        key_count_max: int,
    ) -> Compaction | RemovalPass | None:
        """Start a pass of compaction. In a topic that is not compacted, start a pass that removes aborted data.

        Return None if the topic's settings ask for neither, or if too few records are new since the last pass.
        """
        if config.is_commit_ordered:
            return None
        if not config.is_compacted:
            if not config.drops_aborted:
                return None
            return self._begin_removal(segments, config, stable_offset, aborted_behind)
        sealed = [segment for segment in segments.sealed if segment.durable]
        summaries = [segment.summary for segment in sealed]
        del summaries[count_cleanable(summaries, stable_offset, config, now_ms) :]
        if not is_dirty_enough(summaries, self.first_dirty_offset, config):
            return None
        self._under_way = {segment.base_offset: segment for segment in sealed[: len(summaries)]}
        end_offset = summaries[-1].end_offset
        return Compaction(
            self._disk,
            self._directory,
            summaries,
            spanning=segments.aborted(end_offset, end_offset),
            last_batch=last_batch(),
            first_dirty_offset=max(self.first_dirty_offset, start_offset),
            config=config,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def _begin_removal(
        self,
        segments: LogSegments,
        config: LogConfig,
        stable_offset: int,
        aborted_behind: Callable[[int], list[AbortedTxn]],
    ) -> RemovalPass | None:
        wanted = {
            segment.base_offset: segment
            for segment in segments.ending_behind(self._removed_to)
            if isinstance(segment, SealedSegment) and segment.durable and segment.end_offset <= stable_offset
        }
        if not wanted:
            return None
        self._under_way = wanted
        summaries = [segment.summary for segment in wanted.values()]
        return RemovalPass(
            self._disk,
            self._directory,
            summaries,
            spanning=aborted_behind(summaries[-1].end_offset),
            index_interval=config.index_interval_bytes,
        )

    def put_in_place(self, segments: LogSegments, cleaned: Cleaned) -> LogSegments | None:
        """Replace segments of the log by the segment that compaction has written from them.

        Returns:
            The new list of segments. `segments` itself if the new segment has the same batches as the old one. None if
            a segment to be replaced was deleted or replaced meanwhile.

        Raises:
            UnavailableError: the disk failed. Only a new open of the partition can tell whether the new segment is in
                place.
        """
        base_offset, count = cleaned.replaced[0], len(cleaned.replaced)
        place = segments.place_of(base_offset)
        there = [segments[at] for at in range(place, min(place + count, len(segments) - 1))]
        unchanged = there == [self._under_way[base_offset] for base_offset in cleaned.replaced]
        if not unchanged or not cleaned.changed:
            discard_cleaned(self._disk, self._directory, base_offset)
            return segments if unchanged else None
        name = SegmentName.of(self._directory, base_offset)
        fresh = SealedSegment(self._disk, name, cleaned.summary, self._open_files, proof=LogProof())
        for segment in there:
            segment.close()
        try:
            begin_swap(self._disk, self._directory, base_offset)
            finish_swap(self._disk, self._directory, base_offset)
        except (UnavailableError, FileNotFoundError) as error:
            raise UnavailableError(
                f"compaction cannot put its new segment {fresh.path(LOG)} in place of the original ones: {error}"
            ) from error
        return segments.with_replaced(place, count, fresh)

    def end_pass(self, work: Pass) -> None:
        """Record how far a pass has come, after its last step."""
        if isinstance(work, RemovalPass):
            self._removed_to = max(self._removed_to, work.end_offset)
        else:
            self.first_dirty_offset = max(self.first_dirty_offset, work.end_offset)
        self._under_way = {}

    def truncate_to(self, end_offset: int) -> None:
        """Lower the recorded progress after a truncation of the log to this offset."""
        self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
        self._removed_to = min(self._removed_to, end_offset)
