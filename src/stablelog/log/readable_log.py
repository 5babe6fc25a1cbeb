"""The state of an open log, and its reads: the lowest layer of a partition.

A partition has three layers, which are classes derived from each other: `ReadableLog`, `PrunableLog` and `Partition`. A
layer calls the layers below it, and overrides none of their methods.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from stablelog.batch.header import HEADER, read_header
from stablelog.env.disk import Disk
from stablelog.errors import DiskError, OffsetOutOfRangeError, UnavailableError, UnprovenError
from stablelog.log.compaction.cleaner import Cleaning
from stablelog.log.files.epochs import EPOCH_FILE
from stablelog.log.files.restored import Restored
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import Isolation, LogConfig, OpenTxn, Slice
from stablelog.log.producer_state.producer import Producer
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.read import Lookup, first_at_or_after, greatest_timestamp, read
from stablelog.log.recovery import Cut
from stablelog.log.recovery.epoch_check import check_epochs
from stablelog.log.remote_tier import RemoteTier
from stablelog.log.retention import PendingDeletes
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import Segment
from stablelog.log.usability import Usability
from stablelog.log.view import Order, View
from stablelog.log.writer import LogWriter


class ReadableLog:
    """An open log, for its readers.

    Attributes:
        topic: the name of the topic.
        index: the number of the partition in its topic.
        directory: the partition's directory.
        config: the partition's settings.
        leader_epoch: the leader epoch of the batches that this start of the broker appends.
        start_offset: the local log start offset: the offset of the first record on the local disk. Without a remote
            tier it is the log start offset, the offset of the first record that can be read.
        high_watermark: the first offset that is not known to be durable.
        synced_offset: the first offset that is not known to be synced. With `stablelog.flush=os` it may be less than
            the high watermark.
        cuts: the parts that recovery has removed from the end of the log.
        open_files: the cache that limits how many sealed segments have open files. After the open, the broker joins it
            with the cache for all partitions.
        usability: whether the partition can be used. After a failure or a close, every call that uses a file raises
            UnavailableError.
        view: the log in commit order, which read-committed readers read; None if they read the log itself.
        remote: the segments of the log in an object store; None if the topic has no remote tier.
        restored: the offsets that a restore did not find in the store; None if the partition was not restored.
        log: the partition's segments and producer state. Other packages only read it.
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
        order: Order | None,
    ) -> None:
        self.topic = topic
        self.index = partition
        self.directory = directory
        self.config = config
        self.leader_epoch = leader_epoch
        self.open_files = open_files
        self.usability = Usability(f"{topic}-{partition}")
        self.view: View | None = None
        self.remote: RemoteTier | None = None
        self.restored: Restored | None = None
        self._order = order
        self._disk = disk
        self._snapshots = Snapshots(disk, directory)
        self._pending_deletes = PendingDeletes(disk, directory)
        self._cleaning = Cleaning(disk, directory, open_files)
        # `Partition._load` sets these attributes, with the values that recovery has found.
        self.start_offset: int
        self.high_watermark: int
        self.synced_offset: int
        self.cuts: tuple[Cut, ...]
        self.log: LogWriter
        self._are_epochs_checked: bool
        # The leader epochs of the transactions that recovery has found open, by the first offset of the transaction.
        self._found_epochs: dict[int, int]
        self._now_ms: int  # the time of the broker's clock at the last append, or at the open

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.segments.active.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest transaction that is open or whose marker is not durable; the high watermark if
        there is none. In a partition with a view in commit order, the end of the view.
        """
        if self.view is not None:
            return self.view.end_offset
        unstable = self.log.producers.first_unstable_offset()
        stable = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
        return max(stable, self.start_offset)

    def visible_end(self, isolation: Isolation) -> int:
        """Return the end of the records that a reader of this isolation level sees, exclusive."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark if isolation is Isolation.READ_UNCOMMITTED else self.end_offset

    def visible_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read.

        Raises:
            UnavailableError: the segments in the remote tier are not known yet.
        """
        view = self._view_of(isolation)
        if view is not None:
            return view.start_offset
        return self.start_offset if self.remote is None else min(self.remote.start_offset, self.start_offset)

    def known_start(self, isolation: Isolation) -> int:
        """Return the first offset that a reader of this isolation level can read. While the list of remote segments is
        not known, return the local log start offset.
        """
        try:
            return self.visible_start(isolation)
        except UnavailableError:
            return self.start_offset

    def _view_of(self, isolation: Isolation) -> View | None:
        return self.view if isolation is Isolation.READ_COMMITTED else None

    @property
    def size(self) -> int:
        """The size of all log files in bytes."""
        return self.log.segments.size

    @property
    def first_dirty_offset(self) -> int:
        """The first dirty offset: no record from this offset on has been compacted."""
        return self._cleaning.first_dirty_offset

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self.log.segments)

    def holds(self, segment: Segment) -> bool:
        """Whether the partition is open and has the segment: it was neither deleted nor replaced by compaction."""
        return not self.is_closed and any(one is segment for one in self.log.segments)

    def producers(self) -> Iterator[Producer]:
        """Yield the current state of each producer that has written here and has not expired, in the order of the
        producer ids.
        """
        return iter(self.log.producers)

    @property
    def producer_state(self) -> Producers:
        """The producer state. The caller must not change it. It may hold a million producers."""
        return self.log.producers

    @property
    def damaged_count(self) -> int:
        """The number of damaged batches plus the number of damaged segments that are known."""
        return sum(len(one.damaged_batches) + (one.damage is not None) for one in self.log.segments)

    def open_transactions(self) -> list[OpenTxn]:
        """Return the transactions that are open in this partition, oldest first."""
        return [
            OpenTxn(
                one.producer_id,
                one.producer_epoch,
                one.txn_first_offset,
                one.txn_started_ms,
                self._found_epochs.get(one.txn_first_offset, self.log.epochs.epoch_of(one.txn_first_offset)),
            )
            for one in self.log.producers.open_producers()
        ]

    def reconfigure(self, config: LogConfig) -> None:
        """Replace the partition's settings. The next append uses the new settings."""
        self.config = config

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called. Since then the directory may belong to another `Partition` object, or to a new
        topic.
        """
        return self.usability.is_closed

    @property
    def failure(self) -> UnavailableError | None:
        """The reason why the partition refuses reads and writes until it is opened again; None if the partition accepts
        reads and writes.
        """
        return self.usability.failure

    def fail(self, why: UnavailableError) -> None:
        """Mark the partition as failed: every later read or write raises UnavailableError. A second call does not
        replace the reason.
        """
        self.usability.fail(why)

    @property
    def side_failure(self) -> DiskError | None:
        """The error because of which a file of the commit-ordered view could not be written; None if all files are
        written. The log is not affected.
        """
        return None if self.view is None else self.view.failure

    def advance_view(self) -> None:
        """Let the view read what has become durable, and write the files that could not be written before."""
        if self.view is not None:
            self.view.advance()

    def unproven_ahead(self, offset: int) -> UnprovenError | None:
        """Look at the segment that a reader at `offset` reads next, after the present one. If its log file was not
        checked since the start of the broker, return the error that the reader will get there. None otherwise.
        """
        return self.log.segments.unproven_ahead(offset)

    def prove(self) -> None:
        """Check at once the batch headers of every log file that recovery has not read.

        Raises:
            DamageError: a log file has changed since it was written.
        """
        self.usability.check_open()
        for segment in self.log.segments:
            segment.prove_now()

    def was_left_by(self, restored: Restored) -> bool:
        """Whether this log is the one that a restore has made: whether it has the batch without records at the offsets
        that the restore has left out. If the log begins after them, its leader epochs tell.

        Raises:
            DamageError: the log file of the batch is damaged.
        """
        if not restored.ranges:
            return False
        start, segments = restored.ranges[-1][0], self.log.segments
        if self.log.epochs.epoch_of(start) != restored.leader_epoch or start >= self.end_offset:
            return False
        if start < self.start_offset:
            return True
        header = segments[segments.place_of(start)].header_at(start)
        return header is not None and header.base_offset <= start and not header.record_count

    # -- read --------------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from `start`: at most `size_max` bytes, but at least one batch if `at_least_one`.

        No record at or past `visible_end(isolation)` is returned. A read-committed read therefore returns no batch of
        an open transaction.

        Raises:
            OffsetOutOfRangeError: `start` is before the log's start or past its end.
            DamageError: an index that the read uses is damaged.
        """
        self.usability.check()
        lost = None if self.restored is None else self.restored.lost_range(start)
        if lost is not None:
            raise OffsetOutOfRangeError(
                f"offset {start} of {self.topic}-{self.index} is gone with the disk of a lost broker: the restored log "
                f"ends at offset {lost[0]}, and new records begin at {lost[1]}"
            )
        view = self._view_of(isolation)
        if view is not None:
            return view.read(start, size_max, at_least_one=at_least_one)
        if start < self.start_offset and self.remote is not None and start >= self.remote.start_offset:
            return self._read_remote(self.remote, start, size_max, isolation, at_least_one=at_least_one)
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRangeError(
                f"offset {start} is not in the log of {self.topic}-{self.index}, which has the offsets {self.visible_start(isolation)} to {self.end_offset} (exclusive)"
            )
        return read(
            self.log.segments,
            start,
            self.visible_end(isolation),
            size_max,
            committed=isolation is Isolation.READ_COMMITTED,
            at_least_one=at_least_one,
        )

    def _read_remote(
        self, remote: RemoteTier, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool
    ) -> Slice:
        """Read from the remote tier. The search for aborted transactions begins there, and goes on in the segments that
        are only on the local disk: the marker of a transaction may be in a later segment than its records.
        """
        limit = self.visible_end(isolation)
        found = remote.read(start, limit, size_max, at_least_one=at_least_one)
        if (
            not found.buffers and found.end_offset > start
        ):  # No batch is left from `start` to the end of the store.
            committed = isolation is Isolation.READ_COMMITTED
            begin = max(found.end_offset, self.start_offset)
            rest = read(
                self.log.segments, begin, limit, size_max, committed=committed, at_least_one=at_least_one
            )
            return replace(rest, start_offset=start)
        if isolation is not Isolation.READ_COMMITTED:
            return found
        first, end = found.start_offset, found.end_offset
        if found.buffers:
            # The header of the first batch may be in two buffers.
            head = b"".join(bytes(buffer[: HEADER.size]) for buffer in found.buffers[:2])
            first = max(first, read_header(head).base_offset)
        aborted, is_complete = remote.aborted(first, end) if found.buffers else ([], True)
        if not is_complete:
            segments = self.log.segments
            aborted = aborted + segments.aborted(segments.place_of(remote.end_offset), first, end)
        return replace(found, aborted=tuple(aborted))

    def aborted_in(self, start: int, end: int) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions with offsets in [start, end). `end` must not be past the last stable offset."""
        self.usability.check_open()
        assert end <= self.last_stable_offset
        segments = self.log.segments
        return tuple(segments.aborted(segments.place_of(start), start, end)) if start < end else ()

    def aborted_behind(self, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that began before `end_offset` and whose markers are synced and at or past
        `end_offset`.

        A marker that is not synced does not count: with `stablelog.flush=os` a power failure may remove it, and the
        transaction would be open again.
        """
        segments = self.log.segments
        found = segments.aborted(segments.place_of(end_offset), end_offset, end_offset)
        return [txn for txn in found if txn.last_offset < self.synced_offset]

    def look_up_time(self, timestamp_ms: int, isolation: Isolation) -> Lookup:
        """Return a lookup, which runs in steps. It finds the first record with this timestamp or a later one. Its
        result is None if a reader of this isolation level sees no such record. In commit order, the time of the commit
        counts.
        """
        view = self._view_of(isolation)
        if view is not None:
            return view.look_up_time(timestamp_ms)
        return self._look_up_time(timestamp_ms, isolation)

    def _look_up_time(self, timestamp_ms: int, isolation: Isolation) -> Lookup:
        if self.remote is not None and self.remote.start_offset < self.start_offset:
            found = yield from self.remote.look_up_time(timestamp_ms)
            # A segment may be both in the store and on the local disk. Only its local copy is searched.
            if found is not None and found[0] < self.start_offset:
                return found
        return (
            yield from first_at_or_after(
                lambda: self.log.segments, timestamp_ms, self.start_offset, self.visible_end(isolation)
            )
        )

    def look_up_newest(self, isolation: Isolation) -> Lookup:
        """Return a lookup, which runs in steps. It finds the first record with the greatest timestamp. Its result is
        None if a reader of this isolation level does not see this record.

        As in Apache Kafka, only the records on the local disk are searched.
        """
        view = self._view_of(isolation)
        if view is not None:
            return view.look_up_newest()
        return greatest_timestamp(lambda: self.log.segments, self.start_offset, self.visible_end(isolation))

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) for the greatest known leader epoch that is not above `leader_epoch`; (-1, -1) if
        there is none. The end offset is exclusive.

        Raises:
            DamageError: the leader-epoch-checkpoint file contradicts the log.
        """
        self.usability.check_open()
        epochs = self.log.epochs
        if not self._are_epochs_checked:
            check_epochs(epochs, self.log.segments, self.directory / EPOCH_FILE)
            self._are_epochs_checked = True
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.end_offset
        return epochs.end_offset(leader_epoch, self.end_offset)
