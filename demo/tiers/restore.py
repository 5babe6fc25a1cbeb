"""The loss of the disk, and the restore of a data directory from the store."""

import json
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from demo.children import Children
from demo.tiers import STORE_URL, TOPIC


def restore(children: Children, data: Path) -> list[dict[str, Any]]:
    """Run `stablelog restore` into a new data directory. Return what its report says of the topic's partitions.

    Raises:
        SystemExit: the command has failed.
    """
    errors = data.with_name("restore.log")
    command = ("restore", STORE_URL, "--data", str(data), "--allow-http", "--json")
    process = children.start("stablelog.cli.main", *command, errors=errors)
    said, _ = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"stablelog restore has failed:\n{said}{errors.read_text()}")
    ranges = [one for one in json.loads(said)["ranges"] if one["topic"] == TOPIC]
    return sorted(ranges, key=lambda one: int(one["partition"]))


def wipe(data: Path) -> None:
    """Remove the data directory of a broker that does not run. It is renamed first, so that all of it goes at once."""
    wiped = data.with_name("wiped")
    data.rename(wiped)
    shutil.rmtree(wiped)


def show(console: Console, ranges: list[dict[str, Any]]) -> None:
    """Print the report of a restore."""
    console.print(f"  $ stablelog restore {STORE_URL} --data data", style="bold", highlight=False)
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="dim")
    names = ("partition", "log start", "gone from", "last known log end", "next offset")
    for name in names:
        table.add_column(f"    {name}" if name == "partition" else name, justify="right", no_wrap=True)
    for one in ranges:
        table.add_row(
            f"{one['topic']}-{one['partition']}",
            *(f"{one[key]:,}" for key in ("log_start", "lost_from", "log_end", "next_offset")),
        )
    console.print(table)
