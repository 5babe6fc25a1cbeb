"""What a user relies on stands in docs/, and the docs say what the code does."""

import dataclasses
import re
import shlex
import signal
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

import pytest
from typer.main import get_command

from peers import apache_kafka, python_frameworks
from stablelog.broker.monitoring.metrics import METRICS
from stablelog.broker.settings.config import BrokerConfig
from stablelog.broker.settings.table import FIXED_BROKER_SETTINGS, SETTINGS, UNUSED_TOPIC_SETTINGS
from stablelog.broker.tiering.remote_reads import THREADS
from stablelog.cli.commands import app
from stablelog.cli.exit_codes import FAILED, NO_BROKER, READER_GONE
from stablelog.cli.output import FINDINGS
from stablelog.errors import UsageError
from stablelog.log.indexes.summary import SUMMARY
from stablelog.spark.option_table import OPTIONS
from stablelog.wire.api import ApiKey
from stablelog.wire.extension.joint import AbortJointRequest, JointChild, JointOffset
from stablelog.wire.message_classes import EXTENSION_MODULES
from stablelog.wire.messages import message_class
from tests import documented
from tests.declared_apis import APIS, CODES, REFUSED_WHILE_FULL, RIGHTS, SERVED_FROM_HALF
from tests.reference_tables.settings import name_of, valid
from tests.stated_values import DOCUMENTS as WITH_VALUES
from tests.stated_values import TABLE as VALUES
from tests.stated_values import rows_of, without_row

MESSAGES = [message_class(key, 0, kind) for key in EXTENSION_MODULES for kind in ("request", "response")]

ROOT = Path(__file__).parents[1]
SETTINGS_PAGE = documented.page("settings.md")
PROTOCOL = documented.page("protocol.md")
FROM_KAFKA = documented.page("from-kafka.md")
SPARK = documented.page("spark-options.md")
FRAMEWORKS = {
    "Kafka Streams": apache_kafka.VERSION,
    "Kafka Connect": apache_kafka.CONNECT_VERSION,
    "MirrorMaker 2": apache_kafka.CONNECT_VERSION,
    "FastStream": python_frameworks.FASTSTREAM.version,
    "Quix Streams": python_frameworks.QUIX_STREAMS.version,
    "Faust": python_frameworks.FAUST.version,
}


