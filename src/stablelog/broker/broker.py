"""The broker: the open partitions and coordinators of one data directory, its start and its stop.

It owns the data directory and joins the coordinators with their logs. It has no socket: the server, or a test, hands
requests to it.
"""

import asyncio
import base64
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from stablelog.broker.catalog import Catalog, read_catalog
from stablelog.broker.compaction import Compactor
from stablelog.broker.config import BrokerConfig
from stablelog.broker.damage_log import DamageLog
from stablelog.broker.directory_signs import (
    CLEAN_SHUTDOWN,
    CLEAN_SHUTDOWN_FILE,
    read_meta,
    was_stopped_cleanly,
)
from stablelog.broker.disk_reserve import DiskReserve
from stablelog.broker.dynamic_settings import META_LINE, DynamicSettings
from stablelog.broker.fetch_sessions import FetchSessions
from stablelog.broker.flush import GroupFlush
from stablelog.broker.formats import check_formats
from stablelog.broker.groups import Groups
from stablelog.broker.journal import Journal
from stablelog.broker.last_commits import LastCommits
from stablelog.broker.maintenance import Maintenance
from stablelog.broker.metrics import Metrics, Sample
from stablelog.broker.opening import Opening
from stablelog.broker.proofs import Proofs
from stablelog.broker.scrub import Scrub
from stablelog.broker.tasks import Arguments, Result, Tasks, in_thread, in_thread_to_its_end
from stablelog.broker.topic import Topic
from stablelog.broker.topic_names import CONSUMER_OFFSETS_TOPIC, commit_log_of, group_of_log, is_internal
from stablelog.broker.topics import Topics
from stablelog.broker.transactions import Transactions
from stablelog.broker.turns import AT_ONCE_MAX, in_turns
from stablelog.broker.waiting import Waiters
from stablelog.coordinators.consumer_groups.coordinator import GroupConfig, GroupCoordinator
from stablelog.coordinators.transactions.coordinator import TransactionConfig
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import DirectoryLock
from stablelog.errors import DiskError, InvalidConfig, Refused, Unavailable
from stablelog.log.kafka_files import META_FILE, encode_meta
from stablelog.log.partition import Partition
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP, group_in_words

log = logging.getLogger(__name__)

LOG_THREADS = 8
READ_THREADS = 4
MESSAGE_THREADS = 2
FEW_LOGS = 8  # Up to this many logs are opened one after the other.
REFUSED_APPENDS_TOLD_EVERY_MS = 10_000
INTERNAL_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}


