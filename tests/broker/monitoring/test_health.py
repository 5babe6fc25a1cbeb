"""Health: the rules by table, the watch of the event loop by a clock of the test, and the pages of a server."""

import asyncio
import contextlib
import json
import threading
from http.client import HTTPConnection

import pytest

from stablelog.broker.monitoring import health, loop_watch
from stablelog.broker.monitoring.health import (
    SILENCE_S_MAX,
    HealthFacts,
    ReadyQuestion,
    parse_ready_question,
    reasons_not_alive,
    reasons_not_ready,
)
from stablelog.broker.monitoring.health_pages import ALIVE_PATH, READY_PATH, HealthPages
from stablelog.broker.monitoring.loop_watch import TICK_S_MAX, LoopWatch
from stablelog.broker.server import Server
from stablelog.broker.settings.config import BrokerConfig
from stablelog.errors import UnavailableError
from tests import documented, slow_opening
from tests.commands import run
from tests.waiting import until

DOCUMENT = " ".join(documented.page("metrics.md").split())
WELL = HealthFacts(400, 0, 0, is_disk_full=False)
ANY, READER, ALL = ReadyQuestion(), ReadyQuestion(writes=False), ReadyQuestion(every_partition=True)
RULES = [
    (WELL, ANY, []),
    (WELL._replace(opening_count=31), ANY, ["opening 31 of 400 partitions"]),
    (WELL._replace(opening_count=31), READER, ["opening 31 of 400 partitions"]),
    (WELL._replace(is_disk_full=True), ANY, ["disk full"]),
    (WELL._replace(is_disk_full=True), READER, []),
    (WELL._replace(offline_count=2), ANY, []),
    (WELL._replace(offline_count=2), ALL, ["2 of 400 partitions are offline"]),
    (WELL._replace(is_stopping=True), READER, ["stopping"]),
    (WELL._replace(is_stopping=True, is_disk_full=True), ANY, ["stopping", "disk full"]),
]


@pytest.mark.parametrize(("facts", "question", "reasons"), RULES)
def test_the_reasons_follow_from_the_facts(facts, question, reasons):
    assert reasons_not_ready(facts, question) == reasons


def test_a_loop_that_is_silent_for_long_is_not_alive():
    assert reasons_not_alive(0) == reasons_not_alive(SILENCE_S_MAX) == []
    assert reasons_not_alive(SILENCE_S_MAX + 1) == ["the event loop has not answered for 6 s"]


@pytest.mark.parametrize(
    ("query", "question"),
    [
        ("", ANY),
        ("writes=1&partitions=open", ANY),
        ("writes=0", READER),
        ("partitions=all", ALL),
        ("partitions=all&writes=0", ReadyQuestion(writes=False, every_partition=True)),
    ],
)
def test_a_query_says_what_the_client_needs(query, question):
    assert parse_ready_question(query) == question


@pytest.mark.parametrize("query", ["writes", "writes=2", "reads=0", "writes=0&writes=1", "&", "partitions=1"])
def test_another_query_is_refused(query):
    with pytest.raises(ValueError, match="writes=0 or writes=1, and partitions=all"):
        parse_ready_question(query)


def test_the_watch_knows_how_long_the_loop_is_silent():
    now_s, asked = [100.0], []
    watch = LoopWatch(asked.append, lambda: now_s[0])
    assert watch.silence_s == 0
    watch.ask()
    for _ in range(3):
        now_s[0] += 1
        watch.ask()
    assert (watch.silence_s, len(asked)) == (3, 1), "one question at a time"
    asked.pop()()
    assert watch.silence_s == 0
    watch.ask()
    now_s[0] += 1
    assert (watch.silence_s, len(asked)) == (1, 1)


def test_time_in_which_the_watch_does_not_tick_is_no_silence():
    now_s, asked = [100.0], []
    watch = LoopWatch(asked.append, lambda: now_s[0])
    watch.ask()
    now_s[0] += 1
    watch.ask()
    now_s[0] += 60  # the process was stopped
    assert watch.silence_s == 1 + TICK_S_MAX
    watch.ask()
    assert watch.silence_s == 1 + TICK_S_MAX
    assert reasons_not_alive(watch.silence_s) == []
    for _ in range(60):  # and now the loop is silent
        now_s[0] += 1
        watch.ask()
    assert watch.silence_s == 61 + TICK_S_MAX
    asked.pop()()
    assert watch.silence_s == 0
    now_s[0] += 60
    watch.ask()
    assert watch.silence_s == 0


def test_a_closed_loop_answers_no_more():
    def refuse(_work):
        raise RuntimeError("Event loop is closed")

    now_s = [0.0]
    watch = LoopWatch(refuse, lambda: now_s[0])
    for second in range(10):
        now_s[0] = second
        watch.ask()
    assert watch.silence_s == 9


def test_the_document_names_each_reason():
    told = {reason for facts, question, reasons in RULES for reason in reasons} | set(reasons_not_alive(6.0))
    for reason in told:
        assert f"`{reason}`" in DOCUMENT
    for word in ("writes=0", "partitions=all", ALIVE_PATH, READY_PATH, f"more than {SILENCE_S_MAX:.0f} s"):
        assert word in DOCUMENT


# -- the pages ---------------------------------------------------------------------------------------------------------


