"""Repair of a damaged partition: what a cut would lose, and the cut.

A partition whose log is damaged where it was durable stays closed, because nobody but its owner can decide to go on
without the records behind the damage. `examine` finds the damage and counts what a cut would take, `cut` cuts. What is
cut off is kept, as recovery keeps it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from stablelog.batch.header import HEADER, BatchHeader, crc_holds, read_header
from stablelog.env.disk import Disk, File
from stablelog.errors import Corrupt
from stablelog.log.interrupted import finish_interrupted
from stablelog.log.log_start import LOG_START_FILE, encode_log_start, read_log_start
from stablelog.log.names import LOG, SEGMENT_SUFFIXES, is_log, is_snapshot, offset_of
from stablelog.log.recovery.tail import Cut, batches_behind, keep_segment, keep_tail

READ_SIZE = 4 << 20
Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Damage:
    """The first damage of a partition's log, and what lies behind it.

    Attributes:
        path: of the log file in which it is.
        position: of the first damaged byte's batch.
        end_offset: where the log would end.
        why: what is wrong there.
        size: bytes that a cut takes, of this file and of those behind it.
        batch_count: whole batches among them.
        record_count: their data records.
        marker_count: their transaction markers. A transaction whose marker is cut is open again.
        last_offset: the greatest offset among them, inclusive; -1 if there is none.
        later: base offsets of the segments behind this one.
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

    def lost_files(self) -> Iterator[tuple[Path, int, int]]:
        """What a cut takes of each log file, as `batches_behind` is asked for it: (path, position, first offset)."""
        yield self.path, self.position, self.end_offset
        for base in self.later:
            yield self.path.with_name(f"{base:020d}{LOG}"), -1, base

    def count(self, header: BatchHeader) -> None:
        """Count a whole batch that a cut takes."""
        self.batch_count += 1
        if header.is_control:
            self.marker_count += 1
        else:
            self.record_count += header.record_count
        self.last_offset = max(self.last_offset, header.last_offset)


def examine(disk: Disk, directory: Path, progress: Progress | None = None) -> Damage | None:
    """Read a partition's log and find the first damage; None if every batch is whole and follows the one before.

    Writes nothing.

    Args:
        disk: where the partition lies.
        directory: the partition's own.
        progress: called with (bytes read, bytes in all).

    Raises:
        Corrupt: the directory holds no log file.
        DiskError: a file cannot be read.
    """
    bases = sorted(offset_of(name) for name in disk.list_dir(directory) if is_log(name))
    if not bases:
        raise Corrupt(
            f"{directory} holds no log file: there is nothing to cut. Restore its files from a backup"
        )
    sizes = [disk.size(_log_path(directory, base)) for base in bases]
    end_offset, done = bases[0], 0
    for place, base in enumerate(bases):
        path = _log_path(directory, base)
        file = disk.open(path)
        try:
            if base < end_offset:
                damage: Damage | None = Damage(
                    path, 0, end_offset, "it begins before the segment in front of it ends"
                )
            else:
                damage, end_offset = _walk(file, path, max(base, end_offset))
            if damage is not None:
                damage.later = tuple(bases[place + 1 :])
                _count_lost(disk, directory, file, damage)
                return damage
        finally:
            file.close()
        done += sizes[place]
        if progress is not None:
            progress(done, sum(sizes))
    return None


def _log_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}{LOG}"


def _walk(file: File, path: Path, end_offset: int) -> tuple[Damage | None, int]:
    """The damage in one log file, if there is any, and where its whole batches end."""
    position = 0
    try:
        while position < file.size:
            head = file.read(position, HEADER.size)
            header = read_header(head)
            if header.size > file.size - position:
                raise Corrupt(f"the batch of offset {header.base_offset} is cut short")
            if header.base_offset < end_offset:
                raise Corrupt(f"a batch of offset {header.base_offset} follows offset {end_offset - 1}")
            if not crc_holds(file.read(position, header.size), 0, header):
                raise Corrupt(f"the CRC of the batch of offset {header.base_offset} does not hold")
            position, end_offset = position + header.size, header.next_offset
    except Corrupt as error:
        return Damage(path, position, end_offset, str(error)), end_offset
    return None, end_offset


def _count_lost(disk: Disk, directory: Path, file: File, damage: Damage) -> None:
    damage.size = file.size - damage.position
    for path, position, base_offset in damage.lost_files():
        lost = disk.open(path)
        try:
            damage.size += lost.size if path != damage.path else 0
            for _, header in batches_behind(lost, position, base_offset):
                damage.count(header)
        finally:
            lost.close()


def cut(disk: Disk, directory: Path, damage: Damage) -> list[Cut]:
    """Cut the log at the damage. What is cut off is kept in `.cut` files; durable on return.

    The synced end that the broker has recorded must be lowered to `damage.end_offset` first.

    Args:
        disk: where the partition lies; no broker has it open.
        directory: the partition's own.
        damage: as `examine` has found it.

    Returns:
        What was cut, in the order of the log.
    """
    finish_interrupted(disk, directory)
    path, offset = damage.path, damage.end_offset
    size = disk.size(path) - damage.position
    cuts = [Cut(path, damage.position, offset, size, keep_tail(disk, path, damage.position), damage.why)]
    for base in damage.later:
        kept = keep_segment(disk, _log_path(directory, base), base, f"it lies behind the cut in {path.name}")
        if kept is not None:
            cuts.append(kept)
    # First whatever says that the log was durable past the cut: a crash in between leaves a log that can be cut again.
    stems = {f"{base:020d}" for base in damage.later}
    logs = []
    for name in disk.list_dir(directory):
        stem, _, suffix = name.partition(".")
        if stem in stems and f".{suffix}" == LOG:
            logs.append(name)
        elif ((stem in stems or stem == path.stem) and f".{suffix}" in SEGMENT_SUFFIXES[1:]) or (
            is_snapshot(name) and offset_of(name) > offset
        ):
            disk.remove(directory / name)
    disk.sync_dir(directory)
    for name in reversed(logs):
        disk.remove(directory / name)
    for name in (LOG_START_FILE, "view-start-offset"):
        start = read_log_start(disk, directory / name)
        if start is not None and start > offset:
            disk.write_atomic(directory / name, encode_log_start(offset))
    disk.sync_dir(directory)
    file = disk.open(path)
    try:
        file.truncate(damage.position)
        file.sync()
    finally:
        file.close()
    return cuts
