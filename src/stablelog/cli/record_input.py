"""Readers of the input of `stablelog produce`: lines, JSON lines and CSV. `parquet_input` reads Parquet.

Each yields records with the number of their line. docs/reference/commands.md describes the forms.
"""

import base64
import binascii
import csv
import io
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final, NamedTuple

from stablelog.errors import UnavailableError, did_you_mean
from stablelog.json_text import parse_json

FIELDS: Final = ("key", "key_base64", "value", "value_base64", "partition", "timestamp_ms", "headers")
# Fields of `stablelog consume --json` that say where a record was.
IGNORED: Final = ("topic", "offset")
HEADER_PREFIX: Final = "header."  # of the CSV columns with headers
COLUMNS: Final = ("key", "value", "partition", "timestamp_ms")
# -1 means that a record has no timestamp. Times before 1970 are negative, too.
TIMESTAMP_MS_RANGE: Final = (-(1 << 63), (1 << 63) - 1)
PARTITION_MAX: Final = (1 << 31) - 1
CSV_FIELD_SIZE_MAX: Final = 1 << 30

Header = tuple[str, bytes | None]


class BadRecordError(UnavailableError):
    """A record of the input is not valid. The message names its line or row."""


class InputRecord(NamedTuple):
    """A record that the command is going to write.

    `place` names the line or row of the input that contains the record, for messages. None in `partition`,
    `timestamp_ms` or `headers` means that the input does not give the field.
    """

    place: str
    key: bytes | None
    value: bytes | None
    partition: int | None = None
    timestamp_ms: int | None = None
    headers: list[Header] | None = None


def read_lines(
    stream: Iterable[bytes], separator: bytes | None, *, empty_is_null: bool = False
) -> Iterator[InputRecord]:
    """Read lines, and yield a record for each.

    Args:
        stream: the lines.
        separator: the bytes between key and value. A line that does not contain the separator is a value without a key;
            if it is None, no line has a key.
        empty_is_null: whether an empty value is null.
    """
    for number, line in enumerate(stream, 1):
        line = line.rstrip(b"\r\n")
        key, found, value = line.partition(separator) if separator else (b"", b"", b"")
        content = value if found else line
        yield InputRecord(
            f"line {number}", key if found else None, None if empty_is_null and not content else content
        )


# --- JSON lines ---


def read_json(stream: Iterable[bytes]) -> Iterator[InputRecord]:
    """Read lines, each a JSON object with the fields of a record, and yield these records. Empty lines are skipped.

    Raises:
        BadRecordError: a line is not such an object.
    """
    for number, line in enumerate(stream, 1):
        if line.strip():
            yield _of_json(f"line {number}", line)


