"""A reader of a consumer group: what it hands out, what of that is committed, and when it goes back.

The group assigns partitions to the reader (`membership`). The reader notes for each partition up to where the program has
got records: the offsets *handed out*. `commit`, or a transaction (`group_writing`), commits them. After a transaction that
did not commit, the reader goes back to the committed offsets.

A partition that the group takes away is kept for GRACE_S while its records are not committed. Then it is *given up*:
another member reads these records again, so that a transaction that depends on them may not commit.
"""

import uuid
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import EARLIEST, LATEST, Cluster
from stablelog.client.core.membership import GroupMember
from stablelog.client.core.outcomes import aborted
from stablelog.client.core.partitions import list_offsets
from stablelog.client.core.pauses import PausedPartitions
from stablelog.client.core.record_reader import ReadBatch, RecordReader, records_of
from stablelog.client.core.seeking import check_offsets
from stablelog.client.core.steps import NOW, Pause, Steps
from stablelog.client.core.transaction_stream import ReadRecord
from stablelog.client.responses import RetriableError
from stablelog.errors import DataLossError, RefusedError, StablelogError, UsageError
from stablelog.types import TopicPartition

GRACE_S: Final = 3.0  # how long a partition with uncommitted records is kept after the group took it away
WAIT_S: Final = 0.5  # how long one Fetch request waits for a record
WAIT_MIN_S: Final = 0.05
PAUSE_S: Final = 0.1  # between two looks of a reader without a partition
STARTS: Final = {"earliest": EARLIEST, "latest": LATEST}
# The member has no place in the group: the group has given its partitions to others.
NOT_A_MEMBER: Final = frozenset(
    {
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
        ErrorCode.illegal_generation,
        ErrorCode.fenced_instance_id,
        ErrorCode.rebalance_in_progress,
    }
)


class SeekTarget(NamedTuple):
    """Where a seek has put a partition, until an offset is committed after it.

    Attributes:
        offset: the next offset to read.
        token: the metadata of the next committed offset. It says that this offset was committed after the seek, also if
            the outcome of the commit was unknown.
    """

    offset: int
    token: str


