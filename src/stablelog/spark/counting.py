"""How many records a read has, by what headers and summaries say: no record is decoded.

Of a sealed segment the summary has the number of data records that are in it. A committed reader does not see those of
aborted transactions; they are counted by the headers between a transaction's first offset and its marker. Where no
transaction is open at either end of the segment, the summary's count of committed records is right and saves that. It is
no count of the segment's own records elsewhere: it counts a transaction's records where the marker is, as many as there
were at that time, and compaction may have removed some from the segments before.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stablelog.batch.header import BatchHeader
from stablelog.batch.records import decode_records
from stablelog.errors import Unavailable
from stablelog.log.summary import Summary
from stablelog.log.transaction_index import AbortedTxn
from stablelog.spark.cuts import batch_ranges
from stablelog.spark.fetch import BrokerLog, answers
from stablelog.spark.options import BATCH, read_options
from stablelog.spark.planning import shares
from stablelog.spark.resolve import Log, Range
from stablelog.spark.segments import PartitionFiles

_NO_LIMIT = 2**62
GAP_COUNT_MAX = (
    1000  # offsets between two ranges that are walked as one; to find another place costs about as much
)


def count(given: Mapping[str, str] | None = None, **more: str) -> int:
    """How many records a batch read with these options has: exact, and far cheaper than reading them.

    From segment files by their summaries, in milliseconds; by the protocol from the headers of record batches.

    Args:
        given: options as of `spark.read.format("stablelog")`.
        more: the same, for names without a dot.

    Raises:
        InvalidConfig, Refused, Unavailable, Corrupt: as the read.
    """
    from stablelog.spark.source import open_log

    options = read_options({**(given or {}), **more}, BATCH)
    log = open_log(options)
    committed = options.isolation == "read_committed"
    try:
        ranges, topic_ids = batch_ranges(options, log)
        total = 0
        for wanted, files in log.files_of(ranges, topic_ids).items():
            counted = None if files is None else _by_files(log, files, wanted, committed=committed)
            if counted is None:
                counted = _fetched_count(_broker_of(log), wanted, options.isolation)
            total += counted
        return total
    finally:
        log.close()


def _by_files(log: Log, files: PartitionFiles, wanted: Range, *, committed: bool) -> int | None:
    """The count of a range by its files; None where they do not have it any more, or not yet, and there is a broker."""
    from stablelog.spark.files import DirectoryLog, steadily

    try:
        return steadily(files, lambda: files_count(files, wanted.start, wanted.end, committed=committed))
    except Unavailable:
        if isinstance(log, DirectoryLog):
            raise
        return None


def _broker_of(log: Log) -> BrokerLog:
    broker = getattr(log, "broker", log)
    assert isinstance(broker, BrokerLog)
    return broker


@dataclass(slots=True)
class Aborted:
    """Which batches are of aborted transactions."""

    _by_producer: dict[int, list[tuple[int, int]]] = field(default_factory=dict)

    @classmethod
    def of(cls, txns: Iterable[AbortedTxn]) -> "Aborted":
        """Those of a partition's transaction indexes."""
        found: dict[int, list[tuple[int, int]]] = {}
        for txn in txns:
            found.setdefault(txn.producer_id, []).append((txn.first_offset, txn.last_offset))
        return cls({producer: sorted(ranges) for producer, ranges in found.items()})

    def holds(self, header: BatchHeader) -> bool:
        """Whether a batch of records is of an aborted transaction."""
        ranges = self._by_producer.get(header.producer_id) if header.is_transactional else None
        if not ranges:
            return False
        place = bisect_right(ranges, (header.base_offset, 2**63)) - 1
        return place >= 0 and header.base_offset <= ranges[place][1]


def files_count(files: PartitionFiles, start: int, end: int, *, committed: bool) -> int:
    """Count the records of [start, end) that a reader sees.

    Args:
        files: of the partition.
        start: inclusive; not before the log's start.
        end: exclusive; for a committed reader at most the last stable offset.
        committed: whether the reader sees committed records only.

    Raises:
        Gone: a file was removed since it was listed.
        Unavailable, Corrupt: as `PartitionFiles.span`.
    """
    total, reached = 0, start
    for place, segment in enumerate(files.segments[:-1]):
        next_base, summary = files.segments[place + 1].base_offset, segment.summary
        if summary is None or segment.base_offset < start or next_base > end:
            continue
        segment.check(next_base)
        total += _walked(files, reached, segment.base_offset, committed=committed)
        total += _committed_count(files, place, summary) if committed else summary.record_count
        reached = next_base
    return total + _walked(files, reached, end, committed=committed)


def _committed_count(files: PartitionFiles, place: int, summary: Summary) -> int:
    """Count the records of a segment whose transactions were committed; all of it is decided."""
    aborted = files.aborted(summary.base_offset, summary.end_offset)
    if not aborted:
        return summary.record_count
    if _is_closed(files, place, summary):
        return summary.committed_count
    return summary.record_count - _aborted_count(files, aborted, summary.base_offset, summary.end_offset)


def _is_closed(files: PartitionFiles, place: int, summary: Summary) -> bool:
    """Whether no transaction was open at the segment's beginning, and none at its end."""
    if place:
        before = files.segments[place - 1].summary
        nothing_open = before is not None and before.stable_offset == before.end_offset == summary.base_offset
    else:
        nothing_open = summary.base_offset == 0  # what was removed in front of it may have been open there
    return nothing_open and summary.stable_offset == summary.end_offset


