"""Search for the first damage of a partition's log, for `stablelog repair`.

The search makes the checks of a broker start: CRCs and offsets of batches, summaries of sealed segments, snapshots, and
the records of the data directory about the partition. In this module, a *start* is a start of the broker.
"""

from bisect import bisect_right
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

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


class _Place(NamedTuple):
    """A point that the search for damage has reached: the position of a batch in a log file, and the state of the log
    before this batch.

    Attributes:
        position: the position of the batch in the log file, in bytes.
        end_offset: the end of the batches before it, exclusive.
        leader_epoch: the leader epoch of the batch before it; 0 for the first batch.
    """

    position: int
    end_offset: int
    leader_epoch: int


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
        """Read the log. Return the first damage that was found; None if the log is whole. Raises DamageError for damage
        that no truncation of the log can repair, and DiskError if a file cannot be read.
        """
        bases = self._first_bases()
        summaries = (self._directory.summary(base) for base in bases)
        self.durable_end = max(
            [self.durable_end, *(found.end_offset for found in summaries if found is not None)]
        )
        trust = Trust(self._directory, bases, self._expected.leader_epoch)
        passed, refused = self._walk(bases, trust)
        if self._expected.is_read_whole:
            return passed[0] if passed else refused
        while True:
            # A truncation removes snapshots. So the start of the broker after the truncation reads more of the log, and
            # may refuse the log because of earlier damage.
            begin = trust.replay_start(None if refused is None else offset_of(refused.path.name)).offset
            read = (
                place
                for place, one in enumerate(passed)
                if trust.reads_segment(offset_of(one.path.name), begin) and not self._is_body_only(one, trust)
            )
            place = next(read, None)
            if place is None:
                break
            passed, refused = passed[:place], passed[place]
        if not passed:
            return refused
        passed[0].is_passed_over, passed[0].refused = True, refused
        return passed[0]

    def _walk(self, bases: list[int], trust: Trust) -> tuple[list[Damage], Damage | None]:
        """Read the log from its first segment to its end, or to the damage because of which a start refuses it.

        Args:
            bases: the base offsets of the log files, ascending.
            trust: the parts of the log that a start of the broker trusts: it does not read them, because a summary or a
                snapshot describes them.

        Returns:
            Two values: the damage in parts that a start does not read, in the order of the log; and the first damage
            because of which a start refuses the log, or None.
        """
        passed: list[Damage] = []
        begin = bases[0]
        for place, base in enumerate(bases):
            following, summary = (*bases, None)[place + 1], self._directory.summary(base)
            damage, end_offset = self._examine_segment(base, following, summary)
            if damage is not None:
                damage.later = tuple(bases[place + 1 :])
                if base in trust.sealed:
                    end_offset = trust.sealed[base].end_offset
                else:
                    end_offset = self._end_of_vouched(base, trust) if following is None else -1
                    if end_offset < self.durable_end:
                        return passed, damage
                passed.append(damage)
            begin = end_offset
        if begin < self.durable_end:
            path = self._directory.path(bases[-1], LOG)
            return passed, Damage(
                path,
                self._disk.size(path),
                begin,
                f"the log ends here, but records up to offset {self.durable_end - 1} were durable",
            )
        return passed, None

    def _end_of_vouched(self, base: int, trust: Trust) -> int:
        """Return the end of the growing segment if all its damage is in the part that a snapshot vouches for (a start
        of the broker does not read this part); -1 if a start would read damaged bytes.

        A start does not ignore damage in headers, or in batches after the snapshot, because readers could not find
        records that are appended behind such damage.
        """
        if trust.vouched_end is None:
            return -1
        behind, end_offset = self._examine_segment(base, None, None, vouched_end=trust.vouched_end)
        return end_offset if behind is None else -1

    def _is_body_only(self, damage: Damage, trust: Trust) -> bool:
        """Whether the damage in a sealed segment is only in the bodies of data batches (the records after the header),
        which a start of the broker does not read.
        """
        base = offset_of(damage.path.name)
        summary = trust.sealed[base]
        end = summary.end_offset  # the next segment begins there
        behind, _ = self._examine_segment(base, end, summary, vouched_end=end)
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
        """Return the offset in the file `name`, which records where the log or its commit-ordered view begins (the
        committed batches in the order of their commits). Return None if the file is missing, and the data directory
        does not expect it.

        Raises:
            DamageError: the file is missing, although it is expected. A start refuses the partition, and no truncation
                changes this.
        """
        path = self._directory.listing.path(name)
        start = read_log_start(self._disk, path)
        if start is None and name in self._expected.start_files:
            what = "log" if name == LOG_START_FILE else "view of its committed records"
            raise DamageError(
                f"{path} is missing, which records where the {what} begins: without this file, records "
                "that were deleted could be read again. `stablelog repair` cannot repair this. Restore "
                "the file from a backup"
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
            summary: the summary of the segment (its offsets, file sizes and checksums); None if it has none.
            vouched_end: the end of the offsets for which a summary or a snapshot vouches. Before it, damage in the body
                of a batch does not count if all headers are whole, because a start of the broker does not read the
                bodies.

        Returns:
            Two values: the damage, or None; and the end offset of the batches that were read.
        """
        path = self._directory.path(base, LOG)
        with closing(self._disk.open(path)) as file:
            gone = self._next_gone(base, following)
            marks = {
                offset: mark
                for offset, mark in self._marks.items()
                if mark.base_offset == base and 0 < mark.log_size <= file.size
            }
            # A start of the broker does not read the batches before the newest snapshot, and no reader gets the batches
            # before the log start offset.
            known_end = max(marks, default=0)
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
            damage = walk.run() or self._prove(walk, gone, following, summary, marks.values())
            if damage is not None:
                has_gaps = walk.first_gap is not None and walk.first_gap < damage.position
                damage.has_gaps = has_gaps and not walk.is_growing and self._expected.gapless_epoch != NEVER
            return damage, walk.next.end_offset

    def _next_gone(self, base: int, following: int | None) -> int | None:
        """Return the base offset of the next segment that is gone: it has a summary (which is written when a segment is
        sealed) but no log file, because the log file was lost. None if there is no such segment before `following`, or
        at all if `following` is None.
        """
        gone = (offset_of(name) for name in self._directory.listing.names if is_summary(name))
        behind = (one for one in gone if one > base and (following is None or one < following))
        return min((one for one in behind if self._directory.summary(one) is not None), default=None)

    def _prove(
        self,
        walk: "_Walk",
        gone: int | None,
        following: int | None,
        summary: Summary | None,
        marks: Iterable[Summary],
    ) -> Damage | None:
        """Prove that a log file of whole batches has lost none: compare it with its summary, the snapshots and the next
        segment.

        Args:
            walk: the reading of the log file, which has found no damage.
            gone: the result of `_next_gone`.
            following: the base offset of the next segment; None for the last segment.
            summary: the summary of the segment (its offsets, file sizes and checksums); None if it has none.
            marks: what snapshots within the segment record: summaries of the segment up to their offsets.

        Returns:
            The damage that the comparison shows; None if all of them agree.
        """
        size = walk.file.size
        known = [summary] if summary is not None and summary.log_size <= size else []
        try:
            for mark in [*known, *marks] if following is None else known:
                for _ in prove_headers(self._disk, walk.path, mark.log_size, mark.log_crc):
                    pass
        except DamageError:
            return walk.damage_at_first_change()
        if summary is not None and size < summary.log_size:
            return walk.damage_at(
                walk.next, f"the file has only {size} bytes, but {summary.log_size} were durable"
            )
        if gone is not None:
            return walk.damage_at(
                walk.next, f"{self._directory.path(gone, LOG).name} is missing, and was durable"
            )
        ends = walk.next.end_offset if summary is None else max(summary.end_offset, walk.next.end_offset)
        if following is None and summary is not None:
            return walk.damage_at(
                walk.next, f"{self._directory.path(ends, LOG).name} is missing, and was durable"
            )
        if (
            following is not None
            and ends < following
            and (summary is not None or following not in self._directory.snapshots)
        ):
            return walk.damage_at(walk.next, f"the offsets {ends} to {following - 1} are missing")
        return None


class _Walk:
    """The reading of one log file, batch by batch.

    Attributes:
        next: where the next batch begins, and the state of the log there.
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
        self.next = _Place(0, base, 0)
        self.unread_end = unread_end
        self.first_gap: int | None = None
        self.is_growing = is_growing
        self._expected = expected
        self._base = base
        self._following = following
        self._last = self.next  # the place of the last batch that was read
        self._has_gap = False  # whether offsets are missing directly before this batch
        self._first_odd: _Place | None = None

    def run(self) -> Damage | None:
        """Read to the end of the file. Return the first damage; None if there is none."""
        try:
            for _, header, batch in scan_batches(self.file.read, 0, self.file.size):
                damage = self._check_offset(header) or self._check_epoch(header)
                if damage is not None:
                    return damage
                is_whole = crc_holds(batch, 0, header)
                if not is_whole and header.next_offset > self.unread_end:
                    raise DamageError(
                        f"the CRC of the batch of offset {header.base_offset} does not match its bytes"
                    )
                self._pass_batch(header, is_whole=is_whole)
        except DamageError as error:
            return self.damage_at(self.next, str(error))
        return None

    def damage_at(self, place: _Place, why: str) -> Damage:
        """Return the damage that begins at the batch at `place`, and is described by `why`."""
        return Damage(self.path, place.position, place.end_offset, why)

    def damage_at_first_change(self) -> Damage:
        """Return the damage that begins at the first batch whose offset or leader epoch may have changed."""
        return self.damage_at(
            self._first_odd or _Place(0, self._base, 0),
            "the offset or the leader epoch of a batch has changed, and it is unknown in which batch",
        )

    def _check_offset(self, header: BatchHeader) -> Damage | None:
        """Check the offset of a batch against the batches before it. Return the damage of this batch or of an earlier
        one; None if there is none.

        Raises:
            DamageError: this batch is damaged.
        """
        here = self.next
        if header.base_offset < here.end_offset:
            # If this batch has an offset in the gap before the previous batch, then the offset of the previous batch has
            # changed.
            is_in_gap = self._has_gap and header.base_offset >= self._last.end_offset
            why = f"a batch of offset {header.base_offset} follows offset {here.end_offset - 1}, which is not less"
            return self.damage_at(self._last if is_in_gap else here, why)
        if header.last_offset - self._base > RELATIVE_OFFSET_MAX or (
            self._following is not None and header.next_offset > self._following
        ):
            raise DamageError(
                f"the offset of a batch, {header.base_offset}, is beyond the end of this segment"
            )
        return None

    def _check_epoch(self, header: BatchHeader) -> Damage | None:
        """Check the leader epoch of a batch against those of the batches before it, and check that no offset is missing
        before a batch whose epoch allows no gap. Return the damage of this batch or of an earlier one; None if there is
        none.

        Raises:
            DamageError: this batch is damaged.
        """
        here, expected = self.next, self._expected
        is_gapless = self.is_growing and header.leader_epoch >= expected.gapless_epoch
        if is_gapless and header.base_offset != here.end_offset:
            raise DamageError(
                f"the offsets {here.end_offset} to {header.base_offset - 1} are missing, or the offset of the next batch has changed"
            )
        if expected.gapless_epoch == NEVER:
            return None
        if header.leader_epoch > expected.leader_epoch:
            raise DamageError(
                f"the batch of offset {header.base_offset} has leader epoch {header.leader_epoch}, but the last start of the broker had only epoch "
                f"{expected.leader_epoch}"
            )
        if header.leader_epoch < here.leader_epoch:
            # If the epoch of the previous batch is greater than that of the batch before it and than that of this batch,
            # then the epoch of the previous batch has changed.
            is_last_wrong = header.leader_epoch >= self._last.leader_epoch
            why = f"a batch of leader epoch {header.leader_epoch} follows a batch of the later epoch {here.leader_epoch}"
            return self.damage_at(self._last if is_last_wrong else here, why)
        return None

    def _pass_batch(self, header: BatchHeader, *, is_whole: bool) -> None:
        here = self.next
        has_new_epoch = here.position > 0 and header.leader_epoch != here.leader_epoch
        self._has_gap = header.base_offset > here.end_offset
        if self.first_gap is None and self._has_gap:
            self.first_gap = here.position
        if self._first_odd is None and (self._has_gap or has_new_epoch or not is_whole):
            self._first_odd = here
        self._last = here
        self.next = _Place(here.position + header.size, header.next_offset, header.leader_epoch)
