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

Source: Kafka's log cleaner; docs/formats.md, "Compacted segments".
"""

from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stablelog.batch.filtering import without_records
from stablelog.batch.header import HEADER, BatchHeader, crc_holds
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import DamageError
from stablelog.log.compaction.policy import Kept, TransactionWalk
from stablelog.log.compaction.rewriter import Cleaned, Pass, Rewriter, open_segments
from stablelog.log.files.names import LOG, SegmentName
from stablelog.log.indexes.summary import Summary
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.segments.growing_segment import GrowingSegment
from stablelog.log.segments.proof import bad_crc
from stablelog.log.segments.sealed_segment import SealedSegment

STEP_COUNT = 500  # how many batch headers one step reads
# The entries of the transaction index are read for this many offsets at a time, to bound the memory.
WINDOW = 10_000
# A segment in which the last batches of more producers than this are aborted is not rewritten, to bound the memory.
PRODUCERS_MAX = 100_000


class _Reading:
    """One pass over the batches of a segment that finds the batches of aborted transactions.

    Args:
        segment: the segment.
        spanning: the aborted transactions that began before the segment's end and whose markers are in later segments,
            so that the segment's own index does not have them.
    """

    def __init__(self, segment: SealedSegment, spanning: Sequence[AbortedTxn]) -> None:
        self._segment = segment
        self._walk = TransactionWalk()
        self._walk.expect_aborted(spanning)
        self._announced_to = segment.base_offset

    def _announce_up_to(self, header: BatchHeader) -> None:
        if header.next_offset > self._announced_to:
            end = header.next_offset + WINDOW
            self._walk.expect_aborted(self._segment.txn_index.collect(self._announced_to, end)[0])
            self._announced_to = end

    def process_data(self, header: BatchHeader) -> AbortedTxn | None:
        """Process the next batch, a data batch. Return its transaction if the transaction was aborted; otherwise None."""
        self._announce_up_to(header)
        txn = self._walk.process_data(header)
        # If Kafka's compaction has removed the marker, the walk does not see the end of the transaction.
        return None if txn is None or txn.last_offset < header.base_offset else txn

    def process_marker(self, header: BatchHeader, batch: Buffer) -> AbortedTxn | None:
        """Process the next batch, a control batch. Return the index entry of the transaction that it aborts; None if
        the batch is no abort marker, or if the transaction index has no entry for it.
        """
        self._announce_up_to(header)
        return self._walk.process_marker(header, batch).entry


def last_aborted(
    segment: SealedSegment, spanning: Sequence[AbortedTxn]
) -> Generator[None, None, dict[int, int] | None]:
    """Find, in steps, the producers whose last batch in a segment belongs to an aborted transaction.

    Yields:
        None after each step, so that the caller can do other work in between.

    Returns:
        The last offset of this batch, by producer id. None if nothing is to be removed from the segment, because it has
        no batch of an aborted transaction, or if the batches of too many producers would have to be kept in memory.

    Raises:
        DamageError: the log file or the transaction index is damaged.
    """
    reading, last = _Reading(segment, spanning), dict[int, int]()
    is_any = False
    for header, batch in _heads(segment):
        if header is None:
            yield None
        elif header.is_control:
            reading.process_marker(header, batch)
        elif reading.process_data(header) is not None:
            is_any = True
            last[header.producer_id] = header.last_offset
            if len(last) > PRODUCERS_MAX:
                return None
        else:
            last.pop(header.producer_id, None)
    return last if is_any else None


def _heads(segment: SealedSegment) -> Iterator[tuple[BatchHeader, bytes] | tuple[None, bytes]]:
    """Yield the batches of a segment as (header, bytes). For a data batch, the bytes are only those of the header. Also
    yield (None, b"") after each step of the work, so that the caller can end its own step there.
    """
    for _ in segment.prove():
        yield None, b""
    for count, (position, header) in enumerate(segment.walk(0), 1):
        if header.is_control:
            batch = segment.log.read(position, header.size)
            if not crc_holds(batch, 0, header):  # the proof has checked the header only
                raise DamageError(bad_crc(segment.path(LOG), header, position))
            yield header, batch
        else:
            yield header, HEADER.pack(*header)
        if count % STEP_COUNT == 0:
            yield None, b""


class RemovalRules:
    """The rules that decide which batches of one segment stay when aborted data is removed.

    Args:
        segment: the segment.
        spanning: the aborted transactions that began before the segment's end and whose markers are in later segments.
        last: the result of `last_aborted`.
    """

    def __init__(
        self, segment: SealedSegment, spanning: Sequence[AbortedTxn], last: Mapping[int, int]
    ) -> None:
        self._begin, self._end = segment.base_offset, segment.end_offset
        self._reading = _Reading(segment, spanning)
        self._last = last

    def keep_batch(self, header: BatchHeader, batch: Buffer) -> Kept:
        """Decide what stays of a batch. The caller passes the batches in the order of the log. Of a data batch, only
        the header is read.
        """
        return self._keep_marker(header, batch) if header.is_control else self._keep_data(header, batch)

    def _keep_data(self, header: BatchHeader, batch: Buffer) -> Kept:
        txn = self._reading.process_data(header)
        if txn is None:
            return Kept(batch, record_count=header.record_count)
        is_first = header.base_offset <= txn.first_offset
        if not self._stays(txn) or not (is_first or header.last_offset == self._last.get(header.producer_id)):
            return Kept(None)
        return Kept(without_records(header) if header.record_count else batch)

    def _keep_marker(self, header: BatchHeader, batch: Buffer) -> Kept:
        txn = self._reading.process_marker(header, batch)
        return Kept(None) if txn is not None and not self._stays(txn) else Kept(batch, entry=txn)

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
        """Add a range of bytes of the original file to the end of the new file."""
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
    """A segment without its aborted data, described in memory. Its files are not written.

    Attributes:
        summary: the summary of the new segment.
        indexes: the contents of its indexes, in the order of INDEX_SUFFIXES.
        log: the bytes of its log file.
    """

    summary: Summary
    indexes: tuple[bytes, bytes, bytes]
    log: RewrittenLog


class _Describer(Rewriter):
    """A rewriter that describes the new segment in memory, and writes no file."""

    def __init__(self, segment: GrowingSegment, index_interval: int) -> None:
        super().__init__(segment, index_interval)
        self.log = RewrittenLog()
        self._original: Buffer = b""
        self._position = 0  # of the original batch in the original file

    def write_batch(self, header: BatchHeader, batch: Buffer, kept: Kept) -> None:
        """Add the part of a batch that stays. The caller passes all batches of the original file, in their order."""
        self._original = batch
        super().write_batch(header, batch, kept)
        self._position += header.size

    def _put_batch(self, batch: Buffer) -> None:
        self._index_batch(batch)
        if batch is self._original:
            self.log.add_range(self._position, self.segment.size - self.log.size)
        else:
            self.log.add_new(bytes(batch))


def without_aborted(
    disk: Disk, directory: Path, summary: Summary, spanning: Sequence[AbortedTxn], *, index_interval: int
) -> Generator[None, None, Rewritten | None]:
    """Describe, in steps, a copy of a sealed segment without its aborted data. Nothing is written, and any thread may
    run the steps.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summary: the summary of the segment.
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
    try:
        last = yield from last_aborted(segment, spanning)
        if last is None:
            return None
        described = GrowingSegment(disk, SegmentName.of(directory, summary.base_offset))
        out = _Describer(described, index_interval)
        rules = RemovalRules(segment, spanning, last)
        for header, batch in _heads(segment):
            if header is None:
                yield None
            else:
                out.write_batch(header, batch, rules.keep_batch(header, batch))
        out.finish(summary.end_offset)
    finally:
        segment.close()
    if not out.changed:
        return None
    described.complete_time_index()
    described.committed_count = summary.committed_count  # no committed record has gone
    content = described.make_summary(summary.stable_offset)
    index, timeindex, txnindex = (bytes(one) for one in described.growing.contents())
    return Rewritten(content, (index, timeindex, txnindex), out.log)


