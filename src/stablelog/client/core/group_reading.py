"""The rules of a reader of a consumer group: which records the program gets, which offsets are committed, and when the
reader goes back to the committed offsets.

For each partition that the group has assigned to it (`membership`), the reader stores the offset after the last record
that the program has got. A call of `commit`, or a transaction (`group_writing`), commits these offsets. After a
transaction that did not commit, the reader goes back to the committed offsets. If the group takes a partition away, the
reader keeps it until the records that the program has got are committed, for up to GRACE_S seconds. After this time the
partition is *given up*: another member reads these records again, so a transaction that depends on them must not
commit.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kio.schema.errors import ErrorCode

from stablelog.client.core.cluster import EARLIEST, LATEST, Cluster
from stablelog.client.core.fetched_records import FetchedRecords
from stablelog.client.core.membership import NOT_A_MEMBER, GroupMember
from stablelog.client.core.outcomes import aborted_error
from stablelog.client.core.partitions import list_offsets
from stablelog.client.core.pauses import PausedPartitions
from stablelog.client.core.record_reader import RecordReader
from stablelog.client.core.seeking import check_offsets
from stablelog.client.core.steps import NOW, Pause, Steps
from stablelog.client.core.transaction_stream import ReadRecord
from stablelog.client.core.uncommitted_offsets import UncommittedOffsets
from stablelog.client.responses import RetriableError
from stablelog.errors import DataLossError, RefusedError, StablelogError, UsageError
from stablelog.types import TopicPartition

GRACE_S: Final = 3.0  # how long a partition with uncommitted records is kept after the group took it away
WAIT_S: Final = 0.5  # how long one Fetch request waits for a record
WAIT_MIN_S: Final = 0.05
PAUSE_S: Final = 0.1  # between two looks of a reader without a partition
STARTS: Final = {"earliest": EARLIEST, "latest": LATEST}


class GroupReading:
    """One reader of a consumer group: its methods return steps (generators of I/O operations). Only one call may run at
    a time, but `rewind_later` may be called at any time.

    Args:
        cluster: the connections to the brokers, which only this reader uses.
        member: the reader's membership in the consumer group.
        isolation: read_committed or read_uncommitted.
        start: "earliest" or "latest": where the reader begins in a partition without a committed offset.

    Attributes:
        cluster: as given.
        member: as given.
        leaving: the partitions that the group has taken away, and of which the program has not committed all records.
        is_closing: whether another thread or task closes the reader, so that a call that waits must end.
        is_closed: whether the reader has left the group and cannot be used any more.
    """

    def __init__(self, cluster: Cluster, member: GroupMember, isolation: str, start: str) -> None:
        self.cluster = cluster
        self.member = member
        self._isolation = isolation
        self._start = STARTS[start]
        self._uncommitted = UncommittedOffsets()
        self._paused = PausedPartitions()
        # Where partitions without a committed offset were read from first, if not from the start of their log.
        self._starts: dict[TopicPartition, int] = {}
        self._reader = RecordReader(cluster, {}, isolation)
        self._fetched = FetchedRecords()
        # What the last call handed out, and what was handed out before it of the same partitions; None for nothing.
        self._undelivered: tuple[list[ReadRecord], dict[TopicPartition, int | None]] | None = None
        self.leaving: set[TopicPartition] = set()
        self._leave_at = 0.0
        self._loss: DataLossError | None = None  # raised by the next call
        # How often the reader was to go back, and how often it has done so.
        self._backs_wanted = self._backs_done = 0
        self._writer: object | None = None  # the last transaction of this reader
        self._is_writing = False  # whether that transaction is open
        self.is_closed = self.is_closing = False

    # --- records ---

    def take_ready_record(self, now: float) -> ReadRecord | None:
        """Return the next fetched record; None if none is in memory, or if a request, such as a heartbeat, is due
        first. `now` is the time by the client's monotonic clock (`steps.Now`).
        """
        self._undelivered = None
        if (
            not self._fetched.ready
            or now >= self.member.next_due_s
            or self.leaving
            or self._backs_done != self._backs_wanted
        ):
            return None
        return self._take_records(1)[0]

    def read_records(self, count_max: int, wait_s: float | None, collect_s: float) -> Steps[list[ReadRecord]]:
        """Return records, and send heartbeats when they are due. If an error is raised, no record counts as returned.

        Args:
            count_max: how many records to return at most.
            wait_s: how long to wait for the first one; None for no limit.
            collect_s: how long to wait for further records after the first one.

        Returns:
            The records; none if `wait_s` has passed.

        Raises:
            RefusedError: the member or a fetch is refused for good.
            UnavailableError: the group's coordinator does not respond within the deadline.
            DataLossError: records were removed before they were read. The next call continues after them.
            DamageError: a batch is damaged.
        """
        self._undelivered = None
        began = yield NOW
        until: float | None = None
        while True:
            self._check_open()
            try:
                yield from self._follow_assignment()
                is_placed = yield from self._try_to_rewind()
                if is_placed and self._loss is not None and not self._fetched.ready:
                    loss, self._loss = self._loss, None
                    raise loss
                self._fetched.decode_batches(count_max)
                now = yield NOW
                # A rebalance may have taken away all records that were collected.
                until = None if not self._fetched.ready else now + collect_s if until is None else until
                limit = until if until is not None else None if wait_s is None else began + wait_s
                if len(self._fetched.ready) >= count_max or (limit is not None and now >= limit):
                    return self._take_records(count_max)
                left_s = WAIT_S if limit is None else min(WAIT_S, limit - now)
                left_s = min(left_s, max(WAIT_MIN_S, self.member.next_due_s - now))
                self._reader.paused = self._paused.select_paused(self._reader.positions)
                if not is_placed or not self._reader.active_partitions():
                    yield Pause(min(PAUSE_S, left_s))
                else:
                    yield from self._fetch_round(left_s)
            except StablelogError:
                if not self._fetched.ready or self._backs_done != self._backs_wanted:
                    raise
                return self._take_records(count_max)  # the error comes again with the next call

    def _take_records(self, count_max: int) -> list[ReadRecord]:
        taken = self._fetched.take_records(count_max)
        ends = {(record.topic, record.partition): record.offset + 1 for record in taken}
        self._undelivered = taken, self._uncommitted.offsets_of(ends)
        if self._fetched.is_empty:
            # Markers at the end count as read: no lag is left.
            ends = {target: self._reader.positions[target] for target in ends}
        self._uncommitted.hand_out(ends)
        return taken

    def undo_last_read(self) -> None:
        """Undo the last read, because an exception of a signal handler kept the program from getting its records."""
        if self._undelivered is not None:
            taken, before = self._undelivered
            self._uncommitted.undo_hand_out(before)
            self._fetched.put_back(taken)
            self._undelivered = None

    def _fetch_round(self, wait_s: float) -> Steps[None]:
        yield from self._resolve_starts()
        found = yield from self._reader.read_round(wait_s)
        self._fetched.add_batches(found.batches)
        for (topic, partition), position in found.moved.items():
            self._loss = DataLossError(
                f"{topic}-{partition} has no record at offset {position}, where group {self.member.group_id!r} was: "
                "retention or DeleteRecords removed it. The next call of this reader goes on at the first record that is "
                "left"
            )

    # --- the group ---

    def _follow_assignment(self) -> Steps[None]:
        """Send a heartbeat if one is due. Stop reading revoked partitions, and start the assigned ones."""
        if self.leaving:
            if self._uncommitted.offsets.keys() & self.leaving and (yield NOW) < self._leave_at:
                return
            self._uncommitted.give_up(self.leaving)
            self.leaving = set()
        change = yield from self.member.follow_assignment()
        self._stop_reading((*change.revoked, *change.lost))
        self._uncommitted.give_up(change.lost)
        if self._uncommitted.offsets.keys() & set(change.revoked):
            self.leaving, self._leave_at = set(change.revoked), (yield NOW) + GRACE_S
        for target, committed in change.assigned.items():
            self._reader.seek(target, self._start if committed is None else committed.offset)

    def _resolve_starts(self) -> Steps[None]:
        """Look up the end offset of new partitions that are read from their end, and store it: after a transaction that
        did not commit, the reader goes back to it.
        """
        ends = [target for target, position in self._reader.positions.items() if position == LATEST]
        if ends:
            found = yield from list_offsets(self.cluster, dict.fromkeys(ends, LATEST), self._isolation)
            for target in ends:
                self._starts[target] = found[target].offset
                self._reader.seek(target, found[target].offset)

    def _stop_reading(self, targets: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions, and drop their fetched records."""
        gone = set(targets)
        if not gone:
            return
        for target in gone:
            self._reader.remove_partition(target)
            self._starts.pop(target, None)
            self._uncommitted.seeks.pop(target, None)
        self._fetched.drop_records(gone)

    # --- going back ---

    def rewind_later(self) -> None:
        """Let the next call first go back to the committed offsets, because a transaction of the reader has failed."""
        self._backs_wanted += 1

    def _try_to_rewind(self) -> Steps[bool]:
        """Go back to the committed offsets if `rewind_later` was called. Return False if the coordinator cannot tell
        these offsets yet.
        """
        wanted = self._backs_wanted
        if wanted == self._backs_done:
            return True
        self._fetched.clear()
        targets = list(self._reader.positions)
        committed = (yield from self.member.committed_offsets_once(targets)) if targets else {}
        if committed is None:
            return False
        sought = self._uncommitted.rewind(targets, committed)
        for target in targets:
            at = committed.get(target)
            start = self._starts.get(target, self._start) if at is None else at.offset
            self._reader.seek(target, sought.get(target, start))
        self._loss = None
        self._backs_done = wanted
        return True

    def _rewind_now(self) -> Steps[None]:
        """Go back to the committed offsets if `rewind_later` was called. Retry until the coordinator can tell these
        offsets.

        Raises:
            RefusedError: the user may not read the group.
            UnavailableError: the committed offsets are not known within the deadline.
        """

        def attempt() -> Steps[None]:
            if not (yield from self._try_to_rewind()):
                yield from self._follow_assignment()  # a member that was replaced joins again
                raise RetriableError("the committed offsets of the group are not known yet")

        if self._backs_done != self._backs_wanted:
            yield from self.cluster.retrying(f"going back in group {self.member.group_id!r}", attempt)

    # --- seeks and pauses ---

    def seek(self, target: TopicPartition, offset: int) -> Steps[None]:
        """Continue reading from an offset of an assigned partition. The next commit commits this offset or a later one.

        Raises:
            OffsetOutOfRangeError: the offset is not in the log.
            RefusedError: the user may not read the partition.
            UnavailableError: no response within the deadline.
            UsageError: the partition is not assigned to this reader, a transaction of this reader is open, or the reader is
                closed.
        """
        self.check_free()
        yield from self._rewind_now()
        (wanted,) = self._seekable_partitions(target[0], target[1])
        yield from check_offsets(self.cluster, {target: offset}, "read_uncommitted")
        self._move_to_offsets({wanted: offset})

    def seek_to_spec(self, spec: int, topic: str | None, partition: int | None) -> Steps[None]:
        """Continue reading from the start, the end or a time in assigned partitions. Raises the errors of `seek`.

        Args:
            spec: EARLIEST, LATEST, or a timestamp in ms: the first record at or after it, or the end if there is none.
            topic: only the partitions of this topic; None for all.
            partition: only this partition of the topic; None for all.
        """
        self.check_free()
        yield from self._rewind_now()
        targets = self._seekable_partitions(topic, partition)
        # The ends first: a record that is written meanwhile is read.
        ends = yield from list_offsets(self.cluster, dict.fromkeys(targets, LATEST), self._isolation)
        found = yield from list_offsets(self.cluster, dict.fromkeys(targets, spec), self._isolation)
        self._move_to_offsets(
            {one: found[one].offset if found[one].offset >= 0 else ends[one].offset for one in targets}
        )

    def _seekable_partitions(self, topic: str | None, partition: int | None) -> list[TopicPartition]:
        """Return the assigned partitions that a seek moves: those of a topic, or of all topics if `topic` is None; or
        only one partition of the topic.
        """
        targets = [
            one for one in self._reader.positions if topic in (None, one[0]) and partition in (None, one[1])
        ]
        if not targets:
            what = "no partition" if topic is None else f"no partition of {topic}"
            what = what if partition is None else f"not {topic}-{partition}"
            raise UsageError(
                f"the reader did not move: the group has assigned {what} to this reader now. Read records first, so "
                "that the reader joins the group, and seek in a partition of its `assignment`"
            )
        return sorted(targets)

    def _move_to_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._fetched.drop_records(offsets)
        self._undelivered = None
        for target, offset in offsets.items():
            self._reader.seek(target, offset)
            self._uncommitted.seek(target, offset)

    def seek_tokens(self) -> dict[TopicPartition, str]:
        """Return a token for each partition that a seek has moved: the metadata to commit with its next offset. When
        the group's committed offset has this metadata, the seek is committed.
        """
        return {target: sought.token for target, sought in self._uncommitted.seeks.items()}

    def pause(self, topic: str, partition: int | None) -> None:
        """Pause a partition, or a whole topic if `partition` is None: return no records of it until `resume`."""
        self._paused.pause(topic, partition)
        paused = self._paused.select_paused(self._reader.positions)
        for target in paused:
            first_offset = self._fetched.first_offset(target)
            if first_offset is not None:
                self._reader.seek(target, first_offset)
        self._fetched.drop_records(paused)

    def resume(self, topic: str, partition: int | None) -> None:
        """End the pause of a partition, or of a topic: return its records again.

        Raises:
            UsageError: the whole topic was paused, so that one partition of it cannot be resumed.
        """
        self._paused.resume(topic, partition)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that the group has assigned to this reader."""
        return frozenset(self._reader.positions)

    # --- commits ---

    def commit(self) -> Steps[None]:
        """Commit, for each partition, the offset after the last record that the program has got.

        Raises:
            RefusedError: the group has given some partitions to another member, which reads their records again. The
                offsets of the other partitions are committed.
            UnavailableError: the coordinator does not respond within the deadline. Repeat the call.
            UsageError: a transaction of this reader is open, or the reader is closed.
        """
        self._check_open()
        if self._is_writing:
            raise UsageError("a transaction of this reader is open and commits the offsets: end it first")
        yield from self.cluster.run_until_deadline(self._rewind_to_seeks())
        offsets = dict(self._uncommitted.offsets) if self._backs_done == self._backs_wanted else {}
        try:
            yield from self.cluster.run_until_deadline(
                self.member.commit_offsets(offsets, self.seek_tokens())
            )
        except RefusedError as refused:
            if refused.code not in NOT_A_MEMBER:
                raise
            self._uncommitted.give_up(offsets)
        self._uncommitted.mark_committed(offsets)
        gone = self._uncommitted.take_given_up()
        if gone:
            raise RefusedError(
                ErrorCode.illegal_generation,
                f"the offsets of {_names(gone)} are not committed: {self._taken_away_message()}. That member reads the records "
                "after the last commit again",
            )

    def _rewind_to_seeks(self) -> Steps[None]:
        """Before a commit, move partitions back to the offsets of seeks that are not committed, so that it commits
        these offsets.
        """
        sought = list(self._uncommitted.seeks)
        if sought:
            yield from self._rewind_now()
            self._uncommitted.given_up.update(one for one in sought if one not in self._reader.positions)

    def _taken_away_message(self) -> str:
        return (
            f"group {self.member.group_id!r} has given these partitions to another member, because of a rebalance or because "
            "this reader was not called within the session timeout"
        )

    # --- transactions ---

    def begin_transaction(self, writer: object) -> None:
        """Record that a transaction which commits this reader's offsets is open. Call `check_free` first. `writer` is
        any object that stands for the transaction.
        """
        self._writer, self._is_writing = writer, True

    def check_free(self) -> None:
        """Raise UsageError if the reader is closed, or has an open transaction."""
        self._check_open()
        if self._is_writing:
            raise UsageError("another transaction of this reader is open: end that transaction first")

    def end_transaction(self, writer: object, committed: Mapping[TopicPartition, int] | None) -> None:
        """Record the end of the transaction `writer`. `committed` has the offsets that it has committed; None if it has
        failed or its outcome is unknown. With None, the reader goes back to the committed offsets, unless it has begun
        another transaction since.
        """
        if committed is not None:
            self._uncommitted.mark_committed(committed)
        if writer is self._writer:
            self._is_writing = False
            if committed is None:
                self.rewind_later()

    def offsets_to_commit(self, writer: object) -> dict[TopicPartition, int]:
        """Return the offsets that a transaction of this reader has to commit: in each partition, the offset after the
        last record that the program has got. `writer` is the object that was passed to `begin_transaction`.

        Raises:
            TransactionAbortedError: the program or another member may get the same records again, because the reader is
                closed or goes back to the committed offsets, or the group has given partitions to another member.
        """
        if self.is_closed or writer is not self._writer or self._backs_wanted != self._backs_done:
            raise aborted_error("the reader goes back to the committed offsets, or is closed")
        given_up = sorted(self._uncommitted.given_up)
        if given_up:
            raise aborted_error(f"{self._taken_away_message()}: {_names(given_up)}")
        return dict(self._uncommitted.offsets)

    # --- the end ---

    def close(self) -> Steps[None]:
        """Close the reader: leave the group. Other members read the records again whose offsets are not committed.
        Errors are ignored.
        """
        if self.is_closed:
            return
        self.is_closed = True
        with suppress(StablelogError):
            yield from self.cluster.run_until_deadline(self.member.leave_group())

    def _check_open(self) -> None:
        if self.is_closed or self.is_closing:
            raise UsageError("this reader is closed: subscribe again")


def _names(targets: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in targets)
