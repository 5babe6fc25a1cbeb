"""What a crash may leave of a partition, and what is done about it.

What was durable when the broker stopped is told by files that are written only after the sync that made it so: the
summary of a segment, and our snapshots (`.producers`). Everything up to the greatest offset that one of them names
must be there as it was, and everything if the last owner closed the log; what lies behind may be lost, torn, or
there with holes.

    what is found                                   what is done
    ----------------------------------------------  ---------------------------------------------------------
    a torn or damaged batch behind what was         the log is cut there: nothing from there on was durable,
    durable                                         hence nothing of it was acknowledged
    a damaged batch before it, a segment that is    Corrupt: no log file is changed, the partition stays closed
    gone, an end before it
    a segment without a good summary, or whose      it and all later ones are read again, batch by batch; their
    files are not those the summary tells of        indexes and summaries are made anew
    a marker without its index entry                the same: entries come from markers
    an index entry without its marker               the same
    a snapshot that is damaged                      it is passed over for an older one
    no snapshot behind a sealed segment             it is made with the segment's summary
    a snapshot of an offset past the log's end      it is removed: the offset will be that of another record
    a snapshot in the middle of the last segment    reading begins there, if the indexes it tells of are whole
    no snapshot                                     producer state is made from the log's start
    leader epochs missing or damaged                they are read in the headers of the batches
    segments before the log's start                 they were being deleted: they go, if there is a snapshot behind
                                                    them; if not, they are read for it
    a gap between two segments, the one behind it   what was in it is gone and was not acknowledged, hence
    without a snapshot at its beginning             nothing behind it was: it is deleted
    such a gap, with a snapshot                     compaction has left it (Kafka's; ours leaves none)
    segments behind a cut                           they are deleted: their beginning is gone
    indexes of a segment that has no log file       they go
    files .deleted, .cleaned, .swap, .tmp           what a crash interrupted: see `interrupted`
"""

import contextlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import Corrupt, DiskError
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.interrupted import finish_interrupted
from stablelog.log.producers import Producers
from stablelog.log.retention import (
    LOG_START_FILE,
    encode_log_start,
    is_log,
    is_snapshot,
    offset_of,
    read_log_start,
)
from stablelog.log.segment import (
    INDEX_SUFFIXES,
    LOG,
    SEGMENT_SUFFIXES,
    SUMMARY,
    TXNINDEX,
    OpenFiles,
    Segment,
)
from stablelog.log.snapshots import decode_producers, decode_snapshot, encode_producers, encode_snapshot
from stablelog.log.summary import Summary

READ_SIZE = 4 << 20
PROGRESS_SIZE = 64 << 20
EVERYTHING = 2**63 - 1


@dataclass(slots=True)
class Recovered:
    """A partition as it is after recovery. All of it is durable."""

    segments: list[Segment]
    producers: Producers
    epochs: LeaderEpochs
    start_offset: int


@dataclass(slots=True)
class _Start:
    """From where the log is read again, and what is known there."""

    offset: int
    producers: Producers
    progress: Summary | None  # of the segment in which it lies, if its indexes are whole


