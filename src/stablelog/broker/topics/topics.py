"""The topics of a data directory, and their partitions.

`catalog` reads and writes the list of topics. A directory that Apache Kafka wrote has no list: `kafka_import` finds its
topics.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path

from kio.schema.errors import ErrorCode

from stablelog.broker.config import BrokerConfig, check_change
from stablelog.broker.durability.disk_reserve import DiskReserve
from stablelog.broker.topic_names import check_not_own, is_internal
from stablelog.broker.topics.kafka_topics import adopt_topics
from stablelog.broker.topics.leftovers import Leftovers
from stablelog.broker.topics.partition_directories import PartitionDirectories, Start
from stablelog.broker.topics.partition_state import COMMON, Codes, PartitionState
from stablelog.broker.topics.side_by_side import close_each, give_up, make_each
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_checkpoints import TopicCheckpoints
from stablelog.broker.topics.topic_reservations import Reservations
from stablelog.data_directory.catalog import CATALOG_FILE, DeletedTopic, encode_catalog, read_catalog
from stablelog.env.disk import Disk
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.log.recovery.epoch_check import latest_epoch_of_all
from stablelog.log.segments.open_files import OpenFiles, open_segments_max

log = logging.getLogger(__name__)


class Topics:
    """The topics of one data directory.

    Args:
        config: the broker's settings, which apply where a topic has no value of its own.
        reserve: frees disk space for the list of topics and the checkpoints if the disk is full.
        on_failure: called once with each open partition that fails, for any cause, and the reason.

    Attributes:
        version: a number that changes whenever a topic is created, grows or is deleted.
        cluster_id: id of the cluster that the data directory belongs to.
        leader_epoch: the broker's leader epoch; each start of the broker has a greater one.
        clean: whether the last broker that used the directory has stopped cleanly.
        is_taking_over: whether Apache Kafka or an earlier version wrote the directory; False after `taken_over`.
        checkpoints: the offset checkpoints of the directory.
        directories: the directories of the partitions.
        reservations: the names of topics that are being created, grown or deleted.
        leftovers: removes the directories of deleted topics, and those that a crash has left.
        deleted: the deleted topics that may still have objects in the object store, by topic id.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        reserve: DiskReserve | None = None,
        on_failure: Callable[[Partition, UnavailableError], None] = lambda _partition, _why: None,
    ) -> None:
        self._disk = disk
        self._reserve = reserve or DiskReserve(disk, directory, 0)
        self._directory = directory
        self._config = config
        self._open_files = OpenFiles(open_segments_max())
        self._on_failure = on_failure
        self.leftovers = Leftovers(disk, directory)
        self.version = 0
        self._topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self.deleted: dict[uuid.UUID, DeletedTopic] = {}
        self.reservations = Reservations(self._topics, config)
        self.checkpoints = TopicCheckpoints(disk, directory, self._reserve, self.open_partitions)
        self.directories = PartitionDirectories(disk, directory, self._reserve, self.checkpoints, now_ms)
        self.cluster_id = ""
        self.leader_epoch = -1
        self._established_epoch: int | None = None
        self._is_complete = True  # Whether every partition has all files that this release writes.
        self.clean = True
        self.is_taking_over = False

    # -- the list ----------------------------------------------------------------------------------------------

    def load(self, *, clean: bool, cluster_id: str = "") -> None:
        """Read the list of topics. The caller opens the partitions afterwards with `open_partition`.

        Args:
            clean: whether the last broker that used the directory has stopped cleanly.
            cluster_id: id of the cluster that the data directory belongs to.

        Raises:
            NewerFormatError: a later release has written the directory; nothing was changed.
            DamageError: the list is damaged or missing, or a file of a directory of Apache Kafka is damaged; nothing
                was changed.
        """
        self.clean = clean
        self.cluster_id = cluster_id
        catalog = read_catalog(self._disk, self._directory)
        if catalog is None:
            listed = adopt_topics(self._disk, self._directory)
            self.is_taking_over = bool(listed)
        else:
            self.leader_epoch, listed = catalog.leader_epoch, catalog.topics
            self._established_epoch = catalog.established_epoch
            self.deleted = {topic.topic_id: topic for topic in catalog.deleted}
            self.is_taking_over = catalog.established_epoch is None
        for topic in listed:
            log_config = self._config.log_config(topic.configs)
            self._add(Topic(topic.name, topic.topic_id, topic.partition_count, topic.configs, log_config))
        if catalog is not None:
            counts = {topic.name: topic.partition_count for topic in listed}
            self.leftovers.remove_unlisted(counts)
            self.leftovers.remove_deleted()
        self.checkpoints.load(self._topics.values(), is_taking_over=self.is_taking_over)
        # Every start has its own leader epoch. After an unclean stop, new records may be written at the offsets of lost
        # records. The epoch tells a reader which of the two it has read. Take account of the epochs in the logs, too,
        # because the list of topics may have been restored from a backup that is older than the logs.
        self.leader_epoch = self._latest_epoch() + 1
        if not self.is_taking_over and self._established_epoch is None:
            self._established_epoch = self.leader_epoch  # The data directory is new.
        self._write_list()
        if self.is_taking_over:
            self._is_complete = self.directories.complete(self)
        self.checkpoints.make_recovery_points_durable()

    @property
    def _start(self) -> Start:
        return Start(self.clean, self.leader_epoch, self._established_epoch)

    def _latest_epoch(self) -> int:
        """The greatest leader epoch in the list of topics and in the partitions' logs."""
        # A partition that is missing or unreadable is skipped here: its error is reported when it is opened.
        directories = (
            self.directories.path(topic.name, index)
            for topic in self
            for index in range(topic.partition_count)
        )
        latest = latest_epoch_of_all(self._disk, directories, self.leader_epoch)
        if latest > self.leader_epoch and not self.is_taking_over:
            log.warning(
                "%s has leader epoch %d, and the logs have %d: the file is an older copy. It lacks topics that were created, "
                "deleted or changed since. Restore the latest copy if there is one",
                self._directory / CATALOG_FILE,
                self.leader_epoch,
                latest,
            )
        return latest

    def taken_over(self) -> None:
        """Record that the takeover of a directory of Apache Kafka or of version 1 is complete. Durable on return.

        If a file of a partition could not be read, nothing is recorded: the next start takes the directory over again.
        """
        if not self._is_complete:
            return
        self.is_taking_over = False
        self._established_epoch = self.leader_epoch
        self._write_list()

    def _write_list(self) -> None:
        """Write the list of topics. Durable on return.

        Raises:
            RefusedError: the disk refuses the write; the list on disk is unchanged.
        """
        self.version += 1
        path = self._directory / CATALOG_FILE
        content = encode_catalog(
            self.cluster_id,
            self.leader_epoch,
            self._established_epoch,
            [topic.listed for topic in self._topics.values()],
            self.deleted.values(),
        )
        try:
            self._reserve.write_atomic(path, content)
        except UnavailableError as error:
            log.error("%s cannot be written: %s", path, error)
            raise RefusedError(
                ErrorCode.kafka_storage_error, f"the list of topics cannot be written: {error}"
            ) from error

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._names[topic.topic_id] = topic.name
        self.reservations.listed(topic.name)

    # -- looking up --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def get(self, name: str) -> Topic | None:
        """The topic of this name; None if there is none."""
        return self._topics.get(name)

    def named(self, name: str) -> Topic:
        """The topic of this name.

        Raises:
            RefusedError: no topic has this name.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        return topic

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        """The name of the topic with this id; None if there is none."""
        return self._names.get(topic_id) if topic_id is not None else None

    def state(self, name: str, index: int) -> PartitionState:
        """Return the state of a partition: open, or the reason why it serves no requests."""
        topic = self._topics.get(name)
        return PartitionState.UNKNOWN if topic is None else topic.state(index)

    def partition(self, name: str, index: int, codes: Codes = COMMON) -> Partition:
        """Return an open partition.

        Args:
            name: the topic's name.
            index: the partition's index.
            codes: the API's error codes for a partition that is opening, offline or unknown.

        Raises:
            RefusedError: the partition is opening, offline or unknown; the error has the code for that state.
        """
        topic = self.named(name)
        partition = topic.partitions.get(index)
        if partition is not None and partition.failure is None:
            return partition
        raise codes.refusal(topic.state(index), topic.why_not_open(index))

    def open_partitions(self) -> Iterator[Partition]:
        """Yield every open partition, including those that have failed since they were opened.

        The caller may await between two partitions: a partition that was deleted or replaced meanwhile is skipped.
        """
        for topic in self:
            for partition in list(topic.partitions.values()):
                if self.has(partition):
                    yield partition

    def has(self, partition: Partition) -> bool:
        """Whether a partition is still in use: not deleted or replaced. Callers check this again after each await."""
        topic = self._topics.get(partition.topic)
        return topic is not None and topic.partitions.get(partition.index) is partition

    # -- changing ----------------------------------------------------------------------------------------------

    def create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic with open, empty partitions; it may be an internal topic. Durable on return.

        Raises:
            RefusedError: the name, the count or a setting is not valid, or the topic exists; nothing changed.
        """
        topic = self.reserve(name, partition_count, configs, own=is_internal(name))
        try:
            return self.publish(topic, self.make_partitions(topic, range(partition_count)))
        finally:
            self.release(topic)

    # The next methods are the steps of `create`. Creating many partitions takes long, so `make_partitions` may run in a
    # thread.

    def reserve(
        self, name: str, partition_count: int, configs: Mapping[str, str], *, own: bool = False
    ) -> Topic:
        """Make the new topic's object and reserve its name until `release`.

        Raises:
            RefusedError: as `create` would.
        """
        if not is_internal(name):
            configs = {**self._config.creation_configs(), **configs}
        self.reservations.check_new(name, partition_count, configs, own=own)
        self.reservations.reserve(name, partition_count)
        return Topic(name, uuid.uuid4(), 0, dict(configs), self._config.log_config(configs))

    def make_partitions(self, topic: Topic, indexes: Iterable[int]) -> dict[int, Partition]:
        """Create and open partitions of a topic. After an error none of them is open. May run in a thread.

        Raises:
            RefusedError: the disk is full.
        """
        made: dict[int, Partition] = {}
        try:
            make_each(
                partial(self.directories.make, topic, start=self._start),
                list(indexes),
                made,
            )
            # Connect the partitions in this thread: thousands of them would block the event loop.
            self._connect(made.values())
        except UnavailableError as error:
            give_up(made.values())
            what = ("partitions of " if topic.name in self._topics else "topic ") + topic.name
            log.error("%s cannot be created: %s", what, error)
            raise RefusedError(ErrorCode.kafka_storage_error, f"{what} cannot be created: {error}") from error
        except StablelogError:
            give_up(made.values())
            raise
        return made

    def publish(self, topic: Topic, made: Mapping[int, Partition]) -> Topic:
        """Add a new topic, or new partitions of a topic, to the list of topics. Durable on return.

        Raises:
            RefusedError: the disk refuses the write of the list of topics; the new partitions are closed.
        """
        is_new = topic.name not in self._topics
        if is_new:
            self._add(topic)
        topic.partition_count += len(made)
        try:
            self._write_list()
        except RefusedError:
            topic.partition_count -= len(made)
            if is_new:
                self._forget(topic)
            give_up(made.values())
            raise
        topic.partitions.update(made)
        self.reconfigure([topic])  # Settings may have changed while the partitions were created.
        return topic

    def release(self, topic: Topic) -> None:
        """End the reservation of a topic's name: the topic is now in the list of topics, or was not created."""
        self.reservations.release(topic.name)

    def reserve_more(self, name: str, partition_count: int) -> Topic:
        """Reserve new partitions of a topic. The caller then creates and publishes the partitions.

        Raises:
            RefusedError: the topic does not exist, has that many partitions already, or is getting more partitions now;
                nothing changed.
        """
        topic = self.named(name)
        more = partition_count - topic.partition_count
        if more <= 0:
            raise RefusedError(
                ErrorCode.invalid_partitions,
                f"{name} has {topic.partition_count} partitions, and their number can only grow; the request asks for {partition_count}",
            )
        self.reservations.check_count(more)
        self.reservations.reserve(name, more)
        return topic

    def _connect(self, partitions: Iterable[Partition]) -> None:
        """Connect partitions to the failure callback and to the shared limit of open segments."""
        for partition in partitions:
            partition.open_files.join(self._open_files)
            partition.usability.on_failure = partial(self._on_failure, partition)

    # The next methods are the steps of a deletion. `set_aside` renames many directories, so it may run in a thread.

    def unlist(self, name: str) -> Topic:
        """Remove a topic from the list of topics. Durable on return.

        If the topic has a remote tier, the list keeps its name and id, until `deleted_from_store` is called. From then on every read or write of its partitions fails, and the topic's name stays reserved until `release`.

        Raises:
            RefusedError: the topic does not exist, is an internal topic, or is getting more partitions now, or the disk
                refuses the write of the list of topics; nothing changed.
        """
        topic = self.named(name)
        check_not_own(name)
        self.reservations.reserve(name, 0)
        self._forget(topic)
        if self.directories.has_remote_tier(topic):
            self.deleted[topic.topic_id] = DeletedTopic(name, topic.topic_id, topic.partition_count)
        try:
            self._write_list()
        except RefusedError:
            self.deleted.pop(topic.topic_id, None)
            self._add(topic)
            self.release(topic)
            raise
        for partition in topic.partitions.values():
            partition.usability.close()
        return topic

    def deleted_from_store(self, topic: DeletedTopic) -> None:
        """Record that the object store has no more objects of a deleted topic. Raises RefusedError as `unlist`."""
        del self.deleted[topic.topic_id]
        try:
            self._write_list()
        except RefusedError:
            self.deleted[topic.topic_id] = topic
            raise

    def set_aside(self, topic: Topic) -> None:
        """Rename the directories of an unlisted topic, in any thread. Raises DiskError if the disk has no space."""
        for index in range(topic.partition_count):
            self.directories.set_aside(topic, index)
        self._written(partial(self._disk.sync_dir, self._directory))

    def forget_files(self, topic: Topic) -> None:
        """Remove the offsets of a deleted topic from the checkpoint files."""
        self._written(partial(self.checkpoints.forget, topic.name, self._topics.keys()))

    def configure(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the settings of the topic itself. Durable on return.

        Raises:
            UsageError: a setting is not valid; nothing changed.
            RefusedError: the disk refuses the write of the list of topics; nothing changed.
        """
        check_change(topic.configs, configs)
        self._config.check_tiered(configs, topic.configs)
        before, topic.configs = topic.configs, dict(configs)
        try:
            self._write_list()
        except RefusedError:
            topic.configs = before
            raise
        self.reconfigure([topic])

    def reconfigure(self, topics: "list[Topic] | None" = None) -> None:
        """Apply the present settings to the open partitions of these topics (by default of all topics)."""
        # Most topics have the same settings: thousands of topics share the result.
        log_config = cache(lambda own: self._config.log_config(dict(own)))
        for topic in topics if topics is not None else self:
            topic.log_config = log_config(frozenset(topic.configs.items()))
            for partition in topic.partitions.values():
                partition.reconfigure(topic.log_config)

    def _forget(self, topic: Topic) -> None:
        del self._topics[topic.name]
        del self._names[topic.topic_id]
        self.reservations.unlisted(topic.name)

    # -- partitions --------------------------------------------------------------------------------------------

    def open_partition(
        self, topic: Topic, index: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Open a partition of a topic that exists, and recover it if the last stop was not clean.

        Raises:
            DamageError: synced data is damaged or missing; the partition stays closed.
        """
        self.publish_partition(topic, self.recover_partition(topic, index, progress))

    # The next two methods are the steps of `open_partition`. Recovery takes long, so `recover_partition` may run in a
    # thread.

    def recover_partition(
        self, topic: Topic, index: int, progress: Callable[[int, int], None] | None = None
    ) -> Partition:
        """Open a partition without publishing it. May run in a thread; raises as `open_partition` does."""
        return self.directories.recover(topic, index, self._start, progress)

    def publish_partition(self, topic: Topic, partition: Partition) -> None:
        """Publish a recovered partition, so that requests can use it."""
        partition.reconfigure(topic.log_config)  # The settings may have changed during recovery.
        topic.offline.pop(partition.index, None)
        self._connect([partition])
        topic.partitions[partition.index] = partition
        self.checkpoints.opened((topic.name, partition.index))

    def close(self) -> bool:
        """Close every partition, and write the checkpoint files. Returns whether the next start needs no recovery."""
        clean = self._written(self.checkpoints.log_starts.update)
        marks = {(p.topic, p.index): p.high_watermark for p in self.open_partitions()}
        failed = {partition for partition in self.open_partitions() if partition.failure is not None}
        for partition, closed in close_each(self.open_partitions(), self._reserve):
            at = (partition.topic, partition.index)
            try:
                closed()
            except StablelogError as error:
                log.error("closing %s-%d failed; it will be recovered at the next start: %s", *at, error)
                clean = False
                continue
            if partition in failed:
                clean = False
                continue
            marks[at] = partition.high_watermark
            self.checkpoints.closed(at, partition.log.synced_offset)
        written = self._written(
            self.checkpoints.make_recovery_points_durable,
            partial(self.checkpoints.write_high_watermarks, marks),
        )
        return clean and written

    def _written(self, *writes: Callable[[], None]) -> bool:
        """Run functions that write files for the next start. A disk error is logged. Returns whether all succeeded."""
        try:
            for write in writes:
                write()
        except UnavailableError as error:
            log.error("a file cannot be written at the stop, so the next start recovers more: %s", error)
            return False
        return True
