"""Repair of a damaged partition: what a cut would lose, and the cut.

A partition whose log is damaged where it was durable stays closed, because nobody but its owner can decide to go on
without the records behind the damage. `examine` finds the damage and counts what a cut would take, `cut` cuts. What is
cut off is kept, as recovery keeps it.
"""

from pathlib import Path

from stablelog.env.disk import Disk
from stablelog.errors import Corrupt
from stablelog.log.formats import check_formats
from stablelog.log.interrupted import finish_interrupted
from stablelog.log.log_start import LOG_START_FILE, encode_log_start, read_log_start
from stablelog.log.names import LOG, SEGMENT_SUFFIXES, VIEW_START_FILE, is_log, is_snapshot, offset_of
from stablelog.log.recovery.examine import Damage, Examination, Expected, Progress
from stablelog.log.recovery.tail import Cut, keep_segment, keep_tail, lost_batches


def examine(
    disk: Disk, directory: Path, expected: Expected | None = None, progress: Progress | None = None
) -> Damage | None:
    """Read a partition's log and find the first damage; None if a start of the broker finds nothing to refuse.

    First it finishes what a crash interrupted, as each start does. It writes nothing else.

    Args:
        disk: where the partition lies; no broker has it open.
        directory: the partition's own.
        expected: what the data directory says of it.
        progress: called with (bytes read, bytes in all).

    Raises:
        NewerFormat: a later release has written to the directory; nothing was changed.
        Corrupt: the directory is damaged in a way that no cut mends.
        DiskError: a file cannot be read.
    """
    check_formats(disk, directory)
    finish_interrupted(disk, directory)
    examination = Examination(disk, directory, expected or Expected(), progress)
    damage = examination.run()
    if damage is not None:
        damage.durable_end = max(examination.durable_end, damage.end_offset)
        _count_lost(disk, damage)
    return damage


def _count_lost(disk: Disk, damage: Damage) -> None:
    for path, position, base_offset in damage.lost_files():
        lost = disk.open(path)
        try:
            damage.size += lost.size - max(position, 0)
            if position == lost.size:
                continue
            for _, header in lost_batches(lost, position, base_offset):
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
    _check_unchanged(disk, directory, damage)
    path, offset = damage.path, damage.end_offset
    size = disk.size(path) - damage.position
    cuts = []
    if size:
        cuts.append(
            Cut(path, damage.position, offset, size, keep_tail(disk, path, damage.position), damage.why)
        )
    for base in damage.later:
        log_path = directory / f"{base:020d}{LOG}"
        kept = keep_segment(disk, log_path, base, f"it lies behind the cut in {path.name}")
        if kept is not None:
            cuts.append(kept)
    # First whatever says that the log was durable past the cut: a crash in between leaves a log that can be cut again.
    logs = []
    for name in disk.list_dir(directory):
        stem, _, suffix = name.partition(".")
        if not stem.isdigit():
            continue
        is_later = int(stem) > int(path.stem)
        if is_log(name):
            logs += [name] if is_later else []
        elif (f".{suffix}" in SEGMENT_SUFFIXES and (is_later or stem == path.stem)) or (
            is_snapshot(name) and offset_of(name) > offset
        ):
            disk.remove(directory / name)
    disk.sync_dir(directory)
    for name in reversed(logs):
        disk.remove(directory / name)
    for name in (LOG_START_FILE, VIEW_START_FILE):
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


def _check_unchanged(disk: Disk, directory: Path, damage: Damage) -> None:
    """Raise Corrupt if the log files are not those that were examined."""
    bases = tuple(sorted(offset_of(name) for name in disk.list_dir(directory) if is_log(name)))
    size = sum(
        disk.size(path) - max(position, 0)
        for path, position, _ in damage.lost_files()
        if offset_of(path.name) in bases
    )
    if tuple(base for base in bases if base > int(damage.path.stem)) != damage.later or size != damage.size:
        raise Corrupt(
            f"{directory} has changed since it was examined; nothing was cut. Stop what writes to it, and run "
            "`stablelog repair` again"
        )