def test_each_heading_begins_a_line_and_each_section_that_is_named_is_there():
    texts = {path.name: path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
    for name, text in texts.items():
        assert re.findall(r"^.*\S #{2,} .*$", text, re.M) == [], name
        for named, heading in re.findall(r"\]\((?:[\w/.-]*/)?([\w-]+\.md)\),\s\"([^\"]+)\"", text):
            line = f"^#+ {re.escape(' '.join(heading.split()))}$"
            assert re.search(line, texts[named], re.M), (name, named, heading)


def test_each_place_of_the_tour_is_there():
    text = documented.page("tour.md")
    places = re.findall(r"`([\w/.]+)`", text.partition("\n## ")[2])
    assert len(places) > 80
    missing = [
        place
        for place in places
        if not any((base / place).exists() for base in (ROOT, ROOT / "src/stablelog"))
    ]
    assert missing == []


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_setting_has_its_row(setting):
    default = setting.default or "(empty)"
    cells = (name_of(setting), default, valid(setting), setting.doc)
    assert f"| {' | '.join(cells)} |" in SETTINGS_PAGE


def test_every_setting_of_kafka_that_changes_nothing_has_its_row():
    section = documented.section("Kafka's settings that change nothing")
    rows = re.findall(r"^\| `([^`]+)` \| (.*) \|$", section, re.M)
    unused = [(s.name, f"{s.default or '(empty)'} | {valid(s)}") for s in UNUSED_TOPIC_SETTINGS.values()]
    assert rows == [*unused, *FIXED_BROKER_SETTINGS.items()]


def test_no_row_is_of_a_setting_that_is_gone():
    settings = SETTINGS_PAGE.partition("\n## Kafka's settings")[0]
    rows = re.findall(r"^\| `([a-z][\w.-]+)`", settings, re.M)
    assert sorted(rows) == sorted(setting.name for setting in SETTINGS)


def test_settings_of_kafka_that_are_told_to_be_missing_are_refused_and_what_replaces_them_is_there():
    (table,) = re.findall(r"\| Kafka's setting \| in stablelog \|\n\|[-|]*\n((?:\|.*\n)+)", SETTINGS_PAGE)
    known = {setting.name for setting in SETTINGS}
    for row in table.splitlines():
        name, *others = re.findall(r"`([\w.]+)`", row)
        assert name not in known
        with pytest.raises(UsageError, match=re.escape(name)):
            BrokerConfig({name: "1"})
        assert {other for other in others if other.startswith("stablelog.")} <= known
    assert f"always has {SUMMARY.size} bytes" in table
    assert f"At most {THREADS} ranges" in table


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_its_row(name):
    assert re.search(
        rf"^\| `{name}` \|.* \| {re.escape(METRICS[name][1])} \|$", documented.page("metrics.md"), re.M
    )


@pytest.mark.parametrize("key", APIS)
def test_every_api_has_its_row_with_its_versions(key):
    served = APIS[key].served_versions
    row = f"| {int(key)} | {ApiKey(key).message_name} | {served[0]}-{served[-1]} |"
    assert re.search(rf"^{re.escape(row)}", PROTOCOL, re.M)


def test_each_api_has_its_codes_for_a_partition_that_cannot_be_used():
    table = PROTOCOL.partition("\n| API | opening |")[2].partition("\n<!--")[0]
    told = [name for names in re.findall(r"^\| ([A-Z][^|]*?) \|", table, re.M) for name in names.split(", ")]
    assert sorted(told) == sorted(api.replace(", ", " with ") for api in CODES)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_framework_that_is_tried_has_its_row_with_its_version(framework):
    (row,) = re.findall(
        rf"^\| {re.escape(framework)} \| ([\d.]+) \| .* \| `(tests/[\w/.]+)` \|$", FROM_KAFKA, re.M
    )
    assert row[0] == FRAMEWORKS[framework]
    assert (ROOT / row[1]).exists()
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (line,) = re.findall(r"^- These frameworks run unchanged(?:.*\n)+?(?=- )", changelog, re.M)
    assert framework in " ".join(line.split())


def test_no_row_is_of_a_framework_that_is_not_tried():
    (table,) = re.findall(r"\| framework \| version \|.*\n\|[-|]*\n((?:\|.*\n)+)", FROM_KAFKA)
    assert [row.split(" | ")[0].strip("| ") for row in table.splitlines()] == list(FRAMEWORKS)


def test_the_clients_of_faststream_are_told_with_their_versions():
    for pin in python_frameworks.FASTSTREAM.pins:
        assert pin.replace("==", " ") in FROM_KAFKA


def test_what_is_refused_while_the_disk_is_full_is_told():
    table = PROTOCOL.partition("## While the disk is full")[2].partition("\n## ")[0]
    told = {
        api: (code, when)
        for apis, code, when in re.findall(r"^\| ([A-Z][\w, ]+) \| ([A-Z_]+) \| (.*)\|$", table, re.M)
        for api in apis.split(", ")
    }
    assert {api: code for api, (code, _) in told.items()} == {
        api: code.name.upper() for api, code in REFUSED_WHILE_FULL.items()
    }
    assert {api for api, (_, when) in told.items() if "half of the reserve" in when} == SERVED_FROM_HALF


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_field_of_the_extension_is_told(message):
    """From a message's row to the next message's; what is told of nested ones stands in the row of their array."""
    rows = re.search(rf"^\| {message.__name__} \|.*\n(?:\| \|.*\n)*", PROTOCOL, re.M)
    assert rows is not None
    told = set(re.findall(r"\w+", rows[0]))
    if message is AbortJointRequest:
        told |= {field.name for field in dataclasses.fields(JointChild)}  # "as above"
    told |= {"error_code", "error_message"}  # in the text above the tables
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
        "storage check",
    ],
)
def test_every_command_is_told(command):
    assert f"`stablelog {command}" in COMMANDS_TABLE


DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")]
PROGRAMS = sorted(
    {name for page in DOCUMENTS for name in re.findall(r"python -m ([a-z][\w.]*\w)", page.read_text())}
)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_to_be_run_is_a_program(name):
    if name == "pytest":
        return
    path = ROOT / ("src" if name.split(".")[0] == "stablelog" else ".") / name.replace(".", "/")
    program = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    assert program.name == "__main__.py" or '\nif __name__ == "__main__":\n' in program.read_text()
    assert program.exists()


CHANGELOG_LINES_MAX = 60


def test_what_the_changelog_says_of_a_version_that_is_not_released_fits_on_a_screen():
    newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1].splitlines()
    assert "not released" not in newest[0] or len(newest) <= CHANGELOG_LINES_MAX


WIDTH_MAX = 120


def _prose(text):
    """The numbered lines of a document that are neither code nor rows of tables."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            in_code = not in_code
        elif not in_code and not line.startswith(("|", "    ")):
            yield number, line


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_wrapped(path):
    # A line with one word cannot be divided: a link that is longer than a line stands alone.
    long = [
        number for number, line in _prose(path.read_text()) if len(line) > WIDTH_MAX and len(line.split()) > 2
    ]
    assert long == [], f"lines of more than {WIDTH_MAX} characters"


def _anchors(text):
    """The anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_link_leads_to_a_file_and_a_heading(path):
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        linked = path.parent / name if name else path
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked.read_text()), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_file_of_the_tests_and_the_benchmarks_that_is_named_is_there(path):
    named = set(re.findall(r"`((?:tests|bench|demo|examples)/[\w./-]+)`", path.read_text()))
    assert {name for name in named if not (ROOT / name).exists()} == set()


def _messages(text):
    """Python source with its literals as they are joined: a user meets a message in one piece."""
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


def test_each_message_that_an_operator_looks_up_is_one_of_the_broker():
    table = documented.section("Find out what is wrong")
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    quoted = [span for cell in rows for span in re.findall(r"`([^`]*\.\.\.[^`]*)`", cell)]
    assert len(quoted) > 8
    sources = [_messages(path.read_text()) for path in sorted((ROOT / "src").glob("**/*.py"))]
    for message in quoted:
        pieces = [piece for piece in message.split("...") if piece.strip(" :;,.")]
        pattern = r"[^\n]*".join(re.escape(piece.strip()) for piece in pieces)
        assert any(re.search(pattern, source) for source in sources), message


ARCHITECTURE = documented.page("architecture.md")
ROOMS = {path.stem for path in (ROOT / "src" / "stablelog").iterdir()}


