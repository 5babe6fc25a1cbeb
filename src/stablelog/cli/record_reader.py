"""The reader of `stablelog consume`: it prints the records of partitions, and commits the offsets of a group."""

import contextlib
import sys
import time
from collections.abc import Iterable

from stablelog.batch.walk import walk_fields
from stablelog.cli.disk_watch import fail_if_full, print_to_stderr
from stablelog.cli.exit_codes import NoBrokerError
from stablelog.cli.output import fail, print_bytes
from stablelog.cli.partition_watch import PartitionWatch
from stablelog.cli.record_format import PrintedRecord, Render, plain_lines, render_plain
from stablelog.client.blocking.cluster import BlockingCluster
from stablelog.client.core.membership import NOT_A_MEMBER, Change, GroupMember
from stablelog.client.core.record_reader import ReadBatch, RecordReader, Round, undecodable
from stablelog.client.responses import RetriableError
from stablelog.errors import DamageError, FencedError, RefusedError, StablelogError, UnavailableError
from stablelog.types import TopicPartition

POLL_S = 0.5
TIMEOUT_S = 10.0  # how long a broker that was reached may be silent
# A reader without --follow fails when its remaining partitions could not be read for this time.
UNREADABLE_S = 30.0
# A group's offsets are committed after this number of records, or this time.
COMMIT_COUNT = 1000
COMMIT_S = 1.0


