"""`stablelog inspect`: show the contents of log files without a broker."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from stablelog.cli.options import AsJson, command_app, examples
from stablelog.cli.output import as_objects, fail, print_json, print_table
from stablelog.data_directory.names import partition_directories
from stablelog.env.disk import Disk
from stablelog.env.local_disk import LocalDisk
from stablelog.ops.inspect import Table, files_of, inspect_file
from stablelog.ops.verify import is_data_directory, is_partition_directory

app = command_app()


def partitions_of(disk: Disk, path: Path) -> list[Path]:
    """Return the directories of partitions that a path names: that of one partition, or all in a data directory.

    Raises:
        UnavailableError: the path is neither a partition's directory nor a data directory.
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


@app.command(epilog=examples("stablelog inspect data/orders-0 --records"))
def inspect(
    path: Annotated[
        Path, typer.Argument(help="A file of a partition, a partition's directory, or a data directory.")
    ],
    records: Annotated[
        bool,
        typer.Option(help="Show the records of each batch. Records of the broker's own logs are decoded."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the content of a partition's files: batches, indexes, snapshots and summaries. Nothing is written."""
    disk = LocalDisk(read_only=True)
    if path.is_file():
        _show(inspect_file(disk, path, records=records), as_json=as_json)
        return
    for partition in partitions_of(disk, path):
        for file in files_of(disk, partition):
            _show(inspect_file(disk, file, records=records), as_json=as_json)


def _show(table: Table, *, as_json: bool) -> None:
    if as_json:
        rows = as_objects(table.columns, table.rows)
        print_json({"file": table.title, "rows": rows, "problem": table.problem})
        return
    print_table(table.title, table.columns, [[_as_text(cell) for cell in row] for row in table.rows])
    if table.problem is not None:
        sys.stdout.write(f"  ! {table.problem}\n")


def _as_text(cell: object) -> object:
    """Return a table cell in the form in which it is printed. A decoded record becomes a text with each of its fields
    as name=value.
    """
    if isinstance(cell, dict):
        return " ".join(f"{name}={_as_text(content)}" for name, content in cell.items())
    if isinstance(cell, list):
        return "[" + ", ".join(str(_as_text(content)) for content in cell) + "]"
    return cell


@contextlib.contextmanager
def progress_of(count: int, *, as_json: bool) -> Iterator[Callable[[], None]]:
    """Context that shows a progress bar on stderr while a command works on `count` partitions. It shows none if stderr
    is no terminal, or if the output is JSON (`as_json`).

    Yields:
        A function that the caller calls after each partition.
    """
    if as_json or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as shown:
        task = shown.add_task("partitions", total=count)
        yield lambda: shown.advance(task)