def _of_json(place: str, line: bytes) -> InputRecord:
    try:
        found = parse_json(line)
    except (ValueError, RecursionError) as error:
        raise BadRecordError(f"{place} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRecordError(f"{place} is not a JSON object: write one object with the fields of a record")
    check_names(place, "field", found, FIELDS)
    if "value" not in found and "value_base64" not in found:
        raise BadRecordError(f"{place} has no field `value`: add the field, with null for a tombstone")
    return InputRecord(
        place,
        _content(place, "key", found),
        _content(place, "value", found),
        whole_number(place, "partition", found.get("partition"), 0, PARTITION_MAX),
        whole_number(place, "timestamp_ms", found.get("timestamp_ms"), *TIMESTAMP_MS_RANGE),
        _headers(place, found.get("headers")),
    )


def _content(place: str, name: str, found: dict[str, Any]) -> bytes | None:
    """Return a key or a value as bytes: the text of the field `name` in UTF-8, or the bytes of the field
    `<name>_base64`. Return None if both are missing or null.

    Raises:
        BadRecordError: both fields are given, or one of them is not valid. `place` names the line in the message.
    """
    if name in found and f"{name}_base64" in found:
        raise BadRecordError(f"{place} has both {name} and {name}_base64")
    text = found.get(name)
    if text is not None:
        if not isinstance(text, str):
            raise BadRecordError(f"{place}: {name} is neither text nor null")
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise BadRecordError(f"{place}: {name} has half of a surrogate pair") from None
    encoded = found.get(f"{name}_base64")
    if encoded is None:
        return None
    try:
        return base64.b64decode(encoded, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise BadRecordError(f"{place}: {name}_base64 is not base64") from None


def _headers(place: str, found: Any) -> list[Header] | None:
    if found is None:
        return None
    if not isinstance(found, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in found
    ):
        raise BadRecordError(f'{place}: headers is not a list of objects with "name" and "value"')
    for one in found:
        check_names(f"{place}: a header", "field", one, ("name", "value", "value_base64"))
    return [(one["name"], _content(f"{place}: header {one['name']!r}", "value", one)) for one in found]


# --- CSV ---


def read_csv(stream: IO[bytes], *, empty_is_null: bool) -> Iterator[InputRecord]:
    """Read CSV, and yield a record for each row after the first, which has the names of the columns.

    An empty cell means that the record has no key, no such header, or no given partition or timestamp. An empty value
    is an empty text, or null with `empty_is_null`.

    Raises:
        BadRecordError: a row is not valid.
    """
    csv.field_size_limit(CSV_FIELD_SIZE_MAX)
    # Bytes that are not UTF-8 pass through as surrogates.
    text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
    rows = csv.reader(text, strict=True)
    try:
        columns: list[str] | None = None
        while True:
            place = f"line {rows.line_num + 1}"
            try:
                row = next(rows)
            except StopIteration:
                return
            if columns is None:
                columns = row
                _check_columns(place, columns)
            elif row:
                yield _of_csv(place, columns, row, empty_is_null=empty_is_null)
    except csv.Error as error:
        raise BadRecordError(f"line {rows.line_num} is not CSV: {error}") from None
    finally:
        text.detach()


def _check_columns(place: str, columns: list[str]) -> None:
    plain = [name for name in columns if not name.startswith(HEADER_PREFIX)]
    check_names(place, "column", plain, (*COLUMNS, f"{HEADER_PREFIX}NAME"))
    if "value" not in columns:
        raise BadRecordError(f"{place} has no column `value`: the first line must name this column")
    if len(set(columns)) < len(columns):
        raise BadRecordError(f"{place} has two columns of one name")


def _of_csv(place: str, columns: list[str], row: list[str], *, empty_is_null: bool) -> InputRecord:
    if len(row) != len(columns):
        raise BadRecordError(f"{place} has {len(row)} cells, and there are {len(columns)} columns")
    cells = {name: cell.encode(errors="surrogateescape") for name, cell in zip(columns, row, strict=True)}
    headers: list[Header] = [
        (name.removeprefix(HEADER_PREFIX), cell)
        for name, cell in cells.items()
        if name.startswith(HEADER_PREFIX) and cell
    ]

    def number(name: str, least: int, most: int) -> int | None:
        cell = cells.get(name)
        if not cell:
            return None
        is_number = cell.removeprefix(b"-").isdigit()
        return whole_number(place, name, int(cell) if is_number else cell, least, most)

    return InputRecord(
        place,
        cells.get("key") or None,
        cells["value"] or (None if empty_is_null else b""),
        number("partition", 0, PARTITION_MAX),
        number("timestamp_ms", *TIMESTAMP_MS_RANGE),
        headers or None,
    )


# --- for all forms ---


def check_names(place: str, what: str, names: Iterable[str], known: tuple[str, ...]) -> None:
    """Check the names of the fields of an object, or of the columns of a file.

    Args:
        place: names the line or the file in the message.
        what: "field" or "column", for the message.
        names: the names.
        known: the valid names.

    Raises:
        BadRecordError: a name is unknown.
    """
    for name in names:
        if name not in known and name not in IGNORED:
            raise BadRecordError(
                f"{place} has the unknown {what} {name!r}{did_you_mean(name, known)}; valid are {', '.join(known)}"
            )


def whole_number(place: str, name: str, value: object, least: int, most: int) -> int | None:
    """Check that a value is a whole number from `least` to `most`, and return it. None is returned unchanged.

    Raises:
        BadRecordError: the value is not such an integer.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise BadRecordError(f"{place}: {name} is not a whole number from {least} to {most}")
    return value
