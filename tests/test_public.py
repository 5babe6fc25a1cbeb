"""The public names of the package: `dir` lists them, and their docstrings are enough to use them."""

import asyncio
import inspect
import re
import subprocess
import sys
import textwrap

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import stablelog
from tests import public_api
from tests.commands import ROOT

FUNCTIONS = {
    "serve": stablelog.serve,
    "connect": stablelog.connect,
    "aio.connect": stablelog.aio.connect,
}
METHODS = {
    f"{kind.__name__}.{name}": member
    for module in (stablelog, stablelog.aio)
    for kind in (getattr(module, name) for name in module.__all__)
    if inspect.isclass(kind) and not issubclass(kind, (Exception, tuple))
    for name, member in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
}
WITH_EXAMPLES = {**FUNCTIONS, "EmbeddedBroker": stablelog.EmbeddedBroker}


@pytest.fixture(scope="module")
def own_broker():
    """A broker with the topics of the examples."""
    with stablelog.serve() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = [NewTopic(topic, 2, config={"stablelog.order": "commit"}) for topic in ("orders", "stock")]
        for made in admin.create_topics(topics).values():
            made.result()
        yield broker


def test_dir_lists_the_public_names_before_they_are_imported():
    program = "import stablelog, sys; print(*dir(stablelog)); print('stablelog.embedded' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    names, is_imported, _ = found.split("\n")
    assert {name for name in names.split() if not name.startswith("__")} == {
        name for name in stablelog.__all__ if not name.startswith("__")
    }
    assert is_imported == "False"


def test_each_public_name_is_there_and_documented():
    for name in stablelog.__all__:
        assert inspect.getdoc(getattr(stablelog, name)), name


def test_a_name_that_is_missing_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'server'"):
        _ = stablelog.server


@pytest.mark.parametrize("name", sorted({*FUNCTIONS, *METHODS}))
def test_a_docstring_describes_each_argument(name):
    function = {**FUNCTIONS, **METHODS}[name]
    described = re.findall(r"^    (\w+): ", inspect.getdoc(function), re.M)
    arguments = set(inspect.signature(function).parameters) - {"self"}
    assert arguments <= set(described) | {"line_count"}, "each argument has its line under Args"


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(WITH_EXAMPLES))
def test_the_example_of_a_docstring_runs(name, own_broker, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    example = inspect.getdoc(WITH_EXAMPLES[name]).partition("\nExample:\n")[2]
    assert example
    names = {"broker": own_broker} if "connect" in name else {}
    known = {"asyncio": asyncio, "confluent_kafka": confluent_kafka, "stablelog": stablelog}
    exec(textwrap.dedent(example), known | names)
    printed = capfd.readouterr().out
    for line in re.findall(r"print\(.*\)  # (.*)$", example, re.M):
        pattern = re.sub(r"\d+", r"\\d+", re.escape(line))
        assert re.search(f"^{pattern}$", printed, re.M), printed


def test_the_page_of_the_api_is_drawn_from_the_code():
    assert public_api.PAGE.read_text() == public_api.page(), "run `python -m tests.public_api`"


def test_the_page_of_the_api_has_each_member_or_says_where_it_is():
    sections = dict(re.findall(r"^### (\S+)\n((?:(?!#).*\n|    #.*\n)*)", public_api.page(), re.M))
    shown = {
        full: set(re.findall(r"(?:def |`|^    )([\w.]+)(?=[(:`]| =)", text, re.M))
        for full, text in sections.items()
    }
    for full, _, _, inner in public_api.names():
        others = re.findall(r"# The (?:calls|members) of `([\w.]+)`", sections[full])
        known = shown[full].union(*(shown[other] for other in others))
        assert {name for name, line, _ in inner if not line.startswith("#")} <= known, full


def test_the_changelog_names_each_change_of_the_api():
    released = public_api.RELEASED.read_text().splitlines()
    found = public_api.unnamed(released, public_api.surface(), (ROOT / "CHANGELOG.md").read_text())
    assert found == [], "the first section of CHANGELOG.md names what has changed, in backticks"


@pytest.mark.parametrize(
    ("now", "changelog", "missing"),
    [
        (["m.A | class A:", "m.A.b | def b() -> None: ..."], "", []),
        (["m.A | class A:", "m.A.b | def b(c: int) -> None: ..."], "", ["m.A.b"]),
        (["m.A | class A:", "m.A.b | def b(c: int) -> None: ..."], "the b of others", ["m.A.b"]),
        (["m.A | class A:", "m.A.b | def b(c: int) -> None: ..."], "`A.b(c)` is new", []),
        (["m.A | class A:"], "`A.bb` is gone", ["m.A.b"]),
        (["m.A | class A:", "m.A.b | def b() -> None: ...", "m.B | class B:", "m.B.x | x: int"], "", ["m.B"]),
        (["m.A | class A:", "m.A.b | def b() -> None: ...", "m.B | class B:", "m.B.x | x: int"], "`m.B`", []),
    ],
)
def test_a_name_of_the_api_that_has_changed_has_to_be_named(now, changelog, missing):
    released = ["m.A | class A:", "m.A.b | def b() -> None: ..."]
    text = f"# Changelog\n\n## 2, not released\n\n{changelog}\n\n## 1\n\n`b` and `B`\n"
    assert public_api.unnamed(released, now, text) == missing
