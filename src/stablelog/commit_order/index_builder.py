"""Construction of the commit indexes of one partition from its log.

The builder reads the batch headers of the durable part of the log once, in offset order. For each open transaction it
keeps the extents (byte ranges) of its batches. At a commit marker, they become an entry in the commit index of the
marker's segment. At an abort marker, they are dropped. Consecutive batches outside transactions become one entry.

A start of the broker uses the existing commit indexes of sealed segments, up to the first index whose files are
incomplete, and reads the log from there on. The `.commitsummary` file of the last used index lists the transactions
that were open at the end of its segment. The builder finds their batches again in the earlier segments.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, takewhile
from operator import attrgetter

from stablelog.batch.header import CONTROL, TRANSACTIONAL, BatchHeader, crc_holds
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.commit_order.commit_index import CommitIndex
from stablelog.commit_order.extents import EXTENT, SEVERAL, Extents
from stablelog.commit_order.first_sequence import UNKNOWN, FirstSequence
from stablelog.commit_order.index_format import NO_PRODUCER
from stablelog.env.disk import Disk, File
from stablelog.errors import DamageError, DiskError
from stablelog.log.files.names import LOG
from stablelog.log.segments.proof import bad_crc
from stablelog.log.segments.sealed_segment import SealedSegment
from stablelog.log.segments.segment import Segment
from stablelog.log.view import ViewedLog

SPILL_SUFFIX = ".openextents"
TORN = -1  # stands for the first offset of a torn transaction, whose beginning retention has removed
INDEXES_OPEN = 16  # how many sealed commit indexes of a partition keep their files open


class IndexBuilder:
    """Builds the commit indexes of one partition. `advance` reads the batches that have become durable.

    Args:
        partition: the partition.
        disk: the disk of the partition.
        first_sequences: the rows of the file `log-start-sequence`. A crash may interrupt a deletion of segments, so
            there is a row for each segment that may be the first one now. It has the greatest commit sequence (number
            of a commit, counted over all topics of its transaction group) before the segment.

    Attributes:
        indexes: the commit indexes, one for each segment that the builder has reached. The last one grows.
        open: by producer id, the transactions that are open where the builder has stopped reading.
        failure: the error that has kept a sealed index from being written; None if all are written.
    """

    def __init__(
        self, partition: ViewedLog, disk: Disk, first_sequences: Sequence[FirstSequence] = ()
    ) -> None:
        self._partition = partition
        self._disk = disk
        # The greatest commit sequence before the first index; -1 if there is none, or if it is unknown.
        self._first_sequence = dict(first_sequences).get(partition.segments()[0].base_offset, UNKNOWN)
        # Sealed indexes whose files are not written yet, oldest first.
        self._unwritten: deque[CommitIndex] = deque()
        # The byte position up to which the builder has read the log file of the last segment that it has reached. The
        # index of this segment is the last one in `indexes`.
        self._position = 0
        self.indexes: list[CommitIndex] = []
        self.open: dict[int, Extents] = {}
        self.failure: DiskError | None = None

    # -- start -------------------------------------------------------------------------------------------------

    def load(self, progress: Callable[[int, int], None] | None) -> None:
        """Open the commit indexes (each lists the transactions that commit in a segment) of sealed segments, up to the
        first one whose files are incomplete, and read the log from there on.

        Args:
            progress: called with (bytes done, bytes of the log) after each segment that was read.

        Raises:
            DamageError: the log is damaged, or a commit marker does not match its transaction.
        """
        directory = self._partition.directory
        for name in self._disk.list_dir(directory):
            if name.endswith(SPILL_SUFFIX):
                self._disk.remove(directory / name)
        segments = self._partition.segments()
        for segment in segments[:-1]:
            index = CommitIndex(self._disk, directory, segment.base_offset)
            assert isinstance(segment, SealedSegment)
            if not index.open_sealed(segment.summary):
                break
            self.indexes.append(index)
        trusted = len(self.indexes)
        self._reopen(segments[:trusted])
        for segment in segments[trusted:]:
            segment.prove_now()
        self._begin_index(segments[trusted])
        done = sum(segment.size for segment in segments[:trusted])
        for segment in self._read_segments():
            done += segment.size
            if progress is not None:
                progress(done, self._partition.size)

    def _reopen(self, segments: list[Segment]) -> None:
        """Reopen transactions: find the batches of those that were open at the end of the last segment whose commit
        index was opened from files. The markers of these transactions follow in later segments.

        Args:
            segments: the segments whose commit indexes were opened from files.
        """
        summary = self.indexes[-1].summary if self.indexes else None
        if summary is None or not summary.open:
            return
        for producer_id, first_offset in summary.open:
            self._open_transaction(producer_id, first_offset)
        least = min(first_offset for _, first_offset in summary.open)
        for segment in segments:
            if segment.end_offset <= least:
                continue
            segment.prove_now()
            found = segment.find(least)
            for position, header in () if found is None else segment.walk(found.position):
                known = self.open.get(header.producer_id)
                # While a transaction is open, the log contains no batch of its producer outside this transaction.
                if known is not None and header.base_offset >= known.first_offset:
                    _add_batch(known, segment, position, header)

    def forget_deleted(self) -> list[CommitIndex]:
        """Close the commit indexes (lists of the commits in a segment) of segments that retention has deleted, and
        remove these indexes from `indexes`. Return the removed indexes.
        """
        first = self._partition.segments()[0].base_offset
        self._first_sequence = self.sequence_before(first)
        gone = [index for index in self.indexes if index.base_offset < first]
        for index in gone:
            index.close()
            if index in self._unwritten:
                self._unwritten.remove(index)
        del self.indexes[: len(gone)]
        return gone

    def close(self) -> None:
        """Close the files of all commit indexes (each lists the transactions that commit in a segment), and the
        temporary files of open transactions.
        """
        for index in self.indexes:
            index.close()
        for one in self.open.values():
            one.close()

    def sequence_before(self, base_offset: int) -> int:
        """Return the greatest commit sequence (the number of a commit, counted over all topics of its transaction
        group) before the segment with this base offset; -1 if there is none, or if it is unknown.
        """
        return max(
            (index.latest_sequence for index in self.indexes if index.base_offset < base_offset),
            default=self._first_sequence,
        )

    # -- indexes -----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Advance to the high watermark: read the batches that have become durable, add them to the commit indexes
        (each lists the transactions that commit in a segment), and write the indexes of segments that were sealed.

        Indexes that cannot be written stay in memory, and `failure` has the error. A later call writes them.
        """
        if self._unwritten:
            self._write_sealed()
        for _ in self._read_segments():
            pass

    def _read_segments(self) -> Iterator[Segment]:
        """Read the log up to the high watermark, from where the last call has stopped. Yield each segment after it was
        read.
        """
        limit = self._partition.high_watermark
        segments = self._partition.segments()
        place = bisect_left(segments, self.indexes[-1].base_offset, key=attrgetter("base_offset"))
        while True:
            segment = segments[place]
            self._read_segment(segment, limit)
            yield segment
            place += 1
            if place == len(segments) or segment.end_offset > limit:
                return
            self._seal_index(segment)
            self._begin_index(segments[place])

    def _begin_index(self, segment: Segment) -> None:
        index = CommitIndex(self._disk, self._partition.directory, segment.base_offset)
        index.create(self.indexes[-1] if self.indexes else None, self._first_sequence)
        self.indexes.append(index)
        self._position = 0

    def _seal_index(self, segment: Segment) -> None:
        assert segment.base_offset == self.indexes[-1].base_offset
        assert isinstance(segment, SealedSegment)
        self.indexes[-1].seal(
            segment.summary, [(producer_id, one.first_offset) for producer_id, one in self.open.items()]
        )
        self._unwritten.append(self.indexes[-1])
        self._write_sealed()
        for index in self.indexes[-INDEXES_OPEN - 1 : -INDEXES_OPEN]:
            if index.is_written:
                index.close_written()

    def _write_sealed(self) -> None:
        self.failure = None
        try:
            while self._unwritten:
                self._unwritten[0].write()
                self._unwritten.popleft()
        except DiskError as error:
            self.failure = error

    # -- batches -----------------------------------------------------------------------------------------------

    def _read_segment(self, segment: Segment, limit: int) -> None:
        """Read those batches of a segment that end at or before the offset `limit`, and remember their places. When a
        transaction commits, its entry in a commit index (the list of the commits of a segment) gets the places of its
        batches.
        """
        batches = takewhile(lambda found: found[1].next_offset <= limit, segment.walk(self._position))
        for is_outside, same in groupby(
            batches, lambda found: not found[1].attributes & (TRANSACTIONAL | CONTROL)
        ):
            if is_outside:
                self._add_outside(segment, same)
                continue
            for position, header in same:
                self._position = position + header.size
                if header.is_control:
                    self._end_transaction(segment, position, header)
                else:
                    known = self.open.get(header.producer_id) or self._open_transaction(
                        header.producer_id, header.base_offset
                    )
                    _add_batch(known, segment, position, header)

    def _add_outside(self, segment: Segment, batches: Iterator[tuple[int, BatchHeader]]) -> None:
        """Add one entry to the segment's commit index, for a run of batches outside transactions, which follow each
        other in the log.
        """
        begin, header = next(batches)
        start, end, latest_ms = header.base_offset, header.next_offset, header.max_timestamp
        self._position = begin + header.size
        for position, header in batches:
            self._position = position + header.size
            end, latest_ms = header.next_offset, max(latest_ms, header.max_timestamp)
        self.indexes[-1].add_entry(
            start,
            end - start,
            time_ms=latest_ms,
            first_offset=start,
            producer_id=NO_PRODUCER,
            commit_sequence=-1,
            leader_epoch=-1,
            extents=[EXTENT.pack(start, SEVERAL, -1, segment.base_offset, begin, self._position)],
        )

    def _open_transaction(self, producer_id: int, first_offset: int) -> Extents:
        path = self._partition.directory / f"{first_offset:020d}-{producer_id}{SPILL_SUFFIX}"

        def make_spill() -> File:
            file = self._disk.open(path, create=True)
            try:
                # The name of the spill file is removed at once. The open file stays usable, and the system frees its
                # space when it is closed.
                self._disk.remove(path)
            except DiskError:
                file.close()
                raise
            return file

        self.open[producer_id] = Extents(first_offset, make_spill)
        return self.open[producer_id]

    def _end_transaction(self, segment: Segment, position: int, header: BatchHeader) -> None:
        batch = segment.log.read(position, header.size)
        if not crc_holds(batch, 0, header):
            raise DamageError(bad_crc(segment.path(LOG), header, position))
        marker = read_marker(batch)
        if marker is None:
            return
        ended = self.open.pop(header.producer_id, None)
        if marker.type is MarkerType.COMMIT and header.last_offset_delta:
            self._commit(header, marker.commit_sequence, ended)
        if ended is not None:
            ended.close()

    def _commit(self, header: BatchHeader, commit_sequence: int, ended: Extents | None) -> None:
        """Add the entry of a committed transaction to the commit index of the segment that has its marker. The commit
        index lists the transactions that commit in the segment.

        Args:
            header: the header of the commit marker.
            commit_sequence: the commit sequence in the marker, the number of the commit, counted over all topics of its
                transaction group.
            ended: the byte ranges of the transaction's batches; None if the log has no batch of it.

        Raises:
            DamageError: the marker takes positions for another number of records than the transaction has. This is
                damage only if the log still begins at offset 0, so that no batch of the transaction was deleted.
        """
        count = header.last_offset_delta
        whole = ended if ended is not None and ended.record_count == count else None
        if whole is None and self._partition.segments()[0].base_offset == 0:
            raise DamageError(
                f"{self._partition.topic}-{self._partition.index}: the commit marker at offset "
                f"{header.base_offset} says that its transaction has {count} records, but the log has "
                f"{ended.record_count if ended else 0} records of this transaction"
            )
        start = header.base_offset + 1
        self.indexes[-1].add_entry(
            start,
            count,
            time_ms=header.max_timestamp,
            first_offset=TORN if whole is None else whole.first_offset,
            producer_id=header.producer_id,
            commit_sequence=commit_sequence,
            leader_epoch=header.leader_epoch,
            extents=() if whole is None else whole.rows(start, header.leader_epoch),
        )


def _add_batch(transaction: Extents, segment: Segment, position: int, header: BatchHeader) -> None:
    # Count the offsets of the batch, not its records: a batch takes one position for each of its offsets, also for
    # those of records that compaction has removed.
    transaction.add_batch(segment.base_offset, position, header.size, header.last_offset_delta + 1)
