"""The files of topics: the steps that read and write files when the broker starts or stops, and when topics are
created, changed and deleted.

`topic_list` decides which changes are allowed, and `topic_changes` calls the steps in the right order. Each step that
changes the list of topics is durable on return.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from kio.schema.errors import ErrorCode

from stablelog.broker.runtime import Runtime
from stablelog.broker.topic_names import is_internal
from stablelog.broker.topics.kafka_topics import adopt_topics
from stablelog.broker.topics.leftovers import Leftovers
from stablelog.broker.topics.open_partitions import OpenPartitions
from stablelog.broker.topics.partition_directories import BrokerStart, PartitionDirectories
from stablelog.broker.topics.side_by_side import close_each, close_new, make_each
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_checkpoints import TopicCheckpoints
from stablelog.broker.topics.topic_list import TopicList
from stablelog.data_directory.catalog import CATALOG_FILE, Catalog, DeletedTopic, read_catalog
from stablelog.errors import RefusedError, StablelogError, UnavailableError
from stablelog.log.partition import Partition
from stablelog.log.recovery.epoch_check import latest_epoch_of_all

log = logging.getLogger(__name__)


class TopicFiles:
    """The files of the topics of one data directory.

    Args:
        topics: the list of topics, which is empty until `load`.
        partitions: the open partitions.

    Attributes:
        clean: whether the last broker that used the directory has stopped cleanly, so that no partition needs recovery.
        is_taking_over: whether Apache Kafka wrote the directory, and its takeover by this broker is not complete:
            `taken_over` sets this to False.
        checkpoints: the offset checkpoints of the directory.
        directories: the directories of the partitions.
        leftovers: removes the directories of deleted topics, and those that a crash has left.
    """

    def __init__(self, topics: TopicList, partitions: OpenPartitions, runtime: Runtime) -> None:
        self.topics = topics
        self.partitions = partitions
        self._disk = runtime.disk
        self._directory = runtime.directory
        self._reserve = runtime.reserve
        self.leftovers = Leftovers(runtime.disk, runtime.directory)
        self.checkpoints = TopicCheckpoints(
            runtime.disk, runtime.directory, runtime.reserve, lambda: partitions
        )
        self.directories = PartitionDirectories(runtime, self.checkpoints)
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
            UnknownFormatError: a later release has written the directory; nothing was changed.
            DamageError: the list is damaged or missing, or a file of a directory of Apache Kafka is damaged; nothing
                was changed.
        """
        self.clean = clean
        topics = self.topics
        catalog = read_catalog(self._disk, self._directory)
        if catalog is None:
            found = adopt_topics(self._disk, self._directory)
            topics.fill(Catalog(cluster_id, -1, None, found))
            self.is_taking_over = bool(found)
        else:
            topics.fill(catalog)
            topics.cluster_id = cluster_id
            self.is_taking_over = catalog.established_epoch is None
        self.partitions.add_topics(topics)
        if catalog is not None:
            self.leftovers.remove_unlisted({topic.name: topic.partition_count for topic in topics})
            self.leftovers.remove_deleted()
        self.checkpoints.load(list(topics), is_taking_over=self.is_taking_over)
        # Every start has its own leader epoch. After an unclean stop, new records may be written at the offsets of lost
        # records. The epoch tells a reader which of the two it has read. Take account of the epochs in the logs, too,
        # because the list of topics may have been restored from a backup that is older than the logs.
        topics.leader_epoch = self._latest_epoch() + 1
        if not self.is_taking_over and topics.established_epoch is None:
            topics.established_epoch = topics.leader_epoch  # The data directory is new.
        self._write_list()
        if self.is_taking_over:
            self._is_complete = self.directories.complete(topics)
        self.checkpoints.make_recovery_points_durable()

    @property
    def _start(self) -> BrokerStart:
        return BrokerStart(self.clean, self.topics.leader_epoch, self.topics.established_epoch)

    def _latest_epoch(self) -> int:
        """Return the greatest leader epoch in the list of topics and in the partitions' logs."""
        # A partition that is missing or unreadable is skipped here: its error is reported when it is opened.
        directories = (
            self.directories.path(topic.name, index)
            for topic in self.topics
            for index in range(topic.partition_count)
        )
        listed = self.topics.leader_epoch
        latest = latest_epoch_of_all(self._disk, directories, listed)
        if latest > listed and not self.is_taking_over:
            log.warning(
                "%s has leader epoch %d, and the logs have %d: the file is an older copy. It lacks the changes to topics "
                "that were made since. Restore the latest copy of the file if there is one",
                self._directory / CATALOG_FILE,
                listed,
                latest,
            )
        return latest

    def taken_over(self) -> None:
        """Record that the takeover of a directory of Apache Kafka is complete: each partition has all files of
        stablelog. Durable on return.

        If a file of a partition could not be read, nothing is recorded: the next start repeats the takeover.
        """
        if not self._is_complete:
            return
        self.is_taking_over = False
        self.topics.established_epoch = self.topics.leader_epoch
        self._write_list()

    def _write_list(self) -> None:
        """Write the list of topics to `cluster.json`. Durable on return.

        Raises:
            RefusedError: the disk refuses the write. The file is unchanged.
        """
        path = self._directory / CATALOG_FILE
        try:
            self._reserve.write_atomic(path, self.topics.encoded())
        except UnavailableError as error:
            log.error("%s cannot be written: %s", path, error)
            raise RefusedError(
                ErrorCode.kafka_storage_error, f"the list of topics cannot be written: {error}"
            ) from error

    def configure(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Replace the settings of the topic itself, and apply them to its partitions. Durable on return.

        Raises:
            UsageError: a setting is not valid; nothing changed.
            RefusedError: the disk refuses the write of the list of topics; nothing changed.
        """
        self.topics.check_configs(topic, configs)
        before, topic.configs = topic.configs, dict(configs)
        try:
            self._write_list()
        except RefusedError:
            topic.configs = before
            raise
        self.partitions.reconfigure([topic])

    # -- creation ----------------------------------------------------------------------------------------------

    def create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic with open, empty partitions; it may be an internal topic. Durable on return.

        Raises:
            RefusedError: the name, the count or a setting is not valid, or the topic exists; nothing changed.
        """
        topic = self.topics.reserve_new(
            name, partition_count, configs, topic_id=uuid.uuid4(), own=is_internal(name)
        )
        try:
            return self.publish(topic, self.make_partitions(topic, range(partition_count)))
        finally:
            self.topics.end_reservation(topic)

    # The next two methods are the steps of `create`. Creating many partitions takes long, so `make_partitions` may run
    # in a thread.

    def make_partitions(self, topic: Topic, indexes: Iterable[int]) -> dict[int, Partition]:
        """Create and open partitions of a topic, and return them by index. If one cannot be created, the others are
        closed again. May run in a thread.

        Raises:
            RefusedError: the disk is full.
        """
        made: dict[int, Partition] = {}
        log_config = self.partitions.log_config(topic)
        try:
            make_each(
                partial(self.directories.make, topic, start=self._start, log_config=log_config),
                list(indexes),
                made,
            )
            # Connect the partitions in this thread: thousands of them would block the event loop.
            self.partitions.connect(made.values())
        except UnavailableError as error:
            close_new(made.values())
            what = ("partitions of " if self.topics.get(topic.name) is topic else "topic ") + topic.name
            log.error("the broker cannot create %s: %s", what, error)
            raise RefusedError(
                ErrorCode.kafka_storage_error, f"the broker cannot create {what}: {error}"
            ) from error
        except StablelogError:
            close_new(made.values())
            raise
        return made

    def publish(self, topic: Topic, made: Mapping[int, Partition]) -> Topic:
        """Add a new topic, or new partitions of a topic, to the list of topics and to the open partitions. Durable on
        return.

        Returns:
            The topic as the list now contains it.

        Raises:
            RefusedError: the disk refuses the write of the list of topics; the new partitions are closed.
        """
        is_new = self.topics.get(topic.name) is not topic
        if is_new:
            self.topics.add(topic)
        self.topics.grow(topic, len(made))
        try:
            self._write_list()
        except RefusedError:
            self.topics.grow(topic, -len(made))
            if is_new:
                self.topics.remove(topic)
            close_new(made.values())
            raise
        if is_new:
            self.partitions.add_topics([topic])
        self.partitions.add_created(topic, made)
        return topic

    # -- deletion ----------------------------------------------------------------------------------------------

    # The next methods are the steps of a deletion. `set_aside` renames many directories, so it may run in a thread.

    def unlist(self, name: str) -> Topic:
        """Reserve the name of a topic, and remove the topic from the list of topics. Durable on return.

        If the topic has a remote tier (data in an object store), the file `cluster.json` keeps its name and id among
        the deleted topics, until `deleted_from_store` is called. After this method has returned, every read or write of
        the topic's partitions fails, and its name stays reserved until `end_reservation`.

        Raises:
            RefusedError: the topic does not exist, is an internal topic, or is getting more partitions now, or the disk
                refuses the write of the list of topics; nothing changed.
        """
        topics = self.topics
        topic = topics.reserve_deletion(name)
        topics.remove(topic)
        if self._has_remote_tier(topic):
            topics.deleted[topic.topic_id] = DeletedTopic(name, topic.topic_id, topic.partition_count)
        try:
            self._write_list()
        except RefusedError:
            topics.deleted.pop(topic.topic_id, None)
            topics.add(topic)
            topics.end_reservation(topic)
            raise
        self.partitions.end_use(topic)
        return topic

    def _has_remote_tier(self, topic: Topic) -> bool:
        """Return whether a topic has, or ever had, a remote tier: data in an object store."""
        opened = self.partitions.of_topic(topic)
        return self.partitions.log_config(topic).is_tiered or any(
            opened[index].remote is not None
            if index in opened
            else self.directories.has_remote_record(topic, index)
            for index in range(topic.partition_count)
        )

    def deleted_from_store(self, topic: DeletedTopic) -> None:
        """Record that the object store has no objects of a deleted topic any more. Raises RefusedError as `unlist`
        does.
        """
        deleted = self.topics.deleted
        del deleted[topic.topic_id]
        try:
            self._write_list()
        except RefusedError:
            deleted[topic.topic_id] = topic
            raise

    def set_aside(self, topic: Topic) -> None:
        """Set the partition directories of a deleted topic aside: rename them, so that a new topic of the same name can
        use their paths. May run in a thread.

        Raises:
            DiskError: the disk has no space for the new names.
        """
        for index in range(topic.partition_count):
            self.directories.set_aside(topic, index)
        self._written(partial(self._disk.sync_dir, self._directory))

    def forget_files(self, topic: Topic) -> None:
        """Remove the offsets of a deleted topic from the checkpoint files, so that a new topic of the same name does
        not get them.
        """
        self._written(partial(self.checkpoints.remove_topic, topic.name, self.topics.names))

    # -- opening -----------------------------------------------------------------------------------------------

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
        """Open a partition, and return it without making it usable for requests: `publish_partition` does that. May run
        in a thread. Raises the errors of `open_partition`.
        """
        return self.directories.recover(
            topic,
            index,
            self._start,
            log_config=self.partitions.log_config(topic),
            failed=self.partitions.of_topic(topic).get(index),
            progress=progress,
        )

    def publish_partition(self, topic: Topic, partition: Partition) -> None:
        """Publish a recovered partition, so that requests can use it."""
        self.partitions.add_recovered(topic, partition)
        self.checkpoints.remove_recovery_point((topic.name, partition.index))

    # -- stop --------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Close every partition, and write the checkpoint files. Returns whether all was written, so that the next
        start needs no recovery.
        """
        clean = self._written(self.checkpoints.log_starts.write_if_changed)
        marks = {(p.topic, p.index): p.high_watermark for p in self.partitions}
        failed = {partition for partition in self.partitions if partition.failure is not None}
        for partition, closed in close_each(self.partitions, self._reserve):
            at = (partition.topic, partition.index)
            try:
                closed()
            except StablelogError as error:
                log.error(
                    "closing %s-%d failed; the next start checks its log again, and nothing is lost: %s",
                    *at,
                    error,
                )
                clean = False
                continue
            if partition in failed:
                clean = False
                continue
            marks[at] = partition.high_watermark
            self.checkpoints.add_recovery_point(at, partition.log.synced_offset)
        written = self._written(
            self.checkpoints.make_recovery_points_durable,
            partial(self.checkpoints.write_high_watermarks, marks),
        )
        return clean and written

    def _written(self, *writes: Callable[[], None]) -> bool:
        """Run functions that write files for the next start, and return whether all succeeded. A disk error
        is logged.
        """
        try:
            for write in writes:
                write()
        except UnavailableError as error:
            log.error("a file cannot be written at the stop, so the next start recovers more: %s", error)
            return False
        return True
