"""Reads Parquet files for `stablelog produce`. pyarrow is an optional dependency."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stablelog.cli.output import fail
from stablelog.cli.record_input import (
    PARTITION_MAX,
    TIMESTAMP_MS_RANGE,
    BadRecordError,
    Header,
    InputRecord,
    check_names,
    whole_number,
)

COLUMNS: Final = ("key", "value", "partition", "timestamp", "timestamp_ms", "headers")
ROWS_MAX: Final = 10_000  # rows that are decoded at once


def read_parquet(path: Path) -> Iterator[InputRecord]:
    """Read a Parquet file, and yield a record for each of its rows. A null means, depending on its column, that the
    record has no key, a null value or no headers, or that its partition or timestamp is not given.

    Raises:
        BadRecordError: a column or a row is not valid.
        UnavailableError: the file cannot be read, or pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        fail("reading Parquet needs pyarrow: pip install 'stablelog[parquet]'")
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_columns(path, schema, pa)
            number = 0
            for batch in file.iter_batches(ROWS_MAX):
                for row in _as_ms(batch, pa).to_pylist():
                    number += 1
                    yield _of_row(f"row {number}", row)
    except OSError as error:
        fail(f"{path} cannot be read: {os.strerror(error.errno) if error.errno else error}")
    except pa.ArrowException as error:
        fail(f"{path} cannot be read as Parquet: {error}")


def _check_columns(path: Path, schema: Any, pa: Any) -> None:
    check_names(str(path), "column", schema.names, COLUMNS)
    if "value" not in schema.names:
        raise BadRecordError(f"{path} has no column `value`, from which the values of the records are read")
    if {"timestamp", "timestamp_ms"} <= set(schema.names):
        raise BadRecordError(f"{path} has both the columns `timestamp` and `timestamp_ms`: keep one of them")
    types = pa.types

    def is_content(kind: Any) -> bool:
        return bool(
            types.is_string(kind)
            or types.is_large_string(kind)
            or types.is_binary(kind)
            or types.is_large_binary(kind)
            or types.is_null(kind)
        )

    valid = {
        "key": (is_content, "text or bytes"),
        "value": (is_content, "text or bytes"),
        "partition": (types.is_integer, "an integer"),
        "timestamp": (types.is_timestamp, "a timestamp"),
        "timestamp_ms": (types.is_integer, "an integer"),
        "headers": (
            lambda kind: types.is_map(kind) or (types.is_list(kind) and types.is_struct(kind.value_type)),
            "a map, or a list of structs with name and value",
        ),
    }
    for field in schema:
        if field.name in valid and not valid[field.name][0](field.type):
            raise BadRecordError(
                f"{path}: the column {field.name} is of type {field.type}, and not {valid[field.name][1]}"
            )


def _as_ms(batch: Any, pa: Any) -> Any:
    """Return the rows of a file with the column `timestamp`, if there is one, replaced by a column `timestamp_ms`, in
    milliseconds since 1970. `pa` is the module pyarrow.
    """
    index = batch.schema.get_field_index("timestamp")
    if index < 0:
        return batch
    column = batch.column(index)
    in_ms = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    return batch.set_column(index, "timestamp_ms", in_ms)


def _of_row(place: str, row: dict[str, Any]) -> InputRecord:
    return InputRecord(
        place,
        _as_bytes(row.get("key")),
        _as_bytes(row["value"]),
        whole_number(place, "partition", row.get("partition"), 0, PARTITION_MAX),
        whole_number(place, "timestamp_ms", row.get("timestamp_ms"), *TIMESTAMP_MS_RANGE),
        _headers(place, row.get("headers")),
    )


def _headers(place: str, found: Any) -> list[Header] | None:
    """Return the headers of a row as pairs of a name and a value; None if the row has a null there.

    Args:
        place: names the row in messages.
        found: the value of the column `headers`. A map comes from Arrow as a list of pairs. A list of structs, each
            with `name` (Spark: `key`) and `value`, comes as a list of dicts.

    Raises:
        BadRecordError: a header has no name, or its value is neither text nor bytes.
    """
    if found is None:
        return None
    headers: list[Header] = []
    for one in found:
        name, content = one if isinstance(one, tuple) else _of_struct(one or {})
        if not isinstance(name, str) or not isinstance(content, str | bytes | None):
            raise BadRecordError(f"{place}: a header has no name, or a value that is neither text nor bytes")
        headers.append((name, _as_bytes(content)))
    return headers


def _of_struct(struct: dict[str, Any]) -> tuple[Any, Any]:
    return struct.get("name", struct.get("key")), struct.get("value")


def _as_bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