class RemovalPass(Pass):
    """A pass that removes the data of aborted transactions from the local segments of a partition.

    Args:
        disk: the disk of the partition.
        directory: the partition's directory.
        summaries: the summaries of the segments, which follow each other. Their transactions have all ended.
        spanning: the aborted transactions that began in these segments and whose markers are in later ones.
        index_interval: the number of bytes between two entries of an offset index.
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
        super().__init__(disk, directory, summaries, index_interval=index_interval)
        self._spanning = spanning
        self._end_offset = summaries[-1].end_offset

    @property
    def end_offset(self) -> int:
        """The end of the last segment of the pass, exclusive."""
        return self._end_offset

    @property
    def outcome(self) -> str:
        """The result of the pass as text for a log line; empty if no segment was rewritten."""
        if not self.read_size:
            return ""
        return f"removed aborted data up to offset {self.end_offset}: {self.written_size} bytes of {self.read_size} remain"

    def _run(self) -> Generator[Cleaned | None]:
        for segment in self._segments:
            summary = segment.summary
            later = self._segments.aborted(segment.end_offset, segment.end_offset)
            spanning = [*later, *(one for one in self._spanning if one.first_offset < segment.end_offset)]
            if summary.txnindex_size or spanning:
                try:
                    yield from self._clean(segment, summary, spanning)
                except (DamageError, FileNotFoundError):
                    if self._disk.exists(segment.path(LOG)):
                        raise
                    # Retention has deleted the segment.

    def _clean(
        self, segment: SealedSegment, summary: Summary, spanning: Sequence[AbortedTxn]
    ) -> Iterator[Cleaned | None]:
        last = yield from last_aborted(segment, spanning)
        if last is not None:
            rules = RemovalRules(segment, spanning, last)
            yield from self._rewrite_group(
                [summary],
                lambda out: self._remove(segment, out, rules),
                committed_count=summary.committed_count,  # no committed record is removed
            )

    def _remove(self, segment: SealedSegment, out: Rewriter, rules: RemovalRules) -> Iterator[None]:
        for header, batch in self._batches(segment):
            if header is None:
                yield None
            else:
                out.write_batch(header, batch, rules.keep_batch(header, batch))
