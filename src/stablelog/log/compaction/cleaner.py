"""Compaction of sealed segments: a pass finds the latest record of each key, and writes new segments without the older
ones.

`policy` decides which records stay, and `rewriter` writes the new segments.

Source: Kafka's log cleaner.
"""

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.log.compaction.policy import (
    LatestOffsets,
    Rules,
    TransactionWalk,
    group_segments,
    records_in,
)
from stablelog.log.compaction.rewriter import Cleaned, Pass, Rewriter, read_batches
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import LogConfig
from stablelog.log.producer_state.producer_table import ProducerTable


class Compaction(Pass):
    """One compaction pass over a partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries (offsets, file sizes and checksums) of the segments that the pass may rewrite,
            beginning with the first segment of the log.
        spanning: the aborted transactions that began in these segments and whose abort markers are in later ones.
        producers: the producer state of the log, with the last batch of each producer.
        first_dirty_offset: the first offset that was not compacted before.
        config: the partition's settings.
        now_ms: the time of the wall clock.
        key_count_max: how many keys the pass may keep in memory. Records of further keys are left to the next pass.

    Attributes:
        latest: the latest offset of each key, among the records that were appended since the last pass.
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
        super().__init__(
            disk, directory, summaries, spanning=spanning, index_interval=config.index_interval_bytes
        )
        self._config = config
        self.latest = LatestOffsets(max(first_dirty_offset, summaries[0].base_offset), key_count_max)
        self._rules = Rules(
            self.latest,
            TransactionWalk(summaries[0].base_offset, spanning, self._find_aborted),
            producers,
            now_ms=now_ms,
            delete_retention_ms=config.delete_retention_ms,
        )

    @property
    def end_offset(self) -> int:
        """The end of the compacted records, exclusive. After this pass, it is the first dirty offset, from which on the
        log is not compacted.
        """
        return self.latest.end_offset

    @property
    def outcome(self) -> str:
        """The result of the pass as text for a log line."""
        return (
            f"compacted to offset {self.end_offset}: {len(self.latest)} keys and {self.written_size} bytes of "
            f"{self.read_size} remain"
        )

    def _run(self) -> Generator[Cleaned | None]:
        yield from self._collect_latest()
        summaries = [one.summary for one in self._segments if one.base_offset < self.end_offset]
        for group in group_segments(summaries, self._config):
            yield from self._rewrite_group(group, partial(self._clean, group))

    def _clean(self, group: list[Summary], out: Rewriter) -> Iterator[None]:
        for summary in group:
            segment = self._segments[self._segments.place_of(summary.base_offset)]
            yield from out.write_batches(read_batches(segment, with_bodies=True), self._rules.keep_batch)

    def _collect_latest(self) -> Iterator[None]:
        latest = self.latest
        first = self._segments.place_of(latest.start_offset)
        walk = TransactionWalk(self._segments[first].base_offset, self._spanning, self._find_aborted)
        for place in range(first, len(self._segments)):
            segment = self._segments[place]
            for header, batch in read_batches(segment, with_bodies=True):
                if header is None:
                    yield None
                    continue
                if header.is_control:
                    walk.process_marker(header, batch)
                elif not walk.process_data(header) and header.last_offset >= latest.start_offset:
                    records = records_in(batch, header) or ()
                    if not latest.has_room(len(records)):
                        return
                    latest.add_keys(records)
                latest.end_offset = max(latest.end_offset, header.next_offset)
            latest.end_offset = segment.end_offset
