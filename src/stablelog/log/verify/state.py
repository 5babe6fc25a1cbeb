"""What a log says, from its first batch to the last one that was read, and what a file says that does not agree."""

from dataclasses import dataclass, field
from pathlib import Path

from stablelog.env.disk import Disk, read_if_there
from stablelog.log.files.epochs import LeaderEpochs
from stablelog.log.files.names import file_path
from stablelog.log.producer_state.producer import BATCHES_KEPT
from stablelog.log.producer_state.producers import Producers


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not agree with the log.

    Attributes:
        path: the file.
        message: what is wrong, with offset or entry.
    """

    path: Path
    message: str


@dataclass(slots=True)
class LogState:
    """What the log of a partition says up to the last batch that was read.

    Attributes:
        disk: has the partition.
        directory: the partition's directory.
        end_offset: behind the last batch.
        producers: the producer state there.
        epochs: the leader epochs of the batches.
        are_begins_known: whether the beginning of every transaction is known that ends in the log.
        are_counts_known: whether the records of every open transaction are counted.
        batches_known: how many of the last batches of each producer are known.
        is_compacted: whether batches are missing.
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
        """Whether the log shows all of every transaction that ends in it."""
        return self.are_begins_known and not self.is_compacted

    def path(self, offset: int, suffix: str) -> Path:
        """The path of the partition's file with this offset and suffix."""
        return file_path(self.directory, offset, suffix)

    def content(self, offset: int, suffix: str) -> bytes | None:
        """The content of this file now; None if it is missing."""
        return read_if_there(self.disk, self.path(offset, suffix))
