"""`stablelog health`: what it says of each answer, and of none."""

import json
import socket

import pytest

from stablelog.cli.health import ADDRESS, address_in, parse_address, parse_answer
from stablelog.errors import UsageError
from tests import documented
from tests.answering import answering
from tests.commands import run

YES = b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{"ready": true, "reasons": []}\n'
NO = b'HTTP/1.0 503 Service Unavailable\r\n\r\n{"ready": false, "reasons": ["disk full", "stopping"]}\n'


@pytest.mark.parametrize(
    ("words", "content", "code", "out"),
    [
        ((), YES, 0, "alive\n"),
        (("--ready",), YES, 0, "ready\n"),
        (("--ready",), NO, 1, "not ready: disk full, stopping\n"),
        ((), NO, 1, "not alive: disk full, stopping\n"),
        (("--ready", "--json"), NO, 1, '{"ready": false, "reasons": ["disk full", "stopping"]}\n'),
    ],
)
def test_the_answer_is_printed(words, content, code, out):
    with answering(content) as (address, received):
        done = run("health", "--address", address, *words)
    assert (done.returncode, done.stdout, done.stderr) == (code, out, "")
    path = b"/readyz" if "--ready" in words else b"/healthz"
    assert received[0].startswith(b"GET " + path + b" HTTP/1.0\r\n")


@pytest.mark.parametrize(
    "content", [b"SSH-2.0-x\r\n", b"HTTP/1.0 200 OK\r\n\r\nhello", b"HTTP/1.1 404 No\r\n\r\n{}"]
)
def test_what_is_no_broker_is_named(content):
    with answering(content) as (address, _):
        done = run("health", "--address", address)
    assert done.returncode == 2
    assert f"{address} is not the metrics port of a broker" in done.stderr


def test_a_connection_that_is_closed_is_no_answer():
    with answering(b"") as (address, _):
        done = run("health", "--address", address)
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{address} closed the connection without an answer: it has too many connections" in done.stderr


def test_a_reason_is_printed_without_control_characters():
    body = json.dumps({"alive": False, "reasons": ["\x1b[2J", "\ud800"]}).encode()
    with answering(b"HTTP/1.0 503 No\r\n\r\n" + body) as (address, _):
        done = run("health", "--address", address)
    assert (done.returncode, done.stdout, done.stderr) == (1, "not alive: \\x1b[2J, \\ud800\n", "")


def test_the_address_is_told_once(tmp_path):
    file = tmp_path / "server.properties"
    file.write_text("stablelog.metrics.port=9644\n")
    done = run("health", "--address", "127.0.0.1:1", "--config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --address or --config, not both" in done.stderr


def test_no_answer_is_an_error_that_says_what_to_look_at():
    with answering(None) as (address, _):
        done = run("health", "--address", address, "--timeout", "0.2")
    assert (done.returncode, done.stderr) == (3, f"stablelog: {address} has not answered for 0.2 s\n")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and it does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        done = run("health", "--address", address)
    assert done.returncode == 3
    assert f"no broker answers at {address}: Connection refused" in done.stderr
    assert "stablelog.metrics.port" in done.stderr


HOSTLESS = [
    "a..b:9644",
    f"{'a' * 64}:9644",
    "a\0b:9644",
    "\udcff:9644",
    pytest.param(f"host:{'9' * 5000}", id="digits"),
]


@pytest.mark.parametrize("text", ["", "9644x", "host", "host:", "host:0", "host:65536", "host:-1", *HOSTLESS])
def test_another_address_is_refused(text):
    with pytest.raises(UsageError, match="write HOST:PORT, such as"):
        parse_address(text)


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"stablelog.metrics.port": "9644"}, ("127.0.0.1", 9644)),
        ({"stablelog.metrics.port": "1", "stablelog.metrics.host": "0.0.0.0"}, ("127.0.0.1", 1)),
        ({"stablelog.metrics.port": "1", "stablelog.metrics.host": "::"}, ("::1", 1)),
        ({"stablelog.metrics.port": "1", "stablelog.metrics.host": "example.org"}, ("example.org", 1)),
    ],
)
def test_the_address_is_that_of_the_settings(settings, address, tmp_path):
    assert address_in(tmp_path, settings) == address


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "sets no stablelog.metrics.port"),
        ({"stablelog.metrics.port": "-1"}, "sets no stablelog.metrics.port"),
        ({"stablelog.metrics.port": "0"}, "a free port: name the port"),
        (
            {"stablelog.metrics.port": "many"},
            r"server\.properties sets stablelog\.metrics\.port='many', which is no port",
        ),
        ({"stablelog.metrics.port": "9" * 5000}, "which is no port: set a number"),
        (
            {"stablelog.metrics.port": "1", "stablelog.metrics.host": "a..b"},
            r"server\.properties sets stablelog\.metrics\.host='a\.\.b', which is no host",
        ),
    ],
)
def test_settings_without_a_port_are_refused(settings, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        address_in(tmp_path / "server.properties", settings)


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(timeout):
    done = run("health", f"--timeout={timeout}")
    assert done.returncode == 2
    assert "--timeout" in done.stderr


def test_the_answer_of_a_broker_is_parsed():
    assert parse_answer(YES) == (200, [])
    assert parse_answer(NO) == (503, ["disk full", "stopping"])
    for content in (
        b"HTTP/1.0 503 X\r\n\r\n[]",
        b"HTTP/1.0 500 X\r\n\r\n" + json.dumps({"reasons": []}).encode(),
    ):
        with pytest.raises(ValueError, match="not an answer of a broker"):
            parse_answer(content)


def test_the_default_is_that_of_the_documents():
    assert parse_address(ADDRESS) == ("127.0.0.1", 9644)
    assert f"or else at {ADDRESS}," in " ".join(documented.page("commands.md").split())
    assert "stablelog.metrics.port=9644" in documented.page("deploy.md")


# -- options of commands of the core -----------------------------------------------------------------------------------


def test_an_unknown_option_names_the_nearest():
    done = run("serve", "--porrt", "9")
    assert done.returncode == 2
    assert "stablelog serve: error: no such option: --porrt; did you mean --port?" in done.stderr
    done = run("health", "--redy=yes")
    assert "no such option: --redy; did you mean --ready?" in done.stderr


def test_the_end_of_the_options_is_accepted():
    assert run("health", "--help", "--").returncode == 0
    done = run("health", "--address", "x", "--")
    assert "write HOST:PORT" in done.stderr
    done = run("health", "--", "x")
    assert (done.returncode, "unexpected argument: x" in done.stderr) == (2, True)
