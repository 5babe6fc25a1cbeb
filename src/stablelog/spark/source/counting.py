"""Counting of the records of a range by batch headers and summaries (files with the counts of a sealed segment),
without decoding records.

The summary of a sealed segment contains the number of its data records. For a read-committed reader, the records of
aborted transactions are subtracted; they are counted by the batch headers between a transaction's first offset and its
marker. If no transaction is open at the beginning or the end of the segment, the summary's count of committed records
is used instead. Otherwise that count cannot be used: it includes all records of a transaction whose commit marker is in
the segment, even records in earlier segments. Compaction may have removed such records since.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from stablelog.batch.header import BatchHeader, Buffer
from stablelog.batch.records import decode_records
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.spark.planning import shares
from stablelog.spark.segments.partition_files import PartitionFiles
from stablelog.spark.source.ranges import Range, Readable


class CountedSegment(Protocol):
    """A segment whose records are counted: a log file, or an object."""

    @property
    def base_offset(self) -> int:
        """The base offset of the segment."""

    @property
    def end_offset(self) -> int:
        """The offset at which the next segment begins."""

    @property
    def summary(self) -> Summary | None:
        """The summary of the segment, which has the numbers of its records; None if it has none."""


Segment = TypeVar("Segment", bound=CountedSegment)


class CountedFiles(Protocol[Segment]):
    """The segments of a partition: `PartitionFiles`, or `TieredPartition` in an object store."""

    @property
    def sealed(self) -> Sequence[Segment]:
        """The sealed segments, oldest first."""

    def check_segment(self, segment: Segment) -> None:
        """Check that the log file has not been replaced or removed since it was listed. Raises GoneError."""

    def batches(self, start: int, end: int) -> Iterator[tuple[BatchHeader, Callable[[], Buffer]]]:
        """Yield the header of each batch with some of the offsets [start, end), and a function that reads the batch."""

    def aborted(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions with offsets from `start` to before `end`, sorted by first offset."""


_NO_LIMIT = 2**62
# Two ranges are read as one if the gap between them has fewer offsets: reading the gap costs no more than finding the
# position of the second range.
GAP_COUNT_MAX = 1000


@dataclass(slots=True)
class Aborted:
    """The aborted transactions of a partition, in a form in which the transaction of a batch is found fast."""

    _by_producer: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def from_txns(cls, txns: Iterable[AbortedTxn]) -> "Aborted":
        """Make an `Aborted` from the entries of a partition's transaction indexes."""
        found: dict[int, list[tuple[int, int]]] = {}
        for txn in txns:
            found.setdefault(txn.producer_id, []).append((txn.first_offset, txn.last_offset))
        return cls({producer: sorted(ranges) for producer, ranges in found.items()})

    def has_batch(self, header: BatchHeader) -> bool:
        """Return whether a batch of records belongs to an aborted transaction. `header` is the header of the batch."""
        ranges = self._by_producer.get(header.producer_id) if header.is_transactional else None
        if not ranges:
            return False
        place = bisect_right(ranges, (header.base_offset, 2**63)) - 1
        return place >= 0 and header.base_offset <= ranges[place][1]


def files_count(files: CountedFiles[Segment], start: int, end: int, *, committed: bool) -> int:
    """Return the number of records from offset `start` to before `end` that a reader gets.

    Args:
        files: the segment files of the partition.
        start: the first offset; not before the log start offset.
        end: the end offset; for a read-committed reader at most the last stable offset.
        committed: whether the reader is read-committed.

    Raises:
        GoneError: a file was removed since it was listed.
        UnavailableError: the files begin after `start` or end before `end`.
        DamageError: a file is damaged.
    """
    total, reached = 0, start
    sealed = files.sealed
    for place, segment in enumerate(sealed):
        summary = segment.summary
        if summary is None or segment.base_offset < start or segment.end_offset > end:
            continue
        files.check_segment(segment)
        total += _walked(files, reached, segment.base_offset, committed=committed)
        total += _committed_count(files, sealed, place) if committed else summary.record_count
        reached = segment.end_offset
    return total + _walked(files, reached, end, committed=committed)


