"""A coordinator's own log: its records go in, and effects wait until they are durable.

A coordinator changes its state when it decides. Nobody may learn of a decision that a crash could still take
back, so every answer and every marker waits until the log is durable up to where it ended at the decision.

Records that find no room on the disk wait in memory, in their order, with all records and effects behind them, until
`retry` finds some. So the log is always a prefix of what was decided, and what it lacks was not acknowledged. What may
wait is bounded by what the coordinator knew when the first record waited: from then on the disk counts as full
(`broker.disk_reserve`), and each transaction, id or group can only end. All who wait for the same record without one of
their own wait with one entry.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, headers_in, read_header
from stablelog.batch.records import Record, encode_batch
from stablelog.broker.disk_reserve import DiskReserve
from stablelog.broker.flush import GroupFlush
from stablelog.coordinators.live_state import LiveState
from stablelog.errors import Corrupt, DiskError, Refused, Unavailable
from stablelog.log.partition import Origin, Partition
from stablelog.log.segment import Segment

log = logging.getLogger(__name__)

Entry = tuple[bytes, bytes | None]

REPLAY_READ_SIZE = 4 << 20
CHECKPOINT_SLICE_COUNT = 200  # records that are made and appended in one turn of the event loop
CHECKPOINT_SIZE_MIN = 16 << 20  # a log smaller than this is not worth trimming
CHECKPOINT_GROWTH = 4  # trim when the log has grown to so many times what it held after the last trim
# Entries that may wait for each thing that the coordinator knew. A transaction is decided, complete and forgotten: three
# records, each with at most two effects and one wait behind it.
WAITING_PER_ITEM = 16


class Journal:
    """The log of one coordinator: one partition that is written to.

    A directory that Kafka wrote has more of them, each with other keys. They are read, and not written to any more.

    Args:
        partitions: of the log; the first is written to.
        flush: makes it durable.
        reserve: gives it room on a full disk.
        now_ms: the broker's clock.
    """

    def __init__(
        self,
        partitions: Sequence[Partition],
        flush: GroupFlush,
        reserve: DiskReserve,
        now_ms: Callable[[], int],
    ) -> None:
        self.partition = partitions[0]
        self._older = partitions[1:]
        self._flush = flush
        self._reserve = reserve
        self._now_ms = now_ms
        self._item_count: Callable[[], int] | None = None
        # For room: batches, effects behind them, and futures of those who wait for the entries before.
        self._waiting: deque[bytes | Callable[[], None] | asyncio.Future[None]] = deque()
        self._waiting_max: int | None = None
        self._effects: deque[tuple[int, Callable[[], None]]] = deque()
        self._has_told_untrimmed = False
        self._size_after_checkpoint = 0
        self._checkpoint_begin: int | None = None  # of a checkpoint that the log was not trimmed to yet
        self._is_writing_checkpoint = False

    def bound_by(self, item_count: Callable[[], int]) -> None:
        """Have a check of how much waits for room.

        Args:
            item_count: how many things the coordinator knows, each of which can end, and be forgotten, once.
        """
        self._item_count = item_count

    def append(self, entries: Sequence[Entry]) -> None:
        """Append records, outside any transaction. They are durable with whatever is waited for next, or soon."""
        if entries:
            self._append(encode_batch(self._records(entries)))

    def append_transactional(self, entries: Sequence[Entry], producer_id: int, producer_epoch: int) -> None:
        """Append records whose fate is that of the producer's transaction.

        Raises:
            Refused: there is no room; nothing was appended, and the client may try again.
        """
        batch = encode_batch(
            self._records(entries), producer_id=producer_id, producer_epoch=producer_epoch, transactional=True
        )
        self._check_usable()
        if self._waiting or not self._write(batch):
            raise Refused(ErrorCode.coordinator_load_in_progress, self._reserve.state())

    def _records(self, entries: Iterable[Entry]) -> list[Record]:
        now_ms = self._now_ms()
        return [Record(0, now_ms, key, value, ()) for key, value in entries]

    def _check_usable(self) -> None:
        if self._flush.failed is not None:
            raise self._flush.failed

    def _append(self, batch: bytes) -> None:
        self._check_usable()
        if self._waiting or not self._write(batch):
            self._wait(batch)

    def _wait(self, entry: "bytes | Callable[[], None] | asyncio.Future[None]") -> None:
        """Have a record, an effect or a future wait for room, behind all that waits."""
        if not self._waiting:
            self._reserve.set_waiting(self, waits=True)
            if self._item_count is not None:
                self._waiting_max = WAITING_PER_ITEM * (1 + self._item_count())
        self._waiting.append(entry)
        assert self._waiting_max is None or len(self._waiting) <= self._waiting_max, (
            f"{len(self._waiting)} entries wait for room in {self.partition.topic}"
        )

    def _write(self, batch: bytes) -> bool:
        """Append a batch. Returns False if there is no room for it.

        Raises:
            Unavailable: the disk failed, and the broker has to stop: the coordinator has decided what its log does not
                know, and is not to be trusted from now on.
        """
        try:
            self._reserve.attempt(
                lambda: self.partition.append(batch, now_ms=self._now_ms(), origin=Origin.COORDINATOR)
            )
        except Unavailable as error:
            if isinstance(error, DiskError) and error.is_full and self.partition.failure is None:
                return False
            self._flush.fail(error)
            raise
        self._flush.dirty_soon(self.partition)
        return True

    @property
    def is_waiting(self) -> bool:
        """Whether records wait for room on the disk."""
        return bool(self._waiting)

    def retry(self) -> None:
        """Append what waits for room, as far as there is some."""
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
        self.settle()

    def after(self, effect: Callable[[], None]) -> None:
        """Run `effect` once all that was appended so far is durable: now, if it is. Effects run in order."""
        end = self.partition.end_offset
        if self._waiting:
            self._wait(effect)
        elif self.partition.high_watermark >= end and not self._effects:
            effect()
        else:
            self._effects.append((end, effect))
            self._flush.dirty(self.partition)

    def durable(self) -> "asyncio.Future[None] | None":
        """A future that is done once all that was appended so far is durable; None if it is by now."""
        if not self._waiting:
            return self._flush.durable(self.partition, self.partition.end_offset)
        last = self._waiting[-1]
        if not isinstance(last, asyncio.Future):
            last = asyncio.get_running_loop().create_future()
            self._wait(last)
        return asyncio.shield(last)  # who gives up leaves nothing behind, and others wait on

    async def settled(self) -> None:
        """Wait until all that was appended so far is durable."""
        future = self.durable()
        if future is not None:
            await future

    def sync(self) -> None:
        """Make all that was appended so far durable, and return then. For a start, before the flush runs.

        Raises:
            Unavailable: the disk failed or is full.
        """
        if self._waiting:
            raise Unavailable(self._reserve.state())
        work = self.partition.unsynced()
        if work is not None:
            work.run()
            self.partition.synced(work)
            self.settle()

    def settle(self) -> None:
        """The log's high watermark moved: run the effects that waited for it."""
        while self._effects and self._effects[0][0] <= self.partition.high_watermark:
            self._effects.popleft()[1]()

    def replay(self, take: Callable[[memoryview, BatchHeader], None]) -> None:
        """Hand out every batch of the log, each key's oldest first.

        Raises:
            Corrupt: a batch is damaged, or `take` says so of it. What a coordinator has decided is not guessed at.
        """
        for partition in (*self._older, self.partition):
            try:
                partition.prove()
            except Corrupt as error:
                raise Corrupt(f"{error}: the broker could not hold to what it had decided") from error
            next_offset = 0  # Kafka's compaction leaves gaps
            for batch, header in batches_of(partition):
                in_order = next_offset <= header.base_offset < header.next_offset <= partition.end_offset
                if not in_order or not crc_holds(batch, 0, header):
                    raise _damaged(partition, next_offset)
                try:
                    take(batch, header)
                except Corrupt as error:
                    raise _damaged(partition, header.base_offset, error) from error
                next_offset = header.next_offset

    @property
    def has_grown(self) -> bool:
        """Whether the log has outgrown the live state, or was not trimmed to the last checkpoint yet."""
        size_max = max(CHECKPOINT_SIZE_MIN, CHECKPOINT_GROWTH * self._size_after_checkpoint)
        return self._checkpoint_begin is not None or self.partition.size >= size_max

    async def checkpoint_if_grown(self, live: Callable[[], LiveState | None]) -> int | None:
        """Append the whole live state again, once the log has outgrown it and was trimmed to the last checkpoint.

        The state is appended in slices, each in one turn of the event loop. Other records may be appended between two
        slices (see `coordinators.live_state`). A crash before the log is trimmed finds both the old records and some or
        all of the new ones, and replaying them gives the same state.

        Args:
            live: the live state at the time of the call; None if it cannot be written now.

        Returns:
            The offset to which the log may be trimmed when everything that was appended so far, to any partition,
            is durable; None if there is nothing to trim, records wait for room, or another call is at work.

        Raises:
            DiskError: there is no room for it; nothing changed.
            Unavailable: the disk failed, and the broker has to stop.
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
        """Append the live state. Returns its beginning; None if there is no live state, or no more room for it."""
        state = live()
        if state is None:
            if not self._has_told_untrimmed:
                self._has_told_untrimmed = True
                log.warning(
                    "%s has %d MiB and is not trimmed while so many decisions in it lack markers: a partition that they "
                    "are for is offline. Restore that partition, or delete its topic",
                    self.partition.topic,
                    self.partition.size >> 20,
                )
            return None
        self._has_told_untrimmed = False
        begin = self.partition.end_offset
        if len(self.partition.producer_state):
            # Offsets in transactions that are open now are not live state yet: they stay, whatever becomes of them.
            begin = min(begin, self.partition.last_stable_offset)
        # Else nothing stays, durable yet or not: a decision in front of earlier ones would be taken for the first.
        size_before = self.partition.size
        self._reserve.attempt(lambda: self.partition.roll(self._now_ms()))
        slices = iter(lambda: list(itertools.islice(state.rest, CHECKPOINT_SLICE_COUNT)), [])
        for entries in itertools.chain([state.undivided] if state.undivided else [], slices):
            self._check_usable()
            if self._waiting or not self._write(encode_batch(self._records(entries))):
                return None  # no room; what was appended of it repeats what the log says
            await asyncio.sleep(0)  # requests are served between two slices
        self._size_after_checkpoint = self.partition.size - size_before
        self._checkpoint_begin = begin
        return begin

    def trim(self, before_offset: int) -> None:
        """Delete what lies before a checkpoint.

        Raises:
            DiskError: it is there as before; `checkpoint_if_grown` returns the same offset again.
        """
        if before_offset > self.partition.start_offset:
            self._reserve.attempt(lambda: self.partition.delete_records(before_offset), frees=True)
        self._checkpoint_begin = None


def _complete(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def batches_of(partition: Partition) -> Iterator[tuple[memoryview, BatchHeader]]:
    """Yield each batch of a partition with its header, the oldest first, whether durable or not.

    Reads copies, as all that a start reads: an unreadable sector of a mapped file would end the process without a word.

    Raises:
        Corrupt: a batch is damaged.
        DiskError: a file cannot be read.
    """
    reached = partition.start_offset
    for segment in partition.segments():
        position = 0
        while position < segment.size:
            begun = position
            try:
                data = _read_batches(segment, position)
                for at, header in headers_in(data):
                    position = begun + at + header.size
                    if header.next_offset > partition.start_offset:
                        yield data[at : at + header.size], header
                        reached = header.next_offset
            except Corrupt as error:
                raise _damaged(partition, reached, error) from error
            if position == begun:
                raise _damaged(partition, reached)


def _read_batches(segment: Segment, position: int) -> memoryview:
    """Read about REPLAY_READ_SIZE bytes, and at least the whole first batch if the segment has it."""
    data = segment.log.read(position, max(REPLAY_READ_SIZE, HEADER.size))
    if len(data) >= HEADER.size and (size := read_header(data).size) > len(data):
        data = segment.log.read(position, min(size, segment.size - position))
    return memoryview(data)


def _damaged(partition: Partition, offset: int, why: Corrupt | None = None) -> Corrupt:
    """What to say of a log that is not read on from this offset."""
    bases = [segment.base_offset for segment in partition.segments()]
    base_offset = max((base for base in bases if base <= offset), default=bases[0])
    return Corrupt(
        f"{partition.directory / f'{base_offset:020d}.log'} is damaged at offset {offset} or behind it"
        f"{f' ({why})' if why else ''}: the broker could not hold to what it had decided. Restore the directory"
    )
