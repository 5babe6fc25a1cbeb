"""Output of the commands: tables for people, JSON for programs, one line for an error."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TextIO, TypeVar, cast

from stablelog.errors import Unavailable

PIPED_WIDTH = 10_000
Result = TypeVar("Result")


class OutputError(Exception):
    """Standard output could not be written. It is not an OSError, because click and rich handle OSErrors themselves.

    Args:
        error: the operating system's error.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed = error.errno == errno.EPIPE


class Output:
    """Standard output that raises OutputError on failure. All other attributes are those of the stream.

    Args:
        stream: the stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def install(cls) -> None:
        """Replace `sys.stdout` by an Output. A process that was started without standard output gets a null stream."""
        stream = sys.stdout if sys.stdout is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open
        sys.stdout = cast("TextIO", cls(stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            OutputError: the text could not be written.
        """
        return self._try(lambda: self._stream.write(text))

    def flush(self) -> None:
        """Write what is buffered.

        Raises:
            OutputError: it could not be written.
        """
        self._try(self._stream.flush)

    @staticmethod
    def discard() -> None:
        """Drop what is buffered, because the interpreter would try to write it again at its end."""
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.close(devnull)

    @staticmethod
    def _try(call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            raise OutputError(error) from error


def print_json(value: Any) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, or a line that says that there are no rows."""
    from rich.console import Console
    from rich.table import Table

    rows = list(rows)
    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH  # a file or pipe has no visible width
    if not rows:
        console.print(f"{title}: none", highlight=False)
        return
    console.print(title, style="bold", highlight=False)  # a table would fold its own title
    table = Table(header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    console.print(table)


def printable(text: str) -> str:
    """Escape what a terminal would interpret (escapes, line ends, text direction), because clients choose their ids."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_objects(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return rows as JSON objects whose keys are the columns."""
    keys = [column.replace(" ", "_") for column in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print rows, as a table or as a list of JSON objects."""
    if as_json:
        print_json(as_objects(columns, rows))
    else:
        print_table(title, columns, rows)


def counted(count: int, what: str) -> str:
    """Return a count with its noun in singular or plural: "1 partition", "2 partitions"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def done(message: str, *, as_json: bool, **facts: object) -> None:
    """Print what the command has done."""
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
