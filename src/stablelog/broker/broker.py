"""The broker: the open partitions and the coordinators of one data directory, its start and its stop.

The broker locks the data directory and connects each coordinator with its log. The broker has no socket: the server, or
a test, calls the handlers of `broker.apis` with the broker and a request.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from stablelog.broker.directory.dynamic_settings import DynamicSettings
from stablelog.broker.directory.locked_directory import LockedDirectory
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.durability.journal import Journal
from stablelog.broker.fetch.long_polls import LongPolls
from stablelog.broker.fetch.sessions import FetchSessions
from stablelog.broker.groups import BrokerGroups
from stablelog.broker.loop.tasks import Arguments, Result, Tasks
from stablelog.broker.loop.threads import in_thread_to_its_end
from stablelog.broker.monitoring.damage_log import DamageLog
from stablelog.broker.monitoring.metrics import Metrics, Sample
from stablelog.broker.runtime import Runtime
from stablelog.broker.security.client_quotas import BrokerQuotas
from stablelog.broker.security.opening import open_acls, open_logins
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.tiering.tiering import Tiering
from stablelog.broker.topic_changes import TopicChanges
from stablelog.broker.topics.coordinator_topics import CoordinatorTopics
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.opening import Opening
from stablelog.broker.topics.refused_appends import RefusedAppends
from stablelog.broker.topics.topic_files import TopicFiles
from stablelog.broker.topics.topic_list import TopicList
from stablelog.broker.transactions.last_commits import LastCommits
from stablelog.broker.transactions.partition_repair import PartitionRepair
from stablelog.broker.transactions.transaction_groups import TransactionGroups
from stablelog.broker.upkeep.clock_watch import ClockWatch
from stablelog.broker.upkeep.compaction import Compactor
from stablelog.broker.upkeep.maintenance import Maintenance
from stablelog.broker.upkeep.proofs import Proofs
from stablelog.broker.upkeep.scrub import Scrub
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.coordinators.log_names import CONSUMER_OFFSETS_TOPIC, commit_log_of, is_coordinator_log
from stablelog.data_directory.registered_file import USERS, has_registered_file
from stablelog.data_directory.settings_file import GroupConfigs
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk
from stablelog.errors import DiskError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.wire.extension.transaction_groups import group_in_words

if TYPE_CHECKING:
    from stablelog.broker.security.user_store import BrokerUsers

log = logging.getLogger(__name__)

READ_THREADS = 4
MESSAGE_THREADS = 2


class Broker:
    """One broker on one data directory.

    The constructor locks and reads the directory, and rebuilds the coordinators from their logs (`__consumer_offsets`,
    `__transaction_state`). It must run inside an event loop. `start` begins recovery and background work.

    Args:
        config: the settings.
        directory: the data directory; the broker creates it if it does not exist.
        disk: the disk of the data directory.
        clock: broker time, which never goes back, and the wall clock.
        on_failure: called once, with the reason, if the broker must be stopped: the disk failed, or something failed
            unexpectedly that does not belong to a single connection or partition.
        make_flush: makes the object that writes appended batches to disk; called with the arguments of `GroupFlush`.
        is_restoring: whether the caller is a restore from the object store, which has created and locked the directory
            itself.

    Attributes:
        acls: the ACLs; None if the broker has no authorizer, so that every client may do everything.
        logins: verifies the logins of clients; None if no listener has SASL.

    Raises:
        UnavailableError: another broker uses the directory.
        UnknownFormatError: a later release has written to the directory; nothing was changed.
        DamageError: the list of topics, a coordinator's log or another file without which the broker cannot start is
            damaged.
        UsageError: the directory belongs to a broker with another node id.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        *,
        disk: Disk,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
        make_flush: Callable[..., GroupFlush] = GroupFlush,
        is_restoring: bool = False,
    ) -> None:
        self.config, self.disk, self.clock = config, disk, clock
        reserve = self.reserve = DiskReserve(disk, directory, config["stablelog.disk.reserve.bytes"])
        self.directory = LockedDirectory(disk, directory, config, reserve, clock, is_restoring=is_restoring)
        tasks = self.tasks = Tasks(on_failure, self.fail_partition)
        self.long_polls = LongPolls(tasks)
        self.flush = make_flush(to_disk=config["stablelog.flush"] == "fsync", reserve=reserve, tasks=tasks)
        self.runtime = Runtime(
            config, disk, directory, clock=clock, reserve=reserve, tasks=tasks, flush=self.flush
        )
        self.topics = TopicList(config)
        self.partitions = OpenPartitions(self.topics, config, self.fail_partition)
        self.topic_files = TopicFiles(self.topics, self.partitions, self.runtime)
        self.refused_appends = RefusedAppends(self.partitions, self.runtime)
        self._offline: set[Partition] = set()  # Partitions that have failed since the broker's start.
        self._is_started = False
        self._opening = Opening(
            self.topic_files, self.runtime, on_open=self._on_open, end_work=self._end_work
        )
        self.fetch_sessions = FetchSessions(config["max.incremental.fetch.session.cache.slots"])
        self.compactor = Compactor(self.topic_files, self.runtime)
        self.proofs = Proofs(self.tasks, self.long_polls.wake)
        self.damage_log = DamageLog()
        self.tiering = Tiering(
            self.topic_files, self.runtime, on_loaded=self.long_polls.wake, damage_log=self.damage_log
        )
        self.topic_files.directories.attach_remote = self.tiering.attach
        self._batch_thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._batch_turn = asyncio.Lock()
        # Beside the event loop: reads of log data that is not in the page cache, and the codec of long messages.
        self.read_threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="reads")
        self.message_threads = ThreadPoolExecutor(MESSAGE_THREADS, thread_name_prefix="messages")
        self.scrub = Scrub(self.partitions, self.tasks, lambda: config["stablelog.scrub.bytes.per.second"])
        self._dynamic_settings = DynamicSettings(disk, directory, self.reserve)
        try:
            self._open_directory()
            self._open_coordinators(CoordinatorTopics(self.topic_files, self.runtime))
        except BaseException:
            self.reserve.close()
            self.directory.release()
            raise
        self.topic_changes = TopicChanges(
            self.topic_files,
            self.runtime,
            opening=self._opening,
            end_work=self._end_work,
            long_polls=self.long_polls,
            partition_repair=self.partition_repair,
            groups=self.groups,
        )
        self.maintenance = self._make_maintenance()
        self.metrics = Metrics(lambda: self.partitions, self.now_ms)
        self.metrics.register_source(self._samples)
        for notify in (
            self.groups.on_high_watermark,
            self.transactions.high_watermark_moved,
            self.long_polls.wake,
        ):
            self.flush.subscribe(notify)

    def _open_directory(self) -> None:
        """Read the dynamic settings, the ACLs, users and quotas, and the list of topics from the data directory."""
        # Open the disk reserve before the broker writes any other file, because on a full disk the reserve frees space
        # for that file.
        self.reserve.open()
        self._dynamic_settings.load_into(self.config)
        self.config.groups.log_conflicts()
        self.acls = open_acls(self.runtime, threads=self.message_threads)
        self.logins = open_logins(self.runtime, lambda: self.users.credentials)
        if self.logins is not None or has_registered_file(USERS, self.disk, self.directory.path):
            self.users  # noqa: B018 - a damaged file must end the start, not the first login
        self.quotas = BrokerQuotas(self.runtime, threads=self.message_threads)
        self.topic_files.load(clean=self.directory.is_clean, cluster_id=self.directory.cluster_id)
        self.directory.begin()
        if self.acls is not None:
            self.acls.record_file()

    def _open_coordinators(self, own_logs: CoordinatorTopics) -> None:
        """Open the logs of the coordinators, and rebuild the coordinators' state from these logs."""
        offsets, commits = own_logs.open(CONSUMER_OFFSETS_TOPIC), own_logs.open_commit_logs()
        self.groups = BrokerGroups(
            GroupCoordinator(self.config.group_config()),
            Journal(offsets, self.flush, self.reserve, self.clock),
            self.runtime,
        )
        self.transactions = TransactionGroups(
            self.runtime,
            make_log=lambda group: own_logs.open(commit_log_of(group)),
            topics=self.topics,
            partitions=self.partitions,
            groups=self.groups,
        )
        self.groups.load()
        self.transactions.load(commits)
        self.partition_repair = PartitionRepair(self.transactions, self.topics)
        for partition in offsets:
            self.partition_repair.partition_opened(partition)

    @cached_property
    def users(self) -> "BrokerUsers":
        """The users. Their code is imported at the first use, because a broker without logins needs none."""
        from stablelog.broker.security.user_store import BrokerUsers

        return BrokerUsers(self.runtime, threads=self.message_threads)

    def _make_maintenance(self) -> Maintenance:
        return Maintenance(
            self.topic_files,
            self.runtime,
            transactions=self.transactions,
            partition_repair=self.partition_repair,
            groups=self.groups,
            opening=self._opening,
            before_trim=self.tiering.copy_before_trim,
        )

    @property
    def node_id(self) -> int:
        """The broker's id, as clients see it."""
        return self.directory.node_id

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that the data directory belongs to."""
        return self.directory.cluster_id

    def now_ms(self) -> int:
        """Return broker time, which never goes back, in ms."""
        return self.clock.now_ms()

    def _samples(self) -> Iterator[Sample]:
        yield Sample("stablelog_flush_rounds", (), self.flush.rounds)
        for where, count in self.tasks.error_counts.items():
            yield Sample("stablelog_unexpected_errors", (where,), count)
        yield Sample("stablelog_disk_full", (), self.reserve.is_full)
        yield from self._opening.samples()
        yield Sample("stablelog_scrubbed_bytes", (), self.scrub.read_size)
        yield Sample("stablelog_fetch_sessions", (), len(self.fetch_sessions))
        if self.acls is not None:
            yield Sample("stablelog_acls", (), len(self.acls.authorizer.index))
            yield Sample("stablelog_denied_operations", (), self.acls.denials.count)
        yield from self.tiering.samples()
        if self.logins is not None:
            yield from self.logins.samples()
        yield from self.quotas.samples()
        yield from self.transactions.samples()

    # -- start -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the background work. On return requests can be served; a background task then opens the partitions.

        If the broker takes over a data directory of Apache Kafka, all partitions are opened before the return.
        """
        if not await self.maintenance.restore_reserve():
            self.reserve.log_full()
        if self.topic_files.is_taking_over:
            # The broker takes over a directory of Apache Kafka. Such a directory does not record the producer ids that
            # Kafka has assigned. Open all partitions before clients can connect, so that no new producer gets a
            # producer id that a partition already contains.
            await self._opening.open_all()
            self.topic_files.taken_over()
        if self.logins is not None:
            await self.logins.open()
        self._is_started = True
        self.tasks.start("flush", self.flush.run)
        last_commits = LastCommits(self.topic_files, self.transactions, self.runtime)
        self.tasks.start("recovery", self._open_partitions, last_commits)
        self.maintenance.start()
        ClockWatch(self.clock, self.directory.time).start(self.tasks)
        self.compactor.start()
        self.proofs.start()
        self.tiering.start(self.node_id)

    async def open_partitions(self) -> None:
        """Open all partitions. Write the missing markers of transactions whose commit or abort is decided, without the
        other background work of `start`.

        This is for a program that only reads the data directory, and then stops the broker.
        """
        self._is_started = True
        self.tasks.start("flush", self.flush.run)
        await self._open_partitions(LastCommits(self.topic_files, self.transactions, self.runtime))

    async def _open_partitions(self, last_commits: LastCommits) -> None:
        await last_commits.read()
        try:
            await self._opening.open_all()
        except DiskError as error:
            log.error(
                "the file of recovery points cannot be written: %s. Nothing is lost, but the next start checks "
                "more of the logs, which takes longer",
                error,
            )
        self.transactions.all_partitions_opened()
        self.scrub.start()

    def _on_open(self, partition: Partition, failed: Partition | None) -> None:
        """Make a newly opened partition usable. Write the markers that it lacks because of a crash, of transactions
        whose commit or abort is decided, and wake the requests that wait for the partition.

        Args:
            partition: the open partition.
            failed: the earlier object of the same partition, which had failed because the disk was full; None if the
                partition was opened for the first time since the broker's start.
        """
        if failed is None:
            # Before clients can write, end the transactions that a crash left open: write the markers that they lack.
            self.partition_repair.partition_opened(partition)
        else:
            # The partition failed because the disk was full, and lost no data. Its open transactions need not be
            # compared with the commit log: only write the markers that waited for the partition.
            self.maintenance.retry()
        self.long_polls.wake(partition)

    async def _end_work(self, topic_name: str) -> None:
        """End compaction and copying of a topic, and wait until no thread reads or writes its open partitions.

        The caller can then remove their files: until its next await, no thread begins to read or write them.
        """
        while True:
            await self.compactor.end_compaction_of(topic_name)
            await self.tiering.stop_copying(topic_name)
            await self.flush.wait_until_idle()
            # A compaction pass or a copy of the topic may have begun while this task waited for the flush.
            if not self.compactor.is_compacting(topic_name) and not self.tiering.is_copying(topic_name):
                return

    # -- failures ----------------------------------------------------------------------------------------------

    def fail_partition(self, partition: Partition, why: UnavailableError) -> None:
        """Take a partition offline, and log the first failure of the partition.

        If the partition failed because the disk is full, it is reopened when the disk has space. After any other
        failure it stays offline until the broker restarts. If the partition is a coordinator's log, the broker stops.
        This method may be called several times for one partition, once for each piece of work that fails.
        """
        partition.availability.mark_failed(why)
        if partition in self._offline:
            return
        if not self.partitions.is_in_use(partition):  # The topic was deleted after the failed work began.
            self.flush.fail_waiting(partition, why)
            return
        self._offline.add(partition)
        # Report the first failure of the partition: later failures may be its consequences.
        why = partition.failure or why
        without_room = self.reserve.record_failure(why) and not is_coordinator_log(partition.topic)
        until = "is reopened when the disk has space" if without_room else "needs a restart"
        failed = UnavailableError(f"{partition.topic}-{partition.index} has failed and {until}: {why}")
        log.error("%s", failed)
        if without_room:
            self._opening.reopen_later(partition)
        self.flush.fail_waiting(partition, failed)
        self.long_polls.wake(partition)
        if is_coordinator_log(partition.topic):
            self.tasks.stop_broker(failed)

    def check_after_fault(self) -> None:
        """Stop using data that a fault (an unexpected exception in a request) has left incompletely changed.

        A partition with an incomplete append goes offline. A coordinator with an incomplete decision stops the broker:
        the decision is in memory and not in the coordinator's log, so clients could be told of a commit that a restart
        loses.
        """
        for partition in self.partitions:
            if partition.failure is not None:
                self.fail_partition(partition, partition.failure)
        for group in self.transactions:
            if not group.is_recorded:
                self.tasks.stop_broker(
                    UnavailableError(
                        f"an unexpected error has kept a decision of {group_in_words(group.name)} out of its commit log; "
                        "restart the broker. The broker's log has the traceback"
                    )
                )

    # -- work --------------------------------------------------------------------------------------------------

    def change_settings(
        self, settings: Mapping[str, str], defaults: Mapping[str, str], groups: GroupConfigs | None = None
    ) -> None:
        """Replace the dynamic settings. The new settings are durable on return.

        Args:
            settings: the dynamic settings of this broker.
            defaults: the dynamic settings of all brokers of the cluster.
            groups: the settings of consumer groups; None if they stay as they are.

        Raises:
            UsageError: a setting is unknown, not dynamic, or out of range; nothing changed.
            RefusedError: the disk refused the write of the settings file; the settings in effect have not changed.
        """
        for one in (settings, defaults):
            self.config.check_dynamic(one)
        groups = self.config.groups.own if groups is None else groups
        self._dynamic_settings.store(settings, defaults, groups)
        self.config.set_dynamic(settings, defaults)
        self.config.groups.replace_all(groups)
        self.partitions.reconfigure()

    async def run_batch_work(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Run `work`, which processes large batches, in the one thread that the broker has for this. Return its result
        or raise its exception.

        The thread runs one piece of work at a time; further pieces wait in the order of the calls.
        """
        # Callers wait for this lock, and not in the queue of the executor. A caller that waits for the lock can be
        # cancelled. Work in the queue of the executor would run although its caller was cancelled.
        async with self._batch_turn:
            return await in_thread_to_its_end(self._batch_thread, work, *arguments)

    # -- stop --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the background work, and write all data to disk. If nothing failed, mark the stop as clean.

        After a clean stop the next start need not recover partitions.
        """
        if self._is_started and self.tasks.failure is None:
            await self.maintenance.trim_at_stop()
        self.tiering.limit_store_time()
        await self.tasks.stop()
        # After a failed fsync, a later fsync that succeeds does not prove that all data is on disk. Such a stop is not
        # marked as clean, so that the next start checks the logs.
        failed = self.tasks.failure is not None
        if not failed:
            self.transactions.write_decided()
        self.groups.close()
        if self.logins is not None:
            self.logins.close()
        self.maintenance.close()
        self.flush.close()
        self.compactor.close()
        if self._is_started and not failed:
            await self.tiering.copy_at_stop()
        for threads in (self._batch_thread, self.read_threads, self.message_threads):
            threads.shutdown(wait=True, cancel_futures=True)
        self.proofs.close()
        self.scrub.close()
        if self._is_started and not failed:
            all_open = self.partitions.are_complete
            if self.topic_files.close() and all_open:
                self.directory.mark_clean()
        self.reserve.close()
        self.directory.release()
        self.tiering.close()  # The last step, because a request to the object store may take 20 s.
