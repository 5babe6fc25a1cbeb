"""Commit order: what a read-committed reader of a commit-ordered topic gets.

The commit marker of a transaction with N records here takes N+1 offsets. The first is its own; the N behind it are
the positions of the transaction's records in commit order. So a position is "commit record plus local sequence
number" in the log's own offset space, and the log itself is all that has to be remembered: restarts, truncation and
other replicas agree by construction. Records outside transactions stand at their own offsets.

Reading goes back from the marker to the transaction's batches and hands them out with another base offset and leader
epoch, which no CRC covers. Nothing undecided is in the view, so no reader waits for a transaction but its own, and
nothing has to be said of aborted ones.

Source: the DistributedLog paper; docs/architecture.md, "Commit order".
"""

from collections import deque
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from stablelog.batch.header import BatchHeader, crc_holds
from stablelog.batch.markers import MarkerType, read_marker
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt, DiskError, OffsetOutOfRange, Unproven
from stablelog.log.model import Slice
from stablelog.log.names import LOG
from stablelog.log.partition import Partition
from stablelog.log.proof import bad_crc
from stablelog.log.read import STEP_COUNT_MAX, Batch, Lookup, TimestampedOffset, in_steps
from stablelog.log.segment import Segment
from stablelog.views.commit_index import NO_PRODUCER, CommitIndex, Entry
from stablelog.views.extents import EXTENT, SEVERAL, Extent, Extents
from stablelog.views.gather import Gathered
from stablelog.views.stretches import Stretch, stretches

SPILL_SUFFIX = ".openextents"
TORN = -1  # stands for the first offset of a transaction that has lost its beginning
READERS = 256  # who are known to go on where they were
INDEXES_OPEN = 16  # sealed commit indexes that hold files open, of each view


class Committed(NamedTuple):
    """A transaction of the view: its records stand at [start, end)."""

    start: int
    end: int
    commit_sequence: int
    time_ms: int


class _Open:
    """A transaction that is open where the walk stands."""

    __slots__ = ("extents", "first_offset")

    def __init__(self, first_offset: int, extents: Extents) -> None:
        self.first_offset = first_offset
        self.extents = extents


class _Run:
    """Batches outside transactions, one behind the other: of these offsets, at these positions of the segment."""

    __slots__ = ("begin_position", "end", "end_position", "latest_ms", "start")

    def __init__(self, header: BatchHeader, position: int) -> None:
        self.start = self.end = header.base_offset
        self.begin_position = self.end_position = position
        self.latest_ms = header.max_timestamp


