"""Checkpoint files of a data directory. Each has one offset of each partition: its log start, its first dirty offset
(from which on it is not compacted), its recovery point (up to which it is synced), or its high watermark.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

from stablelog.broker.topics.topic import Topic
from stablelog.data_directory.checkpoints import (
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    OffsetCheckpoint,
    Offsets,
    read_if_whole,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stablelog.env.disk import Disk, FileWriter
from stablelog.errors import DamageError
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)

UNKNOWN: Final = -1


class TopicCheckpoints:
    """The checkpoint files of one data directory.

    Args:
        writer: writes the files.
        open_partitions: returns the open partitions. May be called in a thread.

    Attributes:
        log_starts: Kafka's checkpoint of log start offsets. Each partition also records its log start offset in a file
            of its own.
        first_dirty: the first dirty offset of each partition: the offset from which on the log was not compacted yet.
            Without it, a compaction pass reads more than necessary.
        recovery_points: the offset up to which each partition was synced. If recovery finds damage before this offset,
            it reports the damage instead of truncating the log. A partition that is not open keeps its recorded offset,
            also across starts at which it cannot be opened.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        writer: FileWriter,
        open_partitions: Callable[[], Iterable[Partition]],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._writer = writer
        self._open_partitions = open_partitions
        self._kept: Offsets = {}  # For each partition that is not open: the recorded offset up to which it was synced.
        self.log_starts = OffsetCheckpoint(
            writer,
            directory / LOG_START_CHECKPOINT,
            lambda: {(p.topic, p.index): p.start_offset for p in open_partitions() if p.start_offset},
        )
        self.first_dirty = OffsetCheckpoint(
            writer,
            directory / FIRST_DIRTY_CHECKPOINT,
            lambda: {
                (p.topic, p.index): p.compaction.first_dirty_offset
                for p in open_partitions()
                if p.compaction.first_dirty_offset
            },
        )
        self.recovery_points = OffsetCheckpoint(
            writer, directory / RECOVERY_POINT_CHECKPOINT, self._synced_ends, durable=False
        )

    def _synced_ends(self) -> Offsets:
        # Copy `_kept` before reading the open partitions: a partition that is opened during this call is removed from
        # `_kept`, and could otherwise be missing in the result.
        kept = self._kept.copy()
        return kept | {(p.topic, p.index): p.log.synced_offset for p in self._open_partitions()}

    def load(self, topics: Collection[Topic], *, is_taking_over: bool) -> None:
        """Read the checkpoint files, and drop the offsets of topics that do not exist any more.

        Args:
            topics: the list of topics.
            is_taking_over: whether the broker takes over a directory of Apache Kafka. Then only the checkpoint file
                contains the log start offsets.

        Raises:
            UnknownFormatError: a later release has written one of the files.
            DamageError: the checkpoint of log start offsets is damaged, and no other file contains these offsets.
        """
        path = self._directory / LOG_START_CHECKPOINT
        if is_taking_over:
            self.log_starts.use_recorded(read_offset_checkpoint(self._disk, path))
        else:
            # A damaged checkpoint does no harm here: each partition also has a file with its log start offset.
            self.log_starts.use_recorded(read_if_whole(self._disk, path, "the broker writes the file again"))
        path = self._directory / FIRST_DIRTY_CHECKPOINT
        self.first_dirty.use_recorded(
            read_if_whole(self._disk, path, "compaction begins at each log's start")
        )
        self._forget_gone({topic.name for topic in topics})
        partitions = [(topic.name, index) for topic in topics for index in range(topic.partition_count)]
        self.load_recovery_points(partitions, is_recorded=not is_taking_over)

    def _forget_gone(self, names: Collection[str]) -> None:
        self.log_starts.keep_topics(names)
        self.first_dirty.keep_topics(names)

    def load_recovery_points(self, partitions: Iterable[TopicPartition], *, is_recorded: bool) -> None:
        """Read the recovery points: the offsets up to which the partitions were synced.

        Args:
            partitions: all partitions of the data directory.
            is_recorded: whether this release has recorded the synced offsets since the partitions were created. If so,
                a partition that is missing in the file was created after the last write of the file, and had no synced
                data. If not, the synced offset of such a partition is unknown.
        """
        path = self._directory / RECOVERY_POINT_CHECKPOINT
        is_known = self._disk.exists(path)
        try:
            found = read_offset_checkpoint(self._disk, path)
        except DamageError as error:
            log.warning(
                "the offsets up to which partitions were synced are unknown, so a partition stays "
                "offline if whole batches follow damage in its log: %s",
                error,
            )
            found, is_known = {}, False
        if is_known and not found and not self._disk.size(path):
            is_known = False  # The file is empty: a power failure has lost its content.
        missing = 0 if is_known and is_recorded else UNKNOWN
        self._kept = {at: found.get(at, missing) for at in partitions}

    # -- partitions that are not open --------------------------------------------------------------------------

    def recovery_point(self, at: TopicPartition) -> int | None:
        """Return the recovery point of a closed partition: the offset up to which it was synced; None if it is
        unknown.
        """
        end = self._kept.get(at, 0)
        return None if end == UNKNOWN else end

    def remove_recovery_point(self, at: TopicPartition) -> None:
        """Remove the recovery point of a partition (the offset up to which it was synced) from the recorded ones. The
        partition is open now and knows its recovery point itself.
        """
        self._kept.pop(at, None)

    def add_recovery_point(self, at: TopicPartition, synced_offset: int) -> None:
        """Record the recovery point of a partition that was closed: the offset up to which it is synced."""
        self._kept[at] = synced_offset

    def remove_topic(self, topic: str, others: Collection[str]) -> None:
        """Remove the offsets of a deleted topic from the checkpoint files. Durable on return.

        Args:
            topic: the deleted topic.
            others: the names of the other topics.

        Raises:
            DiskError: a file has its old content. A later topic of the same name would get the offsets of the deleted
                one.
        """
        self.recovery_points.invalidate_changes()
        self._kept = {at: end for at, end in self._kept.items() if at[0] != topic}
        self._forget_gone(others)
        self.make_recovery_points_durable()

    # -- writing -----------------------------------------------------------------------------------------------

    def make_recovery_points_durable(self) -> None:
        """Write the recovery points (the offset up to which each partition was synced) to their checkpoint file.
        Durable on return.
        """
        self.recovery_points.write(self.recovery_points.changed_offsets(anyway=True), durable=True)

    def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """Write Kafka's checkpoint of high watermarks, in case Kafka opens the directory. Durable on return."""
        write_offset_checkpoint(self._writer, self._directory / HIGH_WATERMARK_CHECKPOINT, marks)
