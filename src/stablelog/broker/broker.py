"""The broker: what is open, who works on it, and how it starts and stops.

It owns the data directory, joins the coordinators with their logs, and keeps house. It knows no socket: the
server hands it requests, and a test can as well.
"""

import asyncio
import base64
import errno
import fcntl
import logging
import os
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stablelog.broker.compaction import Compactor
from stablelog.broker.config import BrokerConfig
from stablelog.broker.dynamic_settings import DynamicSettings
from stablelog.broker.fetch_sessions import FetchSessions
from stablelog.broker.flush import GroupFlush
from stablelog.broker.groups import Groups
from stablelog.broker.journal import Journal
from stablelog.broker.metrics import Metrics
from stablelog.broker.topics import (
    CONSUMER_OFFSETS_TOPIC,
    Topic,
    Topics,
    commit_log_of,
    group_of_log,
    is_internal,
)
from stablelog.broker.transactions import Transactions
from stablelog.broker.waiting import Waiters
from stablelog.coordinators.consumer_groups.coordinator import GroupConfig, GroupCoordinator
from stablelog.coordinators.transactions.coordinator import TransactionConfig
from stablelog.env.clock import Clock
from stablelog.env.disk import Disk, LocalDisk
from stablelog.errors import DiskError, InvalidConfig, StablelogError, Unavailable
from stablelog.log.partition import Partition
from stablelog.wire.extension.transaction_groups import DEFAULT_GROUP

log = logging.getLogger(__name__)

CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_FILE = "meta.properties"
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.01
RECOVERY_THREADS = 2
LOG_THREADS = 8
FEW_LOGS = 8  # are opened one after the other
REFUSED_APPENDS_TOLD_EVERY_MS = 10_000
INTERNAL_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(100 << 20)}


