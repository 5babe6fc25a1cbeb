"""What a start of the broker takes on trust of a log, and what it reads, as far as the small files of the partition tell.

Damage in what it takes on trust keeps no partition closed: reads of it are refused, and all else is served.
"""

import contextlib
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt, NewerFormat
from stablelog.log.epochs import EPOCH_FILE, LeaderEpochs
from stablelog.log.listing import Listing
from stablelog.log.names import is_snapshot, offset_of
from stablelog.log.recovery.plan import held_indexes
from stablelog.log.segment import OpenFiles, Segment
from stablelog.log.snapshots import decode_either
from stablelog.log.summary import Summary


class Trust:
    """What a start takes on trust of one partition.

    Args:
        disk: where the partition lies.
        directory: the partition's own.
        bases: of its segments, ascending.
        summaries: of the segments; None where there is none that can be read.
        marks: what snapshots say of the growing segment, by offset.
        leader_epoch: of the last start.

    Attributes:
        vouched_end: up to where a snapshot lets a start skip the growing segment; None if it reads all of it.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        bases: list[int],
        summaries: dict[int, Summary | None],
        marks: Iterable[tuple[int, Summary]],
        leader_epoch: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._bases = bases
        self._summaries = summaries
        self._leader_epoch = leader_epoch
        self._sealed = set(self._find_sealed())
        self._snapshots = self._find_snapshots()
        self._refused = set(self._find_refused()) if self._has_lost_epochs() else set()
        self.vouched_end = None
        if len(self._sealed) == len(bases) - 1:
            listing = Listing(disk, directory)
            held = [
                offset
                for offset, mark in marks
                if mark.base_offset == bases[-1]
                and mark.log_size
                and held_indexes(listing, mark) is not None
                and offset in self._snapshots
            ]
            self.vouched_end = max(held, default=None)

    def _find_sealed(self) -> Iterable[int]:
        """The segments that a start opens by their summaries."""
        for base, following in pairwise(self._bases):
            summary = self._summaries[base]
            segment = Segment(self._disk, self._directory, base, OpenFiles())
            if summary is None or summary.end_offset != following or not segment.matches(summary):
                return
            yield base

    def _find_snapshots(self) -> set[int]:
        """The offsets of the snapshots that can be read."""
        found = set()
        for name in self._disk.list_dir(self._directory):
            if is_snapshot(name):
                with contextlib.suppress(Corrupt, NewerFormat):
                    decode_either(name, self._disk.read_bytes(self._directory / name))
                    found.add(offset_of(name))
        return found

    def _has_lost_epochs(self) -> bool:
        """Whether a start reads the leader epochs from the headers of all batches."""
        try:
            epochs = LeaderEpochs.decode(self._disk.read_bytes(self._directory / EPOCH_FILE))
        except (FileNotFoundError, Corrupt):
            return True
        return epochs.latest > self._leader_epoch

    def _find_refused(self) -> Iterable[int]:
        """The sealed segments from which a start cannot read the leader epochs."""
        for base in self._sealed:
            summary = self._summaries[base]
            assert summary is not None
            segment = Segment(self._disk, self._directory, base, OpenFiles())
            segment.open_sealed(summary)
            try:
                if any(header.leader_epoch > self._leader_epoch for _, header in segment.walk_unproven(0)):
                    yield base
            except Corrupt:
                yield base
            finally:
                segment.close()

    def is_sealed(self, base_offset: int) -> bool:
        """Whether a start opens a segment by its summary."""
        return base_offset in self._sealed

    def replay_start(self, cut_base: int | None) -> int:
        """Where a start begins to read.

        Args:
            cut_base: of the segment in which the log is cut first; None if it is not cut.
        """
        unread = [base for base in self._bases if base not in self._sealed]
        limit = unread[0] if cut_base is None else min(unread[0], cut_base)
        if cut_base is None and self.vouched_end is not None:
            limit = self.vouched_end
        return max((one for one in self._snapshots if one <= limit), default=self._bases[0])

    def reads(self, base_offset: int, replay_start: int) -> bool:
        """Whether a start proves the headers and markers of a sealed segment. The growing one is no such segment."""
        summary = self._summaries[base_offset]
        return (
            base_offset in self._sealed
            and summary is not None
            and (base_offset in self._refused or replay_start < summary.end_offset)
        )
