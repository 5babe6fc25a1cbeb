"""Whether a partition's files say the same as its log. Every index can be proven from the log; this proves it.

Nothing is written. A directory whose broker runs can be verified too: files only grow, and what is said of the last
segment is said of what it held when it was looked at. An index may be behind the log there, because it is written
out from time to time; how far it has to reach is told by the newest snapshot.

What retention has deleted cannot be read any more: transactions that began before the log's start are taken from the
snapshot there. Where compaction has removed batches, an entry may name an earlier beginning than the log shows.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, NewerFormat
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.formats import check_formats
from stablelog.log.listing import Listing
from stablelog.log.log_start import LOG_START_FILE, read_log_start
from stablelog.log.names import (
    INDEX,
    INDEX_SUFFIXES,
    LOG,
    SUMMARY,
    TIMEINDEX,
    TXNINDEX,
    first_segment_path,
    is_log,
    is_snapshot,
    is_summary,
    offset_of,
)
from stablelog.log.offset_index import OffsetIndex
from stablelog.log.producer import BATCHES_KEPT, NO_TXN, Producer
from stablelog.log.producer_table import NEVER_MS, ProducerTable
from stablelog.log.producers import Producers
from stablelog.log.recovery.plan import NEVER
from stablelog.log.segment import RELATIVE_OFFSET_MAX
from stablelog.log.snapshots import decode_producers, decode_snapshot
from stablelog.log.summary import NOTHING, Summary
from stablelog.log.time_index import TimeIndex
from stablelog.log.transaction_index import AbortedTxn, TransactionIndex

READ_SIZE = 4 << 20
COVERED = {  # what a summary says of another file
    "log_size": LOG,
    "log_crc": LOG,
    "index_crc": INDEX,
    "timeindex_crc": TIMEINDEX,
    "txnindex_crc": TXNINDEX,
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not agree with the log.

    Attributes:
        path: the file.
        message: what is wrong, with offset or entry.
    """

    path: Path
    message: str


@dataclass(slots=True)
class _Content:
    """What a segment's files held when they were looked at; None where there is none."""

    log_size: int
    summary: bytes | None
    indexes: dict[str, bytes | None]


@dataclass(slots=True)
class _Seen:
    """What the log says of a segment, up to the last batch that was read."""

    base_offset: int
    is_last: bool
    end_offset: int
    size: int = 0
    log_crc: int = 0
    record_count: int = 0
    committed_count: int = 0
    first_timestamp: int = NOTHING
    max_timestamp: int = NOTHING  # of batches that hold records
    max_timestamp_of_all: int = NOTHING  # which is what Kafka goes by
    offset_place: int = 0  # of the next entry of each index
    time_place: int = 0
    last_indexed: int = NOTHING  # the offset of the last entry that was met
    aborted: list[AbortedTxn] = field(default_factory=list)
    empty_aborts: dict[int, int] = field(default_factory=dict)  # markers without records: offset -> producer


def verify_directory(
    disk: Disk,
    directory: Path,
    progress: Progress | None = None,
    *,
    recovery_point: int = 0,
    gapless_epoch: int = NEVER,
) -> Iterator[Finding]:
    """Prove the files of a partition from its log.

    Args:
        disk: where it lies.
        directory: the partition's own.
        progress: called with (bytes read, bytes in all).
        recovery_point: the synced end that the broker has recorded, read before this is called.
        gapless_epoch: the first leader epoch whose batches follow each other without a gap in the growing segment.
    """
    return _Verification(disk, directory, progress, recovery_point, gapless_epoch).run()


