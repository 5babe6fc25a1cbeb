"""What `stablelog repair` knows of a damaged partition: what the data directory records about it, and its first damage.

In this module, a *start* is a start of the broker.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.header import BatchHeader
from stablelog.log.files.names import LOG, file_path
from stablelog.log.recovery.plan import NEVER


@dataclass(frozen=True, slots=True)
class Expected:
    """What the data directory records about a partition.

    Attributes:
        recovery_point: the offset up to which the log was durable, exclusive; 0 if unknown.
        leader_epoch: the leader epoch of the last start of the broker. No batch has a later one.
        gapless_epoch: a leader epoch. Batches of this epoch and of later ones follow each other without a gap in the
            growing segment, so a gap between two of them means lost records.
        start_files: the names of the files that must exist, among those that record where the log begins, and where its
            commit-ordered view (the committed batches in the order of their commits) begins.
        is_read_whole: whether a start reads every batch, as in the coordinators' logs. Such a start finds all damage.
    """

    recovery_point: int = 0
    leader_epoch: int = NEVER
    gapless_epoch: int = NEVER
    start_files: frozenset[str] = frozenset()
    is_read_whole: bool = False


@dataclass(slots=True)
class Damage:
    """The first damage of a partition's log, and what is lost if the log is truncated there.

    Attributes:
        path: the damaged log file.
        position: the position of the damaged batch in this file.
        end_offset: the end of the log after the truncation.
        why: a description of the damage.
        size: how many bytes the truncation removes, in this file and in the later ones.
        batch_count: the number of whole batches among these bytes.
        record_count: the number of data records in these batches.
        marker_count: the number of transaction markers among these batches. A transaction whose marker is removed is
            open again.
        last_offset: the greatest offset in these batches, inclusive; -1 if there is none.
        later: the base offsets of the later segments.
        durable_end: the end of the offsets that were durable, exclusive. The truncation loses durable records from
            `end_offset` to here.
        has_gaps: whether compaction has left gaps in the truncated segment. If so, no record may be appended to it.
        is_passed_over: whether a start does not read the damaged bytes, and so opens the log in spite of them. Reads of
            these bytes are refused.
        refused: if a start passes over this damage, the later damage because of which it refuses the log; None if there
            is none.
    """

    path: Path
    position: int
    end_offset: int
    why: str
    size: int = 0
    batch_count: int = 0
    record_count: int = 0
    marker_count: int = 0
    last_offset: int = -1
    later: tuple[int, ...] = ()
    durable_end: int = 0
    has_gaps: bool = False
    is_passed_over: bool = False
    refused: "Damage | None" = None

    def lost_files(self) -> Iterator[tuple[Path, int, int]]:
        """Yield the log files from which the truncation removes batches, as (path, position, offset). The position is
        that of the first byte that is removed, or -1 for the whole file. The offset is that of the first record that is
        lost.
        """
        yield self.path, self.position, self.end_offset
        for base in self.later:
            yield file_path(self.path.parent, base, LOG), -1, base

    def count_batch(self, header: BatchHeader) -> None:
        """Count a whole batch that the truncation removes."""
        self.batch_count += 1
        if header.is_control:
            self.marker_count += 1
        else:
            self.record_count += header.record_count
        self.last_offset = max(self.last_offset, header.last_offset)