def _source_of(name):
    """The module that a dotted name begins with, and what the name says of it; None if there is none."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath("src", "stablelog", *parts[:count])
        for source in (path.with_suffix(".py"), path / "__init__.py"):
            if source.exists():
                return source, parts[count:]
    return None


def _modules_named(text):
    settings = {setting.name for setting in SETTINGS}
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", text))
    return {
        name for name in named - settings if name.split(".")[0] in ROOMS and not name.endswith((".md", ".py"))
    }


def test_the_map_of_rooms_names_each_package_and_each_module_beside_them():
    rooms = ARCHITECTURE.split("## The map of rooms")[1].split("\n## ")[0]
    source = ROOT / "src" / "stablelog"
    packages = {path.parent.name for path in source.rglob("__init__.py")} - {source.name}
    modules = {path.name for path in source.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert {name for name in packages | modules if f"`{name}`" not in rooms} == set()


@pytest.mark.parametrize("name", sorted(_modules_named(ARCHITECTURE)))
def test_each_module_that_the_architecture_names_is_there(name):
    source, member = _source_of(name)
    text = source.read_text()
    assert len(member) <= 1, f"there is no {name}"
    assert not member or re.search(rf"^ *(async )?(def|class) {member[0]}\b", text, re.M), name


def test_each_limit_is_enforced_where_the_architecture_says():
    table = ARCHITECTURE.split("## Where limits are enforced")[1].split("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| ([^|]+) \|$", table, re.M)[2:]
    names = {setting.name for setting in SETTINGS}
    assert len(rows) > 30
    for limits, modules in rows:
        texts = [_source_of(module)[0].read_text() for module in re.findall(r"`([^`]+)`", modules)]
        for limit in re.findall(r"`([^`]+)`", limits):
            assert limit in names or any(re.search(rf"^{limit}\b", text, re.M) for text in texts), limit


UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "s": 1, "ms": 0.001}
FRACTIONS = {"four times": 4, "one eighth": 8}


def quantities(text):
    """The numbers of a text, each as the values that it may stand for: as a count, in bytes, or in seconds."""
    for number, power, unit in re.findall(r"(\d[\d,]*(?:\.\d+)?)(\^31-1)?(?: (KiB|MiB|GiB|s|ms)\b)?", text):
        value = 2**31 - 1 if power else float(number.replace(",", ""))
        yield {value, value * UNITS.get(unit, 1)}
    yield from ({value} for words, value in FRACTIONS.items() if words in text)


def test_each_constant_has_the_value_that_the_architecture_states_and_each_value_has_a_constant():
    table = ARCHITECTURE.split("## Where limits are enforced")[1].split("\n## ")[0]
    compared = 0
    rows = [line.strip("|").split("|") for line in re.findall(r"^\|.*\|$", table, re.M)[2:]]
    for what, limits, modules in rows:
        numbers = list(quantities(re.sub(r"`[^`]*`", "", what)))
        stated = {value for values in numbers for value in values}
        constants = set()
        for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", limits):
            found = [
                set(value if isinstance(value, tuple) else (value,))
                for module in re.findall(r"`([^`]+)`", modules)
                if (value := getattr(import_module(f"stablelog.{module}"), name, None)) is not None
            ]
            assert found, name
            assert any(one <= stated for one in found), f"{name} is {found}, and the row says: {what}"
            constants |= set.union(*found)
            compared += 1
        assert all(values & constants for values in numbers), f"a number without a constant: {what}"
    assert compared > 50


VALUE_ROWS = list(rows_of(VALUES.read_text()))
KINDS_OF_ROWS = {"value", "figure", "example", "foreign", "name", "figures", "examples", "foreigns", "held"}


@pytest.mark.parametrize("document", WITH_VALUES)
def test_each_number_of_a_document_has_a_row(document):
    missing, _ = without_row(document, (ROOT / document).read_text(), VALUE_ROWS)
    assert missing == [], f"add a row to tests/{VALUES.name}; stated_values.py describes the rows"


@pytest.mark.extended
def test_each_row_is_of_a_number_that_a_document_states():
    assert {row.kind for row in VALUE_ROWS} <= KINDS_OF_ROWS
    unused = {row for row in VALUE_ROWS if row.documents != "*"}
    for document in WITH_VALUES:
        mine = [row for row in unused if fnmatch(document, row.documents)]
        _, rest = without_row(document, (ROOT / document).read_text(), mine)
        unused -= {row for row in mine if row not in rest}
    assert unused == set(), "the document says another number, or nothing of the kind"


# The number of columns that make the key of a row, in tables with more than one, by the beginning of their header.
KEY_COLUMNS = {
    "| outcome | cause |": 2,
    "| error | cause |": 2,
    "| command | option |": 2,
    "| old version | producers |": 2,
    "| type | name | resource |": 2,
    "| field | type | kinds |": 3,
    "| broker | segments with aborts |": 2,
    "| remote segments | segments with an aborted transaction |": 2,
    "| message | field |": 2,
    "| limit | setting or constant | module |": 2,
}


def _keys(table):
    """The keys of the rows of a table. A row whose first cell is empty continues the row before it."""
    header, _, *rows = table.splitlines()
    count = next((count for begin, count in KEY_COLUMNS.items() if header.startswith(begin)), 1)
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [tuple(row[:count]) for row in cells if row[0]]


def test_no_table_has_a_row_for_one_thing_twice():
    for page in DOCUMENTS:
        for table in re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.M):
            keys = _keys(table)
            twice = sorted({key for key in keys if keys.count(key) > 1})
            assert not twice, f"{page.name}: {twice}"


WORDS_MAX = 80_000


def test_the_documents_are_short_enough():
    """Without decisions. A table's bars count as words, as `wc -w` counts them."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    words = {page.name: len(page.read_text().split()) for page in pages}
    assert sum(words.values()) <= WORDS_MAX, f"say less, first what is said twice: {words}"