class GroupReading:
    """The decisions of a reader of a consumer group. One call at a time runs its steps; `go_back` is for any moment.

    Args:
        cluster: the brokers; used by this reader alone.
        member: the member of the group.
        isolation: read_committed or read_uncommitted.
        start: "earliest" or "latest": where a partition without a committed offset is read from.

    Attributes:
        cluster: as given.
        member: as given.
        leaving: the partitions that the group has taken away, and that are kept for their records to be committed.
        is_closing: whether a call that waits has to end, because the reader is closed.
        is_closed: whether the reader has left the group for good.
    """

    def __init__(self, cluster: Cluster, member: GroupMember, isolation: str, start: str) -> None:
        self.cluster = cluster
        self.member = member
        self._isolation = isolation
        self._start = STARTS[start]
        self._sought: dict[TopicPartition, SeekTarget] = {}
        self._paused = PausedPartitions()
        # Where partitions without a committed offset were read from first, if not from the start of their log.
        self._starts: dict[TopicPartition, int] = {}
        self._reader = RecordReader(cluster, {}, isolation)
        self._batches: deque[ReadBatch] = deque()
        self._records: deque[ReadRecord] = deque()  # those of the batches before `_batches`
        self._handed_out: dict[TopicPartition, int] = {}  # the next offset, where it is not committed
        # What the last call handed out, and what was handed out before it of the same partitions; None for nothing.
        self._undelivered: tuple[list[ReadRecord], dict[TopicPartition, int | None]] | None = None
        self._given_up: set[TopicPartition] = set()  # partitions whose uncommitted records others read again
        self.leaving: set[TopicPartition] = (
            set()
        )  # partitions that are kept for their records to be committed
        self._leave_at = 0.0
        self._loss: DataLossError | None = None  # raised by the next call
        # How often the reader was to go back, and how often it has done so.
        self._backs_wanted = self._backs_done = 0
        self._writer: object | None = None  # the last transaction of this reader
        self._is_writing = False  # whether that transaction is open
        self.is_closed = self.is_closing = False

    # --- records ---

    def take_ready(self, now: float) -> ReadRecord | None:
        """Hand out the next record if it is here and no request is due. `now` is in seconds of the shell's clock."""
        self._undelivered = None
        if (
            not self._records
            or now >= self.member.due
            or self.leaving
            or self._backs_done != self._backs_wanted
        ):
            return None
        return self._take(1)[0]

    def read(self, count_max: int, wait_s: float | None, collect_s: float) -> Steps[list[ReadRecord]]:
        """Hand out records, with the heartbeats of the member as they are due. After an error, nothing was handed out, and
        the call may be repeated.

        Args:
            count_max: maximum of records.
            wait_s: how long to wait for the first one; None for no limit.
            collect_s: how long to wait for others after the first one.

        Returns:
            The records; none if `wait_s` has passed.

        Raises:
            RefusedError: the member or a fetch is refused for good.
            UnavailableError: the group's coordinator does not respond within the deadline.
            DataLossError: records were removed before they were read. The next call goes on at the first record left.
            DamageError: a batch is damaged.
        """
        self._undelivered = None
        began = yield NOW
        until: float | None = None
        while True:
            self._check_open()
            try:
                yield from self._follow()
                is_placed = yield from self._go_back()
                if is_placed and self._loss is not None and not self._records:
                    loss, self._loss = self._loss, None
                    raise loss
                self._decode(count_max)
                now = yield NOW
                # A rebalance may have taken away all records that were collected.
                until = None if not self._records else now + collect_s if until is None else until
                limit = until if until is not None else None if wait_s is None else began + wait_s
                if len(self._records) >= count_max or (limit is not None and now >= limit):
                    return self._take(count_max)
                left_s = WAIT_S if limit is None else min(WAIT_S, limit - now)
                left_s = min(left_s, max(WAIT_MIN_S, self.member.due - now))
                self._reader.paused = self._paused.of(self._reader.positions)
                if not is_placed or not self._reader.active():
                    yield Pause(min(PAUSE_S, left_s))
                else:
                    yield from self._fetch(left_s)
            except StablelogError:
                if not self._records or self._backs_done != self._backs_wanted:
                    raise
                return self._take(count_max)  # the error comes again with the next call

    def _take(self, count_max: int) -> list[ReadRecord]:
        records = self._records
        taken = [records.popleft() for _ in range(min(count_max, len(records)))]
        targets = {(record.topic, record.partition) for record in taken}
        self._undelivered = taken, {target: self._handed_out.get(target) for target in targets}
        for record in taken:
            self._handed_out[record.topic, record.partition] = record.offset + 1
        if not records and not self._batches:
            # Markers at the end count as read: no lag is left.
            for target in targets:
                self._handed_out[target] = self._reader.positions[target]
        return taken

    def hand_back(self) -> None:
        """Take back what the last call handed out: the program did not get it, because an exception came between."""
        if self._undelivered is not None:
            taken, before = self._undelivered
            for target, offset in before.items():
                if offset is None:
                    self._handed_out.pop(target, None)
                else:
                    self._handed_out[target] = offset
            self._records.extendleft(reversed(taken))
            self._undelivered = None

    def _decode(self, count: int) -> None:
        """Decode batches until `count` records are there."""
        while self._batches and len(self._records) < count:
            self._records.extend(records_of(self._batches[0]))
            self._batches.popleft()

    def _fetch(self, wait_s: float) -> Steps[None]:
        yield from self._resolve_starts()
        found = yield from self._reader.read_round(wait_s)
        self._batches.extend(found.batches)
        for (topic, partition), position in found.moved.items():
            self._loss = DataLossError(
                f"{topic}-{partition} has no record at offset {position}, where group {self.member.group_id!r} was: "
                "retention or DeleteRecords removed it. The next call of this reader goes on at the first record that is "
                "left"
            )

    # --- the group ---

    def _follow(self) -> Steps[None]:
        """Send a heartbeat if one is due, and follow the assignment."""
        if self.leaving:
            if self._handed_out.keys() & self.leaving and (yield NOW) < self._leave_at:
                return
            self._give_up(self.leaving)
            self.leaving = set()
        change = yield from self.member.follow()
        self._forget((*change.revoked, *change.lost))
        self._give_up(change.lost)
        if self._handed_out.keys() & set(change.revoked):
            self.leaving, self._leave_at = set(change.revoked), (yield NOW) + GRACE_S
        for target, committed in change.assigned.items():
            self._reader.seek(target, self._start if committed is None else committed.offset)

    def _resolve_starts(self) -> Steps[None]:
        """Ask for the ends of partitions that are read from their end, so that the reader can go back to them."""
        ends = [target for target, position in self._reader.positions.items() if position == LATEST]
        if ends:
            found = yield from list_offsets(self.cluster, dict.fromkeys(ends, LATEST), self._isolation)
            for target in ends:
                self._starts[target] = found[target].offset
                self._reader.seek(target, found[target].offset)

    def _forget(self, targets: Iterable[TopicPartition]) -> None:
        """Stop reading partitions."""
        gone = set(targets)
        if not gone:
            return
        for target in gone:
            self._reader.forget(target)
            self._starts.pop(target, None)
            self._sought.pop(target, None)
        self._drop(gone)

    def _drop(self, targets: Collection[TopicPartition]) -> None:
        """Drop the records of partitions that were read and not handed out."""
        self._batches = deque(batch for batch in self._batches if batch.target not in targets)
        self._records = deque(one for one in self._records if (one.topic, one.partition) not in targets)

    def _give_up(self, targets: Iterable[TopicPartition]) -> None:
        """Note that others may read the uncommitted records of these partitions again."""
        for target in targets:
            if self._handed_out.pop(target, None) is not None:
                self._given_up.add(target)

    # --- going back ---

    def go_back(self) -> None:
        """Make the next call begin at the committed offsets. What was handed out cannot be committed any more."""
        self._backs_wanted += 1

    def _go_back(self) -> Steps[bool]:
        """Go back to the committed offsets if this was wanted. Return False if they are not known yet."""
        wanted = self._backs_wanted
        if wanted == self._backs_done:
            return True
        self._batches.clear()
        self._records.clear()
        targets = list(self._reader.positions)
        committed = (yield from self.member.committed_now(targets)) if targets else {}
        if committed is None:
            return False
        self._handed_out.clear()
        self._given_up.clear()
        for target in targets:
            at, sought = committed.get(target), self._sought.get(target)
            if sought is not None and (at is None or at.metadata != sought.token):
                self._handed_out[target] = sought.offset
                self._reader.seek(target, sought.offset)
                continue
            self._sought.pop(target, None)
            self._reader.seek(target, self._starts.get(target, self._start) if at is None else at.offset)
        self._loss = None
        self._backs_done = wanted
        return True

    def _go_back_now(self) -> Steps[None]:
        """Go back if this was wanted, and wait until it is done.

        Raises:
            RefusedError: the user may not read the group.
            UnavailableError: the committed offsets are not known within the deadline.
        """

        def attempt() -> Steps[None]:
            if not (yield from self._go_back()):
                yield from self._follow()  # a member that was replaced joins again
                raise RetriableError("the committed offsets are not known yet")

        if self._backs_done != self._backs_wanted:
            yield from self.cluster.retrying(f"going back in group {self.member.group_id!r}", attempt)

    # --- seeks and pauses ---

    def seek(self, target: TopicPartition, offset: int) -> Steps[None]:
        """Go on at an offset of an assigned partition. The next commit commits this offset, or that of later records.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            RefusedError: the user may not read the partition.
            UnavailableError: no response within the deadline.
            UsageError: the partition is not assigned to this reader, a transaction of this reader is open, or the reader is
                closed.
        """
        yield from self._back_before_seek()
        (wanted,) = self._assigned(target[0], target[1])
        yield from check_offsets(self.cluster, {target: offset}, "read_uncommitted")
        self._move({wanted: offset})

    def seek_to(self, spec: int, topic: str | None, partition: int | None) -> Steps[None]:
        """Go on at the start or the end of assigned partitions, or at a time; as `seek`.

        Args:
            spec: EARLIEST, LATEST, or a timestamp in ms: the first record at or after it, or the end if there is none.
            topic: only the partitions of this topic; None for all.
            partition: only this partition of the topic; None for all.
        """
        yield from self._back_before_seek()
        targets = self._assigned(topic, partition)
        # The ends first: a record that is written meanwhile is read.
        ends = yield from list_offsets(self.cluster, dict.fromkeys(targets, LATEST), self._isolation)
        found = yield from list_offsets(self.cluster, dict.fromkeys(targets, spec), self._isolation)
        self._move(
            {one: found[one].offset if found[one].offset >= 0 else ends[one].offset for one in targets}
        )

    def _back_before_seek(self) -> Steps[None]:
        self.check_free()
        yield from self._go_back_now()

    def _assigned(self, topic: str | None, partition: int | None) -> list[TopicPartition]:
        """Return assigned partitions that a seek may move."""
        targets = [
            one
            for one in self._reader.positions
            if topic in (None, one[0]) and partition in (None, one[1]) and one not in self.leaving
        ]
        if not targets:
            what = "no partition" if topic is None else f"no partition of {topic}"
            what = what if partition is None else f"not {topic}-{partition}"
            raise UsageError(
                f"the group has assigned {what} to this reader now. Ask the reader for records first, and look at its "
                "assignment"
            )
        return sorted(targets)

    def _move(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._drop(offsets)
        self._undelivered = None
        for target, offset in offsets.items():
            self._reader.seek(target, offset)
            self._handed_out[target] = offset
            self._sought[target] = SeekTarget(offset, f"seek:{uuid.uuid4().hex}")

    def tokens(self) -> dict[TopicPartition, str]:
        """Return the metadata with which the next offsets are committed, of the partitions that were moved by a seek."""
        return {target: sought.token for target, sought in self._sought.items()}

    def pause(self, topic: str, partition: int | None) -> None:
        """Hand out no more records of a partition, or of all partitions of a topic, until `resume`."""
        self._paused.pause(topic, partition)
        for target in self._paused.of(self._reader.positions):
            ready = [one.offset for one in self._records if (one.topic, one.partition) == target]
            ready += [
                max(one.first_offset, one.header.base_offset) for one in self._batches if one.target == target
            ]
            if ready:
                self._reader.seek(target, ready[0])
        self._drop(self._paused.of(self._reader.positions))

    def resume(self, topic: str, partition: int | None) -> None:
        """Hand out records of a paused partition or topic again.

        Raises:
            UsageError: a partition is to be resumed, and the whole topic was paused.
        """
        self._paused.resume(topic, partition)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the reader has."""
        return frozenset(self._reader.positions)

    # --- commits ---

    def commit(self) -> Steps[None]:
        """Commit the offsets of all records that were handed out.

        Raises:
            RefusedError: the group has given partitions to another member before, which reads their records again. The
                other offsets are committed.
            UnavailableError: the coordinator does not respond within the deadline. Repeat the call.
            UsageError: a transaction of this reader is open, or the reader is closed.
        """
        self._check_open()
        if self._is_writing:
            raise UsageError("a transaction of this reader is open: it commits the offsets")
        yield from self.cluster.in_time(self._back_to_seeks())
        offsets = dict(self._handed_out) if self._backs_done == self._backs_wanted else {}
        try:
            yield from self.cluster.in_time(self.member.commit(offsets, self.tokens()))
        except RefusedError as refused:
            if refused.code not in NOT_A_MEMBER:
                raise
            self._give_up(offsets)
        self.committed(offsets)
        if self._given_up:
            gone, self._given_up = sorted(self._given_up), set()
            raise RefusedError(
                ErrorCode.illegal_generation,
                f"the offsets of {_names(gone)} are not committed: {self._taken_away()}. That member reads the records "
                "after the last commit again",
            )

    def _back_to_seeks(self) -> Steps[None]:
        """Go back before a commit if a seek is not committed: the commit is then one of the seek."""
        sought = list(self._sought)
        if sought:
            yield from self._go_back_now()
            self._given_up.update(target for target in sought if target not in self._reader.positions)

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Note that these offsets are committed."""
        for target, offset in offsets.items():
            self._sought.pop(target, None)
            if self._handed_out.get(target, offset + 1) <= offset:
                del self._handed_out[target]

    def _taken_away(self) -> str:
        return (
            f"group {self.member.group_id!r} has given these partitions to another member, because of a rebalance or because "
            "this reader was not called within the session timeout"
        )

    # --- transactions ---

    def begin(self, writer: object) -> None:
        """Note that a transaction has begun. Call `check_free` before."""
        self._writer, self._is_writing = writer, True

    def check_free(self) -> None:
        """Raise UsageError if the reader is closed, or has an open transaction."""
        self._check_open()
        if self._is_writing:
            raise UsageError("another transaction of this reader is open: end it first")

    def end(self, writer: object, committed: Mapping[TopicPartition, int] | None) -> None:
        """Note the end of a transaction: the offsets that it has committed. None if it has failed, or if its outcome is
        unknown; then the reader goes back. A transaction before the last one changes nothing.
        """
        if committed is not None:
            self.committed(committed)
        if writer is self._writer:
            self._is_writing = False
            if committed is None:
                self.go_back()

    def offsets_for(self, writer: object) -> dict[TopicPartition, int]:
        """Return the offsets that this transaction commits.

        Raises:
            TransactionAbortedError: records that were handed out before may be handed out again.
        """
        if self.is_closed or writer is not self._writer or self._backs_wanted != self._backs_done:
            raise aborted("its reader goes back to the committed offsets, or is closed")
        if self._given_up:
            raise aborted(f"{self._taken_away()}: {_names(sorted(self._given_up))}")
        return dict(self._handed_out)

    # --- the end ---

    def close(self) -> Steps[None]:
        """Leave the group. Other members read the uncommitted records again. Never raises."""
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(StablelogError):
            yield from self.cluster.in_time(self.member.leave())

    def _check_open(self) -> None:
        if self.is_closed or self.is_closing:
            raise UsageError("this reader is closed: subscribe again")


def _names(targets: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in targets)