class Broker:
    """One broker on one data directory.

    Args:
        directory: the data directory; the broker creates it if it does not exist.
        on_failure: called once, with the reason, if the broker must be stopped: the disk failed, or something
            failed unexpectedly that does not belong to a single connection or partition.
    """

    def __init__(
        self,
        config: BrokerConfig,
        directory: Path,
        *,
        disk: Disk,
        clock: Clock,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.config = config
        self.directory = directory
        self.disk = disk
        self.clock = clock
        self.node_id: int = config["node.id"]
        self.cluster_id = ""
        self.advertised: tuple[str, int] = config["advertised.listeners"] or config["listeners"]
        self.tasks = Tasks(on_failure, self.fail_partition)
        self.reserve = DiskReserve(disk, directory, config["stablelog.disk.reserve.bytes"])
        self.waiters = Waiters(self.tasks)
        self.flush = GroupFlush(
            to_disk=config["stablelog.flush"] == "fsync",
            on_advance=self._advanced,
            reserve=self.reserve,
            tasks=self.tasks,
        )
        self.topics = Topics(disk, directory, config, self.now_ms, self.reserve)
        self.topics.on_failure = self.fail_partition
        self._dynamic_settings = DynamicSettings(disk, directory, directory / META_FILE, self.reserve)
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
        self.metrics = Metrics(self.topics.open_partitions, self.now_ms)
        self.metrics.register(self._samples)
        self.transactions: Transactions
        self.groups: Groups
        self.maintenance: Maintenance
        self._opening = Opening(
            self.topics,
            self.tasks,
            self.reserve,
            on_open=self._on_open,
            end_work=self._end_work,
            now_ms=self.now_ms,
        )
        self._offline: set[Partition] = set()  # partitions that have failed since the start
        self._lock: DirectoryLock | None = None
        self._refused_appends_told_ms = -REFUSED_APPENDS_TOLD_EVERY_MS
        self._clean_shutdown_allowed = False

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
            last, resolved = group.coordinator.last_commit_sequence, group.resolved_commit_sequence
            yield Sample("stablelog_last_commit_sequence", (group.name,), last)
            yield Sample("stablelog_resolved_commit_sequence", (group.name,), resolved)

    # -- start -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data directory. Returns when requests can be served; recovery of partitions continues.

        Raises:
            Unavailable: another broker uses the directory.
            NewerFormat: a later release has written to the directory; nothing was changed.
            Corrupt: a file that the broker itself needs cannot be read.
            InvalidConfig: the directory belongs to another node.
        """
        self.open_directory()
        if not await self.maintenance.restore_reserve():
            self.reserve.tell_full()
        if self.topics.is_taking_over:
            # The directory does not record which producer ids Kafka has given out. The partitions show which ids are in
            # use, so all of them are opened first.
            await self._opening.open_all()
            self.topics.taken_over()
        self._clean_shutdown_allowed = True
        self.tasks.start("flush", self.flush.run)
        last_commits = LastCommits(self.topics, self.transactions, self.tasks)
        self.tasks.start("recovery", self._open_partitions, last_commits)
        self.maintenance.start()
        self.compactor.start()
        self.proofs.start()

    def open_directory(self) -> None:
        """Open the broker's own logs and the coordinators. Raises as `start` does."""
        self.disk.make_dir(self.directory)
        self._lock_directory()
        check_formats(self.disk, self.directory)
        catalog = read_catalog(self.disk, self.directory)
        is_meta_written = self._read_meta(catalog)
        self.reserve.open()  # The reserve is the first file that is written.
        self._dynamic_settings.load_into(self.config)
        clean_path = self.directory / CLEAN_SHUTDOWN_FILE
        self.topics.load(clean=was_stopped_cleanly(self.disk, clean_path), cluster_id=self.cluster_id)
        if not is_meta_written:
            self._write_meta()
        self.disk.remove(clean_path)
        self.disk.sync_dir(self.directory)
        self._open_coordinators()

    def _lock_directory(self) -> None:
        if not isinstance(self.disk, LocalDisk):
            return  # A simulated disk has one user and needs no lock.
        self._lock = DirectoryLock(self.directory)

    def _read_meta(self, catalog: Catalog | None) -> bool:
        """Read the ids of the cluster and of the node. Returns whether `meta.properties` is whole.

        Raises:
            Corrupt: the file names another cluster than the list of topics does, or names no node.
            InvalidConfig: the file names another node than the configuration does.
        """
        path = self.directory / META_FILE
        meta = read_meta(self.disk, self.directory, catalog)
        if meta.fault is not None and (catalog is not None or self.disk.exists(path)):
            log.warning("%s %s; it is written again", path, meta.fault)
        self.cluster_id = (catalog.cluster_id if catalog else "") or meta.cluster_id or _new_cluster_id()
        if meta.node_id is not None and meta.node_id != self.node_id:
            if "node.id" in self.config.given:
                raise InvalidConfig(
                    f"{path} says node.id={meta.node_id}, the configuration says {self.node_id}"
                )
            self.node_id = meta.node_id
        return meta.fault is None

    def _write_meta(self) -> None:
        noted = [META_LINE] if self.disk.exists(self._dynamic_settings.path) else []
        content = encode_meta(self.cluster_id, self.node_id, noted)
        self.reserve.write_atomic(self.directory / META_FILE, content)

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

    def _open_coordinators(self) -> None:
        """Open the broker's own logs first: no request can be served without them."""
        offsets = self._own_log(CONSUMER_OFFSETS_TOPIC)
        self._open_many_logs()
        found = {group for topic in self.topics if (group := group_of_log(topic.name)) is not None}
        commits = {group: self._own_log(commit_log_of(group)) for group in sorted(found | {DEFAULT_GROUP})}
        config = self.config
        self.groups = Groups(
            GroupCoordinator(
                GroupConfig(
                    initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
                    session_timeout_ms_min=config["group.min.session.timeout.ms"],
                    session_timeout_ms_max=config["group.max.session.timeout.ms"],
                    group_size_max=config["group.max.size"],
                    offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
                    offset_metadata_size_max=config["offset.metadata.max.bytes"],
                )
            ),
            Journal(offsets, self.flush, self.reserve, self.now_ms),
            self.tasks,
            self.now_ms,
        )
        self.transactions = Transactions(
            TransactionConfig(
                transaction_timeout_ms_max=config["transaction.max.timeout.ms"],
                transactional_id_expiration_ms=config["transactional.id.expiration.ms"],
                two_phase_commit_enable=config["transaction.two.phase.commit.enable"],
                strict=config["stablelog.transaction.strict"],
            ),
            count_max=config["stablelog.max.transaction.groups"],
            make_log=lambda group: self._own_log(commit_log_of(group)),
            topics=self.topics,
            groups=self.groups,
            flush=self.flush,
            reserve=self.reserve,
            tasks=self.tasks,
            now_ms=self.now_ms,
        )
        self.maintenance = Maintenance(
            config,
            topics=self.topics,
            transactions=self.transactions,
            groups=self.groups,
            flush=self.flush,
            opening=self._opening,
            reserve=self.reserve,
            tasks=self.tasks,
            now_ms=self.now_ms,
        )
        self.groups.load()
        self.transactions.load(commits)
        for partition in offsets:
            self.transactions.partition_opened(partition)

    def _open_many_logs(self) -> None:
        """Open the logs of many transaction groups several at a time, because each one waits for the disk."""
        logs = [topic for topic in self.topics if group_of_log(topic.name) is not None]
        missing = [(topic, index) for topic in logs for index in range(topic.partition_count)]
        if len(missing) > FEW_LOGS:
            with ThreadPoolExecutor(LOG_THREADS, thread_name_prefix="commit logs") as threads:
                list(threads.map(lambda at: self._open_own(*at), missing))

    def _own_log(self, name: str) -> list[Partition]:
        topic = self.topics.get(name) or self._make_own(name)
        for index in range(topic.partition_count):
            if index not in topic.partitions:
                self._open_own(topic, index)
        return [topic.partitions[index] for index in range(topic.partition_count)]

    def _make_own(self, name: str) -> Topic:
        while True:
            try:
                return self.topics.create(name, 1, INTERNAL_CONFIGS)
            except Refused as refused:
                if not self.reserve.make_room(refused):
                    raise

    def _open_own(self, topic: Topic, index: int) -> None:
        self.reserve.attempt(lambda: self.topics.open_partition(topic, index), frees=True)

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
            self.partition_opened(partition)
        else:
            # The failed partition lost no data, so its open transactions are known. Only markers have waited for it.
            self.maintenance.retry()
            self.waiters.wake(partition)

    async def _end_work(self, topic_name: str) -> None:
        """Wait until no thread works on the partitions of a topic. On return this holds until the next await."""
        while True:
            await self.compactor.leave(topic_name)
            await self.flush.idle()
            # A compaction pass may have begun during the wait for the sync.
            if not self.compactor.works_on(topic_name):
                return

    def partition_opened(self, partition: Partition) -> None:
        """Resolve the transactions that a crash left open in a partition.

        From then on clients can read and write it.
        """
        self.transactions.partition_opened(partition)
        self.waiters.wake(partition)

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

    # -- work --------------------------------------------------------------------------------------------------

    def _advanced(self, partition: Partition) -> None:
        """Handle that more of a partition is durable, or that a transaction in it was decided."""
        if partition is self.groups.journal.partition:
            self.groups.journal.settle()
        else:
            self.transactions.advanced(partition)
        self.waiters.wake(partition)

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

    async def look_into_batch(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        """Decode a large batch in the one thread for that; return the result of `work` or raise its error."""
        return await in_thread_to_its_end(self._batch_turn, self._batch_thread, work, *arguments)

    async def create_topic(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic. Other requests are served meanwhile. The topic is created even if the caller is cancelled.

        Raises:
            Refused: the name, the count or a setting is not valid, the topic exists, or the disk is full; nothing
                changed.
        """
        self.reserve.check("CreateTopics")
        topic = self.topics.reserve(name, partition_count, configs)

        async def make() -> None:
            try:
                partitions = await in_thread(None, self.topics.make_partitions, topic, range(partition_count))
                self.topics.publish(topic, partitions)
            except Refused as refused:
                self.reserve.note(refused)
                raise
            finally:
                self.topics.release(topic)
            log.info("created topic %s with %d partitions", name, partition_count)

        await self.tasks.for_request("making partitions", make)
        return topic

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Grow a topic to `partition_count` partitions. Other requests are served meanwhile.

        Raises:
            Refused: the topic does not exist or has that many partitions already, or the disk is full; nothing
                changed.
        """
        self.reserve.check("CreatePartitions")
        topic = self.topics.reserve_more(name, partition_count)

        async def make() -> None:
            indexes = range(topic.partition_count, partition_count)
            try:
                added = await in_thread(None, self.topics.make_partitions, topic, indexes)
                self.topics.publish_more(topic, added)
            except Refused as refused:
                self.reserve.note(refused)
                raise
            finally:
                self.topics.release(topic)

        await self.tasks.for_request("making partitions", make)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, the offsets that groups have committed for it, and the requests that wait for it.

        Raises:
            Refused: the topic does not exist, or it is one of the broker's own; nothing changed.
        """
        while True:
            await self._opening.leave(name)
            await self._end_work(name)
            if not self._opening.works_on(
                name
            ):  # An opening may have begun while this task waited for other work.
                break
        topic = self.topics.unlist(name)
        await self.tasks.for_request("deleting a topic", partial(self._delete, topic))

    async def _delete(self, topic: Topic) -> None:
        """Delete the files and the state of a topic that is no longer listed. Other requests are served meanwhile."""
        why = Unavailable(f"topic {topic.name} was deleted")
        try:
            async for partition in in_turns(list(topic.partitions.values()), at_once=AT_ONCE_MAX):
                self.flush.forget(partition, why)
                self.waiters.wake(partition)
                partition.close(clean=False)
            async for index in in_turns(range(topic.partition_count), at_once=AT_ONCE_MAX):
                self.transactions.partition_gone((topic.name, index), topic.group)
            await in_thread(None, self.topics.set_aside, topic)
            self.topics.forget_files(topic)
            for decision in self.groups.coordinator.topic_deleted(topic.name, now_ms=self.now_ms()):
                self.groups.apply(decision)
                await asyncio.sleep(0)
        finally:
            self.topics.release(topic)
        await self.groups.journal.settled()
        # Python frees an object with its last reference: 10,000 partitions at once would hold the event loop.
        async for _ in in_turns(range(len(topic.partitions))):
            topic.partitions.popitem()

    # -- stop --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Write everything to disk and leave the directory in a state that needs no recovery."""
        await self.tasks.stop()
        # After a failed sync, a later sync that succeeds proves nothing: the next start has to check the files.
        failed = self.tasks.failure is not None
        if hasattr(self, "groups"):
            if not failed:
                self.transactions.write_decided()
            self.groups.close()
        if hasattr(self, "maintenance"):
            self.maintenance.close()
        self.flush.close()
        self.compactor.close()
        for threads in (self._batch_thread, self.read_threads, self.message_threads):
            threads.shutdown(wait=True, cancel_futures=True)
        self.proofs.close()
        self.scrub.close()
        if self._clean_shutdown_allowed and not failed:
            all_open = all(len(topic.partitions) == topic.partition_count for topic in self.topics)
            if self.topics.close() and all_open:
                self._write_clean_shutdown()
        self.reserve.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _write_clean_shutdown(self) -> None:
        try:
            self.reserve.write_atomic(self.directory / CLEAN_SHUTDOWN_FILE, CLEAN_SHUTDOWN)
        except DiskError as error:
            log.error("the next start recovers all logs, as after a crash: %s", error)


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
