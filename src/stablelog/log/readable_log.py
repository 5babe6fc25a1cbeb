"""The state of an open log, and the reads of it: the lowest layer of a partition.

A partition has three layers, each in its module: `ReadableLog`, `PrunableLog` and `Partition`. A layer calls the layers
below it, and overrides none of their methods.
"""

from collections.abc import Iterator
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import DiskError, OffsetOutOfRange, Unavailable, Unproven
from stablelog.log.compaction.cleaner import Cleaning
from stablelog.log.files.epochs import EPOCH_FILE
from stablelog.log.indexes.transaction_index import AbortedTxn
from stablelog.log.model import Isolation, LogConfig, OpenTxn, Slice
from stablelog.log.producer_state.producer import Producer
from stablelog.log.producer_state.producers import Producers
from stablelog.log.producer_state.snapshots import Snapshots
from stablelog.log.read import Lookup, first_at_or_after, greatest_timestamp, read
from stablelog.log.recovery import Cut
from stablelog.log.recovery.epoch_check import check_epochs
from stablelog.log.retention import PendingDeletes
from stablelog.log.segments.open_files import OpenFiles
from stablelog.log.segments.segment import Segment
from stablelog.log.usability import Usability
from stablelog.log.view import Order, View
from stablelog.log.writer import LogWriter


class ReadableLog:
    """An open log, for its readers.

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
        open_files: counts its open segments. The broker joins it with its own when the partition is open.
        usability: whether it takes calls. After a failure or a close, every call that touches a file raises Unavailable.
        view: what read-committed readers get; None if that is the log itself.
        log: its segments and producer state. Other modules only read it.
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
        self._order = order
        self._disk = disk
        self._snapshots = Snapshots(disk, directory)
        self._pending_deletes = PendingDeletes(disk, directory)
        self._cleaning = Cleaning(disk, directory, open_files)
        # `_load` sets these to what recovery finds.
        self.start_offset: int
        self.high_watermark: int
        self.synced_offset: int
        self.cuts: tuple[Cut, ...]
        self.log: LogWriter
        self._are_epochs_checked: bool
        self._found_epochs: dict[int, int]  # of transactions that were open at the open, by first offset
        self._now_ms: int  # the broker's clock at the last append, or at the open

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets."""
        return self.log.segments.active.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The first undecided offset, or the high watermark if none is. Of a view: its end, where all is decided."""
        if self.view is not None:
            return self.view.end_offset
        unstable = self.log.producers.first_unstable_offset()
        stable = self.high_watermark if unstable is None else min(unstable, self.high_watermark)
        return max(stable, self.start_offset)

    def visible_end(self, isolation: Isolation) -> int:
        """The first offset that a reader of this isolation does not see."""
        if isolation is Isolation.READ_COMMITTED:
            return self.last_stable_offset
        return self.high_watermark if isolation is Isolation.READ_UNCOMMITTED else self.end_offset

    def visible_start(self, isolation: Isolation) -> int:
        """The first offset that a reader of this isolation can ask for."""
        view = self._view_of(isolation)
        return self.start_offset if view is None else view.start_offset

    def _view_of(self, isolation: Isolation) -> View | None:
        return self.view if isolation is Isolation.READ_COMMITTED else None

    @property
    def size(self) -> int:
        """Bytes of all log files."""
        return self.log.segments.size

    @property
    def first_dirty_offset(self) -> int:
        """The offset from which on nothing has been compacted."""
        return self._cleaning.first_dirty_offset

    def segments(self) -> list[Segment]:
        """The segments, oldest first."""
        return list(self.log.segments)

    def holds(self, segment: Segment) -> bool:
        """Whether the partition is open and has the segment: it was neither deleted nor replaced by compaction."""
        return not self.is_closed and any(one is segment for one in self.log.segments)

    def producers(self) -> Iterator[Producer]:
        """The producers that have written here and have not expired, as they are now, in the order of their ids."""
        return iter(self.log.producers)

    @property
    def producer_state(self) -> Producers:
        """Producer state, to be read only. A partition may have a million producers."""
        return self.log.producers

    @property
    def damaged_count(self) -> int:
        """How many batches and whole segments are known to be damaged."""
        return sum(len(one.damaged_batches) + (one.damage is not None) for one in self.log.segments)

    def open_transactions(self) -> list[OpenTxn]:
        """The transactions that are open here, the oldest first."""
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
        """Take no reads and writes from now on: every call raises Unavailable. The first reason holds."""
        self.usability.fail(why)

    @property
    def side_failure(self) -> DiskError | None:
        """Why a file of the view is not written yet; None if all are. It can be rebuilt from the log."""
        return None if self.view is None else self.view.failure

    def unproven_ahead(self, offset: int) -> Unproven | None:
        """The error of a reader that goes on from `offset` to a segment that is not proven; None without one."""
        return self.log.segments.unproven_ahead(offset)

    def prove(self) -> None:
        """Prove every log file that was taken on trust at the open, at once. See `Segment.prove`.

        Raises:
            Corrupt: a log file is not what was sealed.
        """
        self.usability.check_open()
        for segment in self.log.segments:
            segment.prove_now()

    # -- read --------------------------------------------------------------------------------------------------

    def read(self, start: int, size_max: int, isolation: Isolation, *, at_least_one: bool = True) -> Slice:
        """Read whole batches from `start`: at most `size_max` bytes, but at least one batch if `at_least_one`.

        Nothing at or past `visible_end(isolation)` is returned. A read-committed read therefore returns only batches of
        transactions that are decided.

        Raises:
            OffsetOutOfRange: `start` is before the log's start or past its end.
            Corrupt: an index that is needed is damaged.
        """
        self.usability.check()
        view = self._view_of(isolation)
        if view is not None:
            return view.read(start, size_max, at_least_one=at_least_one)
        if not self.start_offset <= start <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {start} of {self.topic}-{self.index} is not in [{self.start_offset}, {self.end_offset}]"
            )
        return read(
            self.log.segments,
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
        segments = self.log.segments
        return tuple(segments.aborted(segments.place_of(start), start, end)) if start < end else ()

    def look_up_time(self, timestamp_ms: int, isolation: Isolation) -> Lookup:
        """Find the first record at or after a time, in steps; None if none can be seen. Of a view: by commit times."""
        view = self._view_of(isolation)
        if view is not None:
            return view.look_up_time(timestamp_ms)
        return first_at_or_after(
            lambda: self.log.segments, timestamp_ms, self.start_offset, self.visible_end(isolation)
        )

    def look_up_newest(self, isolation: Isolation) -> Lookup:
        """Find the first record with the greatest timestamp, in steps; None if it cannot be seen."""
        view = self._view_of(isolation)
        if view is not None:
            return view.look_up_newest()
        return greatest_timestamp(lambda: self.log.segments, self.start_offset, self.visible_end(isolation))

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Where a leader epoch ended: (epoch, end offset exclusive); (-1, -1) if that is not known.

        Raises:
            Corrupt: the file of the epochs is not what the log says.
        """
        self.usability.check_open()
        epochs = self.log.epochs
        if not self._are_epochs_checked:
            check_epochs(epochs, self.log.segments, self.directory / EPOCH_FILE)
            self._are_epochs_checked = True
        if leader_epoch == self.leader_epoch:
            return leader_epoch, self.end_offset
        return epochs.end_offset(leader_epoch, self.end_offset)
