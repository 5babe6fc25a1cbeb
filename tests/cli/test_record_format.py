"""The forms in which records are written."""

import json

import pytest

from stablelog.batch.header import HEADER
from stablelog.batch.records import Record as ToEncode
from stablelog.batch.records import encode_batch
from stablelog.batch.walk import walk_fields
from stablelog.cli.record_format import FIELDS, PrintedRecord, parse_format, render_json, render_plain
from stablelog.errors import UnavailableError
from tests import documented


def message(key=b"k", value=b"val", headers=()):
    """A record to print."""
    batch = encode_batch([ToEncode(0, 1234, key, value, tuple(headers))])[HEADER.size :]
    ((*_, at),) = walk_fields(batch, 1)
    return PrintedRecord("töpic", 3, 41, 1234, key, value, batch, at)


@pytest.mark.parametrize(
    ("form", "written"),
    [
        ("%t %p %o %k %v", "töpic 3 41 k val"),
        ("%s|%S|%K|%T", "val|3|1|1234"),
        (r"a\tb\n\r\0\\\x41é", "a\tb\n\r\0\\Aé"),
        ("100%%", "100%"),
        ("%%v", "%v"),
        ("%R", "\0\0\0\3"),
        ("", ""),
    ],
)
def test_a_record_is_written_in_a_format(form, written):
    assert parse_format(form)(message()) == written.encode()


def test_null_is_empty_and_has_the_length_minus_one():
    assert parse_format("[%k %v %K %S %R %h]")(message(None, None)) == b"[  -1 -1 \xff\xff\xff\xff ]"


def test_headers_have_commas_between_them():
    headers = [("a", b"1"), ("a", None), ("b", b"\xff")]
    assert parse_format("%h")(message(headers=headers)) == b"a=1,a=NULL,b=\xff"


def test_bytes_are_written_as_they_are():
    assert parse_format("%k%v")(message(b"\xff\x00", b"\x1b[2J")) == b"\xff\x00\x1b[2J"
    assert render_plain(message(None, b"\xff")) == b"\xff\n"
    assert render_plain(message(b"\xfe", None)) == b"\xfe\t\n"


@pytest.mark.parametrize("form", ["%x", "%", "\\", r"\q", r"\x4", "%t %"])
def test_an_escape_that_is_not_supported_is_refused(form):
    with pytest.raises(UnavailableError, match=r"--format .* has an escape that is not supported: use %t %p"):
        parse_format(form)


def test_every_escape_is_documented():
    text = documented.page("commands.md")
    for name, field in FIELDS.items():
        assert f"| `%{name}` | {field.meaning} |" in text


def test_json_has_bytes_that_are_not_utf8_in_fields_of_their_own():
    headers = [("a", b"1"), ("b", b"\xff"), ("c", None)]
    line = render_json(message(b"\xff", b"v", headers))
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "töpic",
        "partition": 3,
        "offset": 41,
        "timestamp_ms": 1234,
        "key_base64": "/w==",
        "value": "v",
        "headers": [
            {"name": "a", "value": "1"},
            {"name": "b", "value_base64": "/w=="},
            {"name": "c", "value": None},
        ],
    }
    nothing = json.loads(render_json(message(None, None)))
    assert (nothing["key"], nothing["value"], nothing["headers"]) == (None, None, [])
