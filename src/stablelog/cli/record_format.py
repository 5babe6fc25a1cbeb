"""Forms in which `stablelog consume` writes a record: key and value, a user's format, or JSON."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from stablelog.cli.output import fail

Render = Callable[[Any], bytes]


class Field(NamedTuple):
    """A field of a format: what it is, and how it is written."""

    meaning: str
    render: Render


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _number(value: int) -> bytes:
    return b"%d" % value


def _headers(message: Any) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if content is None else content)
        for name, content in message.headers() or ()
    )


_VALUE: Final = Field("the value", lambda message: message.value() or b"")
# kcat's escapes, and %v as a second name of %s.
FIELDS: Final = {
    "t": Field("the topic", lambda message: message.topic().encode()),
    "p": Field("the partition", lambda message: _number(message.partition())),
    "o": Field("the offset", lambda message: _number(message.offset())),
    "k": Field("the key", lambda message: message.key() or b""),
    "v": _VALUE,
    "s": _VALUE,
    "h": Field("the headers, as name=value with commas between them", _headers),
    "T": Field("the timestamp in ms", lambda message: _number(message.timestamp()[1])),
    "K": Field("the length of the key in bytes, -1 for null", lambda message: _number(_size(message.key()))),
    "S": Field(
        "the length of the value in bytes, -1 for null", lambda message: _number(_size(message.value()))
    ),
    "R": Field(
        "the length of the value as 4 bytes, big-endian",
        lambda message: _size(message.value()).to_bytes(4, "big", signed=True),
    ),
    "%": Field("a percent sign", lambda _message: b"%"),
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
    return lambda message: b"".join(
        piece if isinstance(piece, bytes) else piece(message) for piece in renders
    )


def render_plain(message: Any) -> bytes:
    """Return the value of a record, after its key and a tab if it has a key, on one line."""
    key, value = message.key(), message.value() or b""
    return value + b"\n" if key is None else key + b"\t" + value + b"\n"


def render_json(message: Any) -> bytes:
    """Return all parts of a record as a JSON object on one line."""
    return (
        json.dumps(
            {
                "topic": message.topic(),
                "partition": message.partition(),
                "offset": message.offset(),
                "timestamp_ms": message.timestamp()[1],
                **text_or_base64("key", message.key()),
                **text_or_base64("value", message.value()),
                "headers": [
                    {"name": name, **text_or_base64("value", content)}
                    for name, content in message.headers() or ()
                ],
            }
        ).encode()
        + b"\n"
    )


def text_or_base64(name: str, content: bytes | None) -> dict[str, str | None]:
    """Return a field with bytes as text. If they are not UTF-8, return the field `<name>_base64` instead."""
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}
