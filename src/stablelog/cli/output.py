"""Output of the commands: tables for users, JSON for programs, and one line for an error."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TextIO, TypeVar, cast

PIPED_WIDTH = 10_000
FINDINGS = 1  # The exit code of a command that has found damage.
Result = TypeVar("Result")


class OutputError(Exception):
    """Standard output could not be written. The class is not a subclass of OSError, because the libraries click and
    rich catch every OSError and would hide this one.

    Args:
        error: the operating system's error.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror}")
        self.is_closed = error.errno == errno.EPIPE


class Output:
    """A wrapper of standard output that raises OutputError if a write fails. All other attributes are those of the
    wrapped stream.

    Args:
        stream: the stream to write to.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @classmethod
    def install(cls) -> None:
        """Replace `sys.stdout` by an object of this class, whose writes raise OutputError if they fail. If the process
        has no standard output, the object writes to the null device.
        """
        stream = sys.stdout if sys.stdout is not None else open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - stays open
        sys.stdout = cast("TextIO", cls(stream))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text.

        Raises:
            OutputError: the text could not be written.
        """
        return self._convert_errors(lambda: self._stream.write(text))

    def flush(self) -> None:
        """Write the buffered text to the stream.

        Raises:
            OutputError: the buffered text could not be written.
        """
        self._convert_errors(self._stream.flush)

    def write_bytes(self, content: bytes) -> None:
        """Write bytes to the stream.

        Raises:
            OutputError: the bytes could not be written.
        """
        self._convert_errors(lambda: self._stream.buffer.write(content))

    @staticmethod
    def discard() -> None:
        """Discard the text that standard output has buffered, after a write has failed. Otherwise the interpreter would
        try to write it again at exit.
        """
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.close(devnull)

    @staticmethod
    def _convert_errors(call: Callable[[], Result]) -> Result:
        try:
            return call()
        except OSError as error:
            raise OutputError(error) from error


def print_json(value: Any) -> None:
    """Print a value as a JSON document on one line."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def print_bytes(content: bytes) -> None:
    """Write bytes to standard output as they are. A caller writes either bytes or text."""
    if isinstance(sys.stdout, Output):
        sys.stdout.write_bytes(content)
    else:  # in a program that calls a command as a function
        sys.stdout.buffer.write(content)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, or a line that says that there are no rows."""
    rows = list(rows)
    if not rows:
        sys.stdout.write(f"{title}: none\n")
    elif (
        sys.stdout.isatty() or os.environ.get("FORCE_COLOR") or not is_plain(sys.stdout.encoding, title, rows)
    ):
        _print_at_terminal(title, columns, rows)
    else:
        sys.stdout.write("".join(f"{line}\n" for line in (title, *_plain_table(columns, rows))))


def is_plain(encoding: str | None, title: str, rows: Sequence[Sequence[object]]) -> bool:
    """Return whether a table can be printed without the library rich: it has only ASCII characters, and the encoding of
    the output has the characters of the lines.
    """
    is_utf8 = (encoding or "").lower().replace("-", "") == "utf8"
    return is_utf8 and title.isascii() and all(str(cell).isascii() for row in rows for cell in row)


def _plain_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterable[str]:
    """Yield the lines of a table, in the form in which the library rich writes tables into a pipe. This function
    replaces rich for most tables, because the import of rich takes longer than the work of most commands.
    """
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    aligned: list[Callable[[str, int], str]] = [
        str.rjust if all(isinstance(row[index], int) for row in rows) else str.ljust
        for index in range(len(columns))
    ]
    widths = [max(map(len, (name, *(text[index] for text in texts)))) for index, name in enumerate(columns)]

    def line(cells: Sequence[str], edge: str) -> str:
        shown = (align(cell, width) for align, cell, width in zip(aligned, cells, widths, strict=True))
        return f"{edge} {f' {edge} '.join(shown)} {edge}"

    def rule(left: str, dash: str, cross: str, right: str) -> str:
        return left + cross.join(dash * (width + 2) for width in widths) + right

    yield rule("┏", "━", "┳", "┓")
    yield line(columns, "┃")
    yield rule("┡", "━", "╇", "┩")
    for text in texts:
        yield line(text, "│")
    yield rule("└", "─", "┴", "┘")


def _print_at_terminal(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH  # a file or a pipe has no width of its own
    # Print the title separately, because rich would wrap it at the table's width.
    console.print(title, style="bold", highlight=False)
    table = Table(header_style="bold")
    for index, column in enumerate(columns):
        numeric = all(isinstance(row[index], int) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else printable(str(cell)) for cell in row))
    console.print(table)


def printable(text: str) -> str:
    """Escape characters that a terminal would interpret, such as escape sequences and line ends. Texts such as client
    ids come from other users.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def as_objects(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[dict[str, object]]:
    """Return rows as JSON objects whose keys are the columns."""
    keys = [column.replace(" ", "_") for column in columns]
    return [dict(zip(keys, row, strict=True)) for row in rows]


def print_rows(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool
) -> None:
    """Print rows: as a table with a title, or with `as_json` as a list of JSON objects whose keys are the columns."""
    if as_json:
        print_json(as_objects(columns, rows))
    else:
        print_table(title, columns, rows)


def print_plan(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    is_executed: bool,
    as_json: bool,
    items: str = "partitions",
    **facts: object,
) -> None:
    """Print the changes of a command that has the option `--execute`: those that it has made, or those that it would
    make with this option.

    Args:
        title: the title of the table.
        columns: the columns of the table, and with underscores the keys of the JSON objects.
        rows: a row for each item, such as a partition.
        is_executed: whether the command was called with `--execute`.
        as_json: whether to print JSON.
        items: what the rows are, such as `partitions`: the key under which the JSON document has them.
        facts: further values of the JSON document, by key.
    """
    if as_json:
        print_json({**facts, "is_executed": is_executed, items: as_objects(columns, rows)})
        return
    print_table(title, columns, rows)
    if not is_executed:
        sys.stdout.write("dry run: nothing was changed; --execute does it\n")


def counted(count: int, what: str) -> str:
    """Return a count with its noun in singular or plural: "1 partition", "2 partitions". `what` is the noun in
    singular.
    """
    return f"{count} {what}{'' if count == 1 else 's'}"


def print_done(message: str, *, as_json: bool, **facts: object) -> None:
    """Print that the command is done: with `as_json` the values `facts` as a JSON object, otherwise the text
    `message`.
    """
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(message + "\n")


def fail(message: str) -> NoReturn:
    """End the command with a message.

    Raises:
        UnavailableError: always.
    """
    from stablelog.errors import UnavailableError  # imported here: `stablelog --version` needs no errors

    raise UnavailableError(message)
