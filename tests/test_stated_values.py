"""How the numbers of documents are compared with the code, and the codes and APIs that documents name."""

import pkgutil
import re
from dataclasses import replace
from importlib import import_module

import pytest
from kio.schema.errors import ErrorCode

from stablelog.wire.guard import ITEMS_MAX
from tests.stated_values import DOCUMENTS, ROOT, TABLE, Row, rows_of, without_row

ROWS = list(rows_of(TABLE.read_text()))


def test_each_test_that_holds_a_table_is_there():
    for row in ROWS:
        if row.kind == "held":
            path, _, test = row.text.partition(";")[0].partition("::")
            assert f"def {test}(" in (ROOT / path).read_text(), row.text


def test_most_numbers_are_compared_with_the_code():
    assert sum(row.kind == "value" for row in ROWS) > 350


# -- the comparison itself ---------------------------------------------------------------------------------------------

STATED = "# Limits\n\nA request has at most {} items.\n\n| limit | value |\n|---|---|\n| `retries` | 7 |\n"
VALUE = Row("*", "value", "at most {wire.guard.ITEMS_MAX} items")
RETRIES = Row("*", "example", "| `retries` | # |")


def test_a_number_that_is_the_codes_has_no_fault():
    assert without_row("x.md", STATED.format("50,000"), [VALUE, RETRIES]) == ([], [])
    assert without_row("x.md", STATED.format("50000"), [VALUE, RETRIES]) == ([], [])


def test_another_number_than_the_codes_is_found():
    missing, unused = without_row("x.md", STATED.format("40,000"), [VALUE, RETRIES])
    assert unused == [VALUE]
    assert missing == ["x.md, # Limits: A request has at most >>40,000<< items."]


def test_a_value_that_changes_in_the_code_is_found(monkeypatch):
    monkeypatch.setattr("stablelog.wire.guard.ITEMS_MAX", ITEMS_MAX + 1)
    value = replace(VALUE, documents="x.md")  # it was not compared before
    assert without_row("x.md", STATED.format("50,000"), [value, RETRIES])[1] == [value]


@pytest.mark.parametrize(
    "text",
    [
        "It waits for 30 s.",
        "It waits for ten seconds.",
        "It looks once a minute.",
        "It keeps half an hour.",
        "The margin is one sixteenth of it.",
        "It has version 1.",
        "It ends with exit code 0.",
        "- From v3 on it can do this.",
        "1. It takes 2^31-1 records.",
        "It is at most `100m`.",
        "It is -2.",
        "| a |\n|---|\n| 12 % |",
    ],
)
def test_a_new_number_is_found(text):
    missing, _ = without_row("x.md", text, [])
    assert len(missing) == 1


@pytest.mark.parametrize(
    "text",
    [
        "KIP-890, SHA-256 and UTF-8 are names.",
        "1. The first step.",
        "It is -1 if there is none, and 0 if there is no limit.",
        "Set `retries=12`.",
        "See [the table](other.md#12-things).",
        "```\n12 lines\n```",
    ],
)
def test_a_name_and_a_place_are_no_numbers(text):
    assert without_row("x.md", text, []) == ([], [])


def test_a_number_beside_an_expression_needs_a_row_of_its_own():
    row = Row("*", "value", "{wire.guard.ITEMS_MAX} items in 12 lists")
    assert len(without_row("x.md", "It has 50,000 items in 12 lists.", [row])[0]) == 1


# -- error codes and APIs ----------------------------------------------------------------------------------------------

# Parts of names, and variables of other programs.
PLACES = {"TOPIC_ID", "SEGMENT_ID", "PART_ID", "PIN_ID", "LOG_PASSWORD", "ALICE_PASSWORD"}
OTHERS = {
    *("KAFKA_PATH", "KAFKA_URI", "KAFKA_VERSION", "TEST_KAFKA_VERSION", "KGO_SEEDS", "KGO_TEST_RF"),
    *("AWS_ENDPOINT", "DEFAULT_CONFIG", "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
    *("STATIC_BROKER_CONFIG", "STABLELOG_SASL_PASSWORD"),
    *("DELETE_SEGMENT_FINISHED", "DELETE_PARTITION_FINISHED", "LOCATION_ALREADY_EXISTS"),
}


@pytest.mark.extended
def test_each_code_and_constant_that_a_document_names_is_one_of_the_code():
    sources = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "tests").rglob("*.java"),
    ]
    known = {
        word
        for path in sources
        for word in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", path.read_text())
    }
    answered = {
        name.upper()
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\b(?:ErrorCode|KafkaError)\.(\w+)", path.read_text())
    }
    codes = {code.name.upper() for code in ErrorCode}
    for document in DOCUMENTS:
        named = set(re.findall(r"\b[A-Z][A-Z]+(?:_[A-Z]+)+\b", (ROOT / document).read_text()))
        assert named & codes <= answered, document
        assert named - codes <= known | PLACES | OTHERS, document


def test_each_api_that_is_named_with_its_key_has_that_key():
    found = 0
    for document in DOCUMENTS:
        for name, key in re.findall(r"\b((?:[A-Z][a-z]+){2,}) \((\d+)\)", (ROOT / document).read_text()):
            package = f"kio.schema.{re.sub(r'(?<!^)(?=[A-Z])', '_', name).lower()}"
            version = next(pkgutil.iter_modules(import_module(package).__path__)).name
            message = getattr(import_module(f"{package}.{version}.request"), f"{name}Request")
            assert message.__api_key__ == int(key), (document, name)
            found += 1
    assert found > 15