def recover(
    disk: Disk,
    directory: Path,
    open_files: OpenFiles,
    *,
    index_interval: int,
    log_start_offset: int,
    now_ms: int,
    clean: bool,
    durable_offset: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Recovered:
    """Open what is in the directory and put right what a crash left of it.

    Raises:
        Corrupt: bytes that were durable are damaged or gone; no log file was changed.
    """
    recovery = _Recovery(disk, directory, open_files, index_interval, now_ms, clean, progress)
    return recovery.run(log_start_offset, durable_offset)


class _Recovery:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        open_files: OpenFiles,
        index_interval: int,
        now_ms: int,
        clean: bool,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._open_files = open_files
        self._index_interval = index_interval
        self._now_ms = now_ms
        self._clean = clean
        self._progress = progress
        self._done_size = 0
        self._all_size = 0
        self._durable_end = 0
        self._snapshots: list[int] = []  # offsets, ascending
        self._log_start = 0
        self._epochs = LeaderEpochs()
        self._epochs_changed = False
        self._epochs_lost = False

    def run(self, log_start_offset: int, durable_offset: int) -> Recovered:
        finish_interrupted(self._disk, self._directory)
        self._durable_end = durable_offset
        self._log_start = max(log_start_offset, read_log_start(self._disk, self._directory))
        names = self._disk.list_dir(self._directory)
        self._snapshots = sorted({offset_of(name) for name in names if is_snapshot(name)})
        bases = sorted(offset_of(name) for name in names if is_log(name))
        deleted = self._count_deleted(bases)
        self._drop([self._segment(base) for base in bases[:deleted]])
        bases = bases[deleted:]
        self._check_orphans(names, bases)
        if not bases:
            return self._begin()
        segments = [self._segment(base) for base in bases]
        summaries = [self._read_summary(segment) for segment in segments]
        self._drop_unused(segments, summaries)
        self._find_durable_end(summaries)
        trusted = self._count_trusted(segments, summaries)
        for segment, summary in zip(segments[:trusted], summaries, strict=False):
            assert summary is not None
            segment.open_sealed(summary)
        self._check_gaps(segments[: trusted + 1])
        start = self._choose_start(segments, trusted)
        self._read_epochs(segments[:trusted])
        kept = self._replay(segments, trusted, start)
        end_offset = kept[-1].end_offset
        self._drop_snapshots_past(end_offset)
        if self._epochs.truncate_to(end_offset) or self._epochs_changed:
            self._disk.write_atomic(self._directory / EPOCH_FILE, self._epochs.encode())
        log_start = min(max(self._log_start, kept[0].base_offset), end_offset)
        if log_start < self._log_start:
            # A truncation cut off the batch in which the log began: what is written there now can be read.
            self._disk.write_atomic(self._directory / LOG_START_FILE, encode_log_start(log_start))
        return Recovered(kept, start.producers, self._epochs, log_start)

    def _segment(self, base_offset: int) -> Segment:
        return Segment(self._disk, self._directory, base_offset, self._open_files)

    # -- what is there -----------------------------------------------------------------------------------------

    def _begin(self) -> Recovered:
        """Begin a log in a directory that has none.

        Raises:
            Corrupt: it had one.
        """
        if self._snapshots:
            raise Corrupt(f"{self._directory}: there are snapshots and no log file. Restore the log files")
        segment = self._segment(self._log_start)
        segment.create()
        try:
            self._disk.sync_dir(self._directory)
        except DiskError:
            segment.close()
            raise
        return Recovered([segment], Producers(), LeaderEpochs(), self._log_start)

    def _count_deleted(self, bases: list[int]) -> int:
        """How many of the first segments were being deleted: those before the log's start.

        Of transactions that began in them only a snapshot behind them knows. Without one they are read once more.
        """
        count = max(bisect_right(bases, self._log_start) - 1, 0)
        if not count or any(
            self._is_readable(offset) for offset in self._snapshots if offset >= bases[count]
        ):
            return count
        while count:
            summary = self._read_summary(self._segment(bases[count - 1]))
            if summary is not None and summary.end_offset != bases[count]:
                break  # the one behind it has gone by now
            count -= 1
        return count

    def _check_orphans(self, names: list[str], bases: list[int]) -> None:
        """Remove files of segments whose log was deleted; see that none has lost its log in another way.

        Raises:
            Corrupt: a log file is gone.
        """
        for name in names:
            stem, _, suffix = name.partition(".")
            if not stem.isdigit() or f".{suffix}" not in SEGMENT_SUFFIXES or int(stem) in bases:
                continue
            path = self._directory / name
            deleted = int(stem) < (bases[0] if bases else self._log_start)
            if (
                f".{suffix}" == SUMMARY
                and not deleted
                and self._read_summary(self._segment(int(stem))) is not None
            ):
                raise Corrupt(
                    f"{path.with_suffix(LOG)} is gone, and was durable. Restore it; or if another program has compacted "
                    f"the log, remove {path}"
                )
            self._disk.remove(path)

    def _drop_unused(self, segments: list[Segment], summaries: list[Summary | None]) -> None:
        """Remove a last segment that is empty, if the one before it was not known to be sealed: it goes on growing."""
        while len(segments) > 1 and summaries[-2] is None and not self._disk.size(segments[-1].path(LOG)):
            self._drop([segments.pop()])
            summaries.pop()

    def _read_summary(self, segment: Segment) -> Summary | None:
        try:
            summary = Summary.decode(self._disk.read_bytes(segment.path(SUMMARY)))
        except (FileNotFoundError, Corrupt):
            return None
        return summary if summary.base_offset == segment.base_offset else None

    def _find_durable_end(self, summaries: list[Summary | None]) -> None:
        # A summary is written when the name of the next segment's log file is durable.
        if summaries[-1] is not None:
            raise Corrupt(
                f"{self._directory}: the log file of offset {summaries[-1].end_offset} is gone, and was durable. Restore it"
            )
        if self._clean:
            self._durable_end = EVERYTHING
            return
        ends = (summary.end_offset for summary in summaries if summary is not None)
        self._durable_end = max(self._durable_end, *ends, 0)
        for offset in reversed(self._snapshots):
            if offset <= self._durable_end:
                break
            if self._read_producers(offset) is not None:
                self._durable_end = offset

    def _count_trusted(self, segments: list[Segment], summaries: list[Summary | None]) -> int:
        """How many of the first segments are as their summaries say. The last one never is: it grows."""
        count = 0
        for segment, summary in zip(segments[:-1], summaries, strict=False):
            if (
                summary is None
                or summary.end_offset > segments[count + 1].base_offset
                or not segment.matches(summary)
            ):
                break
            count += 1
        return count

    def _check_gaps(self, segments: list[Segment]) -> None:
        """See that none is missing. All but the last are as their summaries say, which end where the next one begins.

        Raises:
            Corrupt: one is.
        """
        for segment, following in pairwise(segments):
            if segment.end_offset != following.base_offset:
                raise Corrupt(
                    f"{self._directory}: the segments of offsets {segment.end_offset} to {following.base_offset - 1} "
                    "are gone, and were durable. Restore their files"
                )

    # -- leader epochs -----------------------------------------------------------------------------------------

    def _read_epochs(self, trusted: list[Segment]) -> None:
        try:
            self._epochs = LeaderEpochs.decode(self._disk.read_bytes(self._directory / EPOCH_FILE))
        except (FileNotFoundError, Corrupt):
            self._epochs_lost = True
            for segment in trusted:
                for _, header in segment.walk(0):
                    self._note_epoch(header)

    def _note_epoch(self, header: BatchHeader) -> None:
        if header.leader_epoch > self._epochs.latest:
            self._epochs_changed = self._epochs.assign(header.leader_epoch, header.base_offset)

    # -- snapshots ---------------------------------------------------------------------------------------------

    def _drop_snapshots_past(self, end_offset: int) -> None:
        """They would be taken for those of other records once the log has their offsets again."""
        dropped = [offset for offset in self._snapshots if offset > end_offset]
        for offset in dropped:
            for suffix in ("snapshot", "producers"):
                self._disk.remove(self._directory / f"{offset:020d}.{suffix}")
        if dropped:
            self._disk.sync_dir(self._directory)

    def _read_producers(self, offset: int) -> tuple[Producers, Summary] | None:
        try:
            found, progress = decode_producers(
                self._disk.read_bytes(self._directory / f"{offset:020d}.producers")
            )
        except (FileNotFoundError, Corrupt):
            return None
        return Producers.restored(found, self._now_ms), progress

    def _is_readable(self, offset: int) -> bool:
        if self._read_producers(offset) is not None:
            return True
        with contextlib.suppress(FileNotFoundError, Corrupt):
            decode_snapshot(self._disk.read_bytes(self._directory / f"{offset:020d}.snapshot"), self._now_ms)
            return True
        return False

    def _choose_start(self, segments: list[Segment], trusted: int) -> _Start:
        """The newest snapshot from which reading gives everything that is not known without it: of ours, if there is one."""
        first_offset, unknown_from = segments[0].base_offset, segments[trusted].base_offset
        offsets = [offset for offset in reversed(self._snapshots) if offset >= first_offset]
        for offset in offsets:
            start = self._start_at_ours(offset, unknown_from)
            if start is not None:
                return start
        for offset in offsets:
            if offset <= unknown_from:
                with contextlib.suppress(FileNotFoundError, Corrupt):
                    content = self._disk.read_bytes(self._directory / f"{offset:020d}.snapshot")
                    found = decode_snapshot(content, self._now_ms)
                    return _Start(offset, Producers.restored(found, self._now_ms), None)
        return _Start(first_offset, Producers(), None)

    def _start_at_ours(self, offset: int, unknown_from: int) -> _Start | None:
        known = self._read_producers(offset)
        if known is None:
            return None
        producers, progress = known
        if offset <= unknown_from:
            return _Start(offset, producers, None)
        if progress.base_offset == unknown_from and self._indexes_hold(progress):
            return _Start(offset, producers, progress)
        return None

    def _indexes_hold(self, progress: Summary) -> bool:
        """Whether the indexes of the growing segment are those that the snapshot tells of, or have gone on from them."""
        segment = self._segment(progress.base_offset)
        sizes = (progress.index_size, progress.timeindex_size, progress.txnindex_size)
        crcs = (progress.index_crc, progress.timeindex_crc, progress.txnindex_crc)
        try:
            if self._disk.size(segment.path(LOG)) < progress.log_size:
                return False
            return all(
                crc32c(self._disk.read_bytes(segment.path(suffix))[:size]) == crc
                for suffix, size, crc in zip(INDEX_SUFFIXES, sizes, crcs, strict=True)
                if size
            )
        except FileNotFoundError:
            return False

    # -- reading -----------------------------------------------------------------------------------------------

    def _replay(self, segments: list[Segment], trusted: int, start: _Start) -> list[Segment]:
        """Read from `start` to the log's end. Returns the segments that are left, the last one open to append."""
        first = max(place for place, segment in enumerate(segments) if segment.base_offset <= start.offset)
        self._all_size = sum(self._disk.size(segment.path(LOG)) for segment in segments[first:])
        for segment in segments[first:trusted]:
            self._replay_trusted(segment, start)
        for place in range(trusted, len(segments)):
            segment, later = segments[place], segments[place + 1 :]
            whole = self._scan(segment, start)
            if not whole or not later:
                self._finish(segment, later)
                return segments[: place + 1]
            gap = range(segment.end_offset, later[0].base_offset)
            if later[0].base_offset < segment.end_offset:
                raise Corrupt(f"{later[0].path(LOG)} begins before the segment in front of it ends")
            if gap and not self._clean and later[0].base_offset not in self._snapshots:
                # What was between is gone, and nothing behind it was durable.
                self._finish(segment, later)
                return segments[: place + 1]
            self._seal(segment, later[0].base_offset, start.producers)
        raise AssertionError("the last segment is never trusted")

    def _replay_trusted(self, segment: Segment, start: _Start) -> None:
        """Take a sealed segment into producer state only: its files are as they should be."""
        for position, header in segment.walk(0):
            self._advance(header.size)
            if header.base_offset >= start.offset:
                batch = segment.log.read(position, header.size) if header.is_control else b""
                txn = start.producers.take(header, batch, self._now_ms)
                if txn is not None:
                    start.producers.ended(txn)

    def _scan(self, segment: Segment, start: _Start) -> bool:
        """Read a segment's batches into indexes and producer state. Returns whether it was whole; if not, it was cut.

        Raises:
            Corrupt: it is not whole, and was durable.
        """
        log_size = self._disk.size(segment.path(LOG))
        ours = start.progress is not None and start.progress.base_offset == segment.base_offset
        segment.open_growing(start.progress if ours else None)
        if self._epochs_lost:
            for _, header in segment.walk(0):
                self._note_epoch(header)
        position = segment.size
        while position < log_size:
            chunk = segment.log.read(position, READ_SIZE)
            try:
                taken = self._scan_chunk(segment, chunk, position, start)
                if taken == 0:
                    size = read_header(chunk).size
                    if size > log_size - position:
                        raise Corrupt(f"a torn batch at byte {position}")
                    chunk = segment.log.read(position, size)
                    taken = self._scan_chunk(segment, chunk, position, start)
            except Corrupt as damage:
                self._cut(segment, str(damage))
                return False
            position += taken
        return True

    def _scan_chunk(self, segment: Segment, chunk: bytes, position: int, start: _Start) -> int:
        """Take in the whole batches of a chunk. Returns their bytes.

        Raises:
            Corrupt: at the first batch that is damaged; those before it were taken in.
        """
        at = 0
        view = memoryview(chunk)
        while len(chunk) - at >= HEADER.size:
            header = read_header(chunk, at)
            if header.size > len(chunk) - at:
                break
            if header.base_offset < segment.end_offset:
                raise Corrupt(
                    f"the batch at byte {position + at} begins at offset {header.base_offset}, not past {segment.end_offset - 1}"
                )
            if not crc_holds(chunk, at, header):
                raise Corrupt(
                    f"the CRC of the batch at offset {header.base_offset}, byte {position + at}, does not hold"
                )
            self._take(segment, header, position + at, view[at : at + header.size], start)
            at += header.size
            self._advance(header.size)
        return at

    def _take(
        self, segment: Segment, header: BatchHeader, position: int, batch: Buffer, start: _Start
    ) -> None:
        segment.note(header, position, batch[: HEADER.size], self._index_interval)
        self._note_epoch(header)
        assert header.base_offset >= start.offset, "what a snapshot has told of is not read again"
        txn = start.producers.take(header, batch, self._now_ms)
        if txn is None:
            return
        if txn.aborted is not None:
            segment.note_aborted(txn.aborted)
        else:
            segment.committed_count += txn.record_count
        start.producers.ended(txn)

    # -- putting right -----------------------------------------------------------------------------------------

    def _cut(self, segment: Segment, damage: str) -> None:
        """Cut a segment behind its last whole batch.

        Raises:
            Corrupt: what would be cut off was durable.
        """
        if segment.end_offset < self._durable_end:
            known = (
                "the log was closed in order"
                if self._durable_end == EVERYTHING
                else f"records up to offset {self._durable_end - 1} were durable"
            )
            raise Corrupt(
                f"{segment.path(LOG)}: {damage}; {known}, so the disk has lost or changed them. Restore the file, or "
                "truncate it by hand if the loss is accepted"
            )
        segment.cut()

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            segment.close()
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(segment.path(suffix))
        if segments:
            self._disk.sync_dir(self._directory)

    def _finish(self, segment: Segment, later: list[Segment]) -> None:
        """Make the last segment durable, ready to append, and delete what lies behind it.

        Raises:
            Corrupt: the log ends before what was durable.
        """
        if segment.end_offset < self._durable_end != EVERYTHING:
            raise Corrupt(
                f"{segment.path(LOG)} ends at offset {segment.end_offset - 1}; records up to offset "
                f"{self._durable_end - 1} were durable, so the disk has lost them. Restore the file"
            )
        if self._disk.exists(segment.path(SUMMARY)):
            # A segment with a summary has another one behind it, also if this stops here.
            self._disk.remove(segment.path(SUMMARY))
            self._disk.sync_dir(self._directory)
        self._drop(later)
        self._write_indexes(segment)
        for file in segment.files_to_sync(indexes=True):
            file.sync()
        self._disk.sync_dir(self._directory)
        segment.names_changed = False

    def _seal(self, segment: Segment, next_base_offset: int, producers: Producers) -> None:
        """Make a sealed segment durable, and write its summary."""
        self._write_indexes(segment)
        segment.end_offset = next_base_offset  # behind the last batch there may be what compaction has left
        first_open = producers.first_open_offset()
        segment.seal(next_base_offset if first_open is None else first_open)
        for file in segment.files_to_sync(indexes=True):
            file.sync()
        self._disk.sync_dir(self._directory)
        assert segment.summary is not None
        # As when a segment is rolled: once it is deleted, only the snapshot knows of the transactions begun in it.
        progress = Summary(next_base_offset, next_base_offset, stable_offset=segment.stable_offset)
        for suffix, content in (
            (".producers", encode_producers(producers, progress)),
            (".snapshot", encode_snapshot(producers)),
        ):
            self._disk.write_atomic(self._directory / f"{next_base_offset:020d}{suffix}", content)
        self._disk.write_atomic(segment.path(SUMMARY), segment.summary.encode())
        segment.settled()

    def _write_indexes(self, segment: Segment) -> None:
        """Write what memory holds by now; what a lost end of the log has left in the files goes."""
        if segment.least_aborted_offset is None:
            self._disk.remove(segment.path(TXNINDEX))
        segment.write_indexes()

    def _advance(self, size: int) -> None:
        before = self._done_size // PROGRESS_SIZE
        self._done_size += size
        if self._progress is not None and self._done_size // PROGRESS_SIZE != before:
            self._progress(self._done_size, self._all_size)
