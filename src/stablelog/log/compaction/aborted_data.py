"""Removal of aborted data (the data of aborted transactions) from sealed segments: from a copy of a segment, or in
place.

What stays of a segment depends only on its batches and on the aborted transactions with records in it. It does not
depend on whether aborted data was removed from another segment, or from the segment's copy in the object store. These
are the rules:

- If a whole aborted transaction is in the segment, and the segment has a later batch of the same producer, then all
  batches of the transaction, its marker and its entry in the transaction index are removed.
- Otherwise the marker and the entry of the transaction stay in the segment that has them. (An entry without its marker
  would do harm: a consumer that reads an entry drops all records of the producer up to the next abort marker, and would
  also drop committed records.) All records of the transaction are removed from the segment. At most two of its batches
  stay, without their records: the first batch of the transaction, so that a replay of the log finds where the
  transaction begins, and the last batch of the producer in the segment, which has the producer's last sequence number.
- All other batches stay, byte for byte. Offsets never change. The last batch of a segment always stays.

If the rules are applied to a segment a second time, nothing changes.

Source: Kafka's log cleaner; docs/reference/formats.md, "Compacted segments".
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from stablelog.batch.filtering import without_records
from stablelog.batch.header import BatchHeader
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError
from stablelog.log.compaction.policy import Kept, TransactionWalk
from stablelog.log.compaction.rewriter import Cleaned, Pass, Rewriter, open_segments, read_batches
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.sealed_segment import SealedSegment

# A segment in which the last batches of more producers than this are aborted is not rewritten, to bound the memory.
PRODUCERS_MAX = 100_000


def _walk_of(segment: SealedSegment, spanning: Sequence[AbortedTxn]) -> TransactionWalk:
    """Return a new `TransactionWalk` for one pass over the batches of a segment. It tells which of the batches belong
    to aborted transactions.

    Args:
        segment: the segment.
        spanning: the aborted transactions that began before the segment's end and whose markers are in later segments,
            so that the segment's own index does not have them.
    """
    return TransactionWalk(
        segment.base_offset, spanning, lambda start, end: segment.txn_index.collect(start, end)[0]
    )


def find_removal_rules(
    segment: SealedSegment, spanning: Sequence[AbortedTxn]
) -> Generator[None, None, "RemovalRules | None"]:
    """Read a segment, in steps, to find the rules for the removal of its aborted data (the data of aborted
    transactions).

    Args:
        segment: the segment.
        spanning: the aborted transactions that began before the segment's end and whose markers are in later segments.

    Yields:
        None after each step, so that the caller can do other work in between.

    Returns:
        The rules. None if nothing is to be removed from the segment, because it has no batch of an aborted transaction,
        or if the batches of too many producers would have to be kept in memory.

    Raises:
        DamageError: the log file or the transaction index is damaged.
    """
    walk, last = _walk_of(segment, spanning), dict[int, int]()
    is_any = False
    for header, batch in read_batches(segment, with_bodies=False):
        if header is None:
            yield None
        elif header.is_control:
            walk.process_marker(header, batch)
        elif walk.process_data(header) is not None:
            is_any = True
            last[header.producer_id] = header.last_offset
            if len(last) > PRODUCERS_MAX:
                return None
        else:
            last.pop(header.producer_id, None)
    return RemovalRules(segment, spanning, last) if is_any else None


class RemovalRules:
    """The rules that decide which batches of one segment stay when aborted data (the data of aborted transactions) is
    removed.

    Args:
        segment: the segment.
        spanning: the aborted transactions that began before the segment's end and whose markers are in later segments.
        last: by producer id: the last offset of the producer's last batch in the segment, if this batch belongs to an
            aborted transaction. Such a batch stays, without its records, because it has the producer's last sequence
            number.
    """

    def __init__(
        self, segment: SealedSegment, spanning: Sequence[AbortedTxn], last: Mapping[int, int]
    ) -> None:
        self._begin, self._end = segment.base_offset, segment.end_offset
        self._walk = _walk_of(segment, spanning)
        self._last = last

    def keep_batch(self, header: BatchHeader, batch: Buffer) -> Kept:
        """Decide which part of a batch is kept. The caller passes the batches in the order of the log. Of a data batch,
        `batch` may have only the header.
        """
        if header.is_control:
            txn = self._walk.process_marker(header, batch).entry
            return Kept(None) if txn is not None and not self._stays(txn) else Kept(batch, entry=txn)
        txn = self._walk.process_data(header)
        if txn is None:
            return Kept(batch)
        is_first = header.base_offset <= txn.first_offset
        if not self._stays(txn) or not (is_first or header.last_offset == self._last.get(header.producer_id)):
            return Kept(None)
        return Kept(without_records(header) if header.record_count else batch)

    def _stays(self, txn: AbortedTxn) -> bool:
        """Whether the marker and the index entry of an aborted transaction stay in the segment."""
        is_whole = self._begin <= txn.first_offset and txn.last_offset < self._end
        last = self._last.get(txn.producer_id)
        return not is_whole or (last is not None and txn.first_offset <= last < txn.last_offset)


class RewrittenLog:
    """The bytes of a new log file that is made from an original one. They consist of ranges of the original file, and
    of new batches.

    Attributes:
        size: the size of the new file in bytes.
    """

    __slots__ = ("_begins", "_new", "_origins", "size")

    def __init__(self) -> None:
        self.size = 0
        self._begins = array("q")  # where each range begins in the new file
        self._origins = array("q")  # where it begins in the original file; -1 - n for the new batch number n
        self._new: list[bytes] = []

    def add_range(self, origin: int, size: int) -> None:
        """Add the `size` bytes at the position `origin` of the original file to the end of the new file."""
        is_next = len(self._begins) and self._origins[-1] == origin - (self.size - self._begins[-1])
        if not is_next or self._origins[-1] < 0:
            self._begins.append(self.size)
            self._origins.append(origin)
        self.size += size

    def add_new(self, batch: bytes) -> None:
        """Add a new batch to the end of the new file."""
        self._begins.append(self.size)
        self._origins.append(-1 - len(self._new))
        self._new.append(batch)
        self.size += len(batch)

    def read(self, original: Callable[[int, int], bytes], position: int, size: int) -> bytes:
        """Return up to `size` bytes of the new file.

        Args:
            original: reads the original file, as `original(position, size)`.
            position: the position of the first byte in the new file.
            size: the number of bytes. Fewer are returned at the end of the file.

        Raises:
            DamageError: the original file has become shorter.
        """
        end = min(position + size, self.size)
        parts: list[bytes] = []
        place = bisect_right(self._begins, position) - 1
        while position < end:
            begin, origin = self._begins[place], self._origins[place]
            place += 1
            stop = min(self._begins[place] if place < len(self._begins) else self.size, end)
            at = position - begin
            if origin < 0:
                parts.append(self._new[-1 - origin][at : stop - begin])
            else:
                part = original(origin + at, stop - position)
                if len(part) != stop - position:
                    raise DamageError(
                        "a log file has become shorter while it was copied: it ends at byte "
                        f"{origin + at + len(part)}"
                    )
                parts.append(part)
            position = stop
        return b"".join(parts)


class Rewritten(NamedTuple):
    """A segment without its aborted data (the data of aborted transactions): what its files would contain. They are not
    written to the disk.

    Attributes:
        summary: the summary of the new segment: its offsets, timestamps, counts, file sizes and checksums.
        indexes: the contents of its indexes, in the order offset index, time index, transaction index.
        log: the bytes of its log file.
    """

    summary: Summary
    indexes: tuple[bytes, bytes, bytes]
    log: RewrittenLog


class _Describer(Rewriter):
    """A rewriter that writes no file: it only records, in memory, from which bytes the log file of the new segment
    would consist, and what its indexes and its summary would contain.
    """

    def __init__(self, segment: GrowingSegment, index_interval: int) -> None:
        super().__init__(segment, index_interval)
        self.log = RewrittenLog()

    def _put_batch(self, batch: Buffer, origin: int | None) -> None:
        self._index_batch(batch)
        if origin is None:
            self.log.add_new(bytes(batch))
        else:
            self.log.add_range(origin, self.segment.size - self.log.size)


def without_aborted(
    disk: Disk, directory: Path, summary: Summary, spanning: Sequence[AbortedTxn], *, index_interval: int
) -> Generator[None, None, Rewritten | None]:
    """Describe, in steps, the copy that a sealed segment would have without its aborted data (the data of aborted
    transactions). Nothing is written, and any thread may run the steps.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summary: the summary of the segment: its offsets, timestamps, counts, file sizes and checksums.
        spanning: the aborted transactions that began before the segment's end and whose markers are in later segments.
        index_interval: the number of bytes between two entries of the offset index.

    Yields:
        None after each step, so that the caller can do other work in between.

    Returns:
        The new segment; None if no data is to be removed.

    Raises:
        DamageError: the log file or the transaction index is damaged or missing.
        DiskError: a file cannot be read.
    """
    if not summary.txnindex_size and not spanning:
        return None
    [segment] = open_segments(disk, directory, [summary])
    with closing(segment):
        rules = yield from find_removal_rules(segment, spanning)
        if rules is None:
            return None
        described = GrowingSegment(disk, SegmentName.of(directory, summary.base_offset))
        out = _Describer(described, index_interval)
        yield from out.write_batches(read_batches(segment, with_bodies=False), rules.keep_batch)
        out.finish(summary.end_offset)
    if not out.changed:
        return None
    described.complete_time_index()
    described.committed_count = summary.committed_count  # no committed record has gone
    index, timeindex, txnindex = (bytes(one) for one in described.growing.contents())
    return Rewritten(described.make_summary(summary.stable_offset), (index, timeindex, txnindex), out.log)


class RemovalPass(Pass):
    """A pass that removes the data of aborted transactions from the local segments of a partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries of the segments (their offsets, file sizes and checksums), without a gap between two
            segments. All transactions that began in these segments have ended.
        spanning: the aborted transactions that began in these segments and whose markers are in later ones.
        index_interval: the number of bytes between two entries of an offset index.
    """

    @property
    def end_offset(self) -> int:
        """The end of the last segment of the pass, exclusive."""
        return self._segments[len(self._segments) - 1].end_offset

    @property
    def outcome(self) -> str:
        """The result of the pass as text for a log line; empty if no segment was rewritten."""
        if not self.read_size:
            return ""
        return f"removed aborted data up to offset {self.end_offset}: {self.written_size} bytes of {self.read_size} remain"

    def _run(self) -> Generator[Cleaned | None]:
        for segment in self._segments:
            spanning = [
                *self._find_aborted(segment.end_offset, segment.end_offset),
                *(one for one in self._spanning if one.first_offset < segment.end_offset),
            ]
            if segment.summary.txnindex_size or spanning:
                try:
                    yield from self._clean(segment, spanning)
                except (DamageError, FileNotFoundError):
                    if self._disk.exists(segment.path(LOG)):
                        raise
                    # Retention has deleted the segment.

    def _clean(self, segment: SealedSegment, spanning: Sequence[AbortedTxn]) -> Iterator[Cleaned | None]:
        rules = yield from find_removal_rules(segment, spanning)
        if rules is not None:
            yield from self._rewrite_group(
                [segment.summary],
                lambda out: out.write_batches(read_batches(segment, with_bodies=True), rules.keep_batch),
                committed_count=segment.summary.committed_count,  # no committed record is removed
            )