def _committed_count(files: CountedFiles[Segment], sealed: Sequence[Segment], place: int) -> int:
    """Return the number of records in a sealed segment that do not belong to aborted transactions. Every transaction
    in the segment must have ended. `place` is the index of the segment in `sealed`.
    """
    summary = sealed[place].summary
    assert summary is not None
    aborted = files.aborted(summary.base_offset, summary.end_offset)
    if not aborted:
        return summary.record_count
    if _is_closed(sealed, place):
        return summary.committed_count
    return summary.record_count - _aborted_count(files, aborted, summary.base_offset, summary.end_offset)


def _is_closed(sealed: Sequence[CountedSegment], place: int) -> bool:
    """Return True if a segment is closed: no transaction was open at its beginning, and none at its end. `place` is the
    index of the segment in `sealed`.
    """
    summary = sealed[place].summary
    assert summary is not None
    if place:
        before = sealed[place - 1].summary
        nothing_open = before is not None and before.stable_offset == before.end_offset == summary.base_offset
    else:
        # No earlier segment is listed. Unless the log begins at offset 0, an earlier segment was removed, and a
        # transaction may have been open at its end.
        nothing_open = summary.base_offset == 0
    return nothing_open and summary.stable_offset == summary.end_offset


def _aborted_count(files: CountedFiles[Segment], aborted: Sequence[AbortedTxn], start: int, end: int) -> int:
    """Return the number of records of aborted transactions from offset `start` to before `end`, counted by batch
    headers.

    Args:
        files: the segment files of the partition.
        aborted: the aborted transactions with records in the range, sorted by first offset.
        start: the first offset.
        end: the end offset, in the same segment.
    """
    held = Aborted.from_txns(aborted)
    return sum(
        header.record_count
        for low, high in _stretches(aborted, start, end)
        for header, _ in _headers(files, low, high)
        if not header.is_control and held.has_batch(header)
    )


def _stretches(aborted: Iterable[AbortedTxn], start: int, end: int) -> list[tuple[int, int]]:
    """Return the stretches of a range of offsets in which at least one aborted transaction was open, as pairs (first
    offset, offset after the last one). Two stretches are joined if the gap between them has at most GAP_COUNT_MAX
    offsets.
    """
    found: list[tuple[int, int]] = []
    for txn in aborted:
        first, last = max(txn.first_offset, start), min(txn.last_offset, end)
        if found and first <= found[-1][1] + GAP_COUNT_MAX:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _headers(
    files: CountedFiles[Segment], start: int, end: int
) -> Iterator[tuple[BatchHeader, Buffer | None]]:
    """Yield a pair for each batch of a range: its header, and its bytes if its records must be counted one by one.
    This is so if the batch is only partly in the range and has gaps between its offsets; otherwise the second value is
    None.
    """
    for header, read in files.batches(start, end) if start < end else ():
        cut = header.base_offset < start or header.next_offset > end
        gaps = header.record_count != header.last_offset_delta + 1
        yield header, read() if cut and gaps else None


def _walked(files: CountedFiles[Segment], start: int, end: int, *, committed: bool) -> int:
    if start >= end:
        return 0
    aborted = Aborted.from_txns(files.aborted(start, end)) if committed else Aborted()
    return sum(
        records_inside(header, batch, start, end)
        for header, batch in _headers(files, start, end)
        if not header.is_control and not aborted.has_batch(header)
    )


def records_inside(header: BatchHeader, batch: Buffer | None, start: int, end: int) -> int:
    """Return how many records of a batch have offsets from `start` to before `end`. `batch` may be None if the batch is
    completely in this range, or has no gaps between its offsets.
    """
    if header.base_offset >= start and header.next_offset <= end:
        return header.record_count
    if header.record_count == header.last_offset_delta + 1:
        return max(0, min(header.next_offset, end) - max(header.base_offset, start))
    assert batch is not None
    return sum(1 for record in decode_records(batch) if start <= record.offset < end)


