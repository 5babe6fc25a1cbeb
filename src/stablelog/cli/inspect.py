"""`stablelog inspect` and `stablelog verify`: commands that read a directory without a broker."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from stablelog.cli.output import counted, done, fail, print_json, print_table
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.errors import DiskError
from stablelog.log.recovery.examine import Expected
from stablelog.log.verify import Finding, verify_directory
from stablelog.ops.inspect import Table, files_of, inspect_file
from stablelog.ops.verify import (
    expectations,
    is_data_directory,
    is_partition_directory,
    partition_directories,
    until_unreadable,
    verify_data_directory,
)
from stablelog.views.verify import verify_view

TRIES: Final = 5


def partitions_of(disk: Disk, path: Path) -> list[Path]:
    """Return the partition directories at or below a path.

    Raises:
        Unavailable: the path is neither a partition's directory nor a data directory.
    """
    path = path.absolute()
    if not disk.exists(path):
        fail(f"there is no {path}")
    if not disk.is_dir(path):
        fail(f"{path} is a file: name its partition's directory, or the data directory")
    if is_partition_directory(disk, path):
        return [path]
    if not is_data_directory(disk, path):
        fail(
            f"{path} is neither a data directory, with cluster.json or meta.properties, nor a partition's, "
            "<topic>-<number> with .log files"
        )
    return partition_directories(disk, path)


def run_inspect(path: Path, *, records: bool, as_json: bool) -> None:
    """Show the content of the files."""
    disk = LocalDisk(read_only=True)
    if path.is_file():
        _show(inspect_file(disk, path, records=records), as_json=as_json)
        return
    for partition in partitions_of(disk, path):
        for file in files_of(disk, partition):
            _show(inspect_file(disk, file, records=records), as_json=as_json)


def _show(table: Table, *, as_json: bool) -> None:
    if as_json:
        keys = [column.replace(" ", "_") for column in table.columns]
        rows = [dict(zip(keys, row, strict=True)) for row in table.rows]
        print_json({"file": table.title, "rows": rows, "problem": table.problem})
        return
    print_table(table.title, table.columns, [[_as_text(cell) for cell in row] for row in table.rows])
    if table.problem is not None:
        sys.stdout.write(f"  ! {table.problem}\n")


def _as_text(cell: object) -> object:
    """Format a table cell as text; a decoded record becomes a list of its fields."""
    if isinstance(cell, dict):
        return " ".join(f"{name}={_as_text(content)}" for name, content in cell.items())
    if isinstance(cell, list):
        return "[" + ", ".join(str(_as_text(content)) for content in cell) + "]"
    return cell


def run_verify(directory: Path, *, as_json: bool) -> None:
    """Check every index against its log."""
    disk = LocalDisk(read_only=True)
    directory = directory.absolute()
    partitions = partitions_of(disk, directory)
    is_partition = partitions == [directory]
    findings = [] if is_partition else list(verify_data_directory(disk, directory))
    # Read the expectations before the logs. A running broker only adds to the logs, so they then hold at least as much.
    expected = {}
    try:
        expected = expectations(disk, directory.parent if is_partition else directory)
    except DiskError as error:
        findings.append(Finding(directory, f"cannot be verified against what it says of its logs: {error}"))
    with progress_of(len(partitions), as_json=as_json) as advance:
        for partition in partitions:
            findings += _findings(disk, partition, expected.get(partition, Expected()))
            advance()
    findings = list(dict.fromkeys(findings))  # the directory and its partition may report the same file
    if as_json:
        print_json([{"file": str(finding.path), "problem": finding.message} for finding in findings])
    else:
        for finding in findings:
            sys.stdout.write(f"{finding.path}: {finding.message}\n")
        done(f"{counted(len(partitions), 'partition')}, {counted(len(findings), 'finding')}", as_json=False)
    if findings:
        sys.exit(1)


def _findings(disk: LocalDisk, partition: Path, expected: Expected) -> list[Finding]:
    """Return the findings of a partition; none if a running broker has deleted the partition meanwhile.

    A running broker may also delete a segment during the check. Then the check starts again.
    """
    tries = 0
    while True:
        try:
            found = [
                *until_unreadable(
                    partition,
                    verify_directory(
                        disk,
                        partition,
                        recovery_point=expected.recovery_point,
                        gapless_epoch=expected.gapless_epoch,
                    ),
                ),
                *until_unreadable(partition, verify_view(disk, partition)),
            ]
        except FileNotFoundError:
            tries += 1
            if partition.exists() and tries == TRIES:
                raise
        else:
            return found if partition.exists() else []
        if not partition.exists():
            return []


@contextlib.contextmanager
def progress_of(count: int, *, as_json: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar on stderr if it is a terminal. Yield a function to call after each partition."""
    if as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:
        task = shown.add_task("partitions", total=count)
        yield lambda: shown.advance(task)
