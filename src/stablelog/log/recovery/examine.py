"""Search for the first damage of a partition's log, for `stablelog repair`.

The search makes the checks of a broker start: CRCs and offsets of batches, summaries of sealed segments, snapshots, and
the records of the data directory about the partition. In this module, a *start* is a start of the broker.
"""

from bisect import bisect_right
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.header import BatchHeader, crc_holds
from stablelog.env.disk import File
from stablelog.errors import DamageError
from stablelog.log.directory import PartitionDirectory
from stablelog.log.files.log_start import LOG_START_FILE, read_log_start
from stablelog.log.files.names import (
    LOG,
    VIEW_START_FILE,
    first_segment_path,
    is_summary,
    offset_of,
)
from stablelog.log.indexes.summary import Summary
from stablelog.log.recovery.damage import Damage, Expected
from stablelog.log.recovery.plan import NEVER
from stablelog.log.recovery.trust import Trust
from stablelog.log.segments.proof import DamagedBatch, prove_headers, scrub
from stablelog.log.segments.scan import scan_batches
from stablelog.log.segments.segment import RELATIVE_OFFSET_MAX


@dataclass(slots=True)
class _Place:
    """A point of the search: the position of a batch in a log file, and the state of the log before this batch."""

    position: int
    end_offset: int
    leader_epoch: int
    has_gap: bool
    raises_epoch: bool


