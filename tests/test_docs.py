"""What a user relies on stands in docs/, and the docs say what the code does."""

import dataclasses
import re
from pathlib import Path

import pytest

from stablelog.broker.config import SETTINGS
from stablelog.broker.disk_reserve import REFUSED_WHILE_FULL, SERVED_FROM_HALF
from stablelog.broker.metrics import METRICS
from stablelog.broker.partition_state import CODES
from stablelog.broker.router import HANDLERS
from stablelog.spark.options import OPTIONS
from stablelog.wire.extension import EXTENSION_VERSIONS
from stablelog.wire.extension.joint import AbortJointRequest, JointChild, JointOffset
from stablelog.wire.messages import API_VERSIONS, SERVED_FROM, message_class

MESSAGES = [message_class(key, 0, kind) for key in EXTENSION_VERSIONS for kind in ("request", "response")]

ROOT = Path(__file__).parents[1]
OPERATING = (ROOT / "docs" / "operating.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
SPARK = (ROOT / "docs" / "spark.md").read_text()


def test_each_heading_begins_a_line_and_each_section_that_is_named_is_there():
    texts = {path.name: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
    for name, text in texts.items():
        assert re.findall(r"^.*\S #{2,} .*$", text, re.M) == [], name
        for named, heading in re.findall(r"\]\((\w+\.md)\),\s\"([^\"]+)\"", text):
            line = f"^#+ {re.escape(' '.join(heading.split()))}$"
            assert re.search(line, texts[named], re.M), (name, named, heading)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_row(setting):
    default = setting.default or "(empty)"
    assert (
        f"| `{setting.name}` | `{setting.topic_name or ''}` | {default} | {setting.valid} |".replace(
            "| `` |", "| |"
        )
        in OPERATING
    )


def test_no_row_is_of_a_setting_that_is_gone():
    rows = re.findall(r"^\| `([a-z][\w.]+)` \| (?:`[\w.]+` )?\|", OPERATING, re.M)
    assert sorted(rows) == sorted(setting.name for setting in SETTINGS)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_its_row(name):
    assert f"| `{name}` |" in OPERATING


@pytest.mark.parametrize("key", API_VERSIONS)
def test_every_api_has_its_row_with_its_versions(key):
    first, last = API_VERSIONS[key]
    assert re.search(rf"^\| {key} \| \w+ \| {SERVED_FROM.get(key, first)}-{last} \|", PROTOCOL, re.M)
    assert key in HANDLERS


def _in_words(code, storage_error_since=0):
    if code is None:
        return "served"
    before = f"; before v{storage_error_since} NOT_LEADER_OR_FOLLOWER" if storage_error_since else ""
    return code.name.upper() + before


@pytest.mark.parametrize("api", CODES)
def test_every_code_for_a_partition_that_cannot_be_used_is_told(api):
    codes = CODES[api]
    unknown = [code.name.upper() for code in (codes.unknown, codes.unknown_id) if code is not None]
    cells = [
        _in_words(codes.opening),
        _in_words(codes.offline, codes.storage_error_since),
        ", ".join(unknown),
    ]
    assert f"\n| {api} | {' | '.join(cells)} | " in PROTOCOL


def test_no_row_of_codes_is_of_an_api_that_has_none():
    table = PROTOCOL.partition("\n| API | opening |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| ([A-Z][^|]*?) \|", table, re.M) == list(CODES)


def test_what_is_refused_while_the_disk_is_full_is_told():
    table = PROTOCOL.partition("## While the disk is full")[2].partition("\n## ")[0]
    told = re.findall(r"^\| ([A-Z]\w+) \| ([A-Z_]+) \| (.*)\|$", table, re.M)
    assert {api: code for api, code, _ in told} == {
        api: code.name.upper() for api, code in REFUSED_WHILE_FULL.items()
    }
    assert {api for api, _, when in told if "half of the reserve" in when} == SERVED_FROM_HALF


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_field_of_the_extension_is_told(message):
    """From a message's row to the next message's; what is told of nested ones stands in the row of their array."""
    rows = re.search(rf"^\| {message.__name__} \|.*\n(?:\| \|.*\n)*", PROTOCOL, re.M)
    assert rows is not None
    told = set(re.findall(r"\w+", rows[0]))
    if message is AbortJointRequest:
        told |= {field.name for field in dataclasses.fields(JointChild)}  # "as above"
    nested = {"children": JointChild, "group_offsets": JointOffset}
    for field in dataclasses.fields(message):
        assert field.name in told
        for inner in dataclasses.fields(nested[field.name]) if field.name in nested else ():
            assert inner.name in told


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_of_spark_has_its_row(name):
    assert f"| `{name}` |" in SPARK


@pytest.mark.parametrize(
    "command",
    [
        "serve",
        "produce",
        "consume",
        "cut",
        "inspect",
        "verify",
        "repair",
        "topics create",
        "topics list",
        "topics describe",
        "topics alter",
        "topics delete",
        "groups list",
        "groups describe",
        "groups delete",
        "transactions list",
        "transactions describe",
        "transactions find-hanging",
        "transactions abort",
    ],
)
def test_every_command_is_told(command):
    assert f"`stablelog {command}" in OPERATING


DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
PROGRAMS = sorted(
    {name for page in DOCUMENTS for name in re.findall(r"python -m ([a-z][\w.]*\w)", page.read_text())}
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_to_be_run_is_a_program(name):
    if name == "pytest":
        return
    path = ROOT / ("src" if name.startswith("stablelog.") else ".") / name.replace(".", "/")
    program = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert program.name == "__main__.py" or '\nif __name__ == "__main__":\n' in program.read_text()
    assert program.exists()