def files_limited(
    files: Mapping[Readable, PartitionFiles], count_max: int | None, size_max: int | None, *, committed: bool
) -> dict[Readable, int]:
    """Return an end offset for each range, so that all ranges together stay within a limit of records and bytes. At
    least one batch is before an end offset, even if it is larger than the limit, so that the reader makes progress.

    Each range gets a share of the limit. If a range does not use its share, the other ranges get the rest. Markers,
    aborted records and gaps between offsets are not counted.

    Args:
        files: the ranges, each with the segment files of its partition.
        count_max: the limit of records; None for no limit.
        size_max: the limit of bytes; None for no limit.
        committed: whether the reader is read-committed, so that aborted records are not counted.
    """
    amounts = {wanted: wanted.count for wanted in files}
    count_left, size_left = count_max or _NO_LIMIT, size_max or _NO_LIMIT
    counts, total = shares(amounts, count_left), max(sum(amounts.values()), 1)
    sizes = {wanted: size_left * amount // total for wanted, amount in amounts.items()}
    found = {wanted: wanted.whole.start if wanted.parts else wanted.whole.end for wanted in files}
    for is_second in (False, True):
        for wanted in files:
            if found[wanted] == wanted.whole.end:
                continue
            budget = _Budget(
                count_left if is_second else counts[wanted], size_left if is_second else sizes[wanted]
            )
            before = budget.count, budget.size
            # If no range has advanced, read one batch even if it is larger than the limit. Otherwise the stream would
            # never get past this batch.
            is_stuck = is_second and all(found[one] == one.whole.start for one in files if one.parts)
            found[wanted] = _limit(
                files[wanted], wanted, found[wanted], budget, committed=committed, is_stuck=is_stuck
            )
            count_left -= before[0] - budget.count
            size_left -= before[1] - budget.size
    return found


@dataclass(slots=True)
class _Budget:
    count: int
    size: int


def _limit(
    files: PartitionFiles, wanted: Readable, start: int, budget: _Budget, *, committed: bool, is_stuck: bool
) -> int:
    """Return the offset up to which the records from `start` on fit into the budget. These records and their bytes are
    subtracted from the budget, so that the next range gets the rest.

    Args:
        files: the segment files of the partition.
        wanted: the range.
        start: the first offset to count.
        budget: how many records and bytes may still be read.
        committed: whether the reader is read-committed, so that aborted records are not counted.
        is_stuck: whether all ranges still end where they begin. The first batch is then taken even if it is larger than
            the budget, because the reader would otherwise never get past it.
    """
    end = start
    for part in wanted.inside(start, wanted.whole.end):
        end = _limit_part(files, part, budget, committed=committed, is_stuck=is_stuck and end == start)
        if end < part.end:
            return end
    return wanted.whole.end


def _limit_part(
    files: PartitionFiles, wanted: Range, budget: _Budget, *, committed: bool, is_stuck: bool
) -> int:
    """Return the offset up to which the records of one readable part of a range fit into the budget, and subtract them
    from it. `budget` says how many records and bytes may still be read. If the reader is read-committed (`committed`),
    aborted records are not counted. If `is_stuck`, the first batch is taken even if it is larger than the budget.
    """
    aborted = Aborted.from_txns(files.aborted(wanted.start, wanted.end)) if committed else Aborted()
    end = wanted.start
    for header, _ in _headers(files, wanted.start, wanted.end):
        if header.size > budget.size and not (is_stuck and end == wanted.start):
            return end
        if not header.is_control and not aborted.has_batch(header):
            first = max(header.base_offset, wanted.start)
            # At most this number of the batch's records is in the range.
            inside = min(min(header.next_offset, wanted.end) - first, header.record_count)
            if inside > budget.count:
                taken, budget.count = budget.count, 0
                return first + taken if taken else end
            budget.count -= inside
        budget.size -= header.size
        end = min(header.next_offset, wanted.end)
    return wanted.end
