"""Kafka's checkpoint files of a data directory: an offset for each partition.

`recovery-point-offset-checkpoint` records the offset up to which each partition was synced. The broker writes the file
after that sync, without syncing the file itself, at most a second late. All data before a recorded offset was durable,
so recovery never truncates damage before it.
Format: docs/formats.md, "offset checkpoints".
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt
from stablelog.log.kafka_files import Offsets, decode_offset_checkpoint, encode_offset_checkpoint
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)

FIRST_DIRTY_CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
UNKNOWN = -1


class FileWriter(Protocol):
    """Something that replaces files: a `Disk`, or a `DiskReserve`, which frees space for them on a full disk."""

    def write_atomic(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole. Durable on return."""
        ...

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole without a sync."""
        ...


def read_offset_checkpoint(disk: Disk, path: Path) -> Offsets:
    """Read the offsets by partition. The result is empty without a file, or if Kafka has created it but not written it.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the file is incomplete or not in Kafka's format.
    """
    try:
        return decode_offset_checkpoint(disk.read_bytes(path), path)
    except FileNotFoundError:
        return {}


def read_if_whole(disk: Disk, path: Path, consequence: str) -> Offsets:
    """Read a checkpoint file; log a damaged one with the `consequence` and return no offsets."""
    try:
        return read_offset_checkpoint(disk, path)
    except Corrupt as error:
        log.warning("%s; %s", error, consequence)
        return {}


def write_offset_checkpoint(writer: FileWriter, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a checkpoint file. Durable on return."""
    writer.write_atomic(path, encode_offset_checkpoint(offsets))


class OffsetCheckpoint:
    """A checkpoint file that is written only when the offsets have changed.

    Attributes:
        offsets: by partition, as they were last read or written.
    """

    def __init__(self, writer: FileWriter, path: Path) -> None:
        self._writer = writer
        self._path = path
        self._is_recorded = False
        self._change_count = 0
        self.offsets: Offsets = {}

    def read(self, offsets: Offsets) -> None:
        """Load the offsets that the file holds."""
        self.offsets = offsets
        self._is_recorded = True

    def outdate(self) -> None:
        """Invalidate offsets that were taken earlier, because some of their partitions were deleted."""
        self._change_count += 1

    def changed(self, take: Callable[[], Offsets], *, anyway: bool = False) -> "ChangedOffsets | None":
        """Take the present offsets; None if the file already holds them. May run in a thread.

        Args:
            take: returns the present offsets by partition.
            anyway: whether to return the offsets even if the file holds them.
        """
        change_count = (
            self._change_count
        )  # Read the count first: any change from now on makes these offsets outdated.
        offsets = take()
        if self._is_recorded and offsets == self.offsets and not anyway:
            return None
        return ChangedOffsets(offsets, encode_offset_checkpoint(offsets), change_count)

    def write(self, changed: "ChangedOffsets | None", *, durable: bool = True) -> None:
        """Write what `changed` returned, unless other offsets were written since or partitions were deleted.

        Raises:
            DiskError: the file has its old or its new content.
        """
        if changed is None or changed.change_count != self._change_count:
            return
        self._is_recorded = False
        self._change_count += 1
        if durable:
            self._writer.write_atomic(self._path, changed.content)
        else:
            self._writer.write_unsynced(self._path, changed.content)
        self.offsets = changed.offsets
        self._is_recorded = True


class ChangedOffsets(NamedTuple):
    """Offsets to write, the new content of the file, and the change count at the time when they were taken."""

    offsets: Offsets
    content: bytes
    change_count: int


class RecoveryPoints:
    """The synced ends of partitions, as the data directory records them.

    A partition that is not open keeps its recorded end, also across starts at which it cannot be opened.
    """

    def __init__(self, disk: Disk, directory: Path, writer: FileWriter) -> None:
        self._disk = disk
        self._path = directory / RECOVERY_POINT_CHECKPOINT
        self._kept: Offsets = {}  # Ends of partitions that are not open.
        self._file = OffsetCheckpoint(writer, self._path)

    def load(self, partitions: Iterable[TopicPartition], *, is_recorded: bool) -> None:
        """Read the file.

        Args:
            partitions: all partitions of the data directory.
            is_recorded: whether this release has recorded the ends since the partitions were created. A partition
                without a row was then created after the last write of the file, and had nothing synced.
        """
        is_known = self._disk.exists(self._path)
        try:
            found = read_offset_checkpoint(self._disk, self._path)
        except Corrupt as error:
            log.warning(
                "%s; where a log is damaged, whole batches that follow the damage keep its partition offline",
                error,
            )
            found, is_known = {}, False
        if is_known and not found and not self._disk.size(self._path):
            is_known = False  # An empty file: a power failure lost the content.
        for at in partitions:
            self._kept[at] = found.get(at, 0 if is_known and is_recorded else UNKNOWN)

    def of(self, at: TopicPartition) -> int | None:
        """The recorded end of a partition that is not open; None if it is unknown."""
        end = self._kept.get(at, 0)
        return None if end == UNKNOWN else end

    def opened(self, at: TopicPartition) -> None:
        """Note that a partition was opened: its own synced end replaces the recorded one."""
        self._kept.pop(at, None)

    def closed(self, at: TopicPartition, synced_offset: int) -> None:
        """Keep the synced end of a partition that was closed."""
        self._kept[at] = synced_offset

    def forget(self, topic: str) -> None:
        """Forget the partitions of a deleted topic."""
        self._file.outdate()
        self._kept = {at: end for at, end in self._kept.items() if at[0] != topic}

    def changed(self, open_ends: Callable[[], Offsets], *, anyway: bool = False) -> ChangedOffsets | None:
        """Take the present recovery points, as `OffsetCheckpoint.changed` does. May run in a thread.

        Args:
            open_ends: returns the synced ends of the open partitions.
            anyway: whether to return the points even if the file holds them.
        """

        def take() -> Offsets:
            kept = dict(
                self._kept
            )  # Copy first: a partition that is opened later in this call leaves `_kept`.
            return kept | open_ends()

        return self._file.changed(take, anyway=anyway)

    def write(self, points: ChangedOffsets | None, *, durable: bool) -> None:
        """Record the points, unless others were recorded or a topic was forgotten since they were taken.

        Args:
            points: what `changed` returned.
            durable: whether the file has to be durable on return. This is needed when a topic was deleted: a later
                topic of the same name must not inherit its ends.

        Raises:
            DiskError: the file has its old or its new content.
        """
        self._file.write(points, durable=durable)
