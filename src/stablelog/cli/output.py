"""How commands speak: tables for people, JSON for programs, one line for errors."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from stablelog.errors import Unavailable

PIPED_WIDTH = 10_000


def print_json(value: Any) -> None:
    """One JSON document, on one line."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table; a line that says so where there are no rows."""
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH  # of a file or a pipe nobody sees the edge
    if not rows:
        console.print(f"{title}: none", highlight=False)
        return
    console.print(title, style="bold", highlight=False)  # not the table's own, which is folded to its width
    table = Table(header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    console.print(table)


def printable(text: str) -> str:
    """The text with what a terminal would obey (escapes, line ends, marks of direction) written out: clients choose their ids."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Rows, as a table or as a list of JSON objects whose keys are the columns."""
    if as_json:
        print_json(
            [dict(zip((column.replace(" ", "_") for column in columns), row, strict=True)) for row in rows]
        )
    else:
        print_table(title, columns, rows)


def done(message: str, *, as_json: bool, **facts: object) -> None:
    """What was done."""
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(message + "\n")


def fail(message: str) -> NoReturn:
    """End the command with a message.

    Raises:
        Unavailable: always.
    """
    raise Unavailable(message)
