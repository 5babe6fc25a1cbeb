"""The directories of partitions: the broker creates and opens them, and renames those of deleted topics."""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

from stablelog.broker.runtime import Runtime
from stablelog.broker.topic_names import NAME_SIZE_MAX
from stablelog.broker.topics.leftovers import DELETED, holds_records, strange_names
from stablelog.broker.topics.topic import Topic
from stablelog.broker.topics.topic_checkpoints import TopicCheckpoints
from stablelog.commit_order.last_commit import last_commit_sequence
from stablelog.commit_order.opening import CommitOrdered
from stablelog.errors import DamageError, DiskError, UnavailableError, UnknownFormatError
from stablelog.log.files.listing import Listing
from stablelog.log.files.log_start import LOG_START_FILE, write_missing_log_start
from stablelog.log.files.names import REMOTE_MANIFEST_FILE, VIEW_START_FILE
from stablelog.log.files.partition_metadata import (
    METADATA_FILE,
    decode_partition_metadata,
    write_partition_metadata,
)
from stablelog.log.model import LogConfig
from stablelog.log.opening import open_partition
from stablelog.log.partition import Partition
from stablelog.log.recovery import NEVER
from stablelog.log.recovery.formats import check_formats

log = logging.getLogger(__name__)

# The suffix with which a directory with records is renamed, if a new partition needs the name of the directory.
STRAY = "-stray"


class BrokerStart(NamedTuple):
    """Facts about the present start of the broker on which the opening of partitions depends.

    Attributes:
        clean: whether the last broker that used the data directory has stopped cleanly, so that no log needs recovery.
        leader_epoch: the leader epoch of all partitions, which grows with each start of the broker.
        established_epoch: the leader epoch of the first start after which each partition had all files of stablelog;
            None while the broker takes over a directory of Apache Kafka.
    """

    clean: bool
    leader_epoch: int
    established_epoch: int | None


class AttachRemote(Protocol):
    """The type of the function `PartitionDirectories.attach_remote`, which connects a partition to its remote tier: the
    part of its log that is in an object store.
    """

    def __call__(self, topic: Topic, partition: Partition, *, is_recorded: bool) -> None:
        """Connect a newly opened partition to its remote tier (the part of its log that is in an object store), if it
        has one.

        Args:
            topic: the topic.
            partition: the partition.
            is_recorded: whether a file in the partition's directory says that the partition has a remote tier.

        Raises:
            StablelogError: the remote tier cannot be used.
        """


