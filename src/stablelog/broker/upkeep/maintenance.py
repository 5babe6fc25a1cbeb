"""Periodic work of the broker: each kind of work runs in a task of its own.

| task | what it does | how often |
|---|---|---|
| transaction timeouts | aborts open transactions whose time is up | `transaction.abort.timed.out.transaction.cleanup.interval.ms` |
| expiry of ids | forgets transactional ids and keys of joint commits | the same |
| commit-log trimming | deletes from the coordinators' logs what is no longer needed | the same |
| retention | deletes old segments | `log.retention.check.interval.ms` |
| expiry of producers | forgets producers that have not written to a partition for long | the same |
| removal of deleted files | removes files of deleted segments and topics | REMOVAL_S |
| checkpoints | writes Kafka's checkpoint of log start offsets | CHECKPOINT_S |
| recovery points | records up to where each partition is synced | RECOVERY_POINT_S |
| disk reserve | writes records that wait for disk space; while the disk is full, frees space and writes the reserve file to its whole size again | RESERVE_S |

A joint commit commits the transactions of several producers together, and its key names it for the client.

An error in one partition is logged, and does not stop the work on the others. After an expected error the next pass
tries again; an unexpected error fails the partition. An unexpected error of a coordinator stops the broker. Offsets of
consumers expire by the group coordinator's own timer (`broker.groups`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from stablelog.broker.durability.journal import Journal
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.loop.threads import in_thread
from stablelog.broker.loop.turns import AT_ONCE_MAX, in_turns
from stablelog.broker.runtime import Runtime
from stablelog.broker.topic_names import OFFSETS_PARTITION, is_internal
from stablelog.broker.topics.opening import Opening
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.transactions.partition_repair import PartitionRepair
from stablelog.broker.transactions.transaction_groups import TransactionGroups
from stablelog.coordinators.live_state import LiveState
from stablelog.data_directory.checkpoints import OffsetCheckpoint
from stablelog.errors import StablelogError
from stablelog.log.partition import Partition
from stablelog.log.retention import close_all
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)

REMOVAL_S = 5.0
CHECKPOINT_S = 10.0
# The number of seconds between two writes of the recovery points: after a crash, the recorded offsets are at most this
# old.
RECOVERY_POINT_S = 1.0
RESERVE_S = 1.0
RETENTION_WHILE_FULL_S = 10.0
STOP_TRIM_S = 3.0  # The time that the trim of the coordinators' logs may take when the broker stops.


class Maintenance:
    """The periodic work of one broker.

    Args:
        before_trim: called before a coordinator's log is trimmed (its old part is deleted). It copies the log to the
            object store, if the broker has one.
    """

    def __init__(
        self,
        topic_files: TopicFiles,
        runtime: Runtime,
        *,
        transactions: TransactionGroups,
        partition_repair: PartitionRepair,
        groups: BrokerGroups,
        opening: Opening,
        before_trim: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = runtime.config
        self._topic_files = topic_files
        self._partitions = topic_files.partitions
        self._transactions = transactions
        self._partition_repair = partition_repair
        self._groups = groups
        self._flush = runtime.flush
        self._opening = opening
        self._reserve = runtime.reserve
        self._tasks = runtime.tasks
        self._before_trim = before_trim
        self._clock = runtime.clock
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="removal")
        # Start time, in seconds, of the last pass of retention that ran because the disk was full.
        self._retention_s = -RETENTION_WHILE_FULL_S
        # By the name of a pass: the errors of the last pass, by partition.
        self._failures: dict[str, dict[TopicPartition, str]] = {}

    def start(self) -> None:
        """Start all tasks."""
        often_s = self._config["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000
        seldom_s = self._config["log.retention.check.interval.ms"] / 1000
        self._tasks.every("transaction timeouts", often_s, self.abort_overdue)
        self._tasks.every("expiry of ids", often_s, self.forget_expired)
        self._tasks.every("commit-log trimming", often_s, self.trim_logs)
        self._tasks.every("retention", seldom_s, self.apply_retention)
        self._tasks.every("expiry of producers", seldom_s, self.expire_producers)
        self._tasks.every("removal of deleted files", REMOVAL_S, self.remove_deleted)
        for name, interval_s, checkpoint in (
            ("checkpoints", CHECKPOINT_S, self._topic_files.checkpoints.log_starts),
            ("recovery points", RECOVERY_POINT_S, self._topic_files.checkpoints.recovery_points),
        ):
            self._tasks.every(name, interval_s, partial(self.write_checkpoint, checkpoint))
        self._tasks.every("disk reserve", RESERVE_S, self.tend_reserve)

    def close(self) -> None:
        """Shut down the thread that removes files."""
        self._threads.shutdown(wait=True)

    # -- coordinators ------------------------------------------------------------------------------------------

    async def abort_overdue(self) -> None:
        """Abort the open transactions that exceed their timeout, in every transaction group. (A group is the topics
        whose commits have one order, and has a coordinator of its own.)
        """
        now_ms = self._clock.now_ms()
        for group in self._transactions:
            # The abort markers are written in slices, and requests are served while a slice waits for the disk: writing
            # all markers at once would block the event loop.
            while (decision := group.coordinator.abort_overdue(now_ms)).answer:
                await group.carry_out(decision)
            group.apply(decision)

    async def forget_expired(self) -> None:
        """Forget expired transactional ids and expired keys of joint commits, of every transaction group, the topics
        whose commits have one order. (A joint commit commits the transactions of several producers together; its key
        identifies it when a client retries it.)
        """
        # Read the clock only once: otherwise ids that expire during this pass could keep it from ending.
        now_ms = self._clock.now_ms()
        for group in self._transactions:
            may_be_more = True
            while may_be_more:
                may_be_more = group.apply(group.coordinator.forget_expired(now_ms))
                await asyncio.sleep(0)  # Let requests be served before the next slice of ids.

    async def trim_at_stop(self) -> None:
        """Trim the logs of all coordinators (write what they still need to the end of the log, and delete the log
        before it), so that the next start reads little more than what they need.

        The caller stops the broker afterwards. A log that cannot be trimmed within a short time is left as it is.
        """
        with contextlib.suppress(TimeoutError, StablelogError):
            async with asyncio.timeout(STOP_TRIM_S):
                await self.trim_logs(lambda journal: journal.demand_checkpoint())

    async def trim_logs(self, chooses: Callable[[Journal], bool] = lambda journal: journal.has_grown) -> None:
        """Trim the logs of the coordinators: delete what a coordinator no longer needs. By default the logs that have
        grown enough are trimmed; otherwise those for which `chooses` returns True.
        """
        for group in self._transactions:
            if chooses(group.journal):
                await self.trim(group.journal, group.coordinator.table.live_state)
        if chooses(self._groups.journal):
            await self.trim(self._groups.journal, self._groups.coordinator.table.live_state)

    async def trim(self, journal: Journal, live: Callable[[], LiveState | None]) -> None:
        """If a coordinator's log has grown, write a checkpoint of the coordinator's state and delete the log before it.

        The log is trimmed only once all partitions are durable: until then a crash may lose a marker in a partition,
        and recovery then needs the decision in the log to write the marker again. Nothing is trimmed while a partition
        has failed or lacks markers of earlier decisions, because the checkpoint does not contain these decisions any
        more.

        The checkpoint of the offsets log repeats the records of open transactions, at new offsets. After a start, the
        first offset of an open transaction shows whether a decision in the commit log is about this transaction or
        about an earlier one of the same producer (`MarkerOrder.decides` compares them). Suppose that the commit or
        abort of a transaction was decided before its records were repeated. If the trim left only the repeated records,
        they would seem to belong to a later transaction. So the log is trimmed only when the markers of all such
        decisions are durable.

        Args:
            journal: the log of the coordinator.
            live: returns the present state of the coordinator as records; None if it cannot be written now.
        """
        if not journal.has_grown or await self._lacks_markers():
            return
        before_offset = await journal.checkpoint_if_grown(live)
        if before_offset is None:
            return
        await journal.wait_until_durable()
        if journal is self._groups.journal and not await self._transactions.wait_until_marked(
            OFFSETS_PARTITION
        ):
            return
        waits = [
            self._flush.durable_future(partition, partition.end_offset)
            async for partition in in_turns(self._partitions, at_once=AT_ONCE_MAX)
        ]
        for wait in waits:
            if wait is not None:
                await wait
        await self._before_trim()
        # A partition may have failed while the checkpoint was written, and may have lost markers. The checkpoint does
        # not contain the decisions of these markers, so do not delete the older records then.
        if not await self._lacks_markers():
            journal.trim(before_offset)

    async def _lacks_markers(self) -> bool:
        """Return whether a partition may lack markers of decided transactions. The broker can write them again only as
        long as the coordinator's log has the decisions, so the log must not be trimmed then.

        A partition that fails after this check does no harm: the markers that are durable in it stay durable.
        """
        if not self._partition_repair.are_all_marked:
            return True
        partitions = in_turns(self._partitions, at_once=AT_ONCE_MAX)
        return bool([partition async for partition in partitions if partition.failure is not None])

    # -- partitions --------------------------------------------------------------------------------------------

    async def apply_retention(self) -> None:
        """Apply the retention settings of each partition: delete the old segments that they no longer keep, because of
        their age or of the size of the log.
        """

        async def apply(partition: Partition) -> None:
            prune = partial(
                partition.deletion.apply_retention, self._clock.now_ms(), wall_ms=self._clock.wall_ms()
            )
            deleted = self._reserve.attempt(prune, frees=True)
            if partition.has_pending_writes:
                # The call has sealed a segment. It can be deleted after a sync, also if nothing is appended any more.
                self._flush.mark_dirty(partition)
            if deleted:
                log.info("deleted %d segments of %s-%d", deleted, partition.topic, partition.index)

        await self._each_partition("retention", apply, internal=False)

    async def expire_producers(self) -> None:
        """Expire producers: remove those that have not written for long from the producer state (last sequence numbers
        and epochs) of every partition.
        """

        async def expire(partition: Partition) -> None:
            for _ in partition.deletion.expire_producers(self._clock.now_ms()):
                await asyncio.sleep(0)

        await self._each_partition("expiry of producers", expire, internal=False)

    async def remove_deleted(self) -> None:
        """Remove the files of deleted topics, and of segments whose delete delay is over.

        A thread waits for the disk, which takes tens of milliseconds for each GiB that it frees.
        """

        async def remove(partition: Partition) -> None:
            while self._partitions.is_in_use(partition) and (
                removed := partition.deletion.remove_deleted(self._clock.now_ms())
            ):
                await in_thread(self._threads, close_all, removed)

        await self._each_partition("removal of deleted files", remove)
        await in_thread(self._threads, self._topic_files.leftovers.remove_deleted)

    async def _each_partition(
        self, name: str, work: Callable[[Partition], Awaitable[None]], *, internal: bool = True
    ) -> None:
        """Apply `work` to every open partition that has not failed. Partitions that are deleted meanwhile are skipped.

        An error in one partition does not stop the work on the others. It is logged once, until the work succeeds or
        fails for another reason.

        Args:
            name: the name of the work in log messages.
            work: the work on one partition.
            internal: whether the work includes the partitions of internal topics, such as the coordinators' logs.
        """
        known, failed = self._failures.get(name, {}), dict[TopicPartition, str]()
        for partition in self._partitions:
            if partition.failure is not None or (not internal and is_internal(partition.topic)):
                continue
            try:
                await work(partition)
            except StablelogError as error:
                at = partition.topic, partition.index
                failed[at] = str(error)
                if known.get(at) != failed[at]:
                    log.error("%s of %s-%d failed; the broker tries again: %s", name, *at, error)
            except Exception as error:  # noqa: BLE001 - the exception fails this partition only
                self._tasks.report_unexpected(name, self._tasks.partition_scope(partition), error)
            await asyncio.sleep(0)  # Let requests be served between two partitions.
        self._failures[name] = failed

    @staticmethod
    async def write_checkpoint(checkpoint: OffsetCheckpoint) -> None:
        """Write a checkpoint file of the data directory (it contains one offset of each partition), if one of these
        offsets has moved since the last write.
        """
        # Collect the offsets in a thread: those of 10,000 partitions would take the event loop too long.
        checkpoint.write(await in_thread(None, checkpoint.changed_offsets))

    # -- the full disk -----------------------------------------------------------------------------------------

    async def tend_reserve(self) -> None:
        """Write the records of coordinators that wait for disk space. While the disk is full, free space, and write the
        disk reserve (a file whose space the broker has used meanwhile) to its whole size again.
        """
        self.retry()
        if self._reserve.is_full:
            now_s = asyncio.get_running_loop().time()
            if now_s - self._retention_s >= RETENTION_WHILE_FULL_S:
                self._retention_s = now_s
                await self.apply_retention()
            # The task that removes deleted files meets and logs the same error.
            with contextlib.suppress(StablelogError):
                await self.remove_deleted()
            await self.restore_reserve()
        await self._opening.reopen_failed()

    async def restore_reserve(self) -> bool:
        """Restore the reserve file (the file whose space the broker frees when the disk is full), as far as there is
        space. Then write the records of coordinators that wait for disk space, before clients may write.

        Returns:
            Whether clients' writes are accepted now. If there is no space for the waiting records, the disk counts as
            full again.
        """
        if await self._reserve.restore():
            self.retry()
        return not self._reserve.is_full

    def retry(self) -> None:
        """Write coordinator records and markers that wait for disk space, as far as there is space."""
        self._groups.journal.retry()
        self._partition_repair.retry()
        self._flush.retry()