class Broker:
    """One broker on one data directory.

    Args:
        config: its settings.
        directory: the data directory; made if it is not there.
        disk: where the directory lies.
        clock: what time it is.
        on_failure: called once if the disk fails under it; the broker must be stopped then.
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
        self.waiters = Waiters()
        self.flush = GroupFlush(
            to_disk=config["stablelog.flush"] == "fsync", on_advance=self._advanced, on_failure=on_failure
        )
        self.topics = Topics(disk, directory, config, self.now_ms)
        self._dynamic_settings = DynamicSettings(disk, directory, directory / META_FILE)
        self.fetch_sessions = FetchSessions(config["max.incremental.fetch.session.cache.slots"])
        self.compactor = Compactor(self.topics, config, self.now_ms)
        self.metrics = Metrics(self)
        self.transactions: Transactions
        self.groups: Groups
        self._tasks: list[asyncio.Task[None]] = []
        self._making: set[asyncio.Task[None]] = set()
        self._opening: list[tuple[Topic, asyncio.Task[None]]] = []
        self._lock_fd = -1
        self._refused_appends_told_ms = -REFUSED_APPENDS_TOLD_EVERY_MS
        self._clean_shutdown_allowed = False

    def now_ms(self) -> int:
        """The broker's time."""
        return self.clock.now_ms()

    # -- start -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the data directory. Returns when requests can be answered; partitions go on being recovered.

        Raises:
            Unavailable: another broker has the directory.
            Corrupt: what the broker itself needs cannot be read.
            InvalidConfig: the directory belongs to another node.
        """
        self.open_directory()
        if self.topics.adopted:
            # Which producer ids Kafka has given out is not in the directory: its partitions say which are in use.
            await self._open_partitions()
        self._clean_shutdown_allowed = True
        self._tasks = [
            asyncio.create_task(self.flush.run(), name="flush"),
            asyncio.create_task(self._open_partitions(), name="recovery"),
            asyncio.create_task(self._keep_house(), name="housekeeping"),
            asyncio.create_task(self.compactor.run(), name="compaction"),
        ]

    def open_directory(self) -> None:
        """Open what can be opened at once: the broker's own logs, and what coordinates them. Raises as `start` does."""
        self.disk.make_dir(self.directory)
        self._lock_directory()
        self._read_meta()
        self._load_dynamic_settings()
        clean_path = self.directory / CLEAN_SHUTDOWN_FILE
        fresh = not self.disk.exists(self.directory / "cluster.json")
        clean = self.disk.exists(clean_path)
        self.topics.load(clean=clean or (fresh and not self._holds_partitions()))
        self.disk.remove(clean_path)
        self.disk.sync_dir(self.directory)
        self._open_coordinators()

    def _holds_partitions(self) -> bool:
        return any(True for _ in self.topics)

    def _lock_directory(self) -> None:
        if not isinstance(self.disk, LocalDisk):
            return  # a simulated disk has one user
        path = self.directory / ".lock"
        try:
            self._lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise DiskError(f"opening {path} failed", error.errno or errno.EIO) from error
        for tried in range(LOCK_TRIES):
            try:
                fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                # A reader that looks whether a broker is running holds the lock for a moment.
                time.sleep(LOCK_PAUSE_S * tried)
        os.close(self._lock_fd)
        raise Unavailable(f"another broker is running on {self.directory}")

    def _read_meta(self) -> None:
        path = self.directory / META_FILE
        if not self.disk.exists(path):
            self.cluster_id = _new_cluster_id()
            text = f"version=1\ncluster.id={self.cluster_id}\nnode.id={self.node_id}\n"
            self.disk.write_atomic(path, text.encode())
            return
        lines = self.disk.read_bytes(path).decode(errors="replace").splitlines()
        pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        self.cluster_id = pairs.get("cluster.id", "") or _new_cluster_id()
        node_id = pairs.get("node.id", pairs.get("broker.id", str(self.node_id)))
        if node_id != str(self.node_id):
            if "node.id" in self.config.given:
                raise InvalidConfig(f"{path} says node.id={node_id}, the configuration says {self.node_id}")
            self.node_id = int(node_id)

    def _load_dynamic_settings(self) -> None:
        try:
            self.config.set_dynamic(self._dynamic_settings.load())
        except InvalidConfig as invalid:
            raise InvalidConfig(
                f"{self._dynamic_settings.path} cannot be taken: {invalid}; start the release that wrote it and delete "
                "this dynamic setting of the broker there"
            ) from invalid

    def change_settings(self, settings: Mapping[str, str]) -> None:
        """Replace the broker's dynamic settings. Durable on return.

        Raises:
            InvalidConfig: one is unknown, not dynamic, or out of range; nothing changed.
            Refused: the disk does not take them; nothing changed.
        """
        self.config.check_dynamic(settings)
        self._dynamic_settings.store(settings)
        self.config.set_dynamic(settings)
        self.topics.reconfigure()

    def _open_coordinators(self) -> None:
        """The broker's own logs come first: without them nothing can be answered."""
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
            Journal(offsets, self.flush, self.now_ms),
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
            now_ms=self.now_ms,
        )
        self.groups.load()
        self.transactions.load(commits)
        for partition in offsets:
            self.transactions.partition_opened(partition)

    def _open_many_logs(self) -> None:
        """Where there are many transaction groups, open their logs several at once: each waits for the disk."""
        logs = [topic for topic in self.topics if group_of_log(topic.name) is not None]
        missing = [(topic, index) for topic in logs for index in range(topic.partition_count)]
        if len(missing) > FEW_LOGS:
            with ThreadPoolExecutor(LOG_THREADS, thread_name_prefix="commit logs") as threads:
                list(threads.map(lambda at: self.topics.open_partition(*at), missing))

    def _own_log(self, name: str) -> list[Partition]:
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics.create(name, 1, INTERNAL_CONFIGS)
        for index in range(topic.partition_count):
            if index not in topic.partitions:
                self.topics.open_partition(topic, index)
        return [topic.partitions[index] for index in range(topic.partition_count)]

    async def _open_partitions(self) -> None:
        """Open what the list names, a few at a time. Each can be used as soon as it is open."""
        missing = [(t, i) for t in self.topics for i in range(t.partition_count) if i not in t.partitions]
        if missing:
            await self._open_missing(missing)
        self.topics.write_durable_ends()

    async def _open_missing(self, missing: list[tuple[Topic, int]]) -> None:
        loop = asyncio.get_running_loop()
        began_ms = self.now_ms()
        with ThreadPoolExecutor(RECOVERY_THREADS, thread_name_prefix="recovery") as threads:

            async def open_one(topic: Topic, index: int) -> None:
                try:
                    partition = await loop.run_in_executor(
                        threads, self.topics.recover_partition, topic, index
                    )
                except StablelogError as error:
                    self.topics.mark_offline(topic, index, error)
                    log.error(
                        "%s-%d cannot be opened and stays offline; `stablelog verify` says more: %s",
                        topic.name,
                        index,
                        error,
                    )
                else:
                    # In one go: whoever came between would write before the markers that it lacks.
                    self.topics.publish_partition(topic, partition)
                    self.partition_opened(partition)

            self._opening = [
                (topic, asyncio.create_task(open_one(topic, index), name="recovery of a partition"))
                for topic, index in missing
            ]
            await asyncio.gather(*(task for _, task in self._opening))
            self._opening = []
        log.info("opened %d partitions in %d ms", len(missing), self.now_ms() - began_ms)

    def partition_opened(self, partition: Partition) -> None:
        """A partition can be read and written."""
        self.transactions.partition_opened(partition)
        self.waiters.wake(partition)

    # -- work --------------------------------------------------------------------------------------------------

    def _advanced(self, partition: Partition) -> None:
        """More of a partition is durable, or decided."""
        if partition is self.groups.journal.partition:
            self.groups.journal.settle()
        else:
            self.transactions.advanced(partition)
        self.waiters.wake(partition)

    def append_refused(self, topic: str, index: int, error: Unavailable) -> None:
        """A partition's disk takes nothing. Producers only try again, so the log says it, once in a while."""
        if self.now_ms() - self._refused_appends_told_ms >= REFUSED_APPENDS_TOLD_EVERY_MS:
            self._refused_appends_told_ms = self.now_ms()
            log.error("nothing can be written to %s-%d; its producers try again: %s", topic, index, error)

    async def create_topic(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic. Others are served meanwhile; whoever asked may go, and it is created all the same.

        Raises:
            Refused: the name, the count or a setting is not valid, the topic is there, or the disk takes no more;
                nothing changed.
        """
        topic = self.topics.reserve(name, partition_count, configs)

        async def make() -> None:
            try:
                partitions = await asyncio.to_thread(
                    self.topics.make_partitions, topic, range(partition_count)
                )
                self.topics.publish(topic, partitions)
            finally:
                self.topics.release(topic)
            log.info("created topic %s with %d partitions", name, partition_count)

        await self._make(make())
        return topic

    async def add_partitions(self, name: str, partition_count: int) -> None:
        """Give a topic more partitions. Others are served meanwhile.

        Raises:
            Refused: there is no such topic, it has as many already, or the disk takes no more; nothing changed.
        """
        topic = self.topics.reserve_more(name, partition_count)

        async def make() -> None:
            indexes = range(topic.partition_count, partition_count)
            try:
                added = await asyncio.to_thread(self.topics.make_partitions, topic, indexes)
                self.topics.publish_more(topic, added)
            finally:
                self.topics.release(topic)

        await self._make(make())

    async def _make(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="making partitions")
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        await asyncio.shield(task)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, what groups have committed for it, and all who wait for it.

        Raises:
            Refused: there is no such topic, or the broker needs it.
        """
        opening = [task for topic, task in self._opening if topic.name == name and not task.done()]
        if opening:
            await asyncio.wait(opening)  # a thread is at work in its directories
        await self.compactor.leave(name)
        await self.flush.idle()
        topic = self.topics.delete(name)
        for index in range(topic.partition_count):
            self.transactions.partition_gone((name, index), topic.group)
        for partition in topic.partitions.values():
            self.flush.forget(partition, Unavailable(f"topic {name} was deleted"))
            self.waiters.wake(partition)
        self.groups.apply(self.groups.coordinator.topic_deleted(name, now_ms=self.now_ms()))
        await self.groups.journal.settled()

    async def _keep_house(self) -> None:
        overdue_s = self.config["transaction.abort.timed.out.transaction.cleanup.interval.ms"] / 1000
        retention_ms = self.config["log.retention.check.interval.ms"]
        retention_due_ms = self.now_ms() + retention_ms
        while True:
            await asyncio.sleep(overdue_s)
            try:
                for group in self.transactions:
                    group.apply(group.coordinator.tick(self.now_ms()))
                    await self._trim(group.journal, group.coordinator.checkpoint)
                await self._trim(self.groups.journal, self.groups.coordinator.checkpoint)
                if self.now_ms() >= retention_due_ms:
                    retention_due_ms = self.now_ms() + retention_ms
                    await self.apply_retention()
            except StablelogError as error:
                log.error("housekeeping failed; it is tried again: %s", error)

    async def _trim(self, journal: Journal, live: Callable[[], Iterable[tuple[bytes, bytes | None]]]) -> None:
        """Trim a coordinator's log to its live state, if it has grown.

        Not before everything is durable: a marker that a crash takes from its partition is written again from the
        decision in the log.
        """
        before_offset = journal.checkpoint_if_grown(live)
        if before_offset is None:
            return
        waits = [
            self.flush.durable(partition, partition.end_offset) for partition in self.topics.open_partitions()
        ]
        for wait in waits:
            if wait is not None:
                await wait
        journal.trim(before_offset)
        self.topics.write_log_starts()

    async def apply_retention(self) -> None:
        """Delete what is too old or too much, in every partition."""
        for partition in self.topics.open_partitions():
            if is_internal(partition.topic):
                partition.remove_deleted(self.now_ms())
                continue
            deleted = partition.apply_retention(self.now_ms())
            if deleted:
                log.info("deleted %d segments of %s-%d", deleted, partition.topic, partition.index)
            partition.expire_producers(self.now_ms())
            partition.remove_deleted(self.now_ms())
            await asyncio.sleep(0)  # others are served between two partitions
        self.topics.write_log_starts()
        self.topics.remove_deleted()

    # -- stop --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Write out everything and leave the directory so that the next start has nothing to recover."""
        await asyncio.gather(*self._making, return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        # After a sync that failed, one that succeeds proves nothing: the next start has to read what is there.
        failed = self.flush.failed is not None or any(isinstance(result, Exception) for result in results)
        if hasattr(self, "groups"):
            self.groups.close()
        self.flush.close()
        self.compactor.close()
        if self._clean_shutdown_allowed and not failed:
            all_open = all(len(topic.partitions) == topic.partition_count for topic in self.topics)
            if self.topics.close() and all_open:
                self.disk.write_atomic(
                    self.directory / CLEAN_SHUTDOWN_FILE, b'{"version":0,"brokerEpoch":-1}'
                )
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _new_cluster_id() -> str:
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