class ChosenPartitions:
    """The source of the records to print if there is no consumer group: the partitions that the user has chosen.

    Args:
        cluster: the brokers.
        reader: reads the partitions.

    Attributes:
        group: the consumer group; None if there is none.
    """

    def __init__(self, cluster: BlockingCluster, reader: RecordReader) -> None:
        self.group: str | None = None
        self._cluster = cluster
        self._reader = reader

    def read_round(self, wait_s: float) -> Round:
        """Fetch the next records of all partitions once, and return them. `wait_s` is how many seconds to wait if there
        are none.
        """
        return self._cluster.run(self._reader.read_round(wait_s))

    def follow_assignment(self) -> Change:
        """Return no change, because the partitions are fixed."""
        return Change()

    def begin_reading(self, change: Change) -> None:
        """Do nothing: a group may add partitions here, and the partitions of the user are fixed."""

    def has_no_partition(self) -> bool:
        """Return False: the chosen partitions are fixed, so there is always one to read."""
        return False

    def commit_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        """Do nothing, because there is no group."""

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset to read of each partition."""
        return self._reader.positions


class GroupPartitions(ChosenPartitions):
    """The source of the records to print if the command is a member of a consumer group: the partitions that the group
    assigns to it.

    Args:
        cluster: the brokers.
        reader: reads the assigned partitions; at first it has no partitions.
        member: the command's membership in the group.
        start: the position of partitions without a committed offset: EARLIEST or LATEST.
    """

    def __init__(
        self, cluster: BlockingCluster, reader: RecordReader, member: GroupMember, start: int
    ) -> None:
        super().__init__(cluster, reader)
        self.group = member.group_id
        self._member = member
        self._start = start

    def follow_assignment(self) -> Change:
        """Send a heartbeat if one is due. Return how the assigned partitions have changed."""
        return self._cluster.run(self._member.follow_assignment())

    def begin_reading(self, change: Change) -> None:
        """Start reading newly assigned partitions at their committed offsets."""
        for target in (*change.revoked, *change.lost):
            self._reader.remove_partition(target)
        for target, committed in change.assigned.items():
            self._reader.seek(target, self._start if committed is None else committed.offset)

    def has_no_partition(self) -> bool:
        """Return whether this member has no partition to read: the group is stable, so no rebalance is under way, and
        has assigned none to it.
        """
        from stablelog.client.core.admin.groups import describe_group

        if self._member.owned or self._member.epoch == 0:
            return False
        return self._cluster.run(describe_group(self._cluster.core, self._member.group_id)).state == "Stable"

    def commit_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        """Commit offsets for the group."""
        self._cluster.run(self._member.commit_offsets(offsets))

    def leave_group(self) -> None:
        """Leave the group."""
        self._cluster.run(self._member.leave_group())


class RecordPrinter:
    """Prints the records of a source, and commits the offsets of its group.

    Args:
        source: gives the records.
        watch: reports on stderr which partitions cannot be read. The printer tells it about each record and each end
            that it reaches.
        render: returns the bytes to print for a record.
        follow: whether to wait for new records at the end.

    Attributes:
        is_stopped: set it to True to stop the reader after the record that it is printing.
    """

    def __init__(
        self, source: ChosenPartitions, watch: PartitionWatch, render: Render, *, follow: bool
    ) -> None:
        self._source = source
        self._watch = watch
        self._render = render
        self._follow = follow
        self._ended: set[TopicPartition] = set()  # the partitions that the reader has read to their end
        self._count = 0
        # The offset to commit for each assigned partition of which a record was printed.
        self._offsets: dict[TopicPartition, int] = {}
        self._uncommitted_count = 0  # how many records no commit has
        self._committed_s = time.monotonic()
        self.is_stopped = False

    def print_records(self, count_max: int | None) -> None:
        """Print records until the end of the topic, until `count_max` are printed or until the reader is stopped, and
        commit the group's offsets.

        Raises:
            UnavailableError: a partition cannot be read to its end, or the broker does not respond.
            DamageError: a batch is damaged.
        """
        heard_s = time.monotonic()
        while not self.is_stopped and self._count != count_max:
            self._follow_group()
            positions = self._source.positions()
            if not self._follow and positions and self._ended >= positions.keys():
                break
            if not positions:
                self._wait_for_partitions()
                continue
            found = self._source.read_round(POLL_S)
            self._print_round(found, count_max)
            if len(found.failures) < len(positions):
                heard_s = time.monotonic()
            if found.batches:
                continue
            sys.stdout.flush()
            if self._follow:
                continue
            if (why := self._watch.reason_to_end(UNREADABLE_S)) is not None:
                self._commit_all()
                fail(
                    f"{self._watch.topic} cannot be read to its end: {why}. With --follow, consume waits until it can"
                )
            if time.monotonic() > heard_s + TIMEOUT_S and not self._watch.is_answered:
                raise NoBrokerError(
                    f"topic {self._watch.topic} cannot be read any further: no broker responds at "
                    f"{self._watch.bootstrap}"
                )
        self._commit_all()

    def _wait_for_partitions(self) -> None:
        """Wait until the group assigns a partition to this member. Without --follow, fail if other members have all
        partitions.
        """
        if not self._follow and self._source.has_no_partition():
            fail(
                f"other members of group {self._source.group} read all partitions; with --follow this member waits for a "
                "partition"
            )
        time.sleep(POLL_S / 5)

    def _follow_group(self) -> None:
        try:
            change = self._source.follow_assignment()
        except UnavailableError as failure:
            # A broker that answers, but takes no members now, is waited for: the watch says why.
            if not self._follow and not isinstance(failure.__cause__, RefusedError | RetriableError):
                raise NoBrokerError(str(failure)) from failure
            return
        if change.revoked:
            self.release_partitions(change.revoked)
        if change.lost:
            self.release_partitions(change.lost, is_lost=True)
        self._source.begin_reading(change)
        if change.revoked or change.lost or change.assigned:
            positions = {index: at for (_, index), at in self._source.positions().items()}
            self._watch.set_partitions(positions, {index: max(at, -1) for index, at in positions.items()})

    def release_partitions(self, partitions: Iterable[TopicPartition], *, is_lost: bool = False) -> None:
        """Stop reading partitions that the group assigns to another member, and commit their offsets before. If
        `is_lost`, the member has lost them: nothing is committed, because another member may read them already.
        """
        left = set(partitions)
        self._ended -= left
        if not is_lost:
            # If the commit fails, the next member reads the last records again.
            with contextlib.suppress(StablelogError):
                self._commit_now(left)
        for target in left:
            self._offsets.pop(target, None)

    def _print_round(self, found: Round, count_max: int | None) -> None:
        """Print the records that one round of fetches has returned, until `count_max` records of all rounds are printed
        (None: without a limit). Record which partitions are at their end.
        """
        for target, position in found.moved.items():
            print_to_stderr(
                f"{target[0]}-{target[1]} has no offset {position}: the reader goes on at the start of the partition"
            )
            self._ended.discard(target)
        for batch in found.batches:
            if self.is_stopped or self._count == count_max:
                return
            self._print_batch(batch, None if count_max is None else count_max - self._count)
            self._commit_if_due()
        if self._count == count_max:
            return
        for target in found.at_end:
            self._ended.add(target)
            self._watch.mark_at_end(target[1])
            position = self._source.positions().get(target, -1)
            if self._offsets.get(target, position) < position:
                # Commit the end, so that no lag is left if the partition ends with the marker of a transaction.
                self._offsets[target] = position
                self._uncommitted_count += 1
        self._commit_if_due()

    def _print_batch(self, batch: ReadBatch, count_max: int | None) -> None:
        """Print the records of a batch, at most `count_max` of them (None: all).

        Raises:
            DamageError: the records cannot be decoded. None of them is printed.
        """
        try:
            self._print_decoded(batch, count_max)
        except DamageError as damage:
            raise undecodable(batch.target, batch.header, damage) from damage

    def _print_decoded(self, batch: ReadBatch, count_max: int | None) -> None:
        header, target = batch.header, batch.target
        is_whole = batch.first_offset <= header.base_offset and (
            count_max is None or header.record_count <= count_max
        )
        if self._render is render_plain and is_whole:
            print_bytes(plain_lines(batch.records, header.record_count))
            self._mark_printed(target, header.next_offset, header.record_count)
            return
        printed: list[bytes] = []
        next_offset = batch.first_offset
        topic, partition = target
        for timestamp_delta, offset_delta, key, value, at in walk_fields(batch.records, header.record_count):
            offset = header.base_offset + offset_delta
            if offset < batch.first_offset:
                continue
            if len(printed) == count_max:
                break
            time_ms = (
                header.max_timestamp if header.is_log_append_time else header.base_timestamp + timestamp_delta
            )
            record = PrintedRecord(topic, partition, offset, time_ms, key, value, batch.records, at)
            printed.append(self._render(record))
            next_offset = offset + 1
        else:
            next_offset = header.next_offset
        print_bytes(b"".join(printed))
        self._mark_printed(target, next_offset, len(printed))

    def _mark_printed(self, target: TopicPartition, next_offset: int, count: int) -> None:
        self._ended.discard(target)
        self._watch.mark_received(target[1], next_offset)
        self._count += count
        self._offsets[target] = next_offset
        self._uncommitted_count += count

    def _commit_now(self, targets: Iterable[TopicPartition]) -> None:
        """Write the printed records out, and then commit the offsets of these partitions.

        Raises:
            StablelogError: the commit has failed.
        """
        sys.stdout.flush()
        offsets = {target: self._offsets[target] for target in targets if target in self._offsets}
        if self._source.group is not None and offsets:
            self._source.commit_offsets(offsets)

    def _commit_if_due(self) -> None:
        """Commit the group's offsets if COMMIT_COUNT records were printed since the last commit, or if COMMIT_S seconds
        have passed and at least one record was printed.
        """
        now_s = time.monotonic()
        if self._source.group is not None and (
            self._uncommitted_count >= COMMIT_COUNT
            or (self._uncommitted_count and now_s >= self._committed_s + COMMIT_S)
        ):
            self._committed_s, self._uncommitted_count = now_s, 0
            # The member notices with its next heartbeat that it is none any more; a later commit may succeed.
            with contextlib.suppress(StablelogError):
                self._commit_now(self._offsets)

    def _commit_all(self) -> None:
        """Write the printed records out, and then commit the group's offsets.

        Raises:
            UnavailableError: the offsets were not committed; the message says why.
        """
        try:
            self._commit_now(self._offsets)
        except StablelogError as failure:
            what = f"the offsets of group {self._source.group} were not committed, so it reads the last records again"
            fail_if_full(self._watch.bootstrap, what)
            if isinstance(failure, RefusedError) and not isinstance(failure, FencedError):
                if failure.code in NOT_A_MEMBER:
                    fail(f"{what}: the group has given the partitions to other members")
                fail(f"{what}: {failure}")
            raise