class _Verification:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        progress: Progress | None,
        recovery_point: int,
        gapless_epoch: int,
    ) -> None:
        self._recovery_point = recovery_point
        self._gapless_epoch = gapless_epoch
        self._disk = disk
        self._directory = directory
        self._progress = progress
        self._producers = Producers()
        self._epochs = LeaderEpochs()
        self._begins_known = True  # of every transaction that the log shows the end of
        self._batches_known = BATCHES_KEPT  # of each producer
        self._counts_known = True  # of the records of every open transaction
        self._compacted = False  # whether batches are missing
        self._snapshots: list[int]  # offsets that are still to come, greatest first
        self._end_offset: int

    def run(self) -> Iterator[Finding]:
        try:
            check_formats(Listing(self._disk, self._directory))
        except NewerFormat as newer:  # what is not known cannot be proven
            yield Finding(Path(newer.place), str(NewerFormat(newer.what, newer.found, newer.known)))
            return
        names = self._disk.list_dir(self._directory)
        bases = sorted(offset_of(name) for name in names if is_log(name))
        self._snapshots = sorted({offset_of(name) for name in names if is_snapshot(name)}, reverse=True)
        start, findings = self._read_log_start(bases, names)
        yield from findings
        yield from self._find_lost(bases, names, start or 0)
        if not bases:
            return
        self._end_offset = bases[0]
        if bases[0]:
            self._begin_behind(bases[0])
        sizes = {base: self._size(self._path(base, LOG)) for base in bases}
        done = 0
        for base, following in zip(bases, [*bases[1:], None], strict=True):
            yield from self._verify_segment(base, following)
            done += sizes[base]
            if self._progress is not None:
                self._progress(done, sum(sizes.values()))
        yield from self._verify_epochs()
        if self._end_offset < self._recovery_point and self._disk.exists(self._path(bases[-1], LOG)):
            yield Finding(
                self._path(bases[-1], LOG),
                f"ends at offset {self._end_offset - 1}; records up to offset {self._recovery_point - 1} were durable",
            )
        if start is not None and start > self._end_offset:
            yield Finding(
                self._directory / LOG_START_FILE,
                f"says that the log begins at offset {start}; it ends at {self._end_offset}",
            )
        for offset in self._snapshots if self._begins_known else ():
            if all(self._disk.exists(self._path(base, LOG)) for base in bases):
                yield Finding(
                    self._path(offset, ".snapshot"),
                    f"is of offset {offset}; the log ends at {self._end_offset}",
                )
                yield from self._read_snapshot(offset, None)

    def _find_lost(self, bases: list[int], names: list[str], start: int) -> Iterator[Finding]:
        """Find log files that are gone: their summaries are there, or the summary of the segment before them is."""
        begins = {offset_of(name) for name in names if is_summary(name)}
        ends = set()
        for base in bases:
            with contextlib.suppress(Corrupt, NewerFormat):
                ends.add(Summary.decode(self._content(self._path(base, SUMMARY)) or b"").end_offset)
        for base in sorted((begins | ends) - set(bases)):
            path = self._path(base, LOG)
            # Its broker may delete or compact it meanwhile.
            is_lost = base in ends or self._disk.exists(self._path(base, SUMMARY))
            if base >= start and is_lost and not self._disk.exists(path):
                yield Finding(path, "is gone, and was durable")

    def _read_log_start(self, bases: list[int], names: list[str]) -> tuple[int | None, list[Finding]]:
        """Where the partition says that its log begins, None if it does not say, and what is wrong with that."""
        path = self._directory / LOG_START_FILE
        try:
            start = read_log_start(self._disk, path)
        except Corrupt as error:
            return None, [Finding(path, str(error).removeprefix(f"{path} "))]
        if start is None:
            return (
                None,
                [],
            )  # as in a directory of Apache Kafka; `ops.verify` knows whether it has to be there
        if not bases:
            path = first_segment_path(self._directory, names, start)
            return start, [
                Finding(path, "is gone: there is no log file, and the partition was made with one")
            ]
        if bases[0] > start:
            gone = f"is gone: the log begins at offset {start}, and the first segment that is there at {bases[0]}"
            return start, [Finding(first_segment_path(self._directory, names, start), gone)]
        return start, []

    def _path(self, base_offset: int, suffix: str) -> Path:
        return self._directory / f"{base_offset:020d}{suffix}"

    def _size(self, path: Path) -> int:
        try:
            return self._disk.size(path)
        except FileNotFoundError:
            return 0

    def _content(self, path: Path) -> bytes | None:
        try:
            return self._disk.read_bytes(path)
        except FileNotFoundError:
            return None

    def _begin_behind(self, offset: int) -> None:
        """Begin with what a snapshot says of the offset where the log begins."""
        ours, theirs = (self._content(self._path(offset, suffix)) for suffix in (".producers", ".snapshot"))
        try:
            if ours is not None:
                self._producers = Producers.restored(decode_producers(ours)[0], now_ms=NEVER_MS)
                return
            if theirs is not None:
                table = decode_snapshot(theirs, 0)
                # Kafka's file has the last batch of each producer, and does not count the records of open transactions.
                self._batches_known = 1
                self._counts_known = all(producer.txn_first_offset == NO_TXN for producer in table)
                self._producers = Producers.restored(table, now_ms=NEVER_MS)
                return
        except (Corrupt, NewerFormat):
            pass  # it is among those that are looked at
        self._begins_known = False

    # -- one segment -------------------------------------------------------------------------------------------

    def _verify_segment(self, base: int, following: int | None) -> Iterator[Finding]:
        """Prove the files of one segment.

        Args:
            base: its base offset.
            following: that of the next segment; None for the last one.
        """
        path = self._path(base, LOG)
        # The log's size is taken first, so that no index can be behind what is read of the log; and a summary
        # before it, because once there is one the log grows no more.
        summary = self._content(self._path(base, SUMMARY))
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            self._begins_known = False  # deleted by its broker meanwhile
            return
        content = _Content(
            file.size, summary, {suffix: self._content(self._path(base, suffix)) for suffix in INDEX_SUFFIXES}
        )
        if base < self._end_offset:
            yield Finding(
                path, f"begins at {base}, before the segment in front of it ends ({self._end_offset})"
            )
        seen = _Seen(base, following is None, base)
        offset_index = OffsetIndex(base, content.indexes[INDEX] or b"")
        time_index = TimeIndex(base, content.indexes[TIMEINDEX] or b"")
        marks = {} if following is not None else self._read_marks(base)
        whole = True
        try:
            for position, header, batch in self._batches(file.read, content.log_size, seen):
                yield from self._before_batch(header, seen)
                yield from self._verify_entries(offset_index, time_index, position, header, seen)
                self._take(header, batch, seen)
                if marks.get(seen.size, seen.log_crc) != seen.log_crc:
                    yield Finding(path, f"the headers of the batches up to byte {seen.size} have changed")
                    marks = {}
        except Corrupt as error:
            whole = False
            yield Finding(path, str(error))
        finally:
            file.close()
        self._end_offset = max(self._end_offset, seen.end_offset)
        if following is not None and seen.end_offset < following:
            self._compacted = True  # Kafka's compaction may leave a segment without any batch
        yield from self._read_snapshots_up_to(self._end_offset)
        if whole:
            yield from self._verify_rest(offset_index, time_index, seen)
            yield from self._verify_txn_index(content.indexes[TXNINDEX], seen)
            yield from self._verify_summary(content, seen)

    def _read_marks(self, base: int) -> dict[int, int]:
        """What the snapshots say of the headers in the growing segment: their CRC by the bytes of the log file."""
        marks = {}
        for offset in self._snapshots:
            with contextlib.suppress(Corrupt, NewerFormat):
                _, progress = decode_producers(self._content(self._path(offset, ".producers")) or b"")
                if progress.base_offset == base and progress.log_size:
                    marks[progress.log_size] = progress.log_crc
        return marks

    def _batches(
        self, read: Callable[[int, int], bytes], log_size: int, seen: _Seen
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Each batch of a log file, checked by itself, with its position.

        What is not whole at the end of the last segment is a write under way, or what a crash left: a start of the
        broker cuts it off.

        Raises:
            Corrupt: what stands there is no batch, or not the one that was written.
        """
        position = 0
        while position < log_size:
            chunk = read(position, min(READ_SIZE, log_size - position))
            at = 0
            while len(chunk) - at >= HEADER.size:
                header = read_header(chunk, at)
                if header.size > len(chunk) - at:
                    break
                if not crc_holds(chunk, at, header):
                    raise Corrupt(
                        f"the CRC of the batch at offset {header.base_offset}, byte {position + at}, does not hold"
                    )
                if header.base_offset < seen.end_offset:
                    raise Corrupt(
                        f"the batch at byte {position + at} begins at offset {header.base_offset}, not past {seen.end_offset - 1}"
                    )
                if (
                    seen.is_last
                    and header.leader_epoch >= self._gapless_epoch
                    and header.base_offset > seen.end_offset
                ):
                    raise Corrupt(
                        f"the batch at byte {position + at} begins at offset {header.base_offset}; the offsets from "
                        f"{seen.end_offset} on are gone, or its offset has changed"
                    )
                yield position + at, header, memoryview(chunk)[at : at + header.size]
                at += header.size
            if at:
                position += at
                continue
            size = read_header(chunk).size if len(chunk) >= HEADER.size else HEADER.size
            if size > log_size - position:
                if seen.is_last:
                    return
                raise Corrupt(f"a torn batch at byte {position}")
            batch = read(position, size)
            header = read_header(batch)
            if not crc_holds(batch, 0, header):
                raise Corrupt(
                    f"the CRC of the batch at offset {header.base_offset}, byte {position}, does not hold"
                )
            yield position, header, memoryview(batch)
            position += size

    def _before_batch(self, header: BatchHeader, seen: _Seen) -> Iterator[Finding]:
        whole = header.is_control or header.record_count == header.last_offset_delta + 1
        if header.base_offset > self._end_offset or not header.record_count or not whole:
            self._compacted = True
        yield from self._read_snapshots_up_to(header.base_offset)
        if header.leader_epoch > self._epochs.latest:
            self._epochs.assign(header.leader_epoch, header.base_offset)
        if header.last_offset - seen.base_offset > RELATIVE_OFFSET_MAX:
            yield Finding(
                self._path(seen.base_offset, LOG),
                f"the batch of offset {header.base_offset} is past what the segment can hold",
            )
        if header.base_offset < seen.end_offset:
            yield Finding(
                self._path(seen.base_offset, LOG),
                f"the batch of offset {header.base_offset} comes after {seen.end_offset - 1}",
            )

    def _take(self, header: BatchHeader, batch: memoryview, seen: _Seen) -> None:
        txn = self._producers.take(header, batch, 0)
        if txn is not None:
            if txn.aborted is not None:
                seen.aborted.append(txn.aborted)
            else:
                seen.committed_count += txn.record_count
            self._producers.ended(txn)
            self._producers.high_watermark_moved(header.next_offset)
        elif header.is_control and self._compacted:
            seen.empty_aborts[header.base_offset] = header.producer_id
        if not header.is_control:
            seen.record_count += header.record_count
            if not header.is_transactional:
                seen.committed_count += header.record_count
        seen.log_crc = crc32c(batch[: HEADER.size], seen.log_crc)
        seen.max_timestamp_of_all = max(seen.max_timestamp_of_all, header.max_timestamp)
        if header.record_count:
            seen.max_timestamp = max(seen.max_timestamp, header.max_timestamp)
        seen.size += header.size
        seen.end_offset = self._end_offset = header.next_offset

    # -- offset and time index ---------------------------------------------------------------------------------

    def _verify_entries(
        self,
        offset_index: OffsetIndex,
        time_index: TimeIndex,
        position: int,
        header: BatchHeader,
        seen: _Seen,
    ) -> Iterator[Finding]:
        """Hold the next entries against a batch."""
        place = seen.offset_place
        if place < len(offset_index) and offset_index[place][1] <= position:
            path = self._path(seen.base_offset, INDEX)
            offset, at = offset_index[place]
            if at != position:
                yield Finding(path, f"entry {place} says that a batch begins at byte {at}; none does")
            elif offset < header.last_offset or seen.last_indexed >= header.base_offset:
                # Kafka before 4.2 named the last offset of a whole append, of several batches.
                yield Finding(
                    path,
                    f"entry {place} says offset {offset} for byte {at}, whose batch is [{header.base_offset}, {header.last_offset}]",
                )
            seen.last_indexed = offset
            seen.offset_place += 1
        place = seen.time_place
        if place < len(time_index) and time_index[place][1] <= header.last_offset:
            timestamp, offset = time_index[place]
            greatest = max(seen.max_timestamp, header.max_timestamp if header.record_count else NOTHING)
            of_all = max(seen.max_timestamp_of_all, header.max_timestamp)
            if timestamp not in (greatest, of_all) or offset < header.base_offset:
                yield Finding(
                    self._path(seen.base_offset, TIMEINDEX),
                    f"entry {place} says time {timestamp} for offset {offset}; the log says {greatest} up to {header.last_offset}",
                )
            seen.time_place += 1

    def _verify_rest(
        self, offset_index: OffsetIndex, time_index: TimeIndex, seen: _Seen
    ) -> Iterator[Finding]:
        """What is behind the last batch, in a segment that does not grow, is wrong."""
        if seen.is_last:
            return
        if seen.offset_place < len(offset_index):
            yield Finding(
                self._path(seen.base_offset, INDEX),
                f"entry {seen.offset_place} says that a batch begins at byte {offset_index[seen.offset_place][1]}; none does",
            )
        if seen.time_place < len(time_index):
            yield Finding(
                self._path(seen.base_offset, TIMEINDEX),
                f"entry {seen.time_place} says offset {time_index[seen.time_place][1]}; there is none",
            )

    # -- transaction index -------------------------------------------------------------------------------------

    def _verify_txn_index(self, content: bytes | None, seen: _Seen) -> Iterator[Finding]:
        path = self._path(seen.base_offset, TXNINDEX)
        content = content or b""
        torn = len(content) % 34
        if torn and not seen.is_last:
            yield Finding(path, f"{len(content)} bytes: its last entry is torn")
        index = TransactionIndex(content[: len(content) - torn])
        found = [index[place] for place in range(len(index))]
        wanted = seen.aborted
        if seen.is_last:
            found = [txn for txn in found if txn.last_offset < seen.end_offset]
            wanted = wanted[: len(found)]
        if found == wanted:
            return
        if self._begins_known and not self._compacted:
            place = next(
                (at for at, (one, other) in enumerate(zip(found, wanted, strict=False)) if one != other),
                min(len(found), len(wanted)),
            )
            there = found[place] if place < len(found) else "nothing"
            right = wanted[place] if place < len(wanted) else "nothing"
            yield Finding(path, f"entry {place} is {there}; the log says {right}")
            return
        yield from self._verify_txns_by_end(path, found, wanted, seen)

    def _verify_txns_by_end(
        self, path: Path, found: list[AbortedTxn], wanted: list[AbortedTxn], seen: _Seen
    ) -> Iterator[Finding]:
        """Compare entries where the log does not show every beginning any more."""
        by_end = {txn.last_offset: txn for txn in found}
        for right in wanted:
            there = by_end.pop(right.last_offset, None)
            if (
                there is None
                or there.producer_id != right.producer_id
                or there.first_offset > right.first_offset
                or there.stable_offset > right.stable_offset
            ):
                yield Finding(
                    path, f"the entry of the abort at {right.last_offset} is {there}; the log says {right}"
                )
        for there in by_end.values():
            # Kafka's compaction keeps an entry until it has removed the marker, as long as nothing is left to hide.
            if self._begins_known and seen.empty_aborts.get(there.last_offset) != there.producer_id:
                yield Finding(path, f"the entry {there} is of no transaction in the log")

    # -- summary -----------------------------------------------------------------------------------------------

    def _verify_summary(self, content: _Content, seen: _Seen) -> Iterator[Finding]:
        path = self._path(seen.base_offset, SUMMARY)
        if content.summary is None:
            return  # growing, or sealed and not yet durable
        try:
            summary = Summary.decode(content.summary)
        except (Corrupt, NewerFormat) as error:
            yield Finding(path, str(error))
            return
        wanted = {
            "base_offset": seen.base_offset,
            "log_size": seen.size,
            "log_crc": seen.log_crc,
            "max_timestamp": seen.max_timestamp,
            "record_count": seen.record_count,
            "index_crc": crc32c(content.indexes[INDEX] or b""),
            "timeindex_crc": crc32c(content.indexes[TIMEINDEX] or b""),
            "txnindex_crc": crc32c(content.indexes[TXNINDEX] or b""),
        }
        if self._begins_known and not self._compacted:
            first_open = self._producers.first_open_offset()
            wanted["end_offset"] = seen.end_offset
            if self._counts_known:
                wanted["committed_count"] = seen.committed_count
            wanted["stable_offset"] = seen.end_offset if first_open is None else first_open
            wanted["least_aborted_offset"] = min((txn.first_offset for txn in seen.aborted), default=NOTHING)
        for name, value in wanted.items():
            said = getattr(summary, name)
            if said == value:
                continue
            # The summary has a CRC of its own, and it holds.
            changed = COVERED.get(name)
            if changed is None:
                yield Finding(path, f"{name} is {said}; the files say {value}")
            else:
                yield Finding(
                    self._path(seen.base_offset, changed), f"has {name} {value}; {path.name} says {said}"
                )

    # -- snapshots and epochs ----------------------------------------------------------------------------------

    def _read_snapshots_up_to(self, end_offset: int) -> Iterator[Finding]:
        while self._snapshots and self._snapshots[-1] <= end_offset:
            offset = self._snapshots.pop()
            yield from self._read_snapshot(offset, self._producers if offset == self._end_offset else None)

    def _read_snapshot(self, offset: int, known: Producers | None) -> Iterator[Finding]:
        """Hold both files of a snapshot against producer state; against nothing if that is not known there."""
        provable = self._begins_known and not self._compacted and known is not None
        ours, theirs = (self._content(self._path(offset, suffix)) for suffix in (".producers", ".snapshot"))
        if ours is not None:
            path = self._path(offset, ".producers")
            try:
                producers, progress = decode_producers(ours)
            except (Corrupt, NewerFormat) as error:
                yield Finding(path, str(error))
            else:
                if provable:
                    yield from self._compare(path, producers, batch_count=self._batches_known)
                yield from self._verify_progress(path, progress)
        if theirs is not None:
            path = self._path(offset, ".snapshot")
            try:
                producers = decode_snapshot(theirs, 0)
            except (Corrupt, NewerFormat) as error:
                yield Finding(path, str(error))
            else:
                if provable:
                    yield from self._compare(path, producers, batch_count=1)

    def _compare(self, path: Path, said: ProducerTable, *, batch_count: int) -> Iterator[Finding]:
        log_says = self._producers.frozen()
        for known in log_says:
            there = said.get(known.producer_id)
            # A producer that has been silent for long is forgotten, unless its transaction is open.
            if there is None and known.txn_first_offset == NO_TXN:
                continue
            if there is None or not _agrees(there, known, batch_count):
                yield Finding(path, f"producer {known.producer_id} is {there}; the log says {known}")
        for there in said:
            if log_says.get(there.producer_id) is None:
                yield Finding(path, f"producer {there.producer_id} has not written to the log")

    def _verify_progress(self, path: Path, progress: Summary) -> Iterator[Finding]:
        """A snapshot tells how far the indexes of its segment had come."""
        sizes = (progress.index_size, progress.timeindex_size, progress.txnindex_size)
        crcs = (progress.index_crc, progress.timeindex_crc, progress.txnindex_crc)
        if not self._disk.exists(self._path(progress.base_offset, LOG)) or self._compacted:
            return
        for suffix, size, crc in zip(INDEX_SUFFIXES, sizes, crcs, strict=True):
            index_path = self._path(progress.base_offset, suffix)
            content = (self._content(index_path) or b"")[:size]
            if len(content) < size or crc32c(content) != crc:
                yield Finding(index_path, f"is not what {path.name} says of its first {size} bytes")

    def _verify_epochs(self) -> Iterator[Finding]:
        path = self._directory / EPOCH_FILE
        content = self._content(path)
        if content is None:
            return  # it is read in the batches then
        try:
            said = LeaderEpochs.decode(content).entries
        except (Corrupt, NewerFormat) as error:
            yield Finding(path, str(error))
            return
        known = self._epochs.entries
        if not said or not known or not self._begins_known or self._compacted:
            return
        # Retention and DeleteRecords remove the beginning of either, and Kafka lets the first epoch that is left begin
        # at the log's start. So they are compared from where both are known.
        begin = max(said[0][1], known[0][1])
        if begin >= self._end_offset:
            return
        said, known = (
            [(LeaderEpochs(entries).epoch_of(begin), begin)]
            + [(epoch, start) for epoch, start in entries if begin < start < self._end_offset]
            for entries in (said, known)
        )
        if said != known[: len(said)]:
            yield Finding(path, f"epochs begin at {said}; the log says {known}")


def _agrees(said: Producer, known: Producer, batch_count: int) -> bool:
    """Whether what a snapshot says of a producer is what the log says, or less: it may have been forgotten and come back."""
    batches, kept = known.batches[-batch_count:], said.batches[-batch_count:]
    if batch_count == 1:
        # Kafka's snapshot has one time for a producer, of its last batch or of the marker that came after it.
        batches, kept = ([batch._replace(timestamp_ms=NOTHING) for batch in rows] for rows in (batches, kept))
    if known.coordinator_epoch != NOTHING:
        # Version 1 of the file also has batches of ended transactions.
        kept = kept[max(len(kept) - len(batches), 0) :]
    return (
        said.producer_epoch == known.producer_epoch
        and said.coordinator_epoch in (known.coordinator_epoch, -1)
        and said.txn_first_offset == known.txn_first_offset
        and len(kept) <= len(batches)
        and kept == batches[len(batches) - len(kept) :]
    )
