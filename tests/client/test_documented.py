"""What the documents of the client show is run as it stands there: each block, here or in the test that takes it."""

import importlib
import re

import pytest

import stablelog
from stablelog.client.aio.client import AsyncClient
from stablelog.client.blocking.client import Client
from tests import documented
from tests.client.transactions import create, visible
from tests.commands import run
from tests.secured import PASSWORD, USER, secured

# The modules that run the other blocks.
OTHERS = (
    "tests.cli.test_guides",
    "tests.cli.test_security_recipes",
    "tests.client.copier",
    "tests.client.test_admin",
    "tests.client.test_outcomes",
    "tests.golden.test_kafka_directory",
    "tests.test_start",
    "tests.testing.test_pytest_plugin",
)
FACES = documented.take("python-service.md", "client.read([", "txn.write(")
(COMMANDS,) = documented.take("python-service.md", "stablelog topics create")
(LOGIN,) = documented.take("client.md", "SASL_SSL")
(MANY,) = documented.take("python-service.md", "txn.write_many(")
(RESUMED,) = documented.take("python-service.md", "reader.position", "os.replace")
(STORED,) = documented.take("python-service.md", "reader.position", "sqlite3")
(GROUPED,) = documented.take("python-service.md", "client.transaction(group=")


@pytest.fixture(scope="module")
def orders(stablelog_broker):
    """The topics of the page, made as it says."""
    for line in COMMANDS.splitlines():
        _stablelog, *words = line.split()
        made = run(*words, bootstrap=stablelog_broker.bootstrap)
        assert made.returncode == 0, made.stderr
    return "orders", "stock"


@pytest.mark.extended
@pytest.mark.parametrize("snippet", FACES, ids=["threads", "asyncio"])
def test_what_the_page_shows_runs(stablelog_broker, orders, snippet, monkeypatch, capsys):
    for each in (Client, AsyncClient):  # where the page waits for ever, the test does not
        monkeypatch.setitem(each.read.__kwdefaults__, "wait", 0)
    before = len(visible(stablelog_broker.bootstrap, *orders))
    exec(snippet.replace("localhost:9092", stablelog_broker.bootstrap), {"__name__": "page"})
    shown = capsys.readouterr().out
    assert re.match(r"Position\(topic='orders', partition=[01], offset=\d+\)\n\d+ \[b'", shown)
    written = len(visible(stablelog_broker.bootstrap, *orders)) - before
    assert written == snippet.count("txn.write(")


def test_many_records_are_written_with_one_call(stablelog_broker, orders):
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        names = {"client": client}
        exec(MANY, names)
    there = visible(stablelog_broker.bootstrap, "orders")
    assert [there[names[name]] for name in ("first", "second")] == [b"2 chairs", b"1 lamp"]


@pytest.mark.extended
def test_a_client_logs_in(module_path, monkeypatch):
    monkeypatch.setenv("LOG_PASSWORD", PASSWORD)
    with secured(module_path) as server:
        program = LOGIN.replace("log.example.org:9094", server.at["SASL_SSL"])
        program = program.replace("/etc/stablelog/authority.pem", str(server.certificates.trust))
        assert f'"{USER}"' in program
        names = {}
        exec(f"import os, stablelog\n{program}", names)
        with names["client"] as client:
            assert client.admin.topics.list() is not None


@pytest.mark.extended
def test_a_transaction_is_written_in_its_group(stablelog_broker):
    paid = create(stablelog_broker.bootstrap, group="payments")
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        names = {"client": client}
        exec(GROUPED.replace('"paid"', repr(paid)), names)
    assert visible(stablelog_broker.bootstrap, paid) == {names["paid"].result(): b"12 EUR"}


def over_two_topics(block, bootstrap):
    """Two new topics, and a program of the page that reads them to their end."""
    names = [create(bootstrap) for _ in range(2)]
    program = block.replace("localhost:9092", bootstrap).replace("wait=5", "wait=0")
    return names, program.replace('["orders", "stock"]', repr(names))


@pytest.mark.extended
def test_the_program_with_a_database_has_each_result_once(stablelog_broker, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names, program = over_two_topics(STORED, stablelog_broker.bootstrap)
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        for value in ("a", "b"):
            with client.transaction() as txn:
                txn.write_many(names[0], [value, value])
                txn.write(names[1], value)
            made = {"__name__": "page"}
            exec(program, made)
            results = [bytes(row[0]) for row in made["database"].execute("SELECT value FROM results")]
            made["database"].close()
            assert sorted(results) == [b"a"] * 3 + [b"b"] * 3 * (value == "b")


def test_the_program_with_a_stored_position_goes_on(stablelog_broker, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    names, program = over_two_topics(RESUMED, stablelog_broker.bootstrap)
    with stablelog.connect(stablelog_broker.bootstrap) as client:
        for value in ("a", "b"):
            with client.transaction() as txn:
                for name in names:
                    txn.write(name, value=value)
            exec(program, {"__name__": "page"})
            assert capsys.readouterr().out == f"{txn.commit().commit_sequence} [b'{value}', b'{value}']\n"


def test_each_block_is_run():
    for module in OTHERS:
        importlib.import_module(module)
    found = [(page, block) for page in documented.PAGES for block in documented.blocks(page)]
    missing = "\n".join(f"{page}:\n{block}" for page, block in found if (page, block) not in documented.taken)
    assert not missing, f"no test runs these blocks:\n{missing}"
    assert len(found) > 12
