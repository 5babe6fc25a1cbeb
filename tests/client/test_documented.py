"""What docs/client.md shows is run as it stands there."""

import re
from pathlib import Path

import pytest

import stablelog
from stablelog.client.aio.client import AsyncClient
from stablelog.client.native import Client
from tests.client.transactions import create, visible

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
# `test_outcomes.py` and `test_copier.py` run the others.
SNIPPETS = [
    snippet
    for snippet in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if not any(word in snippet for word in ("write_once", "position", "subscribe"))
]
(RESUMED,) = re.findall(r"```python\n([^`]*reader\.position.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def orders(stablelog_broker):
    """The topics of the page."""
    from confluent_kafka.admin import AdminClient, NewTopic

    names = ("orders", "stock")
    admin = AdminClient({"bootstrap.servers": stablelog_broker.bootstrap, "log_level": 0})
    new = [NewTopic(name, 2, 1, config={"stablelog.order": "commit"}) for name in names]
    for made in admin.create_topics(new).values():
        made.result(30)
    return names


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_what_the_page_shows_runs(stablelog_broker, orders, snippet, monkeypatch, capsys):
    for each in (Client, AsyncClient):  # where the page waits for ever, the test does not
        monkeypatch.setitem(each.read.__kwdefaults__, "wait", 0)
    before = len(visible(stablelog_broker.bootstrap, *orders))
    exec(snippet.replace("localhost:9092", stablelog_broker.bootstrap), {"__name__": "page"})
    shown = capsys.readouterr().out
    assert re.match(r"Position\(topic='orders', partition=[01], offset=\d+\)\n\d+ \[b'", shown)
    written = len(visible(stablelog_broker.bootstrap, *orders)) - before
    assert written == snippet.count("txn.write(")


def test_the_program_with_a_stored_position_goes_on(stablelog_broker, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = [create(stablelog_broker.bootstrap) for _ in range(2)]
    program = RESUMED.replace("localhost:9092", stablelog_broker.bootstrap).replace("wait=5", "wait=0")
    program = program.replace('["orders", "stock"]', repr(names))
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        for value in ("a", "b"):
            with client.transaction() as txn:
                for name in names:
                    txn.write(name, value=value)
            exec(program, {"__name__": "page"})
            assert capsys.readouterr().out == f"{txn.commit().commit_sequence} [b'{value}', b'{value}']\n"


def test_the_page_shows_both_faces():
    assert [("asyncio" in snippet) for snippet in SNIPPETS] == [False, True]