class Examination:
    """The search for the first damage of one partition.

    Args:
        directory: the directory of the partition.
        expected: what the data directory records about the partition.

    Attributes:
        durable_end: the end of the offsets that were durable, as the files and the data directory record it. It is
            final after `run`.
    """

    def __init__(self, directory: PartitionDirectory, expected: Expected) -> None:
        self._directory = directory
        self._disk = directory.listing.disk
        self._expected = expected
        self._log_start: int
        # By offset: the summary in each `.producers` snapshot. It describes a segment up to this offset.
        found = {offset: directory.read_progress(offset) for offset in directory.snapshots}
        self._marks = {offset: progress for offset, progress in found.items() if progress is not None}
        self.durable_end = max([expected.recovery_point, *self._marks])

    def run(self) -> Damage | None:
        """Read the log. Return the first damage that was found; None if the log is whole. Raises the errors of
        `repair.examine`.
        """
        bases = self._first_bases()
        summaries = {base: self._directory.summary(base) for base in bases}
        ends = [found.end_offset for found in summaries.values() if found is not None]
        self.durable_end = max([self.durable_end, *ends])
        trust = Trust(self._directory, bases, self._expected.leader_epoch)
        passed, refused = self._walk(bases, summaries, trust)
        if self._expected.is_read_whole:
            return passed[0] if passed else refused
        while True:
            # A truncation removes snapshots. So the start of the broker after the truncation reads more of the log, and
            # may refuse the log because of earlier damage.
            begin = trust.replay_start(None if refused is None else offset_of(refused.path.name))
            read = (
                one
                for one in passed
                if trust.reads_segment(offset_of(one.path.name), begin)
                and not self._is_body_only(one, bases, summaries)
            )
            refused_now = next(read, None)
            if refused_now is None:
                break
            passed, refused = passed[: passed.index(refused_now)], refused_now
        if not passed:
            return refused
        passed[0].is_passed_over, passed[0].refused = True, refused
        return passed[0]

    def _walk(
        self, bases: list[int], summaries: dict[int, Summary | None], trust: Trust
    ) -> tuple[list[Damage], Damage | None]:
        """Read the log from its first segment to its end, or to the damage because of which a start refuses it.

        Args:
            bases: the base offsets of the log files, ascending.
            summaries: the summary of each segment, by base offset; None for a segment without one.
            trust: the parts of the log that a start does not read.

        Returns:
            Two values: the damage in parts that a start does not read, in the order of the log; and the first damage
            because of which a start refuses the log, or None.
        """
        passed: list[Damage] = []
        begin = bases[0]
        for place, base in enumerate(bases):
            following, summary = (*bases, None)[place + 1], summaries[base]
            end_offset: int | None
            damage, end_offset = self._examine_segment(base, following, summary)
            if damage is not None:
                damage.later = tuple(bases[place + 1 :])
                if summary is not None and trust.is_sealed(base):
                    passed.append(damage)
                    end_offset = summary.end_offset
                else:
                    end_offset = self._end_of_vouched(base, trust) if following is None else None
                    if end_offset is None or end_offset < self.durable_end:
                        return passed, damage
                    passed.append(damage)
            begin = end_offset
        if begin < self.durable_end:
            why = f"the log ends here, but records up to offset {self.durable_end - 1} were durable"
            path = self._directory.path(bases[-1], LOG)
            return passed, Damage(path, self._disk.size(path), begin, why)
        return passed, None

    def _end_of_vouched(self, base: int, trust: Trust) -> int | None:
        """Return the end of the growing segment if a start would read none of its damaged bytes; None if it would read
        some.

        A start does not ignore damage in headers, or in batches after the snapshot, because readers could not find
        records that are appended behind such damage.
        """
        if trust.vouched_end is None:
            return None
        behind, end_offset = self._examine_segment(base, None, None, vouched_end=trust.vouched_end)
        return end_offset if behind is None else None

    def _is_body_only(self, damage: Damage, bases: list[int], summaries: dict[int, Summary | None]) -> bool:
        """Whether the damage in a sealed segment is only in bodies of data batches, which a start does not read."""
        base = offset_of(damage.path.name)
        summary, following = summaries[base], next(one for one in bases if one > base)
        assert summary is not None
        behind, _ = self._examine_segment(base, following, summary, vouched_end=following)
        return behind is None and not any(
            isinstance(one, DamagedBatch) and one.is_control
            for one in scrub(self._disk, damage.path, summary.log_size)
        )

    def _first_bases(self) -> list[int]:
        """Return the base offsets of the log files, without the segments that end before the log start offset."""
        bases, listing = self._directory.bases, self._directory.listing
        if not bases:
            raise DamageError(
                f"{listing.directory} holds no log file: there is nothing to repair. Restore its files from a backup"
            )
        starts = {name: self._read_start(name) for name in (LOG_START_FILE, VIEW_START_FILE)}
        # The log was durable up to the log start offset when this offset was recorded. A log that ends before this
        # offset has lost its end.
        self.durable_end = max([self.durable_end, *(start for start in starts.values() if start is not None)])
        start = starts[LOG_START_FILE]
        self._log_start = bases[0] if start is None else start
        if bases[0] > self._log_start:
            raise DamageError(
                f"{first_segment_path(listing.directory, listing.names, self._log_start)} is missing: the log begins at offset "
                f"{self._log_start}, but the first segment that exists begins at offset {bases[0]}. `stablelog repair` cannot repair this. Restore the "
                "missing files from a backup"
            )
        return bases[bisect_right(bases, self._log_start) - 1 :]

    def _read_start(self, name: str) -> int | None:
        """Return the offset in the file that records where the log or its commit-ordered view begins. Return None if
        the file is missing, and the data directory does not expect it.

        Raises:
            DamageError: the file is missing, although it is expected. A start refuses the partition, and no truncation
                changes this.
        """
        path = self._directory.listing.path(name)
        start = read_log_start(self._disk, path)
        if start is None and name in self._expected.start_files:
            what = "log" if name == LOG_START_FILE else "view"
            raise DamageError(
                f"{path} is missing: where the {what} begins is not known, and records that were deleted "
                "could be read again. `stablelog repair` cannot repair this. Restore the file from a backup"
            )
        return start

    def _examine_segment(
        self,
        base: int,
        following: int | None,
        summary: Summary | None,
        *,
        vouched_end: int = 0,
    ) -> tuple[Damage | None, int]:
        """Find the first damage in one log file or directly after its end. A batch that reaches into the next segment
        counts as damaged.

        Args:
            base: the base offset of the segment.
            following: the base offset of the next segment; None for the last segment.
            summary: the summary of the segment; None if it has none.
            vouched_end: damaged bodies of batches before this offset do not count if their headers are whole, because a
                start does not read them.

        Returns:
            Two values: the damage, or None; and the end offset of the batches that were read.
        """
        path = self._directory.path(base, LOG)
        with closing(self._disk.open(path)) as file:
            gone = self._next_gone(base, following)
            # A start of the broker does not read the batches before the newest snapshot, and no reader gets the batches
            # before the log start offset.
            known_end = max(
                [
                    0,
                    *(
                        offset
                        for offset, mark in self._marks.items()
                        if self._describes(mark, base, file.size)
                    ),
                ]
            )
            unread_end = self._log_start if summary is not None else min(self._log_start, known_end)
            walk = _Walk(
                file,
                path,
                self._expected,
                base,
                following,
                unread_end=max(unread_end, vouched_end),
                is_growing=following is None and summary is None and gone is None,
            )
            damage = walk.run() or self._prove(walk, base, following, summary)
            if damage is not None:
                was_sealed = not walk.is_growing
                has_gaps = walk.first_gap is not None and walk.first_gap < damage.position
                damage.has_gaps = was_sealed and has_gaps and self._expected.gapless_epoch != NEVER
            return damage, walk.end_offset

    def _next_gone(self, base: int, following: int | None) -> int | None:
        """Return the base offset of the next segment that has a summary but no log file, because the log file was lost.
        None if there is no such segment before `following`, or at all if `following` is None.
        """
        gone = (offset_of(name) for name in self._directory.listing.names if is_summary(name))
        behind = (one for one in gone if one > base and (following is None or one < following))
        return min((one for one in behind if self._directory.summary(one) is not None), default=None)

    @staticmethod
    def _describes(mark: Summary, base: int, size: int) -> bool:
        return mark.base_offset == base and 0 < mark.log_size <= size

    def _prove(
        self, walk: "_Walk", base: int, following: int | None, summary: Summary | None
    ) -> Damage | None:
        """Compare a log file of whole batches with its summary, the snapshots and the next segment.

        Args:
            walk: the reading of the log file, which has found no damage.
            base: the base offset of the segment.
            following: the base offset of the next segment; None for the last segment.
            summary: the summary of the segment; None if it has none.

        Returns:
            The damage that the comparison shows; None if all of them agree.
        """
        size = walk.file.size
        marks = [summary] if summary is not None and summary.log_size <= size else []
        marks += [
            mark for mark in self._marks.values() if following is None and self._describes(mark, base, size)
        ]
        for mark in marks:
            try:
                for _ in prove_headers(self._disk, walk.path, mark.log_size, mark.log_crc):
                    pass
            except DamageError:
                return walk.damage_at_first_change()
        if summary is not None and size < summary.log_size:
            return walk.damage_at_end(f"the file has only {size} bytes, but {summary.log_size} were durable")
        gone = self._next_gone(base, following)
        if gone is not None:
            return walk.damage_at_end(f"{self._directory.path(gone, LOG).name} is missing, and was durable")
        ends = walk.end_offset if summary is None else max(summary.end_offset, walk.end_offset)
        if following is None:
            if summary is not None:
                return walk.damage_at_end(
                    f"{self._directory.path(ends, LOG).name} is missing, and was durable"
                )
        elif ends < following and (summary is not None or following not in self._directory.snapshots):
            return walk.damage_at_end(f"the offsets {ends} to {following - 1} are missing")
        return None


