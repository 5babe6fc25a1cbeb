"""The broker: the open partitions and coordinators of one data directory, its start and its stop.

It owns the data directory and joins the coordinators with their logs. It has no socket: the server, or a test, hands
requests to it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stablelog.broker.config import BrokerConfig
from stablelog.broker.damage_log import DamageLog
from stablelog.broker.directory.data_directory import DataDirectory
from stablelog.broker.directory.dynamic_settings import DynamicSettings
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.durability.flush import GroupFlush
from stablelog.broker.durability.journal import Journal
from stablelog.broker.fetch_sessions import FetchSessions
from stablelog.broker.groups import Groups
from stablelog.broker.loop.tasks import Arguments, Result, Tasks, in_thread_to_its_end
from stablelog.broker.metrics import Metrics, Sample
from stablelog.broker.topic_changes import TopicChanges
from stablelog.broker.topic_names import CONSUMER_OFFSETS_TOPIC, commit_log_of, is_internal
from stablelog.broker.topics.opening import Opening
from stablelog.broker.topics.own_logs import OwnLogs
from stablelog.broker.topics.topics import Topics
from stablelog.broker.transactions.last_commits import LastCommits
from stablelog.broker.transactions.transactions import Transactions
from stablelog.broker.upkeep.compaction import Compactor
from stablelog.broker.upkeep.maintenance import Maintenance
from stablelog.broker.upkeep.proofs import Proofs
from stablelog.broker.upkeep.scrub import Scrub
from stablelog.broker.waiting import Waiters
from stablelog.coordinators.consumer_groups.coordinator import GroupCoordinator
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk
from stablelog.errors import DiskError, Unavailable
from stablelog.log.files.kafka_files import META_FILE
from stablelog.log.partition import Partition
from stablelog.wire.extension.transaction_groups import group_in_words

log = logging.getLogger(__name__)

READ_THREADS = 4
MESSAGE_THREADS = 2
REFUSED_APPENDS_TOLD_EVERY_MS = 10_000


class Broker:
    """One broker on one data directory.

    The constructor locks and reads the directory, and opens the broker's own logs and the coordinators. It needs a
    running event loop. `start` begins the work.

    Args:
        directory: the data directory; the broker creates it if it does not exist.
        on_failure: called once, with the reason, if the broker must be stopped: the disk failed, or something
            failed unexpectedly that does not belong to a single connection or partition.
        make_flush: makes the flush, with the arguments of `GroupFlush`.

    Attributes:
        advertised: the address that clients use. The server sets the port on which it listens.

    Raises:
        Unavailable: another broker uses the directory.
        NewerFormat: a later release has written to the directory; nothing was changed.
        Corrupt: a file that the broker itself needs cannot be read.
        InvalidConfig: the directory belongs to another node.
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
    ) -> None:
        self.config = config
        self.disk = disk
        self.clock = clock
        self.advertised: tuple[str, int] = config["advertised.listeners"] or config["listeners"]
        self.reserve = DiskReserve(disk, directory, config["stablelog.disk.reserve.bytes"])
        self.directory = DataDirectory(disk, directory, config, self.reserve)
        self.tasks = Tasks(on_failure, self.fail_partition)
        self.waiters = Waiters(self.tasks)
        self.flush = make_flush(
            to_disk=config["stablelog.flush"] == "fsync", reserve=self.reserve, tasks=self.tasks
        )
        self.topics = Topics(disk, directory, config, self.now_ms, self.reserve, self.fail_partition)
        self._offline: set[Partition] = set()  # Partitions that have failed since the start.
        self._refused_appends_told_ms = -REFUSED_APPENDS_TOLD_EVERY_MS
        self._is_started = False
        self._opening = Opening(
            self.topics,
            self.tasks,
            self.reserve,
            on_open=self._on_open,
            end_work=self._end_work,
            now_ms=self.now_ms,
        )
        self.fetch_sessions = FetchSessions(config["max.incremental.fetch.session.cache.slots"])
        self.compactor = Compactor(self.topics, config, self.reserve, self.tasks, self.now_ms)
        self.proofs = Proofs(self.tasks, self.waiters.wake)
        self._batch_thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._batch_turn = asyncio.Lock()
        # The read threads wait for data that is not in the page cache. The decode threads decode and encode long
        # messages.
        self.read_threads = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="reads")
        self.message_threads = ThreadPoolExecutor(MESSAGE_THREADS, thread_name_prefix="messages")
        self.damage_log = DamageLog()
        self.scrub = Scrub(self.topics, self.tasks, lambda: config["stablelog.scrub.bytes.per.second"])
        self._dynamic_settings = DynamicSettings(disk, directory, directory / META_FILE, self.reserve)
        try:
            self._open_directory()
            self.groups, self.transactions = self._open_coordinators(OwnLogs(self.topics, self.reserve))
        except BaseException:
            self.reserve.close()
            self.directory.release()
            raise
        self.topic_changes = TopicChanges(
            self.topics,
            opening=self._opening,
            end_work=self._end_work,
            flush=self.flush,
            waiters=self.waiters,
            transactions=self.transactions,
            groups=self.groups,
            reserve=self.reserve,
            tasks=self.tasks,
            now_ms=self.now_ms,
        )
        self.maintenance = self._make_maintenance()
        self.metrics = Metrics(self.topics.open_partitions, self.now_ms)
        self.metrics.register(self._samples)
        for notify in (self.groups.advanced, self.transactions.advanced, self.waiters.wake):
            self.flush.subscribe(notify)

    def _open_directory(self) -> None:
        """Read the dynamic settings and the list of topics."""
        self.reserve.open()  # The reserve is the first file that is written.
        self._dynamic_settings.load_into(self.config)
        self.topics.load(clean=self.directory.is_clean, cluster_id=self.directory.cluster_id)
        self.directory.begin()

    def _open_coordinators(self, own_logs: OwnLogs) -> tuple[Groups, Transactions]:
        """Open the broker's own logs, and rebuild the coordinators from them."""
        offsets, commits = own_logs.open(CONSUMER_OFFSETS_TOPIC), own_logs.open_commit_logs()
        groups = Groups(
            GroupCoordinator(self.config.group_config()),
            Journal(offsets, self.flush, self.reserve, self.now_ms),
            self.tasks,
            self.now_ms,
        )
        transactions = Transactions(
            self.config.transaction_config(),
            count_max=self.config["stablelog.max.transaction.groups"],
            make_log=lambda group: own_logs.open(commit_log_of(group)),
            topics=self.topics,
            groups=groups,
            flush=self.flush,
            reserve=self.reserve,
            tasks=self.tasks,
            now_ms=self.now_ms,
        )
        groups.load()
        transactions.load(commits)
        for partition in offsets:
            transactions.partition_opened(partition)
        return groups, transactions

    def _make_maintenance(self) -> Maintenance:
        return Maintenance(
            self.config,
            topics=self.topics,
            transactions=self.transactions,
            groups=self.groups,
            flush=self.flush,
            opening=self._opening,
            reserve=self.reserve,
            tasks=self.tasks,
            now_ms=self.now_ms,
        )

    @property
    def node_id(self) -> int:
        """The broker's id, as clients see it."""
        return self.directory.node_id

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that the data directory belongs to."""
        return self.directory.cluster_id

    def now_ms(self) -> int:
        """The broker's time in milliseconds since the epoch."""
        return self.clock.now_ms()

    def _samples(self) -> Iterator[Sample]:
        yield Sample("stablelog_flush_rounds", (), self.flush.rounds)
        for where, count in self.tasks.error_counts.items():
            yield Sample("stablelog_unexpected_errors", (where,), count)
        yield Sample("stablelog_disk_full", (), self.reserve.is_full)
        yield Sample("stablelog_scrubbed_bytes", (), self.scrub.read_size)
        yield Sample("stablelog_fetch_sessions", (), len(self.fetch_sessions))
        for group in self.transactions:
            last, resolved = group.coordinator.table.last_sequence, group.resolved_commit_sequence
            yield Sample("stablelog_last_commit_sequence", (group.name,), last)
            yield Sample("stablelog_resolved_commit_sequence", (group.name,), resolved)

    # -- start -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin the work. Returns when requests can be served; recovery of partitions continues."""
        if not await self.maintenance.restore_reserve():
            self.reserve.tell_full()
        if self.topics.is_taking_over:
            # The directory does not record which producer ids Kafka has given out. The partitions show which ids are in
            # use, so all of them are opened first.
            await self._opening.open_all()
            self.topics.taken_over()
        self._is_started = True
        self.tasks.start("flush", self.flush.run)
        last_commits = LastCommits(self.topics, self.transactions, self.tasks)
        self.tasks.start("recovery", self._open_partitions, last_commits)
        self.maintenance.start()
        self.compactor.start()
        self.proofs.start()

    async def _open_partitions(self, last_commits: LastCommits) -> None:
        await last_commits.read()
        try:
            await self._opening.open_all()
        except DiskError as error:
            log.error("the next start has more to recover: %s", error)
        self.transactions.partitions_opened()
        self.scrub.start()

    def _on_open(self, partition: Partition, failed: Partition | None) -> None:
        """Handle a partition that was opened after the start, or reopened after it had failed on a full disk."""
        if failed is None:
            # Resolve the transactions that a crash left open, before clients can write.
            self.transactions.partition_opened(partition)
        else:
            # The failed partition lost no data, so its open transactions are known. Only markers have waited for it.
            self.maintenance.retry()
        self.waiters.wake(partition)

    async def _end_work(self, topic_name: str) -> None:
        """Wait until no thread works on open partitions of a topic. On return this holds until the next await."""
        while True:
            await self.compactor.leave(topic_name)
            await self.flush.idle()
            # A compaction pass may have begun during the wait for the sync.
            if not self.compactor.works_on(topic_name):
                return

    # -- failures ----------------------------------------------------------------------------------------------

    def fail_partition(self, partition: Partition, why: Unavailable) -> None:
        """Take a partition offline, and log that once. A failure of one of the broker's own logs stops the broker.

        Every failure of a partition is reported here by the partition itself, after a call or a task has failed in it.
        The broker reopens a partition that failed on a full disk when there is room. After any other failure a restart
        reopens it.
        """
        partition.fail(why)
        if partition in self._offline:
            return
        if not self.topics.has(partition):  # The topic was deleted after the failed work began.
            self.flush.forget(partition, why)
            return
        self._offline.add(partition)
        why = partition.failure or why  # The first reason is the one to report.
        without_room = self.reserve.note(why) and not is_internal(partition.topic)
        until = "is opened again when the disk has room" if without_room else "needs a restart"
        failed = Unavailable(f"{partition.topic}-{partition.index} has failed and {until}: {why}")
        log.error("%s", failed)
        if without_room:
            self._opening.open_later(partition)
        self.flush.forget(partition, failed)
        self.waiters.wake(partition)
        if is_internal(partition.topic):
            self.tasks.stop_broker(failed)

    def check_after_fault(self) -> None:
        """Fail partitions and coordinators whose work an exception in a request has left incomplete.

        A partition with an incomplete append goes offline. A coordinator with an incomplete decision stops the broker:
        its memory is ahead of its log, so it would report commits to clients that are lost after a restart.
        """
        for partition in self.topics.open_partitions():
            if partition.failure is not None:
                self.fail_partition(partition, partition.failure)
        for group in self.transactions:
            if not group.is_recorded:
                self.tasks.stop_broker(
                    Unavailable(
                        f"{group_in_words(group.name)} has decided what its commit log does not know, by an unexpected "
                        "error; the log has the traceback"
                    )
                )

    def append_refused(self, name: str, index: int, error: Unavailable) -> None:
        """Log that the disk refuses writes of a partition.

        This is logged once in REFUSED_APPENDS_TOLD_EVERY_MS, because producers retry.
        """
        topic = self.topics.get(name)
        partition = topic.partitions.get(index) if topic is not None else None
        if partition is not None and partition.failure is not None:
            return  # The failure of this partition was logged already.
        if (
            not self.reserve.note(error)
            and self.now_ms() - self._refused_appends_told_ms >= REFUSED_APPENDS_TOLD_EVERY_MS
        ):
            self._refused_appends_told_ms = self.now_ms()
            log.error("nothing can be written to %s-%d; its producers try again: %s", name, index, error)

    # -- work --------------------------------------------------------------------------------------------------

    def change_settings(self, settings: Mapping[str, str]) -> None:
        """Replace the broker's dynamic settings. Durable on return.

        Raises:
            InvalidConfig: a setting is unknown, not dynamic, or out of range; nothing changed.
            Refused: the disk does not take the new list of topics; nothing changed.
        """
        self.config.check_dynamic(settings)
        self._dynamic_settings.store(settings)
        self.config.set_dynamic(settings)
        self.topics.reconfigure()

    async def look_into_batch(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Decode a large batch in the one thread for that; return the result of `work` or raise its error."""
        async with self._batch_turn:  # A caller that waits here can be cancelled, unlike work in an executor.
            return await in_thread_to_its_end(self._batch_thread, work, *arguments)

    # -- stop --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Write everything to disk and leave the directory in a state that needs no recovery."""
        await self.tasks.stop()
        # After a failed sync, a later sync that succeeds proves nothing: the next start has to check the files.
        failed = self.tasks.failure is not None
        if not failed:
            self.transactions.write_decided()
        self.groups.close()
        self.maintenance.close()
        self.flush.close()
        self.compactor.close()
        for threads in (self._batch_thread, self.read_threads, self.message_threads):
            threads.shutdown(wait=True, cancel_futures=True)
        self.proofs.close()
        self.scrub.close()
        if self._is_started and not failed:
            all_open = all(len(topic.partitions) == topic.partition_count for topic in self.topics)
            if self.topics.close() and all_open:
                self.directory.mark_clean()
        self.reserve.close()
        self.directory.release()
