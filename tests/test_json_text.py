"""JSON that others have written is read by one parser, with one kind of error."""

import ast
from pathlib import Path

import pytest

from stablelog.json_text import parse_json

SOURCES = Path(__file__).parents[1] / "src" / "stablelog"


def test_what_json_has_is_read():
    assert parse_json(b'{"a": [1, -2.5, null, true, "\\u00e4"]}') == {"a": [1, -2.5, None, True, "ä"]}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "9" * 5000,
        "NaN",
        "-Infinity",
        "1e999",
        "{",
        "",
        b"\xff",
    ],
)
def test_everything_else_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".+"):
        parse_json(text)


@pytest.mark.extended
def test_no_other_module_parses_json():
    for path in SOURCES.rglob("*.py"):
        if path.name == "json_text.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in {"loads", "load", "JSONDecoder"}:
                assert not (isinstance(node.value, ast.Name) and node.value.id == "json"), (
                    f"{path}:{node.lineno}: use stablelog.json_text.parse_json"
                )
