"""The forms in which `stablelog consume` prints a record: key and value, the format of `--format`, or JSON."""

import base64
import json
import re
from collections.abc import Callable
from typing import Final, NamedTuple

from stablelog.batch.records import Header, read_headers
from stablelog.batch.walk import walk_fields
from stablelog.cli.output import fail


class PrintedRecord(NamedTuple):
    """A record that is about to be printed.

    Attributes:
        topic: its topic.
        partition: its partition.
        offset: its offset.
        timestamp_ms: its timestamp.
        key: its key; None for null.
        value: its value; None for null.
        batch: the decompressed records of its batch.
        headers_at: the position of its headers in `batch`.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    batch: bytes = b"\0"
    headers_at: int = 0

    @property
    def headers(self) -> list[Header]:
        """The headers. They are decoded only when they are printed."""
        return read_headers(self.batch, self.headers_at)[0]


Render = Callable[[PrintedRecord], bytes]


class Field(NamedTuple):
    """A field that the format of the option --format can contain, such as `%k`: its description for users, and the
    function that returns its bytes for a record.
    """

    meaning: str
    render: Render


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _number(value: int) -> bytes:
    return b"%d" % value


def _headers(record: PrintedRecord) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if content is None else content) for name, content in record.headers
    )


_VALUE: Final = Field("the value", lambda record: record.value or b"")
# kcat's escapes, and %v as a second name of %s.
FIELDS: Final = {
    "t": Field("the topic", lambda record: record.topic.encode()),
    "p": Field("the partition", lambda record: _number(record.partition)),
    "o": Field("the offset", lambda record: _number(record.offset)),
    "k": Field("the key", lambda record: record.key or b""),
    "v": _VALUE,
    "s": _VALUE,
    "h": Field("the headers, as name=value with commas between them", _headers),
    "T": Field("the timestamp in ms", lambda record: _number(record.timestamp_ms)),
    "K": Field("the length of the key in bytes, -1 for null", lambda record: _number(_size(record.key))),
    "S": Field("the length of the value in bytes, -1 for null", lambda record: _number(_size(record.value))),
    "R": Field(
        "the length of the value as 4 bytes, big-endian",
        lambda record: _size(record.value).to_bytes(4, "big", signed=True),
    ),
    "%": Field("a percent sign", lambda _record: b"%"),
}
CHARACTERS: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_PIECE: Final = re.compile(r"%(.?)|\\x([0-9a-fA-F]{2})|\\(.?)|([^%\\]+)", re.DOTALL)


def parse_format(text: str) -> Render:
    r"""Parse a format such as `%t %p %o %k %v\n`. Return the function that writes a record in this format.

    Raises:
        UnavailableError: the format has an escape that is not supported.
    """
    renders: list[bytes | Render] = []
    for field, byte, character, literal in _PIECE.findall(text):
        if literal:
            renders.append(literal.encode())
        elif byte:
            renders.append(bytes.fromhex(byte))
        elif field in FIELDS:
            renders.append(FIELDS[field].render)
        elif character in CHARACTERS:
            renders.append(CHARACTERS[character])
        else:
            fields = " ".join(f"%{name}" for name in FIELDS)
            characters = " ".join(f"\\{name}" for name in CHARACTERS)
            fail(f"--format {text!r} has an escape that is not supported: use {fields} {characters} \\xNN")
    return lambda record: b"".join(piece if isinstance(piece, bytes) else piece(record) for piece in renders)


def render_plain(record: PrintedRecord) -> bytes:
    """Return the value of a record as a line. If the record has a key, the line begins with the key and a tab."""
    key, value = record.key, record.value or b""
    return value + b"\n" if key is None else key + b"\t" + value + b"\n"


def plain_lines(records: bytes, count: int) -> bytes:
    """Return the lines of all records of a batch, as `render_plain` makes them, without an object for each record.

    Args:
        records: the decompressed records of the batch.
        count: how many they are.

    Raises:
        DamageError: the bytes do not contain exactly `count` records.
    """
    lines: list[bytes] = []
    for _, _, key, value, _ in walk_fields(records, count):
        if key is not None:
            lines += (key, b"\t")
        lines += (value or b"", b"\n")
    return b"".join(lines)


def render_json(record: PrintedRecord) -> bytes:
    """Return all parts of a record as a JSON object on one line."""
    return (
        json.dumps(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                **text_or_base64("key", record.key),
                **text_or_base64("value", record.value),
                "headers": [
                    {"name": name, **text_or_base64("value", content)} for name, content in record.headers
                ],
            }
        ).encode()
        + b"\n"
    )


def text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return a field of a JSON object for a key or a value, which is bytes: its name, and the text that the bytes are
    in UTF-8, or None for null. If the bytes are not UTF-8, the name is `<name>_base64`, and the text has them in
    base64.
    """
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}