class CommitOrder:
    """The view of one partition in commit order. `advance` takes in what has become durable.

    Args:
        partition: its topic is commit-ordered.
        disk: where it lies.

    Attributes:
        failure: why a sealed index is not written yet; None if all are.
    """

    def __init__(
        self, partition: Partition, disk: Disk, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._partition = partition
        self._disk = disk
        self.failure: DiskError | None = None
        self._indexes: list[CommitIndex] = []
        self._unwritten: deque[CommitIndex] = deque()  # sealed ones
        self._open: dict[int, _Open] = {}
        self._position: int  # where the walk stands in the last segment; set with its index
        self._log_start = -1
        self._ends: dict[int, bool] = {}  # where the last reads ended, oldest first
        self._start = 0
        self._torn: dict[
            int, tuple[int, int, int]
        ] = {}  # by index: log start, entries that were looked at, found
        try:
            self._load(progress)
        except BaseException:
            self.close()
            raise

    # -- what there is -----------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """The first position that can be read.

        Of those behind it, a transaction that has lost its beginning to retention is gone as a whole.
        """
        log_start = self._partition.start_offset
        if log_start != self._log_start:
            self._start = max(self._start, log_start)
            self._log_start = log_start
        return self._start

    def forget_deleted(self) -> None:
        """Segments were deleted, which need not move the log's start: their indexes are gone with them."""
        first = self._partition.segments()[0].base_offset
        while self._indexes[0].base_offset < first:
            gone = self._indexes.pop(0)
            self._torn.pop(gone.base_offset, None)
            gone.close()
            if gone in self._unwritten:
                self._unwritten.remove(gone)

    def _is_torn(self, entry: Entry) -> bool:
        """Whether retention has taken the beginning of a transaction, and with that all of it."""
        return entry.producer_id != NO_PRODUCER and entry.first_offset < self._log_start

    @property
    def end_offset(self) -> int:
        """The position behind the last one that can be read. It never moves back."""
        return max(self._indexes[-1].view_end, self.start_offset)

    @property
    def latest_sequence(self) -> int:
        """The greatest commit sequence of the transactions up to here; -1 if there is none."""
        return self._indexes[-1].latest_sequence

    def whole_from(self, position: int) -> int:
        """A position, or where the transaction ends in which it lies: from there on nothing is in part."""
        index = self._indexes[self._place_of(position)]
        place = index.place_of(position)
        if place < len(index):
            entry = index[place]
            if entry.producer_id != NO_PRODUCER and entry.start < position:
                return entry.end
        return position

    def begin_at(self, start_offset: int) -> None:
        """Show nothing before a position from which all is whole."""
        self._start = max(self.start_offset, start_offset)

    def open_record_counts(self) -> dict[int, int]:
        """How many records the transactions hold that are open where the walk stands, by producer id."""
        return {producer_id: one.extents.record_count for producer_id, one in self._open.items()}

    def first_needed_offset(self) -> int:
        """The first offset of the log in which something stands that the view shows, or may show yet."""
        needed = [one.first_offset for one in self._open.values()]
        start = self.start_offset
        place = self._place_of(start)
        needed += [index.least_first_offset for index in self._indexes[place + 1 :]]
        index = self._indexes[place]
        needed += [index[at].first_offset for at in range(index.place_of(start), len(index))]
        return max(min([start, *needed]), self._log_start)  # torn transactions need nothing

    # -- making ------------------------------------------------------------------------------------------------

    def _load(self, progress: Callable[[int, int], None] | None) -> None:
        """Trust the sealed indexes that are whole, and walk the log from there."""
        for name in self._disk.list_dir(self._partition.directory):
            if name.endswith(SPILL_SUFFIX):
                self._disk.remove(self._partition.directory / name)
        segments = self._partition.segments()
        trusted = 0
        for segment in segments[:-1]:
            index = CommitIndex(self._disk, self._partition.directory, segment.base_offset)
            assert segment.summary is not None
            if not index.open_sealed(segment.end_offset, segment.summary.log_crc):
                break
            self._indexes.append(index)
            trusted += 1
        if trusted:
            summary = self._indexes[-1].summary
            assert summary is not None
            self._reopen(segments[:trusted], summary.open)
        for segment in segments[trusted:]:
            segment.prove_now()
        self._begin_index(segments[trusted])
        done = sum(segment.size for segment in segments[:trusted])
        before = segments[trusted]
        for segment in segments[trusted:]:
            if segment.base_offset != self._indexes[-1].base_offset:
                self._seal_index(before, segment)
            self._walk(segment, self._partition.high_watermark)
            before = segment
            done += segment.size
            if progress is not None:
                progress(done, self._partition.size)

    def _reopen(self, segments: list[Segment], opened: tuple[tuple[int, int], ...]) -> None:
        """Find the batches again of transactions that were open where the walk begins."""
        for producer_id, first_offset in opened:
            self._open[producer_id] = self._new_open(producer_id, first_offset)
        if not opened:
            return
        least = min(first_offset for _, first_offset in opened)
        for segment in segments:
            if segment.end_offset <= least:
                continue
            segment.prove_now()
            found = segment.find(least)
            for position, header in () if found is None else segment.walk(found.position):
                known = self._open.get(header.producer_id)
                # The log takes nothing else of a producer as long as its transaction is open.
                if known is not None and header.base_offset >= known.first_offset:
                    known.extents.add(segment.base_offset, position, header.size, _span(header))

    def _new_open(self, producer_id: int, first_offset: int) -> _Open:
        path = self._partition.directory / f"{first_offset:020d}-{producer_id}{SPILL_SUFFIX}"

        def make_spill() -> File:
            file = self._disk.open(path, create=True)
            try:
                self._disk.remove(path)  # it lives as long as it is open
            except DiskError:
                file.close()
                raise
            return file

        return _Open(first_offset, Extents(make_spill))

    def _begin_index(self, segment: Segment) -> None:
        index = CommitIndex(self._disk, self._partition.directory, segment.base_offset)
        index.create(self._indexes[-1] if self._indexes else None)
        self._indexes.append(index)
        self._position = 0

    def _seal_index(self, segment: Segment, following: Segment) -> None:
        """The walk has come to the end of a segment."""
        assert segment.base_offset == self._indexes[-1].base_offset
        assert segment.summary is not None
        opened = [(producer_id, one.first_offset) for producer_id, one in self._open.items()]
        self._indexes[-1].seal(segment.end_offset, segment.summary.log_crc, opened)
        self._unwritten.append(self._indexes[-1])
        self._write_indexes()
        for index in self._indexes[-INDEXES_OPEN - 1 : -INDEXES_OPEN]:
            if index.is_written:
                index.give_back()
        self._begin_index(following)

    def _write_indexes(self) -> None:
        """Write the sealed indexes that are not written yet, the oldest first."""
        self.failure = None
        try:
            while self._unwritten:
                self._unwritten[0].write()
                self._unwritten.popleft()
        except DiskError as error:
            self.failure = error

    def advance(self) -> None:
        """Take in what has become durable.

        What cannot be written of the indexes is served from memory, and written by a later call; `failure` says why.
        """
        if self._unwritten:
            self._write_indexes()
        limit = self._partition.high_watermark
        segments = self._partition.segments()
        at = len(segments) - 1
        while segments[at].base_offset > self._indexes[-1].base_offset:
            at -= 1
        self._walk(segments[at], limit)
        for segment, following in pairwise(segments[at:]):
            if segment.end_offset > limit:
                break
            self._seal_index(segment, following)
            self._walk(following, limit)

    def _walk(self, segment: Segment, limit: int) -> None:
        """Take in the batches of a segment up to an offset."""
        index = self._indexes[-1]
        run: _Run | None = None
        for position, header in segment.walk(self._position):
            if header.next_offset > limit:
                break
            self._position = position + header.size
            if not header.is_transactional and not header.is_control:
                run = self._extend(run, position, header)
                continue
            run = self._end_run(index, segment, run)
            if not header.is_control:
                self._add_to_transaction(segment, position, header)
            else:
                self._end_transaction(index, segment, position, header)
        self._end_run(index, segment, run)

    @staticmethod
    def _extend(run: _Run | None, position: int, header: BatchHeader) -> _Run:
        run = run or _Run(header, position)
        run.end_position = position + header.size
        run.end = header.next_offset
        run.latest_ms = max(run.latest_ms, header.max_timestamp)
        return run

    @staticmethod
    def _end_run(index: CommitIndex, segment: Segment, run: _Run | None) -> None:
        if run is None:
            return
        extent = Extent(run.start, SEVERAL, -1, segment.base_offset, run.begin_position, run.end_position)
        index.add(
            run.start,
            run.end - run.start,
            time_ms=run.latest_ms,
            first_offset=run.start,
            producer_id=NO_PRODUCER,
            commit_sequence=-1,
            leader_epoch=-1,
            extents=[EXTENT.pack(*extent)],
        )

    def _add_to_transaction(self, segment: Segment, position: int, header: BatchHeader) -> None:
        known = self._open.get(header.producer_id)
        if known is None:
            known = self._open[header.producer_id] = self._new_open(header.producer_id, header.base_offset)
        known.extents.add(segment.base_offset, position, header.size, _span(header))

    def _end_transaction(
        self, index: CommitIndex, segment: Segment, position: int, header: BatchHeader
    ) -> None:
        batch = segment.log.read(position, header.size)
        if not crc_holds(batch, 0, header):
            raise Corrupt(bad_crc(segment.path(LOG), header, position))
        marker = read_marker(batch)
        if marker is None:
            return
        ended = self._open.pop(header.producer_id, None)
        if marker.type is MarkerType.COMMIT and header.last_offset_delta:
            self._commit(index, header, marker.commit_sequence, ended)
        if ended is not None:
            ended.extents.close()

    def _commit(
        self, index: CommitIndex, header: BatchHeader, commit_sequence: int, ended: _Open | None
    ) -> None:
        count = header.last_offset_delta
        whole = ended if ended is not None and ended.extents.record_count == count else None
        if whole is None and self._partition.segments()[0].base_offset == 0:
            raise Corrupt(
                f"{self._partition.topic}-{self._partition.index}: the commit marker at offset {header.base_offset} has "
                f"{count} positions, and its transaction {ended.extents.record_count if ended else 0} records"
            )
        start = header.base_offset + 1
        index.add(
            start,
            count,
            time_ms=header.max_timestamp,
            # Of a torn one the beginning went with the segments before the log's start, and the rest goes from the view.
            first_offset=TORN if whole is None else whole.first_offset,
            producer_id=header.producer_id,
            commit_sequence=commit_sequence,
            leader_epoch=header.leader_epoch,
            extents=() if whole is None else whole.extents.rows(start, header.leader_epoch),
        )

    def close(self) -> None:
        """Close every file."""
        for index in self._indexes:
            index.close()
        for one in self._open.values():
            one.extents.close()

    # -- reading -----------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, *, at_least_one: bool = True) -> Slice:
        """Read whole batches in commit order from position `start`: at most `size_max` bytes, but one if `at_least_one`.

        The first batch is the one that contains `start`, or the next one behind it: a client would take an earlier
        one for records that it asked for.

        Raises:
            OffsetOutOfRange: retention has removed what stood there, or it lies past the log's end.
            Corrupt: what stands where a batch should is none.
            Unproven: the segment in which the first batch stands was not proven since the start.
        """
        if not self.start_offset <= start <= max(self._partition.high_watermark, self.end_offset):
            raise OffsetOutOfRange(
                f"position {start} of {self._partition.topic}-{self._partition.index} is not in "
                f"[{self.start_offset}, {self.end_offset}]"
            )
        goes_on = self._ends.pop(start, False) or start == self._start  # who begins at the beginning reads on
        gathered = Gathered(start, size_max, at_least_one=at_least_one, goes_on=goes_on)
        try:
            for index in self._indexes[self._place_of(start) :]:
                for part in stretches(index, start, self._log_start, gathered.room):
                    if not self._gather(gathered, index, part):
                        return self._read_to(gathered)
        except (Corrupt, Unproven):
            if gathered.end == start:
                raise
            # The next read begins there, and is told.
        return self._read_to(gathered)

    def _gather(self, gathered: Gathered, index: CommitIndex, part: Entry | Stretch) -> bool:
        """Add a run, or the batches of transactions. Returns whether there is room for more."""
        if isinstance(part, Entry):
            extent = index.extent(part.extent_first)
            return gathered.add_run(
                self._segment(extent.segment), extent, part, whole=part.start >= gathered.start
            )
        segment = self._segment(part.segment)
        for place, (begin, end) in enumerate(
            zip(part.begins, part.ends, strict=True) if segment.damaged_batches else ()
        ):
            try:
                segment.check_undamaged(begin, end)
            except Corrupt:
                # What stands before the damage is handed out. The next read begins at the damage, and is told.
                if place and (
                    not gathered.add(segment.log, part.part(0, place)) or gathered.end > gathered.start
                ):
                    return False
                raise
        return gathered.add(segment.log, part)

    def _read_to(self, gathered: Gathered) -> Slice:
        """What was gathered; and remember where it ends, for there its reader goes on."""
        self._ends[gathered.end] = True
        if len(self._ends) > READERS:
            del self._ends[next(iter(self._ends))]
        return gathered.slice()

    def _place_of(self, position: int) -> int:
        """The place of the index that holds a position of the view, or comes next behind it."""
        low, high = 0, len(self._indexes) - 1
        while low < high:
            middle = (low + high) // 2
            if self._indexes[middle].view_end > position:
                high = middle
            else:
                low = middle + 1
        return low

    def _segment(self, base_offset: int) -> Segment:
        segments = self._partition.segments()
        low, high = 0, len(segments)
        while low < high:
            middle = (low + high) // 2
            if segments[middle].base_offset < base_offset:
                low = middle + 1
            else:
                high = middle
        assert segments[low].base_offset == base_offset, "an extent lies in a segment that is there"
        return segments[low]

    def look_up_time(self, timestamp_ms: int) -> Lookup:
        """Find the first position of a commit at a time or later: (position, time, leader epoch); None if there is none.

        A record outside transactions has its own time.
        """
        return (
            yield from in_steps(
                lambda start: self._look(timestamp_ms, start), timestamp_ms, lambda: self.start_offset
            )
        )

    def _look(self, timestamp_ms: int, start: int) -> TimestampedOffset | Batch | int | None:
        """One step of a lookup: what is found, a batch that may hold it, the position at which to go on, or None."""
        count = 0
        for index in self._indexes[self._place_of(start) :]:
            if index.latest_ms < timestamp_ms:
                continue
            for place in range(max(index.place_at_time(timestamp_ms), index.place_of(start)), len(index)):
                entry = index[place]
                if count >= STEP_COUNT_MAX:
                    return entry.start  # another entry was looked at before, so it lies behind `start`
                count += 1
                if self._is_torn(entry):
                    continue
                if entry.producer_id != NO_PRODUCER:
                    return max(entry.start, start), entry.latest_ms, entry.leader_epoch
                segment = self._segment(index.base_offset)
                begin = max(entry.start, start, segment.time_index.offset_before(timestamp_ms) or 0)
                first = segment.find(begin)
                for position, header in () if first is None else segment.walk(first.position):
                    if header.base_offset >= entry.end:
                        break
                    if header.max_timestamp >= timestamp_ms:
                        return Batch(header, segment.log.read(position, header.size))
                    if count >= STEP_COUNT_MAX:
                        return max(header.base_offset, start)
                    count += 1
        return None

    def look_up_newest(self) -> Lookup:
        """Find the first position of the latest commit: (position, time, leader epoch); None if there is none."""
        latest_ms = max(index.latest_ms for index in self._indexes)
        return None if latest_ms < 0 else (yield from self.look_up_time(latest_ms))

    # -- transactions ------------------------------------------------------------------------------------------

    def offset_after(self, commit_sequence: int) -> int:
        """Where the first transaction begins that was committed after this one; the view's end if none was.

        What stands before it outside transactions counts as before.
        """
        low, high = 0, len(self._indexes)
        while low < high:
            middle = (low + high) // 2
            if self._indexes[middle].latest_sequence > commit_sequence:
                high = middle
            else:
                low = middle + 1
        if low == len(self._indexes):
            return self.end_offset
        index = self._indexes[low]
        place = index.place_after(commit_sequence)
        # Where there is no such entry, the commit was in a segment that has been deleted.
        return max(index[place].start, self.start_offset) if place < len(index) else self.start_offset

    def removed_sequence(self) -> int | None:
        """The greatest commit sequence of what was removed from the view: every transaction behind it is whole here.

        -1 if nothing was; None if that is not known, for then nothing is left that tells. Where what was removed has left
        no index, it is the number before that of the first transaction that is left.
        """
        start = self.start_offset
        if start == 0:
            return -1
        index = self._indexes[self._place_of(start)]
        place = index.place_of(start)
        known = index[place - 1].latest_sequence if place else self._sequence_at(start)
        holds_any = self._indexes[-1].latest_sequence != -1  # else all entries would be looked at for none
        if known == -1 and holds_any:
            for first in self.transactions(start, 1):
                known = first.commit_sequence - 1
        found = max(known, self.torn_sequence())
        return None if found == -1 else found

    def torn_sequence(self) -> int:
        """The greatest commit sequence of a torn transaction, which is gone though positions before it may be left; -1 none."""
        return max(self._torn_sequence(index) for index in self._indexes)

    def _sequence_at(self, start: int) -> int:
        """The greatest commit sequence before the index that holds a position; -1 if that is not known."""
        at = self._place_of(start)
        if at:
            return self._indexes[at - 1].latest_sequence
        index = self._indexes[0]
        if not len(index):
            return index.latest_sequence
        return index[0].latest_sequence if index[0].producer_id == NO_PRODUCER else -1

    def _torn_sequence(self, index: CommitIndex) -> int:
        """The greatest commit sequence of an index's torn transactions; -1 if there is none. Each entry is looked at once."""
        if index.least_first_offset >= self._log_start:
            return -1
        log_start, done, found = self._torn.get(index.base_offset, (self._log_start, 0, -1))
        if log_start != self._log_start:
            done = 0
        for place in range(done, len(index)):
            if self._is_torn(index[place]):
                found = max(found, index[place].latest_sequence)
        self._torn[index.base_offset] = self._log_start, len(index), found
        return found

    def transactions(self, start: int, count_max: int, *, with_outside: bool = False) -> list[Committed]:
        """The first transactions of the view that end behind position `start`.

        Args:
            start: a position.
            count_max: how many are wanted.
            with_outside: whether runs of records outside transactions are wanted, too: with the commit sequence -1.
        """
        start = max(start, self.start_offset)
        found: list[Committed] = []
        for index in self._indexes[self._place_of(start) :]:
            for place in range(index.place_of(start), len(index)):
                entry = index[place]
                outside = entry.producer_id == NO_PRODUCER
                if (outside and not with_outside) or self._is_torn(entry):
                    continue
                if len(found) == count_max:
                    return found
                sequence = -1 if outside else entry.latest_sequence
                found.append(Committed(entry.start, entry.end, sequence, entry.latest_ms))
        return found


def _span(header: BatchHeader) -> int:
    """How many positions a batch takes: compaction leaves them as they were."""
    return header.last_offset_delta + 1
