"""How many records there are, by what headers and summaries say: no record is decoded, and of most segments no byte is read.

A sealed segment's summary counts its committed records, but by where their transaction's marker is: records of a
transaction that began in an earlier segment count where it ended. So at both ends of a run of segments the
transactions that were open there are counted by hand, which is as far as the first undecided offset reaches.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from stablelog.batch.header import BatchHeader, headers_in
from stablelog.batch.records import decode_records
from stablelog.errors import Corrupt, Unavailable
from stablelog.log.transaction_index import AbortedTxn
from stablelog.spark.cuts import batch_ranges
from stablelog.spark.fetch import FETCH_SIZE, BrokerLog
from stablelog.spark.options import BATCH, read_options
from stablelog.spark.planning import shares
from stablelog.spark.resolve import Range, name
from stablelog.spark.segments import PartitionFiles, SegmentFile

_NO_LIMIT = 2**62


def count(given: Mapping[str, str] | None = None, **more: str) -> int:
    """How many records a batch read with these options has: exact, and far cheaper than reading them.

    From segment files by their summaries, in milliseconds; by the protocol from the headers of record batches.

    Args:
        given: options as of `spark.read.format("stablelog")`.
        more: the same, for names without a dot.

    Raises:
        InvalidConfig, Refused, Unavailable, Corrupt: as the read.
    """
    from stablelog.spark.files import steadily
    from stablelog.spark.source import open_log

    options = read_options({**(given or {}), **more}, BATCH)
    log = open_log(options)
    committed = options.isolation == "read_committed"
    try:
        ranges, topic_ids = batch_ranges(options, log)
        total = 0
        for wanted in ranges:
            files = log.files_of(wanted.place, topic_ids)
            if files is not None:
                total += steadily(
                    files,
                    lambda files=files, wanted=wanted: files_count(  # type: ignore[misc]
                        files, wanted.start, wanted.end, committed=committed
                    ),
                )
            else:
                broker = getattr(log, "broker", log)
                assert isinstance(broker, BrokerLog)
                total += _fetched_count(broker, wanted, options.isolation)
        return total
    finally:
        log.close()


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
    """The records of [start, end) that a reader sees. All of it is decided, or it is not asked for committed ones only."""
    bases = [segment.base_offset for segment in files.segments]
    first = bisect_left(bases, start)
    if committed and first == 0 and bases[0] > 0:
        first = 1  # what is gone in front of it may be of a transaction that ended in it
    last = first
    while (
        last < len(bases) - 1
        and (summary := files.segments[last].summary) is not None
        and bases[last + 1] <= end
        and summary.end_offset <= end
    ):
        last += 1
    if committed and first and first < last and files.segments[first - 1].summary is None:
        first = last  # where the undecided offsets began is not known
    run = files.segments[first:last]
    if not run:
        return _walked(files, start, end, committed=committed)
    head, tail = bases[first], bases[last]
    total = _walked(files, start, head, committed=committed) + _walked(files, tail, end, committed=committed)
    if not committed:
        return total + sum(segment.summary.record_count for segment in run if segment.summary)
    total += sum(segment.summary.committed_count for segment in run if segment.summary)
    aborted = Aborted.of(files.aborted(start, end))
    left_open = _open_at(files, _stable_offset(run[-1]), tail, head, aborted)
    for txn in left_open.values():
        if not txn.is_aborted:
            total += txn.count_behind  # ended behind the run, and not counted there
    if first:
        for key, txn in _open_at(
            files, _stable_offset(files.segments[first - 1]), head, head, aborted
        ).items():
            if not txn.is_aborted and key not in left_open:
                # Ended within the run, and counted there with what stands in front of it.
                total -= txn.count_before
    return total


def _stable_offset(segment: SegmentFile) -> int:
    assert segment.summary is not None
    return segment.summary.stable_offset


@dataclass(slots=True)
class _OpenTxn:
    """A transaction that is open at some offset, with its records before and behind a split."""

    is_aborted: bool
    count_before: int = 0
    count_behind: int = 0


def _open_at(
    files: PartitionFiles, start: int, end: int, split: int, aborted: Aborted
) -> dict[tuple[int, int], _OpenTxn]:
    """The transactions that are open at `end`, none of which began before `start`: by producer and first offset."""
    found: dict[int, tuple[int, _OpenTxn]] = {}
    for header, _ in _headers(files, start, end):
        if not header.is_transactional or header.base_offset < start:
            continue
        if header.is_control:
            found.pop(header.producer_id, None)
            continue
        if header.producer_id not in found:
            found[header.producer_id] = header.base_offset, _OpenTxn(aborted.holds(header))
        txn = found[header.producer_id][1]
        if header.base_offset < split:
            txn.count_before += header.record_count
        else:
            txn.count_behind += header.record_count
    return {(producer_id, begun): txn for producer_id, (begun, txn) in found.items()}


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
    total, offset = 0, wanted.start
    open_aborted: set[int] = set()
    while offset < wanted.end:
        fetched = broker.cluster.fetch(*wanted.place, offset, FETCH_SIZE, isolation)
        ahead = sorted((first, producer) for producer, first in fetched.aborted)
        reached = offset
        for position, header in headers_in(fetched.records):
            reached = header.next_offset
            while ahead and ahead[0][0] <= header.last_offset:
                open_aborted.add(ahead.pop(0)[1])
            if header.is_control:
                open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                batch = fetched.records[position : position + header.size]
                total += _inside(header, batch, wanted.start, wanted.end)
        if reached <= offset:
            if len(fetched.records):
                raise Corrupt(
                    f"{name(wanted.place)}: the broker answers offset {offset} with what does not reach it"
                )
            if fetched.last_stable_offset <= offset:
                raise Unavailable(f"{name(wanted.place)} ends before offset {wanted.end} by now")
            reached = min(fetched.last_stable_offset, wanted.end)
        offset = reached
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