class PartitionDirectories:
    """The partition directories of one data directory.

    Args:
        checkpoints: the checkpoint files, which contain the offset up to which each partition was synced.

    Attributes:
        attach_remote: called with each newly opened partition, before it is used. It connects the partition to its
            remote tier (the part of its log in an object store), if there is one. May be called in a thread.
    """

    def __init__(self, runtime: Runtime, checkpoints: TopicCheckpoints) -> None:
        self._disk = runtime.disk
        self._directory = runtime.directory
        self._reserve = runtime.reserve
        self._checkpoints = checkpoints
        self._now_ms = runtime.clock.now_ms
        self.attach_remote: AttachRemote = lambda _topic, _partition, *, is_recorded: None

    def path(self, topic: str, index: int) -> Path:
        """Return the path of a partition's directory."""
        return self._directory / f"{topic}-{index}"

    def complete(self, topics: Iterable[Topic]) -> bool:
        """Write the file with the log start offset of each partition that lacks this file, as partitions do that Apache
        Kafka wrote.

        Returns:
            Whether every partition has these files now. A partition directory that is missing or unreadable lacks them;
            its error is logged when the partition is opened.
        """
        is_complete = True
        for topic in topics:
            for index in range(topic.partition_count):
                directory = self.path(topic.name, index)
                if not self._disk.is_dir(directory):
                    is_complete = False
                    continue
                try:
                    check_formats(Listing(self._disk, directory))
                    self._write_missing_start(
                        directory, self._checkpoints.log_starts.offsets.get((topic.name, index), 0)
                    )
                    if topic.is_commit_ordered:
                        self._write_missing_start(directory, 0, VIEW_START_FILE)
                except (DamageError, UnknownFormatError):
                    is_complete = False
        return is_complete

    def _write_missing_start(self, directory: Path, known_start: int, name: str = LOG_START_FILE) -> None:
        self._reserve.attempt(
            lambda: write_missing_log_start(self._disk, directory, known_start, name), frees=True
        )

    # -- opening -----------------------------------------------------------------------------------------------

    def make(self, topic: Topic, index: int, start: BrokerStart, *, log_config: LogConfig) -> Partition:
        """Create the directory of a new partition, and open it. May run in a thread.

        Raises:
            UnavailableError: the disk refuses the writes.
        """
        directory = self.path(topic.name, index)
        if self._disk.is_dir(directory) and holds_records(self._disk, directory):
            # The path of the new directory exists already: a crash during a deletion has left it, or a user has created
            # it.
            stray = self._aside(topic, index, STRAY)
            log.warning(
                "%s belongs to no topic and holds records; the broker renames it to %s", directory, stray.name
            )
            self._disk.rename(directory, stray)
        self._disk.make_dir(directory)
        write_partition_metadata(self._disk, directory, topic.topic_id)
        return self._open(topic, index, start._replace(clean=True), log_config=log_config, is_new=True)

    def recover(
        self,
        topic: Topic,
        index: int,
        start: BrokerStart,
        *,
        log_config: LogConfig,
        failed: Partition | None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Partition:
        """Open a partition of a topic in the list of topics. May run in a thread.

        Args:
            topic: the topic.
            index: the index of the partition.
            start: facts about this start of the broker, such as its leader epoch.
            log_config: the settings of the partition's log.
            failed: the closed object of this partition, if it was open since the start and has failed because the disk
                was full; None if it was not open since the start.
            progress: called with two numbers of bytes: those that recovery has read, and those that it reads in all.

        Raises:
            DamageError: synced data is damaged or missing; the partition stays closed.
        """
        directory = self.path(topic.name, index)
        if not self._disk.is_dir(directory):
            raise DamageError(
                f"{directory} is missing, so the partition is offline: "
                f"restore the directory{'' if topic.is_internal else ', or delete the topic'}"
            )
        listing = Listing(self._disk, directory)
        self._check_topic_id(topic, listing)
        if strange := strange_names(listing.names):
            log.warning(
                "%s contains files that are not files of a partition, and the broker ignores them: %s",
                directory,
                strange,
            )
        partition = self._open(
            topic,
            index,
            start._replace(clean=start.clean and failed is None),
            log_config=log_config,
            recovery_point=failed.log.synced_offset if failed is not None else None,
            progress=progress,
            listing=listing,
        )
        for cut in partition.removed_tails:
            log.warning("%s-%d: %s", topic.name, index, cut)
        return partition

    def _check_topic_id(self, topic: Topic, listing: Listing) -> None:
        """Check that the file `partition.metadata` of a directory has the id of the topic. An unreadable file is
        written again.

        Raises:
            DamageError: the directory belongs to another topic.
        """
        path, found_id = listing.path(METADATA_FILE), None
        try:
            found_id = decode_partition_metadata(listing.read(METADATA_FILE), path)
        except FileNotFoundError:
            pass
        except DamageError as error:
            log.warning(
                "the broker writes the file partition.metadata of topic %s again, because the file is "
                "damaged: %s",
                topic.name,
                error,
            )
        if found_id is None:
            write_partition_metadata(self._disk, listing.directory, topic.topic_id)
            listing.reload()
        elif found_id != topic.topic_id:
            raise DamageError(
                f"{path} names the topic id {found_id}, but topic {topic.name} has the id {topic.topic_id}: the "
                "directory belongs to another topic, or the file is damaged. Restore the directory"
            )

    def _open(
        self,
        topic: Topic,
        index: int,
        start: BrokerStart,
        *,
        log_config: LogConfig,
        is_new: bool = False,
        recovery_point: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        listing: Listing | None = None,
    ) -> Partition:
        at = (topic.name, index)
        if recovery_point is None:
            recovery_point = 0 if is_new else self._checkpoints.recovery_point(at)
        partition = open_partition(
            self._disk,
            self.path(topic.name, index),
            log_config,
            topic=topic.name,
            partition=index,
            clean=start.clean,
            now_ms=self._now_ms(),
            recovery_point=recovery_point,
            first_dirty_offset=0 if is_new else self._checkpoints.first_dirty.offsets.get(at, 0),
            leader_epoch=start.leader_epoch,
            is_established=not is_new and start.established_epoch is not None,
            gapless_epoch=NEVER if start.established_epoch is None else start.established_epoch,
            progress=progress,
            listing=listing,
            order=CommitOrdered(self._disk) if topic.is_commit_ordered else None,
        )
        is_recorded = listing is not None and REMOTE_MANIFEST_FILE in listing
        self.attach_remote(topic, partition, is_recorded=is_recorded)
        return partition

    def has_remote_record(self, topic: Topic, index: int) -> bool:
        """Return whether a file in a partition's directory says that the partition has a remote tier: a part of its log
        in an object store.
        """
        return self._disk.exists(self.path(topic.name, index) / REMOTE_MANIFEST_FILE)

    def last_commit_sequence(self, topic: str, index: int) -> int:
        """Return the last commit sequence (a commit's number in the order of commits) in a commit-ordered partition
        that is not open; -1 if it has none.

        May run in a thread.

        Raises:
            FileNotFoundError: the directory or a file in it is missing.
            DiskError: a file cannot be read.
        """
        return last_commit_sequence(self._disk, self.path(topic, index))

    # -- out of the way ------------------------------------------------------------------------------------------

    def set_aside(self, topic: Topic, index: int) -> None:
        """Set the directory of a deleted partition aside: rename it, so that its path is free for a new partition.

        If the directory cannot be renamed for another reason than a full disk, it keeps its name, and an error is
        logged that tells the operator to remove it.

        Raises:
            DiskError: the disk is full, and has no space for the new name. The directory keeps its name.
        """
        source = self.path(topic.name, index)
        try:
            # The deleted partition may have no directory, if it could not be opened.
            if self._disk.is_dir(source):
                self._disk.rename(source, self._aside(topic, index, DELETED))
        except (FileNotFoundError, UnavailableError) as error:
            if isinstance(error, DiskError) and error.is_full:
                raise
            log.error(
                "%s belongs to a deleted topic and cannot be renamed; remove it by hand: %s", source, error
            )

    def _aside(self, topic: Topic, index: int, suffix: str) -> Path:
        """Return a new path to which the directory of a deleted partition can be renamed, so that its old path is free
        again.
        """
        return self._directory / f"{_short(topic.name)}-{index}.{topic.topic_id.hex}{suffix}"


def _short(name: str) -> str:
    return name[: NAME_SIZE_MAX - 50]