def _aborted_count(files: PartitionFiles, aborted: Sequence[AbortedTxn], start: int, end: int) -> int:
    """Count the records of aborted transactions in [start, end), by headers.

    Args:
        files: of the partition.
        aborted: the aborted transactions that touch the range, by their first offsets.
        start: of a segment.
        end: of the same segment.
    """
    held = Aborted.of(aborted)
    return sum(
        header.record_count
        for low, high in _stretches(aborted, start, end)
        for header, _ in _headers(files, low, high)
        if not header.is_control and held.holds(header)
    )


def _stretches(aborted: Iterable[AbortedTxn], start: int, end: int) -> list[tuple[int, int]]:
    """The ranges of [start, end) in which aborted transactions were open; neighbours are joined."""
    found: list[tuple[int, int]] = []
    for txn in aborted:
        first, last = max(txn.first_offset, start), min(txn.last_offset, end)
        if found and first <= found[-1][1] + GAP_COUNT_MAX:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def _headers(files: PartitionFiles, start: int, end: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
    """The headers of the batches that touch [start, end); with the bytes of those that the range cuts and that have gaps."""
    if start >= end:
        return
    for part in files.span(start, end).parts:
        for position, header in part.segment.headers(part.position):
            if position >= part.end_position:
                break
            cut = header.base_offset < start or header.next_offset > end
            gaps = header.record_count != header.last_offset_delta + 1
            yield header, part.segment.read(position, header.size) if cut and gaps else None


def _walked(files: PartitionFiles, start: int, end: int, *, committed: bool) -> int:
    if start >= end:
        return 0
    aborted = Aborted.of(files.aborted(start, end)) if committed else Aborted()
    return sum(
        _inside(header, batch, start, end)
        for header, batch in _headers(files, start, end)
        if not header.is_control and not aborted.holds(header)
    )


def _inside(header: BatchHeader, batch: bytes | memoryview | None, start: int, end: int) -> int:
    """How many records of a batch have offsets in [start, end)."""
    if header.base_offset >= start and header.next_offset <= end:
        return header.record_count
    if header.record_count == header.last_offset_delta + 1:
        return max(0, min(header.next_offset, end) - max(header.base_offset, start))
    assert batch is not None
    return sum(1 for record in decode_records(batch) if start <= record.offset < end)


def _fetched_count(broker: BrokerLog, wanted: Range, isolation: str) -> int:
    total = 0
    open_aborted: set[int] = set()
    for fetched, headers in answers(broker.cluster, wanted, isolation):
        ahead = sorted((first, producer) for producer, first in fetched.aborted)
        for position, header in headers:
            while ahead and ahead[0][0] <= header.last_offset:
                open_aborted.add(ahead.pop(0)[1])
            if header.is_control:
                open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                batch = fetched.records[position : position + header.size]
                total += _inside(header, batch, wanted.start, wanted.end)
    return total


def files_limited(
    files: Mapping[Range, PartitionFiles], count_max: int | None, size_max: int | None, *, committed: bool
) -> dict[Range, int]:
    """Where to end each range so that all of them have so many records, and bytes, at most; one batch at least.

    Real ones: markers, aborted records and gaps do not count. Each range gets its share, and what one of them leaves
    the others get.
    """
    amounts = {wanted: wanted.end - wanted.start for wanted in files}
    count_left, size_left = count_max if count_max is not None else _NO_LIMIT, size_max or _NO_LIMIT
    counts = shares(amounts, count_left)
    sizes = shares(amounts, size_left)
    if size_max is not None:
        all_size = sum(amounts.values())
        sizes = {wanted: size_max * amount // all_size for wanted, amount in amounts.items()}
    found = {wanted: wanted.start for wanted in files}
    for is_second in (False, True):
        for wanted in files:
            rest = wanted._replace(start=found[wanted])
            if rest.start == rest.end:
                continue
            budget = _Budget(
                count_left if is_second or count_max is None else counts[wanted],
                size_left if is_second or size_max is None else sizes[wanted],
            )
            before = budget.count, budget.size
            # A batch that is larger than all that may be read is read nevertheless, or nothing ever would be.
            is_stuck = is_second and all(found[one] == one.start for one in files)
            found[wanted] = _limit(files[wanted], rest, budget, committed=committed, is_stuck=is_stuck)
            count_left -= before[0] - budget.count
            size_left -= before[1] - budget.size
    return found


@dataclass(slots=True)
class _Budget:
    count: int
    size: int


def _limit(files: PartitionFiles, wanted: Range, budget: _Budget, *, committed: bool, is_stuck: bool) -> int:
    """How far a budget reaches; what is used is taken from it."""
    aborted = Aborted.of(files.aborted(wanted.start, wanted.end)) if committed else Aborted()
    end = wanted.start
    for header, _ in _headers(files, wanted.start, wanted.end):
        if header.size > budget.size and not (is_stuck and end == wanted.start):
            return end
        if not header.is_control and not aborted.holds(header):
            first = max(header.base_offset, wanted.start)
            # Of so many offsets, so many are records at most.
            inside = min(min(header.next_offset, wanted.end) - first, header.record_count)
            if inside > budget.count:
                taken, budget.count = budget.count, 0
                return first + taken if taken else end
            budget.count -= inside
        budget.size -= header.size
        end = min(header.next_offset, wanted.end)
    return wanted.end
