"""The offset checkpoints of a data directory: log starts, first dirty offsets, recovery points, high watermarks."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from stablelog.broker.checkpoints import (
    FIRST_DIRTY_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
    ChangedOffsets,
    FileWriter,
    OffsetCheckpoint,
    RecoveryPoints,
    read_if_whole,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stablelog.broker.topic import Topic
from stablelog.env.disk import Disk
from stablelog.log.kafka_files import LOG_START_CHECKPOINT
from stablelog.log.partition import Partition
from stablelog.types import TopicPartition


class TopicCheckpoints:
    """The checkpoints of one data directory.

    Args:
        writer: writes the files.
        open_partitions: returns the open partitions. May be called in a thread.
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
        self._log_starts = OffsetCheckpoint(writer, directory / LOG_START_CHECKPOINT)
        self._first_dirty = OffsetCheckpoint(writer, directory / FIRST_DIRTY_CHECKPOINT)
        self._recovery_points = RecoveryPoints(disk, directory, writer)

    def load(self, topics: Collection[Topic], *, is_taking_over: bool) -> None:
        """Read the checkpoints, and drop rows of topics that are not in the list.

        Args:
            topics: the list of topics.
            is_taking_over: whether Apache Kafka or an earlier version wrote the directory. In that case only the
                checkpoint contains the log start offsets.

        Raises:
            NewerFormat: a later release has written one.
            Corrupt: the checkpoint of log start offsets is damaged, and is the only place that contains them.
        """
        path = self._directory / LOG_START_CHECKPOINT
        if is_taking_over:
            self._log_starts.read(read_offset_checkpoint(self._disk, path))
        else:
            # Each partition has a file of its own with its log start offset.
            self._log_starts.read(read_if_whole(self._disk, path, "it is written again"))
        path = self._directory / FIRST_DIRTY_CHECKPOINT
        self._first_dirty.read(read_if_whole(self._disk, path, "compaction begins at each log's start"))
        self.forget_gone({topic.name for topic in topics})
        partitions = [(topic.name, index) for topic in topics for index in range(topic.partition_count)]
        self._recovery_points.load(partitions, is_recorded=not is_taking_over)

    def forget_gone(self, names: Collection[str]) -> None:
        """Durably drop the rows of topics not in `names`: a later topic of the same name begins at offset 0."""
        for file in (self._log_starts, self._first_dirty):
            known = {at: offset for at, offset in file.offsets.items() if at[0] in names}
            file.outdate()
            file.write(file.changed(known.copy))

    def forget(self, topic: str) -> None:
        """Drop the recovery points of a deleted topic."""
        self._recovery_points.forget(topic)

    # -- what they say -----------------------------------------------------------------------------------------

    def log_start(self, at: TopicPartition) -> int:
        """A partition's log start offset in Kafka's checkpoint; 0 if it has no row."""
        return self._log_starts.offsets.get(at, 0)

    def first_dirty(self, at: TopicPartition) -> int:
        """The offset up to which a partition was compacted; 0 if unknown."""
        return self._first_dirty.offsets.get(at, 0)

    def recovery_point(self, at: TopicPartition) -> int | None:
        """The offset up to which a partition that is not open was synced; None if unknown."""
        return self._recovery_points.of(at)

    def opened(self, at: TopicPartition) -> None:
        """Note that a partition was opened: its own synced end replaces the recorded one."""
        self._recovery_points.opened(at)

    def closed(self, at: TopicPartition, synced_offset: int) -> None:
        """Keep the synced end of a partition that was closed."""
        self._recovery_points.closed(at, synced_offset)

    # -- writing -----------------------------------------------------------------------------------------------

    def changed_log_starts(self) -> ChangedOffsets | None:
        """The log start offsets, for `write_log_starts`; None if the checkpoint already has them.

        May run in a thread.
        """
        return self._log_starts.changed(
            lambda: {(p.topic, p.index): p.start_offset for p in self._open_partitions() if p.start_offset}
        )

    def write_log_starts(self, starts: ChangedOffsets | None) -> None:
        """Write Kafka's checkpoint of log start offsets. Each partition also has its start in a file of its own."""
        self._log_starts.write(starts)

    def write_first_dirty(self) -> None:
        """Durably record the first dirty offset of each partition.

        Without it, a compaction pass reads more than necessary.
        """
        partitions = self._open_partitions()
        self._first_dirty.write(
            self._first_dirty.changed(
                lambda: {(p.topic, p.index): p.first_dirty_offset for p in partitions if p.first_dirty_offset}
            )
        )

    def changed_recovery_points(self, *, anyway: bool = False) -> ChangedOffsets | None:
        """The synced ends, for `write_recovery_points`; None if they are recorded already, unless `anyway`.

        May run in a thread.
        """
        return self._recovery_points.changed(
            lambda: {(p.topic, p.index): p.synced_offset for p in self._open_partitions()}, anyway=anyway
        )

    def write_recovery_points(self, points: ChangedOffsets | None) -> None:
        """Record the synced end of each partition: recovery reports damage before it instead of truncating the log."""
        self._recovery_points.write(points, durable=False)

    def make_recovery_points_durable(self) -> None:
        """Record the synced end of each partition. Durable on return."""
        self._recovery_points.write(self.changed_recovery_points(anyway=True), durable=True)

    def write_high_watermarks(self, marks: Mapping[TopicPartition, int]) -> None:
        """Write Kafka's checkpoint of high watermarks, in case Kafka opens the directory. Durable on return."""
        write_offset_checkpoint(self._writer, self._directory / HIGH_WATERMARK_CHECKPOINT, marks)
