"""Journal of a coordinator: the coordinator's log, with the markers and responses that wait until the log is durable.

A coordinator changes its state in memory when it makes a decision. No client may learn of a decision that a crash could
still undo. Every response and every marker (an *effect*) therefore waits until all records that the log had at the time
of the decision are durable.

If the disk has no space for a record, the record waits in memory until `retry` can append it, and all later records and
effects wait after it, in their order. The log therefore always has the first decisions up to some point, without a gap,
and no later decision was acknowledged. The number of records that wait is limited, because as long as one waits, the
disk counts as full (`broker.durability.disk_reserve`): no new transaction, transactional id or consumer group begins,
and each of the present ones can only end.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from stablelog.batch.records import Record, encode_batch
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.durability.log_replay import TakeEnd, TakeRecord, replay_partition
from stablelog.coordinators.live_state import LiveState, OwnedRecord
from stablelog.coordinators.record_fields import Record as CoordinatorRecord
from stablelog.env.clock import Clock
from stablelog.errors import DiskError, RefusedError, UnavailableError
from stablelog.log.partition import Origin, Partition

log = logging.getLogger(__name__)

# The number of records of a checkpoint that are encoded and appended in one turn of the event loop.
CHECKPOINT_SLICE_COUNT = 200
CHECKPOINT_SIZE_MIN = 4 << 20  # The size in bytes below which a log is not trimmed.
# When the broker stops, a log is trimmed if this number of bytes was appended since the start or the last trim.
STOP_SIZE_MIN = 64 << 10
CHECKPOINT_GROWTH = 4  # A log is trimmed when its size has grown by this factor since its last trim.
# A log is also trimmed when it has this many segments more than after the last trim, and one more for each SEGMENT_SIZE
# bytes that the last trim has left. A log that is copied to an object store gets a short segment with each copy.
SEGMENT_COUNT_MAX = 100
SEGMENT_SIZE = 1 << 20
# After this time a log that cannot be trimmed is reported.
UNTRIMMED_TELL_MS = 60_000
TOLD = -1
# The maximum number of entries that wait for disk space, for each transaction or group of the coordinator. A
# transaction has at most three records (decided, completed, forgotten). Each record has at most two effects (markers
# and responses), and at most one request waits for the record.
WAITING_PER_ITEM = 16


class Journal:
    """The log of one coordinator, with the markers and responses that wait until the log is durable.

    The journal writes to one partition. A directory that Kafka wrote can have more partitions of the log, each with
    other keys; the journal only reads these.

    Args:
        partitions: the partitions of the log; the journal writes to the first.
        flush: makes the log durable.
        reserve: frees disk space for the log if the disk is full.
        clock: the broker's clock.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        flush: GroupFlush,
        reserve: DiskReserve,
        clock: Clock,
    ) -> None:
        self.partition = partitions[0]
        self._older = partitions[1:]
        self._flush = flush
        self._reserve = reserve
        self.clock = clock
        self._item_count: Callable[[], int] | None = None
        # The queue of entries that wait for disk space: batches of records, effects (markers and responses), and
        # futures of tasks that wait until the entries before the future are durable.
        self._waiting: deque[bytes | Callable[[], None] | asyncio.Future[None]] = deque()
        self._waiting_max: int | None = None
        self._effects: deque[tuple[int, Callable[[], None]]] = deque()
        self._untrimmed_since_ms: int | None = (
            None  # Since this time, the log should be trimmed and cannot be.
        )
        # The size in bytes and the number of segments that the last trim has left.
        self._size_left = self._count_left = 0
        self._size_at_load = 0  # The size of the log when it was replayed.
        self._is_demanded = False  # Whether the log is to be trimmed although it has not grown much.
        # The begin offset of the last checkpoint, if the log is not trimmed up to this offset yet.
        self._checkpoint_begin: int | None = None
        self._is_writing_checkpoint = False

    def limit_waiting_by(self, item_count: Callable[[], int]) -> None:
        """Limit how many records and effects (markers and responses) may wait in memory for disk space.

        Args:
            item_count: returns how many transactions, ids or groups the coordinator has. On a full disk each of them
                can only end and then be removed, so the limit is proportional to this number.
        """
        self._item_count = item_count

    def append(self, entries: Sequence[CoordinatorRecord]) -> None:
        """Append records outside any transaction.

        The caller does not wait for them. They become durable with the next flush, at the latest shortly after this
        call.
        """
        if entries:
            self._append(encode_batch(self._records(entries)))

    def append_transactional(
        self, entries: Sequence[CoordinatorRecord], producer_id: int, producer_epoch: int
    ) -> None:
        """Append records as a batch of a producer's transaction. They take effect only if the transaction is committed.

        Raises:
            RefusedError: the disk has no space. Nothing was appended, and the client may retry.
        """
        batch = self._transactional(entries, producer_id, producer_epoch)
        self._check_usable()
        if self._waiting or not self._write(batch):
            raise RefusedError(ErrorCode.coordinator_load_in_progress, self._reserve.state())

    def _transactional(
        self, entries: Iterable[CoordinatorRecord], producer_id: int, producer_epoch: int
    ) -> bytes:
        return encode_batch(
            self._records(entries), producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
        )

    def _records(self, entries: Iterable[CoordinatorRecord]) -> list[Record]:
        wall_ms = self.clock.wall_ms()
        return [Record(0, wall_ms, key, value, ()) for key, value in entries]

    def marker_times(self) -> dict[str, int]:
        """Return broker time, which never goes back, and the wall clock: `now_ms` and `wall_ms`, the names of the
        arguments with which markers are appended to partitions.
        """
        return {"now_ms": self.clock.now_ms(), "wall_ms": self.clock.wall_ms()}

    def _check_usable(self) -> None:
        if self._flush.failed is not None:
            raise self._flush.failed

    def _append(self, batch: bytes) -> None:
        self._check_usable()
        if self._waiting or not self._write(batch):
            self._wait(batch)

    def _wait(self, entry: "bytes | Callable[[], None] | asyncio.Future[None]") -> None:
        """Queue an entry until the disk has space. An entry is a batch to append; or an effect to run, which writes a
        marker or sends a response; or the future of a task that waits for all earlier entries.
        """
        if not self._waiting:
            self._reserve.set_waiting(self, waits=True)
            if self._item_count is not None:
                self._waiting_max = WAITING_PER_ITEM * (1 + self._item_count())
        self._waiting.append(entry)
        assert self._waiting_max is None or len(self._waiting) <= self._waiting_max, (
            f"{len(self._waiting)} entries wait for room in {self.partition.topic}"
        )

    def _write(self, batch: bytes, *, frees: bool = False) -> bool:
        """Append a batch. Returns False if the disk has no space for it.

        Args:
            batch: the batch.
            frees: whether the log can be trimmed after the batch, which may then use all space kept for a full disk.

        Raises:
            UnavailableError: the disk failed, and the broker has to stop: the coordinator has made decisions that are
                not in its log, so its state must not be used any more.
        """
        try:
            self._reserve.attempt(
                lambda: self.partition.append(batch, now_ms=self.clock.now_ms(), origin=Origin.COORDINATOR),
                frees=frees,
            )
        except UnavailableError as error:
            if isinstance(error, DiskError) and error.is_full and self.partition.failure is None:
                return False
            self._flush.fail(error)
            raise
        self._flush.mark_dirty_soon(self.partition)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether records wait for disk space."""
        return bool(self._waiting)

    def retry(self) -> None:
        """Carry out the entries that wait for disk space, in their order, as far as there is space: append the batches,
        and run the effects (markers and responses) after them once they are durable.
        """
        while self._waiting:
            first = self._waiting[0]
            if isinstance(first, asyncio.Future):
                self._effects.append((self.partition.end_offset, partial(_complete, first)))
            elif not isinstance(first, bytes):
                self._effects.append((self.partition.end_offset, first))
            elif not self._write(first):
                break
            self._waiting.popleft()
        self._reserve.set_waiting(self, waits=bool(self._waiting))
        self.run_effects()

    def run_when_durable(self, effect: Callable[[], None]) -> None:
        """Run an effect when all records appended so far are durable; at once if they are durable already.

        An effect is a function that writes markers or sends a response. Effects run in the order of the calls of this
        method.
        """
        end = self.partition.end_offset
        if self._waiting:
            self._wait(effect)
        elif self.partition.high_watermark >= end and not self._effects:
            effect()
        else:
            self._effects.append((end, effect))
            self._flush.mark_dirty(self.partition)

    def durable_future(self) -> "asyncio.Future[None] | None":
        """Return a future that is done when all records that were appended so far are durable; None if they are
        durable already.
        """
        if not self._waiting:
            return self._flush.durable_future(self.partition, self.partition.end_offset)
        last = self._waiting[-1]
        if not isinstance(last, asyncio.Future):
            last = asyncio.get_running_loop().create_future()
            self._wait(last)
        # Shield the shared future: if one waiter is cancelled, the future must stay pending for the other waiters.
        return asyncio.shield(last)

    async def wait_until_durable(self) -> None:
        """Wait until all records appended to the log so far are durable."""
        future = self.durable_future()
        if future is not None:
            await future

    def sync(self) -> None:
        """Make all records appended so far durable before returning.

        The broker calls this while it starts, when the background task that syncs files is not running yet.

        Raises:
            UnavailableError: the disk failed or is full.
        """
        if self._waiting:
            raise UnavailableError(self._reserve.state())
        work = self.partition.sync_work()
        if work is not None:
            work.run()
            self.partition.finish_sync(work)
            self.run_effects()

    def run_effects(self) -> None:
        """Run the effects (functions that write markers or send responses) whose records have become durable."""
        while self._effects and self._effects[0][0] <= self.partition.high_watermark:
            self._effects.popleft()[1]()

    def replay(
        self, take: TakeRecord, end: TakeEnd | None = None, begin: Callable[[], None] | None = None
    ) -> None:
        """Read the whole log, and call `take` with every record, so that the coordinator gets the state that the log
        describes.

        A directory of Apache Kafka can have several partitions of the log. They are read one after the other, and last
        the one to which this journal writes. The records of one key are all in one of Kafka's partitions or in the
        last one, so they come in the order in which they were written.

        Args:
            take: called with each record: its key, its value, and the producer id of its transaction.
            end: called with each marker: its producer id, and whether it is a commit marker. If `end` is None, markers
                are skipped.
            begin: called once, before the first record of the partition to which the journal writes, which is read
                last.

        Raises:
            DamageError: a batch is damaged, or `take` rejects a record. Without the record the broker would lose a
                decision that it has acknowledged.
        """
        self._size_at_load = self.partition.size
        for partition in (*self._older, self.partition):
            if begin is not None and partition is self.partition:
                begin()
            replay_partition(partition, take, end)

    @property
    def has_grown(self) -> bool:
        """Whether the log has grown enough for a new checkpoint, or the part before the last checkpoint is not deleted
        (trimmed) yet. A checkpoint repeats at the end of the log all that the coordinator still needs.

        After a trim, the log contains only the checkpoint. Records that are appended after the trim count as growth.
        """
        size_max = max(CHECKPOINT_SIZE_MIN, CHECKPOINT_GROWTH * self._size_left)
        count_max = self._count_left + SEGMENT_COUNT_MAX + self._size_left // SEGMENT_SIZE
        is_large = self.partition.size >= size_max or len(self.partition.log.segments) > count_max
        return is_large or self._is_demanded or self._checkpoint_begin is not None

    def demand_checkpoint(self, at_least: int = STOP_SIZE_MIN) -> bool:
        """Decide whether the broker, before it stops, writes a checkpoint of the coordinator's state to the end of the
        log and deletes the log before it (trims the log). `checkpoint_if_grown` writes the checkpoint that was
        demanded. Without it, the next start would replay many obsolete records.

        Args:
            at_least: the checkpoint is demanded if at least this number of bytes was appended since the last trim, or
                since the start of the broker.

        Returns:
            Whether a checkpoint is demanded, so that the log is going to be trimmed.
        """
        kept_size = max(self._size_left, self._size_at_load)
        self._is_demanded = self.partition.size - kept_size >= at_least
        return self._is_demanded

    async def checkpoint_if_grown(self, live: Callable[[], LiveState | None]) -> int | None:
        """Write a checkpoint if the log has grown enough and is trimmed up to the last checkpoint.

        A checkpoint repeats in the log all that the coordinator still needs: its live state. Records of an open
        transaction are repeated as a part of this transaction, so that its marker also applies to the repeated records.
        The state is appended in slices, each in one turn of the event loop. Other records may be appended between two
        slices (see `coordinators.live_state`). A crash before the log is trimmed leaves both the old records and some
        or all of the new ones, and replaying them gives the same state.

        Args:
            live: returns the live state, all that the coordinator still needs, at the time of the call; None if it
                cannot be written now.

        Returns:
            The offset up to which the log may be trimmed once everything that was appended so far, to any partition, is
            durable; None if there is nothing to trim, records wait for space, or another call is in progress.

        Raises:
            DiskError: the disk has no space for the state; nothing changed.
            UnavailableError: the disk failed, and the broker has to stop.
        """
        if self._waiting or self._is_writing_checkpoint or not self.has_grown:
            return None
        if self._checkpoint_begin is not None:
            return self._checkpoint_begin
        self._is_writing_checkpoint = True
        try:
            return await self._write_checkpoint(live)
        finally:
            self._is_writing_checkpoint = False

    async def _write_checkpoint(self, live: Callable[[], LiveState | None]) -> int | None:
        """Append a checkpoint: the coordinator's live state, all that it still needs.

        Returns:
            The offset at which the checkpoint begins; None if nothing was appended, because `live` returned None (the
            state cannot be written now) or the disk has no space.
        """
        state = live()
        if state is None:
            self._log_untrimmed()
            return None
        self._untrimmed_since_ms = None
        begin = self.partition.end_offset
        # Begin a new segment, so that all records before the checkpoint can be deleted, even those that are not durable yet. The checkpoint repeats old decisions. If a record of a later decision stayed before the
        # checkpoint, a replay would apply it before the old decisions.
        self._reserve.attempt(lambda: self.partition.roll(self.clock.now_ms()), frees=True)
        for slice_ in self._checkpoint_slices(state):
            self._check_usable()
            for batch in slice_:
                if self._waiting or not self._write(batch, frees=True):
                    # The disk has no space for the rest of the checkpoint. The records appended so far only repeat
                    # records that the log already contains.
                    return None
            await asyncio.sleep(0)  # Let requests be served between two slices of the checkpoint.
        self._checkpoint_begin = begin
        return begin

    def _checkpoint_slices(self, state: LiveState) -> Iterator[list[bytes]]:
        """Yield the batches of a checkpoint, in slices: one slice is appended in one turn of the event loop.

        The batches of a slice are made when the caller takes the slice. The caller appends them before the state
        changes again.
        """
        plain = iter(lambda: list(itertools.islice(state.rest, CHECKPOINT_SLICE_COUNT)), [])
        for entries in itertools.chain([state.undivided] if state.undivided else [], plain):
            yield [encode_batch(self._records(entries))]
        while items := list(itertools.islice(state.ordered, CHECKPOINT_SLICE_COUNT)):
            yield self._ordered_batches(items)

    def _ordered_batches(self, items: Sequence[Sequence[OwnedRecord]]) -> list[bytes]:
        """Encode those records of a checkpoint whose order matters, and return the batches in the order in which they
        must be appended.

        Args:
            items: lists of records. The records of one list are written in the order of the list. Records of different
                lists share a batch if they belong to the same transaction: a batch gets the first record of each list,
                the next batch the second ones, and so on.
        """
        places: list[dict[int | None, list[CoordinatorRecord]]] = []
        for item in items:
            for place, owned in enumerate(item):
                if place == len(places):
                    places.append({})
                places[place].setdefault(owned.producer_id, []).append(owned.record)
        batches = []
        for by_owner in places:
            for producer_id, entries in by_owner.items():
                if producer_id is None:
                    batches.append(encode_batch(self._records(entries)))
                    continue
                txn = self.partition.log.producers.open_transaction(producer_id)
                # A transaction that Apache Kafka has begun can have its offsets in a partition that is never trimmed.
                if txn is not None:
                    batches.append(self._transactional(entries, producer_id, txn.producer_epoch))
        return batches

    def _log_untrimmed(self) -> None:
        """Log that the log cannot be trimmed, because markers of earlier decisions are missing in partitions. This is
        logged once, and only if the markers are missing for longer than it usually takes to write them.
        """
        now_ms = self.clock.now_ms()
        if self._untrimmed_since_ms is None:
            self._untrimmed_since_ms = now_ms
        if 0 <= self._untrimmed_since_ms <= now_ms - UNTRIMMED_TELL_MS:
            self._untrimmed_since_ms = TOLD
            log.warning(
                "the log of %s has %d MiB and is not trimmed: it has decisions on hundreds of transactions that still "
                "lack markers, because a partition of these transactions is offline. Restore this partition, or "
                "delete its topic",
                self.partition.topic,
                self.partition.size >> 20,
            )

    def trim(self, before_offset: int) -> None:
        """Delete the records of the log before a checkpoint.

        Raises:
            DiskError: the log is unchanged; `checkpoint_if_grown` returns the same offset again.
        """
        if before_offset > self.partition.start_offset:
            self._reserve.attempt(lambda: self.partition.deletion.delete_records(before_offset), frees=True)
        self._checkpoint_begin = None
        self._is_demanded = False
        self._size_left, self._count_left = self.partition.size, len(self.partition.log.segments)


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