def page(path, *, method="GET", query="", silence_s=0.0, facts=WELL):
    """The status of a page, and its JSON."""
    told = []

    def read():
        if isinstance(facts, Exception):
            raise facts
        return facts

    pages = HealthPages(lambda: silence_s, read, lambda _environ, _start: [b'"metrics"'])
    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "QUERY_STRING": query}
    body = b"".join(pages(environ, lambda status, _headers: told.append(int(status.split()[0]))))
    return told[0] if told else None, json.loads(body) if body else None


def test_a_page_says_yes_or_the_reasons():
    assert page("/healthz") == (200, {"alive": True, "reasons": []})
    assert page("/readyz") == (200, {"ready": True, "reasons": []})
    full = WELL._replace(is_disk_full=True)
    assert page("/readyz", facts=full) == (503, {"ready": False, "reasons": ["disk full"]})
    assert page("/readyz", facts=full, query="writes=0")[0] == 200
    assert page("/healthz", facts=full)[0] == 200
    assert page("/readyz", method="HEAD", facts=full) == (503, None)


def test_while_the_loop_is_silent_nothing_is_asked_of_it():
    silent = ["the event loop has not answered for 9 s"]
    unused = AssertionError("the page asks the loop")
    assert page("/healthz", silence_s=9.0, facts=unused) == (503, {"alive": False, "reasons": silent})
    assert page("/readyz", silence_s=9.0, facts=unused) == (503, {"ready": False, "reasons": silent})
    late = UnavailableError("the event loop has not answered for 5 s")
    assert page("/readyz", facts=late) == (503, {"ready": False, "reasons": [str(late)]})


def test_other_requests_are_refused_or_passed_on():
    assert page("/metrics") == (None, "metrics")
    assert page("/readyz", method="POST")[0] == 405
    assert page("/readyz", method="HEAD", query="writes=no") == (400, None)
    status, told = page("/readyz", query="writes=no")
    assert status == 400
    assert "writes=0" in told["error"]


@pytest.mark.parametrize("path", ["", "/", "/healthz/", "/health", "/ready", "/livez", "/metrics/"])
def test_an_unknown_path_is_not_a_page(path):
    assert page(path, silence_s=9.0) == (404, {"error": "the paths are /metrics, /healthz, /readyz"})
    assert page(path, method="HEAD") == (404, None)


# -- a broker ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(directory):
    """A server, and a function that asks for a page of it."""
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "stablelog.metrics.port": "0"}
    server = await Server.open(BrokerConfig(settings), directory)
    try:
        yield server, lambda path: ask(server.broker.metrics.port, path)
    finally:
        await server.stop()


def ask(port, path):
    with contextlib.closing(HTTPConnection("127.0.0.1", port, timeout=60)) as client:
        client.request("GET", path)
        answer = client.getresponse()
        return answer.status, json.loads(answer.read())["reasons"]


def test_a_server_tells_its_state(tmp_path):
    async def conversation():
        async with served(tmp_path) as (server, told):
            partitions = server.broker.partitions
            assert await asyncio.to_thread(told, "/healthz") == (200, [])
            for _ in range(10_000):  # its own logs are being opened
                if not partitions.opening_count:
                    break
                await asyncio.sleep(0.001)
            assert await asyncio.to_thread(told, "/readyz") == (200, [])
            server.broker.topic_files.create("t", 2, {})
            count = sum(topic.partition_count for topic in server.broker.topics)
            failed = partitions.require("t", 0)
            failed.availability.mark_failed(UnavailableError("the disk fails"))
            assert await asyncio.to_thread(told, "/readyz") == (200, [])
            offline = (503, [f"1 of {count} partitions are offline"])
            assert await asyncio.to_thread(told, "/readyz?partitions=all") == offline
            server.broker.reserve.set_waiting(failed, waits=True)
            assert await asyncio.to_thread(told, "/readyz") == (503, ["disk full"])
            assert await asyncio.to_thread(told, "/readyz?writes=0") == (200, [])
            server.broker.reserve.set_waiting(failed, waits=False)
            server.stopping.set()
            assert await asyncio.to_thread(told, "/readyz?writes=0") == (503, ["stopping"])
            assert await asyncio.to_thread(told, "/healthz") == (200, [])

    asyncio.run(conversation())


def test_a_loop_that_does_not_run_is_told_by_a_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(health, "SILENCE_S_MAX", 0.0)
    monkeypatch.setattr(loop_watch, "INTERVAL_S", 0.01)

    async def conversation():
        async with served(tmp_path) as (_server, told):
            held = threading.Thread(target=lambda: until(lambda: told("/healthz")[0] == 503, "it is held"))
            held.start()
            held.join(60)  # on the loop: it stands still until the page says so
            assert not held.is_alive()
            await asyncio.to_thread(until, lambda: told("/healthz")[0] == 200, "it goes on")

    asyncio.run(conversation())


@pytest.mark.extended
def test_partitions_that_are_being_opened_are_counted(tmp_path, monkeypatch):
    with slow_opening.serve(tmp_path / "data", monkeypatch, stablelog_metrics_port=0) as (broker, opening):
        assert run("topics", "create", "t", "--partitions", "3", bootstrap=broker.bootstrap).returncode == 0
        opening.hold()
        broker.kill()
        broker.start()
        port = broker.log_tail().rpartition("metrics are served at http://")[2].partition("/")[0]
        done = run("health", "--ready", "--address", port)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("not ready: opening ")
        opening.release()
        until(lambda: run("health", "--ready", "--address", port).stdout == "ready\n", "they are open")
        assert run("health", "--address", port, "--json").stdout == '{"alive": true, "reasons": []}\n'