class _Walk:
    """The reading of one log file, batch by batch.

    Attributes:
        end_offset: the end of the last batch that was read.
        unread_end: an offset. If a batch before it has a wrong CRC, this does not count as damage: no reader gets this
            batch, or a start does not read it.
        first_gap: the position of the first batch after a gap in the offsets; None if there is no gap.
        is_growing: whether this is the growing segment. Only sealed segments may have gaps, which compaction leaves.
    """

    def __init__(
        self,
        file: File,
        path: Path,
        expected: Expected,
        base: int,
        following: int | None,
        *,
        unread_end: int,
        is_growing: bool,
    ) -> None:
        self.file = file
        self.path = path
        self.end_offset = base
        self.unread_end = unread_end
        self.first_gap: int | None = None
        self.is_growing = is_growing
        self._expected = expected
        self._base = base
        self._following = following
        self._position = 0
        self._leader_epoch = 0
        self._last: _Place | None = None
        self._first_odd: _Place | None = None
        self._is_whole = True  # whether the CRC of the batch at `_position` matches

    def run(self) -> Damage | None:
        """Read to the end of the file. Return the first damage; None if there is none."""
        try:
            for _, header, batch in scan_batches(self.file.read, 0, self.file.size):
                damage = self._check(header, batch)
                if damage is not None:
                    return damage
                self._pass_batch(header)
        except DamageError as error:
            return self.damage_at_end(str(error))
        return None

    def damage_at_end(self, why: str) -> Damage:
        """Return the damage that begins directly after the last batch that was read."""
        return Damage(self.path, self._position, self.end_offset, why)

    def damage_at_first_change(self) -> Damage:
        """Return the damage that begins at the first batch whose offset or leader epoch may have changed."""
        why = "the offset or the leader epoch of a batch has changed, and it is unknown in which batch"
        odd = self._first_odd
        if odd is None:
            return Damage(self.path, 0, self._base, why)
        return Damage(self.path, odd.position, odd.end_offset, why)

    def _check(self, header: BatchHeader, batch: memoryview) -> Damage | None:
        """Check a batch against the batches before it.

        Returns:
            The damage, if this batch shows that an earlier one is damaged; otherwise None.

        Raises:
            DamageError: this batch is damaged.
        """
        last = self._last
        if header.base_offset < self.end_offset:
            why = f"a batch of offset {header.base_offset} follows offset {self.end_offset - 1}"
            if last is not None and last.has_gap and header.base_offset >= last.end_offset:
                # This batch has an offset in the gap before the previous batch. So the offset of the previous batch has
                # changed.
                return Damage(self.path, last.position, last.end_offset, why)
            raise DamageError(why)
        if header.last_offset - self._base > RELATIVE_OFFSET_MAX or (
            self._following is not None and header.next_offset > self._following
        ):
            raise DamageError(
                f"the offset of a batch, {header.base_offset}, is beyond the end of this segment"
            )
        damage = self._check_epoch(header)
        if damage is not None:
            return damage
        self._is_whole = crc_holds(batch, 0, header)
        if not self._is_whole and header.next_offset > self.unread_end:
            raise DamageError(f"the CRC of the batch of offset {header.base_offset} does not match its bytes")
        return None

    def _check_epoch(self, header: BatchHeader) -> Damage | None:
        last, expected = self._last, self._expected
        is_gapless = self.is_growing and header.leader_epoch >= expected.gapless_epoch
        if is_gapless and header.base_offset != self.end_offset:
            raise DamageError(
                f"the offsets {self.end_offset} to {header.base_offset - 1} are missing, or the offset of the next batch has changed"
            )
        if expected.gapless_epoch == NEVER:
            return None
        if header.leader_epoch > expected.leader_epoch:
            raise DamageError(
                f"the batch of offset {header.base_offset} has leader epoch {header.leader_epoch}, but the last start of the broker had only epoch "
                f"{expected.leader_epoch}"
            )
        if header.leader_epoch < self._leader_epoch:
            why = f"a batch of leader epoch {header.leader_epoch} follows one of {self._leader_epoch}"
            if last is not None and last.raises_epoch and header.leader_epoch >= last.leader_epoch:
                return Damage(self.path, last.position, last.end_offset, why)
            raise DamageError(why)
        return None

    def _pass_batch(self, header: BatchHeader) -> None:
        place = _Place(
            self._position,
            self.end_offset,
            self._leader_epoch,
            has_gap=header.base_offset > self.end_offset,
            raises_epoch=header.leader_epoch > self._leader_epoch,
        )
        has_new_epoch = self._last is not None and header.leader_epoch != self._leader_epoch
        is_odd = place.has_gap or has_new_epoch or not self._is_whole
        if self.first_gap is None and place.has_gap:
            self.first_gap = place.position
        if self._first_odd is None and is_odd:
            self._first_odd = place
        self._last = place
        self._position += header.size
        self.end_offset, self._leader_epoch = header.next_offset, header.leader_epoch
