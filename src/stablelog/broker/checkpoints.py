"""Kafka's checkpoint files of a data directory: an offset for each partition.

`recovery-point-offset-checkpoint` records up to where each partition was synced. It is written after the sync and
without one of its own, at most a second late: what it names was durable, so damage before it is never cut.

Format: docs/formats.md, "offset checkpoints".
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, naming, refuse_newer

log = logging.getLogger(__name__)

LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
FIRST_DIRTY_CHECKPOINT = "cleaner-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
UNKNOWN = -1
CHECKPOINT_VERSION = 0

TopicPartition = tuple[str, int]
Offsets = dict[TopicPartition, int]


class FileWriter(Protocol):
    """Replaces files: a `Disk`, or a `DiskReserve`, which finds room for them."""

    def write_atomic(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole. Durable on return."""
        ...

    def write_unsynced(self, path: Path, content: bytes) -> None:
        """Replace the file as a whole without a sync."""
        ...


def read_offset_checkpoint(disk: Disk, path: Path) -> Offsets:
    """Offsets by partition; empty if there is no file, or Kafka has made it and not written it yet.

    Raises:
        NewerFormat: a later release has written it.
        Corrupt: the file is not what Kafka writes, or not whole.
    """
    try:
        content = disk.read_bytes(path).decode(errors="replace")
    except FileNotFoundError:
        return {}
    if not content:
        return {}
    lines = content.split("\n")
    try:
        with naming(path):
            refuse_newer("a checkpoint of offsets", int(lines[0]), CHECKPOINT_VERSION)
        if lines[0] != "0" or lines[-1] or len(lines) != 3 + int(lines[1]):
            raise ValueError(f"{len(lines)} lines, version {lines[0]!r}")
        rows = [line.rsplit(" ", 2) for line in lines[2:-1]]
        return {(topic, int(index)): int(offset) for topic, index, offset in rows}
    except (ValueError, IndexError) as error:
        raise Corrupt(
            f"{path} is not a checkpoint of offsets ({error}). Restore it; or remove it, and what it says is not known"
        ) from error


def read_if_whole(disk: Disk, path: Path, consequence: str) -> Offsets:
    """As `read_offset_checkpoint`; a damaged file is logged with what follows from it, and is taken for empty."""
    try:
        return read_offset_checkpoint(disk, path)
    except Corrupt as error:
        log.warning("%s; %s", error, consequence)
        return {}


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of a checkpoint file."""
    rows = [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    return "\n".join(["0", str(len(rows)), *rows, ""]).encode()


def write_offset_checkpoint(writer: FileWriter, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a checkpoint file. Durable on return."""
    writer.write_atomic(path, encode_offset_checkpoint(offsets))


class OffsetCheckpoint:
    """A checkpoint file that is written when the offsets have changed.

    Args:
        writer: writes the file.
        path: of the file.

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
        """Take over what the file says."""
        self.offsets = offsets
        self._is_recorded = True

    def outdate(self) -> None:
        """Have no offsets written that were taken before: they have partitions that are gone."""
        self._change_count += 1

    def changed(self, take: Callable[[], Offsets], *, anyway: bool = False) -> "ChangedOffsets | None":
        """The offsets as they are now; None if the file has them. May run in a thread.

        Args:
            take: gives them.
            anyway: whether they are wanted in any case.
        """
        change_count = self._change_count  # first: they are not written if something changes from now on
        offsets = take()
        if self._is_recorded and offsets == self.offsets and not anyway:
            return None
        return ChangedOffsets(offsets, encode_offset_checkpoint(offsets), change_count)

    def write(self, changed: "ChangedOffsets | None", *, durable: bool = True) -> None:
        """Write what `changed` returned; not if others were written since, or partitions are gone.

        Raises:
            DiskError: the file is as it was, or as it should be.
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
    """Offsets that a checkpoint file does not have, its new content, and how often it had changed when they were taken."""

    offsets: Offsets
    content: bytes
    change_count: int


class RecoveryPoints:
    """The synced ends of partitions, as they are recorded in the data directory.

    A partition that is not open keeps the end that was recorded, also through starts at which it cannot be opened.

    Args:
        disk: where the data directory lies.
        directory: the data directory.
        writer: writes the file.
    """

    def __init__(self, disk: Disk, directory: Path, writer: FileWriter) -> None:
        self._disk = disk
        self._path = directory / RECOVERY_POINT_CHECKPOINT
        self._kept: Offsets = {}  # of partitions that are not open
        self._file = OffsetCheckpoint(writer, self._path)

    def load(self, partitions: Iterable[TopicPartition], *, is_recorded: bool) -> None:
        """Read the file.

        Args:
            partitions: those there are.
            is_recorded: whether this release has recorded their ends since they were made. Then one without a row
                was made after the file was last written, and had nothing synced.
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
            is_known = False  # empty: a power cut took the content
        for at in partitions:
            self._kept[at] = found.get(at, 0 if is_known and is_recorded else UNKNOWN)

    def of(self, at: TopicPartition) -> int | None:
        """The recorded end of a partition that is not open; None if it is not known."""
        end = self._kept.get(at, 0)
        return None if end == UNKNOWN else end

    def opened(self, at: TopicPartition) -> None:
        """Take note that a partition was opened: its own synced end counts from now on."""
        self._kept.pop(at, None)

    def closed(self, at: TopicPartition, synced_offset: int) -> None:
        """Keep the end of a partition that was closed."""
        self._kept[at] = synced_offset

    def forget(self, topic: str) -> None:
        """Forget the partitions of a deleted topic."""
        self._file.outdate()
        self._kept = {at: end for at, end in self._kept.items() if at[0] != topic}

    def changed(self, open_ends: Callable[[], Offsets], *, anyway: bool = False) -> ChangedOffsets | None:
        """As `OffsetCheckpoint.changed`. May run in a thread.

        Args:
            open_ends: gives the synced ends of the open partitions.
            anyway: whether the points are wanted in any case.
        """

        def take() -> Offsets:
            kept = dict(self._kept)  # first: a partition that is opened meanwhile is no longer in it
            return kept | open_ends()

        return self._file.changed(take, anyway=anyway)

    def write(self, points: ChangedOffsets | None, *, durable: bool) -> None:
        """Record the points, if nothing was recorded or forgotten since they were taken.

        Args:
            points: what `changed` returned.
            durable: whether the file has to be durable on return, as when a topic was deleted: a later topic of its
                name must not be held to its ends.

        Raises:
            DiskError: the file is as it was, or as it should be.
        """
        self._file.write(points, durable=durable)
