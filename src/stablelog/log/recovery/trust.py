"""The parts of a log that a start of the broker does not read, because a summary or a snapshot describes them; and the
offset where replay begins. Such a part is *trusted*.

`plan` uses these decisions to open a partition. `examine` uses them to find the damage that a start does not notice:
damage in a trusted part does not keep the partition offline, only reads of the damaged part are refused. The decisions
need only the small files of the partition.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from stablelog.errors import DamageError
from stablelog.log.directory import PartitionDirectory
from stablelog.log.files.names import SegmentName
from stablelog.log.indexes.sealed_indexes import are_files_of
from stablelog.log.indexes.summary import Summary
from stablelog.log.producer_state.producers import Producers
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.sealed_segment import SealedSegment


@dataclass(slots=True)
class ReplayStart:
    """The offset where replay begins, and the state of the log there.

    Attributes:
        offset: the offset of the first batch that is replayed.
        producers: the producer state at this offset.
        progress: the summary (sizes, counts and checksums) of the segment up to this offset; None if the segment's
            indexes do not have all entries up to there.
        indexes: the contents of the segment's indexes up to this offset, in the order offset index, time index,
            transaction index.
    """

    offset: int
    producers: Producers
    progress: Summary | None = None
    indexes: tuple[bytes, ...] = ()


def trusted_summaries(directory: PartitionDirectory, segments: Sequence[SegmentName]) -> Iterator[Summary]:
    """Yield the summaries (offsets, file sizes and checksums) of the trusted segments, which recovery need not read:
    all before the first segment whose files do not match its summary. The last segment grows, so it is never among
    them.
    """
    for segment, following in pairwise(segments):
        summary = directory.summary(segment.base_offset)
        if (
            summary is None
            or summary.end_offset > following.base_offset
            or not are_files_of(directory.listing.disk, segment.path, summary)
        ):
            return
        yield summary


def choose_replay_start(
    directory: PartitionDirectory, first_offset: int, unknown_from: int, now_ms: int, *, is_cut: bool = False
) -> ReplayStart:
    """Choose the newest snapshot from which replay (the reading of the log at a start) can begin.

    This snapshot is at or before the beginning of the first segment that replay must read; or within this segment, if
    the segment's indexes have all entries up to the snapshot. A `.producers` file is preferred to Kafka's `.snapshot`
    file.

    Args:
        directory: the directory of the partition.
        first_offset: the base offset of the first segment.
        unknown_from: the base offset of the first segment that replay must read.
        now_ms: broker time (a clock that never goes back, even if the machine's clock is set back).
        is_cut: whether the segment at `unknown_from` will be truncated. Snapshots within it are then ignored, because
            they are removed.
    """
    offsets = [offset for offset in reversed(directory.snapshots) if offset >= first_offset]
    before = [offset for offset in offsets if offset <= unknown_from]
    for offset in before if is_cut else offsets:
        known = directory.producers(offset)
        if known is None:
            continue
        table, progress = known
        if offset <= unknown_from:
            return ReplayStart(offset, Producers.from_table(table, now_ms))
        indexes = directory.indexes_up_to(progress) if progress.base_offset == unknown_from else None
        if indexes is not None:
            return ReplayStart(offset, Producers.from_table(table, now_ms), progress, indexes)
    for offset in before:
        kafkas = directory.kafka_producers(offset, now_ms)
        if kafkas is not None:
            return ReplayStart(offset, Producers.from_table(kafkas, now_ms))
    return ReplayStart(first_offset, Producers())


class Trust:
    """The trusted parts of one partition's log: a start of the broker does not read them, because a summary or a
    snapshot describes them.

    Args:
        directory: the directory of the partition.
        bases: the base offsets of its segments, ascending, without those before the log start offset.
        leader_epoch: the leader epoch of the last start of the broker.

    Attributes:
        sealed: by base offset: the summaries of the segments that a start opens by their summaries, without reading
            their log files first.
        vouched_end: the offset of the snapshot up to which a start does not read the growing segment; None if it reads
            all of the segment.
    """

    def __init__(self, directory: PartitionDirectory, bases: list[int], leader_epoch: int) -> None:
        self._directory = directory
        self._bases = bases
        summaries = trusted_summaries(directory, [directory.segment_name(base) for base in bases])
        # If a segment does not end where the next one begins, a segment between them is missing, and a start of the broker
        # refuses the log. The start does not get to the later segments, so it trusts none of them.
        sealed = takewhile(
            lambda pair: pair[0].end_offset == pair[1], zip(summaries, bases[1:], strict=False)
        )
        self.sealed = {summary.base_offset: summary for summary, _ in sealed}
        epochs = directory.epochs()
        is_epoch_file_used = epochs is not None and epochs.latest <= leader_epoch
        self._refused = set() if is_epoch_file_used else set(self._find_refused(leader_epoch))
        # The base offset of the first segment that a start of the broker reads, because it cannot open it by its summary.
        self._unread = bases[len(self.sealed)]
        start = self.replay_start(None)
        is_within_last = start.progress is not None and start.progress.base_offset == bases[-1]
        self.vouched_end = start.offset if is_within_last else None

    def _find_refused(self, leader_epoch: int) -> Iterator[int]:
        """Yield the base offsets of the sealed segments that a start of the broker refuses: those in which the leader
        epoch of a batch cannot be read, or is greater than `leader_epoch`, the broker's own.
        """
        for base, summary in self.sealed.items():
            segment = SealedSegment(
                self._directory.listing.disk, self._directory.segment_name(base), summary, OpenFiles()
            )
            try:
                if any(header.leader_epoch > leader_epoch for _, header in segment.walk_unproven(0)):
                    yield base
            except DamageError:
                yield base
            finally:
                segment.close()

    def replay_start(self, cut_base: int | None) -> ReplayStart:
        """Return the offset at which a start of the broker begins to replay (read) the log, and the state of the log
        there.

        Args:
            cut_base: the base offset of the segment in which the log is truncated before this start; None if it is not
                truncated.
        """
        unknown_from = self._unread if cut_base is None else min(self._unread, cut_base)
        return choose_replay_start(
            self._directory, self._bases[0], unknown_from, 0, is_cut=cut_base is not None
        )

    def reads_segment(self, base_offset: int, replay_start: int) -> bool:
        """Return whether a start of the broker reads a sealed segment, and checks its batch headers and markers. The
        result is False for the growing segment.

        Args:
            base_offset: the base offset of the segment.
            replay_start: the offset where this start begins to replay the log, as the method `replay_start` returns it.
        """
        summary = self.sealed.get(base_offset)
        return summary is not None and (base_offset in self._refused or replay_start < summary.end_offset)
