"""What a crash may leave of a partition, and what is done about it.

What was durable when the broker stopped is told by the segment summaries: a summary is written only after the
sync that made its segment durable. Everything up to the end of the last good summary must be there as it was;
what lies behind it may be lost, torn, or there with holes.

    what is found                                   what is done
    ----------------------------------------------  ---------------------------------------------------------
    a torn or damaged batch behind the last good    the log is cut there: nothing from there on was durable,
    summary                                         hence nothing of it was acknowledged
    a damaged batch before it                       Corrupt: nothing is changed, the partition stays closed
    a segment without a good summary, or whose      it and all later ones are read again, batch by batch; their
    files are not those the summary tells of        indexes and summaries are made anew
    a marker without its index entry                the same: entries come from markers
    an index entry without its marker               the same
    a snapshot that is damaged, or of an offset     it is passed over for an older one
    that the log does not reach
    a snapshot in the middle of the last segment    reading begins there, if the indexes it tells of are whole
    no snapshot                                     producer state is made from the log's start
    segments behind a cut, or behind a gap          they are deleted: what was between is gone, and was not
    that the last owner cannot have left            acknowledged, hence nothing behind it was
    files .deleted, .cleaned, .swap, .tmp, and      what a crash interrupted: .swap is finished, the others go
    indexes of a segment that has no log
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.batch.markers import read_marker
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import Corrupt
from stablelog.log.epochs import LeaderEpochs
from stablelog.log.producers import Producers
from stablelog.log.segment import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SUMMARY,
    TIMEINDEX,
    TXNINDEX,
    OpenFiles,
    Segment,
)
from stablelog.log.snapshots import decode_producers, decode_snapshot
from stablelog.log.summary import Summary

EPOCH_FILE = "leader-epoch-checkpoint"
READ_SIZE = 4 << 20
PROGRESS_SIZE = 64 << 20


@dataclass(slots=True)
class Recovered:
    """A partition as it is after recovery. All of it is durable."""

    segments: list[Segment]
    producers: Producers
    epochs: LeaderEpochs


@dataclass(slots=True)
class _Start:
    """From where the log is read again, and what is known there."""

    offset: int
    producers: Producers
    progress: Summary | None  # of the segment in which it lies, if its indexes are whole


def apply_batch(
    producers: Producers, segment: Segment, header: BatchHeader, batch: Buffer, now_ms: int
) -> None:
    """Take a batch that stands in the log into producer state, and into the transaction index if it ends an abort."""
    if header.is_control:
        marker = read_marker(batch)
        if marker is None:
            return
        txn = producers.marker_appended(
            header.producer_id, header.producer_epoch, marker, header.base_offset, header.next_offset, now_ms
        )
        if txn is None:
            return
        if txn.aborted is not None:
            segment.append_aborted(txn.aborted)
        else:
            segment.committed_count += txn.record_count
        producers.ended(header.producer_id, txn)
    elif header.has_producer and header.record_count:
        producers.batch_appended(header, header.base_offset, now_ms)


def recover(
    disk: Disk,
    directory: Path,
    open_files: OpenFiles,
    *,
    index_interval: int,
    log_start_offset: int,
    now_ms: int,
    clean: bool,
    progress: Callable[[int, int], None] | None = None,
) -> Recovered:
    """Open what is in the directory and put right what a crash left of it.

    Raises:
        Corrupt: bytes that were durable are damaged; nothing was changed.
    """
    return _Recovery(disk, directory, open_files, index_interval, now_ms, clean, progress).run(
        log_start_offset
    )


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

    def run(self, log_start_offset: int) -> Recovered:
        self._finish_interrupted()
        bases = sorted(int(name[:-4]) for name in self._disk.list_dir(self._directory) if _is_log(name))
        if not bases:
            segment = Segment(self._disk, self._directory, log_start_offset, self._open_files)
            segment.create()
            segment.created_ms = self._now_ms
            self._disk.sync_dir(self._directory)
            return Recovered([segment], Producers(), self._read_epochs())
        segments = [Segment(self._disk, self._directory, base, self._open_files) for base in bases]
        summaries = [self._read_summary(segment) for segment in segments]
        durable_end = max(
            (summary.end_offset for summary in summaries if summary is not None), default=bases[0]
        )
        trusted = 0
        for segment, summary in zip(segments[:-1], summaries, strict=False):
            if (
                summary is None
                or not segment.matches(summary)
                or summary.end_offset > segments[trusted + 1].base_offset
            ):
                break
            trusted += 1
        start = self._choose_start(segments, trusted)
        for segment, summary in zip(segments[:trusted], summaries, strict=False):
            assert summary is not None
            segment.open_sealed(summary)
        kept = self._replay(segments, trusted, start, durable_end)
        self._drop_snapshots_past(kept[-1].end_offset)
        epochs = self._read_epochs()
        if epochs.truncate_to(max(kept[-1].end_offset, 1)):
            self._disk.write_atomic(self._directory / EPOCH_FILE, epochs.encode())
        return Recovered(kept, start.producers, epochs)

    # -- what is there -----------------------------------------------------------------------------------------

    def _finish_interrupted(self) -> None:
        changed = False
        for name in self._disk.list_dir(self._directory):
            path = self._directory / name
            if name.endswith((".deleted", ".cleaned", ".tmp")):
                self._disk.remove(path)
                changed = True
            elif name.endswith(".swap"):
                self._disk.rename(path, self._directory / name.removesuffix(".swap"))
                changed = True
        names = set(self._disk.list_dir(self._directory))
        for name in names:
            stem, _, suffix = name.partition(".")
            if stem.isdigit() and f".{suffix}" in SEGMENT_SUFFIXES and f"{stem}{LOG}" not in names:
                self._disk.remove(self._directory / name)
                changed = True
        if changed:
            self._disk.sync_dir(self._directory)

    def _read_summary(self, segment: Segment) -> Summary | None:
        try:
            summary = Summary.decode(self._disk.read_bytes(segment.path(SUMMARY)))
        except (FileNotFoundError, Corrupt):
            return None
        return summary if summary.base_offset == segment.base_offset else None

    def _read_epochs(self) -> LeaderEpochs:
        try:
            return LeaderEpochs.decode(self._disk.read_bytes(self._directory / EPOCH_FILE))
        except FileNotFoundError:
            return LeaderEpochs()

    def _drop_snapshots_past(self, end_offset: int) -> None:
        """Snapshots of offsets that the log no longer has would be taken for those of other records once it has them again."""
        for name in self._disk.list_dir(self._directory):
            if _is_snapshot(name) and int(name.partition(".")[0]) > end_offset:
                self._disk.remove(self._directory / name)

    # -- from where to read ------------------------------------------------------------------------------------

    def _choose_start(self, segments: list[Segment], trusted: int) -> _Start:
        """The newest snapshot from which reading gives everything that is not known without it."""
        offsets = sorted(
            {
                int(name.partition(".")[0])
                for name in self._disk.list_dir(self._directory)
                if _is_snapshot(name)
            },
            reverse=True,
        )
        unknown_from = segments[trusted].base_offset
        for offset in offsets:
            start = self._start_at(offset, segments, unknown_from)
            if start is not None:
                return start
        return _Start(segments[0].base_offset, Producers(), None)

    def _start_at(self, offset: int, segments: list[Segment], unknown_from: int) -> _Start | None:
        if offset < segments[0].base_offset:
            return None
        producers = Producers()
        progress = None
        try:
            found, progress = decode_producers(
                self._disk.read_bytes(self._directory / f"{offset:020d}.producers")
            )
        except (FileNotFoundError, Corrupt):
            if offset > unknown_from:
                return None
            try:
                content = self._disk.read_bytes(self._directory / f"{offset:020d}.snapshot")
                found = decode_snapshot(content, self._now_ms)
            except (FileNotFoundError, Corrupt):
                return None
        if offset > unknown_from:
            if progress is None or progress.base_offset != unknown_from or not self._indexes_hold(progress):
                return None
        else:
            progress = None
        for producer in found:
            producers.restore(producer)
        return _Start(offset, producers, progress)

    def _indexes_hold(self, progress: Summary) -> bool:
        """Whether the indexes of the growing segment are those that the snapshot tells of, or have gone on from them."""
        stem = self._directory / f"{progress.base_offset:020d}"
        wanted = (
            (INDEX, progress.index_size, progress.index_crc),
            (TIMEINDEX, progress.timeindex_size, progress.timeindex_crc),
            (TXNINDEX, progress.txnindex_size, progress.txnindex_crc),
        )
        try:
            if self._disk.size(stem.with_name(stem.name + LOG)) < progress.log_size:
                return False
            return all(
                crc32c(self._disk.read_bytes(stem.with_name(stem.name + suffix))[:size]) == crc
                for suffix, size, crc in wanted
                if size
            )
        except FileNotFoundError:
            return False

    # -- reading -----------------------------------------------------------------------------------------------

    def _replay(
        self, segments: list[Segment], trusted: int, start: _Start, durable_end: int
    ) -> list[Segment]:
        """Read from `start` to the log's end. Returns the segments that are left, the last one open to append."""
        first = max(place for place, segment in enumerate(segments) if segment.base_offset <= start.offset)
        self._all_size = sum(self._disk.size(segment.path(LOG)) for segment in segments[first:])
        for segment in segments[first:trusted]:
            self._replay_trusted(segment, start)
        for place in range(trusted, len(segments)):
            segment = segments[place]
            is_last = place == len(segments) - 1
            progress = (
                start.progress
                if start.progress and start.progress.base_offset == segment.base_offset
                else None
            )
            if place and segment.base_offset < segments[place - 1].end_offset:
                raise Corrupt(f"{segment.path(LOG)} begins before the segment in front of it ends")
            if place and segment.base_offset > segments[place - 1].end_offset and not self._clean:
                return self._cut_at_gap(segments, place, start.producers, durable_end)
            whole = self._scan(segment, progress, start.producers, durable_end)
            if not whole or is_last:
                self._drop(segments[place + 1 :])
                self._make_durable(segment, sealed=False, producers=start.producers)
                return segments[: place + 1]
            self._make_durable(segment, sealed=True, producers=start.producers)
        raise AssertionError("the last segment is never trusted")

    def _cut_at_gap(
        self, segments: list[Segment], place: int, producers: Producers, durable_end: int
    ) -> list[Segment]:
        """The offsets in front of a segment were lost: the log ends before them."""
        last = segments[place - 1]
        if last.end_offset < durable_end:
            raise Corrupt(
                f"{segments[place].path(LOG)}: offsets {last.end_offset} to {segments[place].base_offset - 1} are gone; records "
                f"up to offset {durable_end - 1} were durable, so the disk has lost them. Restore the files"
            )
        self._drop(segments[place:])
        fresh = Segment(self._disk, self._directory, last.end_offset, self._open_files)
        fresh.create()
        fresh.created_ms = self._now_ms
        self._make_durable(fresh, sealed=False, producers=producers)
        return [*segments[: place - 1 if last.size == 0 else place], fresh]

    def _replay_trusted(self, segment: Segment, start: _Start) -> None:
        """Take a sealed segment into producer state only: its files are as they should be."""
        from stablelog.log.transaction_index import AbortedTxn

        class Untouched:
            committed_count = 0

            def append_aborted(self, txn: AbortedTxn) -> None:
                """The entry is there."""

        untouched = Untouched()
        for position, header in segment.walk(0):
            self._advance(header.size)
            if header.base_offset >= start.offset:
                batch = segment.log.read(position, header.size) if header.is_control else b""
                apply_batch(start.producers, untouched, header, batch, self._now_ms)  # type: ignore[arg-type]

    def _scan(
        self, segment: Segment, progress: Summary | None, producers: Producers, durable_end: int
    ) -> bool:
        """Read a segment's batches into indexes and producer state. Returns whether it was whole; if not, it was cut."""
        log_size = self._disk.size(segment.path(LOG))
        segment.open_growing(progress)
        position = segment.size
        while position < log_size:
            chunk = segment.log.read(position, READ_SIZE)
            try:
                taken = self._scan_chunk(segment, chunk, position, producers)
            except Corrupt as damage:
                return self._cut(segment, str(damage), durable_end)
            position += taken
            if taken == 0:
                size = read_header(chunk).size if len(chunk) >= HEADER.size else 0
                if not HEADER.size <= size <= log_size - position:
                    return self._cut(segment, f"a torn batch at byte {position}", durable_end)
                chunk = segment.log.read(position, size)
                try:
                    position += self._scan_chunk(segment, chunk, position, producers)
                except Corrupt as damage:
                    return self._cut(segment, str(damage), durable_end)
        return True

    def _scan_chunk(self, segment: Segment, chunk: bytes, position: int, producers: Producers) -> int:
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
            segment.note(header, position + at, view[at : at + HEADER.size], self._index_interval)
            apply_batch(producers, segment, header, view[at : at + header.size], self._now_ms)
            at += header.size
            self._advance(header.size)
        return at

    def _cut(self, segment: Segment, damage: str, durable_end: int) -> bool:
        """Cut a segment behind its last whole batch. Returns False: it was not whole."""
        if segment.end_offset < durable_end:
            raise Corrupt(
                f"{segment.path(LOG)}: {damage}; records up to offset {durable_end - 1} were durable, so the disk has lost or "
                "changed them. Restore the file, or truncate it by hand if the loss is accepted"
            )
        segment.cut(segment.size)
        return False

    def _drop(self, segments: list[Segment]) -> None:
        for segment in segments:
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(segment.path(suffix))

    def _make_durable(self, segment: Segment, *, sealed: bool, producers: Producers) -> None:
        if not sealed:
            self._disk.remove(segment.path(SUMMARY))
            segment.write_indexes()  # what a lost end of the log has left in them goes
        else:
            unstable = producers.first_open_offset()
            segment.seal(segment.end_offset if unstable is None else unstable)
        for file in segment.files_to_sync():
            file.sync()
        self._disk.sync_dir(self._directory)
        if sealed:
            assert segment.summary is not None
            self._disk.write_atomic(segment.path(SUMMARY), segment.summary.encode())
            segment.release()

    def _advance(self, size: int) -> None:
        before = self._done_size // PROGRESS_SIZE
        self._done_size += size
        if self._progress is not None and self._done_size // PROGRESS_SIZE != before:
            self._progress(self._done_size, self._all_size)


def _is_log(name: str) -> bool:
    return name.endswith(LOG) and name[: -len(LOG)].isdigit()


def _is_snapshot(name: str) -> bool:
    stem, _, suffix = name.partition(".")
    return stem.isdigit() and suffix in ("snapshot", "producers")
