"""The log of one partition: joins the parts beside it into append, read, recover and delete.

Invariants, at every return:
- start_offset <= last_stable_offset <= high_watermark <= end_offset
- segments are consecutive; all but the last are sealed
- none of these offsets moves back, but for `truncate_to`

An append goes in this order: bytes to the file, then producer state, then for an abort the index entry, then the
transaction counts as ended. A crash between any two is a row of the table in `recovery`.

Format: docs/formats.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from crc32c import crc32c
from kio.schema.errors import ErrorCode

from stablelog.batch.header import (
    CRC_START,
    HEADER,
    LOG_APPEND_TIME,
    PREFIX,
    BatchHeader,
    crc_holds,
    headers_in,
    read_header,
    stamped_prefix,
)
from stablelog.batch.markers import encode_marker
from stablelog.batch.records import decode_records
from stablelog.env.disk import Buffer, Disk
from stablelog.errors import Corrupt, OffsetOutOfRange, Refused, Unavailable
from stablelog.log.epochs import LeaderEpochs
from stablelog.log.model import (
    Appended,
    Isolation,
    LogConfig,
    MarkerWrite,
    OpenTxn,
    Origin,
    ProducerDescription,
    Slice,
    SyncWork,
)
from stablelog.log.producers import EndedTxn, Producers
from stablelog.log.recovery import EPOCH_FILE, Recovered, recover
from stablelog.log.segment import LOG, SEGMENT_SUFFIXES, SUMMARY, OpenFiles, Segment
from stablelog.log.snapshots import encode_producers, encode_snapshot
from stablelog.log.transaction_index import AbortedTxn

__all__ = [
    "Appended",
    "Isolation",
    "LogConfig",
    "MarkerWrite",
    "OpenTxn",
    "Origin",
    "Partition",
    "ProducerDescription",
    "Slice",
    "SyncWork",
]

TransactionCheck = Callable[[BatchHeader], None]
TimestampAndOffset = tuple[int, int, int]  # offset, timestamp, leader epoch


class Partition:
    """One partition. Opened with `open`; not safe to be used by two threads at once, but for `SyncWork.run`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        config: LogConfig,
        *,
        topic: str,
        partition: int,
        leader_epoch: int,
        open_files: OpenFiles,
    ) -> None:
        self.topic = topic
        self.index = partition
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self._disk = disk
        self._open_files = open_files
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._producers = Producers()
        self._epochs = LeaderEpochs()
        self._failed: Unavailable | None = None
        self.start_offset = 0
        self.high_watermark = 0
        self._unsynced_from = 0  # the first segment that a sync has to look at, by base offset
        self._names_changed = False
        self._pending_writes: list[tuple[Path, bytes]] = []
        self._appended_since_snapshot = 0
        self._deleted: list[tuple[int, list[Path]]] = []

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: Path,
        config: LogConfig,
        *,
        topic: str,
        partition: int,
        clean: bool,
        now_ms: int,
        log_start_offset: int = 0,
        leader_epoch: int = 0,
        progress: Callable[[int, int], None] | None = None,
        open_files: OpenFiles | None = None,
    ) -> "Partition":
        """Open a partition's directory, or make it, and recover what a crash left. Everything kept is durable then.

        Args:
            disk: where the directory lies.
            directory: the partition's own.
            config: its settings.
            topic: its name.
            partition: its index.
            clean: whether the last owner closed it: then a gap between segments is what compaction has left, and
                not what a crash took.
            now_ms: the broker's clock.
            log_start_offset: what was deleted before stays deleted.
            leader_epoch: under which it writes from now on.
            progress: called with (bytes done, bytes in all) while recovery reads.
            open_files: shared by all partitions of a broker.

        Raises:
            Corrupt: bytes that were durable are damaged. Nothing was changed.
        """
        self = cls(
            disk,
            directory,
            config,
            topic=topic,
            partition=partition,
            leader_epoch=leader_epoch,
            open_files=open_files or OpenFiles(disk),
        )
        disk.make_dir(directory)
        self._load(now_ms, log_start_offset, clean=clean, progress=progress)
        return self

    def _load(
        self,
        now_ms: int,
        log_start_offset: int,
        *,
        clean: bool,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        found: Recovered = recover(
            self._disk,
            self.directory,
            self._open_files,
            index_interval=self.config.index_interval_bytes,
            log_start_offset=log_start_offset,
            now_ms=now_ms,
            clean=clean,
            progress=progress,
        )
        self._segments = found.segments
        self._bases = [segment.base_offset for segment in found.segments]
        self._producers = found.producers
        self._epochs = found.epochs
        self.leader_epoch = max(self.leader_epoch, found.epochs.latest)
        self.start_offset = min(max(log_start_offset, self._bases[0]), self.end_offset)
        self._unsynced_from = self._active.base_offset
        self._pending_writes = []
        self._names_changed = False
        self._appended_since_snapshot = 0
        self.high_watermark = self.end_offset
        self._producers.high_watermark_moved(self.high_watermark)
        if self._active.created_ms < 0 or self._active.created_ms > now_ms:
            self._active.created_ms = now_ms

    # -- what there is -----------------------------------------------------------------------------------------

    @property
    def _active(self) -> Segment:
        return self._segments[-1]

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._active.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset whose fate is not known; with none such, the high watermark."""
        unstable = self._producers.first_unstable_offset()
        stable = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
        return max(stable, self.start_offset)

    def visible_end(self, isolation: Isolation) -> int:
        """The first offset that a reader of this isolation does not see."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark if isolation is Isolation.READ_UNCOMMITTED else self.end_offset

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return sum(segment.size for segment in self._segments)

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self._segments)

    def producers(self) -> list[ProducerDescription]:
        """Who has written here and is remembered."""
        return [
            ProducerDescription(
                producer.producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.used_ms,
                producer.coordinator_epoch,
                producer.txn_first_offset,
            )
            for producer in self._producers.by_id.values()
        ]

    def open_transactions(self) -> list[OpenTxn]:
        """The transactions that are open here, the oldest first."""
        return [
            OpenTxn(
                producer.producer_id,
                producer.producer_epoch,
                producer.txn_first_offset,
                producer.txn_started_ms,
                self._epochs.epoch_of(producer.txn_first_offset),
            )
            for producer in self._producers.open_producers()
        ]

    def reconfigure(self, config: LogConfig) -> None:
        """Take new settings, from the next append on."""
        self.config = config

    def _check_usable(self) -> None:
        if self._failed is not None:
            raise Unavailable(f"{self.topic}-{self.index} has failed and needs a restart: {self._failed}")

    # -- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Buffer,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_check: TransactionCheck | None = None,
        require_first_sequence_zero: bool = False,
    ) -> Appended:
        """Append a batch (of a client or coordinator), or several with their offsets (of another log).

        Args:
            batches: the bytes. They are written as they are, but for base offset and leader epoch.
            now_ms: the broker's clock.
            origin: who appends, hence what is checked.
            transaction_check: asked before the first batch of a transaction in this partition; raises Refused.
            require_first_sequence_zero: whether a producer that is not known here has to begin with sequence 0.

        Raises:
            Refused: the batch is not valid, out of order, fenced, or not in its transaction. Nothing changed.
            Corrupt: the bytes are no batch, or not those of its CRC. Nothing changed.
            Unavailable: the disk failed. Nothing of it will be seen.
        """
        self._check_usable()
        if origin is Origin.REPLICATION:
            return self._append_replicated(batches, now_ms)
        header = read_header(batches)
        self._check_batch(header, batches, origin)
        if origin is Origin.CLIENT and header.has_producer:
            duplicate = self._producers.find_duplicate(header)
            if duplicate is not None:
                return Appended(
                    duplicate.first_offset, duplicate.last_offset, -1, self.start_offset, duplicate=True
                )
            self._producers.check_batch(header, require_first_sequence_zero=require_first_sequence_zero)
            if (
                header.is_transactional
                and transaction_check is not None
                and self._producers.is_first_of_transaction(header)
            ):
                transaction_check(header)
        elif header.has_producer:
            self._producers.check_epoch(header)
        append_time_ms = -1
        if self.config.message_timestamp_type == "LogAppendTime":
            batches = _with_append_time(batches, now_ms)
            header = read_header(batches)
            append_time_ms = now_ms
        base_offset = self.end_offset
        self._write(header, batches, base_offset, self.leader_epoch, now_ms)
        if header.has_producer:
            self._producers.batch_appended(header, base_offset, now_ms)
        return Appended(
            base_offset, base_offset + header.last_offset_delta, append_time_ms, self.start_offset
        )

    def _check_batch(self, header: BatchHeader, batches: Buffer, origin: Origin) -> None:
        """Refuse what no client may send.

        Raises:
            Refused, Corrupt: as `append` says.
        """
        if header.size != len(batches):
            if header.size < len(batches):
                raise Refused(ErrorCode.invalid_record, "more than one batch for a partition in one request")
            raise Corrupt(f"a batch of {header.size} bytes of which {len(batches)} came")
        if header.base_offset != 0:
            raise Refused(ErrorCode.invalid_record, f"a batch begins at offset 0, not {header.base_offset}")
        if header.record_count != header.last_offset_delta + 1:
            raise Refused(
                ErrorCode.invalid_record,
                f"{header.record_count} records up to offset {header.last_offset_delta}",
            )
        if header.size > self.config.max_message_bytes and origin is Origin.CLIENT:
            raise Refused(
                ErrorCode.message_too_large,
                f"a batch of {header.size} bytes; {self.topic} takes up to max.message.bytes={self.config.max_message_bytes}",
            )
        if not crc_holds(batches, 0, header):
            raise Corrupt("the CRC of a batch does not hold")
        _ = header.codec
        if origin is Origin.CLIENT:
            if header.is_control:
                raise Refused(ErrorCode.invalid_record, "a client does not write markers")
            if header.has_producer and header.base_sequence < 0:
                raise Refused(ErrorCode.invalid_record, "a producer id without a sequence")
            if header.has_producer and header.producer_epoch < 0:
                raise Refused(ErrorCode.invalid_record, "a producer id without an epoch")
            if header.is_transactional and not header.has_producer:
                raise Refused(ErrorCode.invalid_record, "a transactional batch without a producer id")

    def _write(
        self, header: BatchHeader, batch: Buffer, base_offset: int, leader_epoch: int, now_ms: int
    ) -> None:
        """Write one batch at the end, and take it into the segment's indexes."""
        self._roll_if_needed(header.size, base_offset + header.last_offset_delta, header, now_ms)
        prefix = stamped_prefix(header, base_offset, leader_epoch)
        view = memoryview(batch)
        position = self._active.append((prefix, view[PREFIX.size :]))
        self._note(
            header._replace(base_offset=base_offset),
            position,
            prefix + bytes(view[PREFIX.size : HEADER.size]),
        )
        if leader_epoch > self._epochs.latest:
            self._assign_epoch(leader_epoch, base_offset)

    def _note(self, header: BatchHeader, position: int, head: bytes) -> None:
        self._active.note(header, position, head, self.config.index_interval_bytes)
        self._appended_since_snapshot += header.size

    def _assign_epoch(self, epoch: int, offset: int) -> None:
        if self._epochs.assign(epoch, offset):
            # Written with the next sync: a crash before it also loses the records that the epoch wrote.
            self._pending_writes.append((self.directory / EPOCH_FILE, self._epochs.encode()))

    def _append_replicated(self, batches: Buffer, now_ms: int) -> Appended:
        """Take over batches of another log, with their offsets and epochs; the same markers give the same index."""
        view = memoryview(batches)
        first: int | None = None
        for position, header in headers_in(batches):
            batch = view[position : position + header.size]
            if not crc_holds(batches, position, header):
                raise Corrupt(f"the CRC of the batch at offset {header.base_offset} does not hold")
            if header.base_offset < self.end_offset:
                raise Refused(
                    ErrorCode.invalid_record,
                    f"offset {header.base_offset} comes after {self.end_offset - 1} is written",
                )
            first = header.base_offset if first is None else first
            self._write(header, batch, header.base_offset, header.leader_epoch, now_ms)
            self._apply(header, batch, now_ms)
        if first is None:
            raise Corrupt(f"{len(batches)} bytes without a whole batch")
        return Appended(first, self.end_offset - 1, -1, self.start_offset)

    def _apply(self, header: BatchHeader, batch: Buffer, now_ms: int) -> None:
        from stablelog.log.recovery import apply_batch

        try:
            apply_batch(self._producers, self._active, header, batch, now_ms)
        except Unavailable as error:
            self._failed = error
            raise

    def append_markers(self, markers: Sequence[MarkerWrite], *, now_ms: int) -> list[Appended | Refused]:
        """Write markers, in their order, with one write to the file.

        Returns:
            For each where it went, or why it was refused. A marker that repeats the last one of its producer is
            not written again and counts as done.

        Raises:
            Unavailable: the disk failed. Recovery will find the markers that were written, and no others.
        """
        self._check_usable()
        outcomes: list[Appended | Refused] = []
        batches: list[tuple[MarkerWrite, bytes]] = []
        offset = self.end_offset
        written_epochs: dict[int, int] = {}
        for write in markers:
            try:
                known = written_epochs.get(write.producer_id)
                if known is not None and known > write.producer_epoch:
                    raise Refused(
                        ErrorCode.invalid_producer_epoch,
                        f"a marker of epoch {write.producer_epoch} after one of {known}",
                    )
                needed = self._producers.check_marker(
                    write.producer_id, write.producer_epoch, write.marker, write.transaction_version
                )
            except Refused as refused:
                outcomes.append(refused)
                continue
            if not needed or known == write.producer_epoch:
                outcomes.append(Appended(-1, -1, -1, self.start_offset, duplicate=True))
                continue
            batch = encode_marker(
                write.marker,
                base_offset=offset,
                leader_epoch=self.leader_epoch,
                producer_id=write.producer_id,
                producer_epoch=write.producer_epoch,
                timestamp_ms=now_ms,
            )
            header = read_header(batch)
            batches.append((write, batch))
            outcomes.append(Appended(offset, header.last_offset, now_ms, self.start_offset))
            written_epochs[write.producer_id] = write.producer_epoch
            offset = header.next_offset
        if batches:
            self._write_markers(batches, now_ms)
        return outcomes

    def _write_markers(self, batches: list[tuple[MarkerWrite, bytes]], now_ms: int) -> None:
        first, last = read_header(batches[0][1]), read_header(batches[-1][1])
        self._roll_if_needed(sum(len(batch) for _, batch in batches), last.last_offset, first, now_ms)
        position = self._active.append(tuple(batch for _, batch in batches))
        try:
            for write, batch in batches:
                header = read_header(batch)
                self._note(header, position, batch[: HEADER.size])
                position += header.size
                if self.leader_epoch > self._epochs.latest:
                    self._assign_epoch(self.leader_epoch, header.base_offset)
                txn = self._producers.marker_appended(
                    write.producer_id,
                    write.producer_epoch,
                    write.marker,
                    header.base_offset,
                    header.next_offset,
                    now_ms,
                )
                if txn is not None:
                    self._end(write.producer_id, txn)
        except Unavailable as error:
            # The markers are in the log and the index is not: only recovery can put that right.
            self._failed = error
            raise

    def _end(self, producer_id: int, txn: EndedTxn) -> None:
        if txn.aborted is not None:
            self._active.append_aborted(txn.aborted)
        else:
            self._active.committed_count += txn.record_count
        self._producers.ended(producer_id, txn)

    # -- roll --------------------------------------------------------------------------------------------------

    def _roll_if_needed(self, size: int, last_offset: int, header: BatchHeader, now_ms: int) -> None:
        active, config = self._active, self.config
        if active.size == 0:
            active.created_ms = now_ms
            return
        if (
            not active.has_room(size, last_offset, config.segment_bytes, config.segment_index_bytes)
            or now_ms - active.created_ms > config.segment_ms
        ):
            self.roll(now_ms)

    def roll(self, now_ms: int) -> None:
        """Seal the last segment, if it holds anything, and begin a new one."""
        self._check_usable()
        active = self._active
        if active.size == 0:
            return
        unstable = self._producers.first_open_offset()
        active.seal(active.end_offset if unstable is None else unstable)
        assert active.summary is not None
        self._pending_writes.append((active.path(SUMMARY), active.summary.encode()))
        self._add_segment(active.end_offset, now_ms)
        self._snapshot()

    def _add_segment(self, base_offset: int, now_ms: int) -> None:
        segment = Segment(self._disk, self.directory, base_offset, self._open_files)
        segment.create()
        segment.created_ms = now_ms
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._names_changed = True

    # -- durability --------------------------------------------------------------------------------------------

    def unsynced(self) -> SyncWork | None:
        """What has to be done so that everything appended so far is durable; None if it is."""
        if self.high_watermark == self.end_offset and not self._pending_writes and not self._names_changed:
            return None
        self._check_usable()
        if self._appended_since_snapshot >= self.config.snapshot_bytes:
            self._active.write_indexes()
            self._snapshot()
        begin = bisect_left(self._bases, self._unsynced_from)
        unsynced = self._segments[begin:]
        writes, self._pending_writes = self._pending_writes, []
        directory = self.directory if self._names_changed else None
        self._names_changed = False
        return SyncWork(
            end_offset=self.end_offset,
            files=[file for segment in unsynced for file in segment.files_to_sync()],
            disk=self._disk,
            directory=directory,
            writes=writes,
            release=[segment.base_offset for segment in unsynced if segment.sealed],
        )

    def synced(self, work: SyncWork) -> bool:
        """A work has been run: the high watermark moves. Returns whether it or the last stable offset moved."""
        for base_offset in work.release:
            at = bisect_left(self._bases, base_offset)
            if at < len(self._bases) and self._bases[at] == base_offset:
                self._segments[at].release()
        if work.release:
            self._unsynced_from = max(self._unsynced_from, work.release[-1] + 1)
        return self._move_high_watermark(work.end_offset)

    def assume_synced(self) -> bool:
        """What the operating system has counts as durable. Returns whether a watermark moved."""
        return self._move_high_watermark(self.end_offset)

    @property
    def has_pending_writes(self) -> bool:
        """Whether a sync has more to do than to move the high watermark: a segment was sealed."""
        return bool(self._pending_writes) or self._names_changed

    def _move_high_watermark(self, offset: int) -> bool:
        before = self.high_watermark, self.last_stable_offset
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))
        self._producers.high_watermark_moved(self.high_watermark)
        after = self.high_watermark, self.last_stable_offset
        assert before[1] <= after[1] <= after[0]
        return before != after

    def _snapshot(self) -> None:
        """Have producer state written out with the next sync, for the log's end as it is now."""
        offset = self.end_offset
        unstable = self._producers.first_open_offset()
        progress = self._active.progress(offset if unstable is None else unstable)
        name = f"{offset:020d}"
        self._pending_writes.append((self.directory / f"{name}.snapshot", encode_snapshot(self._producers)))
        self._pending_writes.append(
            (self.directory / f"{name}.producers", encode_producers(self._producers, progress))
        )
        self._appended_since_snapshot = 0

    def take_snapshot(self) -> None:
        """Write producer state out, whatever was appended since the last time; with the next sync."""
        self._active.write_indexes()
        self._snapshot()

    # -- read --------------------------------------------------------------------------------------------------

    def _segment_at(self, offset: int) -> int:
        """The place of the segment in which the offset lies."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from `start`: at most `size_max` bytes, but at least one batch if `at_least_one`.

        Nothing at or past `visible_end(isolation)` is returned, so the fate of every transaction in the answer
        of a read-committed read is known.

        Raises:
            OffsetOutOfRange: `start` is before the log's start or past its end.
            Corrupt: an index that is needed is damaged.
        """
        self._check_usable()
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {start} of {self.topic}-{self.index} is not in [{self.start_offset}, {self.end_offset}]"
            )
        limit = self.visible_end(isolation)
        committed = isolation is Isolation.READ_COMMITTED
        empty = Slice([], start, start, () if committed else None)
        if start >= limit:
            return empty
        place = self._segment_at(start)
        found = self._segments[place].find(start)
        while found is None:
            place += 1  # the rest of the segment was compacted away
            if place == len(self._segments):
                return empty
            found = self._segments[place].find(start)
        segment = self._segments[place]
        position, header = found
        if header.base_offset >= limit or (header.size > size_max and not at_least_one):
            return empty
        # Whole batches within the size; the first of them in any case.
        end_position, end_offset = segment.whole_batches(position, position + max(size_max, header.size))
        if end_offset > limit:
            visible = segment.find(limit)
            assert visible is not None
            assert visible[1].base_offset >= limit, "a watermark lies between batches"
            end_position, end_offset = visible[0], limit
        data = segment.log.view(position, end_position - position)
        aborted = tuple(self._collect(place, start, end_offset)) if committed else None
        return Slice([data], start, end_offset, aborted)

    def aborted_in(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """The aborted transactions that touch [start, end), which is decided."""
        assert end <= self.last_stable_offset
        return tuple(self._collect(self._segment_at(start), start, end)) if start < end else ()

    def _collect(self, place: int, start: int, end: int) -> list[AbortedTxn]:
        """Aborted transactions that touch [start, end), from the segment at `place` on.

        The first sealed segment whose stable offset reaches `end` is the last that can know of one: by its end
        every transaction begun before `end` had ended. Both that offset and the least first offset of each
        segment's aborts are known without its index.
        """
        last = self._last_place_with_aborts_before(place, end)
        found: list[AbortedTxn] = []
        for segment in self._segments[place : last + 1]:
            if segment.least_aborted_offset is not None and segment.least_aborted_offset < end:
                found += segment.txn_index.collect(start, end)[0]
        return found

    def _last_place_with_aborts_before(self, place: int, end: int) -> int:
        low, high = place, len(self._segments) - 1
        while low < high:
            middle = (low + high) // 2
            if self._segments[middle].stable_offset < end:
                low = middle + 1
            else:
                high = middle
        return low

    # -- lookups -----------------------------------------------------------------------------------------------

    def offset_for_timestamp(self, timestamp_ms: int, isolation: Isolation) -> TimestampAndOffset | None:
        """The first record at or after a time, as (offset, timestamp, leader epoch); None if none can be seen."""
        limit = self.visible_end(isolation)
        for segment in self._segments:
            if segment.max_timestamp < timestamp_ms or segment.end_offset <= self.start_offset:
                continue
            begin = segment.time_index.offset_before(timestamp_ms)
            found = segment.find(segment.base_offset if begin is None else begin)
            for position, header in segment.walk(found[0]) if found is not None else ():
                if header.max_timestamp < timestamp_ms or header.last_offset < self.start_offset:
                    continue
                if header.base_offset >= limit:
                    return None
                record = self._first_record(segment, position, header, timestamp_ms)
                if record is not None:
                    return record if record[0] < limit else None
        return None

    def _first_record(
        self, segment: Segment, position: int, header: BatchHeader, timestamp_ms: int
    ) -> TimestampAndOffset | None:
        for record in decode_records(segment.log.view(position, header.size)):
            if record.timestamp_ms >= timestamp_ms and record.offset >= self.start_offset:
                return record.offset, record.timestamp_ms, header.leader_epoch
        return None

    def max_timestamp(self, isolation: Isolation) -> TimestampAndOffset | None:
        """The record with the greatest timestamp, as (offset, timestamp, leader epoch); None if it cannot be seen."""
        greatest = max(self._segments, key=lambda segment: segment.max_timestamp)
        if greatest.max_timestamp < 0:
            return None
        return self.offset_for_timestamp(greatest.max_timestamp, isolation)

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Where a leader epoch ended: (epoch, end offset exclusive); (-1, -1) if that is not known."""
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.end_offset
        return self._epochs.end_offset(leader_epoch, self.end_offset)

    # -- delete ------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Move the log's start to `before_offset`, and delete the segments that lie before it. Returns the start.

        The start is durable when the broker has written it down; until then a restart may show the records again.

        Raises:
            OffsetOutOfRange: it lies past the high watermark.
        """
        self._check_usable()
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"records before {before_offset} of {self.topic}-{self.index} cannot be deleted: the high watermark is {self.high_watermark}"
            )
        self.start_offset = max(self.start_offset, before_offset)
        self._delete_segments(lambda segment: segment.end_offset <= self.start_offset, now_ms=0)
        return self.start_offset

    def apply_retention(self, now_ms: int) -> int:
        """Delete the oldest segments while they are too old or too much. Returns how many."""
        self._check_usable()
        config = self.config
        deleted = self._delete_segments(lambda segment: segment.end_offset <= self.start_offset, now_ms)
        if "delete" not in config.cleanup_policy:
            return deleted
        if config.retention_ms >= 0:
            oldest_ms = now_ms - config.retention_ms
            active = self._active
            if active.size and active.max_timestamp < oldest_ms and self.high_watermark == self.end_offset:
                self.roll(now_ms)
            deleted += self._delete_segments(lambda segment: segment.max_timestamp < oldest_ms, now_ms)
        if config.retention_bytes >= 0:
            excess = self.size - config.retention_bytes

            def too_much(segment: Segment) -> bool:
                nonlocal excess
                excess -= segment.size
                return excess >= 0

            deleted += self._delete_segments(too_much, now_ms)
        return deleted

    def _delete_segments(self, condition: Callable[[Segment], bool], now_ms: int) -> int:
        """Delete sealed, durable segments from the oldest on, as long as the condition holds."""
        count = 0
        while (
            count < len(self._segments) - 1
            and self._segments[count].end_offset <= self.high_watermark
            and self._segments[count].base_offset < self._unsynced_from
            and condition(self._segments[count])
        ):
            count += 1
        if not count:
            return 0
        gone = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        self.start_offset = max(self.start_offset, self._bases[0])
        renamed = []
        names = self._disk.list_dir(self.directory)
        for segment in gone:
            segment.close()
            paths = [segment.path(suffix) for suffix in SEGMENT_SUFFIXES]
            renamed += [self._mark_deleted(path) for path in paths if path.name in names]
            # One after the other: a crash must not leave a gap that looks like a segment that was lost.
            self._disk.sync_dir(self.directory)
        for name in names:
            stem, _, suffix = name.partition(".")
            if suffix in ("snapshot", "producers") and stem.isdigit() and int(stem) < self._bases[0]:
                renamed.append(self._mark_deleted(self.directory / name))
        self._names_changed = True
        self._deleted.append((now_ms + self.config.file_delete_delay_ms, renamed))
        return count

    def _mark_deleted(self, path: Path) -> Path:
        """Give a file the name that it has until it is removed."""
        marked = path.with_name(path.name + ".deleted")
        self._disk.rename(path, marked)
        return marked

    def remove_deleted(self, now_ms: int) -> None:
        """Remove the files of deleted segments whose time has passed."""
        while self._deleted and self._deleted[0][0] <= now_ms:
            for path in self._deleted.pop(0)[1]:
                self._disk.remove(path)

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have not written for `producer.id.expiration.ms`. Returns how many."""
        return self._producers.expire(now_ms - self.config.producer_id_expiration_ms)

    def truncate_to(self, offset: int, *, now_ms: int = 0) -> None:
        """Cut the log so that it ends at `offset`, or at the beginning of the batch in which that lies.

        Transactions whose marker is gone are open again. The high watermark moves back to the new end.

        Raises:
            OffsetOutOfRange: it lies before the log's start.
        """
        self._check_usable()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index} begins at {self.start_offset}; it cannot end at {offset}"
            )
        place = self._segment_at(offset)
        segment = self._segments[place]
        found = segment.find(offset)
        assert found is not None
        position, header = found
        start_offset, high_watermark = self.start_offset, min(self.high_watermark, header.base_offset)
        self._close_files()
        for later in self._segments[place + 1 :]:
            for suffix in SEGMENT_SUFFIXES:
                self._disk.remove(later.path(suffix))
        self._disk.remove(segment.path(SUMMARY))
        for name in self._disk.list_dir(self.directory):
            stem, _, suffix = name.partition(".")
            if suffix in ("snapshot", "producers") and stem.isdigit() and int(stem) > header.base_offset:
                self._disk.remove(self.directory / name)
        log = self._disk.open(segment.path(LOG))
        log.truncate(position)
        log.sync()
        log.close()
        self._epochs.truncate_to(header.base_offset)
        self._disk.write_atomic(self.directory / EPOCH_FILE, self._epochs.encode())
        self._disk.sync_dir(self.directory)
        self._load(now_ms, start_offset, clean=True)
        self.high_watermark = high_watermark

    # -- close -------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Close every file. If `clean`, make everything durable and leave nothing for recovery to read again."""
        if clean and self._failed is None:
            self.take_snapshot()
            work = self.unsynced()
            assert work is not None
            work.run()
            self.synced(work)
            self._remove_old_snapshots()
            for _, paths in self._deleted:
                for path in paths:
                    self._disk.remove(path)
            self._deleted = []
        self._close_files()

    def _remove_old_snapshots(self) -> None:
        """Keep those at the beginning of a segment, as Kafka does, and the newest."""
        keep = {*self._bases, self.end_offset}
        for name in self._disk.list_dir(self.directory):
            stem, _, suffix = name.partition(".")
            if suffix in ("snapshot", "producers") and stem.isdigit() and int(stem) not in keep:
                self._disk.remove(self.directory / name)

    def _close_files(self) -> None:
        for segment in self._segments:
            segment.close()


def _with_append_time(batch: Buffer, now_ms: int) -> bytes:
    """The batch with the broker's time in place of its producer's. It changes what the CRC covers."""
    stamped = bytearray(batch)
    attributes = int.from_bytes(stamped[21:23], "big") | LOG_APPEND_TIME
    stamped[21:23] = attributes.to_bytes(2, "big")
    stamped[35:43] = now_ms.to_bytes(8, "big")
    stamped[CRC_START - 4 : CRC_START] = crc32c(memoryview(stamped)[CRC_START:]).to_bytes(4, "big")
    return bytes(stamped)
