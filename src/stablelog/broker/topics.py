"""The topics of a data directory, and their partitions.

The list of topics is `catalog`'s. A directory that Apache Kafka wrote has none: its topics are found by `kafka_import`.
"""

import logging
import resource
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from kio.schema.errors import ErrorCode

from stablelog.broker.catalog import CATALOG_FILE, ListedTopic, encode_catalog, read_catalog
from stablelog.broker.checkpoints import (
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    ChangedOffsets,
    OffsetCheckpoint,
    RecoveryPoints,
    read_if_whole,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stablelog.broker.config import (
    SETTLED_AT_CREATION,
    BrokerConfig,
    check_change,
    check_topic_configs,
    default_of,
    group_of_topic,
    order_of,
)
from stablelog.broker.disk_reserve import DiskReserve
from stablelog.broker.kafka_import import find_topics
from stablelog.broker.leftovers import DELETED, Leftovers, holds_records, strange_names
from stablelog.broker.partition_metadata import (
    METADATA_FILE,
    decode_partition_metadata,
    write_partition_metadata,
)
from stablelog.broker.partition_state import COMMON, Codes, PartitionState
from stablelog.broker.side_by_side import close_each, make_each
from stablelog.broker.topic_names import (
    NAME_SIZE_MAX,
    check_not_internal,
    check_topic_name,
    is_internal,
    without_dots,
)
from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, InvalidConfig, NewerFormat, Refused, StablelogError, Unavailable
from stablelog.log.epoch_check import latest_epoch_of_all
from stablelog.log.formats import check_formats
from stablelog.log.listing import Listing
from stablelog.log.log_start import LOG_START_FILE, write_missing_log_start
from stablelog.log.model import LogConfig
from stablelog.log.names import VIEW_START_FILE
from stablelog.log.partition import Partition
from stablelog.log.recovery import NEVER
from stablelog.log.segment import OpenFiles
from stablelog.views.commit_ordered import CommitOrderedPartition
from stablelog.views.last_commit import last_commit_sequence

log = logging.getLogger(__name__)

# Of a sealed segment that is read: the log file, its map, and the maps of three indexes.
DESCRIPTORS_PER_SEGMENT = 5
OPEN_SEGMENTS_MIN = 64
OPEN_SEGMENTS_MAX = 4096  # whose maps are a quarter of what Linux allows a process

STRAY = (
    "-stray"  # what the name of a directory ends in that had the name of a new partition, and holds records
)


@dataclass(slots=True, eq=False)
class Topic:
    """A named set of partitions.

    Attributes:
        name: as clients say it.
        topic_id: tells a topic from a later one of the same name.
        configs: its own settings, by Kafka's names.
        partitions: the open ones by index; also those that have failed since.
        offline: by index, why a partition could not be opened.
        partition_count: how many there are to be.
        log_config: settings of its partitions' logs, by `configs` and the broker's settings; None until they are asked for.
    """

    name: str
    topic_id: uuid.UUID
    partition_count: int
    configs: dict[str, str] = field(default_factory=dict)
    partitions: dict[int, Partition] = field(default_factory=dict)
    offline: dict[int, str] = field(default_factory=dict)
    log_config: LogConfig | None = None

    def state(self, index: int) -> PartitionState:
        """Whether requests can be served from the partition with this index."""
        partition = self.partitions.get(index)
        if partition is not None:
            return PartitionState.OPEN if partition.failure is None else PartitionState.OFFLINE
        if not 0 <= index < self.partition_count:
            return PartitionState.UNKNOWN
        return PartitionState.OFFLINE if index in self.offline else PartitionState.OPENING

    @property
    def is_internal(self) -> bool:
        """Whether the broker keeps its own state in it."""
        return is_internal(self.name)

    @property
    def group(self) -> str:
        """The transaction group that it belongs to; empty for the default one."""
        return group_of_topic(self.configs)

    @property
    def is_commit_ordered(self) -> bool:
        """Whether read-committed readers get its records in commit order."""
        return order_of(self.configs) == "commit"


class Topics:
    """The topics of one data directory.

    Args:
        disk: where the directory lies.
        directory: the data directory.
        config: the broker's settings, for what topics do not say themselves.
        now_ms: the broker's clock.
        reserve: gives the list and the checkpoints room on a full disk.

    Attributes:
        cluster_id: of the data directory.
        leader_epoch: of this start.
        clean: whether the last broker on this directory closed it.
        is_taking_over: whether the directory is one of Apache Kafka or of an earlier version, until `taken_over`.
        on_failure: called once with each open partition that fails, whatever failed it, and the reason.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        config: BrokerConfig,
        now_ms: Callable[[], int],
        reserve: DiskReserve | None = None,
    ) -> None:
        self._disk = disk
        self._reserve = reserve or DiskReserve(disk, directory, 0)
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._open_files = OpenFiles(_open_segments_max())
        self._leftovers = Leftovers(disk, directory)
        self._topics: dict[str, Topic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._dotless: dict[str, str] = {}  # names by what metrics make of them
        self._reserved: dict[str, int] = {}  # partitions that are being made, by the same
        self._log_starts = OffsetCheckpoint(self._reserve, directory / LOG_START_CHECKPOINT)
        self._first_dirty = OffsetCheckpoint(self._reserve, directory / FIRST_DIRTY_CHECKPOINT)
        self._recovery_points = RecoveryPoints(disk, directory, self._reserve)
        self.cluster_id = ""
        self.leader_epoch = -1
        self._established_epoch: int | None = None
        self._is_complete = True  # every partition has the files of this release
        self.clean = True
        self.is_taking_over = False
        self.on_failure: Callable[[Partition, Unavailable], None] = lambda _partition, _why: None

    # -- the list ----------------------------------------------------------------------------------------------

    def load(self, *, clean: bool, cluster_id: str = "") -> None:
        """Read the list of topics. Partitions are opened afterwards, one by one, by `open_partition`.

        Args:
            clean: whether the last broker on this directory closed it.
            cluster_id: of the data directory.

        Raises:
            NewerFormat: a later release has written the directory; nothing was changed.
            Corrupt: the list is damaged or gone, or a file of a directory of Apache Kafka is damaged; nothing was
                changed.
        """
        self.clean = clean
        self.cluster_id = cluster_id
        catalog = read_catalog(self._disk, self._directory)
        if catalog is None:
            listed = find_topics(self._disk, self._directory)
            self.is_taking_over = bool(listed)
        else:
            self.leader_epoch, listed = catalog.leader_epoch, catalog.topics
            self._established_epoch = catalog.established_epoch
            self.is_taking_over = catalog.established_epoch is None
        for topic in listed:
            self._add(Topic(topic.name, topic.topic_id, topic.partition_count, topic.configs))
        if catalog is not None:
            counts = {topic.name: topic.partition_count for topic in listed}
            self._leftovers.remove_unlisted(counts)
            self._leftovers.remove_deleted()
        self._read_checkpoints()
        # Every start has an epoch of its own: what an unclean stop lost may be written again with other bytes under
        # the same offsets, and the epoch tells readers which of the two they saw. A list that was restored may be
        # older than the logs.
        self.leader_epoch = self._latest_epoch() + 1
        if not self.is_taking_over and self._established_epoch is None:
            self._established_epoch = self.leader_epoch  # of a new directory
        self._write_list()
        if self.is_taking_over:
            self._complete_partitions()
        self.make_recovery_points_durable()

    def _latest_epoch(self) -> int:
        """The greatest leader epoch of the list and of the partitions' logs."""
        # A partition that is gone or cannot be read is named when it is opened.
        directories = (
            self._directory / f"{topic.name}-{index}"
            for topic in self
            for index in range(topic.partition_count)
        )
        latest = latest_epoch_of_all(self._disk, directories, self.leader_epoch)
        if latest > self.leader_epoch and not self.is_taking_over:
            log.warning(
                "%s says leader epoch %d, and the logs have %d: it is an older copy. Topics that were created, deleted "
                "or changed since are not known",
                self._directory / CATALOG_FILE,
                self.leader_epoch,
                latest,
            )
        return latest

    def taken_over(self) -> None:
        """Take note that a directory of Apache Kafka, or of version 1, was taken over. Durable on return.

        While a partition lacks a file because it cannot be read, the next start takes the directory over again.
        """
        if not self._is_complete:
            return
        self.is_taking_over = False
        self._established_epoch = self.leader_epoch
        self._write_list()

    def _read_checkpoints(self) -> None:
        path = self._directory / LOG_START_CHECKPOINT
        if self.is_taking_over:
            self._log_starts.read(read_offset_checkpoint(self._disk, path))
        else:
            # Each partition has a file of its own that says it.
            self._log_starts.read(read_if_whole(self._disk, path, "it is written again"))
        path = self._directory / FIRST_DIRTY_CHECKPOINT
        self._first_dirty.read(read_if_whole(self._disk, path, "compaction begins at each log's start"))
        self._forget_gone()
        partitions = [(topic.name, index) for topic in self for index in range(topic.partition_count)]
        self._recovery_points.load(partitions, is_recorded=not self.is_taking_over)

    def _complete_partitions(self) -> None:
        """Write, for each partition, the files that a directory of Apache Kafka or of version 1 may lack."""
        for topic in self:
            for index in range(topic.partition_count):
                directory = self._directory / f"{topic.name}-{index}"
                if not self._disk.is_dir(directory):
                    self._is_complete = (
                        False  # named when it is opened; one that is restored lacks the files, too
                    )
                    continue
                try:
                    check_formats(Listing(self._disk, directory))
                    start_offset = self._log_starts.offsets.get((topic.name, index), 0)
                    self._write_missing_start(directory, start_offset)
                    if topic.is_commit_ordered:
                        self._write_missing_start(directory, 0, VIEW_START_FILE)
                except (Corrupt, NewerFormat):
                    self._is_complete = False  # it stays offline, and the log says why when it is opened

    def _write_missing_start(self, directory: Path, known_start: int, name: str = LOG_START_FILE) -> None:
        self._reserve.attempt(
            lambda: write_missing_log_start(self._disk, directory, known_start, name), frees=True
        )

    def _forget_gone(self) -> None:
        """Make durable that nothing is known of what is in no list: a later topic of the name begins at 0."""
        self._forget_gone_in(self._log_starts)
        self._forget_gone_in(self._first_dirty)

    def _forget_gone_in(self, file: OffsetCheckpoint) -> None:
        known = {at: offset for at, offset in file.offsets.items() if at[0] in self._topics}
        file.outdate()
        file.write(file.changed(lambda: known))

    def _write_list(self) -> None:
        """Make the list durable.

        Raises:
            Refused: the disk does not take it; the list in the directory is as it was.
        """
        path = self._directory / CATALOG_FILE
        content = encode_catalog(
            self.cluster_id,
            self.leader_epoch,
            self._established_epoch,
            [
                ListedTopic(topic.name, topic.topic_id, topic.partition_count, topic.configs)
                for topic in self._topics.values()
            ],
        )
        try:
            self._reserve.write_atomic(path, content)
        except Unavailable as error:
            log.error("%s cannot be written: %s", path, error)
            raise Refused(
                ErrorCode.kafka_storage_error, f"the list of topics cannot be written: {error}"
            ) from error

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._dotless[without_dots(topic.name)] = topic.name
        self._names[topic.topic_id] = topic.name

    # -- looking up --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Topic]:
        return iter(list(self._topics.values()))

    def get(self, name: str) -> Topic | None:
        """The topic of this name."""
        return self._topics.get(name)

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        """The name of the topic with this id."""
        return self._names.get(topic_id) if topic_id is not None else None

    def state(self, name: str, index: int) -> PartitionState:
        """Whether requests can be served from a partition."""
        topic = self._topics.get(name)
        return PartitionState.UNKNOWN if topic is None else topic.state(index)

    def partition(self, name: str, index: int, codes: Codes = COMMON) -> Partition:
        """Return an open partition.

        Args:
            name: the topic.
            index: the partition's.
            codes: how the API says that a partition is opening, offline or unknown.

        Raises:
            Refused: it is in such a state.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise codes.refusal(PartitionState.UNKNOWN, f"there is no topic {name!r}")
        partition = topic.partitions.get(index)
        if partition is not None and partition.failure is None:
            return partition
        state = topic.state(index)
        if state is PartitionState.OPENING:
            why = f"{name}-{index} is being recovered after a start, and opens by itself"
        elif state is PartitionState.OFFLINE:
            failure = topic.offline.get(index, partition and partition.failure)
            why = f"{name}-{index} is offline: {failure}. `stablelog verify` says more"
        else:
            why = f"{name} has partitions 0 to {topic.partition_count - 1}, not {index}"
        raise codes.refusal(state, why)

    def open_partitions(self) -> Iterator[Partition]:
        """Every partition that is open, also one that has failed since.

        The caller may await between two of them: one that was deleted or replaced meanwhile is not handed out.
        """
        for topic in self:
            for partition in list(topic.partitions.values()):
                if self.has(partition):
                    yield partition

    def has(self, partition: Partition) -> bool:
        """Whether this object is the partition of its name. To be asked again after each await."""
        topic = self._topics.get(partition.topic)
        return topic is not None and topic.partitions.get(partition.index) is partition

    # -- changing ----------------------------------------------------------------------------------------------

    def create(self, name: str, partition_count: int, configs: Mapping[str, str]) -> Topic:
        """Create a topic with open, empty partitions, one of the broker's own perhaps. Durable on return.

        Raises:
            Refused: the name, the count or a setting is not valid, or the topic is there; nothing changed.
        """
        topic = self.reserve(name, partition_count, configs, own=is_internal(name))
        try:
            return self.publish(topic, self.make_partitions(topic, range(partition_count)))
        finally:
            self.release(topic)

    # Making many partitions takes long: `create` in steps, of which the second may run in a thread.

    def reserve(
        self, name: str, partition_count: int, configs: Mapping[str, str], *, own: bool = False
    ) -> Topic:
        """The topic that is going to be; its name is taken until `release`.

        Raises:
            Refused: as `create` would.
        """
        if not is_internal(name):
            given = {s: self._config[s] for s in SETTLED_AT_CREATION if self._config[s] != default_of(s)}
            configs = {**given, **configs}
        self.check_new(name, partition_count, configs, own=own)
        self._reserved[without_dots(name)] = partition_count
        return Topic(name, uuid.uuid4(), partition_count, dict(configs))

    def make_partitions(self, topic: Topic, indexes: Iterable[int]) -> dict[int, Partition]:
        """Make and open directories of a topic: all of them, or none is open. May run in a thread.

        Raises:
            Refused: the disk takes no more.
        """
        made: dict[int, Partition] = {}
        try:
            make_each(partial(self._make_partition, topic), list(indexes), made)
            self._connect(made.values())  # here: for thousands it would hold the event loop
        except Unavailable as error:
            _give_up(made)
            what = ("partitions of " if topic.name in self._topics else "topic ") + topic.name
            log.error("%s cannot be made: %s", what, error)
            raise Refused(ErrorCode.kafka_storage_error, f"{what} cannot be made: {error}") from error
        except StablelogError:
            _give_up(made)
            raise
        return made

    def publish(self, topic: Topic, partitions: dict[int, Partition]) -> Topic:
        """The topic is there, with its partitions. Durable on return.

        Raises:
            Refused: the disk does not take the list; the partitions are closed.
        """
        self._add(topic)
        try:
            self._write_list()
        except Refused:
            self._forget(topic)
            _give_up(partitions)
            raise
        topic.partitions.update(partitions)
        self.reconfigure([topic])  # settings may have changed while they were made
        return topic

    def release(self, topic: Topic) -> None:
        """What was reserved is in the list now, or will not be."""
        del self._reserved[without_dots(topic.name)]

    def check_new(
        self, name: str, partition_count: int, configs: Mapping[str, str], *, own: bool = False
    ) -> None:
        """Whether `create` would do it; `own` if it is for the broker's own state.

        Raises:
            Refused: as `create` would.
        """
        check_topic_name(name)
        other = self._dotless.get(without_dots(name))
        if name in self._topics or (other is None and without_dots(name) in self._reserved):
            raise Refused(ErrorCode.topic_already_exists, f"topic {name!r} exists already")
        if not own:
            check_not_internal(name)
        if other is not None and not own:  # groups a.b and a_b are two
            raise Refused(
                ErrorCode.invalid_topic_exception,
                f"{name!r} and {other!r} differ only by . and _, which metrics cannot tell apart",
            )
        if partition_count < 1:
            raise Refused(
                ErrorCode.invalid_partitions, f"{partition_count} partitions: a topic has at least one"
            )
        self._check_room(partition_count)
        try:
            check_topic_configs(configs)
        except InvalidConfig as error:
            raise Refused(ErrorCode.invalid_config, str(error)) from error

    def _check_room(self, more: int) -> None:
        """Whether there may be so many more partitions.

        Raises:
            Refused: there would be too many.
        """
        most: int = self._config["stablelog.max.partitions"]
        count = sum(topic.partition_count for topic in self._topics.values()) + sum(self._reserved.values())
        if count + more > most:
            raise Refused(
                ErrorCode.invalid_partitions,
                f"{more} partitions more than the {count} there are would be more than stablelog.max.partitions={most}",
            )

    def reserve_more(self, name: str, partition_count: int) -> Topic:
        """The topic that is going to have so many partitions; they are to be made, and then `publish_more`d.

        Raises:
            Refused: there is no such topic, it has as many already, or it is being given some; nothing changed.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        if partition_count <= topic.partition_count:
            raise Refused(
                ErrorCode.invalid_partitions,
                f"{name} has {topic.partition_count} partitions and can be given more; {partition_count} were asked for",
            )
        if without_dots(name) in self._reserved:
            raise Refused(ErrorCode.reassignment_in_progress, f"{name} is being given partitions")
        more = partition_count - topic.partition_count
        self._check_room(more)
        self._reserved[without_dots(name)] = more
        return topic

    def publish_more(self, topic: Topic, added: Mapping[int, Partition]) -> None:
        """The topic has these partitions, too. Durable on return.

        Raises:
            Refused: it was deleted meanwhile, or the disk does not take the list; the partitions are closed.
        """
        if self._topics.get(topic.name) is not topic:
            _give_up(added)
            raise Refused(ErrorCode.unknown_topic_or_partition, f"{topic.name} was deleted")
        topic.partition_count += len(added)
        try:
            self._write_list()
        except Refused:
            topic.partition_count -= len(added)
            _give_up(added)
            raise
        topic.partitions.update(added)
        self.reconfigure([topic])

    def _connect(self, partitions: Iterable[Partition]) -> None:
        """Let partitions report their failures, and count the segments that they open with those of all others."""
        for partition in partitions:
            partition.open_files.join(self._open_files)
            partition.usability.on_failure = partial(self.on_failure, partition)

    def delete(self, name: str) -> Topic:
        """Take a topic out of the list; its directories are renamed, and removed by `remove_deleted`. Durable on return.

        A directory that cannot be renamed stays, and belongs to no topic from then on.

        Raises:
            Refused: there is no such topic, the broker needs it, or the disk does not take the list; nothing changed.
        """
        topic = self.unlist(name)
        try:
            for partition in topic.partitions.values():
                partition.close(clean=False)
            self.set_aside(topic)
            self.forget_files(topic)
        finally:
            self.release(topic)
        return topic

    # Deleting many partitions takes long: `delete` in steps, of which `set_aside` may run in a thread.

    def unlist(self, name: str) -> Topic:
        """Take a topic out of the list. Durable on return.

        Its partitions take no calls any more, and its name is taken until `release`.

        Raises:
            Refused: as `delete` would.
        """
        topic = self._topics.get(name)
        if topic is None:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
        if topic.is_internal:
            raise Refused(ErrorCode.invalid_topic_exception, f"{name} is the broker's own and stays")
        if without_dots(name) in self._reserved:
            raise Refused(ErrorCode.reassignment_in_progress, f"{name} is being given partitions")
        self._forget(topic)
        try:
            self._write_list()
        except Refused:
            self._add(topic)
            raise
        self._reserved[without_dots(name)] = 0
        for partition in topic.partitions.values():
            partition.usability.close()
        return topic

    def set_aside(self, topic: Topic) -> None:
        """Rename the directories of a topic that is not in the list. May run in a thread."""
        for index in range(topic.partition_count):
            self._set_aside(topic, index)
        self._written(partial(self._disk.sync_dir, self._directory))

    def forget_files(self, topic: Topic) -> None:
        """Have the checkpoints say nothing of a topic that is not in the list."""
        self._recovery_points.forget(topic.name)
        self._written(self._forget_gone, self.make_recovery_points_durable)

    def _set_aside(self, topic: Topic, index: int) -> None:
        """Rename the directory of a deleted partition."""
        source = self._directory / f"{topic.name}-{index}"
        try:
            if self._disk.is_dir(source):  # one that could not be opened may be gone
                self._disk.rename(source, self._aside(topic, index, DELETED))
        except (FileNotFoundError, Unavailable) as error:
            log.error("%s belongs to a deleted topic and cannot be renamed; remove it: %s", source, error)

    def remove_deleted(self) -> None:
        """Remove the directories of deleted topics.

        Raises:
            DiskError: at least one cannot be removed, of which this is the first; the others are.
        """
        self._leftovers.remove_deleted()

    def _aside(self, topic: Topic, index: int, suffix: str) -> Path:
        """What the directory of a partition becomes that is out of the way of the next one of its name."""
        return self._directory / f"{_short(topic.name)}-{index}.{topic.topic_id.hex}{suffix}"

    def configure(self, topic: Topic, configs: Mapping[str, str]) -> None:
        """Give a topic these settings in place of those it has. Durable on return.

        Raises:
            InvalidConfig: nothing changed.
            Refused: the disk does not take the list; nothing changed.
        """
        check_change(topic.configs, configs)
        before, topic.configs = topic.configs, dict(configs)
        try:
            self._write_list()
        except Refused:
            topic.configs = before
            raise
        self.reconfigure([topic])

    def reconfigure(self, topics: "list[Topic] | None" = None) -> None:
        """Hand the settings as they are now to the open partitions."""
        for topic in topics if topics is not None else self:
            topic.log_config = self._config.log_config(topic.configs)
            for partition in topic.partitions.values():
                partition.reconfigure(topic.log_config)

    def _log_config(self, topic: Topic) -> LogConfig:
        """The settings of the logs of a topic, which its partitions share."""
        if topic.log_config is None:
            topic.log_config = self._config.log_config(topic.configs)
        return topic.log_config

    def _forget(self, topic: Topic) -> None:
        del self._topics[topic.name]
        del self._names[topic.topic_id]
        self._dotless.pop(without_dots(topic.name), None)

    # -- partitions --------------------------------------------------------------------------------------------

    def _make_partition(self, topic: Topic, index: int) -> Partition:
        directory = self._directory / f"{topic.name}-{index}"
        if self._disk.is_dir(directory) and holds_records(self._disk, directory):
            # A crash in the middle of a deletion leaves them, or somebody has put them there.
            stray = self._aside(topic, index, STRAY)
            log.warning("%s belongs to no topic and holds records; it becomes %s", directory, stray.name)
            self._disk.rename(directory, stray)
        self._disk.make_dir(directory)
        write_partition_metadata(self._disk, directory, topic.topic_id)
        return self._open(topic, index, directory, clean=True, is_new=True)

    def open_partition(
        self, topic: Topic, index: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Open a partition that the list names, recovering it if the last stop was not clean.

        May run in a thread, as long as nobody is served.

        Raises:
            Corrupt: synced data is damaged or gone; the partition stays closed, the others are not touched.
        """
        self.publish_partition(topic, self.recover_partition(topic, index, progress))

    def last_commit_sequence(self, name: str, index: int) -> int:
        """The last commit sequence of a commit-ordered partition that is not open; -1 if it has none. May run in a thread.

        Raises as `views.last_commit` says.
        """
        return last_commit_sequence(self._disk, self._directory / f"{name}-{index}")

    # Recovering takes long: `open_partition` in steps, of which the first may run in a thread.

    def recover_partition(
        self, topic: Topic, index: int, progress: Callable[[int, int], None] | None = None
    ) -> Partition:
        """Open a partition that nobody else sees yet. May run in a thread; raises as `open_partition` does.

        One that has failed since the start is opened again: nothing of it has been lost, and it is closed by now.
        """
        directory = self._directory / f"{topic.name}-{index}"
        if not self._disk.is_dir(directory):
            raise Corrupt(
                f"{directory} is gone: restore it{'' if topic.is_internal else ', or delete the topic'}"
            )
        listing = Listing(self._disk, directory)
        self._check_topic_id(topic, listing)
        if strange := strange_names(listing.names):
            log.warning(
                "%s holds what is no file of a partition, and it is left alone: %s", directory, strange
            )
        failed = topic.partitions.get(index)
        partition = self._open(
            topic,
            index,
            directory,
            clean=self.clean and failed is None,
            recovery_point=failed.synced_offset if failed is not None else None,
            progress=progress,
            listing=listing,
        )
        for cut in partition.cuts:
            log.warning("%s-%d: %s", topic.name, index, cut)
        return partition

    def _check_topic_id(self, topic: Topic, listing: Listing) -> None:
        """Raise Corrupt if a directory belongs to another topic; write the file that says so where it is unreadable."""
        path, there = listing.path(METADATA_FILE), None
        try:
            there = decode_partition_metadata(listing.read(METADATA_FILE), path)
        except FileNotFoundError:
            pass
        except Corrupt as error:
            log.warning("%s; it is written again for topic %s", error, topic.name)
        if there is None:
            write_partition_metadata(self._disk, listing.directory, topic.topic_id)
            listing.reload()
        elif there != topic.topic_id:
            raise Corrupt(
                f"{path} names the topic id {there}, and {topic.name} has {topic.topic_id}: the "
                "directory is one of another topic, or the file is damaged. Restore the directory"
            )

    def publish_partition(self, topic: Topic, partition: Partition) -> None:
        """Let requests be served from a partition that was recovered."""
        partition.reconfigure(self._log_config(topic))  # they may have changed meanwhile
        topic.offline.pop(partition.index, None)
        self._connect([partition])
        topic.partitions[partition.index] = partition
        self._recovery_points.opened((topic.name, partition.index))

    def mark_offline(self, topic: Topic, index: int, error: Exception) -> None:
        """Note that a partition could not be opened, and why. It stays so until the next start."""
        topic.offline[index] = str(error)

    def _open(
        self,
        topic: Topic,
        index: int,
        directory: Path,
        *,
        clean: bool,
        is_new: bool = False,
        recovery_point: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        listing: Listing | None = None,
    ) -> Partition:
        kind = CommitOrderedPartition if topic.is_commit_ordered else Partition
        at = (topic.name, index)
        if recovery_point is None:
            recovery_point = 0 if is_new else self._recovery_points.of(at)
        return kind.open(
            self._disk,
            directory,
            self._log_config(topic),
            topic=topic.name,
            partition=index,
            clean=clean,
            now_ms=self._now_ms(),
            recovery_point=recovery_point,
            first_dirty_offset=0 if is_new else self._first_dirty.offsets.get(at, 0),
            leader_epoch=self.leader_epoch,
            is_established=not is_new and self._established_epoch is not None,
            gapless_epoch=NEVER if self._established_epoch is None else self._established_epoch,
            progress=progress,
            listing=listing,
        )

    def changed_log_starts(self) -> ChangedOffsets | None:
        """The log start offsets, for `write_log_starts`; None if Kafka's checkpoint has them. May run in a thread."""
        return self._log_starts.changed(
            lambda: {(p.topic, p.index): p.start_offset for p in self.open_partitions() if p.start_offset}
        )

    def write_log_starts(self, starts: ChangedOffsets | None) -> None:
        """Write Kafka's checkpoint of log start offsets. Each partition has a file of its own that says its start."""
        self._log_starts.write(starts)

    def write_first_dirty(self) -> None:
        """Make durable how far each partition has been compacted. Without it, a pass looks at more than it has to."""
        partitions = self.open_partitions()
        self._first_dirty.write(
            self._first_dirty.changed(
                lambda: {(p.topic, p.index): p.first_dirty_offset for p in partitions if p.first_dirty_offset}
            )
        )

    def changed_recovery_points(self, *, anyway: bool = False) -> ChangedOffsets | None:
        """Up to where each partition is synced, for `write_recovery_points`; None if it is recorded, unless `anyway`.

        May run in a thread.
        """
        return self._recovery_points.changed(
            lambda: {(p.topic, p.index): p.synced_offset for p in self.open_partitions()}, anyway=anyway
        )

    def write_recovery_points(self, points: ChangedOffsets | None) -> None:
        """Record up to where each partition is synced: damage before it is not what a crash leaves."""
        self._recovery_points.write(points, durable=False)

    def make_recovery_points_durable(self) -> None:
        """Record them, durable on return."""
        self._recovery_points.write(self.changed_recovery_points(anyway=True), durable=True)

    def close(self) -> bool:
        """Close every partition and write what a clean start reads. Returns whether all of it worked."""
        clean = self._written(lambda: self.write_log_starts(self.changed_log_starts()))
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
            self._recovery_points.closed(at, partition.synced_offset)
        path = self._directory / HIGH_WATERMARK_CHECKPOINT
        written = self._written(
            self.make_recovery_points_durable,
            partial(write_offset_checkpoint, self._reserve, path, marks),
        )
        return clean and written

    def _written(self, *writes: Callable[[], None]) -> bool:
        """Write what a start reads, and say whether it worked: without it, the next start has more to recover."""
        try:
            for write in writes:
                write()
        except Unavailable as error:
            log.error("the next start has more to recover: %s", error)
            return False
        return True


def _give_up(made: Mapping[int, Partition]) -> None:
    """Close partitions that will not be: where descriptors have run out, others need theirs."""
    for partition in made.values():
        partition.close(clean=False)


def _short(name: str) -> str:
    return name[: NAME_SIZE_MAX - 50]


def _open_segments_max() -> int:
    """How many sealed segments may be open: they take a quarter of the process's descriptors at the most."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(max(descriptors // 4 // DESCRIPTORS_PER_SEGMENT, OPEN_SEGMENTS_MIN), OPEN_SEGMENTS_MAX)
