"""Kafka's checkpoint files of a data directory. Each has an offset for every partition.

`recovery-point-offset-checkpoint` records the offset up to which each partition was synced. The broker writes it at
most a second after the sync, and does not sync the checkpoint file itself. All data before a recorded offset was
durable: if recovery finds damage there, it reports the damage and never truncates the log.

Format: docs/reference/formats.md, "offset checkpoints".
"""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from stablelog.env.disk import Disk, FileWriter
from stablelog.errors import DamageError, adding_path, refuse_unknown_version
from stablelog.types import TopicPartition

log = logging.getLogger(__name__)

LOG_START_CHECKPOINT: Final = "log-start-offset-checkpoint"
FIRST_DIRTY_CHECKPOINT: Final = "cleaner-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CHECKPOINTS: Final = (
    LOG_START_CHECKPOINT,
    FIRST_DIRTY_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    HIGH_WATERMARK_CHECKPOINT,
)
CHECKPOINT_VERSION: Final = 0

Offsets = dict[TopicPartition, int]


def decode_offset_checkpoint(content: bytes, path: Path) -> Offsets:
    """Return the offsets in a checkpoint, by partition. There are none if the file is empty, because Kafka creates the
    file before it writes it.

    Args:
        content: the content of the file.
        path: the path of the file, for error messages.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the content is not in Kafka's format, or is incomplete.
    """
    if not content:
        return {}
    lines = content.decode(errors="replace").split("\n")
    try:
        with adding_path(path):
            refuse_unknown_version("a checkpoint of offsets", int(lines[0]), CHECKPOINT_VERSION)
        if lines[0] != "0" or lines[-1] or len(lines) != 3 + int(lines[1]):
            raise ValueError(
                "the file has another number of lines than its second line says, or its version "
                f"{lines[0]!r} is not 0"
            )
        rows = [line.rsplit(" ", 2) for line in lines[2:-1]]
        return {(topic, int(index)): int(offset) for topic, index, offset in rows}
    except (ValueError, IndexError) as error:
        raise DamageError(
            f"{path} is not a checkpoint of offsets: {error}. Restore the file, or remove it: the broker then starts without these offsets"
        ) from error


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode the content of a checkpoint file with these offsets, in Kafka's format."""
    rows = [f"{topic} {index} {offset}" for (topic, index), offset in sorted(offsets.items())]
    return "\n".join([str(CHECKPOINT_VERSION), str(len(rows)), *rows, ""]).encode()


def read_offset_checkpoint(disk: Disk, path: Path) -> Offsets:
    """Read the offsets in a checkpoint file, by partition. There are none if the file is missing or empty.

    Raises:
        UnknownFormatError: a later release has written the file.
        DamageError: the file is incomplete or not in Kafka's format.
    """
    try:
        return decode_offset_checkpoint(disk.read_bytes(path), path)
    except FileNotFoundError:
        return {}


def read_if_whole(disk: Disk, path: Path, consequence: str) -> Offsets:
    """Read the offsets in a checkpoint file. If it is damaged, log the damage with the text `consequence`, which says
    what follows from it, and return no offsets.
    """
    try:
        return read_offset_checkpoint(disk, path)
    except DamageError as error:
        log.warning("%s; %s", error, consequence)
        return {}


def write_offset_checkpoint(writer: FileWriter, path: Path, offsets: Mapping[TopicPartition, int]) -> None:
    """Write a checkpoint file with these offsets. It is durable on return."""
    writer.write_atomic(path, encode_offset_checkpoint(offsets))


class OffsetCheckpoint:
    """A checkpoint file that is written only when the offsets have changed.

    Args:
        writer: writes the file.
        path: the path of the file.
        read_offsets: returns the present offset of each partition, which the file is to have. It may be called in a
            thread.
        durable: whether every write must be durable on return.

    Attributes:
        offsets: the offsets that the file has, by partition.
    """

    def __init__(
        self, writer: FileWriter, path: Path, read_offsets: Callable[[], Offsets], *, durable: bool = True
    ) -> None:
        self._writer = writer
        self._path = path
        self._read_offsets = read_offsets
        self._is_durable = durable
        self._is_recorded = False
        self._change_count = 0
        self.offsets: Offsets = {}

    def use_recorded(self, offsets: Offsets) -> None:
        """Record that the checkpoint file has these offsets. The caller has read them from the file, at the start of
        the broker.
        """
        self.offsets = offsets
        self._is_recorded = True

    def keep_topics(self, names: Collection[str]) -> None:
        """Remove from the file the offsets of all topics except those in `names`, which exist.

        A new topic begins at offset 0. If it has the name of a deleted topic, it would otherwise get the offsets of
        that topic.

        Raises:
            DiskError: the write failed; the file has its old or its new content.
        """
        self.invalidate_changes()
        known = {at: offset for at, offset in self.offsets.items() if at[0] in names}
        self.write(self._encode_changed(known, self._change_count))

    def invalidate_changes(self) -> None:
        """Make the results of earlier calls of `changed_offsets` invalid, because they may name deleted partitions. A
        later `write` of such a result does nothing.
        """
        self._change_count += 1

    def changed_offsets(self, *, anyway: bool = False) -> "ChangedOffsets | None":
        """Return the present offsets, for a later call of `write`. Return None if the file has the same offsets
        already, so that no write is needed. A thread may call this.

        Args:
            anyway: whether to return the offsets even if the file has the same ones.
        """
        # Read the change count before the offsets: if a partition is deleted during this call, the offsets are outdated
        # and must not be written.
        change_count = self._change_count
        return self._encode_changed(self._read_offsets(), change_count, anyway=anyway)

    def _encode_changed(
        self, offsets: Offsets, change_count: int, *, anyway: bool = False
    ) -> "ChangedOffsets | None":
        if self._is_recorded and offsets == self.offsets and not anyway:
            return None
        return ChangedOffsets(offsets, encode_offset_checkpoint(offsets), change_count)

    def write(self, changed: "ChangedOffsets | None", *, durable: bool = False) -> None:
        """Write offsets that `changed_offsets` has returned. Do nothing if they are None, or if they are outdated
        because later ones were written or partitions were deleted since.

        Args:
            changed: the offsets; None if the file has the present offsets already.
            durable: whether this write must be durable on return, even if the checkpoint was made with `durable=False`.

        Raises:
            DiskError: the write failed; the file has its old or its new content.
        """
        if changed is None or changed.change_count != self._change_count:
            return
        self._is_recorded = False
        self._change_count += 1
        write = self._writer.write_atomic if durable or self._is_durable else self._writer.write_unsynced
        write(self._path, changed.content)
        self.offsets = changed.offsets
        self._is_recorded = True

    def write_if_changed(self) -> None:
        """Write the present offsets if they have changed. Raises the errors of `write`."""
        self.write(self.changed_offsets())


class ChangedOffsets(NamedTuple):
    """Offsets to be written into a checkpoint file, with the encoded content of the file, and `change_count`, the
    number of changes at the time when the offsets were read. If there were more changes before the write, the offsets
    are outdated.
    """

    offsets: Offsets
    content: bytes
    change_count: int