def test_each_file_that_adding_an_api_needs_is_there():
    steps = ARCHITECTURE.split("## Adding an API")[1].split("\n## ")[0]
    for name in re.findall(r"`([\w/]+(?:\.py)?)`", steps):
        if "/" in name:
            assert any((root / name).exists() for root in (ROOT, ROOT / "src" / "stablelog")), name


def _commands(command, path=()):
    """Each command of the command line: its words, and how it is declared."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    if not names:
        yield " ".join(path), command
    for name in names:
        yield from _commands(command.get_command(None, name), (*path, name))


COMMANDS = dict(_commands(get_command(app)))
COMMANDS_TABLE = documented.section("Use the commands")


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_has_its_row_that_begins_with_its_help(words):
    rows = re.findall(rf"^\| `stablelog {words}(?: [A-Z][^|]*)?` \| (.*) \|$", COMMANDS_TABLE, re.M)
    assert len(rows) == 1
    # Options may stand in parentheses where a sentence of the help ends.
    text = " ".join(COMMANDS[words].help.split())
    assert text.startswith(re.sub(r" \([^)]*\)", "", rows[0]))
    options = {
        name for parameter in COMMANDS[words].params for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert set(re.findall(r"--[a-z-]+", rows[0])) <= options


@pytest.mark.parametrize("words", COMMANDS)
def test_the_help_of_every_command_has_examples_with_its_options(words):
    parts = re.split(r"\n  | \| ", (COMMANDS[words].epilog or "").partition(":")[2])
    examples = [shlex.split(part) for part in parts if part.strip()]
    found = [example for example in examples if example[1:3][: len(words.split())] == words.split()]
    assert found, "an example is missing"
    for example in examples:
        name = next(name for name in (" ".join(example[1:3]), example[1]) if name in COMMANDS)
        options = {one for parameter in COMMANDS[name].params for one in parameter.opts}
        assert {word for word in example if re.match(r"--?[a-z]", word)} <= options, example


def test_every_exit_code_of_the_code_has_its_row():
    table = documented.page("commands.md").partition("## Exit codes")[2]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)]
    assert codes == [0, FINDINGS, FAILED, NO_BROKER, 128 + signal.SIGINT, READER_GONE]


def test_no_row_is_of_a_command_that_is_gone():
    rows = re.findall(r"^\| `stablelog ([a-z -]+?)(?: [A-Z].*)?` \|", COMMANDS_TABLE, re.M)
    assert sorted(rows) == sorted(COMMANDS)


def test_the_table_of_rights_is_the_codes():
    rows = re.findall(r"^\| (\w+) \| (.*) \|$", documented.page("rights.md"), re.M)[1:]
    assert dict(rows) == {
        api.message_name: "<br>".join(
            f"{right.operation.name} {right.of}" + (f" ({right.without})" if right.without else "")
            for right in rights or ()
        )
        or "none"
        for api, rights in RIGHTS.items()
    }


def test_the_table_of_stores_has_every_promise():
    from peers.object_stores import AZURITE_VERSION
    from stablelog.env.objects.check import TRIALS

    stores = documented.page("stores.md")
    assert f"| Azurite {AZURITE_VERSION} |" in stores

    (rows,) = re.findall(r"\| promise \| directory \|.*\n\|[-|]*\n((?:\|.*\n)+)", stores)
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows.splitlines()] == list(TRIALS)
