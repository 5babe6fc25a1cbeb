"""The log of one partition: joins the parts beside it into append, read, recover and delete.

Invariants, at every return:
- start_offset <= last_stable_offset <= high_watermark <= end_offset
- segments are consecutive; all but the last are sealed
- none of these offsets moves back, but for `truncate_to`

An append goes in this order: bytes to the file, then producer state, then for an abort the index entry, then the
transaction counts as ended. A crash between any two is a row of the table in `recovery`. An index entry that cannot be
written keeps the high watermark where it is; other index files may be behind memory.

Format: docs/formats.md.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from stablelog.batch.header import HEADER, PREFIX, BatchHeader, read_header, stamped_prefix
from stablelog.env.disk import Buffer, Disk, File
from stablelog.errors import DiskError, OffsetOutOfRange, Refused, Unavailable, Unproven
from stablelog.log.append import (
    MarkerBatch,
    check_batch,
    check_keys,
    check_positions,
    check_replicated,
    fitting,
    plan_markers,
    with_append_time,
)
from stablelog.log.cleaner import Cleaned, Cleaning, Compaction
from stablelog.log.epoch_check import check_epochs, epoch_at
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.listing import Listing
from stablelog.log.log_start import LOG_START_FILE, encode_log_start
from stablelog.log.model import (
    Appended,
    Isolation,
    LogConfig,
    MarkerWrite,
    OpenTxn,
    Origin,
    ProducerDescription,
    Slice,
)
from stablelog.log.names import SUMMARY
from stablelog.log.producers import EndedTxn, Producers
from stablelog.log.read import Lookup, first_at_or_after, greatest_timestamp, read
from stablelog.log.recovery import NEVER, Cut, Known, Recovered, recover
from stablelog.log.retention import PendingDeletes, count_durable, count_too_much, count_too_old
from stablelog.log.segment import RELATIVE_OFFSET_MAX, OpenFiles, Segment
from stablelog.log.segments import Segments, cut_files
from stablelog.log.snapshots import Snapshots
from stablelog.log.transaction_index import AbortedTxn
from stablelog.log.unsynced import SyncWork, Unsynced
from stablelog.log.usability import Usability

__all__ = [
    "Appended",
    "Isolation",
    "LogConfig",
    "MarkerWrite",
    "OpenFiles",
    "OpenTxn",
    "Origin",
    "Partition",
    "ProducerDescription",
    "Slice",
    "SyncWork",
]

TransactionCheck = Callable[[BatchHeader], None]
Progress = Callable[[int, int], None]
RECENT_MS = 60_000  # a producer that has not written for so long is packed


class Partition:
    """One partition. Opened with `open`; not safe to be used by two threads at once, but for `SyncWork.run`.

    Attributes:
        topic: its name.
        index: of the partition in the topic.
        directory: its own.
        config: its settings.
        leader_epoch: under which it writes.
        start_offset: of the first record that can be read.
        high_watermark: the first offset that is not known to be durable.
        synced_offset: the first offset that is not known to be synced; behind the high watermark where what the
            operating system has counts as durable.
        cuts: what recovery cut off the log.
        open_files: counts its open segments; joins those of the broker once no thread opens the partition any more.
        usability: whether it takes calls. After a failure or a close, every call that touches a file raises Unavailable.
    """

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
        self.open_files = open_files
        self.usability = Usability(f"{topic}-{partition}")
        self._disk = disk
        self._snapshots = Snapshots(disk, directory)
        self._pending_deletes = PendingDeletes(disk, directory)
        self._cleaning = Cleaning(disk, directory, open_files)
        # These are what recovery finds: `_load` sets them.
        self.start_offset: int
        self.high_watermark: int
        self.synced_offset: int
        self.cuts: tuple[Cut, ...]
        self._segments: Segments
        self._producers: Producers
        self._epochs: LeaderEpochs
        self._are_epochs_checked: bool
        self._found_epochs: dict[int, int]  # of transactions that were open at the open, by first offset
        self._unsynced: Unsynced
        self._now_ms: int  # the broker's clock at the last append, or at the open

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
        recovery_point: int | None = None,
        first_dirty_offset: int = 0,
        leader_epoch: int = 0,
        is_established: bool = False,
        gapless_epoch: int = NEVER,
        progress: Progress | None = None,
        open_files: OpenFiles | None = None,
        listing: Listing | None = None,
    ) -> "Partition":
        """Open a partition's directory, or make it, and recover what a crash left. Everything kept is durable then.

        Args:
            disk: where the directory lies.
            directory: the partition's own.
            config: its settings.
            topic: its name.
            partition: its index.
            clean: whether the last owner closed it, so that all of it was durable: then a damaged end is not what
                a crash left, and a gap between segments is not what it took.
            now_ms: the broker's clock.
            log_start_offset: what was deleted before stays deleted, whatever the partition's own file says.
            recovery_point: up to where the partition was known to be synced, exclusive; None if that is not recorded.
            first_dirty_offset: what lies before it was compacted.
            leader_epoch: under which it writes from now on.
            is_established: whether the partition was made complete by this release, so that what is missing is lost.
            gapless_epoch: the first leader epoch whose batches follow each other without a gap in the growing
                segment.
            progress: called with (bytes done, bytes in all) while recovery reads.
            open_files: counts its open segments.
            listing: of the directory, which exists then and is as the listing says.

        Raises:
            Corrupt: bytes that were durable are damaged or gone. No log file was changed.
            DiskError: the disk failed.
        """
        self = cls(
            disk,
            directory,
            config,
            topic=topic,
            partition=partition,
            leader_epoch=leader_epoch,
            open_files=OpenFiles() if open_files is None else open_files,
        )
        if listing is None:
            disk.make_dir(directory)
            listing = Listing(disk, directory)
        known = Known(
            is_clean=clean,
            is_established=is_established,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            leader_epoch=leader_epoch,
            gapless_epoch=gapless_epoch,
            now_ms=now_ms,
        )
        self._load(known, listing, progress)
        self._cleaning.first_dirty_offset = min(first_dirty_offset, self.end_offset)
        return self

    def _load(self, known: Known, listing: Listing, progress: Progress | None) -> None:
        found: Recovered = recover(
            listing,
            self.open_files,
            known,
            index_interval=self.config.index_interval_bytes,
            progress=progress,
        )
        self._now_ms = known.now_ms
        self.cuts = tuple(found.cuts)
        self._segments = Segments(found.segments)
        self._producers = found.producers
        self._epochs = found.epochs
        try:
            self._found_epochs = {
                producer.txn_first_offset: epoch_at(producer.txn_first_offset, self._epochs, self._segments)
                for producer in self._producers.open_producers()
            }
        except BaseException:
            for segment in found.segments:
                segment.close()
            raise
        self._are_epochs_checked = False
        self.leader_epoch = max(self.leader_epoch, found.epochs.latest)
        self.start_offset = found.start_offset
        self._unsynced = Unsynced(self._disk, self.directory, self._active.base_offset)
        self._snapshots.opened(found.snapshots)
        self.high_watermark = self.synced_offset = self.end_offset
        self._producers.high_watermark_moved(self.high_watermark)
        self._active.created_ms = self._now_ms

    # -- what there is -----------------------------------------------------------------------------------------

    @property
    def _active(self) -> Segment:
        return self._segments.active

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self._segments.active.end_offset

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

    def visible_start(self, isolation: Isolation) -> int:
        """The first offset that a reader of this isolation can ask for."""
        return self.start_offset

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return self._segments.size

    @property
    def first_dirty_offset(self) -> int:
        """From where on nothing has been compacted."""
        return self._cleaning.first_dirty_offset

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self._segments)

    def holds(self, segment: Segment) -> bool:
        """Whether a segment is one of the partition's, which is open: it was neither deleted nor replaced by compaction."""
        return not self.is_closed and any(one is segment for one in self._segments)

    def producers(self) -> Iterator[ProducerDescription]:
        """The producers that have written here and have not expired, as they are now, in the order of their ids."""
        return self._producers.descriptions()

    @property
    def producer_state(self) -> Producers:
        """Producer state, to be read only: a partition may have a million producers."""
        return self._producers

    @property
    def oldest_open_started_ms(self) -> int | None:
        """When the oldest open transaction began, by the broker's clock; None without one."""
        oldest = next(self._producers.open_producers(), None)
        return None if oldest is None else oldest.txn_started_ms

    @property
    def damaged_count(self) -> int:
        """How many batches and whole segments are known to be damaged."""
        return sum(len(segment.damaged_batches) + (segment.damage is not None) for segment in self._segments)

    def open_transactions(self) -> list[OpenTxn]:
        """The transactions that are open here, the oldest first."""
        return [
            OpenTxn(
                producer.producer_id,
                producer.producer_epoch,
                producer.txn_first_offset,
                producer.txn_started_ms,
                self._found_epochs.get(
                    producer.txn_first_offset, self._epochs.epoch_of(producer.txn_first_offset)
                ),
            )
            for producer in self._producers.open_producers()
        ]

    def reconfigure(self, config: LogConfig) -> None:
        """Take new settings, from the next append on."""
        self.config = config

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called. The directory may belong to another object then, or to another topic."""
        return self.usability.is_closed

    @property
    def failure(self) -> Unavailable | None:
        """Why the partition takes no reads and writes until it is opened again; None while it does."""
        return self.usability.failure

    def fail(self, why: Unavailable) -> None:
        """Take no reads and writes any more: every call raises Unavailable. The first reason holds."""
        self.usability.fail(why)

    # -- append ------------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Buffer,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        transaction_check: TransactionCheck | None = None,
        require_first_sequence_zero: bool = False,
        are_keys_checked: bool = False,
    ) -> Appended:
        """Append a batch (of a client or coordinator), or several with their offsets (of another log).

        Args:
            batches: the bytes. They are written as they are, but for base offset and leader epoch.
            now_ms: the broker's clock.
            origin: who appends, hence what is checked.
            transaction_check: asked before each batch of a transaction that is not a duplicate; raises Refused.
            require_first_sequence_zero: whether a producer that is not known here has to begin with sequence 0.
            are_keys_checked: whether `log.append.check_keys` has accepted the batch.

        Raises:
            Refused: the batch is not valid, out of order, fenced, or not in its transaction. Nothing changed.
            Corrupt: the bytes are no batch, or not those of its CRC. Nothing changed.
            Unavailable: the disk failed. Nothing of it will be seen.
        """
        self.usability.check()
        self._now_ms = now_ms
        if origin is Origin.REPLICATION:
            return self._append_replicated(batches, now_ms)
        header = read_header(batches)
        check_batch(header, batches, origin, topic=self.topic, config=self.config, now_ms=now_ms)
        if origin is Origin.CLIENT and self.config.is_compacted and not are_keys_checked:
            check_keys(header, batches, self.topic)
        by_broker_time = self.config.message_timestamp_type == "LogAppendTime"
        if origin is Origin.CLIENT and header.has_producer:
            producers = self._producers
            kept = producers.find_duplicate(header)
            if kept is not None:
                time_ms = kept.timestamp_ms if by_broker_time else -1
                return Appended(
                    kept.first_offset, kept.last_offset, time_ms, self.start_offset, duplicate=True
                )
            producers.check_batch(header, require_first_sequence_zero=require_first_sequence_zero)
            if self.config.order == "commit":
                check_positions(header, producers.open_record_count(header.producer_id))
            if transaction_check is not None and header.is_transactional:
                try:
                    transaction_check(header)
                except Refused:
                    producers.batch_refused(header)
                    raise
        elif header.has_producer:
            self._producers.check_epoch(header)
        if by_broker_time:
            batches = with_append_time(batches, now_ms)
            header = read_header(batches)
        base_offset = self.end_offset
        header = BatchHeader(base_offset, *header[1:])
        self._write(header, batches, self.leader_epoch, now_ms)
        if header.has_producer:
            self._producers.batch_appended(header, base_offset, now_ms)
        self.usability.is_writing = False
        return Appended(base_offset, header.last_offset, now_ms if by_broker_time else -1, self.start_offset)

    def _write(self, header: BatchHeader, batch: Buffer, leader_epoch: int, now_ms: int) -> None:
        """Write a batch at the end, with the offset that its header has by now, and take it into the indexes."""
        self._roll_if_needed(header.size, header.last_offset, now_ms)
        prefix = stamped_prefix(header, header.base_offset, leader_epoch)
        view = memoryview(batch)
        position = self._append_bytes((prefix, view[PREFIX.size :]))
        self._note(header, position, prefix + bytes(view[PREFIX.size : HEADER.size]))
        if leader_epoch > self._epochs.latest:
            self._assign_epoch(leader_epoch, header.base_offset)

    def _append_bytes(self, buffers: tuple[Buffer, ...]) -> int:
        """Write to the log file. Returns the position.

        Raises:
            DiskError: nothing of it will be seen. If a part of it could not be removed, the partition has failed:
                a whole batch of that part could follow the next append.
        """
        try:
            position = self._active.append(buffers)
        except DiskError as error:
            if not error.undone:
                self.fail(error)
            raise
        self.usability.is_writing = True
        return position

    def _note(self, header: BatchHeader, position: int, head: bytes) -> None:
        self._active.note(header, position, head, self.config.index_interval_bytes)
        self._snapshots.appended(header.size)

    def _assign_epoch(self, epoch: int, offset: int) -> None:
        if self._epochs.assign(epoch, offset):
            # Written with the next sync: what a crash before it takes, recovery reads in the batches.
            self._unsynced.write({self.directory / EPOCH_FILE: self._epochs.encode()})

    def _append_replicated(self, batches: Buffer, now_ms: int) -> Appended:
        """Take over batches of another log, with their offsets and epochs; the same markers give the same index."""
        found = check_replicated(batches, self.end_offset)
        for position, header in found:
            batch = memoryview(batches)[position : position + header.size]
            self._write(header, batch, header.leader_epoch, now_ms)
            txn = self._producers.take(header, batch, now_ms)
            if txn is not None:
                self._end(txn)
            self.usability.is_writing = False
        return Appended(found[0][1].base_offset, found[-1][1].last_offset, -1, self.start_offset)

    def append_markers(self, markers: Sequence[MarkerWrite], *, now_ms: int) -> list[Appended | Refused]:
        """Write markers, in their order, with one write to the file.

        Returns:
            For each where it went, or why it was refused. A marker that repeats the last one of its producer is
            not written again and counts as done.

        Raises:
            Unavailable: the disk failed. Recovery will find the markers that were written, and no others.
        """
        self.usability.check()
        self._now_ms = now_ms
        outcomes, batches = plan_markers(
            markers,
            self._producers,
            offset=self.end_offset,
            leader_epoch=self.leader_epoch,
            log_start_offset=self.start_offset,
            now_ms=now_ms,
            with_positions=self.config.order == "commit",
            by_broker_time=self.config.message_timestamp_type == "LogAppendTime",
        )
        if not batches:
            return outcomes
        first_offset = batches[0].header.base_offset
        while batches:
            count = fitting(batches, RELATIVE_OFFSET_MAX)
            self._write_markers(batches[:count], now_ms)
            batches = batches[count:]
        if self.leader_epoch > self._epochs.latest:
            self._assign_epoch(self.leader_epoch, first_offset)
        return outcomes

    def _write_markers(self, batches: Sequence[MarkerBatch], now_ms: int) -> None:
        """Write markers that one segment can hold, with one write."""
        self._roll_if_needed(
            sum(header.size for _, header, _ in batches), batches[-1].header.last_offset, now_ms
        )
        position = self._append_bytes(tuple(batch for _, _, batch in batches))
        for write, header, batch in batches:
            self._note(header, position, batch[: HEADER.size])
            position += header.size
            txn = self._producers.marker_appended(
                write.producer_id,
                write.producer_epoch,
                write.marker,
                header.base_offset,
                header.next_offset,
                header.max_timestamp,
                now_ms,
            )
            if txn is not None:
                self._end(txn)
        self.usability.is_writing = False

    def _end(self, txn: EndedTxn) -> None:
        if txn.aborted is None:
            self._active.committed_count += txn.record_count
        else:
            self._active.append_aborted(txn.aborted)
        self._producers.ended(txn)

    # -- roll --------------------------------------------------------------------------------------------------

    def _roll_if_needed(self, size: int, last_offset: int, now_ms: int) -> None:
        active, config = self._active, self.config
        if active.size == 0:
            active.created_ms = now_ms
        elif (
            not active.has_room(size, last_offset, config.segment_bytes, config.segment_index_bytes)
            or now_ms - active.created_ms > config.segment_ms
        ):
            self.roll(now_ms)

    def roll(self, now_ms: int) -> None:
        """Seal the last segment, if it holds anything, and begin a new one.

        Raises:
            DiskError: the old segment's indexes cannot be written, or the new segment cannot be made. Nothing changed.
        """
        self.usability.check()
        active = self._active
        if active.size == 0:
            return
        active.complete_time_index()
        active.write_indexes()
        fresh = Segment(self._disk, self.directory, active.end_offset, self.open_files)
        fresh.create()
        fresh.created_ms = now_ms
        active.seal(self._decided_to(active.end_offset))
        assert active.summary is not None
        self._segments.add(fresh)
        self._unsynced.names_changed()
        # The snapshot first: when the segment goes, nothing else knows of the transactions that began in it.
        self._snapshot()
        self._unsynced.write({active.path(SUMMARY): active.summary.encode()})

    def _decided_to(self, end_offset: int) -> int:
        """The first offset that is undecided when all up to `end_offset` was written; that offset itself if none is."""
        first_open = self._producers.first_open_offset()
        return end_offset if first_open is None else first_open

    # -- durability --------------------------------------------------------------------------------------------

    @property
    def has_pending_writes(self) -> bool:
        """Whether a sync has more to do than to move the high watermark: a segment was sealed, a snapshot is due."""
        return self._unsynced.is_more_than_bytes or self._snapshots.is_due(self.config.snapshot_bytes)

    def unsynced(self) -> SyncWork | None:
        """What has to be done so that everything appended so far is durable; None if it is.

        Raises:
            DiskError: the transaction index lacks an aborted transaction, and its file cannot be written. Nothing may
                become durable before it is: programs that read the files rely on it.
        """
        if self.high_watermark == self.end_offset and not self.has_pending_writes:
            return None
        self.usability.check()
        self._active.write_aborted()
        if self._snapshots.is_due(self.config.snapshot_bytes):
            self._take_snapshot_if_possible()
        return self._unsynced.work(self._segments, self.synced_offset)

    def synced(self, work: SyncWork) -> bool:
        """Take note that a work was run: the high watermark moves. Returns whether it or the LSO moved."""
        self.usability.check_open()
        self._unsynced.done(work, self._segments)
        self.synced_offset = max(self.synced_offset, work.end_offset)
        if not work.unwritten:
            self._snapshots.remove_older(work.end_offset)
        return self._move_high_watermark(work.end_offset)

    def assume_synced(self) -> bool:
        """What the operating system has counts as durable. Returns whether a watermark moved; raises as `unsynced`."""
        self.usability.check_open()
        self._active.write_aborted()
        if self._unsynced.is_idle:  # no thread syncs them
            self._active.close_index_files()
        return self._move_high_watermark(self.end_offset)

    def _move_high_watermark(self, offset: int) -> bool:
        before = self.high_watermark, self.last_stable_offset
        self.high_watermark = max(self.high_watermark, min(offset, self.end_offset))
        self._producers.high_watermark_moved(self.high_watermark)
        after = self.high_watermark, self.last_stable_offset
        assert before[1] <= after[1] <= after[0]
        return before != after

    @property
    def side_failure(self) -> DiskError | None:
        """Why a file that can be made from the log is not written yet, apart from those of a sync; None if all are."""
        return None

    def take_snapshot(self) -> None:
        """Write producer state out, whatever was appended since the last time; with the next sync.

        Raises:
            Unavailable: the indexes that it relies on cannot be written. Nothing else changed.
        """
        self.usability.check()
        self._active.write_indexes()
        self._snapshot()

    def _take_snapshot_if_possible(self) -> None:
        try:
            self.take_snapshot()
        except Unavailable:
            self._snapshots.put_off()  # recovery reads more without it, and that is all

    def _snapshot(self) -> None:
        progress = self._active.progress(self._decided_to(self.end_offset))
        self._unsynced.write(self._snapshots.take(self._producers, progress))

    def unproven_ahead(self, offset: int) -> Unproven | None:
        """What a reader that has come to `offset` meets next: the following segment, if it is not proven."""
        return self._segments.unproven_ahead(offset)

    def prove(self) -> None:
        """Prove every log file that was taken on trust at the open, at once. See `Segment.prove`.

        Raises:
            Corrupt: a log file is not what was sealed.
        """
        self.usability.check_open()
        for segment in self._segments:
            segment.prove_now()

    # -- read --------------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from `start`: at most `size_max` bytes, but at least one batch if `at_least_one`.

        Nothing at or past `visible_end(isolation)` is returned, so the fate of every transaction in the answer
        of a read-committed read is known.

        Raises:
            OffsetOutOfRange: `start` is before the log's start or past its end.
            Corrupt: an index that is needed is damaged.
        """
        self.usability.check()
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {start} of {self.topic}-{self.index} is not in [{self.start_offset}, {self.end_offset}]"
            )
        return read(
            self._segments,
            start,
            self.visible_end(isolation),
            size_max,
            committed=isolation is Isolation.READ_COMMITTED,
            at_least_one=at_least_one,
        )

    def aborted_in(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """The aborted transactions that touch [start, end), which is decided."""
        self.usability.check_open()
        assert end <= self.last_stable_offset
        if start >= end:
            return ()
        return tuple(self._segments.aborted(self._segments.place_of(start), start, end))

    def look_up_time(self, timestamp_ms: int, isolation: Isolation) -> Lookup:
        """Find the first record at or after a time, in steps; None if none can be seen."""
        return first_at_or_after(
            lambda: self._segments, timestamp_ms, self.start_offset, self.visible_end(isolation)
        )

    def look_up_newest(self, isolation: Isolation) -> Lookup:
        """Find the first record with the greatest timestamp, in steps; None if it cannot be seen."""
        return greatest_timestamp(lambda: self._segments, self.start_offset, self.visible_end(isolation))

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Where a leader epoch ended: (epoch, end offset exclusive); (-1, -1) if that is not known.

        Raises:
            Corrupt: the file of the epochs is not what the log says.
        """
        self.usability.check_open()
        if not self._are_epochs_checked:
            check_epochs(self._epochs, self._segments, self.directory / EPOCH_FILE)
            self._are_epochs_checked = True
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.end_offset
        return self._epochs.end_offset(leader_epoch, self.end_offset)

    # -- delete ------------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Move the log's start to `before_offset`, and delete the segments that lie before it. Returns the start.

        The start is durable on return.

        Raises:
            OffsetOutOfRange: it lies past the high watermark.
        """
        self.usability.check()
        if not 0 <= before_offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"records before {before_offset} of {self.topic}-{self.index} cannot be deleted: the high watermark is {self.high_watermark}"
            )
        self._begin_at(before_offset)
        self._delete_segments(self._segments.place_of(self.start_offset), due_ms=0)
        return self.start_offset

    def _begin_at(self, start_offset: int) -> None:
        """Move the log's start, which is durable then: what a crash leaves before it is removed by recovery."""
        if start_offset > self.start_offset:
            self._sync_up_to(start_offset)
            self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(start_offset))
            self.start_offset = start_offset

    def _sync_up_to(self, offset: int) -> None:
        """Sync the log, unless it is synced up to this offset: a start refuses a log that ends before its recorded start.

        The high watermark is ahead of the synced end only where what the operating system has counts as durable.

        Raises:
            DiskError: which bytes are durable is not known, and the partition has failed.
        """
        if offset > self.synced_offset:
            try:
                self._unsynced.sync_log(self._segments)
            except DiskError as error:
                self.fail(error)
                raise
            self.synced_offset = self.end_offset

    def apply_retention(self, now_ms: int) -> int:
        """Delete the oldest segments while they are too old or too much. Returns how many."""
        self.usability.check()
        count = self._segments.place_of(self.start_offset)
        if "delete" in self.config.cleanup_policy:
            too_old = count_too_old(self._segments, self.config, now_ms)
            if too_old == len(self._segments) and self.high_watermark == self.end_offset:
                self.roll(now_ms)  # it goes next time, when it is durable that it is sealed
            count = max(count, too_old, count_too_much(self._segments, self.config))
        return self._delete_segments(count, due_ms=now_ms + self.config.file_delete_delay_ms)

    def _delete_segments(self, count: int, due_ms: int) -> int:
        """Delete up to `count` segments from the oldest on: those that are sealed and durable. Returns how many."""
        durable_count = min(count, count_durable(self._segments, self.high_watermark))
        if not durable_count:
            return 0
        self._begin_at(max(self.start_offset, self._segments[durable_count].base_offset))
        gone = self._segments.drop_first(durable_count)
        for segment in gone:
            segment.close()
        self._pending_deletes.add(gone, self._segments[0].base_offset, due_ms)
        return durable_count

    def remove_deleted(self, now_ms: int) -> list[File]:
        """Remove the names of deleted segments' files whose time has passed. Returns the files, to be closed in a thread.

        After a DiskError, the next call goes on.
        """
        self.usability.check_open()
        return self._pending_deletes.purge(now_ms)

    def expire_producers(self, now_ms: int) -> Iterator[int]:
        """Forget producers after `producer.id.expiration.ms`, in steps of some milliseconds: how many each forgot."""
        self.usability.check_open()
        return self._producers.expire(now_ms - self.config.producer_id_expiration_ms, now_ms - RECENT_MS)

    # -- compact -----------------------------------------------------------------------------------------------

    def begin_compaction(self, now_ms: int, *, key_count_max: int) -> Compaction | None:
        """A pass of compaction, if the topic is to be compacted and there is enough to do; None if not.

        Its steps may run in any thread. Each segment that they finish goes to `take_cleaned`, and the pass, when it
        is over, to `compacted`. There may be one at a time.

        Args:
            now_ms: the broker's clock.
            key_count_max: how many keys there is memory for.
        """
        self.usability.check()
        return self._cleaning.begin(
            self._segments,
            self.config,
            last_batch=self._producers.last_batches(),
            start_offset=self.start_offset,
            stable_offset=self.last_stable_offset,
            now_ms=now_ms,
            key_count_max=key_count_max,
        )

    def take_cleaned(self, cleaned: Cleaned) -> bool:
        """Put a segment that compaction has finished in the place of those that it was made of.

        Returns:
            False if they have changed meanwhile: the pass is of no use any more.

        Raises:
            Unavailable: the disk failed, and the partition needs a restart.
        """
        self.usability.check()
        try:
            segments = self._cleaning.put_in_place(self._segments, cleaned)
        except Unavailable as error:
            self.fail(error)
            raise
        if segments is None:
            return False
        if segments is not self._segments:
            self._segments = segments
            for gone in cleaned.replaced[1:]:
                self._snapshots.remove(gone)
        return True

    def compacted(self, work: Compaction) -> None:
        """A pass is over."""
        self.usability.check_open()
        self._cleaning.over(work)

    # -- truncate ----------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut the log so that it ends at `offset`, or at the beginning of the batch in which that lies.

        Transactions whose marker is gone are open again. All that is left is durable on return: the high watermark is
        the new end.

        Raises:
            OffsetOutOfRange: it lies before the log's start.
        """
        self.usability.check()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRange(
                f"{self.topic}-{self.index} begins at {self.start_offset}; it cannot end at {offset}"
            )
        end_offset, position, segment, later = self._segments.cut_at(offset)
        self._lower_starts(end_offset)
        self.synced_offset = min(self.synced_offset, end_offset)
        self._close_files()
        self._snapshots.forget_past(end_offset)
        cut_files(self._disk, self.directory, segment, position, later)
        epoch, now_ms = self.leader_epoch, self._now_ms
        known = Known(
            is_clean=False, is_established=True, recovery_point=0, leader_epoch=epoch, now_ms=now_ms
        )
        self._load(known, Listing(self._disk, self.directory), None)
        self.prove()
        self._cleaning.cut(self.end_offset)

    def _lower_starts(self, end_offset: int) -> None:
        """Before a cut: a log that begins within a batch that is cut begins at its new end."""
        if end_offset < self.start_offset:
            self.start_offset = end_offset
            self._disk.write_atomic(self.directory / LOG_START_FILE, encode_log_start(end_offset))

    # -- close -------------------------------------------------------------------------------------------------

    def close(self, *, clean: bool = True) -> None:
        """Close every file. If `clean`, make everything durable and leave recovery little to read; see `Snapshots`.

        The time index then ends with an entry of the greatest timestamp, which Kafka needs to look up later ones.
        Later calls raise Unavailable: the directory may be deleted, and made again for another topic of the name.

        Raises:
            Unavailable: not everything could be made durable; the partition is open as before.
        """
        if clean and self.failure is None:
            if not self._is_settled():
                self._settle()
            self._pending_deletes.purge_all()
        self.usability.close()
        self._close_files()

    def _is_settled(self) -> bool:
        """Whether a clean close has nothing to write: all is durable, and a snapshot too, if one is needed."""
        is_durable = self.end_offset == self.high_watermark == self.synced_offset and self._unsynced.is_idle
        is_told = not self._snapshots.lacks_newest(self._producers, self._active)
        return is_durable and (self.end_offset == 0 or (is_told and self._active.are_index_files_complete))

    def _settle(self) -> None:
        lacks_snapshot = self._snapshots.lacks_newest(self._producers, self._active)
        self._active.complete_time_index()
        self._active.write_indexes()
        self._unsynced.indexes_written()
        if lacks_snapshot:
            self._snapshot()
        work = self.unsynced()
        assert work is not None
        work.run()
        self.synced(work)
        if not work.unwritten:  # else older snapshots are what the next start has
            self._snapshots.keep_newest(self.end_offset, self._segments.bases)

    def _close_files(self) -> None:
        for segment in self._segments:
            segment.close()
