"""The findings of verification (each is a file that contradicts the log), and the state of the log that it has read so
far.
"""

from dataclasses import dataclass, field
from pathlib import Path

from stablelog.env.disk import Disk, read_if_there
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.names import file_path
from stablelog.log.producer_state.producer import BATCHES_KEPT
from stablelog.log.producer_state.producers import Producers


@dataclass(frozen=True, slots=True)
class FileFinding:
    """A file, or a part of a file, that contradicts the log.

    Attributes:
        path: the path of the file.
        message: a description of the contradiction, with the offset or the entry.
    """

    path: Path
    message: str


@dataclass(slots=True)
class LogState:
    """The state of a partition's log up to the last batch that verification has read.

    Attributes:
        disk: the disk of the partition.
        directory: the partition's directory.
        end_offset: the end of the last batch, exclusive.
        producers: the producer state at this offset.
        epochs: the leader epochs of the batches.
        are_begins_known: whether the first offset of every transaction that ends in the log is known: the log, or the
            snapshot at its start, has it.
        are_counts_known: whether the number of records of every open transaction is known. A snapshot in Kafka's format
            does not have it.
        batches_known: how many of the last batches of each producer are known: five, or one if the log begins with a
            snapshot in Kafka's format.
        is_compacted: whether compaction has removed batches.
    """

    disk: Disk
    directory: Path
    end_offset: int = 0
    producers: Producers = field(default_factory=Producers)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    are_begins_known: bool = True
    are_counts_known: bool = True
    batches_known: int = BATCHES_KEPT
    is_compacted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether the log is complete: it has all batches of every transaction that ends in it."""
        return self.are_begins_known and not self.is_compacted

    def path(self, offset: int, suffix: str) -> Path:
        """The path of the partition's file with this offset and suffix."""
        return file_path(self.directory, offset, suffix)

    def content(self, offset: int, suffix: str) -> bytes | None:
        """Return the content of the partition's file with this offset and suffix; None if it is missing."""
        return read_if_there(self.disk, self.path(offset, suffix))
