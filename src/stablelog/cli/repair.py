"""`stablelog repair`: truncate damaged logs that a start of the broker would refuse, after the user has agreed to the
loss.
"""

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stablelog.cli.inspect import partitions_of, progress_of
from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import FINDINGS, fail, print_json
from stablelog.coordinators.transactions.records import TransactionGroupState
from stablelog.data_directory.catalog import CATALOG_FILE, read_catalog
from stablelog.data_directory.checkpoints import (
    RECOVERY_POINT_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from stablelog.data_directory.formats import check_formats, check_partition_formats
from stablelog.data_directory.meta_properties import META_FILE
from stablelog.data_directory.names import partition_directories
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.env.lock import LOCK_FILE, DirectoryLock
from stablelog.errors import DamageError, StablelogError
from stablelog.log.files.log_start import LOG_START_FILE
from stablelog.log.recovery.damage import Damage
from stablelog.log.recovery.repair import examine, truncate_at_damage
from stablelog.ops.commit_numbers import (
    AssignedNumbers,
    append_next_numbers,
    commit_logs,
    group_of_directory,
    lost_decisions,
    next_numbers,
    read_assigned_numbers,
    read_logged_numbers,
)
from stablelog.ops.verify import expectations, last_leader_epoch
from stablelog.wire.extension.transaction_groups import group_in_words

app = command_app()


@app.command(epilog=examples("stablelog repair data", "stablelog repair data/orders-0 --at-first-damage"))
def repair(
    directory: Annotated[Path, typer.Argument(help="A partition's directory, or a data directory.")],
    yes: Annotated[bool, typer.Option("--yes", help="Cut without a question.")] = False,
    at_first_damage: Annotated[
        bool,
        typer.Option(
            "--at-first-damage",
            help="Cut the log of one partition at its first damage, even if a start accepts this damage.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Truncate damaged logs that a start of the broker refuses. Show what each truncation loses, and ask first. Keep
    removed bytes in files.
    """
    # With --json, the report for the user and the questions go to stderr.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        report = _repair_directory(directory, yes=yes, at_first_damage=at_first_damage)
    if as_json:
        print_json(report)
    if not report["is_repaired"]:
        sys.exit(FINDINGS)


def _repair_directory(directory: Path, *, yes: bool, at_first_damage: bool) -> dict[str, Any]:
    """Repair the logs of a directory. Return the report for programs: the content of the JSON document that the command
    prints.

    Damage that a start of the broker accepts is only shown. A partition whose directory cannot be examined is reported
    and skipped. After an error before the first question, nothing was changed.

    Args:
        directory: the directory of a partition, or a data directory.
        yes: whether to write without a question.
        at_first_damage: whether to cut (truncate) the log at its first damage, even if a start accepts this damage.
    """
    disk = LocalDisk()
    partitions = partitions_of(disk, directory.resolve())
    data = _data_directory(disk, directory.resolve(), partitions)
    if at_first_damage and partitions != [directory.resolve()]:
        fail("nothing was changed: with --at-first-damage, name the directory of one partition")
    lock = DirectoryLock(data)
    try:
        check_formats(disk, data)
        _check_list(disk, data)
        expected = expectations(disk, data)
        found, passed, failed, damaged_count = [], [], set(), 0
        with progress_of(len(partitions), as_json=False) as advance:
            for partition in partitions:
                try:
                    check_partition_formats(disk, partition)
                    damage = examine(disk, partition, expected.get(partition))
                except (StablelogError, OSError) as error:
                    sys.stdout.write(f"{partition.name}: cannot be repaired: {error}\n")
                    failed.add(partition)
                else:
                    damaged_count += damage is not None
                    if damage is not None and damage.is_passed_over and not at_first_damage:
                        passed.append((partition, damage))
                        damage = damage.refused
                    found += [(partition, damage)] if damage is not None else []
                advance()
        sys.stdout.write(f"{len(partitions)} partitions examined, {damaged_count} with a damaged log\n")
        for partition, damage in passed:
            sys.stdout.write(describe_passed(partition, damage))
        whole = [partition for partition in partitions if partition not in failed]
        is_done = _cut_all(disk, data, whole, found, failed, yes=yes)
    finally:
        lock.release()
    return {
        "examined": len(partitions),
        "to_cut": [{"partition": path.name, "end_offset": one.end_offset} for path, one in found],
        "accepted": [{"partition": path.name, "end_offset": one.end_offset} for path, one in passed],
        "failed": sorted(path.name for path in failed),
        "is_repaired": is_done and not failed,
    }


def _data_directory(disk: Disk, named: Path, partitions: list[Path]) -> Path:
    """Return the data directory of these partitions. `named` is the directory that the user has named. The caller locks
    this directory, so that no broker starts in it meanwhile.
    """
    data = named.parent if partitions == [named] else named
    if not any(disk.exists(data / name) for name in (CATALOG_FILE, META_FILE, LOCK_FILE)):
        fail(
            f"{data} is not a data directory: it contains no {CATALOG_FILE}, {META_FILE} or {LOCK_FILE}. So it is unknown "
            f"whether a broker has {named} open. Name the data directory, or a partition's directory in it; copy a single "
            "partition into the data directory first"
        )
    return data


def _check_list(disk: Disk, data: Path) -> None:
    """Check that the list of topics of the data directory can be read. Without the list it is unknown in which logs
    compaction leaves gaps, so a truncation could damage a log further.
    """
    path, why = data / CATALOG_FILE, None
    try:
        if read_catalog(disk, data) is None:
            ours = [one / LOG_START_FILE for one in partition_directories(disk, data)]
            found = next((one for one in ours if disk.exists(one)), None)
            why = (
                None
                if found is None
                else f"{path} is missing, although {found} shows that stablelog has written the directory"
            )
    except DamageError as error:
        why = str(error)
    if why is not None:
        fail(
            f"{why}. Nothing was changed: without the list of topics it is unknown in which logs compaction leaves gaps and "
            "which files must exist, and a cut could remove too much or leave the log damaged. Restore the list first; an "
            "older copy is sufficient. Then run `stablelog repair` again"
        )


def _cut_all(
    disk: Disk,
    data: Path,
    examined: list[Path],
    found: list[tuple[Path, Damage]],
    failed: set[Path],
    *,
    yes: bool,
) -> bool:
    """Cut (truncate) the damaged logs, and correct the commit logs, those of the transaction coordinators.

    A commit log that was cut may have lost the last numbers of commits and producer ids that the broker had assigned.
    Then its coordinator would assign them a second time. So a record is added to the commit log, with the numbers at
    which the coordinator continues.

    Args:
        disk: the file system with the directories.
        data: the data directory.
        examined: the partition directories that could be examined.
        found: the partition directories whose log is damaged, each with the damage.
        failed: the partition directories that could not be examined. Nothing is written to them.
        yes: whether to write without a question.

    Returns:
        Whether the user agreed to every change.
    """
    # Read which commit sequences and producer ids were assigned before any log is cut: a cut also removes markers and
    # snapshots, which contain such numbers.
    is_any = any(group_of_directory(partition) is not None for partition in examined)
    given = read_assigned_numbers(disk, partition_directories(disk, data)) if is_any else AssignedNumbers()
    if not disk.exists(data / CATALOG_FILE):
        # Apache Kafka has written this directory. Kafka's controller assigns producer ids, and Kafka's
        # `__transaction_state` does not record which ids were assigned. So no producer ids are missing in that log.
        given.producer_ids_end = 0
    is_cut = {partition: _repair(disk, partition, damage, yes=yes) for partition, damage in found}
    logs = commit_logs(partition_directories(disk, data))
    said = {group: read_logged_numbers(disk, directories, group) for group, directories in logs.items()}
    is_done = all(is_cut.values())
    for group, directories in commit_logs(examined).items():
        unreadable = sorted(path.name for path in failed.intersection(logs[group]))
        if unreadable:
            sys.stdout.write(
                f"{directories[0].name}: nothing is added to the commit log of {group_in_words(group)}, because "
                f"{', '.join(unreadable)} cannot be repaired. Run `stablelog repair` again once it is restored\n"
            )
        elif all(is_cut.get(path, True) for path in directories):
            was_cut = any(is_cut.get(path, False) for path in directories)
            is_done &= _go_on(disk, data, directories[0], given, said, is_cut=was_cut, yes=yes)
    return is_done


def _repair(disk: Disk, partition: Path, damage: Damage, *, yes: bool) -> bool:
    """Repair one damaged log if the user agrees: cut it (truncate it) at the damage. With `yes`, do so without a
    question. Return True if the log was cut, and False if the user did not agree.
    """
    sys.stdout.write(describe(disk, partition, damage))
    if not _agreed("Cut?", yes=yes):
        return False
    for done in truncate_at_damage(disk, partition, damage):
        sys.stdout.write(f"{done}\n")
    _lower_recovery_point(disk, partition, damage.end_offset)
    return True


def _agreed(question: str, *, yes: bool) -> bool:
    if yes:
        return True
    if not sys.stdin.isatty():
        fail("nothing was changed: answer on a terminal, or agree with --yes")
    try:
        if typer.confirm(question, default=False):
            return True
    except typer.Abort as abort:
        if isinstance(abort.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        sys.stdout.write("\n")  # the user has ended the input instead of answering, which counts as no
    sys.stdout.write("Nothing was changed.\n")
    return False


def _go_on(
    disk: Disk,
    data: Path,
    directory: Path,
    given: AssignedNumbers,
    said: dict[str, AssignedNumbers],
    *,
    is_cut: bool,
    yes: bool,
) -> bool:
    """Add a record to a commit log (the log of a transaction coordinator) if it has lost numbers of commits or producer
    ids that were assigned already. By this record, its coordinator goes on after these numbers, so that none is
    assigned twice.

    Args:
        disk: the file system with the directories.
        data: the data directory.
        directory: the partition directory of the commit log.
        given: the numbers that the broker had assigned, read from all files before any log was cut.
        said: by transaction group (each has a commit log), the last assigned numbers according to the group's commit
            log now.
        is_cut: whether the commit log was truncated.
        yes: whether to write without a question.

    Returns:
        True if the commit log is complete now: nothing was lost, or the record is added. False if the user did not
        agree.
    """
    group = group_of_directory(directory)
    assert group is not None, directory
    state = next_numbers(given, said, group, is_cut=is_cut)
    if state is None:
        return True
    sys.stdout.write(_describe_numbers(directory.name, group, given, said, state))
    if not _agreed("Add it?", yes=yes):
        return False
    epoch = last_leader_epoch(disk, data)
    append_next_numbers(disk, directory, group, state, leader_epoch=epoch)
    said[group].producer_ids_end = state.producer_ids_end
    return True


def _describe_numbers(
    name: str,
    group: str,
    given: AssignedNumbers,
    said: dict[str, AssignedNumbers],
    state: TransactionGroupState,
) -> str:
    """Return the text before the question whether to add a record to a commit log, the log of a transaction
    coordinator: the reason, and the numbers of the record, at which the coordinator continues.

    Args:
        name: the name of the commit log's partition.
        group: the transaction group of the coordinator: the topics whose commits have one order.
        given: the numbers of commits and producer ids that the broker had assigned.
        said: by transaction group, the last assigned numbers according to the group's commit log.
        state: the content of the record.
    """
    last, known = given.sequence_end(group) - 1, said[group].sequence_end(group) - 1
    reserved_end = max(one.producer_ids_end for one in said.values())
    log = f"{name}: the commit log of {group_in_words(group)}"
    lines = []
    if last > known:
        lines.append(f"{log} contains commits up to #{known}, and #{last} was given out.")
    if given.producer_ids_end > reserved_end:
        lines.append(
            f"{log} contains producer ids below {reserved_end}, and ids below {given.producer_ids_end} were given out."
        )
    if not lines:
        lines.append(
            f"{log} was cut. The removed part may have reserved producer ids that no partition contains."
        )
    lines.append(
        f"  A record is added: new commits continue after #{state.commit_sequence_next - 1}, and new producer ids begin at "
        f"{state.producer_ids_end}."
    )
    return "\n".join(lines) + "\n"


def describe_passed(partition: Path, damage: Damage) -> str:
    """Return a text for the user about damage that a start of the broker passes over: what the broker does with the
    damage, and what a truncation of the log there would lose.
    """
    return (
        f"{partition.name}: {damage.path.name} is damaged at byte {damage.position}: {damage.why}\n"
        "  A start accepts this damage: the broker answers reads of the damaged batches with KAFKA_STORAGE_ERROR, and "
        "serves all others. The log is not cut.\n"
        f"  A cut at the damage would end the log at offset {damage.end_offset} and remove {damage.size} bytes with "
        f"{damage.batch_count} whole batches, {damage.record_count} records and {damage.marker_count} transaction markers.\n"
        f"  To cut it: stablelog repair {partition} --at-first-damage\n"
    )


def describe(disk: Disk, partition: Path, damage: Damage) -> str:
    """Return a text for the user: where a log is damaged, and what its truncation would lose."""
    lines = [
        f"{partition.name}: {damage.path.name} is damaged at byte {damage.position}: {damage.why}",
        f"  A cut ends the log at offset {damage.end_offset} and removes {damage.size} bytes.",
    ]
    if damage.durable_end > damage.end_offset:
        lines.append(
            f"  It loses the offsets {damage.end_offset} to {damage.durable_end - 1}, which were durable."
        )
    if damage.batch_count:
        lines.append(
            f"  It removes {damage.batch_count} whole batches, with {damage.record_count} records and {damage.marker_count} "
            f"transaction markers, up to offset {damage.last_offset}."
        )
    else:
        lines.append("  It removes no whole batch.")
    if damage.later:
        lines.append(f"  It removes all later segments: {len(damage.later)}.")
    if damage.marker_count:
        lines.append("  Transactions whose marker is removed are open again, or lost with their records.")
    group = group_of_directory(partition)
    if group is not None:
        lines += _describe_commit_log(disk, group, damage)
    if partition.name.startswith("__consumer_offsets"):
        lines.append("  This is the offsets log: groups continue at older offsets and read records again.")
    lines.append("  The removed bytes are kept beside the log, in .cut files.")
    return "\n".join(lines) + "\n"


def _describe_commit_log(disk: Disk, group: str, damage: Damage) -> list[str]:
    lost = lost_decisions(disk, damage)
    commits = f"#{lost.first_commit} to #{lost.last_commit}" if lost.last_commit else "none that can be read"
    return [
        (
            f"  This is the commit log of {group_in_words(group)}. The cut loses decisions of "
            f"{len(lost.transactional_ids)} transactional ids; commits among them: {commits}."
        ),
        (
            "  The markers in the partitions stay. A transaction whose marker is missing in a partition is aborted there at "
            "the next start, even if it was committed."
        ),
        (
            "  New commits continue after the greatest commit sequence of all partitions. New producer ids begin after those "
            "of all partitions, and after spare blocks, whose ids clients may have."
        ),
    ]


def _lower_recovery_point(disk: Disk, partition: Path, end_offset: int) -> None:
    """Lower the recorded recovery point of a log to its new end.

    Call this after the log is truncated. If a crash interrupts the truncation, the old recovery point still makes the
    next start refuse the log.
    """
    path = partition.parent / RECOVERY_POINT_CHECKPOINT
    try:
        offsets = read_offset_checkpoint(disk, path)
    except DamageError:
        return  # nothing to lower: the checkpoint file of recovery points is damaged, so the next start ignores it
    topic, _, index = partition.name.rpartition("-")
    if offsets.get((topic, int(index)), -1) > end_offset:
        write_offset_checkpoint(disk, path, {**offsets, (topic, int(index)): end_offset})
