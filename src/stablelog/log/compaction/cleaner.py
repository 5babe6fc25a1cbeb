"""Compaction of sealed segments: a pass finds the latest record of each key, and writes new segments without the older
ones.

`policy` decides which records stay, and `rewriter` writes the new segments.

Source: Kafka's log cleaner.
"""

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Disk
from stablelog.log.compaction.policy import (
    Kept,
    LatestOffsets,
    Rules,
    TransactionWalk,
    group_segments,
    records_in,
)
from stablelog.log.compaction.rewriter import Cleaned, Pass, Rewriter
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer_table import ProducerTable
from stablelog.log.segments.growing_segment import GrowingSegment


class Compaction(Pass):
    """One compaction pass over a partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries of the segments that the pass may rewrite, beginning with the first segment of the log.
        spanning: the aborted transactions that began in these segments and whose abort markers are in later ones.
        producers: the producer state of the log, with the last batch of each producer.
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
        producers: ProducerTable,
        first_dirty_offset: int,
        config: LogConfig,
        now_ms: int,
        key_count_max: int,
    ) -> None:
        super().__init__(disk, directory, summaries, index_interval=config.index_interval_bytes)
        self.key_count = 0
        self._spanning = spanning
        self._producers = producers
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

    def _run(self) -> Generator[Cleaned | None]:
        yield from self._collect_latest()
        rules = Rules(
            self._latest,
            self._new_walk(),
            self._producers,
            now_ms=self._now_ms,
            delete_retention_ms=self._config.delete_retention_ms,
        )
        for group in group_segments(self._summaries_to_clean(), self._config):
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
