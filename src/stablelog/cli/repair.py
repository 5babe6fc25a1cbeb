"""`stablelog repair`: cuts a damaged log behind its last whole batch, once its owner has agreed to the loss."""

import sys
from pathlib import Path

import typer

from stablelog.broker.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stablelog.cli.inspect import partitions_of, progress_of
from stablelog.cli.output import fail
from stablelog.env.disk import Disk, LocalDisk
from stablelog.env.lock import DirectoryLock
from stablelog.errors import Corrupt
from stablelog.log.recovery.repair import Damage, cut, examine


def run_repair(directory: Path, *, yes: bool) -> None:
    """Examine each partition, show what a cut would lose, ask, and cut.

    Args:
        directory: of a partition, or a data directory.
        yes: whether to cut without a question.
    """
    disk = LocalDisk()
    partitions = partitions_of(disk, directory)
    lock = DirectoryLock(partitions[0].parent, create=False)
    try:
        found = []
        with progress_of(len(partitions), as_json=False) as advance:
            for partition in partitions:
                damage = examine(disk, partition)
                if damage is not None:
                    found.append((partition, damage))
                advance()
        sys.stdout.write(f"{len(partitions)} partitions examined, {len(found)} with a damaged log\n")
        for partition, damage in found:
            _repair(disk, partition, damage, yes=yes)
    finally:
        lock.release()


def _repair(disk: Disk, partition: Path, damage: Damage, *, yes: bool) -> None:
    sys.stdout.write(describe(partition, damage))
    if not yes:
        if not sys.stdin.isatty():
            fail("nothing was changed: answer on a terminal, or agree with --yes")
        if not typer.confirm("Cut?", default=False):
            sys.stdout.write("Nothing was changed.\n")
            return
    _lower_recovery_point(disk, partition, damage.end_offset)
    for done in cut(disk, partition, damage):
        sys.stdout.write(f"{done}\n")


def describe(partition: Path, damage: Damage) -> str:
    """What a cut would lose, for people."""
    lines = [
        f"{partition.name}: {damage.path.name} is damaged at byte {damage.position}: {damage.why}",
        f"  A cut ends the log at offset {damage.end_offset} and takes {damage.size} bytes.",
    ]
    if damage.batch_count:
        lines.append(
            f"  Whole batches are among them: {damage.batch_count}, with {damage.record_count} records and "
            f"{damage.marker_count} transaction markers, up to offset {damage.last_offset}."
        )
    else:
        lines.append("  No whole batch is among them.")
    if damage.later:
        lines.append(f"  Segments behind it are cut as a whole: {len(damage.later)}.")
    if damage.marker_count:
        lines.append("  Transactions whose marker is cut are open again, or lost with their records.")
    if partition.name.startswith("__transaction_state"):
        lines.append("  This is a commit log: commits that were decided behind the damage may be undone.")
    if partition.name.startswith("__consumer_offsets"):
        lines.append("  This is the offsets log: groups go back to older offsets and read records again.")
    lines.append("  What is cut is kept beside the log, as .cut files.")
    return "\n".join(lines) + "\n"


def _lower_recovery_point(disk: Disk, partition: Path, end_offset: int) -> None:
    """Record that the log is no longer durable past its new end, before it is cut."""
    path = partition.parent / RECOVERY_POINT_CHECKPOINT
    try:
        offsets = read_offset_checkpoint(disk, path)
    except Corrupt:
        return  # a start takes it for unknown
    topic, _, index = partition.name.rpartition("-")
    if offsets.get((topic, int(index)), -1) > end_offset:
        write_offset_checkpoint(disk, path, {**offsets, (topic, int(index)): end_offset})
